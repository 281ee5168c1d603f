"""Small data sets for each kind of task: digits with OOD inputs, synthetic data, and graphs."""

from skuq.datasets._generated import GAUSSIAN_REGION as GAUSSIAN_REGION
from skuq.datasets._generated import SIDE as SIDE
from skuq.datasets._generated import DigitsWithOOD as DigitsWithOOD
from skuq.datasets._generated import GraphData as GraphData
from skuq.datasets._generated import (
    load_digits_with_ood,
    make_gaussian_classes,
    make_heteroscedastic,
    make_loans,
    make_node_classes,
)

__all__ = [
    "GAUSSIAN_REGION",
    "load_digits_with_ood",
    "make_gaussian_classes",
    "make_heteroscedastic",
    "make_loans",
    "make_node_classes",
]
