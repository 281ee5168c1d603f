"""Fitted networks: prefit networks are checked; other networks are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from skuq._networks import (
    BinaryLogits,
    LogitsOf,
    float64_mlp,
    input_error,
    train_default_classifier,
    train_default_regressor,
)
from skuq.base import FloatArray
from skuq.models._adopt import adopt
from skuq.models._given import is_prefit, is_skorch_net, look_at
from skuq.models._model import N_EXAMPLES, example_outputs, fit_clone, net_data_error
from skuq.models._network_model import NetworkModel
from skuq.models._resolve import check_several_classes, check_trainable, refuse_fit_params
from skuq.validation import warn_user

_N_TRIED = 8  # number of inputs on which a network is checked for randomness


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
    """Network that predicts logits, prefit or trained; see `fit_model`."""
    if is_prefit(estimator, after_the_fact=after_the_fact):
        refuse_fit_params(fit_params, "A frozen model is not trained and accepts no")
        return _with_two_logits(usable_network(adopt(estimator, y), X), X, y)
    check_trainable(estimator)
    check_several_classes(y)
    if estimator is None or is_skorch_net(estimator):
        refuse_fit_params(fit_params, "Training of a neural network does not accept")
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
    return usable_network(adopt(fit_clone(estimator, X, y, **training, **(fit_params or {}))), X)


def _with_two_logits(model: NetworkModel, X: Any, y: NDArray[Any]) -> NetworkModel:
    """Append the logit 0 of the first class to the output of a module with one logit."""
    if model.at_once or model.classes is not None or len(np.unique(y)) > 2:
        return model
    outputs = example_outputs(model, model.inputs(_safe_indexing(X, slice(0, N_EXAMPLES))))
    if outputs.shape[1:] not in ((), (1,)):
        return model
    if len(outputs) > 1 and bool(((outputs >= 0) & (outputs <= 1)).all()):
        warn_user(
            "The module returns one number in [0, 1] for each sample, which looks like a "
            "probability. It must return the logit of the second class; remove the sigmoid at its "
            "end."
        )
    return model.followed_by(BinaryLogits())


def usable_network(model: NetworkModel, X: Any) -> NetworkModel:
    """Check a user's network on the first inputs, and make it return one tensor.

    If the network returns a dictionary or an object, its "logits" are used. Outputs must be
    deterministic and must not depend on other inputs of the batch.
    """
    if model.at_once:
        return model
    inputs = model.inputs(_safe_indexing(X, slice(0, _N_TRIED)))
    with torch.no_grad():
        try:
            outputs = model.one_pass(inputs)
        except RuntimeError as error:
            shape = _num_samples(X), *inputs.shape[1:]
            raise input_error(model.network, shape, error) from error
    if not isinstance(outputs, Tensor) and LogitsOf.find(outputs) is not None:
        model = model.followed_by(LogitsOf())
    _refuse_batch_statistics(model.module)
    first, second = (example_outputs(model, inputs) for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            f"{type(model.network).__name__} is random in evaluation mode: its outputs for the "
            f"same inputs differ by {float((first - second).abs().max()):.2g}, but they must be "
            "deterministic. Switch randomness off in evaluation mode: use torch.nn.Dropout, or "
            "torch.nn.functional.dropout(x, training=self.training)."
        )
    single = tuple(example_outputs(model, inputs[:1]).shape)
    if len(single) != first.ndim and len(first) > 1:
        raise ValueError(
            f"{type(model.network).__name__} returns shape {tuple(first.shape)} for {len(first)} "
            f"inputs, but {single} for one input: the batch axis is lost, perhaps by "
            "`.squeeze()`. Name the axis to remove: squeeze(-1)."
        )
    return model


def _refuse_batch_statistics(module: nn.Module) -> None:
    """Raise ValueError for batch normalisation without running statistics."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is None:
            raise ValueError(
                f"{type(part).__name__} {name!r} has no running statistics, so outputs for an "
                "input depend on the other inputs in its batch. Train the network with "
                "track_running_stats=True."
            )


def _skorch_classifier(
    estimator: Any, X: Any, y: NDArray[Any], training: dict[str, Any]
) -> NetworkModel:
    from skuq._networks import fit_net, net_dtype  # imports skorch

    classes, codes = np.unique(y, return_inverse=True)
    net = clone(estimator)
    if getattr(net, "classes", None) is not None:
        net.set_params(classes=None)  # the net is trained on class codes, not on labels
    dtype = net_dtype(net)
    X = X.astype(dtype, copy=False)
    binary = is_skorch_net(net, "NeuralNetBinaryClassifier")
    net = fit_net(net, X, codes.astype(dtype) if binary else codes, **training)
    fitted = usable_network(adopt(net), X)
    n_outputs = fitted.outputs(fitted.inputs(X[:1])).shape[-1]
    if n_outputs != len(classes):
        raise ValueError(
            f"The net has {n_outputs} outputs, but `y` contains {len(classes)} classes; the two "
            "numbers must be equal."
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
    """Network that predicts targets, prefit or trained."""
    if is_prefit(estimator, after_the_fact=after_the_fact):
        model = usable_network(adopt(estimator), X)
    elif estimator is None:
        module = train_default_regressor(X, y, n_outputs=n_outputs, device=device, **training)
        return NetworkModel(module=module)
    else:
        model = usable_network(adopt(_fitted_regressor(estimator, X, y, training)), X)
    if model.classes is not None:
        raise ValueError("`estimator` is a classifier; pass a regressor.")
    shape = tuple(example_outputs(model, model.inputs(_safe_indexing(X, [0]))).shape)
    if shape != (1, n_outputs):
        expected = "the mean" if n_outputs == 1 else "mean and log variance"
        raise ValueError(
            f"The network must return {expected}, shape (n_samples, {n_outputs}), got shape "
            f"{shape} for one sample. If it returns logits of classes, use an estimator for "
            "classification. OODDetector treats labels as targets of a regression if they are "
            "floats; cast them: y.astype(int)."
        )
    return model


def _fitted_regressor(estimator: Any, X: Any, y: FloatArray, training: dict[str, Any]) -> Any:
    check_trainable(estimator)
    if is_skorch_net(estimator):
        from skuq._networks import fit_net, net_dtype

        dtype = net_dtype(estimator)
        return fit_net(clone(estimator), X.astype(dtype), y[:, None].astype(dtype), **training)
    if is_skorch_net(look_at(estimator).learner):  # its loss would broadcast 1-D targets
        raise net_data_error(estimator, X, y)
    return fit_clone(estimator, X, y, **training)
