"""Uncertainty of predictions for tables of numbers and text."""

from skuq.tables._columns import NewValuesWarning, TableError
from skuq.tables._model import TableModel
from skuq.tables._notes import UNUSUAL as UNUSUAL
from skuq.tables._notes import coverage_notes as coverage_notes
from skuq.tables._notes import guessing_note as guessing_note
from skuq.tables._notes import quality_warnings as quality_warnings
from skuq.tables._notes import table_notes as table_notes
from skuq.tables._notes import unusual_note as unusual_note
from skuq.tables._storage import check_savable as check_savable
from skuq.tables._storage import read_estimator as read_estimator

__all__ = ["NewValuesWarning", "TableError", "TableModel"]
