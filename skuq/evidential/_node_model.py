"""Trained graph networks in the form of adopted models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.evidential._graphs import NodeGraph, call_on_graph, checked_nodes, graph_device
from skuq.models import AdoptedModel, resolve_device
from skuq.models._adopt import _private_copy


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

    def resolved(self, device: torch.device | str) -> torch.device:
        """Resolve a ``device`` parameter; only networks of PyG do without a DGL for it."""
        takes_node_graph = getattr(self.module, "takes_node_graph", False)
        of_pyg = hasattr(self.graph.original, "edge_index") and not takes_node_graph
        return resolve_device(device) if of_pyg else graph_device(device)

    def to(self, device: torch.device | str) -> Self:
        """Return the model with its network and its graph on a device."""
        device = self.resolved(device)
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

    Raises
    ------
    TypeError, ValueError
        If the network is a `torch.jit.ScriptModule`, or cannot be copied.
    """
    module = _private_copy(network)
    _forget_graph(module)
    return NodeModel(module=module, classes=classes, graph=graph)


def _forget_graph(network: nn.Module) -> None:
    """Empty the caches of layers of PyG and DGL, such as ``GCNConv(..., cached=True)``.

    They hold what was computed of the edges of the first graph, and would answer for any other.
    """
    for layer in network.modules():
        for switch in ("cached", "_cached"):
            if getattr(layer, switch, None) is True:
                kept = [name for name in vars(layer) if name.startswith("_cached_")]
                vars(layer).update(dict.fromkeys(kept), **{switch: False})
