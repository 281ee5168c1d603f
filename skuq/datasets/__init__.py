"""Data sets: digits with OOD inputs, synthetic data, graphs, and local ``.npz`` files."""

from skuq.datasets._files import (
    SIDE,
    DigitsWithOOD,
    load_digits_with_ood,
    load_npz,
    load_table,
)
from skuq.datasets._generated import (
    GAUSSIAN_REGION,
    make_gaussian_classes,
    make_heteroscedastic,
    make_loans,
)
from skuq.datasets._graphs import GraphData, load_graph, make_node_classes

__all__ = [
    "GAUSSIAN_REGION",
    "SIDE",
    "DigitsWithOOD",
    "GraphData",
    "load_digits_with_ood",
    "load_graph",
    "load_npz",
    "load_table",
    "make_gaussian_classes",
    "make_heteroscedastic",
    "make_loans",
    "make_node_classes",
]
