"""Training on the clean rows of a table: selection of a learner, or use of a given estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import ensemble
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.utils.validation import has_fit_parameter

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.explanations import filled_texts
from skuq.files import stored
from skuq.labels import codes_of
from skuq.metrics import interval_score, negative_log_likelihood
from skuq.residuals import LEVELS, RowNoise, central_interval
from skuq.sklearn_counterparts import fold_splits, target_encoder
from skuq.tables._columns import CleanColumns, TableError, as_integers
from skuq.tables._target import SMALLEST_GAIN, TargetScale, is_regression

N_FOLDS = 3
MAX_COMPARED = 3000  # maximum number of rows on which learners are compared
MAX_CATEGORIES = 50  # maximum number of indicators of a text column; rare categories share one
MANY_LEVELS = 20  # a text column with more values is encoded by the mean target of each value
# Numeric columns with fewer values are imputed for trees. Leaves of boosted trees have 20 rows or
# more, so without imputation each leaf would contain rows in which the value is missing.
FEW_NUMBERS = 20
ENOUGH_TO_STOP = 500  # minimum number of rows for early stopping of boosting
MANY = 50_000  # from this number of rows on, 300 small trees underfit (benchmark `ladders`)
LEAF = 3
KNOWN_VALUES = ("crossed", "shuffled", "out_of_range")  # kinds of pool rows without new categories
COVERAGE = 0.9  # nominal coverage of the intervals used to compare scales of a target
FROZEN = " Inside a FrozenEstimator it stays fitted when it is cloned, as in cross-validation."
GIVEN = "the given "  # prefix of the name of a given estimator
LABELS = {
    "hgb": "boosted trees",
    "logistic": "a linear model",
    "network": "a network",
    "forest": "a forest",
}


@dataclass(repr=False, eq=False)
class Learner(BaseEstimator):
    """One of the learners in `LABELS`, together with its encoder of clean rows."""

    name: str = "hgb"
    numbers: Sequence[str] = ()
    regression: bool = False
    seed: int = 0
    # False if there are groups, which early stopping and target encoding would split at random.
    independent: bool = True

    def encoded(self, X: pd.DataFrame, y: NDArray[Any]) -> tuple[Encoder, FloatArray]:
        means = target_encoder(self.regression, self.seed) if self.independent else None
        return encoded(X, y, self.numbers, means, for_trees=self.name in ("hgb", "forest"))

    def model(self, y: NDArray[Any]) -> Any:
        """Return an unfitted model for these training targets; None for QUAM's own network."""
        if self.name == "network":
            return None
        if self.name == "logistic":
            return Ridge() if self.regression else LogisticRegression(max_iter=1000)
        if self.name == "forest":
            if self.regression:
                return ensemble.ExtraTreesRegressor(random_state=self.seed)
            return ensemble.RandomForestClassifier(min_samples_leaf=LEAF, random_state=self.seed)
        fewest = len(y) if self.regression else np.unique(y, return_counts=True)[1].min()
        stops = self.independent and len(y) >= ENOUGH_TO_STOP and fewest >= 10
        options = {"learning_rate": 0.05, "early_stopping": stops, "random_state": self.seed}
        if self.regression:  # regression needs many more iterations than classification
            options |= {"max_iter": 1500 if stops else 150, "n_iter_no_change": 30}
            return ensemble.HistGradientBoostingRegressor(**options)
        options |= {"max_iter": 300 if stops else 100, "max_leaf_nodes": 15}
        if stops and len(y) >= MANY:
            options |= {"learning_rate": 0.1, "max_leaf_nodes": 31}
        return ensemble.HistGradientBoostingClassifier(**options)

    def fit(
        self, X: pd.DataFrame, y: NDArray[Any], sample_weight: FloatArray | None = None
    ) -> Learner:
        self.encoder_, inputs = self.encoded(X, y)
        self.model_ = self.model(y)
        if self.model_ is None:
            from skuq.models import fit_model

            kind, seed = self.regression, self.seed
            options: dict[str, Any] = {"regression": kind, "seed": seed, "device": "auto"}
            self.model_ = fit_model(None, inputs, y, sample_weight=sample_weight, **options)
            self.classes_ = self.model_.classes
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model_.fit(inputs, y, sample_weight=sample_weight)
        self.classes_ = getattr(self.model_, "classes_", None)
        return self

    def predict(self, X: pd.DataFrame) -> FloatArray:
        """Predict quantities, (n_rows,), or probabilities of classes, (n_rows, n_classes)."""
        inputs = self.encoder_.transform(X)
        if self.name == "network":
            outputs = self.model_.outputs(self.model_.inputs(inputs))
            return (outputs[:, 0] if self.regression else outputs.softmax(-1)).numpy()
        return (self.model_.predict if self.regression else self.model_.predict_proba)(inputs)


