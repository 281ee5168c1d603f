"""Networks whose dropout goes on after training."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from typing import Any

import torch
from sklearn.utils import gen_batches
from torch import Tensor, nn

from skuq.evidential._graphs import call_on_graph
from skuq.evidential._node_model import NodeModel
from skuq.evidential._pretrained_model import BATCH_SIZE, proba_of
from skuq.models import AdoptedModel, seeded

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_modules(network: nn.Module) -> list[nn.Module]:
    """Modules of a network that drop anything.

    Raises
    ------
    ValueError
        If there is none.
    """
    modules: list[nn.Module] = [
        part for part in network.modules() if isinstance(part, DROPOUT) and part.p > 0
    ]
    if not modules:
        raise ValueError(
            "The model has no dropout module with p > 0, so it has nothing to sample; train it "
            "with dropout, or use an ensemble."
        )
    return modules


def sample_on_graph(model: NodeModel, seeds: Iterable[int], device: torch.device) -> list[Any]:
    """Class probabilities of all nodes under random dropout.

    Each node drops units of its own, as in training.

    Parameters
    ----------
    model : NodeModel
        Model; it is copied.
    seeds : iterable of int
        One for each sample.
    device : torch.device
        Where to compute.

    Returns
    -------
    list of ndarrays of shape (n_nodes, n_classes), float64
        One for each seed.
    """
    network = deepcopy(model.module).to(device).eval()
    for module in dropout_modules(network):
        module.train()
    graph = model.graph.to(device)
    samples = []
    for seed in seeds:
        with seeded(seed), torch.no_grad():
            samples.append(proba_of(call_on_graph(network, graph).cpu()))
    return samples


def sample_on_rows(
    model: AdoptedModel, inputs: Tensor, seeds: Iterable[int], device: torch.device
) -> list[Any]:
    """Class probabilities of inputs under random dropout.

    Under each seed all inputs see the same thinned network, so that their predictions do not
    depend on which others they are made with.

    Parameters
    ----------
    model : AdoptedModel
        Model; it is copied.
    inputs : Tensor of shape (n_samples, ...)
        Inputs of its module.
    seeds : iterable of int
        One for each sample.
    device : torch.device
        Where to compute.

    Returns
    -------
    list of ndarrays of shape (n_samples, n_classes), float64
        One for each seed.
    """
    network = deepcopy(model.module).to(device).eval()
    for module in dropout_modules(network):
        module.register_forward_hook(_drop_alike)
    samples = []
    for seed in seeds:
        parts = []
        for rows in gen_batches(len(inputs), BATCH_SIZE):
            batch = inputs[rows].to(device, copy=True)
            with seeded(seed), torch.no_grad():
                parts.append(network(batch).cpu())
        samples.append(proba_of(torch.cat(parts)))
    return samples


def _drop_alike(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Drop the same units of every row; `output` is what the idle module passed on."""
    active = copy(module).train()
    mask: Tensor = active.forward(torch.ones_like(output[:1]))
    return output * mask
