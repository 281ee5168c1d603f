"""Inputs as numbers without missing values, columns of categories, and distances of features."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype
from scipy.sparse import csr_array, issparse
from sklearn import preprocessing
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.utils import _safe_indexing, gen_batches

from skuq.base import FloatArray, IntArray
from skuq.explanations import as_table, number_columns
from skuq.files import stored
from skuq.validation import with_names
from skuq.wrappers import unwrap

SAMPLES_PER_FEATURE = 5  # with fewer samples per feature, a covariance is shrunk
BATCH_SIZE = 8192  # number of rows whose features are in memory at once
MANY_ROWS = 20_000  # from this number of rows on, neighbours are searched for in cells only
_N_CELLS = 12  # number of cells in which the neighbours of a row are searched
_SMALLEST_VARIANCE = 1e-6  # shrink a covariance if smallest / largest variance is below this
_MAX_CATEGORIES = 100  # maximum per column; rarer categories share one indicator


def feature_encoder(X: Any) -> Any:
    """Fit a transformer that encodes inputs as numbers without missing values.

    Columns of a table become scaled numbers and indicators of categories. Returns None for sparse
    matrices, which need no encoding, and for inputs that have no columns.
    """
    if issparse(X):
        return None
    imputer = SimpleImputer(strategy="median", keep_empty_features=True)
    if isinstance(X, pd.DataFrame) or X.dtype.kind not in "fiub":
        if X.ndim != 2:
            return None
        table = as_table(X)
        numbers = number_columns(table)
        texts = [name for name in table.columns if name not in numbers]
        scaled = make_pipeline(imputer, preprocessing.StandardScaler())
        indicators = preprocessing.OneHotEncoder(
            handle_unknown="ignore", max_categories=_MAX_CATEGORIES, sparse_output=False
        )
        parts = [("numbers", scaled, numbers), ("texts", indicators, texts)]
        return TableEncoder(ColumnTransformer(parts).fit(table))
    rows = X.reshape(len(X), -1)
    # Computing medians copies the rows: use a random sample, if all of its columns have values.
    some = rows[np.random.default_rng(0).permutation(len(rows))[: BATCH_SIZE // 4]]
    lacking = rows.dtype.kind == "f" and np.isnan(some).all(axis=0).any()
    return imputer.fit(rows if lacking else some)


@stored("features.table-encoder")
@dataclass(frozen=True)
class TableEncoder:
    """Encoder of tables: scaled numbers and one-hot categories."""

    columns: ColumnTransformer

    def transform(self, X: Any) -> FloatArray:
        """Encode rows as numbers, (n_samples, n_features)."""
        table = with_names(self.columns, X)
        if isinstance(table, pd.DataFrame):  # numeric columns may be booleans here
            names = self.columns.transformers_[0][2]
            kinds = {n: np.float64 for n in table if str(n) in names and is_bool_dtype(table[n])}
            table = table.astype(kinds)
        numbers: FloatArray = self.columns.transform(as_table(table))
        return numbers


def encoded(encoder: Any, X: Any) -> Any:
    """Encode inputs; return sparse matrices unchanged, and None for inputs without columns."""
    if encoder is None:
        return X if issparse(X) else None
    if isinstance(encoder, TableEncoder):
        return encoder.transform(X)
    rows = X.toarray() if issparse(X) else X.reshape(len(X), -1)
    single = rows.dtype.kind == "f" and rows.dtype.itemsize <= 4
    rows = rows.astype(np.float32 if single else np.float64, copy=False)
    return encoder.transform(rows) if np.isnan(rows).any() else rows


# Parameters for categorical columns of scikit-learn's boosting, LightGBM (aliases) and CatBoost.
_PARAMETERS = (
    "categorical_features",
    "categorical_feature",
    "cat_feature",
    "categorical_column",
    "cat_column",
    "cat_features",
)
_ENCODERS = (preprocessing.OneHotEncoder, preprocessing.OrdinalEncoder, preprocessing.TargetEncoder)
_MOVING = (ColumnTransformer, FeatureUnion, SelectorMixin)  # steps that reorder columns


def category_columns(estimator: Any, names: Sequence[Any]) -> list[int]:
    """Find the numeric columns that a learner, or an encoder before it, uses as categories.

    `names` are positions if the columns have no names.
    """
    found: set[int] = set()
    in_place = True  # whether all steps so far keep the positions of columns
    while in_place and (inside := unwrap(estimator, fitted=False)) is not None:
        steps = estimator.steps[:-1] if isinstance(estimator, Pipeline) else [("", estimator)]
        for _, step in steps:
            if in_place:
                found |= _encoded(step, names)
                in_place = not isinstance(step, _MOVING)
        estimator = inside.estimator
    if in_place and getattr(estimator, "n_features_in_", len(names)) == len(names):
        found |= _declared(estimator, names)
    return sorted(found)


def _encoded(step: Any, names: Sequence[Any]) -> set[int]:
    """Find the columns that a step of a pipeline encodes as categories."""
    if isinstance(step, _ENCODERS):
        return set(range(len(names)))
    if isinstance(step, Pipeline):
        return set().union(*(_encoded(each, names) for _, each in step.steps))
    if not isinstance(step, ColumnTransformer):
        return set()
    found: set[int] = set()
    for _, transformer, columns in step.transformers:
        if not callable(columns):
            chosen = _positions(columns, names)
            inner = _encoded(transformer, [names[k] for k in chosen])
            found |= {chosen[k] for k in inner}
    return found


def _declared(learner: Any, names: Sequence[Any]) -> set[int]:
    """Find the columns that a learner's own parameters declare as categories."""
    parameters = learner.get_params(deep=False) if hasattr(learner, "get_params") else {}
    # Only the fitted booster stores the columns that were passed to LightGBM's `fit`.
    booster = getattr(learner, "_Booster", None)
    parameters = {**parameters, **(getattr(booster, "params", None) or {})}
    types = parameters.get("feature_types")
    found = {k for k, kind in enumerate(types) if kind == "c"} if types is not None else set()
    for name in _PARAMETERS:
        given = parameters.get(name)
        if given is not None and (np.ndim(given) == 1 or isinstance(given, int)):
            found |= set(_positions(given, names))
    return {k for k in found if k < len(names)}