@stored("tables.encoder")
@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder of clean rows for a learner, faster for few rows than scikit-learn's transformers."""

    numbers: list[str]
    fill: FloatArray  # for missing numbers, (n_numbers,)
    marked: BoolArray  # whether an indicator marks missing numbers, (n_numbers,)
    mean: FloatArray  # mean and scale standardise the numbers and the indicators
    scale: FloatArray
    categories: dict[str, list[str]]  # of the text columns
    # Each text column, and its table of inputs: a row per category, and a last row for unseen ones.
    tables: list[tuple[str, NDArray[Any]]]

    def transform(self, X: pd.DataFrame) -> FloatArray:
        numbers = X[self.numbers].to_numpy(dtype=np.float64)
        missing = np.isnan(numbers)
        inputs = np.hstack([np.where(missing, self.fill, numbers), missing[:, self.marked]])
        rows = {}
        for name, known in self.categories.items():
            codes = {category: code for code, category in enumerate(known)}
            rows[name] = [codes.get(text, len(known)) for text in filled_texts(X[name])]
        looked_up = [table[rows[name]] for name, table in self.tables]
        return np.hstack([(inputs - self.mean) / self.scale, *looked_up])

    def inputs_of(self, columns: Sequence[str]) -> list[list[int]]:
        """Return the positions of the inputs that encode each column."""
        marked = np.array(self.numbers, dtype=object)[self.marked]
        of_texts = [name for name, table in self.tables for _ in range(table.shape[1])]
        positions: dict[str, list[int]] = {name: [] for name in columns}
        for k, name in enumerate((*self.numbers, *marked, *of_texts)):
            positions[name].append(k)
        return [*positions.values()]


def encoded(
    X: pd.DataFrame,
    y: NDArray[Any] | None,
    numbers: Sequence[str],
    means: TargetEncoder | None = None,
    *,
    for_trees: bool,
) -> tuple[Encoder, FloatArray]:
    """Encode training rows; return the encoder and the inputs of the rows.

    Trees get numbers, codes of categories, and target `means` of text columns with many categories.
    Missing numbers and unseen categories become NaN. Numeric columns with few values are imputed:
    trees raise an error if such a column has no value in a subset of the rows.

    Other learners get scaled numbers and one-hot indicators of categories, or scaled `means`.
    Missing numbers are replaced by the median and marked by an indicator. An extra indicator marks
    unseen categories; it is 0 in all training rows, so training does not determine its effect.
    """
    values = X[[*numbers]]
    fill, marked = values.median().fillna(0.0), values.isna().any()
    if for_trees:
        fill, marked = fill.mask(values.count() >= FEW_NUMBERS), marked & False
    n_inputs = len(fill) + int(marked.sum())
    scaling = np.zeros(n_inputs), np.ones(n_inputs)
    encoder = Encoder([*numbers], fill.to_numpy(float), marked.to_numpy(bool), *scaling, {}, [])
    if n_inputs and not for_trees:
        scaler = StandardScaler().fit(encoder.transform(X))
        encoder = replace(encoder, mean=scaler.mean_, scale=scaler.scale_)
    texts = [name for name in X.columns if name not in encoder.numbers]
    many = [] if means is None else [name for name in texts if X[name].nunique() > MANY_LEVELS]
    few = [name for name in texts if name not in many]
    coded = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    steps: list[tuple[list[str], Any]] = [(texts, coded), (many, means)]
    if not for_trees:
        one_hot = OneHotEncoder(
            handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
        )
        unseen = make_pipeline(coded, MissingIndicator(features="all"))
        scaled = make_pipeline(means, StandardScaler())
        steps = [(few, one_hot), (few, unseen), (many, scaled), (many, unseen)]
    inputs = [encoder.transform(X)]
    for names, transformer in steps:
        for name in names:
            column = np.array(filled_texts(X[name]), dtype=object)
            known = sorted({*column})
            # The last row represents unseen categories by a text longer than all others.
            rows = np.array([*known, max(known, key=len) + "?"], dtype=object)[:, None]
            inputs.append(transformer.fit_transform(column[:, None], y))
            encoder.categories[name] = known
            encoder.tables.append((name, transformer.transform(rows)))
    return encoder, np.hstack(inputs)


