"""Trained graph networks in the form of adopted models."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.evidential._graphs import NodeGraph, call_on_graph, checked_nodes, graph_device
from skuq.models import AdoptedModel


@dataclass(frozen=True, kw_only=True)
class NodeModel(AdoptedModel):
    """A trained graph network; its inputs are node ids.

    Attributes
    ----------
    graph : NodeGraph
        Graph that the module is called with.
    """

    graph: NodeGraph
    at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.transform is not None:
            raise TypeError(
                "A model of nodes takes node ids, so there can be no transformer before it."
            )

    @property
    def device(self) -> torch.device:
        """Device of the graph and the network."""
        return self.graph.device

    def to(self, device: torch.device | str) -> Self:
        """Return the model with its network and its graph on a device."""
        device = graph_device(device)
        return replace(super().to(device), graph=self.graph.to(device))

    def inputs(self, X: Any) -> Tensor:
        """Turn node ids into a tensor."""
        return torch.as_tensor(checked_nodes(X, self.graph.n_nodes))

    def one_pass(self, inputs: Tensor) -> Tensor:
        """Evaluate the network on all nodes, and return its logits at some of them."""
        return call_on_graph(self.module, self.graph)[inputs]

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Evaluate the network without gradients."""
        there = self.to(device)
        with torch.no_grad():
            return there.one_pass(inputs.to(there.device)).cpu()

    def followed_by(self, layer: nn.Module) -> Self:
        """Return the model with a further layer on its outputs."""
        return replace(self, module=_Followed(self.module, layer).eval())


class _Followed(nn.Sequential):
    """A graph network and a layer on its outputs."""

    takes_node_graph = True

    def forward(self, graph: NodeGraph) -> Tensor:
        network, layer = self
        outputs: Tensor = layer(call_on_graph(network, graph))
        return outputs


def node_model(network: nn.Module, graph: NodeGraph, classes: NDArray[Any] | None) -> NodeModel:
    """Copy a trained network, in evaluation mode and without gradients.

    Parameters
    ----------
    network : torch.nn.Module
        Network that `call_on_graph` can evaluate on the graph.
    graph : NodeGraph
        Graph.
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the logits, sorted; None if they are unknown.

    Returns
    -------
    NodeModel
    """
    module: nn.Module = deepcopy(network).cpu().eval().requires_grad_(False)
    return NodeModel(module=module, classes=classes, graph=graph)
