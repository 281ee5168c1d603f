"""Training on the clean rows of a table: selection of a learner, or use of a given estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from skuq.base import FloatArray
from skuq.files import stored
from skuq.metrics import interval_score, negative_log_likelihood
from skuq.residuals import LEVELS, RowNoise, central_interval
from skuq.tables._columns import CleanColumns, as_codes, as_indicators, as_integers
from skuq.tables._inputs import TableError
from skuq.tables._target import SMALLEST_GAIN, TargetScale, is_regression

N_FOLDS = 3
MAX_COMPARED = 3000  # maximum number of rows on which learners are compared
ENOUGH_TO_STOP = 500  # minimum number of rows for early stopping of boosting
LEAF = 3
KNOWN_VALUES = ("crossed", "shuffled", "out_of_range")  # kinds of inputs without new categories
COVERAGE = 0.9  # nominal coverage of the intervals used to compare scales of a target
FROZEN = " Inside a FrozenEstimator it stays fitted when it is cloned, as in cross-validation."
GIVEN = "the given "  # prefix of the name of a given estimator
LABELS = {
    "hgb": "boosted trees",
    "logistic": "a linear model",
    "network": "a network",
    "forest": "a forest",
}


class Learner(BaseEstimator):
    """A learner of `LABELS` on clean rows, together with its encoder."""

    def __init__(
        self,
        name: str = "hgb",
        numbers: Sequence[str] = (),
        regression: bool = False,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.numbers = numbers
        self.regression = regression
        self.seed = seed

    def encoder(self, X: pd.DataFrame) -> Any:
        """Return an encoder for these training rows."""
        encode = as_codes if self.name in ("hgb", "forest") else as_indicators
        return encode(X, self.numbers)

    def model(self, y: NDArray[Any]) -> Any:
        """Return an unfitted model for these training targets; None for QUAM's own network."""
        if self.name == "network":
            return None
        if self.name == "logistic":
            return Ridge() if self.regression else LogisticRegression(max_iter=1000)
        if self.name == "forest":
            if self.regression:
                return ExtraTreesRegressor(random_state=self.seed)
            return RandomForestClassifier(min_samples_leaf=LEAF, random_state=self.seed)
        fewest = len(y) if self.regression else np.unique(y, return_counts=True)[1].min()
        stops = len(y) >= ENOUGH_TO_STOP and fewest >= 10
        options = {"learning_rate": 0.05, "early_stopping": stops, "random_state": self.seed}
        if self.regression:  # regression needs many more iterations than classification
            n = 1500 if stops else 150
            return HistGradientBoostingRegressor(max_iter=n, n_iter_no_change=30, **options)
        n = 300 if stops else 100
        return HistGradientBoostingClassifier(max_leaf_nodes=15, max_iter=n, **options)

    def fit(self, X: pd.DataFrame, y: NDArray[Any]) -> Learner:
        self.encoder_ = self.encoder(X)
        inputs, self.model_ = self.encoder_.fit_transform(X), self.model(y)
        if self.model_ is None:
            from skuq.models import fit_model

            network = fit_model(
                None, inputs, y, regression=self.regression, seed=self.seed, device="auto"
            )
            self.model_, self.classes_ = network, network.classes
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model_.fit(inputs, y)
        self.classes_ = getattr(self.model_, "classes_", None)
        return self

    def predict(self, X: pd.DataFrame) -> FloatArray:
        """Predicted quantities, (n_rows,), or probabilities of classes, (n_rows, n_classes)."""
        inputs = self.encoder_.transform(X)
        if self.name == "network":
            outputs = self.model_.outputs(self.model_.inputs(inputs))
            return (outputs[:, 0] if self.regression else outputs.softmax(-1)).numpy()
        predicted: FloatArray
        predicted = (self.model_.predict if self.regression else self.model_.predict_proba)(inputs)
        return predicted


@stored("tables.comparison")
@dataclass(frozen=True)
class Comparison:
    """Cross-validation losses of the learners that were compared."""

    # Loss of each learner: log loss in nats, or mean squared error divided by the variance.
    losses: dict[str, float] = field(default_factory=dict)
    guessing: float = float("nan")  # log loss of predicting the class frequencies; or 1
    n_rows: int = 0
    n_folds: int = 0

    @property
    def best(self) -> str:
        """Learner with the smallest loss; a linear model if there were too few rows to compare."""
        return min(self.losses, key=self.losses.__getitem__, default="logistic")


