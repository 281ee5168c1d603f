"""Models that users bring, or that are trained for them, in one form."""

from skuq.models._adopt import adopt
from skuq.models._given import as_rows, is_prefit, look_at
from skuq.models._mixin import ModelClassifierMixin, ModelMixin, ModuleClassifier
from skuq.models._model import LearnerModel, Model, NetworkModel, classes_of_logits
from skuq.models._resolve import TrainingData, fit_model, resolve

__all__ = [
    "LearnerModel",
    "Model",
    "ModelClassifierMixin",
    "ModelMixin",
    "ModuleClassifier",
    "NetworkModel",
    "TrainingData",
    "adopt",
    "as_rows",
    "classes_of_logits",
    "fit_model",
    "is_prefit",
    "look_at",
    "resolve",
]
