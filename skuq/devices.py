"""Torch devices and modes, and available memory; torch is imported only if a GPU is involved."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy, deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from skuq.wrappers import is_instance_of, is_module

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


@contextmanager
def with_gradients() -> Iterator[None]:
    """Compute gradients, and create tensors on the CPU, whatever modes of torch the user has set.

    For methods that train or search: users may call these inside `torch.no_grad` or
    `torch.inference_mode`, or after `torch.set_default_device`.
    """
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        if torch is not None and torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch is not None and not torch.is_grad_enabled():  # also in inference mode
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
        yield


class DeviceMixin:
    """Mixin for estimators that may contain networks and may have a parameter ``device``.

    Pickles contain CPU copies of the user's networks. If the device of a fitted estimator is not
    available on loading, its ``device`` is set to "auto", with a warning.
    """

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()  # None if the estimator has no attributes
        held = {name: (value, on_cpu(value)) for name, value in (state or {}).items()}
        return {
            name: value if copied is value else _PickledOnCPU(value, copied)
            for name, (value, copied) in held.items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            {name: v.value if isinstance(v, _PickledOnCPU) else v for name, v in state.items()}
        )
        fitted = any(name.endswith("_") and not name.startswith("_") for name in state)
        device = state.get("device", "auto")
        if fitted and not _is_available(str(device)):
            vars(self)["device"] = "auto"
            warnings.warn(
                f"{type(self).__name__} was fitted with device={str(device)!r}, which is not "
                "available here; its parameter `device` is now 'auto'.",
                stacklevel=3,
            )


class _PickledOnCPU:
    """Attribute of an estimator, with the CPU copy that is pickled in its place."""

    def __init__(self, value: Any, copied: Any = None):
        self.value, self.copied = value, copied

    def __deepcopy__(self, memo: dict[int, Any]) -> _PickledOnCPU:
        return _PickledOnCPU(deepcopy(self.value, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _PickledOnCPU, (self.copied,)


def on_cpu(value: Any) -> Any:
    """Copy modules and estimators, also in containers, to the CPU unless they are there already."""
    if is_module(value):
        tensors = chain(value.parameters(), value.buffers())
        there = all(tensor.device.type == "cpu" for tensor in tensors)
        return value if there else deepcopy(value).cpu()
    if type(value) in (list, tuple):
        items = [on_cpu(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if type(value) is dict:
        changed = {key: on_cpu(item) for key, item in value.items()}
        return value if all(map(operator.is_, changed.values(), value.values())) else changed
    if not hasattr(value, "get_params") or isinstance(value, type | DeviceMixin):
        return value
    # Of a skorch net, change only constructor parameters: skorch loads trained modules on the CPU
    # itself where CUDA is missing.
    is_net = is_instance_of(value, "skorch", "NeuralNet")
    held = value.get_params(deep=False) if is_net else vars(value)
    moved = {name: on_cpu(item) for name, item in held.items()}
    changes = {name: item for name, item in moved.items() if item is not held[name]}
    if not changes:
        return value
    twin = copy(value)
    vars(twin).update(changes)
    return twin


def _is_available(device: str) -> bool:
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "mps"):
        return True
    import torch

    if kind == "mps":
        return torch.backends.mps.is_available()
    return torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count()


def available_memory() -> int:
    """Return how many more bytes this process may use on this machine and within its limits."""
    found = [psutil.virtual_memory().available]
    group = Path("/sys/fs/cgroup")  # limit of a Linux container, which psutil ignores
    try:
        files = (group / name for name in ("memory.max", "memory.current", "memory.stat"))
        most, used, lines = (file.read_text(encoding="utf-8") for file in files)
        stat = dict(line.split() for line in lines.splitlines())
        cached = int(stat["inactive_file"]) + int(stat["active_file"])  # memory that can be freed
        found.append(int(most) - int(used) + cached)
    except (OSError, ValueError):  # not in a container, or the limit is "max": no limit
        pass
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            found.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(found))
