"""Common interface of users' models and of default models.

Scikit-learn estimators that are not networks need no torch.
"""

from typing import TYPE_CHECKING

from skuq.files import stored_in
from skuq.imports import import_networks, lazy_names
from skuq.models._given import OF_FUNCTION as OF_FUNCTION
from skuq.models._given import RESAMPLED as RESAMPLED
from skuq.models._given import Given as Given
from skuq.models._given import as_rows
from skuq.models._given import check_is_estimator as check_is_estimator
from skuq.models._given import check_several_classes as check_several_classes
from skuq.models._given import class_weights as class_weights
from skuq.models._given import look_at as look_at
from skuq.models._given import takes_weights as takes_weights
from skuq.models._model import LearnerModel as LearnerModel
from skuq.models._model import Model
from skuq.models._model import classes_of_logits as classes_of_logits
from skuq.models._model import unfitted as unfitted
from skuq.models._resolve import FunctionClassifier as FunctionClassifier
from skuq.models._resolve import ModelClassifierMixin as ModelClassifierMixin
from skuq.models._resolve import ModelMixin as ModelMixin
from skuq.models._resolve import ModuleClassifier as ModuleClassifier
from skuq.models._resolve import TrainingData as TrainingData
from skuq.models._resolve import fit_model as fit_model
from skuq.models._resolve import from_function, resolve
from skuq.wrappers import is_prefit as is_prefit

if TYPE_CHECKING:
    from skuq.models._fit_or_adopt import adopt
    from skuq.models._network_model import NetworkModel as NetworkModel

# The other names are for other packages of skuq.
__all__ = ["Model", "adopt", "as_rows", "from_function", "resolve"]

_NETWORKS = {
    "skuq.models._fit_or_adopt": ("adopt",),
    "skuq.models._network_model": ("NetworkModel",),
}
__getattr__ = lazy_names(__name__, _NETWORKS, load=import_networks)
stored_in("skuq.models._network_model", "models.network")
stored_in("skuq._networks", "networks.affine", "networks.binary-logits")
