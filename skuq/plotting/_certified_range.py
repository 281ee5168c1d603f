"""Display of the certified range of a class probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.plotting._display import legend_above, plain_text
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


class CertifiedRangeDisplay(RangeDisplay):
    """Proven limits of a class probability, against the radius of the region.

    The filled band is proven: no point of the region has a probability outside it. The two lines
    are probabilities attained at points of the region. Regions of increasing radius are nested: a
    proof for one region also holds for all smaller regions, and a point that was found in one
    region also lies in all larger regions. Therefore, band and lines are step functions of the
    radius. The hatched radii are those at which a point with a different predicted class was found.
    If such a point was found only at the last radius, a strip beyond this radius is hatched. Radii
    in the legend are rounded such that the statements remain proven.

    Parameters
    ----------
    radii : array-like of shape (n_radii,)
        Increasing radii, not negative.
    min_lower, min_upper : array-like of shape (n_radii,)
        Bounds of the smallest probability in each region.
    max_lower, max_upper : array-like of shape (n_radii,)
        Bounds of the largest probability in each region.
    status : array-like of shape (n_radii,), optional
        "safe", "unsafe" or "undecided". By default, the status follows from a comparison of the
        bounds with 1/2, which is valid only if there are two classes and the class is the predicted
        one.
    attack : array-like of shape (n_radii,), optional
        Probabilities at the points found by an attack.
    class_name : str, optional
        Name of the class.
    attack_name : str, optional
        Name of the attack, if there is one. Default: "attack".
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm in which the radii are measured.

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
        Axes and figure of the last plot.

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
        self._keep(radii, (min_lower, min_upper, max_lower, max_upper), norm)
        self._keep_status(status, self.min_lower > 0.5, self.min_upper < 0.5)
        self.attack = None if attack is None else self._checked(attack, "attack")
        self.class_name = class_name
        if attack is None and attack_name is not None:
            raise ValueError("`attack_name` requires `attack`.")
        self.attack_name = attack_name

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
            If the estimator cannot bound class probabilities.
        ValueError
            If there is more than one point, or the radii do not increase.
        """
        require_certificates(estimator, "predict_proba_bounds", "RobustGPC")
        radii = increasing(radii)
        points = repeated(X, len(radii))
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
            *(getattr(bounds, name)[:, 0] for name in BOUNDS),
            status=estimator.certify(points, labels, **region, **limits).status,
            attack=reached,
            class_name=str(class_),
            attack_name=None if attack is None else f"attack ({attack})",
            norm=norm,
            ax=ax,
        )

    def _draw(self) -> None:
        attack = None
        if self.attack is not None:
            attack = (self.attack, self.attack_name or "attack")
        self._draw_ranges("safe", "another class", attack)
        self.ax_.axhline(0.5, **LIMIT)
        of = "" if self.class_name is None else f" of class {plain_text(self.class_name)}"
        self.ax_.set(ylim=(0, 1), ylabel=f"probability{of}")
        legend_above(self.ax_, columns=3)

    def _checked(self, values: ArrayLike, name: str) -> FloatArray:
        checked = super()._checked(values, name)
        if checked.min() < -ROUNDING or checked.max() > 1 + ROUNDING:
            raise ValueError(f"`{name}` must contain probabilities in [0, 1].")
        return checked