@dataclass(frozen=True)
class Folds:
    """Sample of at most `MAX_COMPARED` rows of a table, with its cross-validation folds."""

    X: pd.DataFrame
    y: NDArray[Any]
    learner: Learner  # of any name
    parts: list[tuple[NDArray[Any], NDArray[Any]]]  # empty if there are too few rows

    @classmethod
    def of(cls, X: pd.DataFrame, y: NDArray[Any], learner: Learner) -> Folds:
        regression, seed = learner.regression, learner.seed
        rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:MAX_COMPARED])
        n_folds = N_FOLDS
        if not regression:  # without classes that have a single row in the sample
            _, codes, counts = np.unique(y[rows], return_inverse=True, return_counts=True)
            rows = rows[counts[codes] >= 2]
            n_folds = min(N_FOLDS, counts[counts >= 2].min(initial=N_FOLDS))
        X, y = X.iloc[rows].reset_index(drop=True), y[rows]
        if len(y) < 3 * n_folds or len(np.unique(y)) < 2:
            return cls(X, y, learner, [])
        kind = KFold if regression else StratifiedKFold
        folding = kind(n_folds, shuffle=True, random_state=seed)
        return cls(X, y, learner, list(folding.split(X, None if regression else y)))

    def predicted(self, name: str, y: NDArray[Any]) -> FloatArray:
        """Out-of-fold predictions of a learner; (n_rows,) or (n_rows, n_classes)."""
        found: FloatArray = cross_val_predict(
            clone(self.learner).set_params(name=name), self.X, y, cv=self.parts
        )
        return found

    def compare(self, names: Sequence[str]) -> Comparison:
        """Cross-validate the named learners; an empty comparison if there are too few rows."""
        if not self.parts:
            return Comparison()
        y, n_rows, n_folds = self.y, len(self.y), len(self.parts)
        found = {name: self.predicted(name, y) for name in names}
        if self.learner.regression:
            losses = {name: float(((p - y) ** 2).mean() / y.var()) for name, p in found.items()}
            return Comparison(losses, 1.0, n_rows, n_folds)
        classes, counts = np.unique(y, return_counts=True)
        losses = {
            name: negative_log_likelihood(y, proba, classes=classes)
            for name, proba in found.items()
        }
        share = counts / n_rows
        return Comparison(losses, float(-(share * np.log(share)).sum()), n_rows, n_folds)

    def best_scale(self, name: str) -> TargetScale:
        """Scale of the target with the smallest interval score in cross-validation."""
        original = TargetScale.of(self.y)
        scales = [original, *original.others(self.y)]
        if len(scales) == 1 or not self.parts:
            return original
        scores = {scale: self._interval_score(name, scale) for scale in scales}
        best = min(scores, key=scores.__getitem__)
        return best if scores[best] < (1 - SMALLEST_GAIN) * scores[original] else original

    def _interval_score(self, name: str, scale: TargetScale) -> float:
        """Mean interval score of a learner trained on a scale, in units of the target."""
        z = scale.transformed(self.y)
        predicted = self.predicted(name, z)
        inputs = as_codes(self.X, self.learner.numbers).fit_transform(self.X)
        weight, seed = np.ones(len(z)), self.learner.seed
        noise = RowNoise.fit(inputs, predicted, z - predicted, weight, seed=seed, n_jobs=None)
        quantiles = predicted[noise.forest.rows, None] + noise.forest.out_of_bag_quantiles(LEVELS)
        ends = central_interval(scale.inverse(quantiles), LEVELS, COVERAGE)
        y = self.y[noise.forest.rows]
        return float(interval_score(y, *ends, coverage=COVERAGE))


# --- given estimators --------------------------------------------------------------------------


def is_given(estimator: Any) -> bool:
    """Whether an estimator is an external one, fitted on raw columns."""
    return not (isinstance(estimator, str) or hasattr(estimator, "predict_uncertainty"))


def checked_task(estimator: Any, task: str, column: pd.Series) -> bool:
    """Whether an estimator or learner is to learn a regression of a target."""
    if isinstance(estimator, str):
        if estimator not in ("auto", *LABELS):
            names = ", ".join(map(repr, ("auto", *LABELS)))
            raise ValueError(f"`estimator` must be one of {names}, got {estimator!r}.")
        return is_regression(column, task)
    name = type(estimator).__name__
    known = hasattr(estimator, "__sklearn_tags__")
    if not known or not (is_classifier(estimator) or is_regressor(estimator)):
        raise TableError(f"`estimator` must be a classifier or a regressor, got {name}.")
    regression = bool(is_regressor(estimator))
    if task not in ("auto", "regression" if regression else "classification"):
        raise TableError(f"{name} does not support `task={task!r}`; leave `task` at 'auto'.")
    return regression


