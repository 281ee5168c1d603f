"""Self-contained HTML reports, with their data as JSON."""

from typing import TYPE_CHECKING

from skuq.extras import lazy_names
from skuq.reporting._audit import AuditReport, audit_data, audit_report
from skuq.reporting._phrases import bin_finding, bin_range
from skuq.reporting._report import Report

if TYPE_CHECKING:
    from skuq.reporting._tables import table_report

__all__ = [
    "AuditReport",
    "Report",
    "audit_data",
    "audit_report",
    "bin_finding",
    "bin_range",
    "table_report",
]

# Imported lazily, because table_report imports skuq.tables.
__getattr__ = lazy_names(__name__, {"skuq.reporting._tables": ("table_report",)})
