"""Display of the certified range of the mean that a regressor predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.plotting._display import (
    check_drawable,
    legend_above,
    plain_text,
    short_number,
    with_unit,
)
from skuq.plotting._range_display import (
    BOUNDS,
    LIMIT,
    ROUNDING,
    RangeDisplay,
    increasing,
    repeated,
    require_certificates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class CertifiedMeanDisplay(RangeDisplay):
    """Proven limits of the mean that a regressor predicts, against the radius of the region.

    The filled band is proven: no point of the region has a mean outside it. The two lines are means
    attained at points of the region. As in `CertifiedRangeDisplay`, regions of increasing radius
    are nested, so band and lines are step functions of the radius. With a tolerance, dotted lines
    show the prediction plus and minus the tolerance. The hatched radii are those at which a point
    with a mean beyond these lines was found. Radii in the legend are rounded such that the
    statements remain proven.

    Parameters
    ----------
    radii : array-like of shape (n_radii,)
        Increasing radii, not negative.
    min_lower, min_upper : array-like of shape (n_radii,)
        Bounds of the smallest mean in each region, in the unit of the target.
    max_lower, max_upper : array-like of shape (n_radii,)
        Bounds of the largest mean in each region.
    prediction : float, optional
        Mean at the center of the regions; required with `tolerance`.
    tolerance : float, optional
        Largest allowed absolute difference from `prediction`, above 0.
    status : array-like of shape (n_radii,), optional
        "safe", "unsafe" or "undecided". By default, the status follows from a comparison of the
        bounds with the tolerance. A status can be given only together with `tolerance`.
    target_name : str, optional
        Name of the target.
    unit : str, optional
        Unit of the target.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm in which the radii are measured.

    Attributes
    ----------
    radii, status, prediction, tolerance, target_name, unit, norm
        As given; without `tolerance`, every status is "undecided".
    min_lower, min_upper, max_lower, max_upper : ndarray of shape (n_radii,)
        Bounds, tightened by the bounds at the other radii.
    safe_radius : float
        Largest safe radius; 0 if there is none.
    unsafe_radius : float
        Smallest radius with a counterexample; infinite if there is none.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.

    Examples
    --------
    >>> from skuq.plotting import CertifiedMeanDisplay
    >>> display = CertifiedMeanDisplay.from_predictions(
    ...     [0.1, 0.2], [9.6, 8.9], [9.7, 9.2], [10.2, 10.4], [10.3, 10.6], prediction=10,
    ...     tolerance=0.5, target_name="price", unit="EUR",
    ... )
    >>> display.safe_radius, display.unsafe_radius
    (0.1, 0.2)
    """

    def __init__(
        self,
        radii: ArrayLike,
        min_lower: ArrayLike,
        min_upper: ArrayLike,
        max_lower: ArrayLike,
        max_upper: ArrayLike,
        *,
        prediction: float | None = None,
        tolerance: float | None = None,
        status: ArrayLike | None = None,
        target_name: str | None = None,
        unit: str | None = None,
        norm: str = "linf",
    ) -> None:
        self._keep(radii, (min_lower, min_upper, max_lower, max_upper), norm)
        if tolerance is None and not (prediction is None and status is None):
            raise ValueError("`prediction` and `status` require `tolerance`.")
        nothing = np.zeros(len(self.radii), dtype=bool)
        safe, unsafe = nothing, nothing
        if tolerance is not None:
            if prediction is None:
                raise ValueError("`tolerance` requires `prediction`, the mean it refers to.")
            if not (np.isfinite(prediction) and np.isfinite(tolerance) and tolerance > 0):
                raise ValueError(
                    "`prediction` must be finite and `tolerance` finite and above 0, got "
                    f"{prediction} and {tolerance}."
                )
            low, high = prediction - tolerance, prediction + tolerance
            safe = (self.min_lower > low) & (self.max_upper < high)
            unsafe = (self.min_upper < low) | (self.max_lower > high)
        self._keep_status(status, safe, unsafe)
        self.prediction, self.tolerance = prediction, tolerance
        self.target_name, self.unit = target_name, unit

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        radii: ArrayLike,
        *,
        tolerance: float | None = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        tol: float | None = None,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
        target_name: str | None = None,
        unit: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Bound the mean in balls around one point and draw the bounds.

        Parameters
        ----------
        estimator : RobustGPRegressor
            Fitted regressor.
        X : array-like or DataFrame of shape (1, n_features)
            The point.
        radii : array-like of shape (n_radii,)
            Radii of the balls, increasing.
        tolerance : float, optional
            As in `RobustGPRegressor.certify`. Without it, no radius is called safe or unsafe.
        norm, features, domain, tol, max_time, max_regions
            As in `RobustGPRegressor.predict_bounds`.
        target_name, unit
            As in the class.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        CertifiedMeanDisplay

        Raises
        ------
        TypeError
            If the estimator cannot bound means.
        ValueError
            If there is more than one point, or the radii do not increase.
        """
        require_certificates(estimator, "predict_bounds", "RobustGPRegressor")
        radii = increasing(radii)
        points = repeated(X, len(radii))
        limits = {"max_time": max_time, "max_regions": max_regions}
        region = {"radius": radii, "norm": norm, "features": features, "domain": domain}
        bounds = estimator.predict_bounds(points, tol=tol, **region, **limits).mean
        decided: dict[str, Any] = {}
        if tolerance is not None:
            found = estimator.certify(points, tolerance=tolerance, **region, **limits)
            decided = {"status": found.status, "tolerance": tolerance}
            decided["prediction"] = float(estimator.predict(points[:1])[0])
        return cls.from_predictions(
            radii,
            *(getattr(bounds, name) for name in BOUNDS),
            target_name=target_name,
            unit=unit,
            norm=norm,
            ax=ax,
            **decided,
        )

    def _draw(self) -> None:
        change = "" if self.tolerance is None else f"±{short_number(self.tolerance)}"
        self._draw_ranges(f"within {change}", f"beyond {change}", None)
        if self.prediction is not None and self.tolerance is not None:
            for end in (self.prediction - self.tolerance, self.prediction + self.tolerance):
                self.ax_.axhline(end, **LIMIT)
        of = "" if self.target_name is None else f" of {plain_text(self.target_name)}"
        self.ax_.set_ylabel(with_unit(f"mean{of}", self.unit))
        legend_above(self.ax_, columns=3)

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = super()._checked(values, name)
        check_drawable(**{name: checked})
        return checked

    def _slack(self, low: FloatArray, high: FloatArray) -> Any:
        return ROUNDING * np.maximum(np.abs(low), np.abs(high))
