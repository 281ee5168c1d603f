"""Dropout masks that are the same for all inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skuq.models import AdoptedModel

_UNITS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_modules(network: nn.Module) -> list[nn.Module]:
    """Find the modules of a network that drop anything.

    Parameters
    ----------
    network : torch.nn.Module
        Network.

    Returns
    -------
    list of torch.nn.Module
        Its modules of type `Dropout`, `Dropout1d`, `Dropout2d` and `Dropout3d` with p > 0.

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> dropout_modules(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Dropout(0.0)))
    [Dropout(p=0.1, inplace=False)]
    """
    modules: list[nn.Module] = [
        part for part in network.modules() if isinstance(part, _UNITS + _CHANNELS) and part.p > 0
    ]
    if not modules:
        raise ValueError(
            "The model has no dropout module with p > 0, so there is nothing to sample. Train "
            "it with torch.nn.Dropout (or Dropout1d, Dropout2d, Dropout3d), pass "
            "estimator=None for a default network that has it, or use another method."
        )
    return modules


def masked_outputs(
    model: AdoptedModel,
    inputs: Tensor,
    *,
    n_samples: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Evaluate a model under random dropout masks.

    A mask drops the same units for all inputs, be they rows, images or nodes of a graph, so
    that the outputs for one input do not depend on the others.

    Parameters
    ----------
    model : AdoptedModel
        Model with dropout modules, of rows or of nodes. Inputs must run along the first axis
        of what these modules see.
    inputs : Tensor of shape (n_inputs, ...)
        Inputs of its module, on the CPU.
    n_samples : int
        Number of masks.
    seed : int
        Decides them; more masks extend fewer.
    device : torch.device or str, default="cpu"
        Where to compute.

    Returns
    -------
    Tensor of shape (n_inputs, n_samples, n_outputs)
        Outputs on the CPU.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.

    Examples
    --------
    >>> model = AdoptedModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).eval())
    >>> masked_outputs(model, torch.ones(2, 4), n_samples=5, seed=0).shape
    torch.Size([2, 5, 3])
    """
    masked = replace(model, module=deepcopy(model.module)).to(device)
    inputs = inputs.to(masked.device)
    generator = torch.Generator()
    for module in dropout_modules(masked.module):
        module.register_forward_hook(_drop_with(generator))
    outputs = []
    with torch.no_grad():
        for mask_seed in np.random.RandomState(seed).randint(2**31 - 1, size=n_samples):
            generator.manual_seed(int(mask_seed))
            outputs.append(masked.one_pass(inputs))
    return torch.stack(outputs, dim=1).cpu()


def _drop_with(generator: torch.Generator) -> Callable[[Any, Any, Tensor], Tensor]:
    def drop(module: Any, _: Any, output: Tensor) -> Tensor:
        # `output` is what the module, in evaluation mode, has passed on.
        units = output.shape[1:2] if isinstance(module, _CHANNELS) else output.shape[1:]
        ones = (1,) * (output.ndim - 1 - len(units))
        keep = 1.0 - module.p
        mask = torch.empty(1, *units, *ones, dtype=output.dtype)
        mask.bernoulli_(keep, generator=generator).div_(keep or 1.0)
        return output * mask.to(output.device)

    return drop
