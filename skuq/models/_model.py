"""Fitted models in the one form that the algorithms work on: outputs for all inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, gen_batches
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from skuq.base import FloatArray
from skuq.labels import codes_of
from skuq.models._given import Inputs, is_skorch_net, look_at
from skuq.networks import (
    Cut,
    HeldOnDevice,
    cut_network,
    evaluate,
    input_error,
    moved,
    resolve_device,
    seeded,
)
from skuq.stored import stored
from skuq.validation import to_dense, warn_user
from skuq.wrappers import is_search

LEAST_PROBABILITY = 1e-12  # a probability of 0 is not evidence for infinitely many nats
_N_EXAMPLES = 64  # samples that show what a model returns
_ROW_SUM_TOLERANCE = 1e-3  # of probabilities in half precision too
_ROWS = 4096  # of a sparse matrix, made dense at once


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

    @abstractmethod
    def inputs(self, X: Any) -> Any:
        """Preprocess checked inputs."""

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        """Predict logits, log-probabilities or targets, (n_samples, n_outputs), on the CPU."""

    def log_proba(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        """Predict log-probabilities, (n_samples, n_classes), float64, on the CPU."""
        return self.outputs(inputs, device).double().log_softmax(dim=-1)

    def losses(
        self, inputs: Any, codes: NDArray[np.int64], device: torch.device | str = "cpu"
    ) -> FloatArray:
        """Cross-entropy of a classifier on samples of these classes, (n_samples,), in nats."""
        log_proba = self.log_proba(inputs, device)
        losses: FloatArray = cross_entropy(
            log_proba, torch.as_tensor(codes), reduction="none"
        ).numpy()
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


@stored("models.network")
@dataclass(frozen=True, kw_only=True)
class NetworkModel(HeldOnDevice, Model):
    """A network that maps rows to logits or predictions.

    A model of other inputs, such as nodes of a graph, derives from it, and its estimator returns
    it from a method ``as_model()``.

    Attributes
    ----------
    module : torch.nn.Module
        Private copy in evaluation mode and without gradients, on the CPU except after `to`;
        maps inputs of shape (n_samples, ...) to logits (n_samples, n_classes) or predictions
        (n_samples, n_outputs).
    """

    module: nn.Module
    #: Weights that a search moves by default; None leaves it to the search.
    moving_parameters: ClassVar[str | None] = None

    @classmethod
    def of(cls, network: nn.Module, **attributes: Any) -> Self:
        """The model of a copy of a network, in evaluation mode and without gradients."""
        return cls(module=private_copy(network), **attributes)

    @property
    def network(self) -> nn.Module:
        return self.module

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Return the model with its module on a device, for many evaluations there."""
        return replace(self, module=moved(self.module, resolve_device(device, self.module)))

    def inputs(self, X: Any) -> Tensor:
        """Preprocess inputs into a tensor of the model's dtype, on the CPU."""
        if self.transform is not None:
            X = check_array(
                self.transform(X), accept_sparse=True, allow_nd=True, input_name="transformed X"
            )
        inputs = _to_tensor(X, self.dtype)
        if not bool(torch.isfinite(inputs).all()):
            raise ValueError(
                f"Input contains NaN, infinity or a value too large for the model's {self.dtype}."
            )
        return inputs

    def one_pass(self, inputs: Tensor) -> Tensor:
        """Evaluate the module on inputs that are on its device, all at once, and stay there."""
        outputs: Tensor = self.module(inputs.clone())  # a module may alter its input in place
        return outputs

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        there = resolve_device(device, self.module)
        return evaluate(self.on(there), inputs, device=there)

    def _copy_to(self, device: torch.device) -> nn.Module:
        return moved(self.module, device)

    def followed_by(self, layer: nn.Module) -> Self:
        """Return the model with a further layer on its outputs."""
        return replace(self, module=nn.Sequential(self.module, layer).eval())

    def cut(self, parameters: str | Callable[[str, Tensor], bool], inputs: Tensor) -> Cut:
        """Cut the network in front of some of its weights; see `skuq.networks.cut_network`."""
        return cut_network(self.module, parameters, inputs[:1024])


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
        """Preprocess inputs into an array or DataFrame that the estimator takes."""
        return to_dense(X if self.transform is None else self.transform(X))

    def refit(
        self, X: Any, y: NDArray[Any], sample_weight: FloatArray | None, *, seed: int
    ) -> Self:
        fitted = fit_clone(self.estimator, X, y, sample_weight=sample_weight, seed=seed)
        return replace(self, estimator=fitted)

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        if self.classes is None:
            means = torch.tensor(self.estimator.predict(inputs), dtype=torch.float64)
            if means.shape[1:] not in ((), (1,)):
                raise ValueError(
                    f"{type(self.estimator).__name__} predicts shape {tuple(means.shape)}; a model "
                    "of one target is needed."
                )
            return means.reshape(-1, 1)
        proba = np.asarray(self.estimator.predict_proba(inputs), dtype=np.float64)
        if proba.shape[1] != len(self.classes):  # its training data lacked some
            known = np.searchsorted(self.classes, self.estimator.classes_)
            proba, some = np.zeros((len(proba), len(self.classes))), proba
            proba[:, known] = some
        return torch.as_tensor(np.log(np.maximum(proba, LEAST_PROBABILITY)))


