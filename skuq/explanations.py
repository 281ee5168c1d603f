"""Which columns of a row, or words of a text, make it unusual."""

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
    """The columns of rows of a table, or the words of texts, that their uncertainty comes from.

    Attributes
    ----------
    columns : ndarray of shape (n_columns,) or (n_texts, n_words)
        Names of the columns, or their numbers; of texts, the words of each, with "" after its last.
    epistemic : ndarray of shape (n_rows,), float64
        Epistemic uncertainty of each row.
    contribution : ndarray of shape (n_rows, n_columns), float64
        How much of it, on average, is lost when the column takes the value of a typical row;
        (n_texts, n_words) when the word is replaced by one of a typical text, 0 after the last.
        Below 0 where a typical value makes the row more uncertain.
    models : AdversarialModels or AdversarialRegressors or None
        The alternative models that QUAM found, and what they predict for the rows.
    index : pandas.Index of length n_rows or None
        Labels of the rows, where they were a pandas object.
    """

    columns: NDArray[Any]
    epistemic: FloatArray
    contribution: FloatArray
    models: AdversarialModels | AdversarialRegressors | None = None
    index: pd.Index[Any] | None = None

    def most_unusual(self, n_columns: int = N_COLUMNS) -> list[list[Any]]:
        """Name the columns, or words, that stand out in each row.

        Parameters
        ----------
        n_columns : int, default=3
            How many are named at most.

        Returns
        -------
        list of n_rows lists
            Names in the order of their contributions, each more than a twentieth of the row's
            epistemic uncertainty; an empty list where no column stands out.
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
        """Return a pandas DataFrame with what stands out in each row.

        Returns
        -------
        pandas.DataFrame
            One row per input, with its label: ``epistemic``, and ``most_unusual``, up to three
            names separated by "; ", empty where no column stands out.
        """
        named = [SEPARATOR.join(map(str, names)) for names in self.most_unusual()]
        return pd.DataFrame({"epistemic": self.epistemic, "most_unusual": named}, self.index)


def no_explanations(estimator: Any) -> Explanation:
    """Explanation of no rows, with the columns of the estimator; texts have no words then."""
    numbers = np.arange(getattr(estimator, "n_features_in_", 0))
    columns = np.asarray(getattr(estimator, "feature_names_in_", numbers))
    return Explanation(columns, np.empty(0), np.empty((0, len(columns))))


def explain(estimator: Any, X: Any, X_train: Any, *, n_typical: int = 20) -> Explanation:
    """Tell which columns, or words of texts, the epistemic uncertainty of inputs comes from.

    Columns are those that `estimator` gets: of a pipeline, those before its first step. Each in
    turn is replaced by the values of some training rows, and each word of a text by words of some
    training texts; what the epistemic uncertainty loses by it, on average, is the contribution of
    the column or word. One that the model never gets contributes nothing.

    Parameters
    ----------
    estimator : object
        Fitted estimator, as `skuq.predict_uncertainty` takes it.
    X : array-like of shape (n_samples, n_features), or texts of shape (n_samples,)
        Rows or texts.
    X_train : array-like of shape (n_training_samples, n_features), or texts
        Training rows or texts, with the columns of `X`.
    n_typical : int, default=20
        Number of training rows or texts, drawn without replacement, whose values or words replace
        those of `X`.

    Returns
    -------
    Explanation
        Contributions of the columns, in the unit of the epistemic part, without models.

    Raises
    ------
    TypeError
        If `estimator` predicts no uncertainty.
    ValueError
        If the inputs are neither rows of a table nor texts, if `X_train` lacks a column of them,
        or if the estimator measures no epistemic uncertainty.

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
                f"{type(estimator).__name__} measures no epistemic uncertainty that could be "
                "explained; `OODDetector.explain` explains what is unusual to any model."
            )
        return found

    found = explained_inputs(X, _safe_indexing(X_train, order), epistemic, n_typical)
    return replace(found, index=index_of(X))


def index_of(X: Any) -> pd.Index[Any] | None:
    """Labels of the rows of a pandas object."""
    return X.index if isinstance(X, pd.DataFrame | pd.Series) else None


def explained_inputs(
    X: Any,
    training: Any,  # rows or texts, the first of which are the typical ones
    epistemic: Callable[[Any], FloatArray],
    n_typical: int,
    *,
    names: Any = None,  # of the columns, where X has none
) -> Explanation:
    """Contributions of the columns or words of inputs."""
    check_scalar(n_typical, "n_typical", Integral, min_val=1)
    rows, typical = (as_pandas(to_dense(each)) for each in (X, training))
    typical = _safe_indexing(typical, np.arange(n_typical) % _num_samples(typical))
    if is_texts(rows):
        texts, others = (np.asarray(each, dtype=object) for each in (rows, typical))
        return Explanation(words_of(texts), *explain_texts(texts, others, epistemic))
    if np.ndim(rows) != 2:
        raise ValueError(
            f"Only rows of a table and texts can be explained; X has {np.ndim(rows)} axes."
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
    """Typical rows with the columns of others, in their order."""
    known: Any = typical.columns if isinstance(typical, pd.DataFrame) else []
    lacking = [name for name in rows.columns if name not in known]
    if lacking:
        raise ValueError(
            f"X has the columns {lacking}, which the training rows lack; pass tables with the same "
            "columns."
        )
    found: pd.DataFrame = typical[rows.columns]
    return found
