"""Common interface of users' models and of default models.

Scikit-learn estimators that are not networks need no torch.
"""

from typing import TYPE_CHECKING

from skuq.extras import import_networks, lazy_names
from skuq.models._categories import category_columns
from skuq.models._given import as_rows, is_prefit, look_at
from skuq.models._mixin import ModelClassifierMixin, ModelMixin, ModuleClassifier
from skuq.models._model import (
    LearnerModel,
    Model,
    classes_of_logits,
)
from skuq.models._resolve import TrainingData, check_is_estimator, fit_model, resolve
from skuq.stored import stored_in

if TYPE_CHECKING:
    from skuq.models._adopt import adopt
    from skuq.models._network_model import NetworkModel

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
    "category_columns",
    "check_is_estimator",
    "classes_of_logits",
    "fit_model",
    "is_prefit",
    "look_at",
    "resolve",
]

_NETWORKS = {
    "skuq.models._adopt": ("adopt",),
    "skuq.models._network_model": ("NetworkModel",),
}
__getattr__ = lazy_names(__name__, _NETWORKS, load=import_networks)
stored_in("skuq.models._network_model", "models.network")
stored_in("skuq._networks", "networks.affine", "networks.binary-logits")
