"""Networks from which dropout has removed units, the same for all inputs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

_UNITS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_layers(network: nn.Module) -> list[nn.Module]:
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
    >>> dropout_layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Dropout(0.0)))
    [Dropout(p=0.1, inplace=False)]
    """
    layers: list[nn.Module] = [
        part for part in network.modules() if isinstance(part, _UNITS + _CHANNELS) and part.p > 0
    ]
    if not layers:
        raise ValueError(
            "The model has no dropout module with p > 0, so there is nothing to sample. Train "
            "it with torch.nn.Dropout (or Dropout1d, Dropout2d, Dropout3d), pass "
            "estimator=None for a default network that has it, or use another method."
        )
    return layers


def thinned_outputs(
    network: nn.Module, X: Tensor, *, n_samples: int, seed: int, device: torch.device
) -> Tensor:
    """Evaluate a network under random dropout.

    Each sample is one network with some units removed, which all inputs see, so that its
    outputs do not depend on which inputs it is evaluated on.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode with dropout modules; it is copied. Batches must run along
        the first axis of what these modules see.
    X : Tensor of shape (n_points, ...)
        Inputs on the CPU.
    n_samples : int
        Number of thinned networks.
    seed : int
        Decides which units they lack.
    device : torch.device
        Where to compute.

    Returns
    -------
    Tensor of shape (n_points, n_samples, n_outputs)
        Outputs on the CPU.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.

    Examples
    --------
    >>> net = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    >>> X, cpu = torch.ones(2, 4), torch.device("cpu")
    >>> thinned_outputs(net, X, n_samples=5, seed=0, device=cpu).shape
    torch.Size([2, 5, 3])
    """
    generator = torch.Generator().manual_seed(seed)

    def drop_alike(module: Any, _: Any, output: Tensor) -> Tensor:
        # `output` is what the idle module passed on.
        units = output.shape[1:2] if isinstance(module, _CHANNELS) else output.shape[1:]
        ones = (1,) * (output.ndim - 1 - len(units))
        keep = 1.0 - module.p
        mask = torch.empty(1, *units, *ones, dtype=output.dtype)
        mask.bernoulli_(keep, generator=generator).div_(keep or 1.0)
        return output * mask.to(output.device)

    network = deepcopy(network).to(device)
    for layer in dropout_layers(network):
        layer.register_forward_hook(drop_alike)
    X = X.to(device)
    with torch.no_grad():
        # Copies, because a module may alter its input in place.
        return torch.stack([network(X.clone()) for _ in range(n_samples)], dim=1).cpu()
