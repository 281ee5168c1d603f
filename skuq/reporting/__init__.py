"""Reports: self-contained HTML for people, JSON for programs."""

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

# Reports of tables take the packages of tables along.
__getattr__ = lazy_names(__name__, {"skuq.reporting._tables": ("table_report",)})
