"""Columns that make a row, and words that make a text, uncertain or unusual.

The contribution of a column or word is the mean decrease in uncertainty when values from typical
training rows or texts replace it. Values that training rows lack are called unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from string import punctuation
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing, check_random_state, check_scalar
from sklearn.utils.validation import _num_samples

from skuq.base import BoolArray, FloatArray, IntArray, predict_uncertainty
from skuq.files import stored
from skuq.labels import as_text
from skuq.validation import as_pandas, as_table_of, is_texts, to_dense

Statistic = Callable[[Any], FloatArray]  # function of rows or texts that returns a number for each

MISSING_TEXT = "(missing)"  # category for missing text
SEPARATOR = "; "
N_COLUMNS = 3  # number of columns or words that are named
N_TYPICAL = 20  # number of training inputs whose columns or words are inserted into an input
MOST_COLUMNS = 100  # `UnusualParts` does not support tables with more columns
ALL_DIFFERENT = 50  # if a column has more texts, all different, they are names, not categories
ROUNDING = 1e-6  # relative tolerance for numbers at the ends of a range
FAR = 0.5  # numbers outside a range by more than this fraction of its width are unsupported
CELLS_AT_ONCE = 2**22  # largest number of cells in changed rows that are evaluated together
SMALLEST_SHARE = 0.05  # contributions below this share of epistemic uncertainty are not reported


def as_table(X: Any) -> pd.DataFrame:
    """Convert inputs to a table of numbers and texts, with strings as column names."""
    X = as_pandas(X.toarray() if issparse(X) else X)
    table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).infer_objects()
    table = table.set_axis([str(name) for name in table.columns], axis=1).reset_index(drop=True)
    for name, times in table.select_dtypes(["datetime", "datetimetz", "timedelta"]).items():
        table[name] = times.astype("int64").where(times.notna()) / 1e9  # seconds
    numbers = number_columns(table)
    texts = {
        name: table[name].astype(object).where(table[name].notna(), MISSING_TEXT).map(as_text)
        for name in table.columns
        if name not in numbers
    }
    return table.assign(**texts)


def number_columns(table: pd.DataFrame) -> list[str]:
    """List the names of numeric columns; booleans count as categories."""
    return [str(n) for n, c in table.items() if is_numeric_dtype(c) and not is_bool_dtype(c)]


class ValueMarks(NamedTuple):
    """Masks of values that differ from those of training rows, (n_rows, n_columns) each."""

    unseen: BoolArray  # categories, and missing numbers in columns that were complete in training
    out_of_range: BoolArray  # numbers below the minimum or above the maximum of training
    unsupported: BoolArray  # unseen, or out of range by more than half the width of the range


@stored("tables.training-values")
@dataclass(frozen=True)
class TrainingValues:
    """Categories and ranges of the columns of a training table."""

    categories: dict[str, list[str]]  # of text columns, unless the texts are names
    lowest: dict[str, float]  # minimum of each numeric column; NaN for an empty column
    highest: dict[str, float]
    complete: list[str]  # numeric columns without missing values

    @classmethod
    def of_rows(cls, X: pd.DataFrame, numbers: Sequence[str]) -> TrainingValues:
        """Collect categories and ranges of rows whose columns are numbers or texts."""
        texts = [
            name
            for name in X.columns
            if name not in numbers
            and not (X[name].count() > ALL_DIFFERENT and X[name].dropna().is_unique)
        ]
        return cls(
            {name: sorted(set(X[name].fillna(MISSING_TEXT))) for name in texts},
            {name: float(X[name].min()) for name in numbers},
            {name: float(X[name].max()) for name in numbers},
            [name for name in numbers if X[name].notna().all()],
        )

    def marks(self, X: pd.DataFrame) -> ValueMarks:
        """Compare the values of a table with those of the training rows."""
        complete = set(self.complete)
        unseen = X.isna().to_numpy() & [name in complete for name in X.columns]
        for k, name in enumerate(X.columns):
            if name in self.categories:
                known = {*self.categories[name]}
                unseen[:, k] = [text not in known for text in filled_texts(X.iloc[:, k])]
        limits = self.lowest, self.highest
        low, high = (np.array([each.get(name, np.nan) for name in X.columns]) for each in limits)
        numbers = [name in self.lowest for name in X.columns]
        found = X if all(numbers) else X.loc[:, numbers]
        if not all(map(is_numeric_dtype, found.dtypes)):  # such as texts made from booleans
            found = found.apply(pd.to_numeric, errors="coerce")
        values = np.full(X.shape, np.nan)
        values[:, numbers] = found.to_numpy(dtype=float, na_value=np.nan)
        # Allow for values that were stored at a different precision, such as float32.
        beyond = ROUNDING * np.maximum(np.abs(low), np.abs(high))
        out_of_range = (values < low - beyond) | (values > high + beyond)
        beyond += FAR * (high - low)
        far = (values < low - beyond) | (values > high + beyond)
        return ValueMarks(unseen, out_of_range, unseen | far)


def filled_texts(column: pd.Series) -> list[Any]:
    """List the texts of a column, with MISSING_TEXT for missing values."""
    texts = zip(column.to_numpy(object), column.isna().to_numpy(), strict=True)
    return [MISSING_TEXT if gap else text for text, gap in texts]


def marked_names(marks: BoolArray, names: Any) -> list[str]:
    """Join the names of the marked columns of each row by "; "."""
    joined, names = [""] * len(marks), np.asarray(names, dtype=object)
    for row in np.flatnonzero(marks.any(axis=1)):
        joined[row] = SEPARATOR.join(names[marks[row]])
    return joined


def explain_rows(
    X: Any, typical: Any, epistemic: Statistic, inputs: Sequence[Sequence[int]] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Compute epistemic uncertainty, (n_rows,), and its mean decrease if a column is replaced.

    If rows are encoded, `inputs` lists the positions of the numbers that encode each column.
    """
    if isinstance(X, pd.DataFrame):
        return _explain_table(X, typical, epistemic)
    inputs = [[k] for k in range(X.shape[1])] if inputs is None else inputs
    own, contribution = np.empty(len(X)), np.empty((len(X), len(inputs)))
    X = X.astype(np.result_type(X, typical))  # a dtype for the values of X and of typical rows
    n_at_once = max(1, CELLS_AT_ONCE // max(1, X.size * len(typical)))
    for start in range(0, len(inputs), n_at_once):
        # Evaluate changes of many columns together: few rows would take nearly as long as many.
        batches, shares = [X], []
        for positions in inputs[start : start + n_at_once]:
            values, counts = typical[:, positions], np.ones(len(typical), dtype=np.int64)
            if values.dtype.kind != "O":  # evaluate each category once
                axis = 0 if len(positions) > 1 else None  # `np.unique` is slower with an axis
                values, counts = np.unique(values, axis=axis, return_counts=True)
            changed = np.repeat(X, len(counts), axis=0)
            changed[:, positions] = np.tile(values.reshape(len(counts), -1), (len(X), 1))
            batches.append(changed)
            shares.append(counts / len(typical))
        found = epistemic(np.concatenate(batches))
        own, *after = np.split(found, np.cumsum([len(each) for each in batches[:-1]]))
        for k, (each, share) in enumerate(zip(after, shares, strict=True), start):
            contribution[:, k] = (own[:, None] - each.reshape(len(X), -1)) @ share
    return own, contribution


def _explain_table(
    X: pd.DataFrame, typical: Any, epistemic: Statistic
) -> tuple[FloatArray, FloatArray]:
    # Change one column at a time, since its type may depend on all of its values. The original rows
    # are a batch of the same size, so that a column without effect contributes exactly 0.
    repeated = X.iloc[np.repeat(np.arange(len(X)), len(typical))].reset_index(drop=True)
    values = np.tile(np.arange(len(typical)), len(X))
    before, contribution = epistemic(repeated), np.empty(X.shape)
    for k in range(X.shape[1]):
        changed = repeated.copy()
        changed.isetitem(k, typical.iloc[values, k].reset_index(drop=True))
        decrease = before - epistemic(changed)
        contribution[:, k] = decrease.reshape(len(X), len(typical)).mean(axis=1)
    return epistemic(X), contribution


def words_of(texts: NDArray[Any]) -> NDArray[Any]:
    """Split each text into words, padded with "", (n_texts, n_words)."""
    split = [str(text).split() for text in texts]
    n_words = max(map(len, split), default=0)
    return np.array([[*words, *[""] * (n_words - len(words))] for words in split], dtype=object)


def explain_texts(
    X: NDArray[Any], typical: NDArray[Any], epistemic: Statistic
) -> tuple[FloatArray, FloatArray]:
    """Do for words what `explain_rows` does for columns; shapes (n_texts,), (n_texts, n_words)."""
    own, words = epistemic(X), words_of(X)
    others = [split for text in typical if (split := str(text).split())]
    contribution = np.zeros(words.shape)
    for i, row in enumerate(words):
        text = [word for word in row if word]
        replaced = [
            " ".join([*text[:k], other[k % len(other)], *text[k + 1 :]])
            for k in range(len(text))
            for other in others
        ]
        if replaced:
            after = epistemic(np.array(replaced, dtype=object)).reshape(len(text), len(others))
            contribution[i, : len(text)] = own[i] - after.mean(axis=1)
    return own, contribution


def standing_out(contribution: FloatArray, total: float, n_columns: int = N_COLUMNS) -> IntArray:
    """Return positions of the largest contributions of a row that exceed 5 % of the total."""
    first = np.argsort(-contribution, kind="stable")[:n_columns]
    return first[contribution[first] > SMALLEST_SHARE * max(total, 0.0)]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contribution of each column (tables) or word (texts) to epistemic uncertainty.

    Attributes
    ----------
    columns : ndarray of shape (n_columns,) or (n_texts, n_words)
        Names of the columns, or their positions. For texts: the words of each text, padded with "".
    epistemic : ndarray of shape (n_rows,), float64
        Epistemic uncertainty of each row.
    contribution : ndarray of shape (n_rows, n_columns) or (n_texts, n_words), float64
        Mean decrease in epistemic uncertainty when the column or word is replaced, see `explain`;
        negative if a typical value makes the row more uncertain, 0 for the padding.
    models : AdversarialModels or AdversarialRegressors or None
        The alternative models that QUAM found, and their predictions for the rows.
    index : pandas.Index of length n_rows or None
        Labels of the rows; None unless the rows were a pandas object.
    """

    columns: NDArray[Any]
    epistemic: FloatArray
    contribution: FloatArray
    models: Any = None
    index: pd.Index[Any] | None = None

    def most_unusual(self, n_columns: int = N_COLUMNS) -> list[list[Any]]:
        """Return up to `n_columns` columns or words that contribute most to each row's uncertainty.

        The names are in descending order of contribution. Contributions of at most 5 % of the row's
        epistemic uncertainty are left out; a list may therefore be empty.
        """
        check_scalar(n_columns, "n_columns", Integral, min_val=1)
        names = np.broadcast_to(self.columns, self.contribution.shape)
        rows = zip(names, self.contribution, self.epistemic, strict=True)
        return [row[standing_out(part, u, n_columns)].tolist() for row, part, u in rows]

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame, one row per input, indexed by its label.

        Columns: ``epistemic``, and ``most_unusual`` (up to three names, separated by "; ").
        """
        named = [SEPARATOR.join(map(str, names)) for names in self.most_unusual()]
        return pd.DataFrame({"epistemic": self.epistemic, "most_unusual": named}, self.index)


def explain(estimator: Any, X: Any, X_train: Any, *, n_typical: int = 20) -> Explanation:
    """Attribute the epistemic uncertainty of inputs to their columns, or to the words of texts.

    Values from some training rows replace one column at a time; in texts, words from training texts
    replace one word. The contribution of a column or word is the mean decrease in epistemic
    uncertainty. The contribution is 0 for a column that the model does not use.

    Parameters
    ----------
    estimator : object
        Fitted estimator that `skuq.predict_uncertainty` accepts.
    X : array-like of shape (n_samples, n_features), or texts of shape (n_samples,)
        Rows or texts.
    X_train : array-like of shape (n_training_samples, n_features), or texts
        Training rows or texts, with the columns of `X`.
    n_typical : int, default=20
        Number of training rows or texts, drawn without replacement, that supply values or words.

    Returns
    -------
    Explanation
        Contributions in the unit of the epistemic part; its attribute `models` is None.

    Raises
    ------
    ValueError
        If the estimator does not measure epistemic uncertainty, the inputs are neither rows nor
        texts, or `X_train` lacks a column.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skuq import QUAMClassifier, explain, make_pipeline
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> model = make_pipeline(StandardScaler(), QUAMClassifier(random_state=0)).fit(X, y)
    >>> row = X.iloc[[0]].assign(proline=20000.0)
    >>> explain(model, row, X).most_unusual(1)
    [['proline']]
    """
    order = check_random_state(0).permutation(_num_samples(X_train))

    def epistemic(rows: Any) -> FloatArray:
        found = predict_uncertainty(estimator, rows).epistemic
        if len(found) and np.isnan(found).all():
            raise ValueError(
                f"{type(estimator).__name__} does not measure epistemic uncertainty; use "
                "`OODDetector.explain`, which works with any model."
            )
        return found

    found = explained_inputs(X, _safe_indexing(X_train, order), epistemic, n_typical)
    return replace(found, index=index_of(X))


def index_of(X: Any) -> pd.Index[Any] | None:
    return X.index if isinstance(X, pd.DataFrame | pd.Series) else None


def explained_inputs(
    X: Any,
    training: Any,  # rows or texts; the first n_typical supply the replacement values
    epistemic: Statistic,
    n_typical: int,
    *,
    names: Any = None,  # column names, if X has none
) -> Explanation:
    """Compute the contribution of each column or word to the uncertainty of each input."""
    check_scalar(n_typical, "n_typical", Integral, min_val=1)
    typical = _safe_indexing(training, np.arange(n_typical) % _num_samples(training))
    rows, typical = (as_pandas(to_dense(each)) for each in (X, typical))
    if is_texts(rows):
        texts, others = (np.asarray(each, dtype=object) for each in (rows, typical))
        return Explanation(words_of(texts), *explain_texts(texts, others, epistemic))
    if np.ndim(rows) != 2:
        raise ValueError(
            "`X` must be a table of shape (n_samples, n_features) or texts of shape (n_samples,), "
            f"got {np.ndim(rows)} dimensions."
        )
    if isinstance(rows, pd.DataFrame):
        lacking = [name for name in rows.columns if name not in getattr(typical, "columns", ())]
        if lacking:
            raise ValueError(f"X has the columns {lacking}, which the training rows lack.")
        typical = typical[rows.columns]
        names = rows.columns if names is None else names
    else:
        rows, typical = np.asarray(rows), np.asarray(typical)

    names = np.arange(rows.shape[1]) if names is None else names
    is_table = isinstance(rows, pd.DataFrame)
    of_rows = (lambda table: epistemic(as_table_of(X, table))) if is_table else epistemic
    return Explanation(np.asarray(names), *explain_rows(rows, typical, of_rows))


def rows_to_explain(p_values: FloatArray, epistemic: FloatArray, n_rows: int) -> IntArray:
    """Select up to n_rows rows, by ascending p-value, then descending uncertainty."""
    return np.lexsort((-epistemic, p_values))[:n_rows]


def explained(
    table: pd.DataFrame,
    unsupported: BoolArray,
    typical: Any,
    epistemic: Statistic,
    *,
    rows: Any = None,
    inputs: Sequence[Sequence[int]] | None = None,
) -> list[str]:
    """Name up to three columns, with their values, that make each row uncertain.

    Columns marked in `unsupported` come first, because an unsupported value may mask the
    contributions of other columns. `epistemic` receives `rows` (default: the table), in which the
    columns have the positions `inputs`.
    """
    if not len(table):
        return []
    own, contribution = explain_rows(table if rows is None else rows, typical, epistemic, inputs)
    weight = np.where(unsupported, np.inf, contribution)
    return [
        SEPARATOR.join(
            f"{table.columns[k]} = {_shown(table.iat[row, k])}"
            for k in standing_out(weight[row], total)
        )
        for row, total in enumerate(own)
    ]


def _shown(value: Any) -> str:
    if pd.isna(value):
        return MISSING_TEXT
    return f"{value:.6g}" if isinstance(value, float) else as_text(value)


@dataclass(frozen=True)
class UnusualParts:
    """The columns, or words, that make an input unusual, whatever the model."""

    typical: Any  # training inputs: rows of a table, or texts
    values: TrainingValues | frozenset[str]  # of all training rows, or words of all training texts
    names: Sequence[str] = ()  # of the columns

    @classmethod
    def of(
        cls, X: Any, random: np.random.RandomState, names: Any, *, are_columns: bool
    ) -> UnusualParts | None:
        """Create from training inputs: texts, or a table of few columns; None for other inputs."""
        rows = random.permutation(_num_samples(X))[:N_TYPICAL]
        if is_texts(X):
            texts = np.asarray(X, dtype=object)
            return cls(texts[rows], frozenset(map(_plain, words_of(texts).ravel())))
        is_table = are_columns or hasattr(X, "columns")
        if not is_table or np.ndim(X) != 2 or np.shape(X)[1] > MOST_COLUMNS:
            return None
        typical = _safe_indexing(as_pandas(X), rows)
        if isinstance(typical, pd.DataFrame):
            typical = typical.reset_index(drop=True)
        table = as_table(X)
        values = TrainingValues.of_rows(table, number_columns(table))
        shown = [f"x{k}" for k in range(table.shape[1])] if names is None else [*names]
        return cls(typical, values, shown)

    def describe(self, X: Any, statistic: Statistic) -> list[str]:
        """List for each input up to three words, or columns with values, separated by "; "."""
        if isinstance(self.values, TrainingValues):
            rows, table = as_pandas(X), as_table(X)
            marks = self.values.marks(table).unsupported
            named = table.set_axis([*self.names], axis=1)
            return explained(named, marks, self.typical, statistic, rows=rows)
        texts = np.asarray(X, dtype=object)
        own, contribution = explain_texts(texts, self.typical, statistic)
        words = words_of(texts)
        unseen = np.array([[_plain(word) not in self.values for word in row] for row in words])
        weight = np.where(unseen, np.inf, contribution)
        rows = zip(words, weight, own, strict=True)
        return [SEPARATOR.join(row[standing_out(part, total)]) for row, part, total in rows]


def _plain(word: str) -> str:
    return word.casefold().strip(punctuation)
