"""Audit reports: numbers, plots and tables, as HTML and JSON."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skuq.calibration import BinAudit, BinSums, RegionSearch, Scan, detectable_gap
from skuq.files import atomic_paths, write_atomically
from skuq.imports import shown
from skuq.labels import amount, counted
from skuq.plotting import CalibrationAuditDisplay, ConfidenceDensityDisplay
from skuq.reporting._report import MISSING, Report, cells, picture, template

if TYPE_CHECKING:
    from skuq.audit import CalibrationAuditor

# Reports state how many samples detect a gap of twice the tolerance (SMALLEST_AIM if that is 0).
SMALLEST_AIM = 0.05
POWER = 0.8  # probability with which an audit finds a gap that is called detectable
SHIFTS = ("detectable_underconfident_shift", "detectable_overconfident_shift")  # in `BinAudit`
# Detectable gaps are stated for regions with these shares of the samples and this confidence.
REGION_SHARES, REGION_CONFIDENCE = (0.02, 0.05, 0.1, 0.2), 0.6
MOST_LINES, MOST_PICTURES = 6, 3  # maximum number of groups in one plot, or of plots of a group
MOST_BINS = 3  # maximum number of findings in bins that are described in full
MOST_GROUPS = 5  # maximum number of findings in groups that are described in full
PICTURES = ("diagram", "group_diagrams", "density", "group_density")
# Field with the smallest detectable gap in a bin, by the direction of the gap.
WAYS = {"too low": "detectable_underconfidence", "too high": "detectable_overconfidence"}

Figures = Mapping[str, Any]  # result of `audit_data`
Row = Mapping[str, Any]  # a bin in `Figures`


class AuditReport(Report):
    """Report on an audit; the attribute ``data`` holds its numbers as plain Python objects.

    The class itself adds no plots; `audit_report` does. Sections that users add come last.
    """

    def __init__(
        self, title: str, data: dict[str, Any], *, created: datetime | None = None
    ) -> None:
        super().__init__(title, data["verdict"]["headline"], created=created)
        self.data = data
        self._pictures: dict[str, Any] = dict.fromkeys(PICTURES)

    def html(self) -> str:
        figures = json.loads(self.json())  # plain strings: Markup objects would not be escaped
        return self._rendered("audit.html", **self._pictures, **_contents(figures))

    def json(self) -> str:
        """Return the data as JSON; NaN becomes null."""
        return _as_json(self.data)

    def write(
        self, path: str | os.PathLike[str], json_path: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write the page and its data atomically, and return the path of the page.

        By default, the data are written to `path` with the suffix ``.json``. The data contain the
        SHA-256 of the page, which shows whether page and data belong to the same audit.
        """
        path = Path(path)
        twin = path.with_suffix(".json") if json_path is None else Path(json_path)
        if path == twin:
            raise ValueError(f"`path` must differ from the path of the JSON file, got {path}.")
        page = self.html().encode()
        data = {**self.data, "report_sha256": hashlib.sha256(page).hexdigest()}
        with atomic_paths(twin, path) as (partial_twin, partial):
            partial_twin.write_text(_as_json(data), encoding="utf-8")
            partial.write_bytes(page)
        return path

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the data, without the page, to a JSON file atomically; return its path."""
        return write_atomically(path, self.json())


def _as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def audit_data(auditor: CalibrationAuditor, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Collect all numbers and sentences of an audit; NaN becomes None.

    The integers ``count``, ``correct`` and ``confidence_sum`` (in units of ``1 / scale``) of the
    bins determine all other numbers except ``regions``, which is None if no regions were searched.
    With fractional weights, these three are floats. `notes` are remarks for the reader.
    """
    check_is_fitted(auditor)
    names = ("passed", "conclusive", "within_tolerance")
    verdict = {name: bool(getattr(auditor, f"{name}_")) for name in names}
    aim = 2 * auditor.settings_["tolerance"] or SMALLEST_AIM
    enough = not auditor._misses(aim)
    model = getattr(auditor, "estimator_", None)
    data: dict[str, Any] = {
        "format": "skuq-audit",
        "version": 3,
        "parameters": dict(auditor.settings_),
        "model": None if model is None else type(model).__name__,
        "classes": np.asarray(auditor.classes_).tolist() if hasattr(auditor, "classes_") else None,
        # False if the audit was made from recorded predictions or from sums over samples.
        "inputs_at_hand": model is not None,
        "notes": list(notes),
        "verdict": verdict,
        **_summary(auditor.sums_, auditor.bins_),
        "ece_interval": list(auditor.ece_interval_),
        "ece_chance": auditor.ece_chance_,
        "n_families": auditor.n_families_,
        "power": POWER,
        "scale": int(auditor.sums_.scale),
        "edges": auditor.sums_.edges.tolist(),
        "groups": [
            {"name": name, **_summary(sums, auditor.group_bins_[name])}
            for name, sums in auditor.group_sums_.items()
            if sums.count.any()
        ],
        # A gap common to all bins, and how many samples find it (None: this audit finds it).
        "aim": {"gap": aim, "n_samples": None if enough else _number(auditor._required_size(aim))},
        "regions": _regions(auditor),
    }
    texts = sentences(data)
    data["verdict"] |= {
        "headline": " ".join(texts["headline"]),
        "findings": texts["findings"],
        "sentences": texts["findings"] + texts["meaning"] + texts["power"],
    }
    return data


