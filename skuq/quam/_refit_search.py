"""Search that refits a learner so that it predicts one class on a whole pool of inputs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack
from sklearn.base import clone, is_classifier
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.ensemble._hist_gradient_boosting.common import ALMOST_INF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import _safe_indexing, check_array, check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.validation import _num_samples

from skuq._progress import progress
from skuq.base import FloatArray, IntArray
from skuq.files import stored
from skuq.models import Given, LearnerModel, TrainingData, class_weights, takes_weights, unfitted
from skuq.quam._search import (
    MAX_MEMORY,
    Found,
    Problem,
    Search,
    Setup,
    Work,
    mean_excess,
    searches_in_memory,
    warn_if_slow,
)
from skuq.validation import (
    as_pandas,
    as_table_of,
    independent_counts,
    to_dense,
    warn_user,
    whole_groups,
)

if TYPE_CHECKING:
    import torch

# Training samples that are held out from all models, to compare the models' losses: fraction of all
# training samples, minimum and maximum number.
_SHARE_HELD_OUT, _FEWEST_HELD_OUT, _MOST_HELD_OUT = 0.1, 5, 2000
# Smaller predicted probabilities are raised to this value. A forest can predict 0 because of a few
# samples, and its loss would then be infinite.
_LEAST_PROBABILITY = 1e-6
# Number of random planes that divide the pool if a regressor is linear (see `split_signs`).
_N_SPLITS = 16
_N_DIRECTIONS = 100  # sparse inputs with more columns are reduced to this many principal directions
# Pool inputs are dropped if predictions for them lie outside the range of the training targets by
# more than this many times the width of the range.
_REACH = 10.0
_LEAF = 2  # minimum number of samples per leaf in refits of trees that could memorise samples


@stored("quam.refit-search")
@dataclass(kw_only=True, eq=False, repr=False)
class RefitSearch(Search):
    """Search that refits a learner for each class during `fit`, on data plus a weighted pool.

    This search is for boosted trees, forests, linear models and all other learners except networks.
    If the learner's `fit` accepts `sample_weight`, the whole pool is added to the training data
    with a small weight (a voting or stacking ensemble accepts weights if all members do). For all
    other learners (nearest neighbours, discriminant analysis, Gaussian processes, one-vs-rest,
    in-context learners), some rows of the pool are added, in proportion to the number of training
    rows. After `fit`, only the models found are evaluated at an input.

    Parameters
    ----------
    pool, max_memory
        As in `PoolSearch`.
    shares : array-like of float, default=(0.1, 0.3)
        Total weights of the pool, summed over the searches for all classes, divided by the weight
        of the training data. For each class, one model is fitted with each of these shares.

    Examples
    --------
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> from skuq import QUAMClassifier
    >>> from skuq.quam import RefitSearch
    >>> trees = HistGradientBoostingClassifier()
    >>> QUAMClassifier(trees, search=RefitSearch(shares=[0.1])).search.shares
    [0.1]
    """

    pool: Any = "auto"
    shares: Any = (0.1, 0.3)
    max_memory: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "pool": [StrOptions({"auto"}), callable],
        "shares": ["array-like"],
        "max_memory": MAX_MEMORY,
    }

    form = "learner"

    def checked_shares(self) -> list[float]:
        """Validate `shares` and return them in ascending order."""
        shares = np.asarray(self.shares, dtype=float)
        if shares.ndim != 1 or not len(shares) or not (shares > 0).all():
            raise ValueError(
                "`shares` must be a non-empty list of numbers greater than 0, such as [0.1], "
                f"got {self.shares!r}."
            )
        return sorted(shares.tolist())

    def check_suits(self, given: Given, device: Any) -> None:
        self.checked_shares()
        if given.is_network:
            default = given.estimator is None
            name = "the default network" if default else type(given.trained).__name__
            raise TypeError(
                f"RefitSearch refits scikit-learn estimators, and {name} is a network; use "
                "search='pool' or 'pointwise', or search=None, which selects a suitable search."
            )
        given.refuse_device(device)

    def problem(self, model: Any, data: TrainingData, setup: Setup) -> RefitProblem:
        counts = np.flatnonzero(data.weight)
        inputs = _safe_indexing(data.inputs, counts)
        groups = None if data.groups is None else data.groups[counts]
        labels, weight = data.labels[counts], data.weight[counts]
        return RefitProblem(model, inputs, labels, weight, setup.seed, groups)

    def searches_in_memory(self, problem: RefitProblem, n_searches: int) -> int:
        is_plane = problem.model.classes is None and hasattr(problem.model.estimator, "coef_")
        n_kept = len(self.checked_shares()) * (1 + _N_SPLITS if is_plane else 1)
        size = _pickled_size(problem.model.estimator)
        return searches_in_memory(n_searches, n_kept, size, self.max_memory)

    def run(
        self,
        problem: RefitProblem,
        task: Any,
        pool: Any,
        reference: FloatArray,
        targets: IntArray,
        work: Work,
    ) -> Refitted:
        # One array of targets per search, (n_variants, n_pool).
        pool_targets: list[NDArray[Any]]
        if problem.model.classes is not None:
            pool_targets = [np.full((1, len(reference)), problem.model.classes[t]) for t in targets]
        else:
            rows = plausible_rows(problem, reference)
            pool, reference = _safe_indexing(pool, rows), reference[rows]
            moved = task.pull * split_signs(problem, pool)
            # If training targets are never negative, such as counts or prices, targets of the pool
            # must not be negative either, because the learner may raise an error for them.
            lowest = -np.inf if problem.y.min() < 0 else problem.y.min() / 10
            pool_targets = [np.maximum(reference[:, 0] + sign * moved, lowest) for sign in targets]
        shares = self.checked_shares()
        return refit_on_pool(problem, pool, pool_targets, shares, task.loss, targets, work)


@stored("quam.refitted")
@dataclass(frozen=True)
class Refitted(Found):
    """Refits of a learner, (n_searches, n_kept).

    If the given model can memorise samples, `limited` is a refit on the training data alone, with
    a minimum number of samples in each leaf.
    """

    models: tuple[tuple[LearnerModel, ...], ...]
    limited: LearnerModel | None
    unchanged: bool = False  # whether all refits equal the given model
    held_out: ClassVar[bool] = True

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> FloatArray:
        by_search = [
            np.stack([_bounded(model, inputs) for model in search], axis=1)
            for search in self.models
        ]
        return np.stack(by_search, axis=1)

    def centre(self, inputs: Any) -> FloatArray | None:
        return None if self.limited is None else _bounded(self.limited, inputs)


def _bounded(model: LearnerModel, inputs: Any) -> FloatArray:
    outputs = model.outputs(inputs)
    return outputs if model.classes is None else np.maximum(outputs, np.log(_LEAST_PROBABILITY))


@dataclass(frozen=True)
class RefitProblem(Problem):
    """The given learner and its preprocessed training data, without samples of weight 0."""

    model: LearnerModel  # the given model; refits use clones of its estimator
    X: Any  # array or DataFrame of shape (n_samples, n_features)
    y: NDArray[Any]  # labels or targets
    weight: FloatArray
    seed: int  # seed of the held-out samples and the learner
    groups: IntArray | None = None

    @property
    def total_weight(self) -> float:
        return float(self.weight.sum())


def plausible_rows(problem: RefitProblem, reference: FloatArray) -> IntArray:
    """Select rows whose predictions are near the range of the training targets (see `_REACH`).

    Models with powers or exponentials may predict huge values. As targets of a refit, these would
    outweigh all other samples.
    """
    y = problem.y
    beyond = np.maximum(y.min() - reference[:, 0], reference[:, 0] - y.max())
    near = np.flatnonzero(beyond <= _REACH * np.ptp(y))
    return near if len(near) > 1 else np.arange(len(reference))


def refit_on_pool(
    problem: RefitProblem,
    pool: Any,
    pool_targets: Sequence[NDArray[Any]],
    shares: Sequence[float],
    loss: Callable[[FloatArray, NDArray[Any]], FloatArray],
    targets: IntArray,
    work: Work,
) -> Refitted:
    """Refit a learner on the training data and the pool, for each search.

    The total weight of the pool is a small share of the weight of the training data. A learner that
    minimises its training loss then minimises the objective of Algorithm 1, ``c L_train + L_adv``,
    with the mean of L_adv over the pool, and c equal to the number of searches divided by the
    share. `pool_targets` contains the targets of the pool for each search, (n_variants, n_pool).
    ``loss(outputs, y)`` returns losses in nats, which are computed on held-out training samples.
    """
    learner, memorises = _limited(problem.model.estimator)
    rows, held_out = _hold_out(problem)
    X, y, weight = _safe_indexing(problem.X, rows), problem.y[rows], None
    if takes_weights(learner):
        # Convert class weights to sample weights before the pool is added, because balanced class
        # weights would otherwise depend on the labels of the pool.
        given_weight, classes = problem.weight[rows], problem.model.classes
        learner, weight = _without_class_weight(learner, y, given_weight, classes)
    unfitted = LearnerModel(estimator=learner, classes=problem.model.classes)
    # Only scikit-learn's histogram boosting has this attribute. It is None if no column contains
    # categories.
    on_bins = getattr(problem.model.estimator, "is_categorical_", "") is None
    refit = partial(_refit_on_bins if on_bins else LearnerModel.refit, unfitted, seed=problem.seed)
    n_kept = len(pool_targets[0]) * len(shares)
    n_refits = len(pool_targets) * n_kept
    began = perf_counter()
    plain = refit(*_shuffled(X, y, weight, seed=problem.seed))
    seconds = perf_counter() - began
    in_turn = -(-n_refits // effective_n_jobs(work.n_jobs))
    warn_if_slow(in_turn, seconds, "refits", "n_targets, search__shares or n_jobs")
    targets_of_refits = (each for variants in pool_targets for each in variants)
    shares = [share / len(pool_targets) for share in shares]
    data = _refit_data(X, y, weight, pool, targets_of_refits, shares, problem.seed)
    refits = Parallel(n_jobs=work.n_jobs, return_as="generator")(
        delayed(refit)(*each) for each in data
    )
    models = [
        *progress(refits, desc="QUAM search", total=n_refits, unit="refit", verbose=work.verbose)
    ]
    X_held, y_held = _safe_indexing(problem.X, held_out), problem.y[held_out]
    losses = [loss(_bounded(model, X_held), y_held) for model in (plain, *models)]
    unchanged = not np.ptp(losses, axis=0).any() and not _differ([problem.model, *models], pool)
    if unchanged:
        warn_user(
            f"`fit` of {type(learner).__name__} has no effect: all refits equal the given model. "
            "The epistemic part is NaN, because no alternative models are known. Pass a model that "
            "`fit` trains, or use OODDetector, which needs only predictions."
        )
    counts = problem.weight[held_out]
    if problem.groups is not None:
        counts = independent_counts(counts, problem.groups[held_out])
    excess, standard_error = mean_excess(np.stack(losses[1:]) - losses[0], counts)
    return Refitted(
        targets,
        excess.reshape(len(pool_targets), n_kept),
        standard_error,
        tuple(tuple(models[k : k + n_kept]) for k in range(0, len(models), n_kept)),
        plain if memorises else None,
        unchanged,
    )


def _refit_on_bins(
    model: LearnerModel, X: Any, y: NDArray[Any], weight: FloatArray, *, seed: int
) -> LearnerModel:
    """Refit boosted trees on bin numbers, which is faster; then convert thresholds to values."""
    trees, rows = clone(model.estimator), np.arange(len(y))
    if trees.early_stopping and trees.validation_fraction is not None:
        # Bin edges exclude the rows for early stopping; draw these rows as scikit-learn does.
        random = seed if trees.random_state is None else trees.random_state
        random = check_random_state(random).randint(np.iinfo(np.uint32).max, dtype="u8")
        split = {"test_size": trees.validation_fraction, "random_state": random}
        labels = y if is_classifier(trees) else None
        rows = train_test_split(rows, stratify=labels, **split)[0]
    columns = check_array(X, dtype=np.float64, ensure_all_finite=False).T
    edges = [weighted_edges(each[rows], weight[rows], trees.max_bins) for each in columns]
    bins = [np.searchsorted(*each) for each in zip(edges, columns, strict=True)]
    binned: Any = np.where(np.isnan(columns), np.nan, bins).T
    binned = pd.DataFrame(binned, columns=X.columns) if hasattr(X, "columns") else binned
    found = model.refit(binned, y, weight, seed=seed)
    for tree in chain(*found.estimator._predictors):
        threshold = tree.nodes["num_threshold"]
        # Infinite thresholds, which separate missing values from others, stay as they are.
        inner = np.flatnonzero((tree.nodes["is_leaf"] == 0) & np.isfinite(threshold))
        at = zip(tree.nodes["feature_idx"][inner], threshold[inner], strict=True)
        threshold[inner] = [edges[k][int(between)] for k, between in at]
    return found


def weighted_edges(column: FloatArray, weight: FloatArray, n_bins: int) -> FloatArray:
    """Compute the upper limits of a column's bins as scikit-learn does.

    If there are up to `n_bins` distinct values, limits are midway between neighbouring values.
    Otherwise, limits are weighted quantiles: the smallest value at which the cumulative weight
    reaches the level or, if the weight equals the level, the mean of this value and the next value.
    """
    order = np.argsort(column, kind="stable")[: np.count_nonzero(~np.isnan(column))]
    column, up_to = column[order], np.cumsum(weight[order])
    values = np.unique(column)
    if len(values) <= n_bins:
        return np.minimum((values[1:] + values[:-1]) / 2, ALMOST_INF)
    wanted, last = np.linspace(0, 100, n_bins + 1)[1:-1] / 100 * up_to[-1], len(column) - 1
    at = np.minimum(np.searchsorted(up_to, wanted), last)
    after = np.where(up_to[at] - wanted > np.finfo(float).eps, at, np.minimum(at + 1, last))
    return np.unique(np.minimum((column[at] + column[after]) / 2, ALMOST_INF))


def _differ(models: Sequence[LearnerModel], X: Any) -> bool:
    first = _bounded(models[0], X)
    return any(not np.array_equal(first, _bounded(model, X)) for model in models[1:])


def _pickled_size(model: Any) -> int:
    """Estimate a model's memory by the size of its pickle, in bytes; 0 if pickling fails."""
    try:
        return len(pickle.dumps(model, protocol=5))
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, for example
        return 0