def _positions(columns: Any, names: Sequence[Any]) -> list[int]:
    places = np.arange(len(names))
    if isinstance(columns, slice) and not isinstance(columns.start or columns.stop, str):
        return places[columns].tolist()
    selected: Iterable[Any] = [columns] if np.ndim(columns) == 0 else columns
    selected = list(selected)
    if selected and isinstance(selected[0], bool | np.bool_):
        return np.flatnonzero(selected).tolist()
    if any(isinstance(each, str) for each in selected):
        known = list(names)
        return [known.index(each) for each in selected if each in known]
    chosen: list[int] = _safe_indexing(places, [int(each) for each in selected]).tolist()
    return chosen


def nearest_others(rows: NDArray[Any], n_neighbors: int) -> IntArray:
    """Find the nearest other rows of each row, (n_rows, n_neighbors), unordered.

    Many rows are divided into cells by their nearest centre, and neighbours are searched in the
    cells of the 12 nearest centres (an inverted file: Jégou, Douze, Schmid, "Product Quantization
    for Nearest Neighbor Search", IEEE TPAMI 33, 2011, without the quantization).
    """
    n_rows = len(rows)
    if n_rows < MANY_ROWS:
        nearest = NearestNeighbors(n_neighbors=n_neighbors).fit(rows)
        return nearest.kneighbors(return_distance=False)
    n_cells = int(np.sqrt(n_rows))
    means = MiniBatchKMeans(n_cells, n_init=1, max_iter=5, batch_size=4096, random_state=0).fit(
        rows
    )
    centres = NearestNeighbors(n_neighbors=_N_CELLS).fit(means.cluster_centers_)
    cells = centres.kneighbors(rows, return_distance=False)
    # For each cell: the rows that look for neighbours in this cell, and the rows of the cell.
    searching, inside = (
        np.split(
            np.argsort(each, kind="stable"), np.bincount(each, minlength=n_cells).cumsum()[:-1]
        )
        for each in (cells.ravel(), cells[:, 0])
    )
    distance = np.full((n_rows, n_neighbors), np.inf, np.float32)
    found = np.repeat(np.arange(n_rows)[:, None], n_neighbors, axis=1)  # default: the row itself
    for row, members in zip(searching, inside, strict=True):
        row, members = row // _N_CELLS, members[:: 1 + len(members) // (8 * n_cells)]
        if not len(members):
            continue
        cell = NearestNeighbors(n_neighbors=min(n_neighbors + 1, len(members)), algorithm="brute")
        new_distance, new = cell.fit(rows[members]).kneighbors(rows[row])
        new = members[new]
        new_distance[new == row[:, None]] = np.inf
        both = np.hstack([distance[row], new_distance])
        best = np.argpartition(both, n_neighbors - 1, axis=1)[:, :n_neighbors]
        distance[row] = np.take_along_axis(both, best, axis=1)
        found[row] = np.take_along_axis(np.hstack([found[row], new]), best, axis=1)
    return found


Features = Sequence[NDArray[Any]]  # one array per layer, each (n_samples, n_features)


