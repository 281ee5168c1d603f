"""Devices: which one computes, what it can compute, and what fits into its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.validation import warn_user

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)

# Below this many weights a CPU has computed a step before a GPU has been told of it.
SMALL_NETWORK = 2**15
# Of a tensor on the CPU: larger ones leave its caches, and the allocator asks the system for fresh
# pages at every step, which takes three times as long.
_CACHED_BYTES = 16 * 2**20
# Share of a device's free memory that one tensor may take: a step holds several of its size.
_SHARE = 1 / 16
_FEWEST_BYTES = 2**20  # of a tensor: less does not help where memory is short


def resolve_device(device: str | torch.device, network: nn.Module | None = None) -> torch.device:
    """Turn a ``device`` parameter into a usable torch device.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` takes CUDA if there is one and the network is not small, and the CPU otherwise;
        anything else is a torch device name.
    network : torch.nn.Module, default=None
        What is to be computed there. With fewer than 32,768 weights it is small, and the CPU is
        faster. None is not.

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
    >>> resolve_device("auto", nn.Linear(3, 2))
    device(type='cpu')
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
    """Number of weights of a network."""
    return sum(parameter.numel() for parameter in network.parameters())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and leave its global random state as it was."""
    # A GPU that nobody has used yet is not asked for its state: that would start CUDA, which takes
    # seconds and memory in each process.
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else []):
            torch.manual_seed(seed)
            yield
    finally:
        if not started:
            torch.cuda.manual_seed_all(torch.initial_seed())
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)


def moved(module: Module, device: torch.device | str) -> Module:
    """Return a copy of a module on another device, or the module itself if it is there.

    On MPS, which lacks float64, the copy is one in float32.
    """
    there = torch.empty(0, device=device).device  # "cuda" is "cuda:0", for instance
    tensor = next(chain(module.parameters(), module.buffers()), None)
    if tensor is None or tensor.device == there:
        return module
    copy = deepcopy(module)
    return (copy.float() if there.type == "mps" else copy).to(there)


def on_device(values: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """Return values as a tensor on a device; float64 becomes float32 on MPS, which lacks it.

    A tensor that is there already is returned itself; that of an array never shares its memory.
    """
    tensor = values if torch.is_tensor(values) else torch.tensor(np.asarray(values), device="cpu")
    if torch.device(device).type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()
    return tensor.to(device)


def as_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, or in float32 on MPS, which lacks it."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def free_memory(device: torch.device | str) -> int | None:
    """Return the bytes that a computation may still take on a GPU; None on the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + held)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return None


def within_memory(work: Callable[[int], T], device: torch.device | str) -> T:
    """Do work in pieces that fit into the memory of a device, and in smaller ones if they do not.

    Parameters
    ----------
    work : callable
        Called with the number of bytes that a single tensor may take; it starts anew if it is
        called again.
    device : torch.device or str
        Where it computes. On a GPU the first number is a share of its free memory; on the CPU it
        is one that its caches hold.

    Returns
    -------
    object
        What `work` returned.

    Raises
    ------
    torch.OutOfMemoryError
        If even small pieces do not fit.

    Warns
    -----
    UserWarning
        If the work starts anew.

    Examples
    --------
    >>> within_memory(lambda n_bytes: n_bytes, "cpu")
    16777216
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
        # Outside of the handler: the error holds on to the tensors that did not fit.
        warn_user(
            f"The memory of {device} ran out; starting again with tensors of at most "
            f"{n_bytes / 2**20:.0f} MiB."
        )


def too_little_memory(
    device: torch.device | str,
    error: BaseException,
    advice: str = "let fewer weights move or fewer models be searched",
) -> torch.OutOfMemoryError:
    """Describe an error of memory with what to do."""
    return torch.OutOfMemoryError(
        f"The memory of {device} does not suffice, in small pieces neither: "
        f"{str(error).splitlines()[0]} Use device='cpu', or {advice}."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch says that a device's memory ran out."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in text for words in ("out of memory", "_STATUS_ALLOC_FAILED")
    )


def is_of_device(error: BaseException) -> bool:
    """Tell whether an error of torch comes from a device, and not from what was asked of it."""
    text = str(error)
    return is_out_of_memory(error) or any(
        words in text
        for words in (
            "CUDA error",
            "CUBLAS_",
            "CUSOLVER_",
            "cuDNN error",
            "MPS backend",
            "same device",
        )
    )


class HeldOnDevice(ABC):
    """Base of immutable objects that keep a copy of what they hold on the device last used.

    The copy is neither copied, pickled nor saved along.
    """

    __slots__ = ("_held",)  # not among the fields of a dataclass

    @abstractmethod
    def _copy_to(self, device: torch.device) -> Any:
        """Return what is kept, on a device."""

    def on(self, device: torch.device | str) -> Any:
        """Return what is kept on a device, uploaded if it is not there yet."""
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
