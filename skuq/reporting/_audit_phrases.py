"""Pieces of sentences about an audit: shares, ranges, counts and probabilities.

`figures` are those of `skuq.reporting.audit_data`, `row` is one of its bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
Row = Mapping[str, Any]


def percent(share: float) -> str:
    """Write a share with one digit after the point.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import percent
    >>> percent(0.4321)
    '43.2%'
    """
    return f"{100 * share:.1f}%"


def between(row: Row, *, joint: str = "and") -> str:
    """Write the range of a confidence bin.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import between
    >>> between({"lower": 0.4, "upper": 0.5})
    '40% and 50%'
    """
    low, high = 100 * row["lower"], 100 * row["upper"]
    # Edges at quantiles may be close together.
    digits = next((n for n in (4, 6) if f"{low:.{n}g}" != f"{high:.{n}g}" or low == high), 10)
    return f"{low:.{digits}g}% {joint} {high:.{digits}g}%"


def outcome(row: Row) -> str:
    """Say in a word or two what was found in a bin with samples.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import outcome
    >>> row = {"significant": True, "direction": "underconfident", "within_alpha": False}
    >>> outcome({**row, "gap": 0.1}), outcome({**row, "gap": -0.1})
    ('too low', 'with neighbours')
    """
    if row["significant"]:
        too_low = row["direction"] == "underconfident"
        # Bins are a finding together; one of them may deviate little, or to the other side.
        if row["within_alpha"] or (row["gap"] > 0) != too_low:
            return "with neighbours"
        return "too low" if too_low else "too high"
    if not row["within_alpha"]:
        return "chance"
    return "tolerated" if beyond_chance(row) else "none"


def beyond_chance(row: Row) -> bool:
    """Whether the limits of a bin's gap exclude 0."""
    return row["count"] > 0 and (row["gap_low"] > 0 or row["gap_high"] < 0)


def distance(row: Row) -> str:
    """Write how far the reported confidence is from the accuracy.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import distance
    >>> distance({"gap": -0.046})
    '4.6 points too high'
    """
    size = 100 * abs(row["gap"])
    written = f"{size:.1f}" if size >= 0.05 else f"{size:.1g}"
    return f"{written} points too {'low' if row['gap'] > 0 else 'high'}"


def ranges(rows: Sequence[Row]) -> str:
    """Write the ranges of bins, neighbours taken together."""
    merged: list[dict[str, float]] = []
    for row in rows:
        if merged and merged[-1]["upper"] == row["lower"]:
            merged[-1]["upper"] = row["upper"]
        else:
            merged.append({"lower": row["lower"], "upper": row["upper"]})
    return ", ".join(between(part, joint="to") for part in merged)


def points(figures: Figures, name: str = "alpha") -> str:
    """Write the tolerance, or with ``"region_alpha"`` that of regions."""
    tolerated = f"{100 * figures['parameters'][name]:.4g}"
    return f"{tolerated} percentage point{'' if tolerated == '1' else 's'}"


def listed(texts: Sequence[str]) -> str:
    """Join texts.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import listed
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import counted
    >>> counted(1, "bin"), counted(12345, "sample")
    ('1 bin', '12,345 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def of_all(part: int, whole: int, noun: str) -> str:
    """Write a number of things out of all of them.

    Examples
    --------
    >>> from skuq.reporting._audit_phrases import of_all
    >>> of_all(2, 5, "bin"), of_all(1, 1, "bin")
    ('2 of 5 bins', 'the only bin')
    """
    return f"the only {noun}" if whole == 1 else f"{part:,} of {counted(whole, noun)}"


def probability(row: Row) -> str:
    """Write how improbable a bin is."""
    return "below 0.0001" if row["p_value"] < 1e-4 else f"of at most {row['p_value']:.2g}"
