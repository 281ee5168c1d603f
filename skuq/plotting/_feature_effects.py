"""Display of the effects of features on a probability of `RobustGPC`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.extras import import_optional
from skuq.plotting._display import COLOURS, Display, plain_text
from skuq.plotting._range_display import require_certificates
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 20


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
        Maximum number of bars; the features with the largest effects are shown. Default: 20.

    Attributes
    ----------
    effects, error, image_shape, image, feature_names, class_name, max_features
        As given.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.
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
            If a setting does not match the data.
        """
        require_certificates(estimator, "predict_proba_bounds", "RobustGPC")
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
