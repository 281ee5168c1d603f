"""Users' networks and default networks: conversion of prefit models, training of all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from skuq._networks import (
    BinaryLogits,
    Columns,
    LogitsOf,
    LogProbabilities,
    ScaledLogits,
    float64_mlp,
    input_error,
    is_chain,
    linear_layer,
    part_of_chain,
    train_default_classifier,
    train_default_regressor,
)
from skuq.base import FloatArray
from skuq.models._given import (
    TEXT_FIELDS,
    Given,
    check_several_classes,
    is_skorch_net,
    look_at,
    refuse_fit_params,
    rows_of,
)
from skuq.models._model import N_EXAMPLES, UNCONVERTED, fit_clone
from skuq.models._network_model import NetworkModel, private_copy
from skuq.validation import to_dense, warn_user
from skuq.wrappers import copied, is_prefit, unwrap

if TYPE_CHECKING:
    from skorch import NeuralNet

_N_TRIED = 8  # number of inputs on which a network is checked for randomness
_ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}
# Criteria that determine whether the outputs of a skorch classifier are logits or probabilities.
_CRITERIA = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss)


def fitted_classifier(
    given: Given,
    X: Any,
    y: NDArray[Any],
    network: Callable[[int, int], nn.Module] | None,
    fit_params: Mapping[str, Any] | None,
    device: torch.device | str,
    after_the_fact: bool,
    training: dict[str, Any],
) -> NetworkModel:
    """Return a network that predicts logits: convert a prefit model, or train the model."""
    estimator = given.estimator
    if is_prefit(estimator, after_the_fact=after_the_fact):
        refuse_fit_params(fit_params, "A frozen model is not trained and accepts no")
        return _with_two_logits(usable_network(adopt(estimator, y), X), X, y)
    given.check_trainable()
    check_several_classes(y)
    if estimator is not None and not is_skorch_net(estimator):
        fitted = fit_clone(estimator, X, y, **training, **(fit_params or {}))
        return usable_network(adopt(fitted), X)
    refuse_fit_params(fit_params, "Training of a neural network does not accept")
    if estimator is not None:
        return _skorch_classifier(estimator, X, y, training)
    classes, codes = np.unique(y, return_inverse=True)
    module = train_default_classifier(
        X, codes, n_classes=len(classes), network=network or float64_mlp, device=device, **training
    )
    return NetworkModel(module=module, classes=classes)


def _with_two_logits(model: NetworkModel, X: Any, y: NDArray[Any]) -> NetworkModel:
    """Add the logit 0 of the first class if a module returns only the logit of the second."""
    if model.at_once or model.classes is not None or len(np.unique(y)) > 2:
        return model
    outputs = model.outputs(model.inputs(_safe_indexing(X, slice(0, N_EXAMPLES))))
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
    first, second = (model.outputs(inputs) for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            f"{type(model.network).__name__} is random in evaluation mode: its outputs for the "
            f"same inputs differ by {float((first - second).abs().max()):.2g}, but they must be "
            "deterministic. Switch randomness off in evaluation mode: use torch.nn.Dropout, or "
            "torch.nn.functional.dropout(x, training=self.training)."
        )
    single = tuple(model.outputs(inputs[:1]).shape)
    if len(single) != first.ndim and len(first) > 1:
        raise ValueError(
            f"{type(model.network).__name__} returns shape {tuple(first.shape)} for {len(first)} "
            f"inputs, but {single} for one input: the batch axis is lost, perhaps by "
            "`.squeeze()`. Name the axis to remove: squeeze(-1)."
        )
    return model


def _refuse_batch_statistics(module: nn.Module) -> None:
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
    from skuq._networks import fit_net, net_dtype  # not at the top, because it imports skorch

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
    given: Given,
    X: Any,
    y: FloatArray,
    n_outputs: int,
    device: torch.device | str,
    after_the_fact: bool,
    training: dict[str, Any],
) -> NetworkModel:
    """Return a network that predicts targets: convert a prefit model, or train a network."""
    estimator = given.estimator
    if is_prefit(estimator, after_the_fact=after_the_fact):
        model = usable_network(adopt(estimator), X)
    elif estimator is None:
        module = train_default_regressor(X, y, n_outputs=n_outputs, device=device, **training)
        return NetworkModel(module=module)
    else:
        model = usable_network(adopt(_fitted_regressor(given, X, y, training)), X)
    if model.classes is not None:
        raise ValueError("`estimator` is a classifier; pass a regressor.")
    shape = tuple(model.outputs(model.inputs(_safe_indexing(X, [0]))).shape)
    if shape == (1,) and n_outputs == 1:
        return model.followed_by(nn.Unflatten(0, (-1, 1)))
    if shape != (1, n_outputs):
        expected = "the mean" if n_outputs == 1 else "mean and log variance"
        raise ValueError(
            f"The network must return {expected}, shape (n_samples, {n_outputs}), got shape "
            f"{shape} for one sample. If it returns logits of classes, use an estimator for "
            "classification. OODDetector treats labels as targets of a regression if they are "
            "floats; cast them: y.astype(int)."
        )
    return model


def _fitted_regressor(given: Given, X: Any, y: FloatArray, training: dict[str, Any]) -> Any:
    estimator = given.estimator
    given.check_trainable()
    if is_skorch_net(estimator):
        from skuq._networks import fit_net, net_dtype

        dtype = net_dtype(estimator)
        return fit_net(clone(estimator), X.astype(dtype), y[:, None].astype(dtype), **training)
    if is_skorch_net(given.learner):  # the net's loss would broadcast 1-D targets to 2-D outputs
        raise TypeError(UNCONVERTED)
    return fit_clone(estimator, X, y, **training)


def adopt(model: Any, y: NDArray[Any] | None = None) -> NetworkModel:
    """Convert a fitted model to a `NetworkModel`; the original is copied and never altered.

    Parameters
    ----------
    model : object
        A fitted skorch net; a `torch.nn.Module`; a callable without arguments that returns a
        module; a fitted scikit-learn `MLPClassifier`, `MLPRegressor` or `LogisticRegression`; or
        any other fitted estimator with a method ``as_model()``, such as
        `skuq.evidential.GraphClassifier`.

        The model may be inside a `FrozenEstimator`, `SelfTrainingClassifier`, `RFE` or `RFECV`; it
        may be the best estimator of a search, or temperature-scaled by a `CalibratedClassifierCV`.
        It may also be the last step of a fitted `Pipeline`, whose transformers become the
        preprocessing.

        A bare module must return logits or raw predictions. For two classes, it may return a single
        logit, which belongs to the second label in sorted order. A `PreTrainedModel` of the library
        transformers must have a head for classification of sequences or images; its inputs are the
        outputs of its tokeniser or image processor. Modules may be inside `torch.compile`,
        `torch.nn.DataParallel` or `DistributedDataParallel`; PEFT adapters are merged into a copy.
    y : ndarray of shape (n_samples,), default=None
        Labels of the data. The class names of a transformers model are ignored if these labels
        are integer codes.

    Returns
    -------
    NetworkModel
        The converted model; its outputs agree with the original model's outputs within 1e-6.

    Raises
    ------
    TypeError
        If the model is of an unsupported type, such as a `torch.jit.ScriptModule`, a module of
        `torch.export`, or a `FixedThresholdClassifier` or `TunedThresholdClassifierCV` (logits
        cannot express their thresholds); or if transformers precede a node classifier.
    ValueError
        If the fitted model cannot be expressed as a network or cannot be copied, or if its
        floating-point parameters are missing, not finite or not loaded yet (device "meta").

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> adopted = adopt(LogisticRegression(max_iter=1000).fit(X, y))
    >>> adopted.module(adopted.inputs(X[:2])).shape
    torch.Size([2, 3])
    """
    adopted = _adopt(model)
    if isinstance(adopted, TransformersModel) and y is not None and y.dtype.kind in "biuf":
        adopted = replace(adopted, classes=None)
    if adopted.classes is not None and len(np.unique(adopted.classes)) < len(adopted.classes):
        names = adopted.classes.tolist()
        raise ValueError(f"Outputs share a name in {names}; use positions of outputs as labels.")
    adopted = _sorted_by_class(adopted)
    parameters = [p for p in adopted.module.parameters() if p.is_floating_point()]
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no floating-point parameters to adopt.")
    if not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise ValueError(
            f"{type(model).__name__} has NaN or infinite weights; its training diverged. "
            "Train it again, for instance with a smaller learning rate."
        )
    return adopted


def _sorted_by_class(adopted: NetworkModel) -> NetworkModel:
    if adopted.classes is None:
        return adopted
    order = np.argsort(adopted.classes)
    if (order == np.arange(len(order))).all():
        return adopted
    return replace(adopted.followed_by(Columns(order.tolist())), classes=adopted.classes[order])


def _adopt(model: Any) -> NetworkModel:
    if hasattr(model, "as_model"):
        adopted: NetworkModel = model.as_model()
        return adopted
    if isinstance(model, CalibratedClassifierCV):
        return _adopt_calibrated(model)
    if isinstance(model, FixedThresholdClassifier | TunedThresholdClassifierCV):
        raise TypeError(
            f"Cannot adopt {type(model).__name__}: its predictions depend on a decision threshold, "
            "which logits cannot express. Pass the classifier inside it, whose probabilities are "
            "the same."
        )
    if isinstance(model, nn.Module):
        is_pretrained = look_at(model).pretrained is not None
        return _adopt_pretrained(private_copy(model)) if is_pretrained else NetworkModel.of(model)
    inside = unwrap(model)
    if inside is not None:
        return _adopt(inside.estimator).behind(copied(inside.transform))
    if is_skorch_net(model):
        return _adopt_skorch(model)
    if isinstance(model, MLPClassifier | MLPRegressor):
        return _adopt_sklearn_mlp(model)
    if isinstance(model, LogisticRegression):
        return _adopt_logistic(model)
    is_factory = callable(model) and not isinstance(model, type)
    if is_factory and isinstance(module := model(), nn.Module):
        return NetworkModel.of(module)
    raise TypeError(
        f"Cannot adopt {type(model).__name__ if not isinstance(model, type) else model}: expected "
        "a fitted skorch net, a torch.nn.Module, a callable that returns a module, or a fitted "
        "MLPClassifier, MLPRegressor or LogisticRegression, possibly inside a FrozenEstimator "
        "or at the end of a Pipeline."
    )


def _adopt_calibrated(model: CalibratedClassifierCV) -> NetworkModel:
    check_is_fitted(model)
    parts = model.calibrated_classifiers_
    inverse = getattr(parts[0].calibrators[0], "beta_", None)
    if len(parts) > 1 or inverse is None:
        raise ValueError(
            "A CalibratedClassifierCV can be adopted only if it contains a single model and uses "
            "method='temperature'."
        )
    inner = _adopt(parts[0].estimator)
    # scikit-learn uses (-z, z) as the logits of a binary decision function z.
    binary = hasattr(parts[0].estimator, "decision_function") and len(model.classes_) == 2
    scaled = inner.followed_by(ScaledLogits(float(inverse) * (2 if binary else 1)))
    return replace(scaled, classes=np.asarray(model.classes_))


def _adopt_skorch(net: NeuralNet) -> NetworkModel:
    check_is_fitted(net, "module_")
    module = private_copy(net.module_)
    binary = is_skorch_net(net, "NeuralNetBinaryClassifier")
    if not binary and not is_skorch_net(net, "NeuralNetClassifier"):
        return NetworkModel(module=module)
    of_logits = not binary or isinstance(net.criterion_, nn.BCEWithLogitsLoss)
    if net.predict_nonlinearity != "auto" or not of_logits:
        raise ValueError(
            "A skorch net can be adopted only with predict_nonlinearity='auto' and, if binary, "
            "BCEWithLogitsLoss; let its module return logits."
        )
    if binary:
        module = nn.Sequential(module, BinaryLogits())
    # skorch assumes that custom criteria take probabilities. Many take logits, so check the layers.
    elif isinstance(net.criterion_, nn.NLLLoss) or (
        not isinstance(net.criterion_, _CRITERIA) and _ends_in_softmax(module)
    ):
        if is_chain(module) and isinstance(module[-1], nn.Softmax):
            # Remove the softmax: where its outputs underflow to 0, their logarithms lack gradients.
            module = part_of_chain(module, slice(-1))
        else:
            module = nn.Sequential(module, LogProbabilities())
    return NetworkModel(module=module, classes=np.asarray(net.classes_))


def _ends_in_softmax(module: nn.Module) -> bool:
    if not is_chain(module):
        return isinstance(module, nn.Softmax)
    return len(module) > 0 and _ends_in_softmax(module[-1])


def _linear(weight: NDArray[Any], bias: NDArray[Any]) -> nn.Linear:
    """Create a linear layer for ``x @ weight + bias``, with scikit-learn's weight layout."""
    return linear_layer(torch.as_tensor(weight.T), torch.as_tensor(bias))