def _rows(sums: BinSums, bins: BinAudit) -> list[dict[str, Any]]:
    columns: dict[str, Any] = bins._asdict()
    for name in ("threshold", "threshold_overconfident", *SHIFTS):  # fields common to all bins
        columns.pop(name)
    columns["correct"], columns["confidence_sum"] = sums.correct, sums.confidence
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, map(_number, row), strict=True)) for row in rows]


def _summary(sums: BinSums, bins: BinAudit) -> dict[str, Any]:
    return {
        "n_samples": sums.n_samples,
        "accuracy": sums.overall_accuracy,
        "confidence": sums.overall_confidence,
        "ece": sums.expected_calibration_error,
        "mce": sums.maximum_calibration_error,
        **{name: _number(getattr(bins, name)) for name in SHIFTS},
        "bins": _rows(sums, bins),
    }


def _regions(auditor: CalibrationAuditor) -> dict[str, Any] | None:
    """Describe the regions found, and the gaps detectable in regions; None without a search."""
    search = auditor.result_.regions
    if search is None:
        return None
    tolerance = auditor.settings_["region_tolerance"]
    # A weighted audit has the power of an unweighted audit with `n_effective_` samples.
    unit = auditor.n_effective_ / auditor.n_samples_
    sizes = [(share, round(share * unit * search.n_samples)) for share in REGION_SHARES]
    return {
        "n_searched": search.n_searched,
        "n_samples": search.n_samples,
        "left_out": {column: list(counts) for column, counts in search.left_out.items()},
        "detectable": [
            {"share": share, "count": n, "confidence": REGION_CONFIDENCE}
            | _gaps(n, REGION_CONFIDENCE, tolerance, search)
            for share, n in sizes
        ],
        "found": [
            {
                **region._asdict(),
                "rule": region.rule,
                "conditions": [_condition(*each) for each in region.conditions.items()],
                "confidence_range": list(region.confidence_range),
                "correct": round(right) if isinstance(region.count, int) else right,
                **_gaps(round(unit * region.count), region.confidence, tolerance, search),
            }
            for region in search.regions
            for right in [region.accuracy * region.count]
        ],
    }


def _gaps(
    count: float, confidence: float, tolerance: float, search: RegionSearch | Scan
) -> dict[str, float | None]:
    given: dict[str, Any] = {"tolerance": tolerance, "power": POWER}
    low = detectable_gap(count, confidence, threshold=search.threshold, **given)
    given |= {"threshold": search.threshold_overconfident, "direction": "overconfident"}
    high = detectable_gap(count, confidence, **given)
    return {"detectable_underconfidence": _number(low), "detectable_overconfidence": _number(high)}


