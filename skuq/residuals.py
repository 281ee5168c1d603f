"""Noise of a regressor: the conditional distribution of its residuals, given the input.

A quantile regression forest (Meinshausen, "Quantile Regression Forests", JMLR 7, 2006) weights the
residual of each training row by how often the row shares a leaf with the input. The distribution
may differ in width between inputs and may be skewed. Every residual is out-of-sample: it is the
error of a regressor that was not fitted to the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.special import ndtri
from sklearn.ensemble import RandomForestRegressor
from sklearn.utils import gen_batches

from skuq.base import FloatArray, IntArray
from skuq.calibration import conformal_limit
from skuq.features import encoded, feature_encoder
from skuq.files import stored
from skuq.validation import as_pandas, independent_counts, is_wide, to_dense

#: Levels of the quantiles that represent a predicted distribution.
LEVELS: FloatArray = np.array(
    [0.005, 0.01, 0.025, *(np.arange(1, 20) / 20), 0.975, 0.99, 0.995], dtype=np.float64
)
MAX_ROWS = 10_000  # maximum number of residuals that a forest stores, drawn at random from more
N_TREES = 100
_LEAF = 10  # minimum number of rows per leaf
_MOST_FEATURES = 50  # maximum number of features per split
_AT_ONCE = 1000  # maximum number of rows that are predicted together
_ROUNDING = 1e-8  # exceeds the relative rounding error of cumulative shares in a batch
_LEAST = 1e-6  # predicted variances are at least this fraction of the mean squared residual
# Results that all predictions of a forest need; see `ResidualForest.computed_once`.
_COMPUTED: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


@stored("residuals.forest")
@dataclass(frozen=True, eq=False)
class ResidualForest:
    """Quantile regression forest of residuals.

    Training rows are sorted by `residuals`. `leaves` (n_rows, n_trees) are the leaves that contain
    a row, numbered over all trees; `in_bag` (n_rows, n_trees) is True for trees trained on the row.
    `rows` are positions of the rows in the arguments of `fit`, and `codes` are their groups.
    """

    forest: RandomForestRegressor
    residuals: FloatArray
    weight: FloatArray
    leaves: IntArray
    in_bag: NDArray[np.bool_]
    rows: IntArray
    codes: IntArray

    @classmethod
    def fit(
        cls,
        features: FloatArray,
        residuals: FloatArray,
        weight: FloatArray | None = None,
        *,
        codes: IntArray | None = None,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> ResidualForest:
        """Fit the distribution of residuals, (n_rows,), given features without missing values."""
        weight = np.ones(len(residuals)) if weight is None else weight
        rows = np.random.default_rng(seed).permutation(np.flatnonzero(weight))[:MAX_ROWS]
        rows = rows[np.argsort(residuals[rows], kind="stable")]
        features, residuals, weight = features[rows], residuals[rows], weight[rows]
        n_rows, n_features = features.shape
        forest = RandomForestRegressor(
            N_TREES,
            min_samples_leaf=min(_LEAF, max(1, n_rows // 2)),
            max_features=min(max(2, math.ceil(n_features / 3)), n_features, _MOST_FEATURES),
            random_state=seed,
            n_jobs=n_jobs,
        )
        # The absolute residuals are a second target, so that splits also separate small noise from
        # large noise. The unit gives both targets the same variance.
        size = np.abs(residuals)
        unit = np.std(size) / (np.std(residuals) or 1.0) or 1.0
        forest.fit(features, np.column_stack([residuals, size / unit]), sample_weight=weight)
        in_bag = np.zeros((n_rows, N_TREES), dtype=bool)
        for k, drawn in enumerate(forest.estimators_samples_):
            in_bag[drawn, k] = True
        codes = np.arange(n_rows) if codes is None else codes[rows]
        leaves = (forest.apply(features) + _first_nodes(forest)).astype(np.int64)
        return cls(forest, residuals, weight, leaves, in_bag, rows, codes)

    def quantiles(self, features: FloatArray, levels: FloatArray) -> FloatArray:
        """Predict quantiles of the residuals of new rows, (n_rows, n_levels)."""
        found = np.empty((len(features), len(levels)))
        share = self.computed_once("shares", self._share_of_leaves)
        for part in gen_batches(len(features), _AT_ONCE):
            rows = np.asarray(features[part], dtype=np.float32)  # the type of scikit-learn's trees
            leaves = np.stack([tree.tree_.apply(rows) for tree in self.forest.estimators_], axis=1)
            leaves += _first_nodes(self.forest)
            shares = csr_array(_indicators(leaves, share.shape[0]) @ share)
            found[part] = self._quantiles(shares, levels)
        return found

    def out_of_bag_quantiles(self, levels: FloatArray) -> FloatArray:
        """Predict quantiles for training rows by trees not trained on them and by other groups."""
        found = np.empty((len(self.residuals), len(levels)))
        share = self.computed_once("shares", self._share_of_leaves)
        for part in gen_batches(len(found), _AT_ONCE):
            kept = ~self.in_bag[part]
            kept[~kept.any(axis=1)] = True  # use all trees for rows that are in every tree's bag
            shares = csr_array(_indicators(self.leaves[part], share.shape[0], kept) @ share)
            of_row = np.repeat(self.codes[part], np.diff(shares.indptr))
            shares.data[of_row == self.codes[shares.indices]] = 0
            shares.eliminate_zeros()
            found[part] = self._quantiles(shares, levels)
        return found

    def computed_once(self, name: Any, compute: Callable[[], Any]) -> Any:
        """Return ``compute()``, called once per forest; the result is not saved with the forest."""
        known = _COMPUTED.setdefault(self, {})
        if name not in known:
            known[name] = compute()
        return known[name]

    def _share_of_leaves(self) -> csr_array:
        """Compute the share of each row in the total weight of each leaf, (n_leaves, n_rows)."""
        n_leaves = sum(tree.tree_.node_count for tree in self.forest.estimators_)
        rows = csr_array(_indicators(self.leaves, n_leaves).T * self.weight)
        total = rows.sum(axis=1)
        return csr_array(diags_array(1 / np.where(total > 0, total, 1.0)) @ rows)

    def _quantiles(self, shares: csr_array, levels: FloatArray) -> FloatArray:
        """Compute weighted quantiles of residuals from `shares`, (n_rows, n_training_rows)."""
        shares.sort_indices()
        # With a cumulative sum over all rows of `shares` together, one call of `searchsorted` finds
        # the quantiles of all rows.
        running = np.concatenate([[0.0], np.cumsum(shares.data)])
        first, last = running[shares.indptr[:-1]], running[shares.indptr[1:]]
        # Lower the levels slightly: if a cumulative share equals a level, rounding errors of the
        # sum over other rows must not decide.
        targets = first[:, None] + np.outer(last - first, levels - _ROUNDING)
        at = np.searchsorted(running, targets) - 1
        at = np.clip(at, shares.indptr[:-1, None], shares.indptr[1:, None] - 1)
        quantiles: FloatArray = self.residuals[shares.indices[at]]
        return quantiles


def _first_nodes(forest: RandomForestRegressor) -> IntArray:
    counts = [tree.tree_.node_count for tree in forest.estimators_]
    return np.cumsum([0, *counts[:-1]])


def _indicators(leaves: IntArray, n_leaves: int, kept: Any = None) -> csr_array:
    """Build the indicator matrix of the leaves that contain each row, (n_rows, n_leaves)."""
    n_rows, n_trees = leaves.shape
    ones = np.ones(leaves.size) if kept is None else kept.ravel().astype(float)
    ends = np.arange(0, leaves.size + 1, n_trees)
    return csr_array((ones, leaves.ravel(), ends), shape=(n_rows, n_leaves))


@stored("residuals.row-noise")
@dataclass(frozen=True, eq=False)
class RowNoise:
    """Conditional distribution of the noise, given the prediction and, if encoded, the inputs."""

    encoder: Any
    forest: ResidualForest

    @classmethod
    def fit(
        cls,
        inputs: Any,
        predicted: FloatArray,
        residuals: FloatArray,
        weight: FloatArray,
        *,
        codes: IntArray | None = None,
        seed: int,
        n_jobs: int | None,
    ) -> RowNoise:
        """Fit to the inputs, predictions and residuals of the model, one per sample."""
        rows = _rows(inputs)
        encoder = None if rows is None else feature_encoder(rows)
        features = _features(encoder, rows, predicted)
        forest = ResidualForest.fit(
            features, residuals, weight, codes=codes, seed=seed, n_jobs=n_jobs
        )
        return cls(encoder, forest)

    def quantiles(self, inputs: Any, predicted: FloatArray, levels: FloatArray) -> FloatArray:
        """Predict quantiles of targets minus predictions, (n_samples, n_levels)."""
        rows = None if self.encoder is None else _rows(inputs)
        return self.forest.quantiles(_features(self.encoder, rows, predicted), levels)

    def variance(self, inputs: Any, predicted: FloatArray) -> FloatArray:
        """Predict the variance of the noise, (n_samples,), in squared units of the target."""
        variance = mean_and_variance(self.quantiles(inputs, predicted, LEVELS), LEVELS)[1]
        # Equal residuals of all similar samples do not imply a noise of 0: keep a minimum.
        return np.maximum(variance, _LEAST * np.mean(self.forest.residuals**2))

    def limit(self, coverage: float) -> float:
        """Compute the conformal limit on interval scores for a coverage, from out-of-bag intervals.

        Johansson, Boström, Löfström, Linusson, "Regression Conformal Prediction with Random
        Forests", Machine Learning 97, 2014.
        """
        forest, tails = self.forest, np.array([(1 - coverage) / 2, (1 + coverage) / 2])

        def limit() -> float:
            scores = interval_scores(forest.residuals, *forest.out_of_bag_quantiles(tails).T)
            return conformal_limit(scores, coverage, independent_counts(None, forest.codes))

        return float(forest.computed_once(coverage, limit))


def _rows(inputs: Any) -> Any:
    """Convert inputs to rows of a table; None if they are not two-dimensional."""
    if hasattr(inputs, "detach"):
        inputs = inputs.detach().cpu().numpy()
    inputs = inputs if is_wide(inputs) else as_pandas(to_dense(inputs))
    return inputs if np.ndim(inputs) == 2 else None


def _features(encoder: Any, rows: Any, predicted: FloatArray) -> FloatArray:
    """Encode inputs; append the prediction as the last column, (n_samples, n_features)."""
    if encoder is None:
        return predicted[:, None]
    return np.column_stack([encoded(encoder, rows), predicted])


def widened(
    quantiles: FloatArray, median: FloatArray, levels: FloatArray, model_std: FloatArray
) -> FloatArray:
    """Combine quantiles of the noise with the standard deviation of the models' predictions.

    Noise and model error are independent, so their distances from the median add in
    quadrature. Shapes: `quantiles` (n_rows, n_levels), `median` and `model_std` (n_rows,).
    """
    z = ndtri(levels)
    distance = np.hypot(quantiles - median[:, None], np.outer(model_std, z))
    together: FloatArray = median[:, None] + np.sign(z) * distance
    return together


def interpolated(quantiles: FloatArray, levels: FloatArray, new_levels: FloatArray) -> FloatArray:
    """Interpolate quantiles, (n_rows, n_levels), linearly; beyond `levels`, use the outer ones."""
    new_levels = np.clip(new_levels, levels[0], levels[-1])
    upper = np.clip(np.searchsorted(levels, new_levels), 1, len(levels) - 1)
    share = (new_levels - levels[upper - 1]) / (levels[upper] - levels[upper - 1])
    between: FloatArray = quantiles[:, upper - 1] * (1 - share) + quantiles[:, upper] * share
    return between


def central_interval(
    quantiles: FloatArray, levels: FloatArray, coverage: float
) -> tuple[FloatArray, FloatArray]:
    """Compute endpoints of the central interval, with equal probability in both tails."""
    tail = (1 - coverage) / 2
    lower, upper = interpolated(quantiles, levels, np.array([tail, 1 - tail])).T
    return lower, upper


def interval_scores(y: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Divide signed distances of targets from their intervals by the interval widths, (n_rows,).

    The score is negative inside the interval and -1/2 at its midpoint (Sesia, Candès, "A
    Comparison of Some Conformal Quantile Regression Methods", Stat 9, 2020, CQR-r).
    """
    width = np.maximum(upper - lower, np.finfo(float).tiny)
    with np.errstate(over="ignore"):  # for targets outside an interval of width 0
        scores: FloatArray = np.maximum(lower - y, y - upper) / width
    return np.minimum(scores, np.finfo(float).max)


def stretched(lower: FloatArray, upper: FloatArray, limit: Any) -> tuple[FloatArray, FloatArray]:
    """Rescale intervals to contain all targets whose interval score is at most `limit`."""
    with np.errstate(over="ignore"):
        by = np.maximum(limit, -0.5) * np.maximum(upper - lower, np.finfo(float).tiny)
    return lower - by, upper + by


def mean_and_variance(quantiles: FloatArray, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute mean and variance, (n_rows,) each; distributions end at the outer quantiles."""
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
    share = np.diff(edges)
    mean: FloatArray = quantiles @ share
    variance: FloatArray = (quantiles - mean[:, None]) ** 2 @ share
    return mean, variance
