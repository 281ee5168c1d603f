"""Methods of `RobustGPRegressor` for regions: bounds, certificates and certified radii."""

from __future__ import annotations

from typing import Any

from skuq.gpc._certificates import Certificate, SafeRadius
from skuq.gpc._neighbourhoods import read_limits, tolerances_of
from skuq.gpc._region_search import RegionSearchMixin
from skuq.gpc._regression_certificates import (
    MomentBounds,
    RegressionBounds,
    moment_bounds,
    rescaled,
    stability,
)
from skuq.gpc.bounds._moment_model import MomentModel

# The search stops once the lower and upper bound on a margin differ by at most this share of
# `tolerance`.
_MARGIN = 1e-3


class RegressionQueriesMixin(RegionSearchMixin):
    """Bounds and certificates for regressors with a Gaussian posterior."""

    posterior_: Any
    _shift: float  # subtracted from targets in `fit`
    _scale: float  # divisor of targets in `fit`
    _white: float  # noise variance of WhiteKernels, in normalised units
    _close: float  # default `tol`, in the unit of the target

    def predict_bounds(
        self,
        X: Any,
        radius: Any = None,
        *,
        region: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        tol: float | None = None,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
    ) -> RegressionBounds:
        """Bound mean and standard deviation of predictions in a region around each point.

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
        tol : float, default=None
            Target gap between lower and upper bound of each extreme, in the unit of the target.
            The default is 1 % of the standard deviation of the training targets.
        max_time : float, default=None
            Time limit in seconds. When it is reached, valid but wider bounds are returned.
        max_regions : int, default=10000
            Limit on the number of boxes per extreme; None means no limit. When it is reached, valid
            but wider bounds are returned. If the noise is very small, rounding errors limit how
            close the bounds on the standard deviation can become.

        Returns
        -------
        RegressionBounds
            Bounds on the mean and on the standard deviation. As in `predict`, the standard
            deviation includes the noise of WhiteKernels.

        Raises
        ------
        ValueError
            If the region is not well defined, or a point lies outside its region or the domain.
        """
        regions = self._around(self._points(X), radius, region, norm, features, domain)
        limits = read_limits(self._close if tol is None else tol, max_time, max_regions)
        share = limits._replace(tol=limits.tol / self._scale)
        *parts, n_regions, converged = self._in_batches(moment_bounds, share, regions)
        mean = rescaled(MomentBounds(*parts[:6]), self._scale, self._shift)
        std = rescaled(MomentBounds(*parts[6:]), self._scale, 0.0)
        return RegressionBounds(mean, std, n_regions, converged)

    def certify(
        self,
        X: Any,
        radius: Any = None,
        *,
        tolerance: Any,
        region: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
    ) -> Certificate:
        """Decide whether the mean changes by more than a tolerance in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time, max_regions
            As for `predict_bounds`.
        tolerance : float or array-like of shape (n_samples,)
            Largest allowed absolute difference from the mean at the point, in the unit of the
            target; above 0.

        Returns
        -------
        Certificate
            Status "safe", "unsafe" (with a counterexample) or "undecided" for each point. The
            margin is the tolerance minus the largest change, in the unit of the target. A point is
            "undecided" if the bounds on its margin differ in sign and are at most a thousandth of
            the tolerance apart, or if a limit of the search is reached.

        Raises
        ------
        ValueError
            As for `predict_bounds`, or if a tolerance is not above 0.
        """
        points = self._points(X)
        regions = self._around(points, radius, region, norm, features, domain)
        tolerances = tolerances_of(tolerance, len(points))
        limits = read_limits(_MARGIN, max_time, max_regions)
        found = Certificate(*self._in_batches(stability, limits, regions, tolerances / self._scale))
        return found._replace(
            margin_lower=found.margin_lower * tolerances,
            margin_upper=found.margin_upper * tolerances,
        )

    def certified_radius(
        self,
        X: Any,
        *,
        tolerance: Any,
        max_radius: float | None = None,
        precision: float = 0.01,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
    ) -> SafeRadius:
        """Find by bisection a radius within which the mean provably stays within a tolerance.

        Parameters
        ----------
        X, norm, features, domain, max_time
            As for `predict_bounds`.
        tolerance : float or array-like of shape (n_samples,)
            As for `certify`.
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
        points = self._points(X)
        return self._bisect(
            points,
            stability,
            tolerances_of(tolerance, len(points)) / self._scale,
            read_limits(_MARGIN, max_time, max_regions),
            max_radius=max_radius,
            precision=precision,
            norm=norm,
            features=features,
            domain=domain,
        )

    def _new_region_model(self, device: str) -> MomentModel:
        return MomentModel(self.posterior_, self._white, device)
