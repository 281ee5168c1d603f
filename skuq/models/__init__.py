"""The torch backend: default modules, models taken over from elsewhere, stacked models."""

from skuq.models._adopt import AdoptedModel, adopt
from skuq.models._classifier import (
    brings_preprocessing,
    classes_of_outputs,
    codes_of,
    encode_labels,
    fit_or_adopt,
    frozen_if_fitted,
    is_fitted,
    takes_ids,
)
from skuq.models._device import resolve_device
from skuq.models._evaluate import evaluate
from skuq.models._mixin import AdoptedClassifierMixin, AdoptedInputsMixin
from skuq.models._networks import MLP, BinaryLogits, Columns, LeNet, LogProbabilities, TabularNet
from skuq.models._stacked import Head, split_head, stack_parameters, stacked_forward
from skuq.models._training import (
    BatchLoader,
    WeightedClassifier,
    default_classifier,
    fit_net,
    seeded,
)
from skuq.models._training_set import TrainingSet, training_batches

__all__ = [
    "MLP",
    "AdoptedClassifierMixin",
    "AdoptedInputsMixin",
    "AdoptedModel",
    "BatchLoader",
    "BinaryLogits",
    "Columns",
    "Head",
    "LeNet",
    "LogProbabilities",
    "TabularNet",
    "TrainingSet",
    "WeightedClassifier",
    "adopt",
    "brings_preprocessing",
    "classes_of_outputs",
    "codes_of",
    "default_classifier",
    "encode_labels",
    "evaluate",
    "fit_net",
    "fit_or_adopt",
    "frozen_if_fitted",
    "is_fitted",
    "resolve_device",
    "seeded",
    "split_head",
    "stack_parameters",
    "stacked_forward",
    "takes_ids",
    "training_batches",
]
