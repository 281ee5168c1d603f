"""Base class of the Displays of certified ranges, and functions that these Displays share."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray
from skuq.plotting._display import COLOURS, Display, plain_text
from skuq.validation import finite

BOUNDS = ("min_lower", "min_upper", "max_lower", "max_upper")
LIMIT: dict[str, Any] = {"color": "0.3", "linestyle": ":", "linewidth": 1}
ROUNDING = 1e-6  # rounding error tolerated in the order of bounds
_NAMES = {"linf": "maximum norm", "l2": "Euclidean norm", "l1": "sum of changes"}
_BAND: dict[str, Any] = {"label": "proven range", "step": "pre", "color": "#b1ddf4", "lw": 0}
_HATCH: dict[str, Any] = {"hatch": "//", "facecolor": "none", "edgecolor": "0.6", "linewidth": 0}
_STATUS = ("safe", "unsafe", "undecided")
# Width of the strip beyond the largest radius, divided by the range of the radii.
_STRIP = 0.04


class RangeDisplay(Display):
    """Proven limits of a prediction, against the radius of the region."""

    radii: FloatArray
    min_lower: FloatArray
    min_upper: FloatArray
    max_lower: FloatArray
    max_upper: FloatArray
    status: NDArray[np.str_]
    norm: str

    def _keep(self, radii: ArrayLike, bounds: tuple[ArrayLike, ...], norm: str) -> None:
        """Check radii and bounds, and tighten the bounds by the bounds at other radii."""
        self.radii = increasing(radii)
        values = [self._checked(end, name) for end, name in zip(bounds, BOUNDS, strict=True)]
        for k, above in ((0, 1), (2, 3)):
            self._check_order(values[k], values[above], BOUNDS[k], BOUNDS[above])
        self.min_lower = np.maximum.accumulate(values[0][::-1])[::-1]
        self.min_upper = np.minimum.accumulate(values[1])
        self.max_lower = np.maximum.accumulate(values[2])
        self.max_upper = np.minimum.accumulate(values[3][::-1])[::-1]
        self.norm = norm

    def _keep_status(self, given: ArrayLike | None, safe: Any, unsafe: Any) -> None:
        """Keep the given status, or derive it from the radii that are proven safe or unsafe."""
        if given is None:
            given = np.where(safe, "safe", np.where(unsafe, "unsafe", "undecided"))
        self.status = np.asarray(given)
        shape = self.status.shape
        if shape != self.radii.shape:
            raise ValueError(f"`status` must have shape {self.radii.shape}, got {shape}.")
        unknown = self.status[~np.isin(self.status, _STATUS)]
        if len(unknown) > 0:
            raise ValueError(f"`status` must only contain {_STATUS}, got {str(unknown[0])!r}.")

    @property
    def safe_radius(self) -> float:
        """Largest safe radius; 0 if there is none."""
        return float(self.radii[self.status == "safe"].max(initial=0.0))

    @property
    def unsafe_radius(self) -> float:
        """Smallest radius with a counterexample; infinite if there is none."""
        return float(self.radii[self.status == "unsafe"].min(initial=np.inf))

    def _draw_ranges(self, safe: str, unsafe: str, attack: tuple[FloatArray, str] | None) -> None:
        """Draw the bounds and the radii of each status, with labels for both."""
        self.ax_.fill_between(self.radii, self.min_lower, self.max_upper, **_BAND)
        line: dict[str, Any]
        for values, label in ((self.min_upper, "found in it"), (self.max_lower, None)):
            line = {"color": COLOURS[0], "linewidth": 1.8, "label": label}
            self.ax_.step(self.radii, values, where="post", **line)
        if attack is not None:
            line = {"color": COLOURS[1], "label": plain_text(attack[1])}
            self.ax_.step(self.radii, attack[0], "--", where="post", linewidth=1.8, **line)
        end = self.radii[-1]
        if self.unsafe_radius < np.inf:
            if self.unsafe_radius == end:
                # Larger regions are unsafe, too: they contain the same counterexample.
                end += _STRIP * (end - self.radii[0])
            label = f"{unsafe} from {_rounded(self.unsafe_radius, ROUND_CEILING)}"
            self.ax_.axvspan(self.unsafe_radius, end, zorder=1.5, label=label, **_HATCH)
        if self.safe_radius > 0:
            label = f"{safe} up to {_rounded(self.safe_radius, ROUND_FLOOR)}"
            self.ax_.axvline(self.safe_radius, color=COLOURS[2], linewidth=1.8, label=label)
        self.ax_.set_xlim(self.radii[0], end)
        self.ax_.set_xlabel(f"radius ({_NAMES.get(self.norm, self.norm)})")

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = finite(values, name)
        if checked.shape != self.radii.shape:
            raise ValueError(
                f"`{name}` must have one value per radius, shape {self.radii.shape}, got "
                f"{checked.shape}."
            )
        return checked

    def _check_order(self, low: FloatArray, high: FloatArray, below: str, above: str) -> None:
        wrong = low > high + self._slack(low, high)
        if wrong.any():
            raise ValueError(
                f"`{below}` must not exceed `{above}`, got {low[wrong][0]:.6g} and "
                f"{high[wrong][0]:.6g} at radius {self.radii[wrong][0]:.6g}."
            )

    def _slack(self, low: FloatArray, high: FloatArray) -> Any:
        """Largest rounding error by which a lower bound may exceed an upper bound."""
        return ROUNDING


def require_certificates(estimator: Any, method: str, owner: str) -> None:
    """Refuse an estimator without `certify` or `method`, such as a pipeline around a RobustGPC."""
    # Check `certify` too: an estimator without it may have a method that is also named `method`,
    # but returns something else.
    if not (hasattr(estimator, "certify") and hasattr(estimator, method)):
        raise TypeError(
            f"`estimator` must have the methods `certify` and `{method}`, as {owner} has; "
            f"{type(estimator).__name__} does not. For a pipeline, pass the last step and "
            "transformed points."
        )


def _rounded(radius: float, rounding: str) -> str:
    """Round a radius to three digits, in the direction that keeps the statement true."""
    digits = Context(prec=3, rounding=rounding).create_decimal(f"{radius:.12g}")
    return f"{float(digits):.3g}"


def increasing(radii: ArrayLike) -> FloatArray:
    checked = finite(radii, "radii")
    if len(checked) < 2 or checked[0] < 0 or (np.diff(checked) <= 0).any():
        raise ValueError("`radii` must be at least two increasing numbers, none negative.")
    return checked


def repeated(X: Any, count: int) -> Any:
    shape = np.shape(X)
    if len(shape) != 2 or shape[0] != 1:
        raise ValueError(
            f"`X` must contain one point, shape (1, n_features), got {shape}; pass X[i : i + 1]."
        )
    rows = [0] * count
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
