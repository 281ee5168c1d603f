"""Evaluation of a module in batches."""

from __future__ import annotations

from copy import deepcopy

import torch
from sklearn.utils import gen_batches
from torch import Tensor, nn


def evaluate(
    module: nn.Module, inputs: Tensor, *, device: torch.device | str = "cpu", batch_size: int = 1024
) -> Tensor:
    """Evaluate a module without gradients, in batches that bound memory.

    Parameters
    ----------
    module : torch.nn.Module
        Module on the CPU; it stays there.
    inputs : Tensor of shape (n_samples, ...)
        Inputs on the CPU.
    device : torch.device or str, default="cpu"
        Where to compute.
    batch_size : int, default=1024
        Samples per batch.

    Returns
    -------
    Tensor of shape (n_samples, ...)
        Outputs on the CPU.
    """
    if torch.device(device).type != "cpu":
        module = deepcopy(module).to(device)
    with torch.no_grad():
        batches = gen_batches(len(inputs), batch_size)
        # Copies, because a module may alter its input in place.
        return torch.cat([module(inputs[rows].to(device, copy=True)).cpu() for rows in batches])
