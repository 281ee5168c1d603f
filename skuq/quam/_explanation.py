"""Which columns of a row, or words of a text, make it unusual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from skuq.base import FloatArray


class Explanation(NamedTuple):
    """What is unusual about rows of a table, or texts.

    Attributes
    ----------
    columns : ndarray of shape (n_columns,) or (n_texts, n_words)
        Names of the columns, or their numbers; of texts, the words of each, with "" after its last.
    epistemic : ndarray of shape (n_rows,), float64
        Epistemic uncertainty of each row.
    contribution : ndarray of shape (n_rows, n_columns), float64
        How much of it, on average, is lost when the column takes the value of a typical row;
        (n_texts, n_words) when the word is replaced by one of a typical text, 0 after the last.
    models : AdversarialModels or AdversarialRegressors
        The alternative models that were found, and what they predict for the rows.
    """

    columns: NDArray[Any]
    epistemic: FloatArray
    contribution: FloatArray
    models: Any

    def most_unusual(self, n_columns: int = 3) -> NDArray[Any]:
        """Columns, or words, that contribute most to each row, (n_rows, n_columns)."""
        order = np.argsort(-self.contribution, axis=1, kind="stable")[:, :n_columns]
        columns = np.broadcast_to(self.columns, self.contribution.shape)
        return np.take_along_axis(columns, order, axis=1)


def explain_rows(
    X: Any, typical: Any, epistemic: Callable[[Any], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Replace each column of each row by typical values.

    Shapes: `X` (n_rows, n_columns), `typical` (n_typical, n_columns); returns (n_rows,).
    """
    own = epistemic(X)
    contribution = np.empty(X.shape)
    n_rows, n_typical = len(X), len(typical)
    for k in range(X.shape[1]):
        replaced = _with_column(X, typical, k)
        contribution[:, k] = own - epistemic(replaced).reshape(n_rows, n_typical).mean(axis=1)
    return own, contribution


def _with_column(X: Any, typical: Any, k: int) -> Any:
    """Every row with every typical value of a column, row by row."""
    rows = np.repeat(np.arange(len(X)), len(typical))
    values = np.tile(np.arange(len(typical)), len(X))
    if not isinstance(X, pd.DataFrame):
        replaced = X[rows].astype(np.result_type(X, typical))  # whole numbers may meet others
        replaced[:, k] = typical[values, k]
        return replaced
    replaced = X.iloc[rows].reset_index(drop=True)
    replaced.isetitem(k, typical.iloc[values, k].reset_index(drop=True))
    return replaced


def words_of(texts: NDArray[Any]) -> NDArray[Any]:
    """The words of each text, with "" after its last, (n_texts, n_words)."""
    split = [str(text).split() for text in texts]
    n_words = max(map(len, split))
    return np.array([[*words, *[""] * (n_words - len(words))] for words in split], dtype=object)


def explain_texts(
    X: NDArray[Any], typical: NDArray[Any], epistemic: Callable[[Any], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Replace each word of each text by a word of each typical text.

    Shapes: `X` (n_texts,), `typical` (n_typical,); returns (n_texts,) and (n_texts, n_words).
    """
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
