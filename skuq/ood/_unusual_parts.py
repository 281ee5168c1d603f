"""Columns that make a row unusual, and words that make a text unusual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import punctuation
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from skuq.base import FloatArray
from skuq.ood._scores import Training
from skuq.unusual_rows import (
    SEPARATOR,
    TrainingValues,
    as_table,
    explain_rows,
    explain_texts,
    number_columns,
    reasons,
    standing_out,
    words_of,
)
from skuq.validation import as_pandas, is_texts

_N_TYPICAL = 20  # number of training inputs whose columns or words are inserted into an input
_MOST_COLUMNS = 100


def _plain(word: str) -> str:
    """Remove case and punctuation from a word."""
    return word.casefold().strip(punctuation)


@dataclass(frozen=True)
class UnusualParts:
    """Attribution by replacing columns or words with columns or words of typical training inputs.

    Attributes
    ----------
    typical : array or DataFrame of shape (n_typical, n_columns), or ndarray of texts
        Typical training inputs.
    values : TrainingValues or set of str
        Categories and ranges of all training rows, or the words of all training texts.
    names : sequence of str
        Names of the columns.
    """

    typical: Any
    values: TrainingValues | frozenset[str]
    names: Sequence[str]

    @classmethod
    def of(cls, training: Training, names: Any) -> UnusualParts | None:
        """Create from training inputs; None if they are neither texts nor tables of few columns."""
        X = training.rows.X
        rows = training.random.permutation(_num_samples(X))[:_N_TYPICAL]
        if is_texts(X):
            texts = np.asarray(X, dtype=object)
            return cls(texts[rows], frozenset(map(_plain, words_of(texts).ravel())), ())
        is_table = training.are_columns or hasattr(X, "columns")
        if not is_table or np.ndim(X) != 2 or np.shape(X)[1] > _MOST_COLUMNS:
            return None
        typical = _safe_indexing(as_pandas(X), rows)
        if isinstance(typical, pd.DataFrame):
            typical = typical.reset_index(drop=True)
        table = as_table(X)
        values = TrainingValues.of_rows(table, number_columns(table))
        shown = [f"x{k}" for k in range(table.shape[1])] if names is None else [*names]
        return cls(typical, values, shown)

    def describe(self, X: Any, statistic: Callable[[Any], FloatArray]) -> list[str]:
        """For each input, list up to three words, or columns with values, separated by "; "."""
        if not isinstance(self.values, TrainingValues):
            return self._words(np.asarray(X, dtype=object), self.values, statistic)
        rows = as_pandas(X)
        own, contribution = explain_rows(rows, self.typical, statistic)
        table = as_table(rows)
        marks = self.values.unsupported(table)
        return reasons(table.set_axis([*self.names], axis=1), marks, contribution, own)

    def _words(
        self, X: Any, known: frozenset[str], statistic: Callable[[Any], FloatArray]
    ) -> list[str]:
        own, contribution = explain_texts(X, self.typical, statistic)
        words = words_of(X)
        unseen = np.array([[_plain(word) not in known for word in row] for row in words])
        contribution = np.where(unseen, np.inf, contribution)
        found = []
        for row, total in enumerate(own):
            found.append(SEPARATOR.join(words[row, standing_out(contribution[row], total)]))
        return found
