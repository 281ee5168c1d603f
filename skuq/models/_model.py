"""Common interface of fitted models, which all algorithms use.

torch is needed for networks only. Outputs of scikit-learn learners are numpy arrays.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from skuq._information import array_namespace, log_softmax
from skuq.base import FloatArray
from skuq.files import stored
from skuq.labels import codes_of, positions_of, proba_of_classes
from skuq.models._few_rows import MOST_ROWS, for_few_rows
from skuq.models._given import Inputs, is_skorch_net, look_at
from skuq.validation import as_pandas, is_wide, to_dense, warn_user, with_names
from skuq.wrappers import weight_params

if TYPE_CHECKING:
    import torch
    from torch import nn

LEAST_PROBABILITY = 1e-12  # lower limit of probabilities, which keeps log-probabilities finite
N_EXAMPLES = 64  # number of samples on which a model's outputs are inspected
_ROW_SUM_TOLERANCE = 1e-3  # for sums of probabilities; sufficient in half precision


@stored("models.chain")
@dataclass(frozen=True)
class Chain:
    """Composition of two preprocessing steps; unlike a function, an instance can be pickled."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, X: Any) -> Any:
        return self.second(self.first(X))


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """Base class of fitted models of any library.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the outputs; None for a regressor, or a network without labels.
    transform : callable or None
        Preprocessing that the model applies to its inputs.
    form : Inputs or None
        Kind of input, determined when the model was resolved; it validates new inputs.
    network : torch.nn.Module or None
        The network if the model is a network, else None.
    at_once : bool
        Whether all inputs must be evaluated together, without batches.
    """

    classes: NDArray[Any] | None = None
    transform: Callable[[Any], Any] | None = None
    form: Inputs | None = None
    at_once: ClassVar[bool] = False

    @property
    def network(self) -> nn.Module | None:
        return None

    @property
    def looks_up_ids(self) -> bool:
        """Whether a network looks up inputs, or some of their columns, in an embedding table."""
        return False

    def check_ids(self, inputs: Any) -> None:
        """Raise ValueError for preprocessed inputs with ids outside the embedding tables."""
        return

    @abstractmethod
    def inputs(self, X: Any) -> Any:
        """Preprocess validated inputs."""

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Predict logits, log-probabilities or targets, on the CPU, as an array or a Tensor."""

    def log_proba(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Predict log-probabilities, (n_samples, n_classes), float64, like `outputs`."""
        return log_softmax(in_float64(self.outputs(inputs, device)))

    def decisions(self, inputs: Any, device: torch.device | str = "cpu") -> NDArray[Any]:
        """Predict labels: the most probable class, unless the model itself decides otherwise."""
        assert self.classes is not None
        return self.classes[np.asarray(self.log_proba(inputs, device)).argmax(axis=1)]

    def losses(
        self, inputs: Any, codes: NDArray[np.int64], device: torch.device | str = "cpu"
    ) -> FloatArray:
        """Compute cross-entropies of samples whose classes are `codes`, (n_samples,), in nats."""
        log_proba = np.asarray(self.log_proba(inputs, device))
        losses: FloatArray = -log_proba[np.arange(len(codes)), codes]
        return losses

    def refit(
        self, X: Any, y: NDArray[Any], sample_weight: FloatArray | None, *, seed: int
    ) -> Self | None:
        """Train a clone on preprocessed inputs, and return it as a model; networks return None."""
        return None

    def with_classes(self, y: NDArray[Any], inputs: Any) -> tuple[Self, NDArray[np.int64]]:
        """Determine the labels of the model's outputs; return the model and the codes of `y`.

        If the model has no classes and the number of labels in `y` equals the number of outputs,
        the classes are the sorted labels. If the numbers differ, `y` must contain codes 0 ..
        n_classes - 1. The number of outputs is found by evaluating the first preprocessed `inputs`.
        """
        logits = self.outputs(inputs[:N_EXAMPLES])
        n_classes = logits.shape[-1]
        if logits.ndim != 2 or n_classes < 2:
            raise ValueError(
                "The model must return logits of shape (n_samples, n_classes) with at least 2 "
                f"classes, got shape {(1, *logits.shape[1:])} for one sample. One logit is "
                "enough only for two classes."
            )
        classes = self.classes
        if classes is None or len(classes) != n_classes:
            # skorch infers classes from `y`, which may have fewer labels than the net has outputs.
            classes = classes_of_logits(logits, y if classes is None else classes)
        else:
            _warn_of_probabilities(logits)
        return replace(self, classes=classes), codes_of(y, classes, "y")

    def behind(self, first: Callable[[Any], Any] | None) -> Self:
        """Return the model with an additional first preprocessing step, if the step is not None."""
        if first is None:
            return self
        second = self.transform
        return replace(self, transform=first if second is None else Chain(first, second))


