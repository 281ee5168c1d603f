"""Choice of the weights that adversarial model searches may move."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skuq.models import (
    is_chain,
    part_of_chain,
    rows_at_once,
    split_before_linear,
    split_head,
)
from skuq.stored import stored

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


class Subnetwork(NamedTuple):
    """A network cut in front of the first weights that move.

    Attributes
    ----------
    module : torch.nn.Module
        The part that moves, to its end.
    parameters : tuple of str
        Names, in `module`, of the parameters that move.
    body : torch.nn.Module or None
        The layers before, computed once; None if there are none.
    """

    module: nn.Module
    parameters: tuple[str, ...]
    body: nn.Module | None


def choose_subnetwork(
    network: nn.Module, parameters: str | Callable[[str, Tensor], bool], X: Tensor
) -> Subnetwork:
    """Choose the weights that searches may move.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode.
    parameters : {"all", "linear", "last", "bias", "norm"} or callable
        "linear" is all from the first linear layer on, where the network is a chain of layers
        that can be cut there, else all; "last" is the last layer, "bias" all biases, "norm" the
        scales and shifts of normalisation layers; a callable is asked
        ``parameters(name, tensor)`` for each.
    X : Tensor of shape (n_samples, ...)
        Example inputs, on which the cut before a last layer is checked.

    Returns
    -------
    Subnetwork
        The part that moves, and the layers before it.

    Raises
    ------
    ValueError
        If no parameter is chosen, or all that are chosen are zero: step sizes are relative to
        them.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> chosen = choose_subnetwork(net, lambda name, _: name == "2.weight", torch.zeros(1, 4))
    >>> chosen.parameters
    ('2.weight',)
    """
    X = X[: rows_at_once(network)]
    if parameters == "last":
        head = split_head(network, X)
        module, body = head.module, head.body
        chosen = [name for name, p in module.named_parameters() if p.is_floating_point()]
        return Subnetwork(module, _movable(module, chosen, parameters), body)
    if parameters == "linear":
        cut = split_before_linear(network, X)
        moving = _movable(cut.module, _chosen(cut.module, "all"), parameters)
        return Subnetwork(cut.module, moving, cut.body)
    names = _chosen(network, parameters)
    _movable(network, names, parameters)
    if is_chain(network):
        order = list(network._modules)
        first = min(order.index(name.split(".")[0]) for name in names)
        if first > 0:
            rest = part_of_chain(network, slice(first, None))
            return Subnetwork(rest, tuple(names), part_of_chain(network, slice(first)))
    return Subnetwork(network, tuple(names), None)


def _chosen(network: nn.Module, parameters: str | Callable[[str, Tensor], bool]) -> list[str]:
    floating = {name: p for name, p in network.named_parameters() if p.is_floating_point()}
    if callable(parameters):
        return [name for name, p in floating.items() if parameters(name, p)]
    if parameters == "all":
        return list(floating)
    if parameters == "bias":
        return [name for name in floating if name.rpartition(".")[2] == "bias"]
    of_norms = {
        id(p)
        for layer in network.modules()
        if isinstance(layer, _NORMS)
        for p in layer.parameters()
    }
    return [name for name, p in floating.items() if id(p) in of_norms]


def _movable(
    module: nn.Module, names: list[str], parameters: str | Callable[[str, Tensor], bool]
) -> tuple[str, ...]:
    if not names:
        raise ValueError(
            f"The network has no parameters of kind {parameters!r} that a search could move; "
            f"it has {[name for name, _ in module.named_parameters()]}."
        )
    if not any(bool(module.get_parameter(name).any()) for name in names):
        raise ValueError(
            f"All parameters that a search may move are zero ({names}), and step sizes are "
            "relative to them. Choose others with `parameters`."
        )
    return tuple(names)


@stored("quam.output-bias")
class OutputBias(NamedTuple):
    """A parameter that shifts the mean that a network predicts, by the same amount everywhere.

    Attributes
    ----------
    name : str
        Its name; the first of its elements is meant.
    width : int
        How many elements it has.
    effect : float
        How much the mean grows per unit of the bias.
    """

    name: str
    width: int
    effect: float


@torch.no_grad()
def output_bias(module: nn.Module, parameters: tuple[str, ...], X: Tensor) -> OutputBias | None:
    """Find, among the parameters that move, the bias of the output layer.

    In any network, it is the last bias of as many elements as there are outputs whose first
    element shifts the predicted mean by the same amount for all inputs.

    Parameters
    ----------
    module : torch.nn.Module
        Network; it is not altered.
    parameters : tuple of str
        Names of the parameters that move.
    X : Tensor of shape (n_samples, ...)
        Example inputs.

    Returns
    -------
    OutputBias or None
        None if there is no such bias or it does not move.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1))
    >>> output_bias(net, ("0.bias", "2.weight", "2.bias"), torch.eye(2)).name
    '2.bias'
    >>> output_bias(net, ("0.bias", "2.weight"), torch.eye(2)) is None
    True
    """
    module = deepcopy(module)
    before = module(X.clone())
    step = 1 + before[:, 0].abs().max()  # large enough to be seen in single precision
    for name in reversed(parameters):
        bias = module.get_parameter(name)
        if name.rpartition(".")[2] != "bias" or bias.shape != before.shape[1:]:
            continue
        bias[0] += step
        effect = (module(X.clone())[:, 0] - before[:, 0]) / step
        bias[0] -= step
        if effect[0] != 0 and torch.allclose(effect, effect[0], rtol=1e-3, atol=0):
            return OutputBias(name, len(bias), float(effect[0]))
    return None