def _condition(column: Any, rule: Any) -> dict[str, Any]:
    if isinstance(rule, tuple):
        return {"column": column, "low": rule[0], "high": rule[1]}
    plain = rule is None or isinstance(rule, str | int | float | bool)
    return {"column": column, "value": rule if plain else str(rule)}


def _number(value: Any) -> Any:
    """Convert a value to plain Python, and NaN to None."""
    return None if value != value else np.asarray(value).item()


def audit_report(
    auditor: CalibrationAuditor, title: str = "Calibration audit", *, notes: Sequence[str] = ()
) -> AuditReport:
    """Create the report on an audit, readable for people (HTML) and programs (JSON).

    Parameters
    ----------
    auditor : CalibrationAuditor
        Fitted auditor.
    title, notes : str, and sequence of str
        Headline, and remarks on the data for the reader.

    Returns
    -------
    AuditReport
        ``.write("audit.html")`` also writes ``audit.json``; ``.html()`` and ``.data`` return the
        contents. Plots need matplotlib (extra ``plot``).

    Examples
    --------
    >>> from skuq import CalibrationAuditor
    >>> from skuq.reporting import audit_report
    >>> audit = CalibrationAuditor.from_predictions([0, 1] * 40, [[0.75, 0.25], [0.4, 0.6]] * 40)
    >>> audit_report(audit, "Loans").title
    'Loans'
    """
    report = AuditReport(title, audit_data(auditor, notes))
    report._pictures |= _pictures(auditor)
    return report


def _pictures(auditor: CalibrationAuditor) -> dict[str, Any]:
    tolerance, bins = auditor.settings_["tolerance"], auditor.bins_
    new = [
        (found.p_value.min(), name)
        for name, found in auditor.group_bins_.items()
        if (found.significant & ~bins.significant).any()
    ]
    pictures: dict[str, Any] = {
        "diagram": picture(CalibrationAuditDisplay(bins, tolerance)),
        "group_diagrams": {
            str(name): picture(
                CalibrationAuditDisplay(auditor.group_bins_[name], tolerance, name=shown(name))
            )
            for _, name in sorted(new)[:MOST_PICTURES]
        },
    }
    density, group_density = auditor._parts.density, auditor._parts.group_density
    if density is not None:
        marked = zip(bins.lower[bins.significant], bins.upper[bins.significant], strict=True)
        pictures["density"] = _density({"all reference samples": density}, marked=list(marked))
        groups = {name: sums for name, sums in group_density.items() if sums.count.any()}
        if 0 < len(groups) <= MOST_LINES:
            pictures["group_density"] = _density(groups)
    return pictures


def _density(sums: Mapping[str, BinSums], **options: Any) -> dict[str, str]:
    display = ConfidenceDensityDisplay(
        {name: (part.lower + part.upper) / 2 for name, part in sums.items()},
        weights={name: part.count for name, part in sums.items()},
        **options,
    )
    return picture(display)


def _numbers(row: Row) -> dict[str, str]:
    return {
        "samples": amount(row["count"]),
        "claimed": f"{row['confidence']:.1%}",
        "right": f"{row['accuracy']:.1%}",
        "difference": _signed(row["gap"]),
        "range": _unbroken(f"{_signed(row['gap_low'])} to {_signed(row['gap_high'])}"),
    }


def _group_table(groups: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "group": group["name"],
            "samples": amount(group["n_samples"]),
            "claimed": f"{group['confidence']:.1%}",
            "right": f"{group['accuracy']:.1%}",
            "ECE": f"{group['ece']:.1%}",
            "largest difference": f"{group['mce']:.1%}",
            "its bin": _largest(group["bins"]),
            "smallest found": _both(group, SHIFTS),
            "significant deviations": ", ".join(
                f"{_range(row)} {_unbroken(f'({bin_finding(row)})')}"
                for row in group["bins"]
                if row["significant"]
            )
            or "none",
        }
        for group in groups
    )


def _largest(bins: Iterable[Row]) -> str:
    row = max((row for row in bins if row["count"]), key=lambda row: abs(row["gap"]))
    return f"{_range(row)}, {counted(row['count'], 'sample')}: {_unbroken(bin_finding(row))}"


