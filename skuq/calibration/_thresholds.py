"""Thresholds that honest models pass, measured on reference sets of a given size."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_params,
)

from skuq.base import IntArray
from skuq.calibration._bin_sums import (
    BinSums,
    Strategy,
    TopLabelPredictions,
    bin_edges,
    bin_of,
    top_label_predictions,
)
from skuq.calibration._conditions import Conditions, checked_conditions, n_searched
from skuq.calibration._region_search import region_tolerance
from skuq.calibration._scan import ROUNDING, SEED, largest_evidence, n_runs, p_values
from skuq.validation import MOST_BINS, checked_labels

if TYPE_CHECKING:
    from sklearn.calibration import CalibratedClassifierCV

TOLERANCE_PRECISION = 1e-3
N_REGION_DRAWS = 60  # maximum number of reference sets that are searched for regions
N_SIMULATIONS = 200  # number of simulations for each pair of a reference set and a tolerance


class AlphaStudy(NamedTuple):
    """Thresholds that an honest model passes with a given probability.

    Attributes
    ----------
    tolerance : float
        Smallest `alpha` with which the model passes `CalibrationAuditor`, which accounts for
        deviations by chance.
    max_gap : float
        Smallest `alpha` for Algorithm 1, which compares the gap of every bin with `alpha`
        regardless of the number of samples.
    ece : float
        Smallest threshold that the expected calibration error of the model does not exceed.
    region_tolerance : float or None
        Smallest `search_regions` with which `CalibrationAuditor` finds no region; None if no
        inputs were passed.
    """

    tolerance: float
    max_gap: float
    ece: float
    region_tolerance: float | None = None


@validate_params(
    {
        "reference_size": [Interval(Integral, 1, None, closed="left"), None],
        "n_bins": [Interval(Integral, 1, MOST_BINS, closed="both")],
        "strategy": [StrOptions({"uniform", "quantile"})],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "n_repeats": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def choose_alpha(
    y: ArrayLike,
    proba: ArrayLike,
    *,
    X: Any = None,
    classes: ArrayLike | None = None,
    reference_size: int | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    confidence_level: float = 0.95,
    n_repeats: int = 200,
    random_state: Any = None,
) -> AlphaStudy:
    """Measure thresholds that an honest model passes, in a baseline study.

    Reference sets are drawn, with replacement, from recorded predictions of a model that is
    known to be honest and was calibrated (`temperature_scaled`). For each set, the smallest
    threshold that the set passes is computed; the results are quantiles over the sets.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        True labels.
    proba : array-like of shape (n_samples, n_classes)
        Predictions of the honest model on data used neither for training nor for calibration.
    X : DataFrame or array-like of shape (n_samples, n_features), default=None
        Inputs. If given, the tolerance within regions is measured too, which takes about half a
        minute for reference sets of 1,600 rows and 14 columns.
    classes : array-like of shape (n_classes,), default=None
        Labels in column order. Default: the sorted labels of `y`.
    reference_size : int, default=None
        Size of the reference sets. Default: n_samples.
    n_bins, strategy
        As in `CalibrationAuditor`; quantile bins are computed from all predictions.
    confidence_level : float, default=0.95
        Probability with which the honest model should pass; also the confidence level of the
        audit that uses `tolerance`.
    n_repeats : int, default=200
        Number of reference sets.
    random_state : int, RandomState instance or None, default=None
        Seed for drawing the reference sets.

    Returns
    -------
    AlphaStudy

    Raises
    ------
    ValueError
        If the inputs are not probabilities or have inconsistent shapes.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Appendix D.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import choose_alpha
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=5000)
    >>> y = rng.random(5000) < p
    >>> study = choose_alpha(y, np.c_[1 - p, p], n_repeats=50, random_state=0)
    >>> study.tolerance < 0.02 < study.max_gap < 0.1
    True
    """
    random = check_random_state(random_state)
    predictions = top_label_predictions(y, proba, classes=classes)
    edges = bin_edges(predictions.confidence, n_bins, strategy)
    bins = bin_of(predictions.confidence, edges)
    size = len(bins) if reference_size is None else reference_size
    draws = [
        _sums(edges, bins, np.bincount(random.randint(len(bins), size=size)), predictions)
        for _ in range(n_repeats)
    ]
    found = [(part.maximum_calibration_error, part.expected_calibration_error) for part in draws]
    # A threshold must be an observed value, so the quantile is rounded up and not interpolated.
    max_gap, ece = np.quantile(found, confidence_level, axis=0, method="higher")
    regions = None if X is None else _region_draws(X, predictions, size, n_repeats, random)
    return AlphaStudy(
        _tolerance(draws, confidence_level),
        float(max_gap),
        float(ece),
        None if regions is None else region_tolerance(regions, confidence_level),
    )


def temperature_scaled(estimator: Any, X: Any, y: ArrayLike) -> CalibratedClassifierCV:
    """Calibrate a fitted classifier with a single temperature, as the honest baseline of an audit.

    Parameters
    ----------
    estimator : object
        Fitted classifier; it is not modified.
    X : array-like of shape (n_samples, n_features)
        Calibration inputs, disjoint from the training data and from the reference set.
    y : array-like of shape (n_samples,)
        True labels of the calibration inputs.

    Returns
    -------
    CalibratedClassifierCV
        Fitted calibrator of scikit-learn.

    Raises
    ------
    ValueError
        If a class of the classifier has no calibration samples.
    ImportError
        If scikit-learn is older than 1.8, which introduced temperature scaling.

    References
    ----------
    Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
    """
    missing = np.setdiff1d(getattr(estimator, "classes_", []), checked_labels(column_or_1d(y), "y"))
    if len(missing):
        raise ValueError(
            f"The classes {missing[:5].tolist()} of the classifier are missing from `y`; a "
            "calibration set needs samples of every class."
        )
    from sklearn.calibration import CalibratedClassifierCV  # slow to import

    scaled = CalibratedClassifierCV(FrozenEstimator(estimator), method="temperature")
    try:
        return scaled.fit(X, y)
    except InvalidParameterError as error:
        if "'method'" not in str(error):
            raise
        raise ImportError(
            "Temperature scaling needs scikit-learn >= 1.8; upgrade it, or calibrate with "
            "CalibratedClassifierCV(FrozenEstimator(estimator), method='sigmoid')."
        ) from error


def _region_draws(
    X: Any,
    predictions: TopLabelPredictions,
    size: int,
    n_repeats: int,
    random: np.random.RandomState,
) -> list[tuple[Conditions, TopLabelPredictions]]:
    """Draw reference sets of the size that a region search uses, with their conditions."""
    conditions = checked_conditions(X, len(predictions.confidence))
    size = n_searched(size, math.prod(np.shape(X)[1:]))
    draws = []
    for _ in range(min(n_repeats, N_REGION_DRAWS)):
        drawn = random.randint(len(conditions.rows), size=size)
        rows = conditions.rows[drawn]
        draws.append(
            (
                Conditions(conditions.rules, conditions.masks[:, drawn], np.arange(size)),
                TopLabelPredictions(predictions.confidence[rows], predictions.correct[rows]),
            )
        )
    return draws


def _sums(
    edges: IntArray, bins: IntArray, weights: IntArray, predictions: TopLabelPredictions
) -> BinSums:
    """Integer sums of predictions, each counted as many times as its weight."""
    n_bins, rows = len(edges) - 1, slice(len(weights))

    def add(values: Any) -> IntArray:
        return np.bincount(bins[rows], weights=values, minlength=n_bins).astype(np.int64)

    confidence = predictions.confidence[rows].astype(np.float64)
    return BinSums(
        edges, add(weights), add(weights * predictions.correct[rows]), add(weights * confidence)
    )


def _tolerance(draws: list[BinSums], confidence_level: float) -> float:
    """Smallest alpha at which the required fraction of the draws passes, by bisection."""
    low, high = 0.0, 1.0
    while high - low > TOLERANCE_PRECISION:
        middle = (low + high) / 2
        if _share_passed(draws, middle, 1 - confidence_level) >= confidence_level:
            high = middle
        else:
            low = middle
    return high


def _share_passed(draws: list[BinSums], alpha: float, level: float) -> float:
    """Fraction of draws without a finding; the scan uses fewer simulations than in an audit."""
    count = np.array([part.count for part in draws])
    correct = np.array([part.correct for part in draws])
    confidence = np.nan_to_num([part.mean_confidence for part in draws])
    rng, passed = np.random.default_rng(SEED), np.ones(len(draws), bool)
    for sign in (1, -1):
        edge = np.clip(confidence + sign * alpha, 0, 1)
        found = largest_evidence(correct, count, edge, sign)
        simulated = rng.binomial(count, edge, size=(N_SIMULATIONS, *count.shape))
        chance = largest_evidence(simulated, count, edge, sign)
        reached = (chance >= found * (1 - ROUNDING)).sum(axis=0)
        passed &= p_values(found, reached, N_SIMULATIONS, n_runs(count.shape[-1]), sign) >= level
    return float(passed.mean())
