"""Choosing a learner for the clean rows of a table, training it, and searching around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skuq.tables._columns import CleanColumns, as_integers
from skuq.tables._encoding import as_indicators
from skuq.tables._given import GIVEN, asked
from skuq.tables._learners import COMPARED, LEARNERS, Comparison, compare_learners

MOST_TARGETS = 10  # classes that QUAM searches for
KNOWN_VALUES = ("crossed", "shuffled", "out_of_range")  # kinds of pool without new categories
MANY = 20_000  # rows from which a learner's time is measured on a part, if it was not compared
LONG = 60.0  # seconds from which an estimate is worth a sentence


class Trained(NamedTuple):
    """A trained model of clean rows.

    Attributes
    ----------
    encoder : transformer or None
        Makes its inputs of clean rows; None for a given model, which takes columns as they were.
    estimator : estimator
        The model.
    name : str
        The learner, or what was given.
    comparison : Comparison
        Losses of the learners that were compared.
    """

    encoder: Any
    estimator: Any
    name: str
    comparison: Comparison


def encoded(encoder: Any, columns: CleanColumns, X: pd.DataFrame) -> Any:
    """Inputs of a model for clean rows."""
    if encoder is not None:
        return encoder.transform(X)
    # As a model of somebody else saw them, who read the same file.
    return columns.inverse_transform(X)


@dataclass(frozen=True)
class Training:
    """How a model of clean rows is trained; parameters as of `skuq.tables.TableModel`."""

    estimator: Any
    columns: CleanColumns
    regression: bool
    random_state: int
    n_jobs: int | None
    progress: Callable[[str], None] | None

    def tell(self, step: int, text: str) -> None:
        """Report one of three steps as it begins."""
        if self.progress is not None:
            skipped = 0 if self.estimator == "auto" else 1  # nothing is compared
            self.progress(f"{step - skipped} of {3 - skipped}: {text}")

    def run(self, X: pd.DataFrame, y: NDArray[Any]) -> Trained:
        """Choose a learner, train it, and search around it."""
        given, numbers = self.estimator, self.columns.numbers_
        comparison, name = Comparison(), given
        if given == "auto":
            self.tell(1, "comparing learners.")
            comparison = self._compare(X, y, COMPARED)
            name = comparison.best
        encoder: Any = None
        if isinstance(name, str):
            learner = LEARNERS[name]
            encoder = learner.encoder(X, numbers)
            estimator = self._quam(learner.make(self.regression, y, self.random_state), y)
            words = f"training {learner.words} and searching models that contradict it"
        elif hasattr(given, "predict_uncertainty"):
            encoder = as_indicators(X, numbers)
            estimator = clone(given)
            name = type(given).__name__
            words = f"training {name}"
        else:
            frozen = given if isinstance(given, FrozenEstimator) else FrozenEstimator(given)
            estimator = self._quam(frozen, y)
            name = f"{GIVEN}{type(given).__name__}"
            words = f"searching models that contradict {name}"
        self.tell(2, f"{words}.{self._estimate(X, y, name, comparison)}")
        if encoder is not None:
            encoder.fit(X)
        pool = {}
        if estimator.get_params().get("pool") == "auto":
            pool["X_pool"] = self._pool(encoder, X)
        with asked(name, X):
            estimator.fit(encoded(encoder, self.columns, X), y, **pool)
        return Trained(encoder, estimator, name, comparison)

    def _pool(self, encoder: Any, X: pd.DataFrame) -> Any:
        """A pool of rows, not of what an encoder makes of them."""
        from skuq.quam import make_pool

        if encoder is not None:
            return encoder.transform(make_pool(X, random_state=self.random_state))
        rows = encoded(encoder, self.columns, X)

        def made(kinds: Sequence[str] | None = None) -> pd.DataFrame:
            pool = make_pool(rows, kinds=kinds, random_state=self.random_state)
            whole = rows.select_dtypes("int64")
            return pool.assign(**{name: as_integers(pool[name].round()) for name in whole})

        pool = made()
        try:
            self.estimator.predict(pool)
        except Exception:  # whatever a model raises that refuses unknown categories
            pool = made(KNOWN_VALUES)
        return pool

    def _quam(self, estimator: Any, y: NDArray[Any]) -> Any:
        from skuq.quam import QUAMClassifier, QUAMRegressor

        options: dict[str, Any] = {"random_state": self.random_state, "n_jobs": self.n_jobs}
        if self.regression:
            return QUAMRegressor(estimator, **options)
        many = len(np.unique(y)) > MOST_TARGETS
        return QUAMClassifier(estimator, n_targets=MOST_TARGETS if many else None, **options)

    def _compare(self, X: pd.DataFrame, y: NDArray[Any], names: Sequence[str]) -> Comparison:
        return compare_learners(
            X,
            y,
            self.columns.numbers_,
            regression=self.regression,
            names=names,
            seed=self.random_state,
        )

    def _estimate(self, X: pd.DataFrame, y: NDArray[Any], name: str, comparison: Comparison) -> str:
        """How long it takes, if that is long: a fit of the learner, and two for each search."""
        if self.progress is None:  # the learner would be timed for nobody
            return ""
        n_rows, seconds = len(X), comparison.seconds
        if not seconds and name in LEARNERS and n_rows > MANY:
            seconds = self._compare(X, y, [name]).seconds
        n_searches = 2 if self.regression else min(len(np.unique(y)), MOST_TARGETS)
        expected = seconds.get(name, 0.0) * n_rows * (2 + 2 * n_searches)
        return f" This takes about {expected / 60:.0f} minutes." if expected > LONG else ""
