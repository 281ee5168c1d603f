"""Display of the probability integral transform (PIT) of true values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr
from scipy.stats import binom

from skuq.base import FloatArray
from skuq.labels import counted
from skuq.plotting._display import COLOURS, Display, filled_steps, legend_above, plain_text
from skuq.quantities import (
    predicted_gaussian,
    predicted_quantiles,
    values_and_gaussian,
    values_and_quantiles,
)
from skuq.validation import check_n_bins, check_same_length, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSED = 0.05  # probability that any bar ends outside the band by chance


class PITDisplay(Display):
    """Histogram of the probability integral transform (PIT) of the true values.

    The PIT is the predicted distribution function at the true value. If the predicted distributions
    are right, the PIT is uniform, and all bars end in the shaded band with a probability of at
    least 95%. A U shape indicates distributions that are too narrow, a hump distributions that are
    too wide; a rising slope indicates predictions that are too low, a falling slope too high ones.

    Parameters
    ----------
    low, high : array-like of shape (n_samples,)
        Limits of the PIT of each sample, in [0, 1]; equal for continuous distributions. The limits
        differ if only some quantiles were predicted or many draws are equal. Such a sample is
        spread over the bins in proportion to their overlap with the range between its limits; the
        band is then conservative.
    n_bins : int, default=10
        Number of bins on [0, 1].
    name : str, optional
        Title.

    Attributes
    ----------
    share : ndarray of shape (n_bins,), float64
        Share of the samples in each bin.
    band : tuple of two floats
        Limits of the shaded band.

    References
    ----------
    .. [1] Gneiting, Balabdaoui, Raftery, "Probabilistic Forecasts, Calibration and Sharpness",
       Journal of the Royal Statistical Society B 69(2), 2007.
    .. [2] Czado, Gneiting, Held, "Predictive Model Assessment for Count Data", Biometrics 65(4),
       2009 (samples spread over several bins).

    Examples
    --------
    >>> from skuq.plotting import PITDisplay
    >>> display = PITDisplay.from_predictions([0.0, 3.0], mean=[0.0, 1.0], std=[1.0, 1.0], n_bins=2)
    >>> display.share
    array([0., 1.])
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, *, n_bins: int = 10, name: str | None = None
    ) -> None:
        check_n_bins(n_bins)
        self.low, self.high = finite(low, "low"), finite(high, "high")
        check_same_length(low=self.low, high=self.high)
        if (self.low < 0).any() or (self.low > self.high).any() or (self.high > 1).any():
            raise ValueError("`low` and `high` must satisfy 0 <= low <= high <= 1 in every row.")
        self.n_bins = n_bins
        self.name = name
        self.share = _share_of_bins(self.low, self.high, n_bins)
        # Bonferroni correction over bars and sides.
        tail, n = MISSED / 2 / n_bins, len(self.low)
        least, most = binom.ppf([tail, 1 - tail], n, 1 / n_bins) / n
        self.band = (float(least), float(most))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        levels: ArrayLike | None = None,
        n_bins: int = 10,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict distributions and draw the PIT of the true values.

        Parameters
        ----------
        estimator : object
            Fitted regressor with ``predict(X, return_std=True)``, or with
            ``predict_quantiles(X, levels)``, alone or in a pipeline or search.
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Inputs, and true values.
        levels : array-like of shape (n_levels,), optional
            Levels of the quantiles to predict, in (0, 1). Default: use a Gaussian distribution with
            the predicted mean and standard deviation instead of quantiles.
        n_bins, name, ax
            As in `from_predictions`. Default of `name`: the class of the estimator.
        """
        name = type(estimator).__name__ if name is None else name
        settings: dict[str, Any] = {"n_bins": n_bins, "name": name, "ax": ax}
        if levels is not None:
            quantiles = predicted_quantiles(estimator, X, levels)
            return cls.from_quantiles(y, quantiles, levels, **settings)
        try:
            gaussian = predicted_gaussian(estimator, X)
        except TypeError as error:
            raise TypeError(f"{error} For predicted quantiles pass `levels`.") from None
        return cls.from_predictions(y, *gaussian, **settings)

    @classmethod
    def from_predictions(  # type: ignore[override]  # parameters differ from those of the class
        cls,
        y_true: ArrayLike,
        mean: ArrayLike,
        std: ArrayLike,
        *,
        n_bins: int = 10,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the PIT of values under Gaussian predictions.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True values.
        mean, std : array-like of shape (n_samples,)
            Mean and standard deviation (including the noise) of each prediction, in units of the
            target; ``std > 0``.
        n_bins : int, default=10
            Number of bins on [0, 1].
        name, ax : optional
            Title, and axes.
        """
        truth, centre, scale = values_and_gaussian(y_true, mean, std)
        below = ndtr((truth - centre) / scale)
        return super().from_predictions(below, below, n_bins=n_bins, name=name, ax=ax)

    @classmethod
    def from_quantiles(
        cls,
        y_true: ArrayLike,
        y_quantiles: ArrayLike,
        levels: ArrayLike,
        *,
        n_bins: int = 10,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the PIT of true values under predicted quantiles.

        Samples of the predicted distributions can be used as quantiles: `m` sorted samples have the
        levels ``np.arange(1, m + 1) / (m + 1)``.

        Parameters
        ----------
        y_true, n_bins, name, ax
            As in `from_predictions`; more bins than levels add no information.
        y_quantiles : array-like of shape (n_samples, n_levels)
            Predicted quantiles, one column for each level; sorted within each row.
        levels : array-like of shape (n_levels,)
            Levels of the quantiles, in (0, 1).
        """
        truth, quantiles, asked = values_and_quantiles(y_true, y_quantiles, levels)
        steps = np.concatenate([[0.0], np.sort(asked), [1.0]])
        below = (quantiles < truth[:, None]).sum(axis=1)
        not_above = (quantiles <= truth[:, None]).sum(axis=1)
        low, high = steps[below], steps[not_above + 1]
        return super().from_predictions(low, high, n_bins=n_bins, name=name, ax=ax)

    def description(self) -> str:
        shares = ", ".join(f"{share:.3g}" for share in self.share)
        band = f"{self.band[0]:.3g} to {self.band[1]:.3g}"
        return f"Share of the rows by PIT, from 0 to 1: {shares}. Band of chance: {band}."

    def _draw(self) -> None:
        edges = np.arange(self.n_bins + 1) / self.n_bins
        chance = "uniform, with the band of chance"
        self.ax_.axhspan(*self.band, color="0.85", linewidth=0, label=chance)
        self.ax_.axhline(1 / self.n_bins, linestyle="--", color="0.3", linewidth=1)
        label = f"true values ({counted(len(self.low), 'row')})"
        filled_steps(self.ax_, self.share, edges, COLOURS[0], label)
        self.ax_.set(
            xlim=(0, 1),
            ylim=(0, 1.08 * max(self.share.max(), self.band[1])),
            xlabel="predicted probability of a smaller value (PIT)",
            ylabel="share of the rows",
        )
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""))


def _share_of_bins(low: FloatArray, high: FloatArray, n_bins: int) -> FloatArray:
    """Share of samples per bin; a range is spread over bins in proportion to the overlap."""
    exact = low == high
    where = np.minimum((low[exact] * n_bins).astype(np.int64), n_bins - 1)
    count = np.bincount(where, minlength=n_bins).astype(np.float64)
    edges = np.arange(n_bins + 1) / n_bins
    first, last = low[~exact, None], high[~exact, None]
    # Share of each range below each edge, (n_ranges, n_bins + 1).
    below = (np.clip(edges, first, last) - first) / (last - first)
    return (count + np.diff(below, axis=1).sum(axis=0)) / len(low)