def unit_vectors(features: Features) -> NDArray[np.float32]:
    """Scale features so that squared Euclidean distances equal layer-averaged cosine distances."""
    # |a - b|^2 = 1 - cos(a, b) for vectors of squared length 1/2.
    length = np.sqrt(0.5 / len(features))
    return np.hstack(
        [(preprocessing.normalize(part) * length).astype(np.float32) for part in features]
    )


@dataclass(frozen=True)
class Whitening:
    """Linear map that turns Mahalanobis distances into Euclidean distances."""

    centre: FloatArray
    matrix: FloatArray  # (n_features, n_features), square root of the precision

    def __call__(self, features: Features) -> FloatArray:
        whitened: FloatArray = (np.hstack(features) - self.centre) @ self.matrix
        return whitened


def fit_whitening(
    features: FloatArray,
    codes: NDArray[np.int64],
    *,
    weight: FloatArray | None = None,
    precision: float = 0.0,
) -> tuple[FloatArray, Whitening]:
    """Fit one normal distribution per class, all with the same covariance.

    Features, except constant ones, are scaled to variance 1 within classes. With fewer than five
    samples per feature, or nearly dependent features, the covariance around the class means is
    then shrunk as Ledoit and Wolf proposed. Shapes: `features` (n_samples, n_features), `codes`
    and `weight` (n_samples,). Returns the class means, (n_classes, n_features), and the map.
    """
    weight = np.ones(len(codes)) if weight is None else weight
    present, of_sample = np.unique(codes, return_inverse=True)
    n_samples, n_features = features.shape
    # Sum over batches, so that only a few rows at a time are converted to float64.
    batches = [*gen_batches(n_samples, BATCH_SIZE // 8)]
    total, square = np.zeros((len(present), n_features)), np.zeros(n_features)
    for rows in batches:
        entries = weight[rows], (of_sample[rows], np.arange(len(of_sample[rows])))
        total += csr_array(entries, (len(present), len(of_sample[rows]))) @ features[rows]
    means = total / np.bincount(of_sample, weight)[:, None]
    for rows in batches:
        square += weight[rows] @ (features[rows] - means[of_sample[rows]]) ** 2
    scale = np.sqrt(square / weight.sum())
    rounding = max(1e-12, 10 * precision)  # sums have larger rounding errors than their terms
    largest = np.maximum(features.max(axis=0), -features.min(axis=0))
    varies = scale > rounding * largest
    if not varies.any():
        raise ValueError(
            "Mahalanobis distances are not defined, because the features of the training samples "
            "do not vary within classes; use distance='cosine' or more training samples."
        )
    scale[~varies] = 1
    covariance, fourth = np.zeros((n_features, n_features)), 0.0
    for rows in batches:
        residuals = (features[rows] - means[of_sample[rows]]) / scale
        covariance += (residuals.T * weight[rows]) @ residuals
        fourth += weight[rows] @ (residuals**2).sum(axis=1) ** 2
    covariance /= weight.sum()
    variances, directions = np.linalg.eigh(covariance)
    few = weight.sum() < SAMPLES_PER_FEATURE * n_features
    if few or variances[0] < _SMALLEST_VARIANCE * variances[-1]:
        variances, directions = np.linalg.eigh(_shrunk(covariance, fourth, weight.sum()))
    smallest = np.finfo(np.float64).eps * n_features * variances[-1]
    matrix = directions / np.sqrt(variances.clip(smallest)) / scale[:, None]
    return means, Whitening(total.sum(axis=0) / weight.sum(), matrix)


def _shrunk(sample: FloatArray, fourth: float, n_samples: float) -> FloatArray:
    """Shrink the covariance of rows around 0 towards a multiple of the identity.

    `fourth` is the sum of the fourth powers of row lengths, `n_samples` the sum of the weights.
    Ledoit, Wolf, "A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices", Journal
    of Multivariate Analysis 88, 2004, Lemma 3.2 to 3.4; a row of weight 2 counts as two samples.
    scikit-learn's `LedoitWolf` does not accept weights.
    """
    n_features = len(sample)
    mean_variance = np.trace(sample) / n_features
    distance = (sample**2).sum() - n_features * mean_variance**2  # d^2, times n_features
    # The mean of |x x^T - S|^2 equals the mean of |x|^4 minus |S|^2.
    error = (fourth / n_samples - (sample**2).sum()) / n_samples
    shrinkage = min(error / distance, 1.0) if distance > 0 and error > 0 else 0.0
    shrunk = (1 - shrinkage) * sample
    shrunk.flat[:: n_features + 1] += shrinkage * mean_variance
    return shrunk