def _region_table(regions: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "region": region["rule"],
            **_numbers(region),
            "smallest found": _both(region, WAYS.values()),
        }
        for region in regions
    )


def _power_table(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "bin": _range(row),
            "samples": amount(row["count"]),
            "confidence too low": _or_missing(row["detectable_underconfidence"], 1),
            "confidence too high": _or_missing(row["detectable_overconfidence"], -1),
        }
        for row in rows
        if row["count"]
    )


def _contents(data: Figures) -> dict[str, Any]:
    given, regions, texts = data["parameters"], data["regions"], sentences(data)
    nothing = (
        f"Among {amount(data['n_samples'])} predictions, no significantly wrong confidence was "
        "found."
    )
    return {
        "findings": texts["findings"] or [nothing],
        "meaning": texts["meaning"],
        "power": texts["power"],
        "bins": cells(
            pd.DataFrame(
                {"bin": _range(row), **_numbers(row), "finding": bin_finding(row)}
                for row in data["bins"]
                if row["count"]
            )
        ),
        "groups": cells(_group_table(data["groups"])) if data["groups"] else None,
        "regions": cells(_region_table(regions["found"])) if regions and regions["found"] else None,
        "smallest": cells(_power_table(data["bins"])),
        "totals": cells(_totals(data)),
        "notes": data["notes"],
        "n_bins": given["n_bins"],
        "width": "equal width" if given["strategy"] == "uniform" else "equal numbers of samples",
        "tolerance": f"{100 * given['tolerance']:.4g}",
        "level": f"{100 * given['confidence_level']:.4g}%",
        "power_level": f"{100 * data['power']:.3g}%",
        "tests": counted(data["n_families"], "test"),
        "n_regions": f"{regions['n_searched']:,}" if regions else None,
        "region_tolerance": f"{100 * given['region_tolerance']:.4g}" if regions else None,
        "where_searched": _where_searched(data),
    }


def _totals(data: Figures) -> pd.DataFrame:
    low, high = data["ece_interval"]
    level = f"{100 * data['parameters']['confidence_level']:.4g}%"
    totals = {
        "predictions": amount(data["n_samples"]),
        "accuracy": f"{data['accuracy']:.1%}",
        "mean confidence": f"{data['confidence']:.1%}",
        "expected calibration error (ECE)": f"{100 * data['ece']:.2f}%",
        f"ECE, {level} bootstrap interval": f"{100 * low:.2f}% to {100 * high:.2f}%",
        f"ECE of a perfectly calibrated model, upper limit with {level}": (
            f"{100 * data['ece_chance']:.2f}%"
        ),
        "largest difference in a bin": f"{data['mce']:.1%} ({_largest(data['bins'])})",
    }
    return pd.DataFrame({"figure": totals.keys(), "value": totals.values()})


def _range(row: Row) -> str:
    return _unbroken(bin_range(row))


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _both(row: Row, names: Iterable[str]) -> str:
    """Format the smallest detectable gaps (accuracy minus confidence) of both directions."""
    low, high = (row[name] for name in names)
    return _unbroken(f"{_or_missing(low, 1)} or {_or_missing(high, -1)}")


def _or_missing(gap: float | None, sign: int) -> str:
    return MISSING if gap is None else _signed(sign * gap)


def _signed(value: float) -> str:
    return f"{100 * value:+z.1f}".replace("-", "\N{MINUS SIGN}")


def bin_range(row: Row) -> str:
    """Format the range of a confidence bin in percent, with digits that distinguish the edges."""
    low, high = 100 * row["lower"], 100 * row["upper"]
    digits = next((n for n in (4, 6) if f"{low:.{n}g}" != f"{high:.{n}g}" or low == high), 10)
    return f"{low:.{digits}g}% to {high:.{digits}g}%"


