"""Pools of inputs, made from training inputs, on which adversarial models are searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, check_random_state

from skuq.extras import import_networks
from skuq.quam import _table_pools, _text_pools
from skuq.validation import as_pandas, as_table_of, is_texts, to_dense

_FEWEST, _MOST = 500, 3000
_FEWEST_AGAIN = 100  # that are drawn to replace some
_MOST_DRAWS = 10  # of a kind, until there are enough inputs that differ from the training inputs
Maker = Callable[[Any, int, np.random.RandomState], Any]


def make_pool(
    X: Any,
    *,
    kinds: Sequence[str] | None = None,
    n_inputs: int | None = None,
    categories: Sequence[int | str] = (),
    random_state: Any = None,
) -> Any:
    """Make inputs that resemble the training inputs, but are not of their kind.

    No training input is among them.

    Parameters
    ----------
    X : ndarray, sparse matrix or DataFrame of shape (n_samples, n_features), or list or array of \
str of shape (n_samples,), or ndarray of shape (n_samples, channels, length) or (n_samples, \
channels, height, width)
        Training inputs: a table, texts, sequences or images.
    kinds : sequence of str, default=None
        What is made, in equal numbers; None takes all kinds that there are.

        - Tables: "crossed" (each column from one of two rows), "shuffled" (each column from a
          row of its own), "out_of_range" (up to three numbers far outside their range), "unseen"
          (up to three categories that do not occur), and in columns of texts the kinds of texts.
          Where all rows are floats of the same norm, as embeddings are, the rows made have this
          norm too, and there are none out of range.
        - Texts: "mixed_words" (words of several texts), "shuffled_words" (in another order),
          "truncated" (the first words, up to half of them), "other_script" (letters of another
          alphabet).
        - Sequences and images: "moved" (turned, sheared and scaled images; shifted and
          stretched sequences), "warped" (smoothly distorted), "halves" (two halves of
          different inputs), "overlaid" (the larger of two values everywhere), "erased" (a part
          replaced by the median), "inverted", "patches" (pieces in another order), "noise"
          (smooth, of the same range).
    n_inputs : int, default=None
        How many, over all kinds that `X` allows, rounded to a multiple of their number; fewer if
        some kind makes little else than training inputs. None takes the number of training
        inputs, but at least 500 and at most 3,000.
    categories : sequence of int or str, default=()
        Positions or names of the columns of a table whose numbers are codes of categories. Columns
        of pandas' category type and of text are known to be categories; columns of texts of
        several words, nearly all of which differ, are not.
    random_state : int, RandomState instance or None, default=None
        Randomness.

    Returns
    -------
    ndarray, DataFrame or table of X's library
        Inputs of the same form. Numbers of a DataFrame become floats, and whole numbers of an
        array int64; in columns of pandas' category type, and in those of codes, which become
        floats, an unseen category is a missing value.

    Raises
    ------
    ValueError
        If a kind or a category is unknown, or nothing can be made of `X`.

    Examples
    --------
    >>> import pandas as pd
    >>> X = pd.DataFrame({"age": [20.0, 30.0, 40.0], "town": ["Ulm", "Ulm", "Linz"]})
    >>> make_pool(X, kinds=["unseen"], n_inputs=2, random_state=0)
        age      town
    0  20.0  (unseen)
    1  30.0  (unseen)
    >>> make_pool(["where is my bag", "is it far"], kinds=["truncated"], n_inputs=2, random_state=0)
    array(['where is', 'is'], dtype=object)
    """
    given, X, random = X, as_pandas(X), check_random_state(random_state)
    if not isinstance(X, pd.DataFrame) and not is_texts(X):
        X = np.asarray(to_dense(X))
        if X.ndim == 2 and X.dtype.kind not in "fiub":
            options: dict[str, Any] = {"kinds": kinds, "n_inputs": n_inputs}
            made = make_pool(pd.DataFrame(X), **options, categories=categories, random_state=random)
            return made.to_numpy(dtype=object)
    makers = _makers(X, categories)
    names = _table_pools.KINDS if np.ndim(X) == 2 else makers
    unknown = set(kinds or ()) - set(names)
    if unknown:
        raise ValueError(f"Unknown kinds of pool {sorted(unknown)}; there are {list(names)}.")
    chosen = list(kinds or makers)
    X = _text_pools.known_texts(X) if np.ndim(X) == 1 else X
    makers = {kind: makers[kind] for kind in chosen if kind in makers}
    pool = _pool(X, makers, n_inputs, random) if makers else None
    if pool is None:
        n = "1 sample" if len(X) == 1 else f"{len(X)} samples"
        raise ValueError(
            f"X, of {n}, has no columns or words of which {chosen} could be made. "
            f"{_text_pools.PASS_A_POOL}"
        )
    return as_table_of(given, pool) if isinstance(pool, pd.DataFrame) else pool


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
        How many, rounded to a multiple of three; fewer if little else than training texts can be
        made. None makes as many as there are training texts, but at least 500 and at most 3,000.
    random_state : int, RandomState instance or None, default=None
        Randomness.

    Returns
    -------
    ndarray of shape (n_inputs, n_fields, length)
        Texts of the same form, none of them a training text.

    Raises
    ------
    ValueError
        If nothing can be made of `X`.

    Examples
    --------
    >>> make_token_pool([[[7, 1, 2, 3]], [[7, 4, 5, 6]]], n_inputs=3, random_state=0).shape
    (3, 1, 4)
    """
    X, random = np.asarray(X), check_random_state(random_state)
    pool = _pool(X, _text_pools.TOKEN_KINDS, n_inputs, random)
    if pool is None:
        raise ValueError(f"X has no texts of which others could be made. {_text_pools.PASS_A_POOL}")
    return np.asarray(pool)


