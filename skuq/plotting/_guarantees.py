"""Displays of `RobustGPC`: certified range of a probability, and effects of features."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray
from skuq.extras import import_optional
from skuq.plotting._display import COLOURS, Display, legend_above, plain_text
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"linf": "maximum norm", "l2": "Euclidean norm", "l1": "sum of changes"}
_BAND: dict[str, Any] = {"label": "proven range", "step": "pre", "color": "#b1ddf4", "lw": 0}
_HATCH: dict[str, Any] = {"hatch": "//", "facecolor": "none", "edgecolor": "0.6", "linewidth": 0}
_BOUNDS = ("min_lower", "min_upper", "max_lower", "max_upper")
_STATUS = ("safe", "unsafe", "undecided")
_STRIP = 0.04  # share of the range of radii
_ROUNDING = 1e-6  # rounding error tolerated in the order of bounds and in [0, 1]
MOST_BARS = 20


class CertifiedRangeDisplay(Display):
    """Proven limits of a class probability, against the radius of the region.

    The filled band is proven: no point of the region has a probability outside it. The two lines
    are probabilities attained at points of the region. Regions of increasing radius are nested. A
    proof therefore also holds for all smaller regions, and a point that was found also lies in all
    larger regions; band and lines are step functions of the radius. Radii at which a point of a
    different class was found are hatched. If such a point was found only at the last radius, a
    strip beyond this radius is hatched. Radii in the legend are rounded such that the statements
    remain proven.

    Parameters
    ----------
    radii : array-like of shape (n_radii,)
        Increasing radii, not negative.
    min_lower, min_upper : array-like of shape (n_radii,)
        Bounds of the smallest probability in each region.
    max_lower, max_upper : array-like of shape (n_radii,)
        Bounds of the largest probability in each region.
    status : array-like of shape (n_radii,), optional
        "safe", "unsafe" or "undecided". Default: by comparison with 1/2, which is valid for the
        predicted class of a problem with two classes.
    attack : array-like of shape (n_radii,), optional
        Probabilities at the points found by an attack.
    class_name : str, optional
        Name of the class.
    attack_name : str, optional
        Name of the attack, if there is one. Default: "attack".
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm of the radii.

    Attributes
    ----------
    radii, status, attack, class_name, attack_name, norm
        As given.
    min_lower, min_upper, max_lower, max_upper : ndarray of shape (n_radii,)
        Bounds, tightened by the bounds at the other radii.
    safe_radius : float
        Largest safe radius; 0 if there is none.
    unsafe_radius : float
        Smallest radius with a counterexample; infinite if there is none.
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
        attack_name: str | None = None,
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
            raise ValueError(f"`status` must only contain {_STATUS}, got {str(unknown[0])!r}.")
        self.attack = None if attack is None else self._checked(attack, "attack")
        self.class_name = class_name
        if attack is None and attack_name is not None:
            raise ValueError("`attack_name` requires `attack`.")
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
    ) -> Self:
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
            Class whose probability is bounded. Default: the class predicted for the point.
        norm, features, domain, tol, max_time, max_regions
            As in `RobustGPC.predict_proba_bounds`.
        attack : {"pgd", "fgsm"}, optional
            Attack whose result is drawn in addition.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        CertifiedRangeDisplay

        Raises
        ------
        TypeError
            If the estimator has no certified ranges.
        ValueError
            If there is more than one point, or the radii do not increase.
        """
        _require_certificates(estimator)
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
            attack_name=None if attack is None else f"attack ({attack})",
            norm=norm,
            ax=ax,
        )

    @property
    def safe_radius(self) -> float:
        """Largest safe radius; 0 if there is none."""
        return float(self.radii[self.status == "safe"].max(initial=0.0))

    @property
    def unsafe_radius(self) -> float:
        """Smallest radius with a counterexample; infinite if there is none."""
        return float(self.radii[self.status == "unsafe"].min(initial=np.inf))

    def _draw(self) -> None:
        self.ax_.fill_between(self.radii, self.min_lower, self.max_upper, **_BAND)
        line: dict[str, Any]
        for values, label in ((self.min_upper, "found in it"), (self.max_lower, None)):
            line = {"color": COLOURS[0], "linewidth": 1.8, "label": label}
            self.ax_.step(self.radii, values, where="post", **line)
        if self.attack is not None:
            line = {"color": COLOURS[1], "label": plain_text(self.attack_name or "attack")}
            self.ax_.step(self.radii, self.attack, "--", where="post", linewidth=1.8, **line)
        end = self.radii[-1]
        if self.unsafe_radius < np.inf:
            if self.unsafe_radius == end:  # larger regions contain the same counterexample
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

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = finite(values, name)
        if checked.shape != self.radii.shape:
            raise ValueError(
                f"`{name}` must have one value per radius, shape {self.radii.shape}, got "
                f"{checked.shape}."
            )
        if checked.min() < -_ROUNDING or checked.max() > 1 + _ROUNDING:
            raise ValueError(f"`{name}` must contain probabilities in [0, 1].")
        return checked

    def _check_order(self, low: FloatArray, high: FloatArray, below: str, above: str) -> None:
        wrong = low > high + _ROUNDING
        if wrong.any():
            raise ValueError(
                f"`{below}` must not exceed `{above}`, got {low[wrong][0]:.6g} and "
                f"{high[wrong][0]:.6g} at radius {self.radii[wrong][0]:.6g}."
            )


def _require_certificates(estimator: Any) -> None:
    """Refuse an estimator without certificates, such as a pipeline around a RobustGPC."""
    # Check `certify`, since other estimators also have methods named like those of RobustGPC.
    if not hasattr(estimator, "certify"):
        raise TypeError(
            "`estimator` must have a method `certify`, as RobustGPC has; "
            f"{type(estimator).__name__} does not. For a pipeline, pass the last step and "
            "transformed points."
        )


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
    shape = np.shape(X)
    if len(shape) != 2 or shape[0] != 1:
        raise ValueError(
            f"`X` must contain one point, shape (1, n_features), got {shape}; pass X[i : i + 1]."
        )
    rows = [0] * count
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]


class FeatureEffectsDisplay(Display):
    """Effect of each feature on a class probability: bars for tables, a heat map for images.

    Bars and pixels are orange where the probability increases with the feature, and blue where it
    decreases. Bars are sorted by size; their error bars are proven bounds of the numerical error.
    The colour scale of a heat map is symmetric around 0, and the outlines of the image are drawn
    on top.

    Parameters
    ----------
    effects : array-like of shape (n_features,)
        Effects in units of probability.
    error : array-like of shape (n_features,), optional
        Bounds of the numerical errors of the effects.
    image_shape : tuple (n_rows, n_columns), optional
        Shape of a heat map. Default: bars.
    image : array-like of shape (n_features,), optional
        Pixels of the explained image.
    feature_names : sequence of str, optional
        Names of the features, for bars. Default: their positions.
    class_name : str, optional
        Name of the class.
    max_features : int, optional
        Number of bars, for the largest effects. Default: 20.

    Attributes
    ----------
    effects, error, image_shape, image, feature_names, class_name, max_features
        As given.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn last.
    image_, colorbar_ : matplotlib AxesImage and Colorbar
        The heat map and its colour bar; only set for a heat map.

    Examples
    --------
    >>> from skuq.plotting import FeatureEffectsDisplay
    >>> display = FeatureEffectsDisplay.from_predictions(
    ...     [0.1, -0.3], feature_names=["age", "income"], class_name="yes"
    ... )
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['income', 'age']
    """

    def __init__(
        self,
        effects: ArrayLike,
        error: ArrayLike | None = None,
        *,
        image_shape: tuple[int, int] | None = None,
        image: ArrayLike | None = None,
        feature_names: Any = None,
        class_name: str | None = None,
        max_features: int | None = None,
    ) -> None:
        self.effects = finite(effects, "effects")
        n = len(self.effects)
        self.error = None if error is None else _as_long(finite(error, "error"), n, "error")
        if self.error is not None and (self.error < 0).any():
            raise ValueError("`error` must not be negative.")
        if image_shape is not None and not _is_shape(image_shape, n):
            raise ValueError(
                "`image_shape` must be two positive integers whose product is the number of "
                f"features, {n}; got {image_shape!r}."
            )
        if image is not None and image_shape is None:
            raise ValueError("`image` requires `image_shape`.")
        if image_shape is not None and not (feature_names is None and max_features is None):
            raise ValueError(
                "`feature_names` and `max_features` apply to bars only; omit them, or omit "
                "`image_shape`, which draws a heat map."
            )
        if max_features is not None and max_features < 1:
            raise ValueError(f"`max_features` must be >= 1, got {max_features}.")
        self.image_shape = image_shape
        self.image = None if image is None else _as_long(finite(image, "image"), n, "image")
        names = [f"feature {j}" for j in range(n)] if feature_names is None else feature_names
        self.feature_names = [str(name) for name in _as_long(names, n, "feature_names")]
        self.class_name = class_name
        self.max_features = MOST_BARS if max_features is None else max_features
        n_bars = min(self.max_features, n)
        self.size = (6.0, 1.0 + 0.27 * n_bars) if image_shape is None else (5.0, 4.2)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        gamma: float,
        *,
        image_shape: tuple[int, int] | None = None,
        feature_names: Any = None,
        class_: Any = None,
        features: Any = None,
        domain: Any = None,
        tol: float = 1e-3,
        max_features: int | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Measure the effects of features and draw them.

        Parameters
        ----------
        estimator : RobustGPC
            Fitted classifier.
        X : array-like or DataFrame of shape (n_samples, n_features)
        One point, for its local effects, or several points, for their average effects.
        gamma : float
        Distance by which each feature is moved up and down, in the units of the feature.
        image_shape, max_features
            As in the class. Outlines are drawn over a heat map for a single point.
        feature_names : sequence of str, optional
            Names of the features, for bars. Default: the names the estimator was fitted with.
        class_, features, domain, tol
            As in `RobustGPC.explain`.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        FeatureEffectsDisplay

        Raises
        ------
        TypeError
            If the estimator cannot explain.
        ValueError
            If a setting does not fit the data.
        """
        _require_certificates(estimator)
        effects = estimator.explain(
            X, gamma, class_=class_, features=features, domain=domain, tol=tol
        )
        single = len(effects.local) == 1
        if feature_names is None and image_shape is None:
            feature_names = getattr(estimator, "feature_names_in_", None)
        image = np.asarray(X, np.float64)[0] if single and image_shape is not None else None
        return cls.from_predictions(
            effects.overall,
            effects.error.mean(axis=0),
            image_shape=image_shape,
            image=image,
            feature_names=feature_names,
            class_name=_class_name(estimator, X if single else None, class_),
            max_features=max_features,
            ax=ax,
        )

    def _draw(self) -> None:
        chosen = "the class" if self.class_name is None else plain_text(self.class_name)
        label = f"effect on the probability of {chosen}"
        if self.image_shape is None:
            self._plot_bars(label)
        else:
            self._plot_image(label, self.image_shape)

    def _plot_bars(self, label: str) -> None:
        count = min(self.max_features, len(self.effects))
        order = np.argsort(-np.abs(self.effects), kind="stable")[:count]
        effects = self.effects[order]
        self.ax_.barh(
            np.arange(count),
            effects,
            0.7,
            xerr=None if self.error is None else self.error[order],
            color=np.where(effects >= 0, COLOURS[1], COLOURS[0]).tolist(),
            error_kw={"ecolor": "0.2", "capsize": 2, "elinewidth": 1.2},
        )
        self.ax_.axvline(0, color="0.3", linewidth=1)
        names = [plain_text(self.feature_names[j]) for j in order]
        self.ax_.set_yticks(np.arange(count), names)
        self.ax_.set_ylim(count - 0.4, -0.6)
        hidden = len(self.effects) - count
        note = "" if hidden == 0 else f"\n(the {count} largest of {len(self.effects)})"
        self.ax_.set_xlabel(label + note)
        self.ax_.locator_params(axis="x", nbins=6)

    def _plot_image(self, label: str, shape: tuple[int, int]) -> None:
        colors = import_optional("matplotlib.colors", extra="plot")
        scale = colors.LinearSegmentedColormap.from_list(
            "effects", [COLOURS[0], "#f7f7f7", COLOURS[1]]
        )
        most = np.abs(self.effects).max() or 1.0
        self.image_ = self.ax_.imshow(
            self.effects.reshape(shape), cmap=scale, vmin=-most, vmax=most
        )
        self.colorbar_ = self.figure_.colorbar(self.image_, ax=self.ax_, label=label)
        if self.image is not None:
            self._outline(self.image.reshape(shape))
        self.ax_.set(xticks=[], yticks=[])

    def _outline(self, image: FloatArray) -> None:
        """Draw lines between pixels above and below the midpoint of the image's range."""
        bright = np.pad(image > (image.min() + image.max()) / 2, 1)
        style: dict[str, Any] = {"colors": "0.15", "linewidths": 1.6}
        y, x = np.nonzero(bright[1:, 1:-1] != bright[:-1, 1:-1])
        self.ax_.hlines(y - 0.5, x - 0.5, x + 0.5, **style)
        y, x = np.nonzero(bright[1:-1, 1:] != bright[1:-1, :-1])
        self.ax_.vlines(x - 0.5, y - 0.5, y + 0.5, **style)


def _is_shape(values: Any, n: int) -> bool:
    """Whether `values` is a shape (n_rows, n_columns) with `n` pixels."""
    shape = np.asarray(values)
    whole = shape.shape == (2,) and shape.dtype.kind in "iu"
    return whole and bool((shape > 0).all()) and math.prod(map(int, shape)) == n


def _as_long(values: Any, n: int, name: str) -> FloatArray:
    array = np.asarray(values)
    if array.shape != (n,):
        raise ValueError(f"`{name}` must have one value per feature, {n}; got shape {array.shape}.")
    return array


def _class_name(estimator: Any, point: Any, class_: Any) -> str:
    """Description of the class that `explain` uses."""
    if class_ is not None:
        return f"class {class_}"
    if len(estimator.classes_) == 2:
        return f"class {estimator.classes_[1]}"
    return "the predicted class" if point is None else f"class {estimator.predict(point)[0]}"
