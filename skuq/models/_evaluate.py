"""Evaluation of a module in batches."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn


def evaluate(
    module: nn.Module, inputs: Tensor, *, device: torch.device | str = "cpu", batch_size: int = 1024
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
    batch_size : int, default=1024
        Samples per batch.

    Returns
    -------
    Tensor of shape (n_samples, ...)
        Outputs on the CPU.
    """
    module = moved(module, device)
    with torch.no_grad():
        # Copies, because a module may alter its input in place.
        batches = (
            inputs[start : start + batch_size].to(device, copy=True)
            for start in range(0, len(inputs), batch_size)
        )
        return torch.cat([module(batch).cpu() for batch in batches])


def moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Return a copy of a module on another device, or the module itself if it is there."""
    there = torch.empty(0, device=device).device  # "cuda" is "cuda:0", for instance
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return module if tensor is None or tensor.device == there else deepcopy(module).to(there)
