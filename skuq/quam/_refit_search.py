"""Search for models that say one thing about a whole pool of inputs: by refitting a learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import _safe_indexing
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from skuq.base import FloatArray, IntArray
from skuq.models import EstimatorModel, fit_sklearn_clone
from skuq.quam._found import Found
from skuq.stored import stored

# Training samples that compare the models, and that none of them has seen.
_SHARE_HELD_OUT, _FEWEST_HELD_OUT, _MOST_HELD_OUT = 0.1, 5, 2000
# A refitted forest may exclude a class, on the word of a few samples.
_LEAST_PROBABILITY = 1e-6
# Divisions of the pool of a linear model.
_N_SPLITS = 16
_OF_THE_SECOND = "scale_pos_weight"  # XGBoost's and LightGBM's weight of the second class
_LEAF = 2  # samples in each leaf of trees that would otherwise hold single ones


@stored("quam.refitted")
@dataclass(frozen=True)
class Refitted(Found):
    """Variants of a scikit-learn estimator.

    Attributes
    ----------
    models : tuple of tuples of EstimatorModel
        Those of each search, (n_searches, n_kept).
    limited : EstimatorModel or None
        The limited learner fitted without a pool, if the given model memorises its samples.
    """

    models: tuple[tuple[EstimatorModel, ...], ...]
    limited: EstimatorModel | None
    held_out: ClassVar[bool] = True

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        by_search = [
            torch.stack([_bounded(model, inputs) for model in search], dim=1)
            for search in self.models
        ]
        return torch.stack(by_search, dim=1)

    def centre(self, inputs: Any) -> Tensor | None:
        return None if self.limited is None else _bounded(self.limited, inputs)


def _bounded(model: EstimatorModel, inputs: Any) -> Tensor:
    outputs = model.outputs(inputs)
    return outputs if model.classes is None else outputs.clamp_min(np.log(_LEAST_PROBABILITY))


@dataclass(frozen=True)
class RefitProblem:
    """A learner and its training data, as they reach it.

    Attributes
    ----------
    estimator : object
        The given model, fitted; the refitted ones are clones of it.
    X : array or DataFrame of shape (n_samples, n_features)
        Training inputs.
    y : ndarray of shape (n_samples,)
        Labels or targets.
    weight : ndarray of shape (n_samples,), float64
        Sample weights, all positive.
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the outputs; None for a regressor.
    seed : int
        Randomness of the held-out samples and the learner.
    """

    estimator: Any
    X: Any
    y: NDArray[Any]
    weight: FloatArray
    classes: NDArray[Any] | None
    seed: int


def check_takes_weights(estimator: Any) -> None:
    """Refuse a learner that cannot be refitted with a little of the pool."""
    if not has_fit_parameter(estimator, "sample_weight"):
        raise TypeError(
            f"{type(estimator).__name__}.fit takes no `sample_weight`, so it cannot be refitted "
            "with a pool that counts little. Choose a learner that takes weights (boosted "
            "trees, forests, linear models, naive Bayes) or a network."
        )


def refit_on_pool(
    problem: RefitProblem,
    pool: Any,
    targets: Sequence[NDArray[Any]],
    shares: Sequence[float],
    loss: Callable[[Tensor, NDArray[Any]], FloatArray],
    sought: IntArray,
    *,
    n_jobs: int | None = None,
) -> Refitted:
    """Refit a learner with the training data and a little of the pool, once for each search.

    The total weight of the pool is a small share of that of the training data, so that the
    learner itself minimises what Algorithm 1 does, ``c L_train + mean L_adv`` over the pool,
    where c is the number of searches over the share.

    Parameters
    ----------
    problem : RefitProblem
        Learner and training data.
    pool : array or DataFrame of shape (n_pool, n_features)
        Inputs as they reach the learner.
    targets : sequence of ndarrays of shape (n_variants, n_pool)
        What each search wants the pool to be, in as many ways.
    shares : sequence of float
        Weight of the pool over all searches, as a share of the training data's; one model for
        each and each variant of the targets.
    loss : callable
        ``loss(outputs, y)`` returns the losses of a model, in nats, (n_samples,).
    sought : ndarray of shape (n_searches,), int64
        What the searches ask for.
    n_jobs : int, default=None
        Processes, through joblib.

    Returns
    -------
    Refitted
        The models; losses are those of training samples that were held out from all of them.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Algorithm 1.
    """
    learner, memorises = _limited(problem.estimator)
    rows, held_out = _hold_out(problem)
    X, y = _safe_indexing(problem.X, rows), problem.y[rows]
    # Else learners would count the pool among the rows of a class.
    learner, weight = _without_class_weight(learner, y, problem.weight[rows], problem.classes)
    joined = stacked_rows(X, pool)
    n_pool = len(joined) - len(y)

    def weights(share: float) -> FloatArray:
        of_each = share * weight.sum() / len(targets) / n_pool
        return np.concatenate([weight, np.full(n_pool, of_each)])

    jobs = [(X, y, weight)]
    jobs += [
        (joined, np.concatenate([y, wanted]), weights(share))
        for variants in targets
        for wanted in variants
        for share in shares
    ]
    fitted = Parallel(n_jobs=n_jobs)(delayed(_fit)(learner, *job, problem.seed) for job in jobs)
    plain, *models = [EstimatorModel(each, problem.classes) for each in fitted]
    X_held, y_held = _safe_indexing(problem.X, held_out), problem.y[held_out]
    losses = [loss(_bounded(model, X_held), y_held) for model in (plain, *models)]
    excess = np.stack(losses[1:]) - losses[0]
    share = problem.weight[held_out] / problem.weight[held_out].sum()
    mean = excess @ share
    variance = (excess - mean[:, None]) ** 2 @ share
    n_kept = len(targets[0]) * len(shares)
    return Refitted(
        sought,
        mean.reshape(len(targets), n_kept),
        float(np.sqrt(variance.max() * (share**2).sum())),
        tuple(tuple(models[k : k + n_kept]) for k in range(0, len(models), n_kept)),
        plain if memorises else None,
    )


def stacked_rows(X: Any, pool: Any) -> Any:
    """Training inputs and the pool below one another."""
    if isinstance(X, pd.DataFrame):
        return pd.concat([X, with_categories_of(X, pool)], ignore_index=True)
    return np.concatenate([np.asarray(X), np.asarray(pool)])


def with_categories_of(X: Any, rows: Any) -> Any:
    """Rows of a table with the categories of another one; all others are missing values.

    Columns of different categories would lose their type where the tables are joined.
    """
    if not isinstance(X, pd.DataFrame):
        return rows
    dtypes = {k: dtype for k, dtype in X.dtypes.items() if isinstance(dtype, pd.CategoricalDtype)}
    return rows.astype(dtypes)


def split_signs(problem: RefitProblem, pool: Any) -> FloatArray:
    """Signs with which a regressor's pool is pulled: all the same, and for linear models apart.

    A linear model whose whole pool is pulled one way moves in a single direction of its weights,
    and not at all in others. So planes through the middle of the pool divide it, and their two
    sides are pulled opposite ways. Their normals are random where columns are uncorrelated and
    of one scale: the directions that the data leave open are as likely as any.

    Returns
    -------
    ndarray of shape (n_variants, n_pool), float64
        1, -1 or, in the middle, 0; the first row is 1.
    """
    together = np.ones((1, len(pool)))
    if not hasattr(problem.estimator, "coef_"):
        return together
    rows, X = (np.asarray(part, dtype=np.float64) for part in (pool, problem.X))
    _, singular, axes = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    kept = singular > 1e-6 * singular[0]
    random = np.random.default_rng(problem.seed)
    normals = axes[kept].T @ (random.normal(size=(kept.sum(), _N_SPLITS)) / singular[kept, None])
    along = (rows @ normals).T
    return np.concatenate([together, np.sign(along - np.median(along, axis=1, keepdims=True))])


def _fit(learner: Any, X: Any, y: NDArray[Any], weight: FloatArray, seed: int) -> Any:
    # The pool comes last, and learners that cut their samples into parts would find it in one.
    order = np.random.default_rng(seed).permutation(len(y))
    return fit_sklearn_clone(
        learner, _safe_indexing(X, order), y[order], sample_weight=weight[order], seed=seed
    )


def class_weights(learner: Any) -> dict[str, Any]:
    """Parameters that weigh classes, of the learner and those inside it, and their values.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> class_weights(LogisticRegression(class_weight="balanced"))
    {'class_weight': 'balanced'}
    """
    found = learner.get_params() if hasattr(learner, "get_params") else {}
    ends = ("class_weight", _OF_THE_SECOND)
    return {
        name: value
        for name, value in found.items()
        if name.rpartition("__")[2] in ends and value not in (None, 1)
    }


def _without_class_weight(
    learner: Any, y: NDArray[Any], weight: FloatArray, classes: NDArray[Any] | None
) -> tuple[Any, FloatArray]:
    """A copy without weights of classes, and the weights of samples that stand for them."""
    learner = clone(learner)
    given = weight
    for name, value in class_weights(learner).items():
        prefix, _, end = name.rpartition("__")
        if end == _OF_THE_SECOND:
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
    """Weights of the samples of balanced classes, as the learner counts these."""
    counts_weights = "sample_weight" in signature(compute_class_weight).parameters
    if not (counts_weights and isinstance(learner, LogisticRegression | LinearSVC)):
        of_each: FloatArray = compute_sample_weight("balanced", y)
        return of_each
    classes, codes = np.unique(y, return_inverse=True)
    of_class = compute_class_weight("balanced", classes=classes, y=y, sample_weight=weight)
    balanced: FloatArray = of_class[codes]
    return balanced


def _limited(estimator: Any) -> tuple[Any, bool]:
    """An unfitted copy whose trees cannot memorise single samples, and whether they could.

    Fully grown trees give each input of the pool a leaf of its own, however little it weighs,
    and have no training loss that says anything.
    """
    learner = clone(estimator)
    if getattr(learner, "early_stopping", None) == "auto" and hasattr(
        estimator, "do_early_stopping_"
    ):
        # Else it would stop early with the pool, and not without it.
        learner.set_params(early_stopping=estimator.do_early_stopping_)
    if isinstance(learner, BaggingClassifier | BaggingRegressor):
        tree = DecisionTreeClassifier if is_classifier(learner) else DecisionTreeRegressor
        member, memorises = _limited(tree() if learner.estimator is None else learner.estimator)
        return learner.set_params(estimator=member), memorises
    params = learner.get_params(deep=False)
    grown = {"min_samples_leaf": 1, "max_depth": None, "max_leaf_nodes": None}
    if any(name not in params or params[name] != value for name, value in grown.items()):
        return learner, False
    return learner.set_params(min_samples_leaf=_LEAF), True


def _hold_out(problem: RefitProblem) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to fit on, among them one of each class, and rows to compare models on."""
    rows = np.arange(len(problem.y))
    fewest = min(_FEWEST_HELD_OUT, len(rows) // 3)
    n_held = min(max(fewest, round(_SHARE_HELD_OUT * len(rows))), _MOST_HELD_OUT)
    shuffled = np.random.default_rng(problem.seed).permutation(rows)
    if problem.classes is not None:
        first = np.unique(problem.y[shuffled], return_index=True)[1]
        shuffled = np.delete(shuffled, first)
    held_out = np.sort(shuffled[:n_held])
    if not 1 < len(held_out) < len(rows):  # a single one would have no standard error
        return rows, rows
    return np.setdiff1d(rows, held_out), held_out
