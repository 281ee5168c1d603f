"""Fitted models in the one form that the algorithms work on: outputs for all inputs.

torch is needed for networks alone. Whatever a learner of scikit-learn returns is a numpy array.
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
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import UnsetMetadataPassedError

from skuq.base import FloatArray
from skuq.information import array_namespace, log_softmax
from skuq.labels import codes_of
from skuq.models._given import Inputs, is_skorch_net, look_at
from skuq.probabilities import proba_of_classes
from skuq.stored import stored
from skuq.validation import as_pandas, to_dense, warn_user
from skuq.wrappers import weight_params

if TYPE_CHECKING:
    import torch
    from torch import nn

LEAST_PROBABILITY = 1e-12  # a probability of 0 is not evidence for infinitely many nats
N_EXAMPLES = 64  # samples that show what a model returns
_ROW_SUM_TOLERANCE = 1e-3  # of probabilities in half precision too


@stored("models.chain")
@dataclass(frozen=True)
class Chain:
    """Two preprocessing steps in turn; a class, so that it can be pickled."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, X: Any) -> Any:
        return self.second(self.first(X))


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A fitted model, whatever it was made with.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the outputs; None for a regressor, and where a network does not
        know them.
    transform : callable or None
        Preprocessing that the model applies to its inputs.
    form : Inputs or None
        The kind of input that was checked when the model was resolved, which checks new inputs.
    network : torch.nn.Module or None
        The network, if the model is one.
    at_once : bool
        Whether all inputs are evaluated together, however many they are.
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
        """Whether inputs are, or hold, ids that a network looks up in a table of embeddings."""
        return False

    def check_ids(self, inputs: Any) -> None:
        """Refuse preprocessed inputs with ids that are in no table of embeddings."""
        return

    @abstractmethod
    def inputs(self, X: Any) -> Any:
        """Preprocess checked inputs."""

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Predict logits, log-probabilities or targets, (n_samples, n_outputs), on the CPU.

        Those of a network are a Tensor, those of a learner an array.
        """

    def log_proba(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Predict log-probabilities, (n_samples, n_classes), float64, like `outputs`."""
        return log_softmax(in_float64(self.outputs(inputs, device)))

    def losses(
        self, inputs: Any, codes: NDArray[np.int64], device: torch.device | str = "cpu"
    ) -> FloatArray:
        """Cross-entropy of a classifier on samples of these classes, (n_samples,), in nats."""
        log_proba = np.asarray(self.log_proba(inputs, device))
        losses: FloatArray = -log_proba[np.arange(len(codes)), codes]
        return losses

    def refit(
        self, X: Any, y: NDArray[Any], sample_weight: FloatArray | None, *, seed: int
    ) -> Self | None:
        """The model of a clone that is trained on preprocessed inputs; None for networks."""
        return None

    def with_classes(self, y: NDArray[Any], inputs: Any) -> tuple[Self, NDArray[np.int64]]:
        """The model with the labels that its outputs stand for, and the codes of some labels.

        If it does not know its classes, they are the sorted labels in `y` when their number fits,
        else the codes 0 .. n_classes - 1 when `y` holds such codes. The first `inputs`,
        preprocessed, show what the model returns.
        """
        logits = example_outputs(self, inputs)
        n_classes = logits.shape[-1]
        if logits.ndim != 2 or n_classes < 2:
            raise ValueError(
                "The model must return logits of shape (n_samples, n_classes) with at least 2 "
                f"classes, got shape {(1, *logits.shape[1:])} for one sample."
            )
        classes = self.classes
        if classes is None or len(classes) != n_classes:
            # skorch infers the classes from the labels of `y`, which may be fewer than outputs.
            classes = classes_of_logits(logits, y if classes is None else classes)
        else:
            _warn_of_probabilities(logits)
        return replace(self, classes=classes), codes_of(y, classes, "y")

    def behind(self, first: Callable[[Any], Any] | None) -> Self:
        """Return the model behind another preprocessing step, if there is one."""
        if first is None:
            return self
        second = self.transform
        return replace(self, transform=first if second is None else Chain(first, second))