def private_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU, in evaluation mode and without gradients, of at least single precision."""
    copy = _copied(module).cpu().eval().requires_grad_(False)
    _fold_norms(copy)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in copy.parameters())
    return copy.float() if half else copy  # numpy has no bfloat16, and a search overflows float16


def _copied(module: nn.Module) -> nn.Module:
    """A deep copy, also where the module keeps tensors of its last forward pass."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("Cannot adopt a ScriptModule; give the torch.nn.Module it was made from.")
    kept = (value for part in module.modules() for value in vars(part).values())
    copies = {id(x): x.detach().clone() for x in kept if isinstance(x, Tensor) and not x.is_leaf}
    try:
        return deepcopy(module, copies)  # torch copies no tensor with a history
    except RuntimeError as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied, perhaps because it keeps tensors of its "
            "last forward pass; let it keep them detached, or not at all."
        ) from error


def _fold_norms(module: nn.Module) -> None:
    """Make weights parameters that `weight_norm` or `spectral_norm` compute in each pass.

    In a search, the computed ones would be tensors of many models, which cannot be copied.
    """
    for layer in module.modules():
        for hook in list(layer._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                nn.utils.remove_weight_norm(layer, hook.name)
            elif isinstance(hook, SpectralNorm):
                nn.utils.remove_spectral_norm(layer, hook.name)


def _to_tensor(X: Any, dtype: torch.dtype) -> Tensor:
    """Copy an array, or a sparse matrix some rows at a time, into a tensor on the CPU."""
    if not issparse(X):
        array = np.asarray(X)
        if min(array.strides, default=0) < 0:  # torch takes no reversed array, even of one row
            array = array.copy()
        return torch.tensor(array, dtype=dtype)  # a copy, since arrays may be read-only
    tensor = torch.empty(X.shape, dtype=dtype)
    by_row = X.tocsr()
    for rows in gen_batches(X.shape[0], _ROWS):
        tensor[rows] = torch.from_numpy(by_row[rows].toarray())
    return tensor


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

    Weights reach the learner inside of pipelines and searches; `seed` is for each `random_state`
    that is None; `fit_params` are further arguments of `fit`.
    """
    twin = clone(estimator)
    unseeded = {
        name: seed
        for name, value in twin.get_params().items()
        if value is None and name.split("__")[-1] == "random_state"
    }
    twin.set_params(**unseeded)
    if sample_weight is not None:
        fit_params[f"{_path_to_learner(twin)}sample_weight"] = sample_weight
    with seeded(seed):
        try:
            return twin.fit(X, y, **fit_params)
        except Exception as error:  # a search passes on whatever its models raise
            net = look_at(estimator).learner
            if not is_skorch_net(net) or _is_data_of(net, X, y):
                raise
            raise net_data_error(estimator, X, y) from error


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


def _path_to_learner(estimator: Any) -> str:
    """Prefix of the names of arguments of `fit` for the learner inside: "svc__"."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        return f"{name}__{_path_to_learner(last)}"
    return _path_to_learner(estimator.estimator) if is_search(estimator) else ""


def example_outputs(model: Model, inputs: Any) -> Tensor:
    """Outputs for the first inputs; an error that names shapes if there are none."""
    examples = inputs[:_N_EXAMPLES]
    try:
        return model.outputs(examples)
    except RuntimeError as error:  # of torch
        if model.network is None:
            raise
        raise input_error(model.network, examples.shape, error) from error


def classes_of_logits(logits: Tensor, y: NDArray[Any]) -> NDArray[Any]:
    """Labels in the order of the outputs of a network that does not know them.

    Parameters
    ----------
    logits : Tensor of shape (n_samples, n_classes)
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


def _warn_of_probabilities(logits: Tensor) -> None:
    """Warn, at the line of the user, if outputs that should be logits are probabilities.

    Logits of several samples, all in [0, 1] and with rows that all add up to 1, are a coincidence
    that does not happen.
    """
    inside = len(logits) > 1 and bool(((logits >= 0) & (logits <= 1)).all())
    if inside and bool(((logits.double().sum(dim=-1) - 1).abs() < _ROW_SUM_TOLERANCE).all()):
        warn_user(
            "The model returns probabilities: they lie in [0, 1] and add up to 1. Logits are "
            "expected, and uncertainty computed from probabilities in their place is wrong. "
            "Remove the softmax at its end; of a skorch net whose criterion takes probabilities, "
            "make it the last layer of an nn.Sequential, where it is seen."
        )
