"""Uncertainty of predictions for tables of numbers and text."""

from skuq.tables._model import TableModel
from skuq.tables._notes import coverage_notes, guessing_note, table_notes, weak_class_notes
from skuq.tables._storage import check_savable, read_estimator
from skuq.tables._target import MAX_CLASSES
from skuq.tables._training import Comparison
from skuq.tables._validation import NewValuesWarning, TableError

__all__ = [
    "MAX_CLASSES",
    "Comparison",
    "NewValuesWarning",
    "TableError",
    "TableModel",
    "check_savable",
    "coverage_notes",
    "guessing_note",
    "read_estimator",
    "table_notes",
    "weak_class_notes",
]
