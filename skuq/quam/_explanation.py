"""Which columns of a row, or words of a text, make it unusual."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
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
