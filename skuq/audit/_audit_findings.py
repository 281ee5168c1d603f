"""Findings of an audit: attributes, suspicious samples, and statistical power."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, IntArray
from skuq.calibration import (
    AuditResult,
    BinAudit,
    BinSums,
    Direction,
    Region,
    TopLabelPredictions,
    detectable_gap,
    required_samples,
)


def _result_attribute(name: str) -> Any:
    """Create a property that returns a (dotted) attribute of a fitted auditor's `result_`."""

    def get(auditor: AuditFindings) -> Any:
        if "result_" not in vars(auditor):
            raise AttributeError(
                "This CalibrationAuditor has no results yet; call `fit` or `from_predictions`."
            )
        return attrgetter(name)(auditor.result_)

    return property(get)


class AuditFindings:
    """Attributes and methods of an auditor with the attributes `result_` and `settings_`."""

    result_: AuditResult
    settings_: dict[str, Any]
    _predictions: TopLabelPredictions  # missing if the audit was made from sums

    passed_: bool = _result_attribute("passed")
    within_alpha_: bool = _result_attribute("within_alpha")
    bins_: BinAudit = _result_attribute("bins")
    group_bins_: dict[str, BinAudit] = _result_attribute("group_bins")
    sums_: BinSums = _result_attribute("sums")
    group_sums_: dict[str, BinSums] = _result_attribute("group_sums")
    n_families_: int = _result_attribute("n_families")
    ece_interval_: tuple[float, float] = _result_attribute("ece_interval")
    ece_chance_: float = _result_attribute("ece_chance")
    ece_: float = _result_attribute("sums.expected_calibration_error")
    mce_: float = _result_attribute("sums.maximum_calibration_error")
    n_samples_: float = _result_attribute("sums.n_samples")
    n_effective_: float = _result_attribute("sums.n_effective")
    accuracy_: float = _result_attribute("sums.overall_accuracy")
    confidence_: float = _result_attribute("sums.overall_confidence")

    @property
    def regions_(self) -> list[Region]:
        """Regions with significant deviations; empty if no regions were searched."""
        searched = self.result_.regions
        return [] if searched is None else searched.regions

    def suspicious_bins(self) -> IntArray:
        """Return bins with significant deviations among all samples, most significant first."""
        check_is_fitted(self)
        found = np.flatnonzero(self.bins_.significant)
        return found[np.argsort(self.bins_.finding[found], kind="stable")]

    def suspicious_samples(self) -> IntArray:
        """Return the reference samples in suspicious bins.

        Returns
        -------
        ndarray of int64
            Row numbers of the reference set, bin by bin in the order of `suspicious_bins`. In an
            underconfident bin, correct predictions come first; in an overconfident bin, wrong
            predictions come first.
        """
        self._check_samples_kept()
        bins = self.sums_.bin_of(self._predictions.confidence)
        rows = []
        for b in self.suspicious_bins():
            inside = np.flatnonzero(bins == b)
            correct = self._predictions.correct[inside]
            first = correct if self.bins_.direction[b] == "underconfident" else ~correct
            rows += [inside[first], inside[~first]]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def detectable_gaps(
        self, *, power: float = 0.8, direction: Direction = "underconfident"
    ) -> FloatArray:
        """Return the smallest gap per bin that this audit could detect.

        Parameters
        ----------
        power : float, default=0.8
            Probability of detecting the gap.
        direction : {"underconfident", "overconfident"}, default="underconfident"
            Deviation to be found: confidence that is too low, or too high.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Positive distance between accuracy and confidence per bin; NaN where the bin has too few
            samples to detect any gap.
        """
        check_is_fitted(self)
        sums = self.sums_
        return detectable_gap(
            sums.effective_count, sums.mean_confidence, power=power, **self._detection(direction)
        )

    def required_samples(
        self, gap: float, *, power: float = 0.8, direction: Direction = "underconfident"
    ) -> FloatArray:
        """Return the number of samples per bin that is needed to detect a given gap.

        Parameters
        ----------
        gap : float
            True accuracy minus confidence, larger than `alpha`; for overconfidence, confidence
            minus true accuracy.
        power : float, default=0.8
            Probability of detecting the gap.
        direction : {"underconfident", "overconfident"}, default="underconfident"
            Deviation to be found: confidence that is too low, or too high.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Samples per bin; NaN in an empty bin, infinite if no number is large enough. To obtain
            the size of the whole reference set, multiply by ``n_samples_ / sums_.count``.
        """
        check_is_fitted(self)
        confidence = self.sums_.mean_confidence
        needed = np.full(len(confidence), np.nan)
        filled = ~np.isnan(confidence)
        needed[filled] = required_samples(
            gap, confidence[filled], power=power, **self._detection(direction)
        )
        return needed

    def _detection(self, direction: Direction) -> dict[str, Any]:
        """Tolerance and evidence threshold of this audit, as arguments of the power functions."""
        found = self.bins_
        below = direction == "overconfident"
        return {
            "alpha": self.settings_["alpha"],
            "threshold": found.threshold_overconfident if below else found.threshold,
            "direction": direction,
        }

    def _check_samples_kept(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_predictions"):
            raise ValueError(
                "This audit was made in parts or from sums, so its samples were not kept; use "
                "`fit` or `from_predictions` on all samples at once."
            )