# Inputs, targets and weights of a refit.
_Rows = tuple[Any, NDArray[Any], FloatArray | None]


def _shuffled(X: Any, y: NDArray[Any], weight: FloatArray | None, *, seed: int) -> _Rows:
    order = np.random.default_rng(seed).permutation(len(y))
    return _safe_indexing(X, order), y[order], None if weight is None else weight[order]


def _refit_data(
    X: Any,
    y: NDArray[Any],
    weight: FloatArray | None,
    pool: Any,
    pool_targets: Iterable[NDArray[Any]],
    shares: Sequence[float],
    seed: int,
) -> Iterator[_Rows]:
    """Yield the data of each refit: training rows, and the whole pool with a share of the weight.

    If `weight` is None, only some pool rows are added, the same for all searches: their number is a
    share of the number of training rows, at least 1; if the pool is too small, its rows repeat.
    """
    n_pool = _num_samples(pool)
    n_rows = n_pool + (0 if weight is None else len(y))
    order = np.random.default_rng(seed).permutation(n_rows)  # the same for all refits
    joined = None if weight is None else _safe_indexing(stacked_rows(X, pool), order)
    for targets in pool_targets:
        for share in shares:
            if weight is None:
                some = np.resize(order, max(1, round(share * len(y))))
                rows = stacked_rows(X, _safe_indexing(pool, some))
                yield _shuffled(rows, np.concatenate([y, targets[some]]), None, seed=seed)
            else:
                of_pool = np.full(n_pool, share * weight.sum() / n_pool)
                labels = np.concatenate([y, targets])
                yield joined, labels[order], np.concatenate([weight, of_pool])[order]


