"""Generate pools of inputs, for searches for adversarial models, from training inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype
from scipy.sparse import issparse, vstack
from scipy.sparse.linalg import norm as sparse_norm
from sklearn.utils import _safe_indexing, check_random_state, gen_batches
from sklearn.utils.validation import _num_samples

from skuq.base import BoolArray, FloatArray
from skuq.imports import import_networks
from skuq.validation import as_pandas, as_table_of, is_texts, to_dense

_FEWEST, _MOST = 500, 3000  # minimum and maximum of the default `n_inputs`
_FEWEST_AGAIN = 100  # minimum number of inputs drawn to replace those that equal training inputs
_MOST_DRAWS = 10  # maximum number of draws for each kind of alteration, until enough inputs are new
UNSEEN = "(unseen)"  # a category that does not occur in training rows
# Results of `infer_dtype` for columns of categories, thus not for dates, booleans and numbers.
_CATEGORIES = {"categorical", "string", "mixed", "mixed-integer"}
_LARGEST_WHOLE = 2.0**63 - 1024  # largest float that fits into int64
# Maximum number of altered columns in every second row, because the effects of many altered columns
# could mask each other.
_FEW = 3
_SAME_NORM = 1e-3  # norms of rows count as equal within this relative tolerance (half precision)
_ROUNDING = 1e-6  # generated rows are kept if their norm is right within this relative tolerance
_CELLS_AT_ONCE = 2**22  # maximum cells per batch of sparse rows, which are altered as dense arrays
_PASSES = 50  # number of times that `_with_norm` scales and clips rows
_N_SOURCES = 3  # number of other texts whose words are mixed into a text
_SHARE_DIFFERENT = 0.9  # minimum fraction of distinct values in a text column
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "אבגדהוזחטיכלמנסעפצקרשת",
)
_PASS_A_POOL = (
    "Pass your own inputs as `X_pool` to `fit`, or a function that generates them as `pool` of the "
    "search."
)
Random = np.random.RandomState
Maker = Callable[[Any, int, Random], Any]


def make_pool(
    X: Any,
    *,
    kinds: Sequence[str] | None = None,
    n_inputs: int | None = None,
    categories: Sequence[int | str] = (),
    random_state: Any = None,
) -> Any:
    """Generate unusual inputs by altering training inputs; no result equals a training input.

    Parameters
    ----------
    X : ndarray, sparse matrix or DataFrame of shape (n_samples, n_features), or list or array of \
str of shape (n_samples,), or ndarray of shape (n_samples, channels, length) or (n_samples, \
channels, height, width)
        Training inputs: a table, texts, sequences or images.
    kinds : sequence of str, default=None
        Kinds of alteration, in equal numbers; None uses all kinds that apply to `X`.

        - Tables: "crossed" (each value comes from one of two rows), "shuffled" (each value comes
          from a random row), "out_of_range" (numbers far outside the range of their column: in up
          to three columns of every second row, and in up to half of the columns of the other rows),
          "unseen" (categories that do not occur in `X`, in columns chosen in the same way), and the
          kinds for texts, in text columns. If all rows are floats with the same norm, such as
          embeddings, the generated rows also have this norm, and "out_of_range" does not apply.
        - Texts: "mixed_words" (words of several texts), "shuffled_words" (words in random order),
          "truncated" (the first words, at most half of all words), "other_script" (letters of a
          different alphabet).
        - Sequences and images: "moved" (rotated, sheared and scaled images; shifted and
          stretched sequences), "warped" (smoothly distorted), "halves" (two halves of
          different inputs), "overlaid" (elementwise maximum of two inputs), "erased" (a part
          replaced by the median), "inverted", "patches" (patches in random order), "noise"
          (smooth noise in the range of the values).
    n_inputs : int, default=None
        Size of the pool, all kinds together, rounded down to a multiple of the number of kinds. The
        pool is smaller if most inputs that a kind generates equal training inputs. None: the number
        of training inputs, but at least 500 and at most 3,000.
    categories : sequence of int or str, default=()
        Positions or names of table columns whose numbers are codes of categories. Columns of
        pandas' category type and string columns are detected as categories. A string column counts
        as texts instead if nearly all values differ and most values have several words.
    random_state : int, RandomState instance or None, default=None
        Seed.

    Returns
    -------
    ndarray, sparse matrix, DataFrame or table of X's library
        Inputs of the same form as `X`. Numbers of a DataFrame become floats, and integers of an
        array become int64. In columns of pandas' category type and in columns of codes, a missing
        value stands for an unseen category; columns of codes become floats.

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
    if issparse(X):
        # Leave out columns that contain only zeros; in the pool, these are zero as well.
        X = X.tocsr(copy=True)
        X.sum_duplicates()
        X.eliminate_zeros()
        declared = _positions(X, categories)
        kept = np.union1d(X.indices, declared).astype(X.indices.dtype)  # trees need 32-bit indices
        X, categories = X[:, kept], np.searchsorted(kept, declared).tolist()
    elif not isinstance(X, pd.DataFrame) and not is_texts(X):
        X = np.asarray(X)
        X = pd.DataFrame(X) if X.ndim == 2 and X.dtype.kind not in "fiub" else X
    makers = _makers(X, categories)
    names = TABLE_KINDS if np.ndim(X) == 2 else makers
    unknown = set(kinds or ()) - set(names)
    if unknown:
        raise ValueError(
            f"Unknown kinds of pool inputs {sorted(unknown)}; the available kinds are "
            f"{list(names)}."
        )
    chosen = list(kinds or makers)
    X = _known_texts(X) if np.ndim(X) == 1 else X
    makers = {kind: makers[kind] for kind in chosen if kind in makers}
    pool = _pool(X, makers, n_inputs, random)
    if issparse(X):
        shape = pool.shape[0], given.shape[1]
        return type(X)((pool.data, kept[pool.indices], pool.indptr), shape=shape)
    if not isinstance(pool, pd.DataFrame):
        return pool
    return as_table_of(given, pool) if hasattr(given, "columns") else pool.to_numpy(object)


