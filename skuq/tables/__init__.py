"""Uncertainty of predictions for tables of numbers and text."""

from skuq.tables._errors import TableError
from skuq.tables._learners import Comparison
from skuq.tables._model import TableModel
from skuq.tables._notes import coverage_notes, table_notes

__all__ = [
    "Comparison",
    "TableError",
    "TableModel",
    "coverage_notes",
    "table_notes",
]
