"""Quantification of uncertainty with adversarial models (QUAM)."""

from skuq.quam._classifier import QUAMClassifier
from skuq.quam._objectives import Objective, classification_loss, targeted, untargeted
from skuq.quam._regressor import QUAMRegressor
from skuq.quam._sampling import (
    AdversarialModels,
    best_adversarial_models,
    importance_weights,
    trajectory_weights,
)
from skuq.quam._search import Schedule, Trajectories, penalty_schedule, search_adversarial_models

__all__ = [
    "AdversarialModels",
    "Objective",
    "QUAMClassifier",
    "QUAMRegressor",
    "Schedule",
    "Trajectories",
    "best_adversarial_models",
    "classification_loss",
    "importance_weights",
    "penalty_schedule",
    "search_adversarial_models",
    "targeted",
    "trajectory_weights",
    "untargeted",
]
