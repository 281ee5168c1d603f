"""What to ask of an audit that is done: where to look, and what it could have seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, IntArray
from skuq.calibration._limits import BinAudit
from skuq.calibration._power import detectable_gap, required_samples
from skuq.calibration._sums import BinSums, Predictions, bin_of


class FollowUpMixin:
    """Questions to a fitted `CalibrationAuditor`."""

    bins_: BinAudit
    sums_: BinSums
    settings_: dict[str, Any]
    _predictions: Predictions

    def suspicious_bins(self) -> IntArray:
        """Return the bins of all samples that deviate significantly, most striking first."""
        check_is_fitted(self)
        found = np.flatnonzero(self.bins_.significant)
        return found[np.argsort(self.bins_.finding[found], kind="stable")]

    def suspicious_samples(self) -> IntArray:
        """Return the reference samples in suspicious bins.

        Returns
        -------
        ndarray of int64
            Row numbers of the reference set: bin by bin as `suspicious_bins` orders them,
            and in an underconfident bin the correct predictions first, in an overconfident
            one the wrong ones.
        """
        check_is_fitted(self)
        bins = bin_of(self._predictions.confidence, self.sums_.edges)
        rows = []
        for b in self.suspicious_bins():
            inside = np.flatnonzero(bins == b)
            correct = self._predictions.correct[inside]
            first = correct if self.bins_.direction[b] == "underconfident" else ~correct
            rows += [inside[first], inside[~first]]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def detectable_gaps(self, *, power: float = 0.8) -> FloatArray:
        """Find the smallest underconfidence that this audit would have reported.

        Parameters
        ----------
        power : float, default=0.8
            Probability of the finding.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Gap between accuracy and confidence per bin; NaN where the bin has too few
            samples for any.
        """
        check_is_fitted(self)
        sums = self.sums_
        return detectable_gap(sums.count, sums.mean_confidence, power=power, **self._detection())

    def required_samples(self, gap: float, *, power: float = 0.8) -> FloatArray:
        """Find how many samples each bin needs for an underconfidence to be reported.

        Parameters
        ----------
        gap : float
            True accuracy minus confidence, larger than `alpha`.
        power : float, default=0.8
            Probability of the finding.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Samples per bin; NaN in an empty bin, infinite if no number is enough. Multiplied
            with ``n_samples_ / sums_.count`` it is the size of such a reference set.
        """
        check_is_fitted(self)
        confidence = self.sums_.mean_confidence
        needed = np.full(len(confidence), np.nan)
        filled = ~np.isnan(confidence)
        needed[filled] = required_samples(gap, confidence[filled], power=power, **self._detection())
        return needed

    def _detection(self) -> dict[str, float]:
        """What a finding needs, for the functions on power."""
        return {"alpha": self.settings_["alpha"], "threshold": self.bins_.threshold}
