"""Proven range of a class probability around a point, for growing regions."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray
from skuq.plotting._drawing import (
    COLOURS,
    axes_or_new,
    legend_above,
    plain_text,
    require_method,
)
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"linf": "maximum norm", "l2": "Euclidean norm", "l1": "sum of changes"}
_BAND: dict[str, Any] = {"label": "proven range", "step": "pre", "color": "#b1ddf4", "lw": 0}
_HATCH: dict[str, Any] = {"hatch": "//", "facecolor": "none", "edgecolor": "0.6", "linewidth": 0}
_BOUNDS = ("min_lower", "min_upper", "max_lower", "max_upper")
_STATUS = ("safe", "unsafe", "undecided")
_STRIP = 0.04  # share of the range of radii
_ROUNDING = 1e-6  # of bounds, by which they may miss each other or [0, 1]


class CertifiedRangeDisplay:
    """Proven limits of a class probability, against the radius of the region.

    The filled band is proven: no point of the region has a probability outside of it. The two
    lines are probabilities attained at points of the region. Regions of growing radius contain
    each other, so a proof for one holds for all smaller ones, and a point found in one lies in
    all larger ones; between the radii given, band and lines are therefore steps. Radii at which
    a point of another class was found are hatched; if only the last is one, so is a strip
    beyond it. The radii in the legend are rounded to what is proven.

    Parameters
    ----------
    radii : array-like of shape (n_radii,)
        Radii, not negative and increasing.
    min_lower, min_upper : array-like of shape (n_radii,)
        Bounds of the smallest probability in each region.
    max_lower, max_upper : array-like of shape (n_radii,)
        Bounds of the largest one.
    status : array-like of shape (n_radii,), optional
        "safe", "unsafe" or "undecided". Default: by comparison with 1/2, which is right for
        the predicted one of two classes.
    attack : array-like of shape (n_radii,), optional
        Probabilities at the points that an attack ended at.
    class_name : str, optional
        Name of the class.
    attack_name : str, default="attack"
        Name of the attack.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm of the radii.

    Attributes
    ----------
    radii, status, attack, class_name, attack_name, norm
        As given.
    min_lower, min_upper, max_lower, max_upper : ndarray of shape (n_radii,)
        Bounds, each made as tight as those at the other radii allow.
    safe_radius : float
        Largest of the radii that is safe; 0 if none is.
    unsafe_radius : float
        Smallest of the radii with a counterexample; infinite if none has.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn last.

    Examples
    --------
    >>> from skuq.plotting import CertifiedRangeDisplay
    >>> display = CertifiedRangeDisplay.from_predictions(
    ...     [0.1, 0.2, 0.3], [0.8, 0.6, 0.3], [0.8, 0.61, 0.32], [0.9, 0.9, 0.9], [0.9, 0.9, 0.91]
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
        status: ArrayLike | None = None,
        attack: ArrayLike | None = None,
        class_name: str | None = None,
        attack_name: str = "attack",
        norm: str = "linf",
    ) -> None:
        self.radii = _increasing(radii)
        ends = (min_lower, min_upper, max_lower, max_upper)
        values = [self._checked(end, name) for end, name in zip(ends, _BOUNDS, strict=True)]
        for k, above in ((0, 1), (2, 3)):
            self._check_order(values[k], values[above], _BOUNDS[k], _BOUNDS[above])
        self.min_lower = np.maximum.accumulate(values[0][::-1])[::-1]
        self.min_upper = np.minimum.accumulate(values[1])
        self.max_lower = np.maximum.accumulate(values[2])
        self.max_upper = np.minimum.accumulate(values[3][::-1])[::-1]
        if status is None:
            safe, unsafe = self.min_lower > 0.5, self.min_upper < 0.5
            status = np.where(safe, "safe", np.where(unsafe, "unsafe", "undecided"))
        self.status: NDArray[np.str_] = np.asarray(status)
        shape = self.status.shape
        if shape != self.radii.shape:
            raise ValueError(f"`status` must have shape {self.radii.shape}, got {shape}.")
        unknown = self.status[~np.isin(self.status, _STATUS)]
        if len(unknown) > 0:
            raise ValueError(f"`status` must hold only {_STATUS}, got {str(unknown[0])!r}.")
        self.attack = None if attack is None else self._checked(attack, "attack")
        self.class_name = class_name
        self.attack_name = attack_name
        self.norm = norm

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        radii: ArrayLike,
        *,
        class_: Any = None,
        norm: str = "linf",
        features: Any = None,
        domain: Any = None,
        attack: str | None = None,
        tol: float = 0.01,
        max_time: float | None = None,
        max_regions: int | None = None,
        ax: Axes | None = None,
    ) -> CertifiedRangeDisplay:
        """Bound a class probability in balls around one point and draw the bounds.

        Parameters
        ----------
        estimator : RobustGPC
            Fitted classifier.
        X : array-like or DataFrame of shape (1, n_features)
            The point.
        radii : array-like of shape (n_radii,)
            Radii of the balls, increasing.
        class_ : label, optional
            Class whose probability is meant. Default: the class predicted for the point.
        norm, features, domain, tol, max_time, max_regions
            As for `RobustGPC.predict_proba_bounds`.
        attack : {"pgd", "fgsm"}, optional
            Draw what this attack achieves, too.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        CertifiedRangeDisplay

        Raises
        ------
        TypeError
            If the estimator has no proven ranges.
        ValueError
            If there is more than one point, or the radii do not increase.
        """
        require_method(estimator, "predict_proba_bounds")
        radii = _increasing(radii)
        points = _repeated(X, len(radii))
        if class_ is None:
            class_ = estimator.predict(points[:1])[0]
        labels = np.full(len(radii), class_)
        limits = {"max_time": max_time, "max_regions": max_regions}
        region = {"radius": radii, "norm": norm, "features": features, "domain": domain}
        bounds = estimator.predict_proba_bounds(points, class_=class_, tol=tol, **region, **limits)
        reached = None
        if attack is not None:
            reached = estimator.attack(points, labels, method=attack, **region).proba
        return cls.from_predictions(
            radii,
            *(getattr(bounds, name)[:, 0] for name in _BOUNDS),
            status=estimator.certify(points, labels, **region, **limits).status,
            attack=reached,
            class_name=str(class_),
            attack_name="attack" if attack is None else f"attack ({attack})",
            norm=norm,
            ax=ax,
        )

    @classmethod
    def from_predictions(
        cls, radii: ArrayLike, *bounds: ArrayLike, ax: Axes | None = None, **settings: Any
    ) -> CertifiedRangeDisplay:
        """Draw given bounds; parameters are those of the class, and `ax`."""
        return cls(radii, *bounds, **settings).plot(ax)

    @property
    def safe_radius(self) -> float:
        """Largest of the radii that is safe; 0 if none is."""
        return float(self.radii[self.status == "safe"].max(initial=0.0))

    @property
    def unsafe_radius(self) -> float:
        """Smallest of the radii with a counterexample; infinite if none has."""
        return float(self.radii[self.status == "unsafe"].min(initial=np.inf))

    def plot(self, ax: Axes | None = None) -> CertifiedRangeDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax)
        self.figure_ = self.ax_.figure
        self.ax_.fill_between(self.radii, self.min_lower, self.max_upper, **_BAND)
        line: dict[str, Any]
        for values, label in ((self.min_upper, "found in it"), (self.max_lower, None)):
            line = {"color": COLOURS[0], "linewidth": 1.8, "label": label}
            self.ax_.step(self.radii, values, where="post", **line)
        if self.attack is not None:
            line = {"color": COLOURS[1], "label": plain_text(self.attack_name)}
            self.ax_.step(self.radii, self.attack, "--", where="post", linewidth=1.8, **line)
        end = self.radii[-1]
        if self.unsafe_radius < np.inf:
            if self.unsafe_radius == end:  # larger regions hold the same counterexample
                end += _STRIP * (end - self.radii[0])
            label = f"another class from {_rounded(self.unsafe_radius, ROUND_CEILING)}"
            self.ax_.axvspan(self.unsafe_radius, end, zorder=1.5, label=label, **_HATCH)
        if self.safe_radius > 0:
            label = f"safe up to {_rounded(self.safe_radius, ROUND_FLOOR)}"
            self.ax_.axvline(self.safe_radius, color=COLOURS[2], linewidth=1.8, label=label)
        self.ax_.axhline(0.5, color="0.3", linestyle=":", linewidth=1)
        of = "" if self.class_name is None else f" of class {plain_text(self.class_name)}"
        self.ax_.set(xlim=(self.radii[0], end), ylim=(0, 1), ylabel=f"probability{of}")
        self.ax_.set_xlabel(f"radius ({_NAMES.get(self.norm, self.norm)})")
        legend_above(self.ax_, columns=3)
        return self

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = finite(values, name)
        if checked.shape != self.radii.shape:
            raise ValueError(
                f"`{name}` must have one value per radius, shape {self.radii.shape}, got "
                f"{checked.shape}."
            )
        if checked.min() < -_ROUNDING or checked.max() > 1 + _ROUNDING:
            raise ValueError(f"`{name}` must hold probabilities in [0, 1].")
        return checked

    def _check_order(self, low: FloatArray, high: FloatArray, below: str, above: str) -> None:
        wrong = low > high + _ROUNDING
        if wrong.any():
            raise ValueError(
                f"`{below}` must not exceed `{above}`, got {low[wrong][0]:.6g} and "
                f"{high[wrong][0]:.6g} at radius {self.radii[wrong][0]:.6g}."
            )


def _rounded(radius: float, rounding: str) -> str:
    """Three digits of a radius, towards where what is said of it stays true."""
    digits = Context(prec=3, rounding=rounding).create_decimal(f"{radius:.12g}")
    return f"{float(digits):.3g}"


def _increasing(radii: ArrayLike) -> FloatArray:
    checked = finite(radii, "radii")
    if len(checked) < 2 or checked[0] < 0 or (np.diff(checked) <= 0).any():
        raise ValueError("`radii` must be at least two increasing numbers, none negative.")
    return checked


def _repeated(X: Any, count: int) -> Any:
    shape = np.shape(X)
    if len(shape) != 2 or shape[0] != 1:
        raise ValueError(
            f"`X` must hold one point, shape (1, n_features), got {shape}; X[i : i + 1] is one."
        )
    rows = [0] * count
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
