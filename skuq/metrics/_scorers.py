"""Scorers for searches such as ``GridSearchCV(scoring=...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRequest

from skuq.base import PARTS, FloatArray, predict_uncertainty
from skuq.metrics._detection import misclassification_auroc
from skuq.metrics._probabilities import expected_calibration_error, negative_log_likelihood
from skuq.metrics._selective_prediction import area_under_risk_coverage
from skuq.sample_weights import weighted_mean
from skuq.wrappers import walk_to

Metric = Callable[..., float]


def _check_part(part: str) -> None:
    if part not in PARTS:
        raise ValueError(f"`part` must be one of {PARTS}, got {part!r}.")


def predicted_part(estimator: Any, X: Any, part: str) -> FloatArray:
    """Predict one part of the uncertainty, for scorers and displays.

    Parameters
    ----------
    estimator : object
        Fitted estimator, pipeline or search that `skuq.predict_uncertainty` accepts.
    X : array-like of shape (n_samples, n_features)
        Inputs.
    part : {"total", "aleatoric", "epistemic"}
        Name of the part.

    Returns
    -------
    ndarray of shape (n_samples,), float64

    Raises
    ------
    ValueError
        If `part` is not the name of a part, or the estimator does not measure this part.
    """
    _check_part(part)
    values: FloatArray = getattr(predict_uncertainty(estimator, X), part)
    if np.isnan(values).all():
        raise ValueError(
            f"{type(estimator).__name__} does not measure the {part} part of its uncertainty; use "
            "`part='total'`."
        )
    return values


@dataclass(frozen=True, repr=False)
class Scorer:
    """Base of scorers with metadata routing; unlike closures, its instances can be pickled."""

    # Metadata request, as defined by scikit-learn.
    sample_weight: bool | str | None = field(default=None, kw_only=True)

    def set_score_request(self, *, sample_weight: bool | str | None) -> Self:
        """Request sample weights from a search or cross-validation.

        Parameters
        ----------
        sample_weight : bool, str or None
            Whether ``sample_weight`` is passed to the scorer, or the name under which the caller
            passes it, as in scikit-learn.

        Returns
        -------
        scorer
            A copy with the request. The scorer itself, which may be shared, is not changed.

        Raises
        ------
        RuntimeError
            If metadata routing is off, because the request would have no effect.
        """
        if not get_config()["enable_metadata_routing"]:
            raise RuntimeError(
                "Sample weights are passed to scorers only if metadata routing is enabled; call "
                "sklearn.set_config(enable_metadata_routing=True) first."
            )
        return replace(self, sample_weight=sample_weight)

    def __repr__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        shown = (f"{name}={getattr(value, '__name__', repr(value))}" for name, value in values)
        return f"{type(self).__name__.lstrip('_')}({', '.join(shown)})"

    def get_metadata_routing(self) -> MetadataRequest:
        """Requests of this scorer, for scikit-learn's metadata routing."""
        requests = MetadataRequest(owner=self)
        requests.score.add_request(param="sample_weight", alias=self.sample_weight)
        return requests


@dataclass(frozen=True, repr=False)
class _UncertaintyScorer(Scorer):
    """Scorer of predictions and their uncertainty."""

    metric: Metric
    part: str
    sign: int
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        uncertainty = predicted_part(estimator, X, self.part)
        settings = dict(self.settings)
        if sample_weight is not None:
            settings["sample_weight"] = sample_weight
        return self.sign * self.metric(y, estimator.predict(X), uncertainty, **settings)


