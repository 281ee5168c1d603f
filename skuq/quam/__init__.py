"""Quantification of uncertainty with adversarial models (QUAM)."""

from skuq.quam._classifier import QUAMClassifier
from skuq.quam._explanation import Explanation, explain_rows
from skuq.quam._importance_sampling import (
    AdversarialModels,
    best_adversarial_models,
    importance_weights,
    pool_weights,
    trajectory_weights,
)
from skuq.quam._objectives import Objective, Targeted, Untargeted, classification_loss
from skuq.quam._pools import make_pool, make_token_pool
from skuq.quam._regression_sampling import AdversarialRegressors
from skuq.quam._regressor import QUAMRegressor
from skuq.quam._search import Trajectories, search_adversarial_models
from skuq.quam._search_problem import Schedule, penalty_schedule

__all__ = [
    "AdversarialModels",
    "AdversarialRegressors",
    "Explanation",
    "Objective",
    "QUAMClassifier",
    "QUAMRegressor",
    "Schedule",
    "Targeted",
    "Trajectories",
    "Untargeted",
    "best_adversarial_models",
    "classification_loss",
    "explain_rows",
    "importance_weights",
    "make_pool",
    "make_token_pool",
    "penalty_schedule",
    "pool_weights",
    "search_adversarial_models",
    "trajectory_weights",
]
