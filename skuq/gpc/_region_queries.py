"""Methods of `RobustGPC` for regions: bounds, certificates, attacks and feature effects."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import column_or_1d

from skuq.base import FloatArray
from skuq.gpc._attacks import Attack, gradient_attack
from skuq.gpc._certificates import (
    Certificate,
    FeatureEffects,
    ProbabilityBounds,
    SafeRadius,
    feature_effects,
    probability_bounds,
    robustness,
    safety,
)
from skuq.gpc._neighbourhoods import (
    check_no_radius,
    check_number,
    read_limits,
)
from skuq.gpc._region_search import RegionSearchMixin
from skuq.gpc.bounds._probability_model import ProbabilityModel
from skuq.gpc.inference._posterior import most_probable
from skuq.labels import codes_of

_MARGIN = 1e-4  # default tolerance on margins of certificates


class RegionQueriesMixin(RegionSearchMixin):
    """Bounds, certificates, attacks and effects for classifiers with a Gaussian posterior."""

    classes_: NDArray[Any]
    likelihood_: str
    posterior_: Any
    random_state: Any

    def _new_region_model(self, device: str) -> ProbabilityModel:
        return ProbabilityModel(self.posterior_, self.likelihood_, device)

    def predict_proba_bounds(
        self,
        X: Any,
        radius: Any = None,
        *,
        region: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        class_: Any = None,
        tol: float = 0.01,
        max_time: float | None = None,
        max_regions: int | None = None,
    ) -> ProbabilityBounds:
        """Bound the smallest and the largest class probability in a region around each point.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.
        radius : float or array-like of shape (n_samples,), default=None
            Radius of the ball around each point, in the units of the features.
        region : tuple (lower, upper), default=None
            Box around each point, in place of a ball; each limit is a number or an array that
            broadcasts to `X`.
        norm : {"linf", "l2", "l1"}, default="linf"
            Norm of the ball.
        features : array-like of int or str, default=None
            Indices or names of the features that vary within the region; None means all. Other
            features are fixed.
        domain : tuple (lower, upper), default=None
            Limits of valid inputs, to which regions are clipped; each a number or an array that
            broadcasts to `X`. None means no limit; a sequence of limits may also contain None.
        class_ : label, default=None
            Class whose probability is bounded; None bounds all, in the order of `classes_`.
        tol : float, default=0.01
            Target gap between lower and upper bound, for each extreme.
        max_time : float, default=None
            Time limit in seconds. When it is reached, valid but wider bounds are returned.
        max_regions : int, default=None
            Limit on the number of boxes per extreme. When it is reached, valid but wider bounds are
            returned.

        Returns
        -------
        ProbabilityBounds
            Arrays of shape (n_samples, n_classes), or (n_samples, 1) with `class_`.

        Raises
        ------
        ValueError
            If the region is not well defined, a point lies outside its region or the domain,
            or the class is unknown.

        Notes
        -----
        For more than three classes, bounds are derived for independent latent functions and then
        widened for their dependence (Eq. 36 of the proofs page of the user guide). `min_lower` and
        `max_upper` are proven, but do not converge to the extremes. `min_upper` and `max_lower` are
        predicted probabilities widened by 0.0125, the tolerance of predictions, unless a proven
        bound is closer.
        """
        regions = self._around(self._points(X), radius, region, norm, features, domain)
        limits = read_limits(tol, max_time, max_regions)
        classes = self._class_indices(class_)
        bound = partial(probability_bounds, classes=classes)
        return ProbabilityBounds(*self._in_batches(bound, limits, regions))

    def certify(
        self,
        X: Any,
        y: Any = None,
        *,
        radius: Any = None,
        region: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        delta: float | None = None,
        tol: float = _MARGIN,
        max_time: float | None = None,
        max_regions: int | None = None,
    ) -> Certificate:
        """Decide whether the predicted class changes anywhere in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time, max_regions
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            True labels: a point is safe if its whole region is classified correctly. None uses
            the predicted labels (Definition 2).
        delta : float, default=None
            If given, decide whether any class probability changes by more than `delta`
            (Definition 1, with the maximum norm).
        tol : float, default=1e-4
            A point is "undecided" if the bounds on its margin differ in sign and are at most `tol`
            apart, or if a limit of the search is reached.

        Returns
        -------
        Certificate
            Status "safe", "unsafe" (with a counterexample) or "undecided" for each point.

        Raises
        ------
        ValueError
            As for `predict_proba_bounds`, or if both `y` and `delta` are given.
        TypeError
            If `y` is a number, such as a radius that was passed by position.
        """
        check_no_radius(y, "certify", "radius")
        points = self._points(X)
        regions = self._around(points, radius, region, norm, features, domain)
        limits = read_limits(tol, max_time, max_regions)
        if delta is None:
            labels = self._labels(points, y)
            return Certificate(*self._in_batches(safety, limits, regions, labels))
        if y is not None:
            raise ValueError(
                "`y` has no effect with `delta`, which bounds the change of all class "
                "probabilities; omit `y` or `delta`."
            )
        check_number(delta, "delta")
        return Certificate(*self._in_batches(partial(robustness, delta=delta), limits, regions))

    def certified_radius(
        self,
        X: Any,
        y: Any = None,
        *,
        max_radius: float | None = None,
        precision: float = 0.01,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
    ) -> SafeRadius:
        """Find by bisection a radius within which the predicted class provably does not change.

        Parameters
        ----------
        X, norm, features, domain, max_time
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            True labels; None uses the predicted labels.
        max_radius : float, default=None
            Largest radius to try, in the units of the features. The default is a norm of the
            standard deviations that the varying features have in the training data: their maximum
            for "linf", the root of the sum of their squares for "l2", and their sum for "l1".
        precision : float, default=0.01
            Precision of the bisection, relative to `max_radius`.
        max_regions : int, default=10000
            Limit on the number of boxes per point and radius; a radius at which this limit is
            reached counts as not proven.

        Returns
        -------
        SafeRadius
            The proven radius, and the nearest counterexample with its distance.
        """
        check_no_radius(y, "certified_radius", "max_radius")
        points = self._points(X)
        labels = self._labels(points, y)
        return self._bisect(
            points,
            safety,
            labels,
            read_limits(_MARGIN, max_time, max_regions),
            max_radius=max_radius,
            precision=precision,
            norm=norm,
            features=features,
            domain=domain,
        )

    def attack(
        self,
        X: Any,
        y: Any = None,
        *,
        radius: Any = None,
        region: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        method: str = "pgd",
        n_restarts: int = 0,
    ) -> Attack:
        """Search a region for points at which the class is least probable, by gradient descent.

        A failed attack does not prove safety; use `certify` for proofs.

        Parameters
        ----------
        X, radius, region, norm, features, domain
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            Labels whose probability is minimised; None uses the predicted labels.
        method : {"pgd", "fgsm"}, default="pgd"
            "pgd" takes many small steps, "fgsm" one step to the boundary (GPFGS).
        n_restarts : int, default=0
            Number of restarts of "pgd" from random points of the region; the best result is
            returned. "fgsm" does not support restarts.

        Returns
        -------
        Attack
            Points found, and their predicted probabilities.

        Raises
        ------
        ValueError
            As for `predict_proba_bounds`, or if `n_restarts` is above 0 with "fgsm".
        """
        check_no_radius(y, "attack", "radius")
        points = self._points(X)
        if method not in ("pgd", "fgsm"):
            raise ValueError(f"`method` must be 'pgd' or 'fgsm', got {method!r}.")
        regions = self._around(points, radius, region, norm, features, domain)
        check_scalar(n_restarts, "n_restarts", Integral, min_val=0)
        if method == "fgsm" and n_restarts:
            raise ValueError(
                f"n_restarts={n_restarts} has no effect with method='fgsm', which takes one step "
                "from the point; use method='pgd'."
            )
        labels, rng = self._labels(points, y), check_random_state(self.random_state)
        return gradient_attack(self._region_model(), regions, labels, method, n_restarts, rng)

    def explain(
        self,
        X: Any,
        gamma: float,
        *,
        class_: Any = None,
        features: Any = None,
        domain: Any = None,
        tol: float = 1e-3,
        max_time: float | None = None,
        max_regions: int | None = None,
    ) -> FeatureEffects:
        """Measure the effect of each feature on a class probability, with proven error bounds.

        Effects are computed from ranges of the probability (Appendix G of the paper). Unlike a
        gradient or a linear surrogate, these effects account for all inputs within `gamma` of the
        point along the feature.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.
        gamma : float
            Largest change of each feature, up and down, in the unit of the feature.
        class_ : label, default=None
            Class whose probability is explained. None selects the second of two classes; with more
            classes, it selects the predicted class of each point.
        features, domain, max_time, max_regions
            As for `predict_proba_bounds`.
        tol : float, default=1e-3
            Target gap between lower and upper bound, for each extreme.

        Returns
        -------
        FeatureEffects
            Local effects for each point, and their average.
        """
        points = self._points(X)
        check_number(gamma, "gamma", positive=True)
        limits = read_limits(tol, max_time, max_regions)
        if class_ is not None:
            labels = np.full(len(points), self._class_indices(class_)[0])
        elif len(self.classes_) == 2:
            labels = np.ones(len(points), dtype=np.intp)
        else:
            labels = self._labels(points, None)
        regions = self._around(points, gamma, None, "linf", features, domain)
        local, error = self._in_batches(feature_effects, limits, regions, labels)
        return FeatureEffects(local, local.mean(axis=0), error)

    def _class_indices(self, class_: Any) -> NDArray[np.intp]:
        if class_ is None:
            return np.arange(len(self.classes_))
        known = self.classes_.tolist()
        if np.ndim(class_) or class_ not in known:
            raise ValueError(f"`class_` must be one of {known}, got {class_!r}.")
        return np.array([known.index(class_)])

    def _labels(self, points: FloatArray, y: Any) -> NDArray[np.intp]:
        if y is None:
            return most_probable(self._region_model().probabilities(points))
        y = column_or_1d(y)
        if len(y) != len(points):
            raise ValueError(
                f"`y` must have one label per point, got {len(y)} labels for {len(points)} points."
            )
        return codes_of(y, self.classes_, "y")
