"""Devices, seeds, and the evaluation of a module in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

# Layers that take channels, and the axes after them.
_AXES = {
    nn.Conv1d: ("length",),
    nn.Conv2d: ("height", "width"),
    nn.Conv3d: ("depth", "height", "width"),
}


def resolve_device(device: str | torch.device) -> torch.device:
    """Turn a ``device`` parameter into a usable torch device.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` takes CUDA if there is one and the CPU otherwise; anything else is
        a torch device name.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        If the name is not one torch knows, or the device is not present here.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"`device`={str(device)!r} cannot be used here ({str(error).splitlines()[0]}); "
            "use 'auto' or 'cpu'."
        ) from error
    return resolved


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and leave its global random state as it was."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


def evaluate(
    module: nn.Module,
    inputs: Tensor,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
) -> Tensor:
    """Evaluate a module without gradients, in batches that bound memory.

    Parameters
    ----------
    module : torch.nn.Module
        Module; it is copied if it is on another device.
    inputs : Tensor of shape (n_samples, ...)
        Inputs.
    device : torch.device or str, default="cpu"
        Where to compute.
    batch_size : int, default=None
        Samples per batch; None is what `rows_at_once` tells.

    Returns
    -------
    Tensor of shape (n_samples, ...)
        Outputs on the CPU.

    Raises
    ------
    TypeError
        If the module returns anything but one tensor.
    """
    module = moved(module, device)
    size = rows_at_once(module) if batch_size is None else batch_size
    with torch.no_grad():
        # Copies, because a module may alter its input in place.
        batches = (
            inputs[start : start + size].to(device, copy=True)
            for start in range(0, len(inputs), size)
        )
        return torch.cat([_checked_output(module, module(batch)).cpu() for batch in batches])


def _checked_output(module: nn.Module, output: Any) -> Tensor:
    """What a module returned; an error if it is not one tensor."""
    if isinstance(output, Tensor):
        return output
    fields = f" with the keys {list(output)}" if isinstance(output, Mapping) else ""
    raise TypeError(
        f"{type(module).__name__} must return one tensor, of logits or predictions, but it "
        f"returned a {type(output).__name__}{fields}. Wrap it in a module that picks the tensor."
    )


def rows_at_once(module: nn.Module) -> int:
    """Inputs that a module should evaluate at once, which bounds memory.

    Parameters
    ----------
    module : torch.nn.Module
        Network. A module inside with an attribute ``rows_at_once`` asks for fewer than usual.

    Returns
    -------
    int
    """
    return min(getattr(each, "rows_at_once", 1024) for each in module.modules())


def input_error(module: nn.Module, shape: Sequence[int], error: Exception) -> ValueError:
    """Describe inputs that a module refused, with the shape that its first layer takes.

    Parameters
    ----------
    module : torch.nn.Module
        Network.
    shape : sequence of int
        Shape of the inputs; the first number is that of the samples.
    error : Exception
        What the module raised.

    Returns
    -------
    ValueError
        To be raised from `error`.
    """
    convolutions = (layer for layer in module.modules() if isinstance(layer, tuple(_AXES)))
    first: Any = next(convolutions, None)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    said = f"{type(module).__name__} cannot be evaluated on inputs of shape {tuple(shape)}"
    axes = next((axes for kind, axes in _AXES.items() if isinstance(first, kind)), ())
    if first is None or len(shape) == 2 + len(axes):
        return ValueError(f"{said}: {reason}")
    kind, channels = type(first).__name__, first.in_channels
    sizes = [math.isqrt(math.prod(shape[1:]) // channels)] * len(axes)
    fits = len(axes) == 2 and channels * math.prod(sizes) == math.prod(shape[1:])
    numbers = ", ".join(map(str, sizes if fits else axes))
    return ValueError(
        f"{said}: its {kind} takes shape (n_samples, {channels}, {', '.join(axes)}). Reshape the "
        f"inputs, X.reshape(len(X), {channels}, {numbers}), or put "
        f"nn.Unflatten(1, ({channels}, {numbers})) in front of the network."
    )


def moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Return a copy of a module on another device, or the module itself if it is there."""
    there = torch.empty(0, device=device).device  # "cuda" is "cuda:0", for instance
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return module if tensor is None or tensor.device == there else deepcopy(module).to(there)
