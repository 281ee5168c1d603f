"""Scorers of regressors, to be passed to searches such as ``GridSearchCV(scoring=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from skuq.metrics._quantities import (
    crps_gaussian,
    gaussian_negative_log_likelihood,
    interval_coverage,
    interval_score,
    pinball_loss,
)
from skuq.metrics._scorers import Metric, Scorer
from skuq.quantities import (
    check_coverage,
    checked_levels,
    predicted_gaussian,
    predicted_interval,
    predicted_quantiles,
)


@dataclass(frozen=True, repr=False)
class _IntervalScorer(Scorer):
    """Scorer of prediction intervals: minus the interval score."""

    coverage: float

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        limits = predicted_interval(estimator, X, self.coverage)
        return -interval_score(y, *limits, coverage=self.coverage, sample_weight=sample_weight)


@dataclass(frozen=True, repr=False)
class _IntervalCoverageScorer(Scorer):
    """Scorer of prediction intervals: the share of true values inside their intervals."""

    coverage: float

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        limits = predicted_interval(estimator, X, self.coverage)
        return interval_coverage(y, *limits, sample_weight=sample_weight)


@dataclass(frozen=True, repr=False)
class _QuantileScorer(Scorer):
    """Scorer of predicted quantiles: minus the pinball loss."""

    levels: tuple[float, ...]

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        quantiles = predicted_quantiles(estimator, X, self.levels)
        return -pinball_loss(y, quantiles, self.levels, sample_weight=sample_weight)


@dataclass(frozen=True, repr=False)
class _GaussianScorer(Scorer):
    """Scorer of predicted means and standard deviations: minus a loss."""

    loss: Metric

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        return -self.loss(y, *predicted_gaussian(estimator, X), sample_weight=sample_weight)


def interval_scorer(coverage: float = 0.9) -> _IntervalScorer:
    """Make a scorer of prediction intervals: minus their interval score.

    Parameters
    ----------
    coverage : float, default=0.9
        Coverage passed to ``estimator.predict_interval(X, coverage=coverage)``, in (0, 1). This
        method returns lower and upper limits, arrays of shape (n_samples,) each. The estimator may
        be inside a pipeline or search.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, in units of the target, at most
        0; greater is better. Sample weights are routed as in `uncertainty_scorer`.

    Raises
    ------
    ValueError
        If `coverage` is not in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyRegressor
    >>> from skuq.metrics import interval_scorer
    >>> class FromMinusOneToOne(DummyRegressor):
    ...     def predict_interval(self, X, coverage=0.9):
    ...         return np.full(len(X), -1.0), np.full(len(X), 1.0)
    >>> X, y = np.zeros((4, 1)), np.array([-0.5, 0.0, 0.9, 1.5])
    >>> round(interval_scorer(coverage=0.8)(FromMinusOneToOne().fit(X, y), X, y), 6)
    -3.25
    """
    check_coverage(coverage)
    return _IntervalScorer(coverage)


def interval_coverage_scorer(coverage: float = 0.9) -> _IntervalCoverageScorer:
    """Make a scorer that reports the coverage of prediction intervals.

    Use it in `cross_validate` together with `interval_scorer`, not for model selection: the largest
    coverage comes from the widest intervals.

    Parameters
    ----------
    coverage : float, default=0.9
        As in `interval_scorer`.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, in [0, 1]; values near `coverage`
        are best.

    Raises
    ------
    ValueError
        If `coverage` is not in (0, 1).
    """
    check_coverage(coverage)
    return _IntervalCoverageScorer(coverage)


def quantile_scorer(levels: ArrayLike) -> _QuantileScorer:
    """Make a scorer of predicted quantiles: minus their pinball loss.

    Parameters
    ----------
    levels : array-like of shape (n_levels,)
        Levels in (0, 1), passed to ``estimator.predict_quantiles(X, levels)``. This method returns
        an array of shape (n_samples, n_levels), as in `skuq.AnchoredQuantileRegressor`. The
        estimator may be inside a pipeline or search.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, in units of the target, at most
        0; greater is better. Sample weights are routed as in `uncertainty_scorer`.

    Raises
    ------
    ValueError
        If a level is not in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyRegressor
    >>> from skuq.metrics import quantile_scorer
    >>> class Observed(DummyRegressor):
    ...     def fit(self, X, y):
    ...         self.seen_ = y
    ...         return self
    ...     def predict_quantiles(self, X, levels):
    ...         return np.tile(np.quantile(self.seen_, levels), (len(X), 1))
    >>> X, y = np.zeros((5, 1)), np.arange(5.0)
    >>> round(quantile_scorer([0.25, 0.5, 0.75])(Observed().fit(X, y), X, y), 6)
    -0.5
    """
    return _QuantileScorer(tuple(checked_levels(levels).tolist()))


#: Scorer: mean Gaussian log likelihood in nats, of regressors with ``predict(X, return_std=True)``.
gaussian_log_likelihood_scorer = _GaussianScorer(gaussian_negative_log_likelihood)

#: Scorer: minus the CRPS of regressors with ``predict(X, return_std=True)``, in the unit of y.
neg_crps_gaussian_scorer = _GaussianScorer(crps_gaussian)
