"""Methods of `RobustGPRegressor` that answer questions about whole regions."""

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

_MARGIN = 1e-3  # of a tolerance: closer bounds of different sign leave a certificate undecided


class RegressionQueriesMixin(RegionSearchMixin):
    """Bounds and certificates of a regression with a Gaussian posterior."""

    posterior_: Any
    _shift: float  # of the target, and its unit
    _scale: float
    _white: float  # variance of the noise that predictions have, in normalised units
    _close: float  # how close bounds are if nothing else is said, in the unit of the target

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
        """Enclose the smallest and the largest mean and deviation in a region around each point.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.
        radius : float or array-like of shape (n_samples,), default=None
            Radius of the ball around each point, in the units of the features.
        region : tuple (lower, upper), default=None
            Boxes instead of balls; each a number or an array that broadcasts to `X`.
        norm : {"linf", "l2", "l1"}, default="linf"
            Norm of the ball.
        features : array-like of int or str, default=None
            Indices or names of the features that vary; the others keep their values. None is
            all.
        domain : tuple (lower, upper), default=None
            Limits of meaningful inputs, to which regions are clipped; each a number or an array
            that broadcasts to `X`. None, also within a sequence, is an open end.
        tol : float, default=None
            How close upper and lower bound of each extreme are to be, in the unit of the target.
            None is a hundredth of the standard deviation of the training targets.
        max_time : float, default=None
            Seconds after which valid but wider bounds are returned.
        max_regions : int, default=10000
            The same, as the number of boxes to be bounded for each extreme; None sets no limit.
            Where there is next to no noise, rounding limits how close bounds of the standard
            deviation come.

        Returns
        -------
        RegressionBounds
            Ranges of the mean and of the standard deviation, which like that of `predict` includes
            the noise of WhiteKernels.

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
        """Decide whether the mean moves by more than a tolerance in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time, max_regions
            As for `predict_bounds`.
        tolerance : float or array-like of shape (n_samples,)
            By how much the mean may differ from that at the point, up or down, in the unit of the
            target; above 0.

        Returns
        -------
        Certificate
            Status "safe", "unsafe" (with a counterexample) or "undecided" for each point; margins
            are what is left of the tolerance, in the unit of the target. A margin whose bounds are
            closer than a thousandth of the tolerance but of different sign is left undecided.

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
        """Find by bisection how far around each point the mean provably keeps to a tolerance.

        Parameters
        ----------
        X, norm, features, domain, max_time
            As for `predict_bounds`.
        tolerance : float or array-like of shape (n_samples,)
            As for `certify`.
        max_radius : float, default=None
            Largest radius to try, in the units of the features. None is the length, in this norm,
            of the standard deviations that the features that vary had in `fit`: the largest of
            them for "linf", the root of the sum of their squares for "l2", their sum for "l1".
        precision : float, default=0.01
            How closely the radius is bisected, as a share of `max_radius`.
        max_regions : int, default=10000
            Boxes to bound for each point and radius; a radius that needs more counts as not
            proven.

        Returns
        -------
        SafeRadius
            What is proven, and the nearest counterexample with its distance.
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