@stored("tables.comparison")
@dataclass(frozen=True)
class Comparison:
    """Cross-validation losses: log loss in nats, or mean squared error divided by the variance."""

    losses: dict[str, float] = field(default_factory=dict)  # of each learner
    guessing: float = float("nan")  # log loss of the class frequencies, or 1 for regression
    n_rows: int = 0
    n_folds: int = 0

    @property
    def best(self) -> str:
        """Learner with the smallest loss; a linear model if there were too few rows to compare."""
        return min(self.losses, key=self.losses.__getitem__, default="logistic")


class Folds:
    """Sample of at most `MAX_COMPARED` rows of a table, with its cross-validation folds."""

    def __init__(
        self,
        X: pd.DataFrame,
        y: NDArray[Any],
        learner: Learner,
        groups: IntArray | None = None,
        weight: FloatArray | None = None,
    ) -> None:
        """Sample rows for a learner; `folds` is empty if there are too few rows."""
        rows = np.sort(np.random.default_rng(learner.seed).permutation(len(y))[:MAX_COMPARED])
        n_folds = N_FOLDS
        if not learner.regression:  # drop classes that have a single row in the sample
            _, codes, counts = np.unique(y[rows], return_inverse=True, return_counts=True)
            if groups is not None:
                counts = np.asarray(pd.Series(groups[rows]).groupby(codes).nunique())
            rows = rows[counts[codes] >= 2]
            n_folds = int(counts[counts >= 2].min(initial=N_FOLDS))
        self.X, self.y, self.learner = X.iloc[rows].reset_index(drop=True), y[rows], learner
        self.groups = None if groups is None else groups[rows]
        self.weight = None if weight is None else weight[rows]
        self.folds: list[tuple[IntArray, IntArray]] = []
        if len(rows) >= 3 * n_folds and len(np.unique(self.y)) >= 2:
            kind: dict[str, Any] = {"stratify": not learner.regression, "seed": learner.seed}
            self.folds = fold_splits(n_folds, self.y, self.groups, **kind)

    def predicted(self, name: str, y: NDArray[Any]) -> FloatArray:
        """Predict rows by learners trained on the other folds; (n_rows,) or (n_rows, n_classes)."""
        learner, regression = clone(self.learner).set_params(name=name), self.learner.regression
        classes = np.empty(0) if regression else np.unique(y)
        found = np.zeros(len(y) if regression else (len(y), len(classes)))
        for train, test in self.folds:
            weight = None if self.weight is None else self.weight[train]
            fitted = clone(learner).fit(self.X.iloc[train], y[train], weight)
            predicted = fitted.predict(self.X.iloc[test])
            if regression:
                found[test] = predicted
            else:  # with groups, the training rows of a fold may lack a class
                found[np.ix_(test, codes_of(fitted.classes_, classes, "classes"))] = predicted
        return found

    def compare(self, names: Sequence[str]) -> Comparison:
        """Cross-validate the named learners; return no losses if there are too few rows."""
        if not self.folds:
            return Comparison()
        y, size = self.y, (len(self.y), len(self.folds))
        found = {name: self.predicted(name, y) for name in names}
        if self.learner.regression:
            mean = partial(np.average, weights=self.weight)
            var = mean((y - mean(y)) ** 2)
            losses = {name: float(mean((p - y) ** 2) / var) for name, p in found.items()}
            return Comparison(losses, 1.0, *size)
        classes, codes = np.unique(y, return_inverse=True)
        given: dict[str, Any] = {"classes": classes, "sample_weight": self.weight}
        losses = {n: negative_log_likelihood(y, p, **given) for n, p in found.items()}
        share = np.bincount(codes, weights=self.weight)
        share = share / share.sum()
        return Comparison(losses, float(-(share * np.log(share)).sum()), *size)

    def best_scale(self, name: str) -> TargetScale:
        """Choose the scale of the target with the smallest cross-validated interval score."""
        original = TargetScale.of(self.y)
        scales = [original, *original.others(self.y)]
        if len(scales) == 1 or not self.folds:
            return original
        scores = {scale: self._interval_score(name, scale) for scale in scales}
        best = min(scores, key=scores.__getitem__)
        return best if scores[best] < (1 - SMALLEST_GAIN) * scores[original] else original

    def _interval_score(self, name: str, scale: TargetScale) -> float:
        z = scale.transformed(self.y)
        predicted = self.predicted(name, z)
        inputs = encoded(self.X, None, self.learner.numbers, for_trees=True)[1]
        weight = np.ones(len(z)) if self.weight is None else self.weight
        work: dict[str, Any] = {"codes": self.groups, "seed": self.learner.seed, "n_jobs": None}
        noise = RowNoise.fit(inputs, predicted, z - predicted, weight, **work)
        quantiles = predicted[noise.forest.rows, None] + noise.forest.out_of_bag_quantiles(LEVELS)
        ends = central_interval(scale.inverse(quantiles), LEVELS, COVERAGE)
        y = self.y[noise.forest.rows]
        return float(interval_score(y, *ends, coverage=COVERAGE))


