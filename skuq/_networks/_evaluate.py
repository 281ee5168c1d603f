"""Evaluation of a module in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from skuq._networks._devices import is_out_of_memory, moved, on_device, within_memory

# Convolutional layers, and the names of the axes after the channels.
_AXES = {
    nn.Conv1d: ("length",),
    nn.Conv2d: ("height", "width"),
    nn.Conv3d: ("depth", "height", "width"),
}
_FEW = 1024  # number of inputs that a GPU evaluates at once without a memory estimate

# Lock for registering hooks: torch numbers the hooks of all modules with one unlocked counter.
_REGISTERING = Lock()


def evaluate(
    module: nn.Module,
    inputs: Tensor,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
) -> Tensor:
    """Evaluate a module without gradients, in batches to limit memory use; outputs are on the CPU.

    `batch_size` None: on the CPU `rows_at_once`; on a GPU as many samples as fit into free memory.
    """
    module = moved(module, device)
    if batch_size is not None or torch.device(device).type == "cpu":
        return _in_batches(module, inputs, device, batch_size or rows_at_once(module))
    if len(inputs) <= _FEW:
        try:
            return _in_batches(module, inputs, device, len(inputs))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise

    def in_batches(n_bytes: int) -> Tensor:
        of_one = largest_activation(module, on_device(inputs[:1], device))
        return _in_batches(module, inputs, device, max(1, n_bytes // of_one))

    return within_memory(in_batches, device)


@torch.no_grad()
def _in_batches(module: nn.Module, inputs: Tensor, device: torch.device | str, size: int) -> Tensor:
    # Copy the batches, because a module may alter its input in place.
    batches = (on_device(batch.clone(), device) for batch in torch.split(inputs, max(size, 1)))
    outputs = torch.cat([_checked_output(module, module(batch)).cpu() for batch in batches])
    return outputs.double() if inputs.dtype == torch.float64 else outputs


@torch.no_grad()
def largest_activation(module: nn.Module, x: Tensor) -> int:
    """Size in bytes of the largest tensor among `x` and all layers' outputs for `x`."""
    sizes = [x.nbytes]

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    with forward_hooks(module.modules(), note):
        module(x.clone())
    return max(sizes)


@contextmanager
def forward_hooks(
    layers: Iterable[nn.Module],
    hook: Callable[[nn.Module, Any, Any], None],
    *,
    before: bool = False,
) -> Iterator[None]:
    """Inside the block, call `hook` in all forward passes of some layers, in this thread only.

    It gets the layer, its positional arguments, and its output or, `before` the layer runs, its
    named arguments. Other threads may use the same layers.
    """
    thread = get_ident()

    # `other` has a default: a thread that reads torch's list of hooks while this thread writes it
    # may call the function below without the layer's named arguments.
    def in_own_thread(layer: nn.Module, inputs: Any, other: Any = None) -> None:
        if get_ident() == thread:
            hook(layer, inputs, other)

    with _REGISTERING:
        handles = [
            layer.register_forward_pre_hook(in_own_thread, with_kwargs=True)
            if before
            else layer.register_forward_hook(in_own_thread)
            for layer in layers
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _checked_output(module: nn.Module, output: Any) -> Tensor:
    """Return the output of a module; raise TypeError if it is not one tensor."""
    if isinstance(output, Tensor):
        return output
    fields = f" with the keys {list(output)}" if isinstance(output, Mapping) else ""
    raise TypeError(
        f"{type(module).__name__} must return one tensor, of logits or predictions, but it "
        f"returned a {type(output).__name__}{fields}. Wrap it in a module that selects the tensor, "
        "or return the tensor as 'logits' in a dictionary."
    )


def rows_at_once(module: nn.Module) -> int:
    """Batch size that limits memory: the smallest attribute ``rows_at_once`` of the modules."""
    return min(getattr(each, "rows_at_once", 1024) for each in module.modules())


def input_error(module: nn.Module, shape: Sequence[int], error: Exception) -> ValueError:
    """An error for inputs that a module cannot process, with the expected shape."""
    convolutions = (layer for layer in module.modules() if isinstance(layer, tuple(_AXES)))
    first: Any = next(convolutions, None)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    problem = f"{type(module).__name__} cannot be evaluated on inputs of shape {tuple(shape)}"
    axes = next((axes for kind, axes in _AXES.items() if isinstance(first, kind)), ())
    if first is None or len(shape) == 2 + len(axes):
        return ValueError(f"{problem}: {reason}")
    kind, channels = type(first).__name__, first.in_channels
    sizes = [math.isqrt(math.prod(shape[1:]) // channels)] * len(axes)
    fits = len(axes) == 2 and channels * math.prod(sizes) == math.prod(shape[1:])
    numbers = ", ".join(map(str, sizes if fits else axes))
    return ValueError(
        f"{problem}: its {kind} needs shape (n_samples, {channels}, {', '.join(axes)}). Reshape "
        f"the inputs, X.reshape(len(X), {channels}, {numbers}), or add "
        f"nn.Unflatten(1, ({channels}, {numbers})) before the network."
    )
