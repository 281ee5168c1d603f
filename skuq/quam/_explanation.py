"""Which columns of a row make it unusual."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray


class Explanation(NamedTuple):
    """What is unusual about rows of a table.

    Attributes
    ----------
    columns : ndarray of shape (n_columns,)
        Names of the columns, or their numbers.
    epistemic : ndarray of shape (n_rows,), float64
        Epistemic uncertainty of each row.
    contribution : ndarray of shape (n_rows, n_columns), float64
        How much of it, on average, is lost when the column takes the value of a typical row.
    models : AdversarialModels or AdversarialRegressors
        The alternative models that were found, and what they predict for the rows.
    """

    columns: NDArray[Any]
    epistemic: FloatArray
    contribution: FloatArray
    models: Any

    def most_unusual(self, n_columns: int = 3) -> NDArray[Any]:
        """Names of the columns that contribute most to each row, (n_rows, n_columns)."""
        order = np.argsort(-self.contribution, axis=1, kind="stable")[:, :n_columns]
        return self.columns[order]
