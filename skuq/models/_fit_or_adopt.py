"""A model in adopted form from whatever the user passed as ``estimator``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from torch import nn

from skuq.base import FloatArray
from skuq.models._adopt import adopt
from skuq.models._adopted_model import AdoptedModel
from skuq.models._classes import example_outputs
from skuq.models._default_networks import (
    float64_mlp,
    train_default_classifier,
    train_default_regressor,
)
from skuq.models._evaluate import evaluate
from skuq.models._skorch_nets import dtype_of, fit_net
from skuq.models._skorch_types import is_skorch_net
from skuq.models._taken_as_it_is import taken_as_it_is
from skuq.models._training import seeded
from skuq.wrappers import is_search, unwrap


def fit_or_adopt(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    device: torch.device,
    after_the_fact: bool = False,
    network: Callable[[int, int], nn.Module] = float64_mlp,
    fit_params: Mapping[str, Any] | None = None,
) -> AdoptedModel:
    """Take over a classifier as it is, or clone and train it (see `taken_as_it_is`).

    Parameters
    ----------
    estimator : object
        None (the default network is trained), a `FrozenEstimator` of anything that `adopt`
        takes, a `torch.nn.Module`, or an estimator to be cloned and trained: a skorch net or a
        scikit-learn model that can be adopted.
    X : array of shape (n_samples, ...) or DataFrame
        Inputs.
    y : ndarray of shape (n_samples,)
        Class labels.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights for the training.
    seed : int
        Randomness of the training.
    device : torch.device
        Where the default network is trained.
    after_the_fact : bool, default=False
        Whether every fitted estimator is taken as it is.
    network : callable, default=float64_mlp
        Builds the default network from the numbers of features and classes.
    fit_params : mapping of str to object, default=None
        Further arguments of the `fit` of a scikit-learn estimator that is trained.

    Returns
    -------
    AdoptedModel
        With `classes` set, unless a bare module does not know them.

    Raises
    ------
    TypeError
        If the estimator is none of these, or its `fit` does not take `fit_params`; if it passes
        the data on to a skorch net that cannot be trained on it.
    ValueError
        If training is asked for and `y` holds one class, or the training diverges.

    Warns
    -----
    UserWarning
        If a fitted estimator is trained again.
    """
    if taken_as_it_is(estimator, after_the_fact=after_the_fact):
        return adopt(estimator, y)
    check_trainable(estimator)
    check_several_classes(y)
    classes, codes = np.unique(y, return_inverse=True)
    training: dict[str, Any] = {"sample_weight": sample_weight, "seed": seed}
    if estimator is not None and not is_skorch_net(estimator):
        return adopt(fit_sklearn_clone(estimator, X, y, **training, **(fit_params or {})))
    if fit_params:
        raise TypeError(f"A neural network is trained without {', '.join(fit_params)}.")
    if estimator is None:
        module = train_default_classifier(
            X, codes, n_classes=len(classes), device=device, network=network, **training
        )
        return AdoptedModel(module, classes)
    net = clone(estimator)
    if getattr(net, "classes", None) is not None:
        net.set_params(classes=None)  # it learns codes, which are in the order of its outputs
    dtype = dtype_of(net)
    X = X.astype(dtype, copy=False)
    binary = is_skorch_net(net, "NeuralNetBinaryClassifier")
    fitted = adopt(fit_net(net, X, codes.astype(dtype) if binary else codes, **training))
    n_outputs = evaluate(fitted.module, fitted.inputs(X[:1])).shape[-1]
    if n_outputs != len(classes):
        raise ValueError(
            f"The net has {n_outputs} outputs, but `y` holds {len(classes)} classes; they must "
            "be equal."
        )
    return replace(fitted, classes=classes)


def fit_or_adopt_regressor(
    estimator: Any,
    X: Any,
    y: FloatArray,
    *,
    n_outputs: int,
    sample_weight: NDArray[Any] | None,
    seed: int,
    device: torch.device,
    after_the_fact: bool = False,
) -> AdoptedModel:
    """Take over a regressor as it is, or clone and train it (see `taken_as_it_is`).

    Parameters
    ----------
    estimator : object
        As in `fit_or_adopt`.
    X : array of shape (n_samples, ...) or DataFrame
        Inputs.
    y : ndarray of shape (n_samples,), float64
        Targets.
    n_outputs : int
        1 for the mean, 2 for mean and log variance.
    sample_weight, seed, device, after_the_fact
        As in `fit_or_adopt`.

    Returns
    -------
    AdoptedModel
        Its module returns shape (n_samples, n_outputs).

    Raises
    ------
    TypeError
        If the estimator is none of these, or a wrapper such as a search around a skorch net.
    ValueError
        If it is a classifier, has another number of outputs, or its training diverges.

    Warns
    -----
    UserWarning
        If a fitted estimator is trained again.
    """
    training: dict[str, Any] = {"sample_weight": sample_weight, "seed": seed}
    if taken_as_it_is(estimator, after_the_fact=after_the_fact):
        model = adopt(estimator)
    elif estimator is None:
        module = train_default_regressor(X, y, n_outputs=n_outputs, device=device, **training)
        return AdoptedModel(module)
    else:
        model = _fit_regressor_clone(estimator, X, y, training)
    if model.classes is not None:
        raise ValueError("`estimator` is a classifier; a regressor is needed.")
    shape = tuple(example_outputs(model, model.inputs(_safe_indexing(X, [0]))).shape)
    if shape != (1, n_outputs):
        wanted = "the mean" if n_outputs == 1 else "mean and log variance"
        raise ValueError(
            f"The network must return {wanted}, shape (n_samples, {n_outputs}), got shape {shape} "
            "for one sample."
        )
    return model


def _fit_regressor_clone(
    estimator: Any, X: Any, y: FloatArray, training: dict[str, Any]
) -> AdoptedModel:
    check_trainable(estimator)
    if is_skorch_net(estimator):
        dtype = dtype_of(estimator)
        targets = y[:, None].astype(dtype)
        return adopt(fit_net(clone(estimator), X.astype(dtype), targets, **training))
    if is_skorch_net(_innermost(estimator)):  # which would broadcast targets that are no column
        raise _error_of_net_inside(estimator, X, y)
    return adopt(fit_sklearn_clone(estimator, X, y, **training))


def check_trainable(estimator: Any) -> None:
    """Refuse what cannot be trained."""
    if estimator is not None and not hasattr(estimator, "fit"):
        raise TypeError(
            "`estimator` must be None, have a method `fit`, or be a torch.nn.Module, got "
            f"{estimator!r}."
        )
    if isinstance(estimator, Pipeline) and is_skorch_net(estimator.steps[-1][1]):
        raise TypeError(
            "`estimator` is a pipeline that ends in a skorch net; put the transformers outside: "
            "make_pipeline(..., Estimator(net))."
        )


def check_several_classes(y: NDArray[Any]) -> None:
    """Refuse training labels that are all the same."""
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"`y` holds one class only: {classes[0]!r}; at least 2 are needed.")


def fit_sklearn_clone(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    **fit_params: Any,
) -> Any:
    """Fit a clone of a scikit-learn model, seeding whatever has no seed of its own.

    Raises
    ------
    TypeError
        If a skorch net inside fails on data that it does not take.
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
            net = _innermost(estimator)
            if not is_skorch_net(net) or _is_data_of(net, X, y):
                raise
            raise _error_of_net_inside(estimator, X, y) from error


def _innermost(estimator: Any) -> Any:
    """The learner inside of all wrappers."""
    inside = unwrap(estimator, fitted=False)
    return estimator if inside is None else _innermost(inside.estimator)


def _is_data_of(net: Any, X: Any, y: NDArray[Any]) -> bool:
    """Whether a skorch classifier takes inputs and labels as they are."""
    dtype = dtype_of(net)
    if not isinstance(X, np.ndarray) or X.dtype != dtype:
        return False
    if is_skorch_net(net, "NeuralNetBinaryClassifier"):
        return bool(y.dtype == dtype)
    labels = np.unique(y)
    return y.dtype == np.int64 and np.array_equal(labels, np.arange(len(labels)))


def _error_of_net_inside(estimator: Any, X: Any, y: NDArray[Any]) -> TypeError:
    net = _innermost(estimator)
    dtype = dtype_of(net).__name__
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
    """What `fit` wants before the names of arguments for the learner inside: "svc__"."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        return f"{name}__{_path_to_learner(last)}"
    return _path_to_learner(estimator.estimator) if is_search(estimator) else ""
