"""Pools of inputs for the search for adversarial models, generated from training inputs."""

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

_FEWEST, _MOST = 500, 3000  # limits of the default `n_inputs`
# Generated inputs that equal a training input are replaced. At least this number of inputs is
# generated as a replacement.
_FEWEST_AGAIN = 100
_MOST_DRAWS = 10  # maximum number of attempts, per kind, to generate enough new inputs
Maker = Callable[[Any, int, np.random.RandomState], Any]


def make_pool(
    X: Any,
    *,
    kinds: Sequence[str] | None = None,
    n_inputs: int | None = None,
    categories: Sequence[int | str] = (),
    random_state: Any = None,
) -> Any:
    """Generate unusual inputs by altering training inputs.

    The pool contains no training input.

    Parameters
    ----------
    X : ndarray, sparse matrix or DataFrame of shape (n_samples, n_features), or list or array of \
str of shape (n_samples,), or ndarray of shape (n_samples, channels, length) or (n_samples, \
channels, height, width)
        Training inputs: a table, texts, sequences or images.
    kinds : sequence of str, default=None
        Kinds of alteration, in equal numbers; None uses all kinds that apply to `X`.

        - Tables: "crossed" (each column from one of two rows), "shuffled" (each column from a
          different row), "out_of_range" (numbers far outside their range: in up to three columns of
          every second row, and in up to half of the columns of the other rows), "unseen"
          (categories that do not occur in `X`, in columns chosen in the same way), and the kinds
          for texts in text columns. If all rows are floats with the same norm, such as embeddings,
          the generated rows have this norm, too, and "out_of_range" does not apply.
        - Texts: "mixed_words" (words of several texts), "shuffled_words" (words in random order),
          "truncated" (the first words, up to half of them), "other_script" (letters of a
          different alphabet).
        - Sequences and images: "moved" (rotated, sheared and scaled images; shifted and
          stretched sequences), "warped" (smoothly distorted), "halves" (two halves of
          different inputs), "overlaid" (elementwise maximum of two inputs), "erased" (a part
          replaced by the median), "inverted", "patches" (patches in random order), "noise"
          (smooth noise in the range of the values).
    n_inputs : int, default=None
        Size of the pool over all kinds, rounded to a multiple of the number of kinds. The pool is
        smaller if most inputs that a kind generates equal training inputs. None: the number of
        training inputs, but at least 500 and at most 3,000.
    categories : sequence of int or str, default=()
        Positions or names of table columns whose numbers are codes of categories. Columns of
        pandas' category type and string columns are detected as categories. String columns count
        as texts if nearly all values differ and most have several words.
    random_state : int, RandomState instance or None, default=None
        Seed.

    Returns
    -------
    ndarray, DataFrame or table of X's library
        Inputs of the same form. Numbers of a DataFrame become floats, and integers of an array
        become int64. In columns of pandas' category type and in columns of codes, an unseen
        category is a missing value; columns of codes become floats.

    Raises
    ------
    ValueError
        If a kind or a category is unknown, or no kind applies to `X`.

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
        raise ValueError(
            f"Unknown kinds of pool inputs {sorted(unknown)}; the available kinds are "
            f"{list(names)}."
        )
    chosen = list(kinds or makers)
    X = _text_pools.known_texts(X) if np.ndim(X) == 1 else X
    makers = {kind: makers[kind] for kind in chosen if kind in makers}
    pool = _pool(X, makers, n_inputs, random) if makers else None
    if pool is None:
        n = "1 sample" if len(X) == 1 else f"{len(X)} samples"
        raise ValueError(
            f"No pool of kinds {chosen} can be generated from the columns or words of X ({n}). "
            f"{_text_pools.PASS_A_POOL}"
        )
    return as_table_of(given, pool) if isinstance(pool, pd.DataFrame) else pool


def make_token_pool(
    X: ArrayLike, *, n_inputs: int | None = None, random_state: Any = None
) -> NDArray[Any]:
    """Generate meaningless token sequences by altering training texts.

    In one third of the pool, each token comes from one of two texts. In the second third, the
    tokens are in random order. In the last third, half of the tokens are replaced by tokens drawn
    from all texts. The first token, which is usually a special token such as [CLS], and the
    padding are not changed.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_fields, length)
        Tokens, stacked as by `skuq.models.as_rows`: token ids, then the attention mask, which is
        0 for padding, then token types.
    n_inputs : int, default=None
        Size of the pool, rounded to a multiple of three. The pool is smaller if most generated
        texts equal training texts. None: the number of training texts, but at least 500 and at
        most 3,000.
    random_state : int, RandomState instance or None, default=None
        Seed.

    Returns
    -------
    ndarray of shape (n_inputs, n_fields, length)
        Texts of the same form, none of which is a training text.

    Raises
    ------
    ValueError
        If no texts can be generated from `X`.

    Examples
    --------
    >>> make_token_pool([[[7, 1, 2, 3]], [[7, 4, 5, 6]]], n_inputs=3, random_state=0).shape
    (3, 1, 4)
    """
    X, random = np.asarray(X), check_random_state(random_state)
    pool = _pool(X, _text_pools.TOKEN_KINDS, n_inputs, random)
    if pool is None:
        raise ValueError(
            "No pool can be generated from the texts of X, because every altered text is a "
            f"training text. {_text_pools.PASS_A_POOL}"
        )
    return np.asarray(pool)


def _makers(X: Any, categories: Sequence[int | str]) -> dict[str, Maker]:
    """Functions that generate inputs from `X`, by kind."""
    n_axes = np.ndim(X)
    if n_axes != 2 and len(categories):
        raise ValueError(
            f"`categories` names columns of a table, but X has {n_axes} axes instead of 2; omit "
            "`categories`."
        )
    if n_axes == 1:
        return {kind: partial(_texts, alter) for kind, alter in _text_pools.KINDS.items()}
    if n_axes == 2:
        columns = _table_pools.Columns.of(X, _positions(X, categories))
        return {kind: partial(_rows, _table_pools.KINDS[kind], columns) for kind in columns.kinds()}
    if n_axes in (3, 4):
        kinds: dict[str, Maker] = import_networks("skuq.quam._image_pools").KINDS
        return kinds
    raise ValueError(
        "A pool can be generated from texts (1 axis), tables (2 axes), sequences (3) or images "
        f"(4); X has {n_axes}. {_text_pools.PASS_A_POOL}"
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
    """Convert column names or positions to positions."""
    names = list(X.columns) if isinstance(X, pd.DataFrame) else []
    known: dict[Any, int] = {k: k for k in range(X.shape[1])}
    known |= {name: k for k, name in enumerate(names)}
    unknown = [each for each in categories if each not in known]
    if unknown:
        columns = f"the columns of X are {names}" if names else f"X has {X.shape[1]} columns"
        raise ValueError(f"`categories` names columns {unknown}, which X does not have; {columns}.")
    return sorted({known[each] for each in categories})


def _pool(
    X: Any, makers: Mapping[str, Maker], n_inputs: int | None, random: np.random.RandomState
) -> Any:
    """Generate inputs of each kind, without training inputs; None if no input is left."""
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
    """Generate `n` inputs of a kind, and replace those that are training inputs."""
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
    """Hash table of the training inputs."""

    def __init__(self, X: Any):
        self.X = X
        # Keys of the training inputs for each dtype, because the bytes of an input depend on it.
        self.keys: dict[Any, NDArray[Any]] = {}

    def hold(self, made: Any) -> NDArray[np.bool_]:
        """Boolean mask of the inputs that are training inputs, (n,)."""
        kind = None if isinstance(made, pd.DataFrame) else made.dtype
        if kind not in self.keys:
            self.keys[kind] = _keys(self.X if kind is None else self.X.astype(kind))
        return np.isin(_keys(made), self.keys[kind])


def _keys(X: Any) -> NDArray[Any]:
    """Hash of each input, (n,)."""
    if isinstance(X, pd.DataFrame):
        return pd.util.hash_pandas_object(X, index=False).to_numpy()
    if X.dtype == object:
        return pd.util.hash_array(X)
    return np.array([hash(row.tobytes()) for row in X])
