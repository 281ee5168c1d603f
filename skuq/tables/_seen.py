"""Values of each column in training rows, and values of other rows beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

FAR = 0.5  # of the width of a range: numbers that are this far beyond it
MISSING_TEXT = "(missing)"  # the category that missing text counts as
ALL_DIFFERENT = 50  # a text column of more rows without repetition is taken for names
SEPARATOR = "; "


@dataclass(frozen=True)
class Seen:
    """Categories and ranges of the rows that trained a model.

    Attributes
    ----------
    categories : dict of str to list of str
        Values of each column of text; a missing one is "(missing)". Left out are columns in
        which each of many rows has a text of its own.
    lowest, highest : dict of str to float
        Range of each column of numbers; NaN if it has none.
    complete : list of str
        Columns of numbers without missing values.
    """

    categories: dict[str, list[str]]
    lowest: dict[str, float]
    highest: dict[str, float]
    complete: list[str]

    @classmethod
    def in_rows(cls, X: pd.DataFrame, numbers: Sequence[str]) -> Seen:
        """Look at clean rows."""
        texts = [name for name in X.columns if name not in numbers and not all_different(X[name])]
        return cls(
            {name: sorted(set(X[name].fillna(MISSING_TEXT))) for name in texts},
            {name: float(X[name].min()) for name in numbers},
            {name: float(X[name].max()) for name in numbers},
            [name for name in numbers if X[name].notna().all()],
        )

    def unseen(self, X: pd.DataFrame) -> pd.DataFrame:
        """Mark values that no training row has: categories, and numbers missing as never before.

        Returns
        -------
        DataFrame of bool, (n_rows, n_columns)
        """
        marks = {
            name: ~X[name].fillna(MISSING_TEXT).isin(self.categories[name])
            if name in self.categories
            else X[name].isna() & (name in self.complete)
            for name in X.columns
        }
        return pd.DataFrame(marks, index=X.index)

    def out_of_range(self, X: pd.DataFrame, *, margin: float = 0.0) -> pd.DataFrame:
        """Mark numbers below the lowest or above the highest of the training rows.

        Parameters
        ----------
        X : DataFrame
            Clean rows.
        margin : float, default=0.0
            How far beyond, as a share of the range's width.

        Returns
        -------
        DataFrame of bool, (n_rows, n_columns)
        """
        marks = pd.DataFrame(False, index=X.index, columns=X.columns)
        for name in self.lowest:
            low, high = self.lowest[name], self.highest[name]
            beyond = margin * (high - low)
            marks[name] = (X[name] < low - beyond) | (X[name] > high + beyond)
        return marks

    def unsupported(self, X: pd.DataFrame) -> pd.DataFrame:
        """Mark values that no training row supports.

        These are unseen values, and numbers further out of range than half its width.

        Returns
        -------
        DataFrame of bool, (n_rows, n_columns)
        """
        return self.unseen(X) | self.out_of_range(X, margin=FAR)


def all_different(column: pd.Series) -> bool:
    """Whether many rows have a text, and no two the same."""
    values = column.dropna()
    return len(values) > ALL_DIFFERENT and values.is_unique


def marked_names(marks: pd.DataFrame) -> list[str]:
    """Names of the marked columns of each row, separated by "; ".

    Examples
    --------
    >>> marked_names(pd.DataFrame({"age": [True, False], "town": [True, False]}))
    ['age; town', '']
    """
    values, names = marks.to_numpy(dtype=bool), marks.columns.to_numpy()
    joined = [""] * len(values)
    for row in np.flatnonzero(values.any(axis=1)):
        joined[row] = SEPARATOR.join(names[values[row]])
    return joined
