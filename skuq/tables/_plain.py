"""Objects that hold torch tensors and networks, as objects that hold arrays, and back.

Arrays can be stored without code; what torch stores is a pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.models import BinaryLogits, linear_layer
from skuq.models._default_networks import Affine

# Layers without parameters.
LAYERS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity, BinaryLogits)
SIMPLE = {layer.__name__: layer for layer in LAYERS}


class NotPlainError(TypeError):
    """A network has layers that arrays alone do not describe."""


@dataclass
class PlainTensor:
    """A tensor as an array."""

    array: NDArray[Any]


@dataclass
class PlainNetwork:
    """A chain of layers: the name of each, its kind, and its parameters."""

    names: list[str]
    kinds: list[str]
    parameters: list[list[NDArray[Any]]]


def to_plain(value: Any) -> Any:
    """Copy an object of skuq, or a container of such, with arrays in place of tensors."""
    return _mapped(value, _plain)


def from_plain(value: Any) -> Any:
    """Undo `to_plain`."""
    return _mapped(value, _torch)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy containers and objects of skuq, and change what is in them."""
    changed = change(value)
    if changed is not value:
        return changed
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, change) for each in value)
    if type(value).__module__.split(".")[0] == "skuq" and hasattr(value, "__dict__"):
        copy = object.__new__(type(value))
        copy.__dict__.update(_mapped(vars(value), change))
        return copy
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return PlainTensor(value.detach().cpu().numpy())
    if isinstance(value, nn.Module):
        return _plain_network(value)
    return value


def _torch(value: Any) -> Any:
    if isinstance(value, PlainTensor):
        return torch.tensor(value.array)
    if isinstance(value, PlainNetwork):
        return _network(value)
    return value


def _plain_network(network: nn.Module) -> PlainNetwork:
    chain = isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward
    layers = dict(network.named_children()) if chain else {}
    kinds = [type(layer).__name__ for layer in layers.values()]
    unknown = [kind for kind in kinds if kind not in (*SIMPLE, "Linear", "Affine")]
    if not layers or unknown:
        raise NotPlainError(", ".join(unknown) or type(network).__name__)
    return PlainNetwork([*layers], kinds, [_arrays(layer) for layer in layers.values()])


def _arrays(layer: nn.Module) -> list[NDArray[Any]]:
    return [np.asarray(tensor.detach().cpu()) for tensor in layer.state_dict().values()]


def _network(plain: PlainNetwork) -> nn.Module:
    chain = nn.Sequential()
    for name, kind, arrays in zip(plain.names, plain.kinds, plain.parameters, strict=True):
        chain.add_module(name, _layer(kind, arrays))
    network: nn.Module = chain.eval().requires_grad_(False)
    return network


def _layer(name: str, arrays: list[NDArray[Any]]) -> nn.Module:
    if name in SIMPLE:
        return SIMPLE[name]()
    if name == "Affine":
        return Affine(*(array.tolist() for array in arrays))
    return linear_layer(*map(torch.tensor, arrays))
