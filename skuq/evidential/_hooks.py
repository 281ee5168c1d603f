"""Reading the hidden representation of a network by hooks, without touching it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Layer = int | str


def with_hidden(
    network: nn.Module, run: Callable[[], Tensor], layer: Layer
) -> tuple[Tensor, Tensor]:
    """Evaluate a network and keep what one of its layers holds.

    Parameters
    ----------
    network : torch.nn.Module
        Network.
    run : callable
        Evaluates it and returns its logits of shape (n_samples, n_classes).
    layer : int or str
        -1 for the logits, -2 for what the last layer with a weight matrix is given, -3 for
        the one before, and so on; or the name of a module, for its output.

    Returns
    -------
    logits : Tensor of shape (n_samples, n_classes)
        Output.
    hidden : Tensor of shape (n_samples, n_hidden)
        Representation; further axes are flattened.

    Raises
    ------
    ValueError
        If there is no such layer, or what it holds is not one row per sample.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> logits, hidden = with_hidden(net, lambda: net(torch.zeros(5, 4)), -2)
    >>> hidden.shape
    torch.Size([5, 8])
    """
    if layer == -1:
        logits = run()
        return logits, logits
    by_name = isinstance(layer, str)
    position = 1 if by_name else -layer - 1  # type: ignore[operator]
    seen: deque[Any] = deque(maxlen=position)
    if by_name:
        handles = [_named(network, str(layer)).register_forward_hook(_keep_output(seen))]
    else:
        handles = [
            module.register_forward_pre_hook(_keep_input(seen), with_kwargs=True)
            for module in network.modules()
            if _has_matrix(module)
        ]
    try:
        logits = run()
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) < position:
        raise ValueError(
            f"`layer`={layer!r}: the network ran through {len(seen)} such layers; name a module "
            f"instead, one of {_names(network)}."
        )
    return logits, _rows(seen[0], len(logits), layer)


def _named(network: nn.Module, name: str) -> nn.Module:
    modules = dict(network.named_modules())
    if name not in modules or not name:
        raise ValueError(
            f"`layer`={name!r}: the network has no such module; its modules are {_names(network)}."
        )
    return modules[name]


def _names(network: nn.Module) -> str:
    return ", ".join(name for name, _ in network.named_modules() if name)


def _has_matrix(module: nn.Module) -> bool:
    """Whether it is a layer with weights itself: neither a container nor a normalisation."""
    leaf = not any(True for _ in module.children())
    return leaf and any(parameter.ndim > 1 for parameter in module.parameters())


def _keep_input(seen: deque[Any]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [*inputs, *named.values()]  # some layers are given a graph first
        seen.append(_copy(next((x for x in given if isinstance(x, Tensor)), given[0])))

    return hook


def _keep_output(seen: deque[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: seen.append(_copy(output))


def _copy(value: Any) -> Any:
    """A copy, because what runs next may alter its input in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _rows(hidden: Any, n_samples: int, layer: Layer) -> Tensor:
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or len(hidden) != n_samples:
        found = tuple(hidden.shape) if hasattr(hidden, "shape") else type(hidden).__name__
        raise ValueError(
            f"`layer`={layer!r} must hold a tensor with one row for each of {n_samples} samples, "
            f"got {found}."
        )
    return hidden.flatten(1)
