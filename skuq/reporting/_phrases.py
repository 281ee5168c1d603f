"""Phrases for audit reports: ranges, findings, counts and probabilities.

`figures` is the dict returned by `skuq.reporting.audit_data`, and `row` is one of its bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skuq.labels import counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]


def bin_range(row: Row, *, joint: str = "to") -> str:
    """Write the range of a confidence bin in percent.

    Parameters
    ----------
    row : mapping
        One of the ``bins`` of `audit_data`.
    joint : str, default="to"
        Word between the edges.

    Returns
    -------
    str
        The range, with enough digits to distinguish the edges.

    Examples
    --------
    >>> from skuq.reporting import bin_range
    >>> bin_range({"lower": 0.4, "upper": 0.5})
    '40% to 50%'
    """
    low, high = 100 * row["lower"], 100 * row["upper"]
    # Edges of bins with equal counts may be close together and then need more digits.
    digits = next((n for n in (4, 6) if f"{low:.{n}g}" != f"{high:.{n}g}" or low == high), 10)
    return f"{low:.{digits}g}% {joint} {high:.{digits}g}%"


def bin_finding(row: Row) -> str:
    """Classify the finding in a non-empty bin.

    Parameters
    ----------
    row : mapping
        One of the ``bins`` of `audit_data`.

    Returns
    -------
    str
        ``"too low"`` or ``"too high"``: the reported confidence deviates significantly by more than
        the tolerance. ``"with neighbours"``: a significant finding covers the bin and its
        neighbours, but the bin itself does not deviate by more than the tolerance in the direction
        of the finding. ``"tolerated"``: a significant deviation within the tolerance. ``"chance"``:
        a deviation beyond the tolerance that is not significant. ``"none"``: any other bin.

    Examples
    --------
    >>> from skuq.reporting import bin_finding
    >>> row = {"significant": True, "direction": "underconfident", "within_alpha": False}
    >>> bin_finding({**row, "gap": 0.1}), bin_finding({**row, "gap": -0.1})
    ('too low', 'with neighbours')
    """
    if row["significant"]:
        too_low = row["direction"] == "underconfident"
        # A significant finding may cover several bins. The gap of this bin alone may be within the
        # tolerance, or in the opposite direction.
        if row["within_alpha"] or (row["gap"] > 0) != too_low:
            return "with neighbours"
        return "too low" if too_low else "too high"
    if not row["within_alpha"]:
        return "chance"
    return "tolerated" if beyond_chance(row) else "none"


def beyond_chance(row: Row) -> bool:
    """Whether the confidence interval for a bin's gap excludes 0."""
    return row["count"] > 0 and (row["gap_low"] > 0 or row["gap_high"] < 0)


def distance(row: Row) -> str:
    """Describe how far the reported confidence is below or above the accuracy."""
    size = 100 * abs(row["gap"])
    written = f"{size:.1f}" if size >= 0.05 else f"{size:.1g}"
    return f"{written} points too {'low' if row['gap'] > 0 else 'high'}"


def ranges(rows: Sequence[Row]) -> str:
    """List the ranges of bins, with adjacent bins merged."""
    merged: list[dict[str, float]] = []
    for row in rows:
        if merged and merged[-1]["upper"] == row["lower"]:
            merged[-1]["upper"] = row["upper"]
        else:
            merged.append({"lower": row["lower"], "upper": row["upper"]})
    return ", ".join(bin_range(part) for part in merged)


def points(figures: Figures, name: str = "alpha") -> str:
    """Format a tolerance in percentage points: `name` is "alpha", or "region_alpha" for regions."""
    tolerated = f"{100 * figures['parameters'][name]:.4g}"
    return f"{tolerated} percentage point{'' if tolerated == '1' else 's'}"


def listed(texts: Sequence[str]) -> str:
    """Join texts by commas and "and"."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def of_all(part: int, whole: int, noun: str) -> str:
    """Phrase a count out of a total, as in "2 of 10 bins"."""
    return f"the only {noun}" if whole == 1 else f"{part:,} of {counted(whole, noun)}"


def probability(row: Row) -> str:
    """Phrase the p-value of a bin."""
    return "below 0.0001" if row["p_value"] < 1e-4 else f"of at most {row['p_value']:.2g}"