def stacked_rows(X: Any, pool: Any) -> Any:
    """Concatenate training inputs and pool."""
    if hasattr(X, "columns"):
        table = as_pandas(X)
        # A pool without column names has the columns of the table.
        rows = pool if hasattr(pool, "columns") else pd.DataFrame(pool, columns=table.columns)
        rows = with_categories_of(table, as_pandas(rows))
        return as_table_of(X, pd.concat([table, rows], ignore_index=True))
    if issparse(X) or issparse(pool):
        rows = [part if issparse(part) else csr_matrix(part) for part in (X, pool)]
        return vstack(rows, format="csr")
    return np.concatenate([np.asarray(X), np.asarray(pool)])


def with_categories_of(X: Any, rows: Any) -> Any:
    """Convert rows to the categories of `X`, for concatenation; unknown categories become NaN."""
    if not isinstance(X, pd.DataFrame):
        return rows
    rows = rows.copy(deep=False)
    for name, dtype in X.dtypes.items():
        if isinstance(dtype, pd.CategoricalDtype):
            known = rows[name].isin(dtype.categories)
            rows[name] = rows[name].where(known).astype(dtype)
    return rows


def split_signs(problem: RefitProblem, pool: Any) -> FloatArray:
    """Draw signs, (n_variants, n_pool), by which targets on a pool are displaced.

    The signs of the first variant are all 1. If the targets of the whole pool move in the same
    direction, a linear model changes along only one direction of its weights. For linear models,
    each further variant therefore moves the two sides of a plane through the pool's median in
    opposite directions (0: on the plane). Normals of planes are drawn uniformly in coordinates in
    which the training inputs are white, so directions with little data are as likely as others.
    """
    together = np.ones((1, _num_samples(pool)))
    if not hasattr(problem.model.estimator, "coef_"):
        return together
    rows, X = pool, problem.X
    if issparse(X) and X.shape[1] > _N_DIRECTIONS:
        reduce = TruncatedSVD(_N_DIRECTIONS, random_state=problem.seed).fit(X)
        rows, X = reduce.transform(rows), reduce.transform(X)
    rows, X = to_dense(rows), to_dense(X)
    rows, X = (np.asarray(part, dtype=np.float64) for part in (rows, X))
    _, singular, axes = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    kept = singular > 1e-6 * singular[0]
    random = np.random.default_rng(problem.seed)
    normals = axes[kept].T @ (random.normal(size=(kept.sum(), _N_SPLITS)) / singular[kept, None])
    along = (rows @ normals).T
    return np.concatenate([together, np.sign(along - np.median(along, axis=1, keepdims=True))])