@stored("models.learner")
@dataclass(frozen=True, kw_only=True)
class LearnerModel(Model):
    """Any fitted scikit-learn estimator, of which outputs are known and no gradients.

    Attributes
    ----------
    estimator : object
        Fitted classifier or regressor, without the transformers before it.
    """

    estimator: Any

    def inputs(self, X: Any) -> Any:
        """Preprocess inputs into an array or table that the estimator takes."""
        return for_learner(self.estimator, X if self.transform is None else self.transform(X))

    def refit(
        self, X: Any, y: NDArray[Any], sample_weight: FloatArray | None, *, seed: int
    ) -> Self:
        # Weights of a refit are not the user's, of which models inside may have said that they take
        # them or not: all that can do.
        with config_context(enable_metadata_routing=False):
            fitted = fit_clone(self.estimator, X, y, sample_weight=sample_weight, seed=seed)
        return replace(self, estimator=fitted)

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> FloatArray:
        if self.classes is None:
            means = np.array(self.estimator.predict(inputs), dtype=np.float64)
            if means.shape[1:] not in ((), (1,)):
                raise ValueError(
                    f"{type(self.estimator).__name__} predicts shape {means.shape}; a model "
                    "of one target is needed."
                )
            return means.reshape(-1, 1)
        classes = np.asarray(self.estimator.classes_)
        proba = proba_of_classes(self.estimator.predict_proba(inputs), classes).astype(np.float64)
        if proba.shape[1] != len(self.classes):  # its training data lacked some
            known = np.searchsorted(self.classes, classes)
            proba, some = np.zeros((len(proba), len(self.classes))), proba
            proba[:, known] = some
        log_proba: FloatArray = np.log(np.maximum(proba, LEAST_PROBABILITY))
        return log_proba


def for_learner(estimator: Any, X: Any) -> Any:
    """Inputs as a learner gets them: dense, and tables of other libraries as DataFrames.

    A pipeline gets these as they are, since its first step may select columns in the library's way.
    """
    return to_dense(X if look_at(estimator).preprocesses else as_pandas(X))


_REQUESTS = (
    "With metadata routing, a model inside of others gets weights where it requests them: write "
    "model.set_fit_request(sample_weight=True), and sample_weight=False for transformers and "
    "models that shall not get them, before they are put together."
)


def fit_clone(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    **fit_params: Any,
) -> Any:
    """Fit a clone of a scikit-learn model, seeding all parts that have no seed of their own.

    Weights reach the learner inside of pipelines and searches: without metadata routing by its
    path, else as the parts of the model request them. `seed` is for each `random_state` that is
    None; `fit_params` are further arguments of `fit`.
    """
    twin = clone(estimator)
    unseeded = {
        name: seed
        for name, value in twin.get_params().items()
        if value is None and name.split("__")[-1] == "random_state"
    }
    twin.set_params(**unseeded)
    if sample_weight is not None:
        fit_params |= weight_params(twin, sample_weight)
    with _seeded(seed):
        try:
            return twin.fit(X, y, **fit_params)
        except UnsetMetadataPassedError as error:
            error.add_note(_REQUESTS)
            raise
        except Exception as error:  # a search passes on whatever its models raise
            if "not routed to any object" in str(error):  # as scikit-learn says it
                raise ValueError(
                    f"No part of {type(estimator).__name__} requests `sample_weight`. {_REQUESTS}"
                ) from error
            net = look_at(estimator).learner
            if not is_skorch_net(net) or _is_data_of(net, X, y):
                raise
            raise net_data_error(estimator, X, y) from error


def _seeded(seed: int) -> AbstractContextManager[None]:
    """Seed torch, which a learner may use if it was imported."""
    if "torch" not in sys.modules:
        return nullcontext()
    from skuq.networks import seeded

    return seeded(seed)


