"""Networks that a model is made of: taken as they are, or trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from torch import nn

from skuq.base import FloatArray
from skuq.models._adopt import adopt
from skuq.models._given import is_prefit, is_skorch_net, look_at
from skuq.models._model import example_outputs, fit_clone, net_data_error
from skuq.models._network_model import NetworkModel
from skuq.models._resolve import check_several_classes, check_trainable, refuse_fit_params
from skuq.networks import (
    float64_mlp,
    train_default_classifier,
    train_default_regressor,
)


def fitted_classifier(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    network: Callable[[int, int], nn.Module] | None,
    fit_params: Mapping[str, Any] | None,
    device: torch.device | str,
    after_the_fact: bool,
    training: dict[str, Any],
) -> NetworkModel:
    """A network that predicts logits, taken as it is or trained; see `fit_model`."""
    if is_prefit(estimator, after_the_fact=after_the_fact):
        refuse_fit_params(fit_params, "A model that is taken as it is needs no")
        return adopt(estimator, y)
    check_trainable(estimator)
    check_several_classes(y)
    if estimator is None or is_skorch_net(estimator):
        refuse_fit_params(fit_params, "A neural network is trained without")
    if estimator is None:
        classes, codes = np.unique(y, return_inverse=True)
        module = train_default_classifier(
            X,
            codes,
            n_classes=len(classes),
            device=device,
            network=network or float64_mlp,
            **training,
        )
        return NetworkModel(module=module, classes=classes)
    if is_skorch_net(estimator):
        return _skorch_classifier(estimator, X, y, training)
    return adopt(fit_clone(estimator, X, y, **training, **(fit_params or {})))


def _skorch_classifier(
    estimator: Any, X: Any, y: NDArray[Any], training: dict[str, Any]
) -> NetworkModel:
    from skuq.networks import fit_net, net_dtype  # of skorch

    classes, codes = np.unique(y, return_inverse=True)
    net = clone(estimator)
    if getattr(net, "classes", None) is not None:
        net.set_params(classes=None)  # it learns codes, which are in the order of its outputs
    dtype = net_dtype(net)
    X = X.astype(dtype, copy=False)
    binary = is_skorch_net(net, "NeuralNetBinaryClassifier")
    fitted = adopt(fit_net(net, X, codes.astype(dtype) if binary else codes, **training))
    n_outputs = fitted.outputs(fitted.inputs(X[:1])).shape[-1]
    if n_outputs != len(classes):
        raise ValueError(
            f"The net has {n_outputs} outputs, but `y` holds {len(classes)} classes; they must "
            "be equal."
        )
    return replace(fitted, classes=classes)


def fitted_regressor(
    estimator: Any,
    X: Any,
    y: FloatArray,
    n_outputs: int,
    device: torch.device | str,
    after_the_fact: bool,
    training: dict[str, Any],
) -> NetworkModel:
    """A network that predicts targets, taken as it is or trained."""
    if is_prefit(estimator, after_the_fact=after_the_fact):
        model = adopt(estimator)
    elif estimator is None:
        module = train_default_regressor(X, y, n_outputs=n_outputs, device=device, **training)
        return NetworkModel(module=module)
    else:
        model = adopt(_fitted_regressor(estimator, X, y, training))
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


def _fitted_regressor(estimator: Any, X: Any, y: FloatArray, training: dict[str, Any]) -> Any:
    check_trainable(estimator)
    if is_skorch_net(estimator):
        from skuq.networks import fit_net, net_dtype

        dtype = net_dtype(estimator)
        return fit_net(clone(estimator), X.astype(dtype), y[:, None].astype(dtype), **training)
    if is_skorch_net(look_at(estimator).learner):  # would broadcast targets that are not a column
        raise net_data_error(estimator, X, y)
    return fit_clone(estimator, X, y, **training)