def bin_finding(row: Row) -> str:
    """Classify the finding in a non-empty bin, in the words of the report."""
    if row["significant"]:
        too_low = row["direction"] == "underconfident"
        # A finding may span several bins; some may be within tolerance or deviate the other way.
        if row["within_tolerance"] or (row["gap"] > 0) != too_low:
            return "with neighbours"
        return "too low" if too_low else "too high"
    if not row["within_tolerance"]:
        return "not significant"
    beyond_chance = row["count"] > 0 and (row["gap_low"] > 0 or row["gap_high"] < 0)
    return "tolerated" if beyond_chance else "none"


def sentences(data: Figures) -> dict[str, list[str]]:
    module: Any = template("audit_sentences.txt").make_module({"data": data, **_facts(data)})
    return {
        name: [line for line in str(getattr(module, name)()).splitlines() if line.strip()]
        for name in ("verdict", "headline", "findings", "meaning", "power")
    }


def _facts(data: Figures) -> dict[str, Any]:
    groups, regions, given = data["groups"], data["regions"], data["parameters"]
    filled = [row for row in data["bins"] if row["count"]]
    in_groups = [row for group in groups for row in group["bins"] if row["count"]]
    found_regions = regions["found"] if regions else []
    n_found = sum(bin_finding(row) in WAYS for row in filled)
    n_in_groups = sum(bin_finding(row) in WAYS for row in in_groups)
    where = [f"{n_found} of {counted(len(filled), 'confidence bin')}"] * bool(n_found)
    if n_in_groups:
        where.append(f"{n_in_groups} of {counted(len(in_groups), 'confidence bin')} of groups")
    if found_regions:
        where.append(f"{counted(len(found_regions), 'region')} of the inputs")
    runs = [{**run, "where": bin_range(run)} for run in _runs(data["bins"])]
    of_groups = [
        (rank, {**run, "where": f"Group {shown(group['name'])}, {bin_range(run)}"})
        for group in groups
        for rank, run in enumerate(_runs(group["bins"]))
    ]
    # Sort the strongest finding of each group to the front.
    of_groups.sort(key=lambda entry: (entry[0] > 0, entry[1]["p_value"]))
    group_runs = [run for _, run in of_groups]
    of_regions = [{**each, "where": f"Region {each['rule']}"} for each in found_regions]
    level = 0.0 if data["classes"] is None else 1 / len(data["classes"])
    return {
        "filled": filled,
        "where": where,
        # Findings in regions refer to `region_tolerance`, which may differ from `tolerance`.
        "failed_at": given["tolerance" if n_found or n_in_groups else "region_tolerance"],
        "found": [*runs[:MOST_BINS], *group_runs[:MOST_GROUPS], *of_regions],
        "others": [
            f"{run['where']} ({bin_finding(run)})"
            for run in [*runs[MOST_BINS:], *group_runs[MOST_GROUPS:]]
        ],
        "directions": {each["direction"] for each in [*runs, *group_runs, *of_regions]},
        "within": _sized(filled, "tolerated"),
        "within_in_groups": len(_sized(in_groups, "tolerated")),
        "beyond": _sized(filled, "not significant"),
        "beyond_in_groups": len(_sized(in_groups, "not significant")),
        # List empty bins, except those that no prediction can fill: bins below 1 / k (the largest
        # of k probabilities is at least 1 / k), and bins of width 0 (quantile edges may coincide).
        "empty": _merged(
            row
            for row in data["bins"]
            if not row["count"] and row["upper"] > max(level, row["lower"])
        ),
        "likely": f"With a probability of {100 * data['power']:.3g}%",
        "detectable": _deviations({name: [r[name] for r in filled] for name in WAYS.values()}),
        "undetectable": _undetectable(filled),
        "small_groups": [
            shown(group["name"]) for group in groups if all(group[name] is None for name in SHIFTS)
        ],
        "would_find": _would_find(data),
        "in_regions": [
            f"{100 * each['share']:.0f}% of the samples searched ({each['count']:,}) and "
            f"{limits} of them are right"
            for each in (regions["detectable"] if regions else ())
            if (limits := _limits(each))
        ],
        "where_searched": _where_searched(data),
        "left_out": [
            f"{counted(values, 'value')} of {shown(column)} ({counted(samples, 'sample')})"
            for column, (values, samples) in (regions["left_out"] if regions else {}).items()
        ],
        "counted": counted,
        "amount": amount,
    }


