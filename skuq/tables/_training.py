"""Training on the clean rows of a table: selection of a learner, or use of a given estimator."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold

from skuq.base import FloatArray
from skuq.metrics import interval_score, negative_log_likelihood
from skuq.residuals import LEVELS, RowNoise, central_interval
from skuq.stored import stored
from skuq.tables._column_kinds import as_integers
from skuq.tables._columns import CleanColumns
from skuq.tables._encoders import as_codes, as_indicators
from skuq.tables._target_scale import SMALLEST_GAIN, TargetScale
from skuq.tables._validation import TableError

N_FOLDS = 3
MAX_COMPARED = 3000  # maximum number of rows on which learners are compared
ENOUGH_TO_STOP = 500  # minimum number of rows for early stopping of boosting
LEAF = 3
KNOWN_VALUES = ("crossed", "shuffled", "out_of_range")  # kinds of inputs without new categories
# If there are more rows than this number, and learners were not compared, the learner is timed on a
# subset.
MANY = 20_000
LONG = 60.0  # estimated times above this number of seconds are reported
GIVEN = "the given "  # prefix of the name of a given estimator


class Learner(NamedTuple):
    """A learner that can be selected by name."""

    label: str  # name in sentences
    encoder: Callable[[pd.DataFrame, Sequence[str]], Any]  # (training rows, numeric columns)
    make: Callable[[bool, NDArray[Any], int], Any]  # (regression, y, seed)


def _boosting(regression: bool, y: NDArray[Any], seed: int) -> Any:
    fewest = len(y) if regression else np.unique(y, return_counts=True)[1].min()
    stops = len(y) >= ENOUGH_TO_STOP and fewest >= 10
    if regression:  # regression needs many more iterations than classification
        return HistGradientBoostingRegressor(
            learning_rate=0.05,
            max_iter=1500 if stops else 150,
            n_iter_no_change=30,
            early_stopping=stops,
            random_state=seed,
        )
    return HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_leaf_nodes=15,
        max_iter=300 if stops else 100,
        early_stopping=stops,
        random_state=seed,
    )


def _linear(regression: bool, y: NDArray[Any], seed: int) -> Any:
    return Ridge() if regression else LogisticRegression(max_iter=1000)


def _forest(regression: bool, y: NDArray[Any], seed: int) -> Any:
    if regression:
        return ExtraTreesRegressor(random_state=seed)
    return RandomForestClassifier(min_samples_leaf=LEAF, random_state=seed)


LEARNERS = {
    "hgb": Learner("boosted trees", as_codes, _boosting),
    "logistic": Learner("a linear model", as_indicators, _linear),
    "network": Learner("a network", as_indicators, lambda *_: None),  # QUAM's default
    "forest": Learner("a forest", as_codes, _forest),
}
COMPARED = ("hgb", "logistic", "network")
COMPARED_QUANTITIES = (*COMPARED, "forest")
COVERAGE = 0.9  # nominal coverage of the intervals used to compare scales of a target
SAFEST = "logistic"  # used if there are too few rows to compare learners


@stored("tables.comparison")
@dataclass(frozen=True)
class Comparison:
    """Cross-validation losses of the learners that were compared.

    Attributes
    ----------
    losses : dict of str to float
        Loss of each learner: log loss in nats, or mean squared error divided by the variance.
    guessing : float
        Log loss of predicting the class frequencies; 1 for regression.
    n_rows, n_folds : int
        Numbers of rows and of folds.
    seconds : dict of str to float
        Training time of each learner, per row.
    """

    losses: dict[str, float] = field(default_factory=dict)
    guessing: float = float("nan")
    n_rows: int = 0
    n_folds: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """Learner with the smallest loss."""
        return min(self.losses, key=self.losses.__getitem__, default=SAFEST)


@dataclass(frozen=True)
class Folds:
    """Sample of rows of a table, with its cross-validation folds."""

    X: pd.DataFrame
    y: NDArray[Any]
    numbers: Sequence[str]
    regression: bool
    seed: int
    # (training rows, test rows) of each fold; empty if there are too few rows
    parts: list[tuple[NDArray[Any], NDArray[Any]]]

    @classmethod
    def of(
        cls, X: pd.DataFrame, y: NDArray[Any], numbers: Sequence[str], regression: bool, seed: int
    ) -> Folds:
        """Sample at most `MAX_COMPARED` rows, and split them into folds."""
        rows = _rows_to_compare(y, regression, seed)
        X, y = X.iloc[rows].reset_index(drop=True), y[rows]
        n_folds = N_FOLDS if regression else min(N_FOLDS, _fewest(y))
        if n_folds < 2 or len(y) < 3 * n_folds or len(np.unique(y)) < 2:
            return cls(X, y, numbers, regression, seed, [])
        kind = KFold if regression else StratifiedKFold
        folding = kind(n_folds, shuffle=True, random_state=seed)
        return cls(
            X, y, numbers, regression, seed, list(folding.split(X, None if regression else y))
        )

    def compare(self, names: Sequence[str]) -> Comparison:
        """Cross-validate the named learners; an empty comparison if there are too few rows."""
        if not self.parts:
            return Comparison()
        losses, seconds, n_rows = {}, {}, len(self.y)
        for name in names:
            start = time.process_time()
            losses[name] = float(
                np.concatenate([self._loss(name, *part) for part in self.parts]).mean()
            )
            seconds[name] = (time.process_time() - start) / ((len(self.parts) - 1) * n_rows)
        guessing = _guessing(self.y, self.regression)
        return Comparison(losses, guessing, n_rows, len(self.parts), seconds)

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
        predicted = np.empty(len(z))
        for train, test in self.parts:
            predicted[test] = self._outputs(name, train, test, z)[0]
        inputs = as_codes(self.X, self.numbers).fit_transform(self.X)
        noise = RowNoise.fit(
            inputs, predicted, z - predicted, np.ones(len(z)), seed=self.seed, n_jobs=None
        )
        quantiles = predicted[noise.forest.rows, None] + noise.forest.out_of_bag_quantiles(LEVELS)
        ends = central_interval(scale.inverse(quantiles), LEVELS, COVERAGE)
        y = self.y[noise.forest.rows]
        return float(interval_score(y, *ends, coverage=COVERAGE))

    def _outputs(
        self, name: str, train: NDArray[Any], test: NDArray[Any], y: NDArray[Any]
    ) -> tuple[FloatArray, NDArray[Any] | None]:
        """Predictions or class probabilities of a learner for test rows; classes of the learner."""
        known = self.X.iloc[train]
        encoder = LEARNERS[name].encoder(known, self.numbers)
        inputs = encoder.fit_transform(known)
        unknown = encoder.transform(self.X.iloc[test])
        learner = LEARNERS[name].make(self.regression, y[train], self.seed)
        if learner is None:
            return _network_outputs(inputs, y[train], unknown, self.regression, self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            learner.fit(inputs, y[train])
        if self.regression:
            return learner.predict(unknown), None
        return learner.predict_proba(unknown), learner.classes_

    def _loss(self, name: str, train: NDArray[Any], test: NDArray[Any]) -> FloatArray:
        """Loss of each test row of a fold."""
        predicted, classes = self._outputs(name, train, test, self.y)
        if self.regression:
            losses: FloatArray = (predicted - self.y[test]) ** 2 / self.y.var()
            return losses
        loss = negative_log_likelihood(self.y[test], predicted, classes=classes)
        return np.full(len(test), loss)


def _rows_to_compare(y: NDArray[Any], regression: bool, seed: int) -> NDArray[np.intp]:
    """Sample up to `MAX_COMPARED` rows, without classes that have a single row in the sample."""
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


def _network_outputs(
    X: NDArray[Any], y: NDArray[Any], X_test: NDArray[Any], regression: bool, seed: int
) -> tuple[FloatArray, NDArray[Any] | None]:
    from skuq.models import fit_model

    model = fit_model(None, X, y, regression=regression, seed=seed, device="auto")
    inputs = model.inputs(X_test)
    if regression:
        return model.outputs(inputs)[:, 0].numpy(), None
    return model.outputs(inputs).softmax(-1).numpy(), model.classes


def _makes_pool(estimator: Any) -> bool:
    """Whether QUAM would generate its own candidate pool, from encoded instead of raw rows."""
    from skuq.quam import QUAMClassifier, QUAMRegressor

    if not isinstance(estimator, QUAMClassifier | QUAMRegressor):
        return False
    search = estimator.search
    return search in (None, "pool", "refit") or getattr(search, "pool", None) == "auto"


# --- given estimators --------------------------------------------------------------------------


def is_given(estimator: Any) -> bool:
    """Whether an estimator is an external one, fitted on raw columns."""
    return not (isinstance(estimator, str) or hasattr(estimator, "predict_uncertainty"))


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


def check_fitted(estimator: Any, row: pd.DataFrame) -> None:
    """Refuse a given estimator that is not fitted, before any long computation."""
    try:
        estimator.predict(row)
    except NotFittedError as error:
        raise TableError(
            f"{type(estimator).__name__} is not fitted. Fit it before you save or pass it; inside "
            "a FrozenEstimator it stays fitted when it is cloned, as in cross-validation."
        ) from error
    except Exception:  # the error is reported later, when all rows are predicted
        return


@contextmanager
def table_errors(name: str, X: pd.DataFrame) -> Iterator[None]:
    """Re-raise errors of an external estimator as `TableError`; `name` is `TableModel.name_`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, TableError) or name in LEARNERS:
            raise
        holes = [str(column) for column in X.columns[X.isna().any()]]
        raise TableError(
            f"{name.removeprefix(GIVEN)} cannot be used with this table: {error}"
            + (f" (Columns with missing values: {', '.join(holes)}.)" if holes else "")
        ) from error


