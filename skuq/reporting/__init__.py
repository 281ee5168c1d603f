"""Reports: self-contained HTML for people, JSON for programs."""

from skuq.reporting._audit import AuditReport, audit_data, audit_report
from skuq.reporting._phrases import bin_finding, bin_range
from skuq.reporting._report import Report
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
