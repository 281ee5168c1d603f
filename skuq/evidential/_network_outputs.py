"""Logits of networks, and representations in a layer, recorded with forward hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from sklearn.utils import gen_batches
from torch import Tensor, nn

from skuq._networks import forward_hooks, moved, on_device, rows_at_once
from skuq.base import FloatArray
from skuq.models import NetworkModel

Layer = int | str

# Name of the submodule in which torch stores parametrised weights, such as those of
# `spectral_norm`.
_PARAMETRIZATIONS = "parametrizations"


class Outputs(NamedTuple):
    """Outputs of a model for samples, on the CPU."""

    logits: Tensor  # (n_samples, n_classes), float64
    hidden: Tensor  # (n_samples, n_hidden), float32: representation in the chosen layer


def adopted_outputs(
    model: NetworkModel, inputs: Tensor, layer: Layer, device: torch.device
) -> Outputs:
    """Compute logits and representations of samples, in batches of bounded size."""
    module = moved(model.module, device)
    parts = []
    with torch.no_grad():
        for rows in gen_batches(len(inputs), rows_at_once(module)):
            run = partial(module, on_device(inputs[rows].clone(), device))
            logits, hidden = read_layer(module, run, layer)
            parts.append((logits.detach().cpu().double(), hidden.detach().cpu().float()))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def proba_of(logits: Tensor) -> FloatArray:
    """Compute class probabilities of shape (n_samples, n_classes), float64, from logits."""
    proba: FloatArray = logits.double().softmax(dim=1).numpy()
    return proba


def read_layer(
    network: nn.Module, run: Callable[[], Tensor], layer: Layer
) -> tuple[Tensor, Tensor]:
    """Evaluate a network by calling `run`, and record the representation in one of its layers.

    `layer` is -1 for the logits, -2 for the input of the last layer with a weight matrix, -3 for
    the input of the layer before, and so on. The name of a module selects the output of the module.
    All axes of the representation except the first are flattened.
    """
    if layer == -1:
        logits = run()
        return logits, logits
    by_name = isinstance(layer, str)
    position = 1 if by_name else -layer - 1  # type: ignore[operator]
    recorded: deque[Any] = deque(maxlen=position)
    if by_name:
        hooks = forward_hooks([_named(network, str(layer))], _keep_output(recorded))
    else:
        layers = [
            module
            for name, module in network.named_modules()
            if _has_matrix(module) and _PARAMETRIZATIONS not in name.split(".")
        ]
        hooks = forward_hooks(layers, _keep_input(recorded), before=True)
    with hooks:
        logits = run()
    if len(recorded) < position:
        raise ValueError(
            f"`layer`={layer!r} counts layers with a weight matrix, but the network evaluated only "
            f"{len(recorded)} of them; pass the name of a module instead, one of {_names(network)}."
        )
    return logits, _rows(recorded[0], len(logits), layer)


def _named(network: nn.Module, name: str) -> nn.Module:
    modules = dict(network.named_modules())
    if name not in modules or not name:
        raise ValueError(
            f"The network has no module `layer`={name!r}; its modules are {_names(network)}."
        )
    return modules[name]


def _names(network: nn.Module) -> str:
    return ", ".join(name for name, _ in network.named_modules() if name)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module has a weight matrix of its own, unlike containers and normalisation."""
    leaf = all(name == _PARAMETRIZATIONS for name, _ in module.named_children())
    return leaf and any(parameter.ndim > 1 for parameter in module.parameters())


def _keep_input(recorded: deque[Any]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        arguments = [*inputs, *named.values()]  # the first argument of some layers is a graph
        tensor = next((x for x in arguments if isinstance(x, Tensor)), arguments[0])
        recorded.append(_copy(tensor))

    return hook


def _keep_output(recorded: deque[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: recorded.append(_copy(output))


def _copy(value: Any) -> Any:
    """Copy a tensor, because the next module may alter its input in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _rows(hidden: Any, n_samples: int, layer: Layer) -> Tensor:
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or len(hidden) != n_samples:
        found = tuple(hidden.shape) if hasattr(hidden, "shape") else type(hidden).__name__
        raise ValueError(
            f"The representation `layer`={layer!r} must be a tensor with {n_samples} rows, one for "
            f"each sample, got {found}."
        )
    return hidden.flatten(1)
