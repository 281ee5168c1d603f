"""Artificial uncertainty (Mirage): attacks that make a model look uncertain in a given region."""

from skuq.imports import import_optional

import_optional("torch", extra=None)
from skuq.mirage._constructive import constructive_mirage
from skuq.mirage._fine_tuner import MirageFineTuner, MirageRegressor
from skuq.mirage._losses import GaussianMirageLoss as GaussianMirageLoss
from skuq.mirage._losses import MirageLoss as MirageLoss
from skuq.mirage._losses import confidence_overlap as confidence_overlap
from skuq.mirage._losses import target_table as target_table

__all__ = ["MirageFineTuner", "MirageRegressor", "constructive_mirage"]
