"""Quantification of uncertainty with adversarial models (QUAM).

Without torch, this package works for scikit-learn estimators other than networks.
"""

from typing import TYPE_CHECKING

from skuq.files import stored_in
from skuq.imports import import_networks, lazy_names
from skuq.quam._classifier import QUAMClassifier
from skuq.quam._importance_sampling import AdversarialModels, AdversarialRegressors
from skuq.quam._pools import make_pool
from skuq.quam._pools import make_token_pool as make_token_pool
from skuq.quam._refit_search import RefitSearch
from skuq.quam._regressor import QUAMRegressor

if TYPE_CHECKING:
    from skuq.quam._pointwise_search import PointwiseSearch
    from skuq.quam._pool_search import PoolSearch
    from skuq.quam._quadratic_search import QuadraticSearch

__all__ = [
    "AdversarialModels",
    "AdversarialRegressors",
    "PointwiseSearch",
    "PoolSearch",
    "QUAMClassifier",
    "QUAMRegressor",
    "QuadraticSearch",
    "RefitSearch",
    "make_pool",
]

_NETWORKS = {
    "skuq.quam._pointwise_search": ("PointwiseSearch",),
    "skuq.quam._pool_search": ("PoolSearch",),
    "skuq.quam._quadratic_search": ("QuadraticSearch", "apart", "towards"),
}
__getattr__ = lazy_names(__name__, _NETWORKS, load=import_networks)
stored_in("skuq.quam._gradient_search", "quam.fitted-search", "quam.search-problem")
stored_in("skuq.quam._pointwise_search", "quam.pointwise-search")
stored_in("skuq.quam._pool_search", "quam.pool-search", "quam.found-networks")
stored_in("skuq.quam._quadratic_search", "quam.quadratic-search", "quam.quadratic-problem")
stored_in("skuq.quam._curvature", "quam.kronecker-curvature", "quam.exact-curvature")