def uncertainty_scorer(
    metric: Metric, *, part: str = "total", greater_is_better: bool = True, **settings: Any
) -> _UncertaintyScorer:
    """Make a scorer of uncertainty for searches such as ``GridSearchCV(scoring=...)``.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred, uncertainty) -> float``, such as `area_under_risk_coverage`. If
        the scorer receives ``sample_weight``, the weights are passed to the metric.
    part : {"total", "aleatoric", "epistemic"}, default="total"
        Part of ``skuq.predict_uncertainty(estimator, X)`` that is passed to the metric.
    greater_is_better : bool, default=True
        False for a loss: the scorer then returns minus the metric.
    **settings
        Further arguments of `metric`, such as ``loss="squared_error"`` for
        `area_under_risk_coverage` in regression.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, greater is better. It can be
        pickled if `metric` can. To receive the sample weights of a search, use the copy returned by
        ``scorer.set_score_request(sample_weight=True)``.

    Raises
    ------
    ValueError
        If `part` is not the name of a part.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import Uncertainty
    >>> from skuq.metrics import area_under_risk_coverage, uncertainty_scorer
    >>> class Model(LogisticRegression):
    ...     def predict_uncertainty(self, X):
    ...         top = self.predict_proba(X).max(axis=1)
    ...         return Uncertainty.from_parts(1 - top, np.zeros(len(top)))
    >>> scorer = uncertainty_scorer(area_under_risk_coverage, greater_is_better=False)
    >>> X, y = load_iris(return_X_y=True)
    >>> -0.01 < scorer(Model(max_iter=1000).fit(X, y), X, y) <= 0
    True
    """
    _check_part(part)
    return _UncertaintyScorer(metric, part, 1 if greater_is_better else -1, settings)


@dataclass(frozen=True, repr=False)
class _ProbabilityLossScorer(Scorer):
    """Scorer of predicted probabilities: minus a loss, with columns matched by ``classes_``."""

    loss: Callable[..., float]

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        proba = estimator.predict_proba(X)
        return -self.loss(y, proba, classes=estimator.classes_, sample_weight=sample_weight)


@dataclass(frozen=True, repr=False)
class _CertifiedAccuracyScorer(Scorer):
    """Scorer of certified accuracy: the share of samples proven to stay correct."""

    request: dict[str, Any] = field(hash=False)

    def __call__(
        self, estimator: Any, X: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None
    ) -> float:
        estimator, X = walk_to(estimator, X, _certifies, _no_certificates)
        safe = estimator.certify(X, y, **self.request).status == "safe"
        return weighted_mean(safe, sample_weight)


def _certifies(estimator: Any) -> bool:
    return hasattr(estimator, "certify")


def _no_certificates(path: list[str]) -> str:
    return (
        "Certified accuracy needs an estimator with `certify`, such as RobustGPC; "
        f"{' -> '.join(path)} has none."
    )


def certified_accuracy(
    radius: float, *, norm: str = "linf", max_regions: int = 100, **region: Any
) -> _CertifiedAccuracyScorer:
    """Make a scorer of certified accuracy: the share of samples proven to stay correct.

    Parameters
    ----------
    radius : float
        Radius of the ball around each sample, in the units of the inputs of the estimator itself.
        After a scaler in a pipeline, these units are standard deviations.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm of the ball.
    max_regions : int, default=100
        Maximum number of boxes for each sample; a sample that needs more is not certified.
    **region
        Further arguments of `RobustGPC.certify`, such as ``features`` and ``domain``.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None) -> float``, in [0, 1].

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
    return _CertifiedAccuracyScorer(request)


#: Scorer: minus the expected calibration error (10 uniform bins), in [-1, 0].
neg_expected_calibration_error_scorer = _ProbabilityLossScorer(expected_calibration_error)

#: Scorer: minus the negative log likelihood, that is the mean log likelihood in nats.
neg_log_likelihood_scorer = _ProbabilityLossScorer(negative_log_likelihood)

#: Scorer: minus the area under the risk-coverage curve of labels, in [-1, 0]; the total uncertainty
#: ranks the samples.
neg_area_under_risk_coverage_scorer = uncertainty_scorer(
    area_under_risk_coverage, greater_is_better=False
)

#: Scorer: AUROC of detecting wrong predictions by total uncertainty, in [0, 1] or NaN.
misclassification_auroc_scorer = uncertainty_scorer(misclassification_auroc)
