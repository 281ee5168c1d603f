"""The torch backend: default networks, models taken over from elsewhere, stacked models."""

from typing import TYPE_CHECKING, Any

from skuq.models._adopt import adopt
from skuq.models._adopted_model import AdoptedModel
from skuq.models._batches import BatchLoader
from skuq.models._before_linear import BeforeLinear, LayerInput, split_before_linear
from skuq.models._classes import classes_of_outputs, encode_labels, warn_of_probabilities
from skuq.models._default_networks import (
    float64_mlp,
    train_default_classifier,
    train_default_regressor,
)
from skuq.models._dense import to_dense
from skuq.models._device import resolve_device
from skuq.models._estimator_model import EstimatorModel, fit_or_take, is_network, last_step
from skuq.models._evaluate import evaluate, moved, rows_at_once
from skuq.models._fit_or_adopt import fit_or_adopt, fit_or_adopt_regressor, fit_sklearn_clone
from skuq.models._input_kinds import brings_preprocessing, labels_in_mask, takes_ids
from skuq.models._mixin import AdoptedClassifierMixin, AdoptedInputsMixin
from skuq.models._module_classifier import ModuleClassifier
from skuq.models._networks import (
    MLP,
    BinaryLogits,
    Columns,
    LeNet,
    LogProbabilities,
    ScaledLogits,
    TabularNet,
    checked_widths,
    is_chain,
    linear_layer,
    part_of_chain,
)
from skuq.models._skorch_nets import fit_net
from skuq.models._stacked import Head, split_head, stack_parameters, stacked_forward
from skuq.models._taken_as_it_is import is_fitted, level_of_the_user, taken_as_it_is
from skuq.models._training import Trained, TrainingSettings, WeightedLoss, seeded, train
from skuq.models._training_set import TrainingSet, training_batches
from skuq.models._transformers import as_rows, pretrained_inside, takes_tokens

if TYPE_CHECKING:
    from skuq.models._weighted_classifier import WeightedClassifier

__all__ = [
    "MLP",
    "AdoptedClassifierMixin",
    "AdoptedInputsMixin",
    "AdoptedModel",
    "BatchLoader",
    "BeforeLinear",
    "BinaryLogits",
    "Columns",
    "EstimatorModel",
    "Head",
    "LayerInput",
    "LeNet",
    "LogProbabilities",
    "ModuleClassifier",
    "ScaledLogits",
    "TabularNet",
    "Trained",
    "TrainingSet",
    "TrainingSettings",
    "WeightedClassifier",
    "WeightedLoss",
    "adopt",
    "as_rows",
    "brings_preprocessing",
    "checked_widths",
    "classes_of_outputs",
    "encode_labels",
    "evaluate",
    "fit_net",
    "fit_or_adopt",
    "fit_or_adopt_regressor",
    "fit_or_take",
    "fit_sklearn_clone",
    "float64_mlp",
    "is_chain",
    "is_fitted",
    "is_network",
    "labels_in_mask",
    "last_step",
    "level_of_the_user",
    "linear_layer",
    "moved",
    "part_of_chain",
    "pretrained_inside",
    "resolve_device",
    "rows_at_once",
    "seeded",
    "split_before_linear",
    "split_head",
    "stack_parameters",
    "stacked_forward",
    "taken_as_it_is",
    "takes_ids",
    "takes_tokens",
    "to_dense",
    "train",
    "train_default_classifier",
    "train_default_regressor",
    "training_batches",
    "warn_of_probabilities",
]


def __getattr__(name: str) -> Any:
    if name != "WeightedClassifier":  # derived from a class of skorch, which takes long to import
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skuq.models._weighted_classifier import WeightedClassifier

    return WeightedClassifier
