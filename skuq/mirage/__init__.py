"""Artificial uncertainty (Mirage): attacks that make a model look uncertain in a given region."""

from skuq.extras import import_optional

import_optional("torch", extra=None)
from skuq.mirage._constructive import ShiftedNetwork, constructive_mirage
from skuq.mirage._fine_tuner import MirageFineTuner
from skuq.mirage._losses import (
    GaussianMirageLoss,
    MirageLoss,
    confidence_overlap,
    target_table,
)
from skuq.mirage._regressor import MirageRegressor

__all__ = [
    "GaussianMirageLoss",
    "MirageFineTuner",
    "MirageLoss",
    "MirageRegressor",
    "ShiftedNetwork",
    "confidence_overlap",
    "constructive_mirage",
    "target_table",
]
