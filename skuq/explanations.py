"""Attribution of epistemic uncertainty to the columns of a row or the words of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, check_random_state, check_scalar
from sklearn.utils.validation import _num_samples

from skuq.base import FloatArray, predict_uncertainty
from skuq.unusual_rows import (
    N_COLUMNS,
    SEPARATOR,
    explain_rows,
    explain_texts,
    standing_out,
    words_of,
)
from skuq.validation import as_pandas, as_table_of, is_texts, to_dense

if TYPE_CHECKING:
    from skuq.quam import AdversarialModels, AdversarialRegressors


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
        Mean decrease in epistemic uncertainty when the value of the column is replaced by the
        value of a typical row, or the word by a word of a typical text; 0 for the padding.
        Negative if a typical value makes the row more uncertain.
    models : AdversarialModels or AdversarialRegressors or None
        The alternative models that QUAM found, and their predictions for the rows.
    index : pandas.Index of length n_rows or None
        Labels of the rows; None unless the rows were a pandas object.
    """

    columns: NDArray[Any]
    epistemic: FloatArray
    contribution: FloatArray
    models: AdversarialModels | AdversarialRegressors | None = None
    index: pd.Index[Any] | None = None

    def most_unusual(self, n_columns: int = N_COLUMNS) -> list[list[Any]]:
        """Return the columns, or words, that contribute most to the uncertainty of each row.

        Parameters
        ----------
        n_columns : int, default=3
            Maximum number of names per row.

        Returns
        -------
        list of n_rows lists
            Names in descending order of contribution. Contributions of at most 5 % of the row's
            epistemic uncertainty are left out; a list may therefore be empty.
        """
        check_scalar(n_columns, "n_columns", Integral, min_val=1)
        names = np.broadcast_to(self.columns, self.contribution.shape)
        return [
            row[standing_out(contribution, total, n_columns)].tolist()
            for row, contribution, total in zip(
                names, self.contribution, self.epistemic, strict=True
            )
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with the names that contribute most to each row's uncertainty.

        Returns
        -------
        pandas.DataFrame
            One row per input, indexed by its label. Columns: ``epistemic``, and ``most_unusual``
            (up to three names, as returned by `most_unusual`, separated by "; ").
        """
        named = [SEPARATOR.join(map(str, names)) for names in self.most_unusual()]
        return pd.DataFrame({"epistemic": self.epistemic, "most_unusual": named}, self.index)


def explain(estimator: Any, X: Any, X_train: Any, *, n_typical: int = 20) -> Explanation:
    """Attribute the epistemic uncertainty of inputs to their columns, or to the words of texts.

    The columns are the inputs of `estimator`; for a pipeline, the inputs of its first step. One
    column at a time is replaced by the values of some training rows. In texts, one word at a time
    is replaced by words of some training texts. The contribution of the column or word is the mean
    decrease in epistemic uncertainty. A column that the model does not use contributes 0.

    Parameters
    ----------
    estimator : object
        Fitted estimator that `skuq.predict_uncertainty` accepts.
    X : array-like of shape (n_samples, n_features), or texts of shape (n_samples,)
        Rows or texts.
    X_train : array-like of shape (n_training_samples, n_features), or texts
        Training rows or texts, with the columns of `X`.
    n_typical : int, default=20
        Number of training rows or texts that supply replacement values or words. They are drawn
        without replacement.

    Returns
    -------
    Explanation
        Contributions in the unit of the epistemic part; its attribute `models` is None.

    Raises
    ------
    TypeError
        If `estimator` does not predict uncertainty.
    ValueError
        If the inputs are neither rows of a table nor texts, if `X_train` lacks a column of `X`,
        or if the estimator does not measure epistemic uncertainty.

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
    """Index of a pandas object; None for other inputs."""
    return X.index if isinstance(X, pd.DataFrame | pd.Series) else None


def explained_inputs(
    X: Any,
    training: Any,  # rows or texts; the first n_typical supply the replacement values
    epistemic: Callable[[Any], FloatArray],
    n_typical: int,
    *,
    names: Any = None,  # column names, if X has none
) -> Explanation:
    """Contribution of each column or word to the uncertainty of each input."""
    check_scalar(n_typical, "n_typical", Integral, min_val=1)
    rows, typical = (as_pandas(to_dense(each)) for each in (X, training))
    typical = _safe_indexing(typical, np.arange(n_typical) % _num_samples(typical))
    if is_texts(rows):
        texts, others = (np.asarray(each, dtype=object) for each in (rows, typical))
        return Explanation(words_of(texts), *explain_texts(texts, others, epistemic))
    if np.ndim(rows) != 2:
        raise ValueError(
            "`X` must be a table of shape (n_samples, n_features) or texts of shape (n_samples,), "
            f"got {np.ndim(rows)} dimensions."
        )
    if isinstance(rows, pd.DataFrame):
        typical = _with_columns_of(rows, typical)
        names = rows.columns if names is None else names
    else:
        rows, typical = np.asarray(rows), np.asarray(typical)

    def of_table(table: Any) -> FloatArray:
        return epistemic(as_table_of(X, table) if isinstance(table, pd.DataFrame) else table)

    found = explain_rows(rows, typical, of_table)
    names = np.arange(rows.shape[1]) if names is None else names
    return Explanation(np.asarray(names), *found)


def _with_columns_of(rows: pd.DataFrame, typical: Any) -> pd.DataFrame:
    """Select the columns of `rows` from the typical rows, in the order of `rows`."""
    known: Any = typical.columns if isinstance(typical, pd.DataFrame) else []
    lacking = [name for name in rows.columns if name not in known]
    if lacking:
        raise ValueError(
            f"X has the columns {lacking}, which the training rows lack; pass training rows with "
            "all columns of X."
        )
    found: pd.DataFrame = typical[rows.columns]
    return found
