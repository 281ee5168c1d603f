"""Scorers for searches such as ``GridSearchCV(scoring=...)``."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRequest

from skuq.base import PARTS, FloatArray, predict_uncertainty
from skuq.metrics import _predictions as scores
from skuq.quantities import check_coverage, checked_levels, predicted_interval, predicted_quantiles
from skuq.validation import weighted_mean
from skuq.wrappers import walk_to


@dataclass(frozen=True, repr=False)
class Scorer:
    """Scorer ``scorer(estimator, X, y, sample_weight=None)`` that supports metadata routing.

    It can call several methods of the estimator; scorers of scikit-learn's `make_scorer` call one.
    """

    value: Callable[..., float]  # value(estimator, X, y, sample_weight=..., **settings)
    settings: dict[str, Any] = field(hash=False)
    request: bool | str | None = None  # metadata request for `sample_weight`

    def __repr__(self) -> str:  # shows functions by name, without memory addresses
        shown = (f"{k}={getattr(v, '__name__', repr(v))}" for k, v in self.settings.items())
        return f"Scorer({', '.join(shown)})"

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        return self.value(estimator, X, y, sample_weight=sample_weight, **self.settings)

    def set_score_request(self, *, sample_weight: bool | str | None) -> Self:
        """Return a copy of this scorer that requests sample weights from a search."""
        if not get_config()["enable_metadata_routing"]:
            raise RuntimeError(
                "Sample weights are passed to scorers only if metadata routing is enabled; call "
                "sklearn.set_config(enable_metadata_routing=True) first."
            )
        return replace(self, request=sample_weight)

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the metadata that this scorer requests (scikit-learn's metadata routing)."""
        requests = MetadataRequest(owner=self)
        requests.score.add_request(param="sample_weight", alias=self.request)
        return requests


def predicted_part(estimator: Any, X: Any, part: str) -> FloatArray:
    """Return one part of the uncertainty, (n_samples,); raise ValueError if all values are NaN."""
    _check_part(part)
    values: FloatArray = getattr(predict_uncertainty(estimator, X), part)
    if np.isnan(values).all():
        raise ValueError(
            f"{type(estimator).__name__} does not measure the {part} part of its uncertainty; use "
            "`part='total'`."
        )
    return values


def _check_part(part: str) -> None:
    if part not in PARTS:
        raise ValueError(f"`part` must be one of {PARTS}, got {part!r}.")


def uncertainty_scorer(
    metric: Callable[..., float],
    *,
    part: str = "total",
    greater_is_better: bool = True,
    **settings: Any,
) -> Scorer:
    """Make a scorer from a metric of uncertainty, for ``GridSearchCV(scoring=...)`` and others.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred, uncertainty) -> float``, such as `area_under_risk_coverage`. If
        the scorer receives ``sample_weight``, the weights are passed to the metric.
    part : {"total", "aleatoric", "epistemic"}, default="total"
        Part of ``skuq.predict_uncertainty(estimator, X)`` that is passed to the metric.
    greater_is_better : bool, default=True
        False for a loss, whose sign the scorer then changes.
    **settings
        Further arguments of `metric`, such as ``loss="squared_error"``.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, greater is better. To receive the
        sample weights of a search, use ``scorer.set_score_request(sample_weight=True)``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import CalibrationAuditor
    >>> from skuq.metrics import area_under_risk_coverage, uncertainty_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> model = CalibrationAuditor(LogisticRegression(max_iter=1000)).fit(X, y)
    >>> scorer = uncertainty_scorer(area_under_risk_coverage, greater_is_better=False)
    >>> -0.01 < scorer(model, X, y) <= 0
    True
    """
    _check_part(part)
    request = {"metric": metric, "part": part, "greater_is_better": greater_is_better}
    return Scorer(_by_uncertainty, request | settings)


