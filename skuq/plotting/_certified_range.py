"""Display of the certified range of a class probability or a predicted mean."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.plotting import _display
from skuq.plotting._display import COLOURS, LONGEST_LABEL, Display, legend_above, plain_text
from skuq.validation import check_same_length, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BOUNDS = ("min_lower", "min_upper", "max_lower", "max_upper")
_STATUS = ("safe", "unsafe", "undecided")
_ROUNDING = 1e-6  # error tolerated in the order of bounds, relative to the largest bound
_NAMES = {"linf": "maximum norm", "l2": "Euclidean norm", "l1": "sum of changes"}
_STRIP = 0.04  # width of the strip beyond the largest radius, divided by the range of the radii
_LIMIT: dict[str, Any] = {"color": "0.3", "linestyle": ":", "linewidth": 1}
_BAND: dict[str, Any] = {"label": "proven range", "step": "pre", "color": "#b1ddf4", "lw": 0}
_HATCH: dict[str, Any] = {"hatch": "//", "facecolor": "none", "edgecolor": "0.6", "linewidth": 0}


class CertifiedRangeDisplay(Display):
    """Proven limits of a class probability or a predicted mean, against the radius of the region.

    The filled band is proven: no point of the region has a value outside it. The two lines are
    values attained at points of the region. Regions of increasing radius are nested, so band and
    lines are step functions of the radius. Dotted lines limit the allowed values. Radii with a
    counterexample are hatched. Radii in the legend are rounded such that the statements remain
    proven.

    Parameters
    ----------
    radii : array-like of shape (n_radii,)
        Increasing radii, not negative.
    min_lower, min_upper, max_lower, max_upper : array-like of shape (n_radii,)
        Bounds of the smallest and of the largest value in each region.
    allowed : tuple of float (low, high), optional
        Values that count as safe, such as (0.5, inf) for the probability of the predicted one of
        two classes.
    status : array-like of shape (n_radii,), optional
        "safe", "unsafe" or "undecided". By default, the status follows from a comparison of the
        bounds with `allowed`; without `allowed`, every status is "undecided".
    attack : array-like of shape (n_radii,), optional
        Values at the points found by an attack.
    name : str, default="prediction"
        Name of the value, with its unit.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm in which the radii are measured.

    Attributes
    ----------
    min_lower, min_upper, max_lower, max_upper : ndarray of shape (n_radii,)
        Bounds, tightened by the bounds at the other radii.

    Examples
    --------
    >>> from skuq.plotting import CertifiedRangeDisplay
    >>> display = CertifiedRangeDisplay.from_predictions(
    ...     [0.1, 0.2, 0.3], [0.8, 0.6, 0.3], [0.8, 0.61, 0.32], [0.9, 0.9, 0.9], [0.9, 0.9, 0.91],
    ...     allowed=(0.5, float("inf")), name="probability",
    ... )
    >>> display.safe_radius, display.unsafe_radius
    (0.2, 0.3)
    """

    def __init__(
        self,
        radii: ArrayLike,
        min_lower: ArrayLike,
        min_upper: ArrayLike,
        max_lower: ArrayLike,
        max_upper: ArrayLike,
        *,
        allowed: tuple[float, float] | None = None,
        status: ArrayLike | None = None,
        attack: ArrayLike | None = None,
        name: str = "prediction",
        norm: str = "linf",
    ) -> None:
        self.radii = _increasing(radii)
        given = (min_lower, min_upper, max_lower, max_upper)
        values = [self._checked(end, label) for end, label in zip(given, _BOUNDS, strict=True)]
        slack = _ROUNDING * max(np.abs(end).max() for end in values)
        for k in (0, 2):
            if (values[k] > values[k + 1] + slack).any():
                raise ValueError(f"`{_BOUNDS[k]}` must not exceed `{_BOUNDS[k + 1]}`.")
        self.min_lower = np.maximum.accumulate(values[0][::-1])[::-1]
        self.min_upper = np.minimum.accumulate(values[1])
        self.max_lower = np.maximum.accumulate(values[2])
        self.max_upper = np.minimum.accumulate(values[3][::-1])[::-1]
        if status is None:
            low, high = (-np.inf, np.inf) if allowed is None else allowed
            proven = (self.min_lower > low) & (self.max_upper < high) & (allowed is not None)
            refuted = (self.min_upper < low) | (self.max_lower > high)
            status = np.where(proven, "safe", np.where(refuted, "unsafe", "undecided"))
        self.status = np.asarray(status)
        if self.status.shape != self.radii.shape or not np.isin(self.status, _STATUS).all():
            raise ValueError(f"`status` must contain one of {_STATUS} per radius, got {status}.")
        self.attack = None if attack is None else self._checked(attack, "attack")
        self.allowed, self.name, self.norm = allowed, name, norm

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        radii: ArrayLike,
        *,
        class_: Any = None,
        tolerance: float | None = None,
        attack: str | None = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        tol: float | None = None,
        name: str | None = None,
        ax: Axes | None = None,
        **limits: Any,
    ) -> Self:
        """Bound a class probability, or the mean, in balls around one point and draw the bounds.

        Parameters
        ----------
        estimator : RobustGPC or RobustGPRegressor
            Fitted estimator.
        X : array-like or DataFrame of shape (1, n_features)
            The point.
        radii : array-like of shape (n_radii,)
            Radii of the balls, increasing.
        class_ : label, optional
            Class whose probability is bounded. Default: the class predicted for the point.
        tolerance : float, optional
            For a regressor: largest allowed change of the mean, as in `RobustGPRegressor.certify`.
        attack : {"pgd", "fgsm"}, optional
            For a classifier: attack whose result is drawn in addition.
        name, ax : optional
            Label of the vertical axis (default: "probability of class" with the class, or "mean"),
            and axes.
        norm, features, domain, tol, **limits
            As in `RobustGPC.predict_proba_bounds` and `RobustGPRegressor.predict_bounds`.
        """
        radii = _increasing(radii)
        points = _repeated(X, len(radii))
        region = {"radius": radii, "norm": norm, "features": features, "domain": domain}
        searched = {**limits} if tol is None else {**limits, "tol": tol}
        settings: dict[str, Any] = {"norm": norm, "ax": ax}
        # Require `certify`, too: other estimators may have methods of these names.
        methods = [m for m in ("predict_proba_bounds", "predict_bounds") if hasattr(estimator, m)]
        if not methods or not hasattr(estimator, "certify"):
            raise TypeError(
                "`estimator` must be a RobustGPC or a RobustGPRegressor, got "
                f"{type(estimator).__name__}. For a pipeline, pass the last step and transformed "
                "points."
            )
        classifies = methods[0] == "predict_proba_bounds"
        others = {"tolerance": tolerance} if classifies else {"class_": class_, "attack": attack}
        if any(given is not None for given in others.values()):
            raise ValueError(
                f"Omit {' and '.join(others)}: no effect for {type(estimator).__name__}."
            )
        if not classifies:
            bounds = estimator.predict_bounds(points, **region, **searched).mean
            ends = [getattr(bounds, end) for end in _BOUNDS]
            if tolerance is not None:
                found = estimator.certify(points, tolerance=tolerance, **region, **limits)
                center = float(estimator.predict(points[:1])[0])
                settings["status"] = found.status
                settings["allowed"] = (center - tolerance, center + tolerance)
            return cls.from_predictions(radii, *ends, name=name or "mean", **settings)
        class_ = estimator.predict(points[:1])[0] if class_ is None else class_
        labels = np.full(len(radii), class_)
        bounds = estimator.predict_proba_bounds(points, class_=class_, **region, **searched)
        ends = [getattr(bounds, end)[:, 0] for end in _BOUNDS]
        settings["status"] = estimator.certify(points, y=labels, **region, **limits).status
        if attack is not None:
            settings["attack"] = estimator.attack(points, y=labels, method=attack, **region).proba
        name = name or f"probability of class {class_}"
        if len(estimator.classes_) == 2:  # with more, the largest probability may be below 0.5
            settings["allowed"] = (0.5, np.inf)
        return cls.from_predictions(radii, *ends, name=name, **settings)

    @property
    def safe_radius(self) -> float:
        """Largest safe radius; 0 if there is none."""
        return float(self.radii[self.status == "safe"].max(initial=0.0))

    @property
    def unsafe_radius(self) -> float:
        """Smallest radius with a counterexample; infinite if there is none."""
        return float(self.radii[self.status == "unsafe"].min(initial=np.inf))

    def description(self) -> str:
        last = f"{self.min_lower[-1]:.3g} to {self.max_upper[-1]:.3g} at {self.radii[-1]:.3g}"
        status = f"safe up to {self.safe_radius:.3g}, unsafe from {self.unsafe_radius:.3g}"
        return f"Proven range of {self.name} by radius: {last}; {status}."

    def _draw(self) -> None:
        self.ax_.fill_between(self.radii, self.min_lower, self.max_upper, **_BAND)
        line: dict[str, Any] = {"where": "post", "linewidth": 1.8}
        for values, label in ((self.min_upper, "attained there"), (self.max_lower, None)):
            self.ax_.step(self.radii, values, color=COLOURS[0], label=label, **line)
        if self.attack is not None:
            self.ax_.step(self.radii, self.attack, "--", color=COLOURS[1], label="attack", **line)
        end = self.radii[-1]
        if self.unsafe_radius < np.inf:
            if self.unsafe_radius == end:  # hatch a strip beyond it: larger regions are unsafe
                end += _STRIP * (end - self.radii[0])
            label = f"counterexample from {_rounded(self.unsafe_radius, ROUND_CEILING)}"
            self.ax_.axvspan(self.unsafe_radius, end, zorder=1.5, label=label, **_HATCH)
        if self.safe_radius > 0:
            label = f"safe up to {_rounded(self.safe_radius, ROUND_FLOOR)}"
            self.ax_.axvline(self.safe_radius, color=COLOURS[2], linewidth=1.8, label=label)
        for limit in self.allowed or ():
            if np.isfinite(limit):
                self.ax_.axhline(limit, **_LIMIT)
        self.ax_.set(xlim=(self.radii[0], end), ylabel=plain_text(self.name, LONGEST_LABEL))
        self.ax_.set_xlabel(f"radius ({_NAMES.get(self.norm, self.norm)})")
        legend_above(self.ax_, columns=3)

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = finite(values, name)
        check_same_length(radii=self.radii, **{name: checked})
        _display.check_drawable(**{name: checked})
        return checked


def _rounded(radius: float, rounding: str) -> str:
    """Round a radius to three digits, in the direction that keeps the statement true."""
    digits = Context(prec=3, rounding=rounding).create_decimal(f"{radius:.12g}")
    return f"{float(digits):.3g}"


def _increasing(radii: ArrayLike) -> FloatArray:
    checked = finite(radii, "radii")
    if len(checked) < 2 or checked[0] < 0 or (np.diff(checked) <= 0).any():
        raise ValueError("`radii` must be at least two increasing numbers, none negative.")
    return checked


def _repeated(X: Any, count: int) -> Any:
    shape, rows = np.shape(X), [0] * count
    if len(shape) != 2 or shape[0] != 1:
        raise ValueError(
            f"`X` must contain one point, shape (1, n_features), got {shape}; pass X[i : i + 1]."
        )
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