def _without_class_weight(
    learner: Any, y: NDArray[Any], weight: FloatArray, classes: NDArray[Any] | None
) -> tuple[Any, FloatArray]:
    learner = clone(learner)
    if hasattr(learner, "estimators"):  # an ensemble, whose members have their own class weights
        return learner, weight
    given = weight
    for name, value in class_weights(learner).items():
        prefix, _, end = name.rpartition("__")
        if end == "scale_pos_weight":
            learner.set_params(**{name: 1})
            assert classes is not None
            weight = weight * np.where(y == classes[1], value, 1.0)
            continue
        part = learner.get_params()[prefix] if prefix else learner
        learner.set_params(**{name: None})
        if isinstance(value, str):  # "balanced", "balanced_subsample"
            weight = weight * _balanced(part, y, given)
        else:
            weight = weight * compute_sample_weight(value, y)
    return learner, weight


def _balanced(learner: Any, y: NDArray[Any], weight: FloatArray) -> FloatArray:
    counts_weights = "sample_weight" in signature(compute_class_weight).parameters
    if not (counts_weights and isinstance(learner, LogisticRegression | LinearSVC)):
        of_each: FloatArray = compute_sample_weight("balanced", y)
        return of_each
    classes, codes = np.unique(y, return_inverse=True)
    of_class = compute_class_weight("balanced", classes=classes, y=y, sample_weight=weight)
    balanced: FloatArray = of_class[codes]
    return balanced


