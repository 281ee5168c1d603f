"""The report on an audit, section by section, with its pictures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from skuq.plotting import CalibrationAuditDisplay, ConfidenceDensityDisplay
from skuq.reporting import _audit_sentences as texts
from skuq.reporting._audit import AuditReport, audit_data
from skuq.reporting._audit_phrases import Figures, Row, between, counted, outcome, percent

if TYPE_CHECKING:
    from skuq.audit import CalibrationAuditor
    from skuq.calibration import BinSums

MOST_LINES = 6  # in one picture of groups
MOST_PICTURES = 3  # of single groups
MISSING = "\N{EN DASH}"


def audit_report(
    auditor: CalibrationAuditor, title: str = "Calibration audit", *, notes: Sequence[str] = ()
) -> AuditReport:
    """Report on an audit, for people (HTML) and for programs (JSON).

    Parameters
    ----------
    auditor : CalibrationAuditor
        Fitted auditor.
    title : str, default="Calibration audit"
        Headline.
    notes : sequence of str, default=()
        What the reader should know of the data.

    Returns
    -------
    AuditReport
        ``.write("audit.html")`` writes both files; ``.html()`` and ``.data`` hold them.
        Pictures need matplotlib (extra ``plot``).

    Examples
    --------
    >>> from skuq import CalibrationAuditor
    >>> from skuq.reporting import audit_report
    >>> audit = CalibrationAuditor.from_predictions([0, 1] * 40, [[0.75, 0.25], [0.4, 0.6]] * 40)
    >>> audit_report(audit, "Loans").title
    'Loans'
    """
    report = AuditReport(title, audit_data(auditor, notes))
    _add_sections(report, auditor)
    return report


def _add_sections(report: AuditReport, auditor: CalibrationAuditor) -> None:
    """Add all sections: verdict, pictures, tables, power and method."""
    data = report.data
    report.bullets("What was found", data["verdict"]["findings"] or [_nothing(data)])
    report.bullets("What this means", texts.meaning(data))
    _add_diagrams(report, auditor)
    _add_densities(report, auditor)
    report.table(
        "Confidence bins",
        _bin_table(data["bins"]),
        "Claimed is the mean reported confidence, right the share of right predictions, and the "
        "difference the second minus the first, in percentage points. The range holds all "
        "differences that the samples do not rule out, for all tested bins together. Finding: "
        "the reported confidence is too low, or too high, by more than tolerance and chance "
        "explain. With neighbours: among the bins of such a finding, but not itself further off to "
        "that side than tolerated. Tolerated: wrong beyond chance, but within the tolerance. "
        "Chance: beyond the tolerance, by no more than chance explains. Bins without samples are "
        "left out.",
    )
    if data["groups"]:
        report.table(
            "Groups",
            _group_table(data["groups"]),
            "ECE is the mean difference between accuracy and confidence over the bins, weighted "
            "by samples. It and the largest difference are higher in small groups by chance "
            "alone; significant deviations are corrected for that. Smallest found: by how many "
            "percentage points confidence must be too low in all bins of a group to be found "
            f"with a probability of {100 * data['power']:.3g}%.",
        )
    if data["regions"] is not None and data["regions"]["found"]:
        report.table(
            "Regions of the inputs",
            _region_table(data["regions"]["found"]),
            "Regions that nobody named, found by comparing all of them. The range holds for all "
            f"{data['regions']['n_searched']:,} regions together{texts.where_searched(data)}.",
        )
    report.bullets("What the audit could have found", texts.power(data))
    report.table(
        "Smallest deviation found per bin",
        _power_table(data["bins"]),
        f"How much more often than claimed predictions must be right to be found with a "
        f"probability of {100 * data['power']:.3g}%, in percentage points. A dash: none would be.",
    )
    report.bullets("How it was computed", [*data["notes"], *_method(data)])
    report.table("All samples", _totals(data), "Figures of the whole reference set.")


def _nothing(data: Figures) -> str:
    return (
        f"No confidence that is wrong beyond chance was found among {data['n_samples']:,} "
        "predictions."
    )


def _add_diagrams(report: AuditReport, auditor: CalibrationAuditor) -> None:
    alpha = auditor.settings_["alpha"]
    report.figure(
        "Accuracy against reported confidence",
        CalibrationAuditDisplay(auditor.bins_, alpha),
        "Each point is a confidence bin, its line the range of accuracies that the samples do "
        "not rule out. Above the shaded tolerance predictions are right more often than the "
        "model claims, below less often. Findings have a colour of their own; neighbouring bins "
        "can be one together.",
    )
    new = [
        (bins.p_value.min(), name)
        for name, bins in auditor.group_bins_.items()
        if (bins.significant & ~auditor.bins_.significant).any()
    ]
    for _, name in sorted(new)[:MOST_PICTURES]:
        report.figure(
            f"Accuracy against reported confidence, {name}",
            CalibrationAuditDisplay(auditor.group_bins_[name], alpha, name=name),
            f"The group {name} deviates where all samples together do not.",
        )


def _add_densities(report: AuditReport, auditor: CalibrationAuditor) -> None:
    density, groups = auditor._parts.density, auditor._parts.group_density
    if density is None:
        return
    found = [row for row in report.data["bins"] if row["significant"]]
    report.figure(
        "Distribution of reported confidence",
        _density(
            {"all reference samples": density},
            marked=[(row["lower"], row["upper"]) for row in found],
        ),
        "Where confidence was lowered for some inputs, their reports gather in a peak. A peak "
        "alone proves nothing; a peak in a range that deviates deserves an explanation.",
    )
    groups = {name: sums for name, sums in groups.items() if sums.count.any()}
    if 0 < len(groups) <= MOST_LINES:
        report.figure(
            "Distribution of reported confidence, by group",
            _density(groups),
            "A peak that only one group has shows where to look; groups may differ for honest "
            "reasons.",
        )


def _density(sums: Mapping[str, BinSums], **options: Any) -> ConfidenceDensityDisplay:
    return ConfidenceDensityDisplay(
        {name: (part.lower + part.upper) / 2 for name, part in sums.items()},
        weights={name: part.count for name, part in sums.items()},
        **options,
    )


def _bin_table(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "bin": _range(row),
            "samples": f"{row['count']:,}",
            "claimed": _share(row["confidence"]),
            "right": _share(row["accuracy"]),
            "difference": _signed(row["gap"]),
            "range": _unbroken(f"{_signed(row['gap_low'])} to {_signed(row['gap_high'])}"),
            "finding": outcome(row),
        }
        for row in rows
        if row["count"]
    )


def _group_table(groups: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "group": group["name"],
            "samples": f"{group['n_samples']:,}",
            "claimed": _share(group["confidence"]),
            "right": _share(group["accuracy"]),
            "ECE": _share(group["ece"]),
            "largest difference": _share(group["mce"]),
            "smallest found": _or_missing(group["detectable_shift"]),
            "significant deviations": ", ".join(
                f"{_range(row)} {_unbroken(f'({outcome(row)})')}"
                for row in group["bins"]
                if row["significant"]
            )
            or "none",
        }
        for group in groups
    )


def _region_table(regions: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "region": region["rule"],
            "samples": f"{region['count']:,}",
            "claimed": _share(region["confidence"]),
            "right": _share(region["accuracy"]),
            "difference": _signed(region["gap"]),
            "range": _unbroken(f"{_signed(region['gap_low'])} to {_signed(region['gap_high'])}"),
            "smallest found": _or_missing(region["detectable_gap"]),
        }
        for region in regions
    )


def _power_table(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "bin": _range(row),
            "samples": f"{row['count']:,}",
            "smallest deviation": _or_missing(row["detectable_gap"]),
        }
        for row in rows
        if row["count"]
    )


def _method(data: Figures) -> list[str]:
    given = data["parameters"]
    width = "equal width" if given["strategy"] == "uniform" else "equal numbers of samples"
    level = f"{100 * given['confidence_level']:.4g}%"
    return [
        "The confidence of a prediction is the probability reported for the most probable class. "
        f"Predictions are sorted by it into {given['n_bins']} bins of {width}; the accuracy of a "
        "bin is the share of its predictions that are right.",
        f"A bin is within the tolerance if accuracy and mean confidence differ by at most "
        f"{100 * given['alpha']:.4g} percentage points (step 3 of Algorithm 1). The expected "
        "calibration error (ECE) is the mean of these differences, weighted by samples (Eq. 6). "
        "Both are of Rabanser et al., Confidential Guardian, ICML 2025.",
        "Ranges are exact binomial limits (Clopper-Pearson). With a probability of at least "
        f"{level} all of them hold together: they are corrected for all bins and groups "
        "(Bonferroni).",
        "Findings come from a scan: every run of neighbouring bins is compared with simulated "
        "models that are wrong by just the tolerance in every bin. A finding is a run whose "
        f"deviation stands out from all that {level} of these models show anywhere, corrected "
        f"for the {counted(data['n_families'], 'test')} made (of all samples, of each group, and "
        "the search for regions if there was one). "
        "Neighbouring bins together can be a finding though each by itself is not.",
        *_search_method(data),
        "The JSON file beside this page holds the integer sums per bin, from which every figure "
        "can be computed again.",
    ]


def _search_method(data: Figures) -> list[str]:
    if data["regions"] is None:
        return []
    return [
        f"Regions are all {data['regions']['n_searched']:,} pairs of conditions, each on a column "
        "or on the reported confidence, that at least 10 samples meet. The one that stands out "
        "most is compared with what does so for simulated labels that are wrong by just the "
        f"{100 * data['parameters']['region_alpha']:.4g} percentage points tolerated in regions"
        f"{texts.where_searched(data)}.",
    ]


def _totals(data: Figures) -> pd.DataFrame:
    low, high = data["ece_interval"]
    level = f"{100 * data['parameters']['confidence_level']:.4g}%"
    totals = {
        "predictions": f"{data['n_samples']:,}",
        "accuracy": percent(data["accuracy"]),
        "mean confidence": percent(data["confidence"]),
        "expected calibration error (ECE)": f"{100 * data['ece']:.2f}%",
        f"ECE, {level} bootstrap interval": f"{100 * low:.2f}% to {100 * high:.2f}%",
        f"ECE that a perfectly calibrated model stays below with {level}": (
            f"{100 * data['ece_chance']:.2f}%"
        ),
        "largest difference in a bin": percent(data["mce"]),
    }
    return pd.DataFrame({"figure": totals.keys(), "value": totals.values()})


def _range(row: Row) -> str:
    return _unbroken(between(row, joint="to"))


def _unbroken(text: str) -> str:
    """Text that a narrow column does not wrap."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _or_missing(gap: float | None) -> str:
    return MISSING if gap is None else _signed(gap)


def _signed(value: float) -> str:
    """Percentage points with their sign."""
    return f"{100 * value:+z.1f}".replace("-", "\N{MINUS SIGN}")