# --- training ----------------------------------------------------------------------------------


class Trained(NamedTuple):
    """An estimator trained on clean rows."""

    encoder: Any  # None for a given estimator, which uses raw columns
    estimator: Any
    name: str  # name of the learner or of the given estimator
    comparison: Comparison
    scale: TargetScale | None  # None for classification


def encoded(encoder: Any, columns: CleanColumns, X: pd.DataFrame) -> Any:
    """Inputs of the estimator for clean rows."""
    if encoder is not None:
        return encoder.transform(X)
    # An external estimator expects the columns as they were stored.
    return columns.inverse_transform(X)


@dataclass(frozen=True)
class Training:
    """Settings of a training run; parameters as in `skuq.tables.TableModel`."""

    estimator: Any
    columns: CleanColumns
    regression: bool
    random_state: int
    n_jobs: int | None
    progress: Callable[[str], None] | None

    def tell(self, step: int, text: str) -> None:
        """Report the start of one of three steps."""
        if self.progress is not None:
            skipped = 0 if self.estimator == "auto" else 1  # skip the comparison of learners
            self.progress(f"{step - skipped} of {3 - skipped}: {text}")

    def run(self, X: pd.DataFrame, y: NDArray[Any]) -> Trained:
        """Select and train a learner, and search for adversarial models of this learner."""
        given, numbers = self.estimator, self.columns.numbers_
        comparison, name = Comparison(), given
        folds = Folds.of(X, y, numbers, self.regression, self.random_state)
        if given == "auto":
            self.tell(1, "comparing learners.")
            comparison = folds.compare(COMPARED_QUANTITIES if self.regression else COMPARED)
            name = comparison.best
        scale = TargetScale.of(y) if self.regression else None
        if scale is not None and isinstance(name, str):
            scale = replace(scale, power=folds.best_scale(name).power)
            y = scale.transformed(y)
        encoder: Any = None
        if isinstance(name, str):
            learner = LEARNERS[name]
            encoder = learner.encoder(X, numbers)
            estimator = self._quam(learner.make(self.regression, y, self.random_state))
            action = f"training {learner.label} and searching for adversarial models"
        elif hasattr(given, "predict_uncertainty"):
            encoder = as_indicators(X, numbers)
            estimator = clone(given)
            name = type(given).__name__
            action = f"training {name}"
        else:
            frozen = given if isinstance(given, FrozenEstimator) else FrozenEstimator(given)
            estimator = self._quam(frozen)
            name = f"{GIVEN}{type(frozen.estimator).__name__}"
            action = f"searching for adversarial models of {name}"
        self.tell(2, f"{action}.{self._estimate(folds, X, y, name, comparison)}")
        # An external estimator expects the columns as they were stored.
        known = self.columns.inverse_transform(X) if encoder is None else encoder.fit_transform(X)
        pool = {}
        if _makes_pool(estimator):
            if encoder is None:
                pool["X_pool"] = self._pool_of_stored(known)
            else:
                from skuq.quam import make_pool

                pool["X_pool"] = encoder.transform(make_pool(X, random_state=self.random_state))
        with table_errors(name, X):
            estimator.fit(known, y, **pool)
        return Trained(encoder, estimator, name, comparison, scale)

    def _pool_of_stored(self, rows: Any) -> pd.DataFrame:
        """Candidate pool of an external estimator, made from rows as they were stored."""
        from skuq.models import category_columns
        from skuq.quam import make_pool

        categories = category_columns(self.estimator, list(rows.columns))

        def made(kinds: Sequence[str] | None = None) -> pd.DataFrame:
            pool = make_pool(
                rows, kinds=kinds, categories=categories, random_state=self.random_state
            )
            whole = rows.select_dtypes("int64")
            return pool.assign(**{name: as_integers(pool[name].round()) for name in whole})

        pool = made()
        try:
            self.estimator.predict(pool)
        except Exception:  # models that refuse unknown categories may raise any exception
            pool = made(KNOWN_VALUES)
        return pool

    def _quam(self, estimator: Any) -> Any:
        from skuq.quam import QUAMClassifier, QUAMRegressor

        options: dict[str, Any] = {"random_state": self.random_state, "n_jobs": self.n_jobs}
        if self.regression:
            return QUAMRegressor(estimator, **options)
        return QUAMClassifier(estimator, **options)

    def _estimate(
        self, folds: Folds, X: pd.DataFrame, y: NDArray[Any], name: str, comparison: Comparison
    ) -> str:
        """Sentence with the expected time of all fits, or "" if it is short."""
        if self.progress is None:  # skip the timing run if nobody sees the result
            return ""
        n_rows, seconds = len(X), comparison.seconds
        if not seconds and name in LEARNERS and n_rows > MANY:
            seconds = folds.compare([name]).seconds
        n_searches = 2 if self.regression else min(len(np.unique(y)), 10)  # QUAM's default
        n_copies = 5 if self.regression else 0  # cross-validated copies to estimate the noise
        expected = seconds.get(name, 0.0) * n_rows * (2 + 2 * n_searches + n_copies)
        return f" This takes about {expected / 60:.0f} minutes." if expected > LONG else ""
