"""Models that users bring, or that are trained for them, in one form."""

from skuq.models._adopt import adopt
from skuq.models._given import (
    WEIGHT_OF_SECOND_CLASS,
    as_pandas,
    as_rows,
    is_fitted,
    is_prefit,
    look_at,
    to_dense,
    warn_of_retraining,
)
from skuq.models._mixin import ModelClassifierMixin, ModelMixin, ModuleClassifier
from skuq.models._model import (
    LearnerModel,
    Model,
    NetworkModel,
    classes_of_outputs,
    warn_of_probabilities,
    with_classes,
)
from skuq.models._resolve import TrainingData, fit_model, resolve

__all__ = [
    "WEIGHT_OF_SECOND_CLASS",
    "LearnerModel",
    "Model",
    "ModelClassifierMixin",
    "ModelMixin",
    "ModuleClassifier",
    "NetworkModel",
    "TrainingData",
    "adopt",
    "as_pandas",
    "as_rows",
    "classes_of_outputs",
    "fit_model",
    "is_fitted",
    "is_prefit",
    "look_at",
    "resolve",
    "to_dense",
    "warn_of_probabilities",
    "warn_of_retraining",
    "with_classes",
]