def _by_uncertainty(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    metric: Callable[..., float],
    part: str,
    greater_is_better: bool,
    **settings: Any,
) -> float:
    if settings["sample_weight"] is None:  # the metric may have no parameter `sample_weight`
        del settings["sample_weight"]
    value = metric(y, estimator.predict(X), predicted_part(estimator, X, part), **settings)
    return value if greater_is_better else -value


def interval_scorer(coverage: float = 0.9) -> Scorer:
    """Make a scorer that returns minus the interval score of prediction intervals.

    Parameters
    ----------
    coverage : float, default=0.9
        Coverage passed to ``estimator.predict_interval(X, coverage=coverage)``, in (0, 1). The
        estimator may be inside a pipeline or search.

    Returns
    -------
    callable
        Scorer as returned by `uncertainty_scorer`; its values are at most 0, in target units.
    """
    check_coverage(coverage)
    return Scorer(_by_interval, {"coverage": coverage})


def _by_interval(estimator: Any, X: Any, y: ArrayLike, *, coverage: float, **weight: Any) -> float:
    limits = predicted_interval(estimator, X, coverage)
    return -scores.interval_score(y, *limits, coverage=coverage, **weight)


def quantile_scorer(levels: ArrayLike) -> Scorer:
    """Make a scorer that returns minus the pinball loss of predicted quantiles.

    Parameters
    ----------
    levels : array-like of shape (n_levels,)
        Levels in (0, 1), passed to ``estimator.predict_quantiles(X, levels)``. The estimator may be
        inside a pipeline or search.
    """
    return Scorer(_by_quantiles, {"levels": tuple(checked_levels(levels).tolist())})


def _by_quantiles(
    estimator: Any, X: Any, y: ArrayLike, *, levels: tuple[float, ...], **weight: Any
) -> float:
    return -scores.pinball_loss(y, predicted_quantiles(estimator, X, levels), levels, **weight)


def certified_accuracy(
    radius: float, *, norm: str = "linf", max_regions: int = 100, **region: Any
) -> Scorer:
    """Make a scorer for the fraction of samples proven to be classified correctly in a whole ball.

    Parameters
    ----------
    radius : float
        Radius of the ball around each sample, in units of the inputs that reach the estimator:
        after a `StandardScaler` in a pipeline, in standard deviations.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm of the ball.
    max_regions : int, default=100
        Maximum number of boxes for each sample; a sample that needs more is not certified.
    **region
        Further arguments of `RobustGPC.certify`, such as ``features`` and ``domain``.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skuq import RobustGPC
    >>> from skuq.metrics import certified_accuracy
    >>> X, y = make_moons(60, noise=0.1, random_state=0)
    >>> gpc = RobustGPC(random_state=0, device="cpu").fit(X, y)
    >>> certified_accuracy(0.5)(gpc, X, y) < certified_accuracy(0.05)(gpc, X, y) <= 1
    True
    """
    request = {"radius": radius, "norm": norm, "max_regions": max_regions, **region}
    return Scorer(_by_certificates, request)


def _by_certificates(
    estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None, **request: Any
) -> float:
    estimator, X = walk_to(
        estimator,
        X,
        lambda inner: hasattr(inner, "certify"),
        lambda path: (
            "Certified accuracy needs an estimator with `certify`, such as RobustGPC; "
            f"{' -> '.join(path)} has none."
        ),
    )
    return weighted_mean(estimator.certify(X, y=y, **request).status == "safe", sample_weight)


def _by_probabilities(
    estimator: Any, X: Any, y: ArrayLike, *, loss: Callable[..., float], **weight: Any
) -> float:
    return -loss(y, estimator.predict_proba(X), classes=estimator.classes_, **weight)


#: Scorer: minus the expected calibration error (10 uniform bins), in [-1, 0].
neg_expected_calibration_error_scorer = Scorer(
    _by_probabilities, {"loss": scores.expected_calibration_error}
)

#: Scorer: minus the negative log likelihood, that is the mean log likelihood in nats.
neg_log_likelihood_scorer = Scorer(_by_probabilities, {"loss": scores.negative_log_likelihood})
