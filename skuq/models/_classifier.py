"""From whatever the user passed as ``estimator`` to a fitted classifier in adopted form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet, NeuralNetBinaryClassifier
from torch import Tensor, nn

from skuq.base import is_search
from skuq.models._adopt import AdoptedModel, adopt
from skuq.models._evaluate import evaluate
from skuq.models._training import default_classifier, fit_net, seeded


def is_fitted(estimator: Any) -> bool:
    """Whether an estimator holds trained weights; a bare torch module always does."""
    while hasattr(estimator, "steps") or isinstance(estimator, FrozenEstimator):
        steps = getattr(estimator, "steps", None)
        estimator = estimator.estimator if steps is None else steps[-1][1]
    if isinstance(estimator, NeuralNet):
        return bool(estimator.initialized_)
    if isinstance(estimator, nn.Module):
        return True
    if not hasattr(estimator, "fit"):  # such as a client of a model that is served elsewhere
        return hasattr(estimator, "predict_proba")
    try:
        check_is_fitted(estimator)
    except AttributeError:  # no scikit-learn estimator
        return hasattr(estimator, "classes_")
    except (NotFittedError, TypeError):
        return False
    return True


def frozen_if_fitted(estimator: Any) -> Any:
    """The estimator, frozen if it is already fitted: then it is not trained again."""
    if estimator is None or isinstance(estimator, FrozenEstimator) or not is_fitted(estimator):
        return estimator
    return FrozenEstimator(estimator)


def brings_preprocessing(estimator: Any) -> bool:
    """Whether an estimator may transform its input itself: then text columns are its business."""
    while isinstance(estimator, FrozenEstimator | CalibratedClassifierCV) or is_search(estimator):
        estimator = estimator.estimator
    return hasattr(estimator, "steps")


def takes_ids(estimator: Any) -> bool:
    """Whether the inputs of an estimator are ids, such as those of the nodes of a graph."""
    while isinstance(estimator, FrozenEstimator) or is_search(estimator):
        estimator = estimator.estimator
    return hasattr(estimator, "as_adopted") and bool(get_tags(estimator).input_tags.one_d_array)


def fit_or_adopt(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    device: torch.device,
    fit_params: Mapping[str, Any] | None = None,
) -> AdoptedModel:
    """Take over a frozen classifier as it is; clone and train any other.

    Parameters
    ----------
    estimator : object
        None (the default network is trained), a `FrozenEstimator` of anything that `adopt`
        takes, or an estimator to be cloned and trained: a skorch net or a scikit-learn
        model that can be adopted.
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
    fit_params : mapping of str to object, default=None
        Further arguments of the `fit` of an estimator that is trained.

    Returns
    -------
    AdoptedModel
        With `classes` set, unless a frozen bare module does not know them.

    Raises
    ------
    TypeError
        If the estimator is none of these, or its `fit` does not take `fit_params`.
    ValueError
        If training is asked for and `y` holds one class.
    """
    if isinstance(estimator, FrozenEstimator):
        return adopt(estimator)
    if isinstance(estimator, nn.Module):
        raise TypeError(
            f"`estimator` is a bare {type(estimator).__name__}. To use its weights as they are, "
            "wrap it: FrozenEstimator(module). To train it, wrap it in a "
            "skorch.NeuralNetClassifier."
        )
    if estimator is not None and not hasattr(estimator, "fit"):
        raise TypeError(f"`estimator` must have a method `fit` or be None, got {estimator!r}.")
    if hasattr(estimator, "steps") and isinstance(estimator.steps[-1][1], NeuralNet):
        raise TypeError(
            "`estimator` is a pipeline that ends in a skorch net; put the transformers outside: "
            "make_pipeline(..., Estimator(net))."
        )
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"`y` holds one class only: {classes[0]!r}; at least 2 are needed.")
    if estimator is None:
        net = default_classifier(X.shape[1], len(classes), device=device)
        X = X.astype(np.float64, copy=False)
    elif isinstance(estimator, NeuralNet):
        net = clone(estimator)
        X = X.astype(np.float32, copy=False)
    else:
        with seeded(seed):
            return adopt(
                _fit_sklearn(clone(estimator), X, y, sample_weight, seed, fit_params or {})
            )
    if fit_params:
        raise TypeError(f"{type(net).__name__} is trained without {', '.join(fit_params)}.")
    targets = codes.astype(np.float32) if isinstance(net, NeuralNetBinaryClassifier) else codes
    fitted = adopt(fit_net(net, X, targets, seed=seed, sample_weight=sample_weight))
    n_outputs = evaluate(fitted.module, fitted.inputs(X[:1])).shape[-1]
    if n_outputs != len(classes):
        raise ValueError(
            f"The net has {n_outputs} outputs, but `y` holds {len(classes)} classes; they must "
            "be equal."
        )
    return AdoptedModel(fitted.module, classes)


def _fit_sklearn(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    sample_weight: NDArray[Any] | None,
    seed: int,
    fit_params: Mapping[str, Any],
) -> Any:
    """Fit a scikit-learn model, seeding whatever has no seed of its own."""
    unseeded = {
        name: seed
        for name, value in estimator.get_params().items()
        if value is None and name.split("__")[-1] == "random_state"
    }
    estimator.set_params(**unseeded)
    if sample_weight is None:
        return estimator.fit(X, y, **fit_params)
    prefix = f"{estimator.steps[-1][0]}__" if hasattr(estimator, "steps") else ""
    return estimator.fit(X, y, **{f"{prefix}sample_weight": sample_weight}, **fit_params)


def encode_labels(
    y: NDArray[Any], model: AdoptedModel, inputs: Tensor
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Turn labels into positions among a model's outputs.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class labels.
    model : AdoptedModel
        Classifier. If it does not know its classes, they are the sorted labels in `y` when
        their number fits, else the codes 0 .. n_classes - 1 when `y` holds such codes.
    inputs : Tensor of shape (n_samples, ...)
        Preprocessed inputs; the first one shows the number of outputs.

    Returns
    -------
    classes : ndarray of shape (n_classes,)
        Labels in the order of the outputs.
    codes : ndarray of shape (n_samples,), int64
        Output that each label belongs to.

    Raises
    ------
    ValueError
        If a label is unknown to the model, or the model does not return logits.
    """
    shape = tuple(model.outputs(inputs[:1]).shape)
    if len(shape) != 2 or shape[1] < 2:
        raise ValueError(
            "The model must return logits of shape (n_samples, n_classes) with at least 2 "
            f"classes, got shape {shape} for one sample."
        )
    classes = model.classes
    if classes is None or len(classes) != shape[1]:
        # skorch believes in the labels it has seen, which may be fewer than the outputs.
        classes = classes_of_outputs(y if classes is None else classes, shape[1])
    return classes, codes_of(y, classes, "y")


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Turn labels into positions among classes.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,)
        Class labels.
    classes : ndarray of shape (n_classes,)
        Classes, in any order.
    name : str
        What the labels are called in the error.

    Returns
    -------
    ndarray of shape (n_samples,), int64

    Raises
    ------
    ValueError
        If a label is none of the classes.
    """
    order = np.argsort(classes)
    position = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
    codes: NDArray[np.int64] = order[position]
    unknown = np.unique(labels[classes[codes] != labels])
    if len(unknown):
        raise ValueError(
            f"`{name}` holds labels that the model does not know: {unknown[:5]}; it was trained "
            f"with {classes}."
        )
    return codes


def classes_of_outputs(y: NDArray[Any], n_classes: int) -> NDArray[Any]:
    """Labels in the order of the outputs of a network that does not know them.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class labels.
    n_classes : int
        Number of outputs.

    Returns
    -------
    ndarray of shape (n_classes,)
        The sorted labels in `y` if their number fits, else the codes 0 to `n_classes` - 1.

    Raises
    ------
    ValueError
        If the number does not fit and the labels are no such codes.
    """
    labels = np.unique(y)
    if len(labels) == n_classes:
        return labels
    codes = np.arange(n_classes)
    if np.isin(labels, codes).all():
        return codes
    raise ValueError(
        f"The module returns {n_classes} logits, but `y` holds {len(labels)} labels that are "
        f"not codes 0 to {n_classes - 1}: {labels[:5]}."
    )