def _adopt_sklearn_mlp(mlp: MLPClassifier | MLPRegressor) -> NetworkModel:
    check_is_fitted(mlp)
    layers: list[nn.Module] = []
    for weight, bias in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [_linear(weight, bias), _ACTIVATIONS[mlp.activation]()]
    layers.pop()
    is_regressor, activation = isinstance(mlp, MLPRegressor), mlp.out_activation_
    multi_label = activation == "logistic" and mlp.n_outputs_ > 1
    if multi_label or (is_regressor and activation != "identity"):
        raise ValueError(
            "A multi-label MLPClassifier, or an MLPRegressor without squared error, cannot be "
            "adopted; fit one classifier per label, or use squared error."
        )
    if activation == "logistic":
        layers.append(BinaryLogits())
    classes = None if is_regressor else mlp.classes_
    return NetworkModel.of(nn.Sequential(*layers), classes=classes)


def _adopt_logistic(model: LogisticRegression) -> NetworkModel:
    check_is_fitted(model)
    multi_class = getattr(model, "multi_class", "auto")  # newer scikit-learn has no `multi_class`
    weight = to_dense(model.coef_).T  # sparse after `sparsify`
    n_outputs = weight.shape[1]
    if n_outputs > 1 and (multi_class == "ovr" or model.solver == "liblinear"):
        raise ValueError(
            "A one-vs-rest LogisticRegression is not a softmax model; refit it with solver='lbfgs'."
        )
    bias = np.broadcast_to(model.intercept_, n_outputs).copy()
    layers: list[nn.Module] = [_linear(weight, bias)]
    if n_outputs == 1:
        # Old versions of scikit-learn with multi_class="multinomial" fit the softmax of (-z, z),
        # whose second entry is the sigmoid of 2 z.
        factor = 2 if multi_class == "multinomial" else 1
        layers = [_linear(factor * weight, factor * bias), BinaryLogits()]
    return NetworkModel.of(nn.Sequential(*layers), classes=model.classes_)


