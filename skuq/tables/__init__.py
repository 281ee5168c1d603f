"""Uncertainty of predictions for tables of numbers and text."""

from skuq.tables._columns import TableError
from skuq.tables._quantify import TableResult, quantify_table

__all__ = [
    "TableError",
    "TableResult",
    "quantify_table",
]