@stored("models.learner")
@dataclass(frozen=True, kw_only=True)
class LearnerModel(Model):
    """Any fitted scikit-learn estimator, with outputs but without gradients.

    Attributes
    ----------
    estimator : object
        Fitted classifier or regressor, without the transformers before it.
    """

    estimator: Any

    def inputs(self, X: Any) -> Any:
        """Preprocess inputs into an array or table that the estimator accepts."""
        if self.transform is not None and issparse(transformed := self.transform(X)):
            return transformed  # the learner was trained on sparse rows, too
        X = X if self.transform is None else transformed
        return for_learner(self.estimator, X, preprocesses=look_at(self.estimator).preprocesses)

    def refit(
        self, X: Any, y: NDArray[Any], sample_weight: FloatArray | None, *, seed: int
    ) -> Self:
        # Switch metadata routing off: the user's requests are for the user's weights, but a refit
        # has other weights, which all inner models that accept weights must receive.
        with config_context(enable_metadata_routing=False):
            fitted = fit_clone(self.estimator, X, y, sample_weight=sample_weight, seed=seed)
        return replace(self, estimator=fitted)

    def decisions(self, inputs: Any, device: torch.device | str = "cpu") -> NDArray[Any]:
        # A decision threshold or costs may choose a class other than the most probable one.
        if self.classes is None or not hasattr(self.estimator, "predict"):
            return super().decisions(inputs, device)
        labels = np.asarray(self.estimator.predict(inputs)).reshape(_num_samples(inputs))
        codes = positions_of(labels, self.classes)
        return labels if (codes < 0).any() else self.classes[codes]

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> FloatArray:
        is_few = _num_samples(inputs) <= MOST_ROWS
        estimator = for_few_rows(self.estimator) if is_few else self.estimator
        if self.classes is None:
            means = np.array(estimator.predict(inputs), dtype=np.float64)
            if means.shape[1:] not in ((), (1,)):
                raise ValueError(
                    f"{type(estimator).__name__} predicts an array of shape {means.shape}; "
                    "pass a model with one target."
                )
            return means.reshape(-1, 1)
        classes = np.asarray(estimator.classes_)
        proba = proba_of_classes(estimator.predict_proba(inputs), classes).astype(np.float64)
        # Classes that the training data of the estimator lacked get the probability 0.
        if proba.shape[1] != len(self.classes):
            known = np.searchsorted(self.classes, classes)
            proba, some = np.zeros((len(proba), len(self.classes))), proba
            proba[:, known] = some
        log_proba: FloatArray = np.log(np.maximum(proba, LEAST_PROBABILITY))
        return log_proba


def for_learner(estimator: Any, X: Any, *, preprocesses: bool) -> Any:
    """Convert sparse inputs that a learner refuses, and tables of libraries other than pandas.

    Tables for a pipeline are not converted, because the first step of the pipeline may select
    columns with the API of the table's library. An array gets the column names of the estimator;
    without names, the estimator would warn in each call.
    """
    if is_wide(X) and _accepts_sparse(estimator):
        return X
    return with_names(estimator, to_dense(X if preprocesses else as_pandas(X)))


def _accepts_sparse(estimator: Any) -> bool:
    """Whether a learner accepts sparse rows, and predicts the same for them as for dense rows."""
    if not hasattr(estimator, "__sklearn_tags__") or hasattr(estimator, "feature_names_in_"):
        return False
    inside = getattr(estimator, "estimator", estimator)  # the model in a FrozenEstimator
    if type(inside).__module__.startswith("xgboost"):  # it treats zeros of sparse rows as missing
        return False
    # Support vector machines and nearest neighbours fitted to dense rows refuse sparse rows.
    fitted_to = getattr(estimator, "_fit_X", None)
    dense = getattr(estimator, "_sparse", None) is False or isinstance(fitted_to, np.ndarray)
    return not dense and bool(get_tags(estimator).input_tags.sparse)


_REQUESTS = (
    "With metadata routing, nested models receive weights only if they request them: call "
    "model.set_fit_request(sample_weight=True), and sample_weight=False for transformers and "
    "models without weights, before you combine them."
)
UNCONVERTED = (
    "An estimator around a skorch net passes X and y to the net unconverted, and the net may need "
    "arrays of another dtype, and labels 0, 1, ... Make the estimator the outermost object, so "
    "that X and y are converted, as in "
    'GridSearchCV(Estimator(net), {"estimator__lr": ...}).'
)