class Logits(nn.Module):
    """Module that computes the logits of a transformers model from a single tensor of inputs."""

    rows_at_once = 64  # maximum batch size; small, because the activations are large

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, X: Tensor) -> Tensor:
        name = self.model.main_input_name
        inputs = {name: X}
        if name == TEXT_FIELDS[0]:
            fields = zip(TEXT_FIELDS, X.unbind(1), strict=False)
            inputs = {field: values.long() for field, values in fields}
        outputs = self.model(**inputs, return_dict=True)
        if not hasattr(outputs, "logits"):
            raise ValueError(
                f"{type(self.model).__name__} returns no logits; use a model with a head, such as "
                "AutoModelForSequenceClassification or AutoModelForImageClassification."
            )
        logits: Tensor = outputs.logits
        return logits


@dataclass(frozen=True, kw_only=True)
class TransformersModel(NetworkModel):
    """A transformers model; its inputs may be a mapping."""

    # Only the last layer is searched: variants of all weights would not fit into memory.
    moving_parameters: ClassVar[str] = "last"

    def inputs(self, X: Any) -> Tensor:
        if self.transform is None:
            X = rows_of(next(m.model for m in self.module.modules() if isinstance(m, Logits)), X)
        return super().inputs(X)


def _adopt_pretrained(model: Any) -> NetworkModel:
    """Wrap a private copy of a transformers model with a head, in evaluation mode."""
    config = model.config
    if getattr(config, "problem_type", None) == "multi_label_classification":
        name = type(model).__name__
        raise ValueError(f"{name} is a multi-label model; use a single-label model.")
    # The library's placeholders are not names of classes. Keys read from JSON are strings.
    placeholders = [f"LABEL_{code}" for code in range(config.num_labels)]
    given = {int(code): str(name) for code, name in config.id2label.items()}
    names = [given.get(code, other) for code, other in enumerate(placeholders)]
    classes = None if names == placeholders else np.array(names)
    return TransformersModel(module=Logits(model).eval(), classes=classes)
