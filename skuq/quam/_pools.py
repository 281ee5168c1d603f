"""Pools of inputs, made from training inputs, on which adversarial models are searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype
from sklearn.utils import check_random_state

from skuq.base import BoolArray, FloatArray
from skuq.extras import import_networks
from skuq.validation import as_pandas, to_dense

UNSEEN = "(unseen)"  # a category that no training row has
_CATEGORIES = {"categorical", "string", "mixed", "mixed-integer"}  # no dates, truth values, numbers
_FEWEST, _MOST = 500, 3000
_LARGEST_WHOLE = 2.0**63 - 1024  # a float that int64 holds


def make_pool(
    X: Any,
    *,
    kinds: Sequence[str] | None = None,
    n_inputs: int | None = None,
    random_state: Any = None,
) -> Any:
    """Make inputs that resemble the training inputs, but are not of their kind.

    Parameters
    ----------
    X : ndarray, sparse matrix or DataFrame of shape (n_samples, n_features), or ndarray of shape \
(n_samples, channels, length) or (n_samples, channels, height, width)
        Training inputs: a table, sequences or images.
    kinds : sequence of str, default=None
        What is made, in equal numbers; None takes all kinds that there are.

        - Tables: "crossed" (each column from one of two rows), "shuffled" (each column from a
          row of its own), "out_of_range" (some numbers far outside their range), "unseen" (some
          categories that do not occur).
        - Sequences and images: "moved" (turned, sheared and scaled images; shifted and
          stretched sequences), "warped" (smoothly distorted), "halves" (two halves of
          different inputs), "overlaid" (the larger of two values everywhere), "erased" (a part
          replaced by the median), "inverted", "patches" (pieces in another order), "noise"
          (smooth, of the same range).
    n_inputs : int, default=None
        How many, over all kinds, rounded to a multiple of their number; fewer if there are no
        columns for some kind, such as "unseen" in a table of numbers. None takes the number of
        training inputs, but at least 500 and at most 3,000.
    random_state : int, RandomState instance or None, default=None
        Randomness.

    Returns
    -------
    ndarray or DataFrame
        Inputs of the same form. Numbers of a DataFrame become floats, and whole numbers of an
        array int64; in columns of pandas' category type, an unseen category is a missing value.

    Raises
    ------
    ValueError
        If a kind is unknown, or `X` has a shape of which no pool can be made.

    Examples
    --------
    >>> import pandas as pd
    >>> X = pd.DataFrame({"age": [20.0, 30.0, 40.0], "town": ["Ulm", "Ulm", "Linz"]})
    >>> make_pool(X, kinds=["unseen"], n_inputs=2, random_state=0)
        age      town
    0  20.0  (unseen)
    1  30.0  (unseen)
    """
    random = check_random_state(random_state)
    X = as_pandas(X)
    if not isinstance(X, pd.DataFrame):
        X = np.asarray(to_dense(X))
        if X.dtype.kind not in "fiub":
            made = make_pool(pd.DataFrame(X), kinds=kinds, n_inputs=n_inputs, random_state=random)
            return made.to_numpy(dtype=object)
    if np.ndim(X) not in (2, 3, 4):
        raise ValueError(
            "A pool can be made from tables (2 axes), sequences (3) or images (4); X has "
            f"{np.ndim(X)}. Pass `X_pool` to `fit`, or a function as `pool`."
        )
    makers = _TABLE if np.ndim(X) == 2 else import_networks("skuq.quam._image_pools").KINDS
    unknown = set(kinds or ()) - set(makers)
    if unknown:
        raise ValueError(f"Unknown kinds of pool {sorted(unknown)}; there are {list(makers)}.")
    chosen = list(kinds or makers)
    if n_inputs is None:
        n_inputs = min(max(len(X), _FEWEST), _MOST)
    n_each = max(1, n_inputs // len(chosen))
    made = [makers[kind](X, n_each, random) for kind in chosen]
    parts = [part for part in made if part is not None]
    if not parts:
        raise ValueError(f"X has no columns of which {chosen} could be made.")
    if isinstance(X, pd.DataFrame):
        return pd.concat(parts, ignore_index=True)
    return np.concatenate(parts)


def make_token_pool(
    X: ArrayLike, *, n_inputs: int | None = None, random_state: Any = None
) -> NDArray[Any]:
    """Make texts that resemble the training texts, but make no sense.

    In a third of them each token comes from one of two texts; in another the tokens are in
    another order; in the last half of the tokens are drawn from all texts. The first token stays
    in its place, where a tokeniser puts the same mark in all texts, and so does padding.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_fields, length)
        Tokens, stacked as `skuq.models.as_rows` does: ids, then the attention mask, which is 0
        for padding, and types.
    n_inputs : int, default=None
        How many, rounded to a multiple of three. None makes as many as there are training texts,
        but at least 500 and at most 3,000.
    random_state : int, RandomState instance or None, default=None
        Randomness.

    Returns
    -------
    ndarray of shape (n_inputs, n_fields, length)
        Texts of the same form.

    Examples
    --------
    >>> make_token_pool([[[7, 1, 2, 3]], [[7, 4, 5, 6]]], n_inputs=3, random_state=0).shape
    (3, 1, 4)
    """
    X, random = np.asarray(X), check_random_state(random_state)
    n_each = max(1, (n_inputs or min(max(len(X), _FEWEST), _MOST)) // 3)
    crossed, ordered, drawn = (X[random.randint(len(X), size=n_each)] for _ in range(3))
    others = X[random.randint(len(X), size=n_each)]
    chosen = _free_tokens(crossed) & _free_tokens(others)
    chosen &= random.uniform(size=chosen.shape) < 0.5
    crossed[:, 0] = np.where(chosen, others[:, 0], crossed[:, 0])
    free = _free_tokens(ordered)
    place = np.arange(free.shape[1], dtype=float)
    # Free tokens first, in the order of their places and in any other.
    places = np.argsort(np.where(free, place, 2 * free.shape[1] + place), axis=1)
    keys = random.uniform(size=free.shape)
    sources = np.argsort(np.where(free, keys, 2 * free.shape[1] + place), axis=1)
    moved = np.take_along_axis(ordered[:, 0], sources, axis=1)
    np.put_along_axis(ordered[:, 0], places, moved, axis=1)
    chosen = _free_tokens(drawn) & (random.uniform(size=free.shape) < 0.5)
    known = X[:, 0][_free_tokens(X)]
    if len(known):
        drawn[:, 0] = np.where(chosen, random.choice(known, size=chosen.shape), drawn[:, 0])
    return np.concatenate([crossed, ordered, drawn])


def _free_tokens(X: NDArray[Any]) -> BoolArray:
    """Tokens that may change: not the first of a text, and no padding, (n, length)."""
    free = X[:, 1] != 0 if X.shape[1] > 1 else np.ones(X[:, 0].shape, dtype=bool)
    return free & (np.cumsum(free, axis=1) > 1)


def _gathered(X: Any, rows: NDArray[np.intp]) -> Any:
    """A table whose columns come from rows of their own, (n, n_columns)."""
    if not isinstance(X, pd.DataFrame):
        return X[rows, np.arange(X.shape[1])]
    columns = [X.iloc[rows[:, k], [k]].reset_index(drop=True) for k in range(X.shape[1])]
    return pd.concat(columns, axis=1)


def _drawn(X: Any, n: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """The same row for all columns, (n, n_columns)."""
    return np.repeat(random.randint(len(X), size=(n, 1)), X.shape[1], axis=1)


def _crossed(X: Any, n: int, random: np.random.RandomState) -> Any:
    first, second = _drawn(X, n, random), _drawn(X, n, random)
    return _gathered(X, np.where(random.uniform(size=first.shape) < 0.5, first, second))


def _shuffled(X: Any, n: int, random: np.random.RandomState) -> Any:
    return _gathered(X, random.randint(len(X), size=(n, X.shape[1])))


def _numbers(X: Any) -> FloatArray:
    """Columns as floats, those that are no numbers, or take two values at most, as NaN."""
    if not isinstance(X, pd.DataFrame):
        columns = np.array(X, dtype=np.float64)
    else:
        columns = np.full(X.shape, np.nan)
        for k in range(X.shape[1]):
            column = X.iloc[:, k].infer_objects()  # here alone: of text, it would replace None
            if is_numeric_dtype(column) and not is_bool_dtype(column):
                columns[:, k] = column.to_numpy(dtype=float, na_value=np.nan)
    columns[:, [len(np.unique(c[~np.isnan(c)])) <= 2 for c in columns.T]] = np.nan
    return columns


def _some(
    columns: Sequence[int] | NDArray[np.intp], shape: tuple[int, int], random: np.random.RandomState
) -> BoolArray:
    """Marks in each row at least one of some columns, and up to half of them."""
    share = random.uniform(0, 0.5, size=(shape[0], 1))
    chosen = np.zeros(shape, dtype=bool)
    chosen[:, columns] = random.uniform(size=(shape[0], len(columns))) < share
    chosen[np.arange(shape[0]), random.choice(columns, size=shape[0])] = True
    return chosen


def _out_of_range(X: Any, n: int, random: np.random.RandomState) -> Any:
    known = _numbers(X)
    columns = np.flatnonzero(~np.isnan(known).all(axis=0))
    if not len(columns):
        return None
    low, high = np.full(X.shape[1], np.nan), np.full(X.shape[1], np.nan)
    low[columns], high[columns] = (f(known[:, columns], axis=0) for f in (np.nanmin, np.nanmax))
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(columns, made.shape, random)
    # From a tenth to ten times of its range beyond either end.
    distance = (high - low) * 10 ** random.uniform(-1, 1, size=made.shape)
    far = np.where(random.uniform(size=made.shape) < 0.5, high + distance, low - distance)
    if not isinstance(X, pd.DataFrame):
        if X.dtype.kind == "f":
            return np.where(chosen, far, made).astype(X.dtype)
        whole = made.astype(np.int64)  # a small type would wrap
        whole[chosen] = np.clip(np.rint(far[chosen]), -_LARGEST_WHOLE, _LARGEST_WHOLE)
        return whole
    for k in columns:
        made.isetitem(k, made.iloc[:, k].astype(float).mask(chosen[:, k], far[:, k]))
    return made


def _unseen(X: Any, n: int, random: np.random.RandomState) -> Any:
    if not isinstance(X, pd.DataFrame):
        return None
    columns = [k for k in range(X.shape[1]) if infer_dtype(X.iloc[:, k]) in _CATEGORIES]
    if not columns:
        return None
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(columns, made.shape, random)
    for k in columns:
        column = made.iloc[:, k]
        categorical = isinstance(column.dtype, pd.CategoricalDtype)
        made.isetitem(k, column.mask(chosen[:, k], np.nan if categorical else UNSEEN))
    return made


_TABLE = {
    "crossed": _crossed,
    "shuffled": _shuffled,
    "out_of_range": _out_of_range,
    "unseen": _unseen,
}
SEEN = ("crossed", "shuffled", "out_of_range")  # of known categories alone
KNOWN = ("crossed", "shuffled")  # of known values alone
