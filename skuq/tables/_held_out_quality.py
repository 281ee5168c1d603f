"""Quality of a table model, measured on its held-out rows."""

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
    """Mixin for `TableModel`: quality on held-out rows, and conformal limits from these rows."""

    classes_: Any  # None for regression, like held_out_proba_
    held_out_proba_: Any
    quantities_: Any  # None for classification, like _held_out_quantiles
    _held_out_quantiles: Any
    _held_out_groups: pd.DataFrame
    held_out_: pd.DataFrame
    random_state: int

    def measured_loss(self) -> tuple[float, float]:
        """Return the loss on the held-out rows, and the loss of a constant baseline.

        Returns
        -------
        loss : float
            Log loss of the probabilities, in nats, or mean squared error for regression.
        guessing : float
            Loss of always predicting the class frequencies or, for regression, the mean.
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
        """Measure coverage and size of prediction sets or intervals on held-out rows.

        The sets or intervals of each half of the held-out rows are calibrated on the other half.
        Coverage and size are NaN if a half has fewer than ``coverage / (1 - coverage)`` rows. With
        so few rows, sets and intervals cannot exclude any value.

        Parameters
        ----------
        coverage : float, default=0.9
            Nominal coverage of the sets or intervals.
        by : str, default=None
            Groups to measure separately. "prediction" groups rows by predicted class or, for
            regression, by tenths of the predicted values. The name of a text column with up to 20
            categories groups rows by these categories. Sets and intervals have the nominal coverage
            on average over all rows, not in each group.

        Returns
        -------
        coverage : float
            Share of the rows whose set or interval contains the true value.
        size : float
            Mean number of classes in a set, or median width of the intervals.

        With `by`, a DataFrame with one row per group: ``rows``, ``coverage``, ``size``, and for
        regression the ``lowest`` and ``highest`` prediction.

        Raises
        ------
        ValueError
            If `coverage` is not between 0 and 1, or `by` is neither "prediction" nor in
            `held_out_groups_`.
        """
        covered, size = self._measured(coverage)
        middle = np.median if self.classes_ is None else np.mean
        if by is None:
            return float(covered.mean()), float(middle(size))
        regression = self.classes_ is None
        return by_group(self.held_out_, self._held_out_groups, covered, size, by, regression)

    @property
    def held_out_groups_(self) -> list[str]:
        """Columns that `measured_coverage` accepts as `by`."""
        return [*self._held_out_groups.columns]

    def measured_by_class(self, coverage: float = 0.9) -> pd.DataFrame:
        """Measure accuracy and coverage on the held-out rows of each true class.

        Prediction sets have their nominal coverage on average over all rows, not within each class:
        the coverage of a rare class may be much lower.

        Returns
        -------
        DataFrame
            One row per class among the held-out rows, in sorted order. Columns: ``rows``, the
            number of held-out rows; ``accuracy``, the share predicted correctly; ``coverage``, the
            share whose set contains the true class. Coverage is measured as in `measured_coverage`,
            and is NaN under the same conditions.

        Raises
        ------
        ValueError
            If `task_` is "regression".
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
        """Return intervals for the held-out rows; each half is calibrated on the other half.

        Parameters
        ----------
        coverage : float, default=0.9
            Nominal coverage of the intervals.

        Returns
        -------
        PredictionInterval
            Endpoints of the intervals, in units of the target and the order of `held_out_`; NaN if
            there are too few held-out rows, as in `measured_coverage`.

        Raises
        ------
        ValueError
            If `task_` is "classification", or `coverage` is not between 0 and 1.
        """
        check_share(coverage)
        if self.quantities_ is None:
            raise ValueError("A classification has no intervals; use `measured_by_class`.")
        lower, upper = np.full((2, len(self.held_out_)), np.nan)
        for calibrate, measure in self._halves(coverage):
            limit = self._limit(coverage, calibrate)
            quantiles = self._held_out_quantiles[measure]
            lower[measure], upper[measure] = self.quantities_.interval(quantiles, coverage, limit)
        return PredictionInterval(lower, upper)

    def _halves(self, coverage: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Pairs of rows to calibrate on and rows to measure; empty if there are too few rows."""
        n_rows = len(self.held_out_)
        if n_rows // 2 < notes.fewest_held_out(coverage):  # the conformal limit would be infinite
            return []
        first, second = halves(n_rows, self.random_state)
        return [(first, second), (second, first)]

    def _measured(self, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Coverage (0 or 1) of each held-out row, and its set size or interval width; or NaN."""
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
