"""Quality of a model of a table on the rows that it held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from skuq.base import FloatArray, PredictionInterval
from skuq.calibration import conformal_limit
from skuq.labels import codes_of
from skuq.metrics import negative_log_likelihood
from skuq.tables import _notes as notes
from skuq.tables._groups import by_group
from skuq.tables._prediction_sets import halves, prediction_sets, set_scores
from skuq.tables._validation import check_share


class HeldOutMixin:
    """Mixin for `TableModel`: measures on held-out rows, and the limits that these set."""

    classes_: Any  # None in a regression, as the next one
    held_out_proba_: Any
    quantities_: Any  # None in a classification, as the next one
    _held_out_quantiles: Any
    _held_out_groups: pd.DataFrame
    held_out_: pd.DataFrame
    random_state: int

    def measured_loss(self) -> tuple[float, float]:
        """Measure predictions on the held-out rows, and those of somebody who guesses.

        Returns
        -------
        loss : float
            Log loss of the probabilities, in nats, or mean squared error of quantities.
        guessing : float
            That of the frequencies of the classes, or of the mean.
        """
        label = self.held_out_["label"]
        if self.classes_ is None:
            error = ((label - self.held_out_["prediction"]) ** 2).mean()
            return float(error), float(label.var(ddof=0))
        loss = negative_log_likelihood(
            label.to_numpy(), self.held_out_proba_, classes=self.classes_
        )
        share = label.value_counts(normalize=True)
        return loss, float(-(share * np.log(share)).sum())

    def measured_coverage(self, coverage: float = 0.9, *, by: str | None = None) -> Any:
        """Measure prediction sets or intervals on held-out rows that did not calibrate them.

        Each half of the held-out rows is measured with the limit of the other. Both are NaN if
        a half has too few rows to limit anything, fewer than ``coverage / (1 - coverage)``.

        Parameters
        ----------
        coverage : float, default=0.9
            Probability that sets or intervals are meant to hold the true value.
        by : str, default=None
            Whom to measure apart: "prediction" takes tenths of the rows by the size of a predicted
            quantity, or predicted classes; the name of a column of up to 20 categories takes these.
            They are covered with the probability `coverage` on average, not each.

        Returns
        -------
        coverage : float
            Share of the rows whose true value is covered.
        size : float
            Mean number of classes in a set, or median width of the intervals.

        With `by`, a DataFrame with one row per group: ``rows``, ``coverage``, ``size``, and of
        quantities ``lowest`` and ``highest`` prediction.

        Raises
        ------
        ValueError
            If `coverage` is not between 0 and 1, or rows cannot be grouped so.
        """
        covered, size = self._measured(coverage)
        middle = np.median if self.classes_ is None else np.mean
        if by is None:
            return float(covered.mean()), float(middle(size))
        regression = self.classes_ is None
        return by_group(self.held_out_, self._held_out_groups, covered, size, by, regression)

    @property
    def held_out_groups_(self) -> list[str]:
        """Columns by which `measured_coverage` can group the held-out rows."""
        return [*self._held_out_groups.columns]

    def measured_by_class(self, coverage: float = 0.9) -> pd.DataFrame:
        """Measure predictions and prediction sets on the held-out rows of each true class.

        Prediction sets hold the true class with the probability `coverage` on average over all
        rows, not over those of each class: a rare class may be held far less often.

        Returns
        -------
        DataFrame
            One row per class that is held out, in order: ``rows``, their number; ``accuracy``, the
            share that is predicted right; ``coverage``, the share whose set holds the class,
            measured as by `measured_coverage`, and NaN where that is.

        Raises
        ------
        ValueError
            In a regression, which has no classes.
        """
        if self.classes_ is None:
            raise ValueError("A regression has no classes; use `measured_coverage`.")
        held = self.held_out_
        by_row = pd.DataFrame(
            {
                "accuracy": held["prediction"] == held["label"],
                "coverage": self._measured(coverage)[0],
            }
        )
        grouped = by_row.groupby(held["label"].to_numpy())
        measured = grouped.mean().rename_axis("class")
        measured.insert(0, "rows", grouped.size())
        return measured

    def measured_intervals(self, coverage: float = 0.9) -> PredictionInterval:
        """Intervals of the held-out rows, each half of them calibrated by the other.

        Parameters
        ----------
        coverage : float, default=0.9
            Probability that intervals are meant to hold the true value.

        Returns
        -------
        PredictionInterval
            Ends of the intervals, in units of the target and the order of `held_out_`; NaN if there
            are too few held-out rows, as in `measured_coverage`.

        Raises
        ------
        ValueError
            In a classification, which has no intervals, and if `coverage` is not between 0 and 1.
        """
        check_share(coverage)
        if self.quantities_ is None:
            raise ValueError("Classes have no intervals; use `measured_by_class`.")
        lower, upper = np.full((2, len(self.held_out_)), np.nan)
        for calibrate, measure in self._halves(coverage):
            limit = self._limit(coverage, calibrate)
            quantiles = self._held_out_quantiles[measure]
            lower[measure], upper[measure] = self.quantities_.interval(quantiles, coverage, limit)
        return PredictionInterval(lower, upper)

    def _halves(self, coverage: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Held-out rows that calibrate, and those that are measured; none if there are too few."""
        n_rows = len(self.held_out_)
        if n_rows // 2 < notes.fewest_held_out(coverage):  # what a half bounds is everything
            return []
        first, second = halves(n_rows, self.random_state)
        return [(first, second), (second, first)]

    def _measured(self, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Whether each held-out row is covered, and the size of its set or interval, or NaN."""
        check_share(coverage)
        labels = self.held_out_["label"].to_numpy()
        if self.quantities_ is not None:
            lower, upper = self.measured_intervals(coverage)
            covered = np.where(np.isnan(lower), np.nan, (lower <= labels) & (labels <= upper))
            return covered, upper - lower
        covered, size = np.full((2, len(labels)), np.nan)
        for calibrate, measure in self._halves(coverage):
            sets = prediction_sets(self.held_out_proba_[measure], self._limit(coverage, calibrate))
            codes = codes_of(labels[measure], self.classes_, "label")
            covered[measure] = sets[np.arange(len(sets)), codes]
            size[measure] = sets.sum(axis=1)
        return covered, size

    def _limit(self, coverage: float, rows: Any = slice(None)) -> float:
        """Conformal limit of the scores of held-out rows."""
        if self.quantities_ is None:
            return conformal_limit(self._set_scores()[rows], coverage)
        y = self.held_out_["label"].to_numpy()[rows]
        return self.quantities_.limit(y, self._held_out_quantiles[rows], coverage)

    def _set_scores(self) -> FloatArray:
        codes = codes_of(self.held_out_["label"].to_numpy(), self.classes_, "label")
        return set_scores(self.held_out_proba_, codes)
