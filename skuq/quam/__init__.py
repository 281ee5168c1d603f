"""Quantification of uncertainty with adversarial models (QUAM)."""

from skuq.quam._classifier import QUAMClassifier
from skuq.quam._explanation import Explanation, explain_rows
from skuq.quam._gradient_search import penalty_schedule
from skuq.quam._importance_sampling import AdversarialModels, Trajectories
from skuq.quam._objectives import Targeted
from skuq.quam._pointwise_search import PointwiseSearch, search_adversarial_models
from skuq.quam._pool_search import PoolSearch
from skuq.quam._pools import make_pool, make_token_pool
from skuq.quam._refit_search import RefitSearch
from skuq.quam._regression_sampling import AdversarialRegressors
from skuq.quam._regressor import QUAMRegressor

__all__ = [
    "AdversarialModels",
    "AdversarialRegressors",
    "Explanation",
    "PointwiseSearch",
    "PoolSearch",
    "QUAMClassifier",
    "QUAMRegressor",
    "RefitSearch",
    "Targeted",
    "Trajectories",
    "explain_rows",
    "make_pool",
    "make_token_pool",
    "penalty_schedule",
    "search_adversarial_models",
]