# Names of parameters in boosting libraries: for early stopping, and for the number of trees.
_STOPPING = ("early_stopping_round", "early_stopping_rounds", "n_iter_no_change")
_N_TREES = ("n_estimators", "iterations", "num_boost_round", "num_trees")


def unfitted(estimator: Any) -> Any:
    """Clone an estimator; boosting gets its best number of trees instead of early stopping."""
    twin = clone(estimator)
    copies = twin.get_params()
    for name, part in {"": estimator, **estimator.get_params()}.items():
        best = getattr(part, "best_iteration", None)  # XGBoost's, counted from 0
        n_trees = getattr(part, "best_iteration_", None) if best is None else best + 1
        if n_trees is None or copies.get(name) is part:  # `twin` shares the frozen models
            continue
        given, prefix = part.get_params(deep=False), f"{name}__" if name else ""
        if hasattr(part, "tree_count_"):  # CatBoost chose the learning rate by the number of trees
            n_trees = part.tree_count_
            new = {"learning_rate": part.learning_rate_, "use_best_model": False}
        else:
            new = {each: None for each in _STOPPING if given.get(each) is not None}
        named = next((each for each in _N_TREES if each in given), _N_TREES[0])
        new |= {named: n_trees} if n_trees else {}
        twin.set_params(**{prefix + each: value for each, value in new.items()})
    return twin


def fit_clone(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    **fit_params: Any,
) -> Any:
    """Fit a clone of a scikit-learn model, with `seed` for each `random_state` that is None.

    Weights also reach a learner inside pipelines and searches: they are passed by parameter names
    or, with metadata routing, as the parts of the model request.
    """
    twin = unfitted(estimator)
    unset = [name for name, value in twin.get_params().items() if value is None]
    seeded = [name for name in unset if name.split("__")[-1] == "random_state"]
    twin.set_params(**dict.fromkeys(seeded, seed))
    if sample_weight is not None:
        fit_params |= weight_params(twin, sample_weight)
    with _seeded(seed):
        try:
            return twin.fit(X, y, **fit_params)
        except UnsetMetadataPassedError as error:
            error.add_note(_REQUESTS)
            raise
        except Exception as error:  # because the models of a search can raise any exception
            if "not routed to any object" in str(error):  # part of scikit-learn's message
                raise ValueError(
                    f"No part of {type(estimator).__name__} requests `sample_weight`. {_REQUESTS}"
                ) from error
            if is_skorch_net(look_at(estimator).learner):
                error.add_note(UNCONVERTED)
            raise


def _seeded(seed: int) -> AbstractContextManager[None]:
    """Seed torch inside a block if torch is imported, because a learner may use torch."""
    if "torch" not in sys.modules:
        return nullcontext()
    from skuq._networks import seeded

    return seeded(seed)


def in_float64(array: Any) -> Any:
    return np.asarray(array, np.float64) if array_namespace(array) is np else array.double()


def classes_of_logits(logits: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Determine the labels, (n_classes,), of the outputs of a network that stores no labels."""
    _warn_of_probabilities(logits)
    n_classes = logits.shape[-1]
    labels = np.unique(y)
    if len(labels) == n_classes:
        return labels
    codes = np.arange(n_classes)
    if np.isin(labels, codes).all():
        return codes
    others = labels[~np.isin(labels, codes)].tolist()
    raise ValueError(
        f"The module returns {n_classes} logits, but `y` holds {len(labels)} different labels. "
        f"Labels {others[:5]}{' and others' if len(others) > 5 else ''} are not among the codes 0 "
        f"to {n_classes - 1}; pass labels of the classes that the module was trained on."
    )


def _warn_of_probabilities(logits: Any) -> None:
    """Warn, at the user's line, if outputs that should be logits have the form of probabilities."""
    inside = len(logits) > 1 and bool(((logits >= 0) & (logits <= 1)).all())
    if inside and bool((abs(in_float64(logits).sum(-1) - 1) < _ROW_SUM_TOLERANCE).all()):
        warn_user(
            "The model returns probabilities: they lie in [0, 1] and add up to 1. It must return "
            "logits, otherwise the uncertainty is wrong. Remove the softmax at its end. If it is a "
            "skorch net whose criterion needs probabilities, make the softmax the last layer of an "
            "nn.Sequential, where it is detected."
        )