def _limited(estimator: Any) -> tuple[Any, bool]:
    """Return an unfitted copy whose trees cannot memorise samples, and whether the original can."""
    learner = unfitted(estimator)
    if getattr(learner, "early_stopping", None) == "auto" and hasattr(
        estimator, "do_early_stopping_"
    ):
        # Replace "auto", which depends on the number of rows: added pool rows could switch early
        # stopping on.
        learner.set_params(early_stopping=estimator.do_early_stopping_)
    if isinstance(learner, BaggingClassifier | BaggingRegressor):
        tree = DecisionTreeClassifier if is_classifier(learner) else DecisionTreeRegressor
        member, memorises = _limited(tree() if learner.estimator is None else learner.estimator)
        return learner.set_params(estimator=member), memorises
    if isinstance(learner, Pipeline):  # only pipelines with samplers are refitted as a whole
        name, last = estimator.steps[-1]
        last, memorises = _limited(last)
        return learner.set_params(**{name: last}), memorises
    params = learner.get_params(deep=False)
    grown = {"min_samples_leaf": 1, "max_depth": None, "max_leaf_nodes": None}
    if any(name not in params or params[name] != value for name, value in grown.items()):
        return learner, False
    return learner.set_params(min_samples_leaf=_LEAF), True


def _hold_out(problem: RefitProblem) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows = np.arange(len(problem.y))
    fewest = min(_FEWEST_HELD_OUT, len(rows) // 3)
    n_held = min(max(fewest, round(_SHARE_HELD_OUT * len(rows))), _MOST_HELD_OUT)
    shuffled = np.random.default_rng(problem.seed).permutation(rows)
    if problem.model.classes is not None:
        first = np.unique(problem.y[shuffled], return_index=True)[1]
        shuffled = np.delete(shuffled, first)
    held_out = np.sort(shuffled[:n_held])
    if problem.groups is not None:
        held = whole_groups(np.isin(rows, held_out), problem.groups)
        if problem.model.classes is not None:
            held &= np.isin(problem.y, problem.y[~held])
        held_out = np.flatnonzero(held)
    if not 1 < len(held_out) < len(rows):  # at least two rows are needed for a standard error
        return rows, rows
    return np.setdiff1d(rows, held_out), held_out
