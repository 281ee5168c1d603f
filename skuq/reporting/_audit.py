"""The figures of a report on an audit, as a page for people and as JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray
from skuq.calibration import BinAudit, BinSums, detectable_gap
from skuq.files import atomic_paths, write_atomically
from skuq.reporting import _audit_sentences as texts
from skuq.reporting._report import Report

if TYPE_CHECKING:
    from skuq.audit import CalibrationAuditor

POWER = 0.8  # of detectable gaps
# Regions whose detectable gap is stated: shares of the samples, and what is claimed in them.
REGION_SHARES = (0.02, 0.05, 0.1, 0.2)
REGION_CONFIDENCE = 0.6


class AuditReport(Report):
    """Report on an audit, with all its figures as data.

    Parameters
    ----------
    title : str
        Headline.
    data : dict
        Figures, as from `audit_data`.
    created : datetime, optional
        Time of the audit, shown in UTC. Default: now.

    Attributes
    ----------
    data : dict
        As given; plain numbers, texts, lists and dicts.
    """

    def __init__(
        self, title: str, data: dict[str, Any], *, created: datetime | None = None
    ) -> None:
        super().__init__(title, data["verdict"]["headline"], created=created)
        self.data = data

    def bullets(self, heading: str, lines: Iterable[str]) -> None:
        """Add a list of sentences."""
        items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
        self._add(heading, f"<ul>\n{items}\n</ul>")

    def json(self) -> str:
        """Return the figures as JSON; what is not a number is null."""
        return json.dumps(self.data, indent=1, allow_nan=False) + "\n"

    def write(
        self, path: str | os.PathLike[str], json_path: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write page and figures, both completely or neither, and return the path of the page.

        Parameters
        ----------
        path : path-like
            HTML file in an existing folder; a file of that name is replaced.
        json_path : path-like, optional
            JSON file. Default: `path` with the suffix ``.json``.
        """
        path = Path(path)
        twin = path.with_suffix(".json") if json_path is None else Path(json_path)
        if path == twin:
            raise ValueError(f"`path` must be another file than that of the JSON, got {path}.")
        with atomic_paths(twin, path) as (partial_twin, partial):
            partial_twin.write_bytes(self.json().encode())
            partial.write_bytes(self.html().encode())
        return path

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the figures alone, completely or not at all, and return their path."""
        return write_atomically(path, self.json())


def audit_data(auditor: CalibrationAuditor, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Collect all figures of an audit.

    Parameters
    ----------
    auditor : CalibrationAuditor
        Fitted auditor.
    notes : sequence of str, default=()
        What the reader should know of the data, kept as it is.

    Returns
    -------
    dict
        Plain numbers, texts, lists and dicts; NaN as None. The integers ``count``,
        ``correct`` and ``confidence_sum`` (in units of ``1 / scale``) of the bins determine
        all the rest but ``regions``, which is None if none were searched; ``classes`` is None if
        they are not known.

    Raises
    ------
    AttributeError
        If the auditor has no results yet, as after a part of a stream that is too small.

    Examples
    --------
    >>> from skuq import CalibrationAuditor
    >>> from skuq.reporting import audit_data
    >>> audit = CalibrationAuditor.from_predictions([0, 1] * 40, [[0.75, 0.25], [0.4, 0.6]] * 40)
    >>> audit_data(audit)["verdict"]["passed"]
    False
    """
    check_is_fitted(auditor)
    verdict = {"passed": auditor.passed_, "within_alpha": auditor.within_alpha_}
    model = getattr(auditor, "estimator_", None)
    data: dict[str, Any] = {
        "format": "skuq-audit",
        "version": 2,
        "parameters": dict(auditor.settings_),
        "model": None if model is None else type(model).__name__,
        "classes": np.asarray(auditor.classes_).tolist() if hasattr(auditor, "classes_") else None,
        "notes": list(notes),
        "verdict": verdict,
        "n_samples": auditor.n_samples_,
        "accuracy": auditor.accuracy_,
        "confidence": auditor.confidence_,
        "ece": auditor.ece_,
        "ece_interval": list(auditor.ece_interval_),
        "ece_chance": auditor.ece_chance_,
        "mce": auditor.mce_,
        "n_families": auditor.n_families_,
        "power": POWER,
        "scale": int(auditor.sums_.scale),
        "edges": auditor.sums_.edges.tolist(),
        "detectable_shift": _number(auditor.bins_.detectable_shift),
        "bins": _rows(auditor.sums_, auditor.bins_),
        "groups": [
            _group(name, sums, auditor.group_bins_[name])
            for name, sums in auditor.group_sums_.items()
            if sums.count.any()
        ],
        "regions": _regions(auditor),
    }
    found = texts.findings(data)
    data["verdict"] |= {
        "headline": texts.headline(data),
        "findings": found,
        "sentences": found + texts.meaning(data) + texts.power(data),
    }
    return data


def _rows(sums: BinSums, bins: BinAudit) -> list[dict[str, Any]]:
    """One dict per bin: findings, the integer sums behind them, and what could be found."""
    columns: dict[str, Any] = bins._asdict()
    for name in ("threshold", "detectable_shift"):  # not of a single bin
        columns.pop(name)
    columns["correct"], columns["confidence_sum"] = sums.correct, sums.confidence
    lists = {name: _plain(values) for name, values in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _group(name: str, sums: BinSums, bins: BinAudit) -> dict[str, Any]:
    return {
        "name": name,
        "n_samples": sums.n_samples,
        "accuracy": sums.overall_accuracy,
        "confidence": sums.overall_confidence,
        "ece": sums.expected_calibration_error,
        "mce": sums.maximum_calibration_error,
        "detectable_shift": _number(bins.detectable_shift),
        "bins": _rows(sums, bins),
    }


def _regions(auditor: CalibrationAuditor) -> dict[str, Any] | None:
    """Regions found, and which ones could have been; None if none were searched."""
    search = auditor.result_.regions
    if search is None:
        return None
    found = {"alpha": auditor.settings_["region_alpha"], "threshold": search.threshold}
    count = np.array([round(share * search.n_samples) for share in REGION_SHARES])
    gaps = detectable_gap(count, REGION_CONFIDENCE, power=POWER, **found)
    return {
        "n_searched": search.n_searched,
        "n_samples": search.n_samples,
        "detectable": [
            {"share": share, "count": n, "confidence": REGION_CONFIDENCE, "detectable_gap": gap}
            for share, n, gap in zip(REGION_SHARES, count.tolist(), _plain(gaps), strict=True)
        ],
        "found": [
            {
                **region._asdict(),
                "rule": region.rule,
                "conditions": [_condition(*each) for each in region.conditions.items()],
                "confidence_range": list(region.confidence_range),
                "correct": round(region.accuracy * region.count),
                "detectable_gap": _number(
                    detectable_gap(region.count, region.confidence, power=POWER, **found)
                ),
            }
            for region in search.regions
        ],
    }


def _condition(column: Any, rule: Any) -> dict[str, Any]:
    if isinstance(rule, tuple):
        return {"column": column, "low": rule[0], "high": rule[1]}
    plain = rule is None or isinstance(rule, str | int | float | bool)
    return {"column": column, "value": rule if plain else str(rule)}


def _number(value: FloatArray | float) -> float | None:
    return None if np.isnan(value) else float(value)


def _plain(values: np.ndarray) -> list[Any]:
    """Python values, None for NaN."""
    return [None if value != value else value for value in values.tolist()]