def _is_data_of(net: Any, X: Any, y: NDArray[Any]) -> bool:
    """Whether a skorch classifier takes inputs and labels as they are."""
    from skuq.networks import net_dtype

    dtype = net_dtype(net)
    if not isinstance(X, np.ndarray) or X.dtype != dtype:
        return False
    if is_skorch_net(net, "NeuralNetBinaryClassifier"):
        return bool(y.dtype == dtype)
    labels = np.unique(y)
    return y.dtype == np.int64 and np.array_equal(labels, np.arange(len(labels)))


def net_data_error(estimator: Any, X: Any, y: NDArray[Any]) -> TypeError:
    """Error for a wrapper that passes data on to a skorch net that does not take them."""
    from skuq.networks import net_dtype

    net = look_at(estimator).learner
    dtype = net_dtype(net).__name__
    if is_skorch_net(net, "NeuralNetBinaryClassifier"):
        wanted = f"labels 0 and 1 of {dtype}"
    elif is_skorch_net(net, "NeuralNetClassifier"):
        wanted = "labels 0 to n_classes - 1 of int64"
    else:
        wanted = f"a column of targets of {dtype}"
    inputs = f"an array of {X.dtype}" if isinstance(X, np.ndarray) else f"a {type(X).__name__}"
    return TypeError(
        f"`estimator` is a {type(estimator).__name__} around a skorch net, and passes X and y on "
        f"as they are: {inputs}, and y of {y.dtype}. The net takes an array of {dtype}, and "
        f"{wanted}. Put what is around the net outside, which converts X and y: "
        'GridSearchCV(Estimator(net), {"estimator__lr": ...}).'
    )


def in_float64(array: Any) -> Any:
    """An array or a Tensor in double precision."""
    xp = array_namespace(array)
    return xp.asarray(array, dtype=xp.float64)


def example_outputs(model: Model, inputs: Any) -> Any:
    """Outputs for the first inputs; an error that names shapes if there are none."""
    examples = inputs[:N_EXAMPLES]
    try:
        return model.outputs(examples)
    except RuntimeError as error:  # of torch
        if model.network is None:
            raise
        from skuq.networks import input_error

        raise input_error(model.network, examples.shape, error) from error


def classes_of_logits(logits: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Labels in the order of the outputs of a network that does not know them.

    Parameters
    ----------
    logits : array or Tensor of shape (n_samples, n_classes)
        Outputs of the network.
    y : ndarray of shape (n_labels,)
        Class labels.

    Returns
    -------
    ndarray of shape (n_classes,)
        The sorted labels in `y` if their number fits, else the codes 0 to n_classes - 1.

    Raises
    ------
    ValueError
        If the number does not fit and the labels are not such codes.

    Warns
    -----
    UserWarning
        If the outputs are probabilities.
    """
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
        f"The module returns {n_classes} logits, but `y` holds {len(labels)} different labels, of "
        f"which {others[:5]}{' and others' if len(others) > 5 else ''} are not among the codes 0 "
        f"to {n_classes - 1}."
    )


def _warn_of_probabilities(logits: Any) -> None:
    """Warn, at the line of the user, if outputs that should be logits are probabilities.

    Logits of several samples, all in [0, 1] and with rows that all add up to 1, are a coincidence
    that does not happen.
    """
    inside = len(logits) > 1 and bool(((logits >= 0) & (logits <= 1)).all())
    if inside and bool((abs(in_float64(logits).sum(-1) - 1) < _ROW_SUM_TOLERANCE).all()):
        warn_user(
            "The model returns probabilities: they lie in [0, 1] and add up to 1. Logits are "
            "expected, and uncertainty computed from probabilities in their place is wrong. "
            "Remove the softmax at its end; of a skorch net whose criterion takes probabilities, "
            "make it the last layer of an nn.Sequential, where it is seen."
        )