def _runs(rows: Iterable[Row]) -> list[dict[str, Any]]:
    parts: dict[int, list[Row]] = {}
    for row in rows:
        if row["significant"] and row["count"]:
            parts.setdefault(row["finding"], []).append(row)
    return [_together(parts[number]) for number in sorted(parts)]


def _together(rows: list[Row]) -> dict[str, Any]:
    count, correct = (sum(row[name] for row in rows) for name in ("count", "correct"))
    confidence = sum(row["count"] * row["confidence"] for row in rows) / count
    return {
        **rows[0],
        "upper": rows[-1]["upper"],
        "count": count,
        "correct": correct,
        "confidence": confidence,
        "accuracy": correct / count,
        "gap": correct / count - confidence,
        "within_tolerance": False,
    }


def _sized(rows: Iterable[Row], finding: str) -> list[str]:
    return [
        f"{bin_range(row)} ({counted(row['count'], 'prediction')}, {row['confidence']:.1%} "
        f"reported, {row['accuracy']:.1%} right)"
        for row in rows
        if bin_finding(row) == finding
    ]


def _merged(rows: Iterable[Row]) -> list[str]:
    merged: list[Row] = []
    for row in rows:
        adjacent = merged and merged[-1]["upper"] == row["lower"]
        merged.append({**row, "lower": merged.pop()["lower"]} if adjacent else row)
    return [bin_range(part) for part in merged]


def _deviations(gaps: Mapping[str, Iterable[float | None]]) -> str:
    """Describe which deviations of the accuracy are detectable; return "" if none is."""
    texts = []
    for verb, name in zip(("exceeds", "falls short of"), WAYS.values(), strict=True):
        texts_of_gaps = {f"{100 * gap:.1f}" for gap in gaps.get(name, ()) if gap is not None}
        found = sorted(texts_of_gaps, key=float)
        if found:
            sizes = " to ".join(found[:: max(1, len(found) - 1)])
            texts.append(f"{verb} its confidence by at least {sizes} percentage points")
    return ", or ".join(texts)


def _would_find(data: Figures) -> str:
    gaps = {way: data[name] for way, name in zip(WAYS, SHIFTS, strict=True)}
    found = [f"{way} by {100 * gap:.1f}" for way, gap in gaps.items() if gap is not None]
    aim, needed = data["aim"]["gap"], data["aim"]["n_samples"]
    text = f"confidence that is {' or '.join(found)} percentage points" if found else "nothing"
    text = f"With a probability of {100 * data['power']:.3g}%, this audit finds {text} in every bin"
    if needed is None or not np.isfinite(needed):
        return f"{text}."
    size = f"about {float(f'{needed:.2g}'):,.0f} samples are needed"
    return f"{text}; to find {100 * aim:.4g} points, {size}."


def _undetectable(filled: list[Row]) -> dict[str, list[str]]:
    """List bins without a detectable deviation, by direction ("wrong" if both lists are equal)."""
    unseen = {
        way: [f"{bin_range(r)} ({amount(r['count'])})" for r in filled if r[name] is None]
        for way, name in WAYS.items()
    }
    if unseen["too low"] == unseen["too high"]:
        unseen = {"wrong": unseen["too low"]}
    return {way: bins for way, bins in unseen.items() if bins}


def _limits(region: Row) -> str:
    """State the accuracies at which a region is found: "at least 71.2% or at most 47.0%"."""
    low, high = (region[name] for name in WAYS.values())
    limits = [] if low is None else [f"at least {region['confidence'] + low:.1%}"]
    limits += [] if high is None else [f"at most {region['confidence'] - high:.1%}"]
    return " or ".join(limits)


def _where_searched(data: Figures) -> str:
    """State how many samples were searched for regions; "" if all, or if there was no search."""
    if data["regions"] is None:
        return ""
    searched, every = amount(data["regions"]["n_samples"]), amount(data["n_samples"])
    return "" if searched == every else f" in {searched} of the {every} samples, drawn at random"
