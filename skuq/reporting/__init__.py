"""Self-contained HTML reports, with their data as JSON."""

from typing import TYPE_CHECKING

from skuq.imports import lazy_names
from skuq.reporting._audit import AuditReport as AuditReport
from skuq.reporting._audit import audit_data as audit_data
from skuq.reporting._audit import audit_report
from skuq.reporting._audit import bin_finding as bin_finding
from skuq.reporting._audit import bin_range as bin_range
from skuq.reporting._report import Report

if TYPE_CHECKING:
    from skuq.reporting._tables import table_report

__all__ = ["Report", "audit_report", "table_report"]

# Imported lazily, because table_report imports skuq.tables.
__getattr__ = lazy_names(__name__, {"skuq.reporting._tables": ("table_report",)})