def make_token_pool(
    X: ArrayLike,
    *,
    special: Sequence[int] = (),
    n_inputs: int | None = None,
    random_state: Any = None,
) -> NDArray[Any]:
    """Generate meaningless token sequences, (n_inputs, n_fields, length), from training texts.

    The fields of `X` are those of `skuq.models.as_rows`: token ids, the attention mask, which is 0
    for padding, and token types. In one third of the pool, each token comes from one of two texts;
    in the second third, the tokens are in random order; in the last third, half of the tokens are
    drawn from all texts. Padding and special tokens do not change. Special tokens are the ids in
    `special`, and ids that all texts have at the same distance from the first or last token, such
    as [CLS] and [SEP].
    """
    random, X = check_random_state(random_state), np.asarray(X)
    special = [*special, *_shared_tokens(X)]
    kinds = {kind: partial(alter, special) for kind, alter in _TOKEN_KINDS.items()}
    return np.asarray(_pool(X, kinds, n_inputs, random))


def _makers(X: Any, categories: Sequence[int | str]) -> dict[str, Maker]:
    n_axes = np.ndim(X)
    if n_axes != 2 and len(categories):
        raise ValueError(
            f"`categories` is for tables, which have 2 axes, but X has {n_axes}; omit `categories`."
        )
    if n_axes == 1:
        return {kind: partial(_texts, alter) for kind, alter in _TEXT_KINDS.items()}
    if n_axes == 2:
        columns = Columns.of(X, _positions(X, categories))
        return {kind: partial(TABLE_KINDS[kind], columns) for kind in columns.kinds()}
    if n_axes in (3, 4):
        kinds: dict[str, Maker] = import_networks("skuq.quam._image_pools").KINDS
        return kinds
    raise ValueError(
        "A pool can be generated from texts (1 axis), tables (2 axes), sequences (3) or images "
        f"(4); X has {n_axes} axes. {_PASS_A_POOL}"
    )