def _makers(X: Any, categories: Sequence[int | str]) -> dict[str, Maker]:
    """What can be made of these inputs, by kind."""
    n_axes = np.ndim(X)
    if n_axes != 2 and len(categories):
        raise ValueError("`categories` are columns of a table, and X is none.")
    if n_axes == 1:
        return {kind: partial(_texts, alter) for kind, alter in _text_pools.KINDS.items()}
    if n_axes == 2:
        columns = _table_pools.Columns.of(X, _positions(X, categories))
        return {kind: partial(_rows, _table_pools.KINDS[kind], columns) for kind in columns.kinds()}
    if n_axes in (3, 4):
        kinds: dict[str, Maker] = import_networks("skuq.quam._image_pools").KINDS
        return kinds
    raise ValueError(
        "A pool can be made from texts (1 axis), tables (2 axes), sequences (3) or images (4); X "
        f"has {n_axes}. {_text_pools.PASS_A_POOL}"
    )


def _rows(
    make: _table_pools.TableMaker,
    columns: _table_pools.Columns,
    X: Any,
    n: int,
    random: np.random.RandomState,
) -> Any:
    return make(X, columns, n, random)


def _texts(
    alter: _text_pools.TextMaker, X: NDArray[Any], n: int, random: np.random.RandomState
) -> NDArray[Any]:
    return np.array(alter(X[random.randint(len(X), size=n)], X, random), dtype=object)


def _positions(X: Any, categories: Sequence[int | str]) -> list[int]:
    """Positions of columns that are given by position or name."""
    names = list(X.columns) if isinstance(X, pd.DataFrame) else []
    known: dict[Any, int] = {k: k for k in range(X.shape[1])}
    known |= {name: k for k, name in enumerate(names)}
    unknown = [each for each in categories if each not in known]
    if unknown:
        raise ValueError(f"`categories` names {unknown}, which X lacks; it has {names or X.shape}.")
    return sorted({known[each] for each in categories})


def _pool(
    X: Any, makers: Mapping[str, Maker], n_inputs: int | None, random: np.random.RandomState
) -> Any:
    """Inputs of each kind in turn, none of which is a training input; None if there are none."""
    if n_inputs is None:
        n_inputs = min(max(len(X), _FEWEST), _MOST)
    n_each, known = max(1, n_inputs // len(makers)), _Known(X)
    made = [part for make in makers.values() for part in _new(make, X, n_each, known, random)]
    if not made:
        return None
    if isinstance(X, pd.DataFrame):
        return pd.concat(made, ignore_index=True)
    return np.concatenate(made)


def _new(make: Maker, X: Any, n: int, known: _Known, random: np.random.RandomState) -> list[Any]:
    """Inputs of a kind, drawn again where they are training inputs."""
    parts: list[Any] = []
    lacking = n
    for _ in range(_MOST_DRAWS):
        made = make(X, n, random)
        fresh = np.flatnonzero(~known.hold(made))[:lacking]
        if len(fresh):
            parts.append(_safe_indexing(made, fresh))
        lacking -= len(fresh)
        if not lacking:
            break
        n = max(lacking, _FEWEST_AGAIN)
    return parts


class _Known:
    """Training inputs, among which others are looked up."""

    def __init__(self, X: Any):
        self.X = X
        self.keys: dict[Any, NDArray[Any]] = {}  # by type, which decides on the bytes

    def hold(self, made: Any) -> NDArray[np.bool_]:
        """Which inputs are training inputs, (n,)."""
        kind = None if isinstance(made, pd.DataFrame) else made.dtype
        if kind not in self.keys:
            self.keys[kind] = _keys(self.X if kind is None else self.X.astype(kind))
        return np.isin(_keys(made), self.keys[kind])


def _keys(X: Any) -> NDArray[Any]:
    """A number for each input, equal for equal inputs, (n,)."""
    if isinstance(X, pd.DataFrame):
        return pd.util.hash_pandas_object(X, index=False).to_numpy()
    if X.dtype == object:
        return pd.util.hash_array(X)
    return np.array([hash(row.tobytes()) for row in X])
