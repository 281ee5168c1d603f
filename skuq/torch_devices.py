"""Devices and gradient modes of torch; torch is imported only if a GPU is involved.

An estimator with a network on a GPU can be pickled and used on a machine without a GPU. Methods
ignore the user's ``torch.set_default_device``. They also ignore ``torch.inference_mode`` and
``torch.no_grad``, because many methods need gradients.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy, deepcopy
from itertools import chain
from types import FunctionType
from typing import Any

from skuq.input_errors import name_places
from skuq.wrappers import is_instance_of, is_module


class DeviceMixin:
    """Mixin for estimators that may contain networks and may have a parameter ``device``.

    Public methods create tensors on the CPU regardless of `torch.set_default_device`, and compute
    gradients even inside `torch.inference_mode` and `torch.no_grad`. Pickles contain CPU copies
    of the user's networks. If the device of a fitted estimator is not available on loading, its
    ``device`` is set to "auto", with a warning.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            if not name.startswith("_") and _needs_wrapping(method):
                setattr(cls, name, _with_default_torch_modes(name_places(method)))

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


def _needs_wrapping(method: Any) -> bool:
    """Whether a method needs wrapping: it is not scikit-learn's and not wrapped already."""
    return (
        isinstance(method, FunctionType)
        and method.__module__.split(".")[0] != "sklearn"
        and not hasattr(method, "_with_default_torch_modes")
    )


def _with_default_torch_modes(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return method(*args, **kwargs)
        with ExitStack() as stack:
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            if not torch.is_grad_enabled():  # inference mode disables gradients, too
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.enable_grad())
            return method(*args, **kwargs)

    call._with_default_torch_modes = True  # type: ignore[attr-defined]
    return call


class _PickledOnCPU:
    """Attribute of an estimator, with the CPU copy that is pickled in its place."""

    def __init__(self, value: Any, copied: Any = None):
        self.value, self.copied = value, copied

    def __deepcopy__(self, memo: dict[int, Any]) -> _PickledOnCPU:
        return _PickledOnCPU(deepcopy(self.value, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _PickledOnCPU, (self.copied,)


def on_cpu(value: Any) -> Any:
    """Return a copy with all networks on the CPU; the value itself if they already are on the CPU.

    Parameters
    ----------
    value : object
        Module, estimator that contains one, or list, tuple or dict of such objects.

    Returns
    -------
    object
    """
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
    # When a skorch net is pickled, it moves its trained modules to the CPU itself. Only the
    # parameters of the net are moved here.
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
    """Whether a device is available; always True for devices other than GPUs."""
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "mps"):
        return True
    import torch

    if kind == "mps":
        return torch.backends.mps.is_available()
    return torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count()
