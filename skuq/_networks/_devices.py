"""Devices, seeds and memory, and the evaluation of a module in batches."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import chain
from threading import Lock, get_ident
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.validation import warn_user

# Forked processes use one thread: OpenMP threads are not copied, and would be waited for forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)

# Number of weights of a network below which a step on the CPU takes less time than the launch of
# this step on a GPU.
SMALL_NETWORK = 2**15
# Maximum size of a tensor on the CPU. A step with larger tensors takes three times as long: these
# tensors do not fit into the caches, and the allocator requests new pages in each step.
_CACHED_BYTES = 16 * 2**20
# Fraction of a device's free memory for one tensor; a step needs several tensors of this size.
_SHARE = 1 / 16
_FEWEST_BYTES = 2**20  # smallest limit that is tried for a tensor before an error is raised
# Convolutional layers, and the names of the axes after the channels.
_AXES = {
    nn.Conv1d: ("length",),
    nn.Conv2d: ("height", "width"),
    nn.Conv3d: ("depth", "height", "width"),
}
_FEW = 1024  # maximum number of inputs that a GPU evaluates at once without a memory estimate

# Lock for registering hooks: torch numbers the hooks of all modules with one unlocked counter.
_REGISTERING = Lock()


def resolve_device(device: str | torch.device, network: nn.Module | None = None) -> torch.device:
    """Convert a ``device`` parameter to an available torch device; raise ValueError otherwise.

    "auto" is CUDA if it is available and the network is not small, otherwise the CPU, on which most
    work with a network of fewer than 32,768 weights is faster.
    """
    if device == "auto":
        small = network is not None and n_weights(network) < SMALL_NETWORK
        return torch.device("cuda" if torch.cuda.is_available() and not small else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"`device`={str(device)!r} cannot be used here ({str(error).splitlines()[0]}); "
            "use 'auto' or 'cpu'."
        ) from error
    return resolved


def n_weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and restore its global random state afterwards."""
    # If CUDA is not initialised, its state is not saved: saving it would initialise CUDA, which
    # costs seconds and memory in each process.
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    n_gpus = torch.cuda.device_count()
    # `torch.manual_seed` records the stack for each kind of device that is not initialised. This
    # takes longer than fitting a small model, so only the CPU is seeded if it is the only device.
    on_cpu_alone = not (n_gpus or mps_state is not None or torch.accelerator.is_available())
    try:
        with torch.random.fork_rng(devices=range(n_gpus) if started else []):
            if on_cpu_alone:
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)
            yield
    finally:
        if not (started or on_cpu_alone):
            torch.cuda.manual_seed_all(torch.initial_seed())
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)


def moved(module: Module, device: torch.device | str) -> Module:
    """Return a module if it is on a device already, else copy it there (on MPS in float32)."""
    there = torch.empty(0, device=device).device  # converts "cuda" to "cuda:0"
    tensor = next(chain(module.parameters(), module.buffers()), None)
    if tensor is None or tensor.device == there:
        return module
    copy = deepcopy(module)
    return (copy.float() if there.type == "mps" else copy).to(there)


def on_device(values: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """Return values as a tensor on a device; copy arrays; convert float64 to float32 for MPS."""
    if not torch.is_tensor(values):  # order "C", because torch accepts no negative strides
        values = torch.tensor(np.asarray(values, order="C"), device="cpu")
    tensor = values
    if torch.device(device).type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()
    return tensor.to(device)


def as_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, or in float32 on MPS, which lacks float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def free_memory(device: torch.device | str) -> int | None:
    """Return the free memory of a GPU in bytes, including torch's cache; None on the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + held)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return None


def device_with_memory(n_bytes: int, device: torch.device | str) -> torch.device:
    """Return a device if it has `n_bytes` of free memory, otherwise the CPU."""
    free = free_memory(device)
    return torch.device(device if free is None or n_bytes <= free else "cpu")


def within_memory(work: Callable[[int], T], device: torch.device | str) -> T:
    """Run work with tensors that fit into a device's memory; retry with smaller tensors if needed.

    `work` gets the maximum size of a tensor in bytes; each call must restart the work. On a GPU,
    the first size is a fraction of the free memory; on the CPU, tensors fit into the caches.
    """
    free = free_memory(device)
    n_bytes = _CACHED_BYTES if free is None else max(int(free * _SHARE), _FEWEST_BYTES)
    while True:
        try:
            return work(n_bytes)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if n_bytes <= _FEWEST_BYTES:
                raise too_little_memory(device, error) from error
            n_bytes = max(n_bytes // 2, _FEWEST_BYTES)
        # Restart outside the handler, because the error keeps tensors of the failed call alive.
        warn_user(
            f"The memory of {device} ran out; restarting with tensors of at most "
            f"{n_bytes / 2**20:.0f} MiB."
        )


def too_little_memory(
    device: torch.device | str,
    error: BaseException,
    advice: str = "search fewer weights or fewer models",
) -> torch.OutOfMemoryError:
    """Create an out-of-memory error that says what to do."""
    return torch.OutOfMemoryError(
        f"The memory of {device} does not suffice, even for small batches: "
        f"{str(error).splitlines()[0]} Use device='cpu', or {advice}."
    )


def is_out_of_memory(error: BaseException) -> bool:
    words = ("out of memory", "_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in words)


def is_of_device(error: BaseException) -> bool:
    """Whether a torch error is caused by a device, not by invalid arguments."""
    words = ("CUDA error", "CUBLAS_", "CUSOLVER_", "cuDNN error", "MPS backend", "same device")
    return is_out_of_memory(error) or any(each in str(error) for each in words)


class HeldOnDevice(ABC):
    """Base class of objects that cache a copy on the last device used; pickles omit the copy."""

    __slots__ = ("_held",)  # a slot, so that it is in neither `vars` nor the fields of dataclasses

    @abstractmethod
    def _copy_to(self, device: torch.device) -> Any:
        """Create the copy on a device."""

    def on(self, device: torch.device | str) -> Any:
        """Return the cached copy on a device; create it if necessary."""
        there = torch.empty(0, device=device).device
        held = getattr(self, "_held", None)
        if held is None or held[0] != there:
            try:
                held = there, self._copy_to(there)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise too_little_memory(there, error) from error
            object.__setattr__(self, "_held", held)
        return held[1]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


def evaluate(
    module: nn.Module,
    inputs: Tensor,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
) -> Tensor:
    """Evaluate a module without gradients, in batches to limit memory use; outputs are on the CPU.

    By default, batches have `rows_at_once` inputs on the CPU, and fit into free memory on a GPU.
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
    """Return the size in bytes of the largest tensor among `x` and all layers' outputs for `x`."""
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

    `hook` gets the layer, its positional arguments and its output; with `before`, it runs before
    the layer and gets named arguments, not the output. Other threads may use the same layers.
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
    """Return the maximum batch size: the smallest ``rows_at_once`` of a module and its parts."""
    return min(getattr(each, "rows_at_once", 1024) for each in module.modules())


def input_error(module: nn.Module, shape: Sequence[int], error: Exception) -> ValueError:
    """Create an error, with the expected shape, for inputs that a module cannot process."""
    convolutions = (layer for layer in module.modules() if isinstance(layer, tuple(_AXES)))
    first: Any = next(convolutions, None)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, IndexError):
        reason += "; an id has no embedding, or inputs are longer than the network accepts"
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