def checked_task(estimator: Any, task: str, column: pd.Series) -> bool:
    """Whether the task is regression; raise if the estimator does not support `task`."""
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
    """Map column names of the table to the feature names of the estimator, if it has any."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return dict(zip(features, features, strict=True))
    # Column names read from files have no surrounding spaces.
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
    """Raise errors of an external estimator as `TableError`; `name` is `TableModel.name_`."""
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


class Trained(NamedTuple):
    encoder: Encoder | None  # None for a given estimator, which uses raw columns
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
    groups: IntArray | None,
    weight: FloatArray | None,
) -> Trained:
    """Select and train a learner, and search for adversarial models of this learner."""
    learner = Learner(
        numbers=columns.numbers_, regression=regression, seed=seed, independent=groups is None
    )
    weight = None if weight is None else weight / weight.mean()  # only ratios matter
    comparison, name, scale = Comparison(), given, None
    folds = Folds(X, y, learner, groups, weight)
    if given == "auto":
        tell(1, "comparing learners.")
        comparison = folds.compare([n for n in LABELS if regression or n != "forest"])
        name = comparison.best
    if regression:
        scale = TargetScale.of(y)
        if isinstance(name, str):
            scale = replace(scale, power=folds.best_scale(name).power)
            y = scale.transformed(y)
    from skuq.quam import QUAMClassifier, QUAMRegressor, make_pool

    encoder: Encoder | None = None
    known: Any = None
    quam = partial(QUAMRegressor if regression else QUAMClassifier, random_state=seed)
    if isinstance(name, str):
        learner.set_params(name=name)
        encoder, known = learner.encoded(X, y)
        estimator = quam(learner.model(y), n_jobs=n_jobs)
        tell(2, f"training {LABELS[name]} and searching for adversarial models.")
    elif hasattr(given, "predict_uncertainty"):
        encoder, known = learner.set_params(name="logistic").encoded(X, y)
        estimator = clone(given)
        name = type(given).__name__
        tell(2, f"training {name}.")
    else:
        frozen = given if isinstance(given, FrozenEstimator) else FrozenEstimator(given)
        estimator = quam(frozen, n_jobs=n_jobs)
        name = f"{GIVEN}{type(frozen.estimator).__name__}"
        tell(2, f"searching for adversarial models of {name}.")
    # An external estimator expects the types and names of the user's table.
    if encoder is None:
        known = columns.inverse_transform(X)
    options = {"groups": groups, "sample_weight": weight}
    options = {name: values for name, values in options.items() if values is not None}
    lacking = [name for name in options if not has_fit_parameter(estimator, name)]
    if "sample_weight" in lacking:
        raise TableError(f"{name} does not accept `sample_weight`; choose another model.")
    if isinstance(estimator, QUAMClassifier | QUAMRegressor):
        search = estimator.search
        # Make the pool of candidate inputs from raw rows; QUAM would make it from encoded rows.
        if search in (None, "pool", "refit") or getattr(search, "pool", None) == "auto":
            options["X_pool"] = (
                _pool_of_stored(given, known, seed)
                if encoder is None
                else _pool_inputs(encoder, X, known, make_pool(X, random_state=seed), seed)
            )
    with table_errors(name, X), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A sampler")  # in `TableModel.warnings_` instead
        estimator.fit(known, y, **{n: e for n, e in options.items() if n not in lacking})
    return Trained(encoder, estimator, name, comparison, scale)


def _pool_inputs(
    encoder: Encoder, X: pd.DataFrame, inputs: FloatArray, pool: pd.DataFrame, seed: int
) -> FloatArray:
    """Encode a pool like the training rows.

    The target means of a training row were computed on other folds, and differ systematically from
    means over all rows. Therefore, a pool row gets those of a random training row of its category.
    """
    random, found, plain = (
        np.random.default_rng(seed),
        encoder.transform(pool),
        encoder.transform(X),
    )
    for name, positions in zip(X, encoder.inputs_of([*X]), strict=True):
        if name in encoder.categories and (plain != inputs)[:, positions].any():
            texts, of_pool = (np.array(filled_texts(each[name])) for each in (X, pool))
            for category in encoder.categories[name]:
                rows, own = np.flatnonzero(texts == category), np.flatnonzero(of_pool == category)
                drawn = inputs[random.choice(rows, len(own))]
                found[own[:, None], positions] = drawn[:, positions]
    return found


def _pool_of_stored(estimator: Any, rows: Any, seed: int) -> pd.DataFrame:
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
