"""Labelled samples, and the logits and representations of pre-trained models for all samples."""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, gen_batches
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq._networks import TrainingSettings, forward_hooks, moved, on_device, rows_at_once
from skuq.base import FloatArray
from skuq.devices import DeviceMixin
from skuq.evidential import _graph_libraries as libraries
from skuq.evidential._graph_networks import GraphNetwork, Labelled, layerwise_logits
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.evidential._node_batches import NodeBatches, Read, batched_outputs
from skuq.labels import codes_of, labels_in_mask
from skuq.models import NetworkModel, check_several_classes
from skuq.validation import check_targets_are_classes, refuse_ineffective, training_weights

Layer = int | str

TRAINING_PARAMETERS: dict[str, Any] = {
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


@dataclass(repr=False, eq=False)
class TrainedNetworkMixin(DeviceMixin):
    """Mixin for estimators with the parameters in `TRAINING_PARAMETERS`."""

    _: KW_ONLY
    max_epochs: int = 200
    callbacks: list[Any] | None = None
    device: str | torch.device = "auto"
    random_state: Any = None
    verbose: int = 0

    def _training_settings(self, device: torch.device, weight_decay: float) -> TrainingSettings:
        names = ("learning_rate", "max_epochs", "patience", "verbose")
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        given["callbacks"] = self.callbacks or []
        return TrainingSettings(**given, device=device, weight_decay=weight_decay)

    def _refuse_patience(self, X_val: Any) -> None:
        if X_val is None:
            context = "without validation data; pass `X_val` and `y_val` to `fit`."
            refuse_ineffective(self, ["patience"], context)


class LabelledData(NamedTuple):
    """Classes, and labelled samples for training and early stopping."""

    classes: NDArray[Any]
    training: Labelled
    validation: Labelled | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        parts = [part.rows for part in (self.training, self.validation) if part is not None]
        return np.unique(np.concatenate(parts))

    def as_arguments(self) -> dict[str, Any]:
        (X, codes, weight), validation = self.training, self.validation
        arguments = {"X": X, "y": self.classes[codes], "sample_weight": weight}
        if validation is None:
            return arguments
        return {**arguments, "X_val": validation.rows, "y_val": self.classes[validation.codes]}


def labelled_nodes(
    graph: NodeGraph,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    X_val: Any = None,
    y_val: Any = None,
    *,
    known_classes: NDArray[Any] | None = None,
) -> LabelledData:
    """Validate the arguments of `fit`; `known_classes` are the classes of a trained model."""
    ids, labels = _checked_pair(graph, X, y)
    check_several_classes(labels)
    classes = np.unique(labels if known_classes is None else np.append(labels, known_classes))
    weight = training_weights(sample_weight, len(ids))
    training = Labelled(ids, codes_of(labels, classes, "y"), weight)
    if not has_validation(X_val, y_val):
        return LabelledData(classes, training)
    ids, labels = _checked_pair(graph, X_val, y_val)
    validation = Labelled(ids, codes_of(labels, classes, "y_val"), np.ones(len(ids)))
    return LabelledData(classes, training, validation)


def has_validation(X_val: Any, y_val: Any) -> bool:
    if (X_val is None) != (y_val is None):
        raise ValueError("Pass both `X_val` and `y_val`, or neither.")
    return X_val is not None


def _checked_pair(graph: NodeGraph, X: Any, y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    ids = checked_nodes(X, graph.n_nodes)
    labels = labels_in_mask(X, y)
    check_consistent_length(ids, labels)
    check_targets_are_classes(labels)
    return ids, labels


class Outputs(NamedTuple):
    """Outputs of a model for samples, on the CPU."""

    logits: Tensor  # (n_samples, n_classes), float64
    hidden: Tensor  # (n_samples, n_hidden), float32: representation in the chosen layer


def row_outputs(model: NetworkModel, inputs: Tensor, layer: Layer, device: torch.device) -> Outputs:
    module = moved(model.module, device)
    parts = []
    with torch.no_grad():
        for rows in gen_batches(len(inputs), rows_at_once(module)):
            run = partial(module, on_device(inputs[rows].clone(), device))
            logits, hidden = read_layer(module, run, layer)
            parts.append((logits.detach().cpu().double(), hidden.detach().cpu().float()))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def proba_of(logits: Tensor) -> FloatArray:
    proba: FloatArray = logits.double().softmax(dim=1).numpy()
    return proba


def read_layer(
    network: nn.Module, run: Callable[[], Tensor], layer: Layer
) -> tuple[Tensor, Tensor]:
    """Evaluate a network by calling `run`, and record the representation in one of its layers.

    `layer` is as in `NetworkHead`; only layers with a weight matrix are counted. All axes of the
    representation except the first are flattened.
    """
    if layer == -1:
        logits = run()
        return logits, logits
    modules = dict(network.named_modules())
    names = ", ".join(filter(None, modules))
    recorded: deque[Any] = deque(maxlen=1 if isinstance(layer, str) else -layer - 1)

    def record(*values: Any) -> None:
        first = next((x for x in values if isinstance(x, Tensor)), values[0])
        # Record a copy, because the next module may alter its input in place.
        recorded.append(first.clone() if isinstance(first, Tensor) else first)

    if isinstance(layer, str):
        named = [modules[layer]] if layer and layer in modules else []
        hooks = forward_hooks(named, lambda module, inputs, output: record(output))
    else:  # `record` skips arguments that are not tensors, such as a graph
        layers = [part for name, part in modules.items() if _has_matrix(name, part)]
        hooks = forward_hooks(
            layers, lambda module, inputs, named: record(*inputs, *named.values()), before=True
        )
    with hooks:
        logits = run()
    if len(recorded) < (recorded.maxlen or 0):
        raise ValueError(
            f"`layer`={layer!r} does not exist: {len(recorded)} matching layers were evaluated. "
            "Pass a smaller distance from the end (-2 is the input of the last layer with a weight "
            f"matrix), or the name of a module: {names}."
        )
    hidden = recorded[0]
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or len(hidden) != len(logits):
        found = tuple(hidden.shape) if hasattr(hidden, "shape") else type(hidden).__name__
        raise ValueError(
            f"The representation `layer`={layer!r} must be a tensor with {len(logits)} rows, one "
            f"for each sample, got {found}."
        )
    return logits, hidden.flatten(1)


def _has_matrix(name: str, module: nn.Module) -> bool:
    """Return whether a module has its own weight matrix, unlike containers and normalisation."""
    computed = "parametrizations"  # submodule that computes weights, as for `spectral_norm`
    leaf = all(child == computed for child, _ in module.named_children())
    return leaf and computed not in name.split(".") and any(p.ndim > 1 for p in module.parameters())


@dataclass(frozen=True, kw_only=True)
class NodeModel(NetworkModel):
    """A trained graph network whose inputs are node ids."""

    graph: NodeGraph  # the module is called with this graph
    at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.transform is not None:
            raise TypeError(
                "The inputs of a node classifier are node ids, so no transformer can precede it in "
                "a pipeline."
            )

    @property
    def device(self) -> torch.device:
        return self.graph.device

    def resolved(self, device: torch.device | str) -> torch.device:
        return libraries.device_for_network(self.module, self.graph, device)

    def to(self, device: torch.device | str) -> Self:
        device = self.resolved(device)
        return replace(super().to(device), graph=self.graph.to(device))

    def inputs(self, X: Any) -> Tensor:
        return torch.as_tensor(checked_nodes(X, self.graph.n_nodes))

    def one_pass(self, inputs: Tensor) -> Tensor:
        return libraries.call_on_graph(self.module, self.graph)[inputs]

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        there = self.to(device)
        with torch.no_grad():
            return there.one_pass(inputs.to(there.device)).cpu()

    def followed_by(self, layer: nn.Module) -> Self:
        return replace(self, module=Followed(self.module, layer).eval())


class Followed(nn.Sequential):
    """A graph network followed by layers on its outputs; it is called like the graph network."""

    def __init__(self, network: nn.Module, *layers: nn.Module):
        super().__init__(network, *layers)
        self.takes_node_graph = getattr(network, "takes_node_graph", False)
        self.takes_data = libraries.takes_data(network)

    def forward(self, *inputs: Any) -> Any:
        network, *layers = self
        return nn.Sequential(*layers)(network(*inputs))


def node_model(network: nn.Module, graph: NodeGraph, classes: NDArray[Any] | None) -> NodeModel:
    """Copy a network into a model; `classes` are in the order of the logits, None if unknown."""
    model = NodeModel.of(network, classes=classes, graph=graph)
    libraries.forget_graph(model.module)
    return model


class FeaturesNetwork(nn.Module):
    """A classifier of feature rows, applied to the features of all nodes."""

    takes_node_graph = True

    def __init__(self, model: NetworkModel):
        super().__init__()
        self.module = model.module
        self.model = model

    def forward(self, graph: NodeGraph) -> Tensor:
        inputs = self.model.inputs(graph.features.to_dense().cpu().numpy())
        logits: Tensor = self.module(inputs.to(graph.device))
        return logits


def node_outputs(
    model: NodeModel,
    layer: Layer,
    device: torch.device,
    *,
    batches: NodeBatches | None = None,
    seed: int = 0,
    verbose: bool = False,
) -> Outputs:
    """Evaluate a model on all nodes of its graph; `verbose` shows a progress bar."""
    network, graph = deepcopy(model.module).to(device), model.graph
    if batches is not None and getattr(network, "takes_node_graph", False):
        raise ValueError(
            "`batches` applies only to your own graph networks. A GraphClassifier is evaluated "
            "layer by layer if its features are on disk. Use batches=None."
        )
    by_layer = network if graph.on_disk and isinstance(network, GraphNetwork) else None
    if by_layer is not None and layer != -1:
        raise ValueError(
            f"`layer`={layer!r} is not available, because only the logits are computed for a graph "
            "whose features are on disk; use layer=-1, or load the features into memory."
        )
    try:
        with torch.no_grad():
            if by_layer is not None:
                logits = hidden = layerwise_logits(by_layer, graph, device, verbose=verbose)
            elif batches is not None:
                read: Read = partial(read_layer, network, layer=layer)
                logits, hidden = batched_outputs(
                    network, graph, read, device, batches, seed=seed, verbose=verbose
                )
            else:
                run = partial(libraries.call_on_graph, network, graph.to(device))
                logits, hidden = read_layer(network, run, layer)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(
            f"The model cannot be evaluated on this graph, whose nodes have {graph.n_features} "
            f"features; it raised: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error
    libraries.warn_of_edge_data(network, graph)
    shape = tuple(logits.shape)
    if len(shape) != 2 or shape[0] != graph.n_nodes or shape[1] < 2:
        raise ValueError(
            f"The model must return logits of shape ({graph.n_nodes}, n_classes), got {shape}."
        )
    if not bool(torch.isfinite(logits).all() and torch.isfinite(hidden).all()):
        raise ValueError("The model returns NaN or infinity on this graph; check its weights.")
    return Outputs(logits.detach().cpu().double(), hidden.detach().cpu().float())
