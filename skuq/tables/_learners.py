"""Learners for tables, and the choice among them by cross-validation."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold

from skuq.base import FloatArray
from skuq.metrics import negative_log_likelihood
from skuq.tables._encoding import as_codes, as_indicators

N_FOLDS = 3
MAX_COMPARED = 3000  # rows on which learners are compared
ENOUGH_TO_STOP = 500  # rows of which boosting may hold out some to know when to stop
LEAF = 3


class Learner(NamedTuple):
    """A learner that a table can be given to.

    Attributes
    ----------
    words : str
        Its name in sentences.
    encoder : callable
        ``encoder(X, numbers)`` makes the transformer of these training rows.
    make : callable
        ``make(regression, y, seed)`` makes it; None stands for QUAM's default network.
    """

    words: str
    encoder: Callable[[pd.DataFrame, Sequence[str]], Any]
    make: Callable[[bool, NDArray[Any], int], Any]


def _boosting(regression: bool, y: NDArray[Any], seed: int) -> Any:
    fewest = len(y) if regression else np.unique(y, return_counts=True)[1].min()
    stops = len(y) >= ENOUGH_TO_STOP and fewest >= 10
    learner = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return learner(
        learning_rate=0.05,
        max_leaf_nodes=15,
        max_iter=300 if stops else 100,
        early_stopping=stops,
        random_state=seed,
    )


def _linear(regression: bool, y: NDArray[Any], seed: int) -> Any:
    return Ridge() if regression else LogisticRegression(max_iter=1000)


def _forest(regression: bool, y: NDArray[Any], seed: int) -> Any:
    learner = RandomForestRegressor if regression else RandomForestClassifier
    return learner(min_samples_leaf=LEAF, random_state=seed)


LEARNERS = {
    "hgb": Learner("boosted trees", as_codes, _boosting),
    "logistic": Learner("a linear model", as_indicators, _linear),
    "network": Learner("a network", as_indicators, lambda *_: None),
    "forest": Learner("a forest", as_codes, _forest),
}
COMPARED = ("hgb", "logistic", "network")
# Where there are too few rows to compare learners.
SAFEST = "logistic"


@dataclass(frozen=True)
class Comparison:
    """Losses of learners in cross-validation.

    Attributes
    ----------
    losses : dict of str to float
        Of each learner: log loss in nats, or mean squared error as a share of the variance.
    guessing : float
        Loss of the class frequencies, or 1.
    n_rows, n_folds : int
        Rows that took part, and folds.
    seconds : dict of str to float
        Time to train each learner on a row.
    """

    losses: dict[str, float] = field(default_factory=dict)
    guessing: float = float("nan")
    n_rows: int = 0
    n_folds: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """Learner of the smallest loss."""
        return min(self.losses, key=self.losses.__getitem__, default=SAFEST)


def compare_learners(
    X: pd.DataFrame,
    y: NDArray[Any],
    numbers: Sequence[str],
    *,
    regression: bool,
    names: Sequence[str] = COMPARED,
    seed: int = 0,
) -> Comparison:
    """Compare learners by cross-validation, on 3,000 rows at most.

    Parameters
    ----------
    X : DataFrame of shape (n_rows, n_columns)
        Clean training rows.
    y : ndarray of shape (n_rows,)
        Labels or targets.
    numbers : sequence of str
        Columns that hold numbers.
    regression : bool
        Whether `y` are targets.
    names : sequence of str
        Learners.
    seed : int
        Choice of rows and folds.

    Returns
    -------
    Comparison
        Empty if there are too few rows, or too few of a second class.
    """
    rows = _rows_to_compare(y, regression, seed)
    X, y = X.iloc[rows].reset_index(drop=True), y[rows]
    n_folds = N_FOLDS if regression else min(N_FOLDS, _fewest(y))
    if n_folds < 2 or len(y) < 3 * n_folds or len(np.unique(y)) < 2:
        return Comparison()
    folding = (KFold if regression else StratifiedKFold)(n_folds, shuffle=True, random_state=seed)
    folds = list(folding.split(X, None if regression else y))
    losses, seconds = {}, {}
    for name in names:
        start = time.process_time()
        parts = [_loss(name, X, y, fold, numbers, regression, seed) for fold in folds]
        losses[name] = float(np.concatenate(parts).mean())
        seconds[name] = (time.process_time() - start) / ((n_folds - 1) * len(y))
    return Comparison(losses, _guessing(y, regression), len(y), n_folds, seconds)


def _rows_to_compare(y: NDArray[Any], regression: bool, seed: int) -> NDArray[np.intp]:
    """No more rows than are needed, of classes that have two at least."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:MAX_COMPARED])
    if regression:
        return rows
    _, codes, counts = np.unique(y[rows], return_inverse=True, return_counts=True)
    return rows[counts[codes] >= 2]


def _fewest(y: NDArray[Any]) -> int:
    return int(np.unique(y, return_counts=True)[1].min()) if len(y) else 0


def _guessing(y: NDArray[Any], regression: bool) -> float:
    if regression:
        return 1.0
    share = np.unique(y, return_counts=True)[1] / len(y)
    return float(-(share * np.log(share)).sum())


def _loss(
    name: str,
    X: pd.DataFrame,
    y: NDArray[Any],
    fold: tuple[NDArray[Any], NDArray[Any]],
    numbers: Sequence[str],
    regression: bool,
    seed: int,
) -> FloatArray:
    """Loss of each test row of a fold."""
    train, test = fold
    known = X.iloc[train]
    encoder = LEARNERS[name].encoder(known, numbers)
    inputs = encoder.fit_transform(known)
    unknown = encoder.transform(X.iloc[test])
    learner = LEARNERS[name].make(regression, y[train], seed)
    if learner is None:
        predicted, classes = _network_outputs(inputs, y[train], unknown, regression, seed)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            learner.fit(inputs, y[train])
        predicted = learner.predict(unknown) if regression else learner.predict_proba(unknown)
        classes = None if regression else learner.classes_
    if regression:
        losses: FloatArray = (predicted - y[test]) ** 2 / y.var()
        return losses
    loss = negative_log_likelihood(y[test], predicted, classes=classes)
    return np.full(len(test), loss)


def _network_outputs(
    X: NDArray[Any], y: NDArray[Any], X_test: NDArray[Any], regression: bool, seed: int
) -> tuple[FloatArray, NDArray[Any] | None]:
    from skuq.models import fit_or_adopt, fit_or_adopt_regressor, resolve_device

    training: dict[str, Any] = {
        "sample_weight": None,
        "seed": seed,
        "device": resolve_device("auto"),
    }
    if regression:
        model = fit_or_adopt_regressor(None, X, y, n_outputs=1, **training)
        return model.outputs(model.inputs(X_test))[:, 0].numpy(), None
    model = fit_or_adopt(None, X, y, **training)
    return model.outputs(model.inputs(X_test)).softmax(-1).numpy(), model.classes