def trained_columns(estimator: Any, features: list[str]) -> dict[str, str]:
    """Map column names of the table to the feature names of the estimator.

    Column names map to themselves if the estimator has no feature names. Spaces around feature
    names are ignored, because column names read from files have no surrounding spaces.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return dict(zip(features, features, strict=True))
    known = {name if name in features else name.strip(): name for name in names}
    lacking = [name for name in known if name not in features]
    if lacking:
        raise TableError(
            f"The given {type(estimator).__name__} was fitted on the columns "
            f"{', '.join(lacking)}, which the training table lacks; add them."
        )
    return known


@contextmanager
def table_errors(name: str, X: pd.DataFrame) -> Iterator[None]:
    """Re-raise errors of an external estimator as `TableError`; `name` is `TableModel.name_`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, TableError) or name in LABELS:
            raise
        holes = [str(column) for column in X.columns[X.isna().any()]]
        raise TableError(
            f"{name.removeprefix(GIVEN)} cannot be used with this table: {error}"
            + (f" (Columns with missing values: {', '.join(holes)}.)" if holes else "")
            + (FROZEN if isinstance(error, NotFittedError) else "")
        ) from error


# --- training ----------------------------------------------------------------------------------


class Trained(NamedTuple):
    """An estimator trained on clean rows."""

    encoder: Any  # None for a given estimator, which uses raw columns
    estimator: Any
    name: str  # name of the learner or of the given estimator
    comparison: Comparison
    scale: TargetScale | None  # None for classification


def trained(
    given: Any,
    columns: CleanColumns,
    X: pd.DataFrame,
    y: NDArray[Any],
    *,
    regression: bool,
    seed: int,
    n_jobs: int | None,
    tell: Callable[[int, str], None],
) -> Trained:
    """Select and train a learner, and search for adversarial models of this learner."""
    learner = Learner(numbers=columns.numbers_, regression=regression, seed=seed)
    comparison, name, scale = Comparison(), given, None
    folds = Folds.of(X, y, learner)
    if given == "auto":
        tell(1, "comparing learners.")
        comparison = folds.compare([n for n in LABELS if regression or n != "forest"])
        name = comparison.best
    if regression:
        scale = TargetScale.of(y)
        if isinstance(name, str):
            scale = replace(scale, power=folds.best_scale(name).power)
            y = scale.transformed(y)
    encoder: Any = None
    if isinstance(name, str):
        learner.set_params(name=name)
        encoder, estimator = learner.encoder(X), _quam(learner.model(y), regression, seed, n_jobs)
        tell(2, f"training {LABELS[name]} and searching for adversarial models.")
    elif hasattr(given, "predict_uncertainty"):
        encoder, estimator = as_indicators(X, columns.numbers_), clone(given)
        name = type(given).__name__
        tell(2, f"training {name}.")
    else:
        frozen = given if isinstance(given, FrozenEstimator) else FrozenEstimator(given)
        estimator = _quam(frozen, regression, seed, n_jobs)
        name = f"{GIVEN}{type(frozen.estimator).__name__}"
        tell(2, f"searching for adversarial models of {name}.")
    # An external estimator expects the columns as they were stored.
    known = columns.inverse_transform(X) if encoder is None else encoder.fit_transform(X)
    pool = {}
    if _makes_pool(estimator):
        from skuq.quam import make_pool

        if encoder is None:
            pool["X_pool"] = _pool_of_stored(given, known, seed)
        else:
            pool["X_pool"] = encoder.transform(make_pool(X, random_state=seed))
    with table_errors(name, X):
        estimator.fit(known, y, **pool)
    return Trained(encoder, estimator, name, comparison, scale)


def _makes_pool(estimator: Any) -> bool:
    """Whether QUAM would generate its own candidate pool, from encoded instead of raw rows."""
    from skuq.quam import QUAMClassifier, QUAMRegressor

    if not isinstance(estimator, QUAMClassifier | QUAMRegressor):
        return False
    search = estimator.search
    return search in (None, "pool", "refit") or getattr(search, "pool", None) == "auto"


def _pool_of_stored(estimator: Any, rows: Any, seed: int) -> pd.DataFrame:
    """Candidate pool of an external estimator, made from rows as they were stored."""
    from skuq.features import category_columns
    from skuq.quam import make_pool

    categories = category_columns(estimator, list(rows.columns))

    def made(kinds: Sequence[str] | None = None) -> pd.DataFrame:
        pool = make_pool(rows, kinds=kinds, categories=categories, random_state=seed)
        whole = rows.select_dtypes("int64")
        return pool.assign(**{name: as_integers(pool[name].round()) for name in whole})

    pool = made()
    try:
        estimator.predict(pool)
    except Exception:  # models that refuse unknown categories may raise any exception
        pool = made(KNOWN_VALUES)
    return pool


def _quam(estimator: Any, regression: bool, seed: int, n_jobs: int | None) -> Any:
    from skuq.quam import QUAMClassifier, QUAMRegressor

    return (QUAMRegressor if regression else QUAMClassifier)(
        estimator, random_state=seed, n_jobs=n_jobs
    )