def _texts(alter: TextMaker, X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    return np.array(alter(X[random.randint(len(X), size=n)], X, random), dtype=object)


def _positions(X: Any, categories: Sequence[int | str]) -> list[int]:
    names = list(X.columns) if isinstance(X, pd.DataFrame) else []
    known: dict[Any, int] = {k: k for k in range(X.shape[1])}
    known |= {name: k for k, name in enumerate(names)}
    unknown = [each for each in categories if each not in known]
    if unknown:
        columns = f"the columns of X are {names}" if names else f"X has {X.shape[1]} columns"
        raise ValueError(f"`categories` contains {unknown}, which are not columns of X; {columns}.")
    return sorted({known[each] for each in categories})


def _pool(X: Any, makers: Mapping[str, Maker], n_inputs: int | None, random: Random) -> Any:
    if n_inputs is None:
        n_inputs = min(max(_num_samples(X), _FEWEST), _MOST)
    n_each = max(1, n_inputs // max(1, len(makers)))
    # Hashes of the training inputs by dtype, because the bytes of an input depend on its dtype.
    known: dict[Any, NDArray[Any]] = {}
    made = []
    for make in makers.values():
        n = lacking = n_each
        for _ in range(_MOST_DRAWS):
            drawn = _sparse_rows(make, X, n, random) if issparse(X) else make(X, n, random)
            kind = None if isinstance(drawn, pd.DataFrame) else drawn.dtype
            if kind not in known:
                known[kind] = _keys(X if kind is None else X.astype(kind))
            fresh = np.flatnonzero(~np.isin(_keys(drawn), known[kind]))[:lacking]
            if len(fresh):
                made.append(_safe_indexing(drawn, fresh))
            lacking -= len(fresh)
            if not lacking:
                break
            n = max(lacking, _FEWEST_AGAIN)
    if not made:
        raise ValueError(
            f"No pool of kinds {list(makers)} can be generated from X ({_num_samples(X)} "
            f"sample(s)): no kind applies, or all results equal training inputs. {_PASS_A_POOL}"
        )
    if isinstance(X, pd.DataFrame):
        return pd.concat(made, ignore_index=True)
    return vstack(made, format="csr") if issparse(X) else np.concatenate(made)


def _keys(X: Any) -> NDArray[Any]:
    """Hash each input, (n,)."""
    if isinstance(X, pd.DataFrame):
        return pd.util.hash_pandas_object(X, index=False).to_numpy()
    if X.dtype == object:
        return pd.util.hash_array(X)
    if issparse(X) and X.shape[0]:
        parts = (np.split(part, X.indptr[1:-1]) for part in (X.indices.astype(np.int64), X.data))
        return np.array([hash((k.tobytes(), x.tobytes())) for k, x in zip(*parts, strict=True)])
    return np.array([hash(row.tobytes()) for row in X], dtype=np.int64)


def _is_text_column(column: pd.Series) -> bool:
    """Whether a column contains texts: nearly all values differ, and most have several words."""
    if isinstance(column.dtype, pd.CategoricalDtype) or infer_dtype(column) != "string":
        return False
    values = column.dropna()
    if values.nunique() < _SHARE_DIFFERENT * len(values):
        return False
    n_words = [sum(any(map(str.isalpha, word)) for word in text.split()) for text in values]
    return float(np.median(n_words)) >= 2


def _known_texts(X: Any) -> NDArray[Any]:
    """Select the texts that are not blank; raise ValueError if all are blank."""
    texts = [text for text in X if isinstance(text, str) and text.strip()] if is_texts(X) else []
    if not texts:
        raise ValueError(
            "X has one axis but contains no texts, or only blank texts, from which a pool can be "
            f"generated. {_PASS_A_POOL}"
        )
    return np.array(texts, dtype=object)


def _mixed_words(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    made = []
    for text in own:
        sources = [text, *known[random.randint(len(known), size=_N_SOURCES)]]
        words = np.concatenate([np.array(each.split(), dtype=object) for each in sources])
        made.append(" ".join(random.choice(words, size=len(text.split()))))
    return made


def _shuffled_words(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    return [" ".join(random.permutation(np.array(text.split(), dtype=object))) for text in own]


def _truncated(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    """Keep at most the first half of the words or, if a text is one word, of the letters."""
    made = []
    for text in own:
        words, gap = (text.split(), " ") if len(text.split()) > 1 else (list(text.strip()), "")
        made.append(gap.join(words[: random.randint(1, max(2, len(words) // 2 + 1))]))
    return made


def _other_script(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    """Replace the letters of each text by letters of an alphabet that the text does not use."""
    made = []
    for text in own:
        others = [each for each in _ALPHABETS if not set(each) & set(text.lower())]
        alphabet, shift = others[random.randint(len(others))], random.randint(100)
        letters = {c: alphabet[(ord(c.lower()) + shift) % len(alphabet)] for c in text}
        made.append("".join(letters[c] if c.isalpha() else c for c in text))
    return made


TextMaker = Callable[[NDArray[Any], NDArray[Any], Random], list[str]]
_TEXT_KINDS: dict[str, TextMaker] = {
    "mixed_words": _mixed_words,
    "shuffled_words": _shuffled_words,
    "truncated": _truncated,
    "other_script": _other_script,
}


def _crossed_tokens(special: Any, X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    made, others = (X[random.randint(len(X), size=n)] for _ in range(2))
    chosen = _free_tokens(made, special) & _free_tokens(others, special)
    chosen &= random.uniform(size=chosen.shape) < 0.5
    made[:, 0] = np.where(chosen, others[:, 0], made[:, 0])
    return made


def _moved_tokens(special: Any, X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    made = X[random.randint(len(X), size=n)]
    free = _free_tokens(made, special)
    place = np.arange(free.shape[1], dtype=float)
    # `places` and `sources` both begin with the positions of the free tokens: `places` in
    # increasing order, `sources` in random order.
    places = np.argsort(np.where(free, place, 2 * free.shape[1] + place), axis=1)
    keys = random.uniform(size=free.shape)
    sources = np.argsort(np.where(free, keys, 2 * free.shape[1] + place), axis=1)
    moved = np.take_along_axis(made[:, 0], sources, axis=1)
    np.put_along_axis(made[:, 0], places, moved, axis=1)
    return made


def _drawn_tokens(special: Any, X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    """Replace half of the tokens by tokens drawn from all texts."""
    made, known = X[random.randint(len(X), size=n)], X[:, 0][_free_tokens(X, special)]
    free = _free_tokens(made, special)
    if len(known):
        chosen = free & (random.uniform(size=free.shape) < 0.5)
        made[:, 0] = np.where(chosen, random.choice(known, size=free.shape), made[:, 0])
    return made


def _free_tokens(X: NDArray[Any], special: Sequence[int]) -> BoolArray:
    """Return a mask of the tokens that are neither special nor padding, (n, length)."""
    return _are_tokens(X) & ~np.isin(X[:, 0], special)


def _are_tokens(X: NDArray[Any]) -> BoolArray:
    """Return a mask of the tokens that are not padding, (n, length)."""
    return X[:, 1] != 0 if X.shape[1] > 1 else np.ones(X[:, 0].shape, dtype=bool)


def _shared_tokens(X: NDArray[Any]) -> NDArray[Any]:
    """Return ids that all texts have at the same distance from the first, or the last, token."""
    shared = []
    for ids, real in ((X[:, 0], _are_tokens(X)), (X[:, 0, ::-1], _are_tokens(X)[:, ::-1])):
        order = np.argsort(~real, axis=1, kind="stable")[:, : real.sum(axis=1).min()]
        begins = np.take_along_axis(ids, order, axis=1)
        shared.append(begins[0, (begins == begins[0]).all(axis=0)])
    return np.concatenate(shared)


_TOKEN_KINDS = {"crossed": _crossed_tokens, "moved": _moved_tokens, "drawn": _drawn_tokens}


@dataclass(frozen=True)
class Columns:
    """Kinds of the columns of a table, and ranges of their numbers."""

    low: FloatArray  # minimum of each column; NaN if not numeric, or if at most two values occur
    high: FloatArray  # maximum of each column; NaN where `low` is NaN
    categories: list[int]  # positions of the columns of categories
    texts: list[int]  # positions of the columns of texts
    norm: float | None  # norm of the rows if all have the same norm, as embeddings have

    @classmethod
    def of(cls, X: Any, declared: Sequence[int]) -> Self:
        """Classify the columns of an array or DataFrame; `declared` columns are categories."""
        low, high = _sparse_ranges(X) if issparse(X) else _ranges(X)
        low[declared] = np.nan
        if not isinstance(X, pd.DataFrame):
            return cls(low, high, [*declared], [], None if declared else _shared_norm(X, low))
        columns = [X.iloc[:, k] for k in range(X.shape[1])]
        texts = [k for k, c in enumerate(columns) if k not in declared and _is_text_column(c)]
        known = {k for k, column in enumerate(columns) if infer_dtype(column) in _CATEGORIES}
        norm = None
        if all(dtype.kind == "f" for dtype in X.dtypes) and not declared:
            norm = _shared_norm(X.to_numpy(), low)
        return cls(low, high, sorted(known.difference(texts).union(declared)), texts, norm)

    def kinds(self) -> list[str]:
        """List the kinds of alteration that apply to these columns."""
        has_numbers = self.norm is None and not np.isnan(self.low).all()
        needed = {"out_of_range": has_numbers, "unseen": self.categories}
        return [
            kind
            for kind in TABLE_KINDS
            if needed.get(kind, self.texts if kind in _TEXT_KINDS else True)
        ]


def _ranges(X: Any) -> tuple[FloatArray, FloatArray]:
    """Return minima and maxima of columns; NaN if not numeric, or if at most two values occur."""
    if not isinstance(X, pd.DataFrame):
        columns = np.array(X, dtype=np.float64)
    else:
        columns = np.full(X.shape, np.nan)
        for k in range(X.shape[1]):
            # Convert a copy, because `infer_objects` would replace None in texts of `X`.
            column = X.iloc[:, k].infer_objects()
            if is_numeric_dtype(column) and not is_bool_dtype(column):
                columns[:, k] = column.to_numpy(dtype=float, na_value=np.nan)
    low, high = np.full((2, X.shape[1]), np.nan)
    some = [len(np.unique(c[~np.isnan(c)])) > 2 for c in columns.T]
    low[some], high[some] = (f(columns[:, some], axis=0) for f in (np.nanmin, np.nanmax))
    return low, high


def _sparse_ranges(X: Any) -> tuple[FloatArray, FloatArray]:
    """Return the result of `_ranges` for a sparse matrix."""
    rows, (n, n_columns) = X.astype(np.float64), X.shape
    low, high = (to_dense(f(axis=0)).ravel() for f in (rows.nanmin, rows.nanmax))
    between = X.indices[(low[X.indices] < rows.data) & (rows.data < high[X.indices])]
    has_zero = (low < 0) & (high > 0) & (np.bincount(X.indices, minlength=n_columns) < n)
    low[~has_zero & (np.bincount(between, minlength=n_columns) == 0)] = np.nan
    return low, high


def _shared_norm(X: Any, low: FloatArray) -> float | None:
    """Return the norm of nonzero rows; None if norms differ or no column has 3 distinct values."""
    if X.dtype.kind != "f" or X.shape[0] < 2 or np.isnan(low).all():
        return None
    rows = X.astype(np.float64)
    norms = sparse_norm(rows, axis=1) if issparse(X) else np.linalg.norm(rows, axis=1)
    norm = float(np.median(norms[norms > 0])) if norms.any() else 0.0
    same = np.abs(norms - norm) <= _SAME_NORM * norm
    return norm if norm > 0 and (same | (norms == 0)).all() else None


def _gathered(X: Any, rows: NDArray[np.intp]) -> Any:
    """Build a table with ``X[rows[i, k], k]`` in row i and column k."""
    if not isinstance(X, pd.DataFrame):
        return to_dense(X[rows, np.arange(X.shape[1])])
    columns = {k: X.iloc[rows[:, k], k].reset_index(drop=True) for k in range(X.shape[1])}
    return pd.DataFrame(columns).set_axis(X.columns, axis=1)


def _drawn(X: Any, n: int, random: Random) -> NDArray[np.intp]:
    """Draw a row index for each new row, repeated for all its columns, (n, n_columns)."""
    return np.repeat(random.randint(X.shape[0], size=(n, 1)), X.shape[1], axis=1)


def _sparse_rows(make: Maker, X: Any, n: int, random: Random) -> Any:
    """Make sparse rows, an even number per batch, because `_some` alternates between two limits."""
    size = max(2, _CELLS_AT_ONCE // max(1, X.shape[1]) // 2 * 2)
    parts = [type(X)(make(X, each.stop - each.start, random)) for each in gen_batches(n, size)]
    return vstack(parts, format="csr")


def _crossed(columns: Columns, X: Any, n: int, random: Random) -> Any:
    first, second = _drawn(X, n, random), _drawn(X, n, random)
    rows = np.where(random.uniform(size=first.shape) < 0.5, first, second)
    return _with_norm(X, _gathered(X, rows), columns)


def _shuffled(columns: Columns, X: Any, n: int, random: Random) -> Any:
    rows = random.randint(X.shape[0], size=(n, X.shape[1]))
    return _with_norm(X, _gathered(X, rows), columns)


def _with_norm(X: Any, made: Any, columns: Columns) -> Any:
    """Alternately scale rows to the norm and clip to the ranges; drop rows whose norm is wrong."""
    if columns.norm is None:
        return made
    rows = np.asarray(made, dtype=np.float64)
    few = np.isnan(columns.low)  # columns with at most two values, which are not clipped
    low, high = np.where(few, -np.inf, columns.low), np.where(few, np.inf, columns.high)
    for _ in range(_PASSES):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.clip(rows * (columns.norm / np.where(norms > 0, norms, 1.0)), low, high)
    kept = np.abs(np.linalg.norm(rows, axis=1) - columns.norm) <= _ROUNDING * columns.norm
    if not isinstance(X, pd.DataFrame):
        return rows[kept].astype(X.dtype)
    return pd.DataFrame(rows[kept], columns=X.columns).astype(X.dtypes)


def _some(
    columns: Sequence[int] | NDArray[np.intp], shape: tuple[int, int], random: Random
) -> BoolArray:
    """Draw a mask of columns to alter: 1 to 3 in every second row, up to half in other rows."""
    order = np.argsort(random.uniform(size=(shape[0], len(columns))), axis=1)
    few, many = (min(most, len(columns)) for most in (_FEW, max(_FEW, len(columns) // 2)))
    most = np.where(np.arange(shape[0]) % 2, few, many)[:, None]
    n_each = random.randint(1, most + 1)
    chosen = np.zeros(shape, dtype=bool)
    chosen[:, columns] = order < n_each
    return chosen


def _out_of_range(columns: Columns, X: Any, n: int, random: Random) -> Any:
    low, high = columns.low, columns.high
    numbers = np.flatnonzero(~np.isnan(low))
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(numbers, made.shape, random)
    # Values outside the range, at a distance from it of 0.1 to 10 times its width.
    distance = (high - low) * 10 ** random.uniform(-1, 1, size=made.shape)
    far = np.where(random.uniform(size=made.shape) < 0.5, high + distance, low - distance)
    if not isinstance(X, pd.DataFrame):
        if X.dtype.kind == "f":
            return np.where(chosen, far, made).astype(X.dtype)
        whole = made.astype(np.int64)  # because values out of range could overflow smaller dtypes
        whole[chosen] = np.clip(np.rint(far[chosen]), -_LARGEST_WHOLE, _LARGEST_WHOLE)
        return whole
    for k in numbers:
        made.isetitem(k, made.iloc[:, k].astype(float).mask(chosen[:, k], far[:, k]))
    return made


def _unseen(columns: Columns, X: Any, n: int, random: Random) -> Any:
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(columns.categories, made.shape, random)
    if not isinstance(X, pd.DataFrame):
        return np.where(chosen, np.nan, made)
    for k in columns.categories:
        column = made.iloc[:, k]
        text = infer_dtype(column) in _CATEGORIES - {"categorical"}
        made.isetitem(k, column.mask(chosen[:, k], UNSEEN if text else np.nan))
    return made


def _of_texts(alter: TextMaker) -> TableMaker:
    """Wrap a function that alters texts: the result makes rows with one altered text column."""

    def made(columns: Columns, X: Any, n: int, random: Random) -> Any:
        rows = _gathered(X, _drawn(X, n, random))
        of_row = random.choice(columns.texts, size=n)
        for k in columns.texts:
            texts = rows.iloc[:, k].astype(object).to_numpy(copy=True)
            chosen = np.flatnonzero((of_row == k) & [isinstance(text, str) for text in texts])
            known = X.iloc[:, k].dropna().to_numpy(dtype=object)
            texts[chosen] = alter(texts[chosen], known, random)
            rows.isetitem(k, pd.Series(texts).astype(X.dtypes.iloc[k]))
        return rows

    return made


TableMaker = Callable[[Columns, Any, int, Random], Any]
TABLE_KINDS: dict[str, TableMaker] = {
    "crossed": _crossed,
    "shuffled": _shuffled,
    "out_of_range": _out_of_range,
    "unseen": _unseen,
    **{kind: _of_texts(alter) for kind, alter in _TEXT_KINDS.items()},
}
# Kinds whose rows contain no categories that training rows lack.
SEEN = tuple(kind for kind in TABLE_KINDS if kind != "unseen")
# Kinds in `SEEN` whose rows also contain no numbers outside the ranges of the training rows.
KNOWN = tuple(kind for kind in SEEN if kind != "out_of_range")
