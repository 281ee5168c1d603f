"""Training of a network that computes on a whole graph at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from skorch.callbacks import Callback
from torch import Tensor, nn

from skuq.evidential._graphs import NodeGraph
from skuq.evidential._labelled import Labelled
from skuq.evidential._training_parameters import Samples
from skuq.models import TrainingSettings, train


class TrainedOnGraph(NamedTuple):
    """Result of a training.

    Attributes
    ----------
    network : torch.nn.Module
        The trained network, called with a `NodeGraph`.
    history : skorch.history.History
        Losses of each epoch.
    outputs : Tensor of shape (n_nodes, n_outputs), float64
        Outputs for all nodes.
    """

    network: nn.Module
    history: Any
    outputs: Tensor


class OnNodes(nn.Module):
    """Outputs of a network over a graph at some of its nodes."""

    def __init__(self, network: nn.Module, graph: NodeGraph):
        super().__init__()
        self.network = network
        self.graph = graph

    def forward(self, nodes: Tensor) -> Any:
        return self.network(self.graph)[nodes]


def node_samples(labelled: Labelled) -> Samples:
    """Node ids, weights and codes in the form that the training takes."""
    return Samples({"inputs": labelled.rows, "weight": labelled.weight}, labelled.codes)


def fit_on_graph(
    network: nn.Module,
    criterion: nn.Module,
    graph: NodeGraph,
    training: Samples,
    validation: Labelled | None,
    *,
    settings: TrainingSettings,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> TrainedOnGraph:
    """Train a network over a graph, and evaluate it on all nodes.

    Parameters
    ----------
    network : torch.nn.Module
        Called with a `NodeGraph`; trained in place.
    criterion : torch.nn.Module
        Called with outputs, codes and inputs of the samples.
    graph : NodeGraph
        Graph.
    training : Samples
        Node ids as inputs, and their codes.
    validation : Labelled or None
        Nodes for early stopping.
    settings : TrainingSettings
        Settings of the training, with a device that `graph_device` returned.
    seed : int
        Randomness of dropout.
    callbacks : sequence of skorch callbacks, default=()
        Callbacks of the method, besides those in `settings`.

    Returns
    -------
    TrainedOnGraph

    Raises
    ------
    ValueError
        If the training diverges.
    """
    device = torch.device(settings.device)
    on_device = graph.to(device)
    trained, history = train(
        OnNodes(network, on_device),
        criterion,
        *training,
        validation=None if validation is None else node_samples(validation),
        settings=settings,
        seed=seed,
        callbacks=callbacks,
    )
    network = trained.network  # type: ignore[assignment]
    with torch.no_grad():
        outputs = network.to(device)(on_device).cpu().double()
    return TrainedOnGraph(network.cpu(), history, outputs)
