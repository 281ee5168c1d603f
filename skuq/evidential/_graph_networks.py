"""Graph networks, GCN and GAT, and their layer-wise evaluation for features on disk.

Layer-wise evaluation computes each layer for all nodes, in chunks, before the next layer. For any
number of layers, a chunk needs only its nodes and their direct neighbours. Because neighbours are
not sampled, the result equals the result of one pass over the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from tqdm.auto import tqdm

from skuq.evidential._graph_layers import GraphAttention, GraphConvolution, GraphLayer, LoopedEdges
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._sparse_features import Features

CHUNK_FLOATS = 2**24  # maximum count of numbers for a chunk of nodes and its neighbours; 64 MiB


class Neighbours(NamedTuple):
    """Nodes and edges that a layer reads to compute the outputs of some consecutive nodes."""

    ids: NDArray[np.integer]  # (n_read,): the nodes and their neighbours, sorted
    edges: LoopedEdges

    @classmethod
    def of(
        cls, adjacency: sparse.csr_array, nodes: slice, degree: NDArray[np.integer]
    ) -> Neighbours:
        """Build from rows of an adjacency matrix without self-loops and with row sums `degree`."""
        own = np.arange(nodes.start, nodes.stop)
        bounds = adjacency.indptr[nodes.start : nodes.stop + 1]
        neighbours = adjacency.indices[bounds[0] : bounds[-1]]
        ids = np.unique(np.concatenate([neighbours, own.astype(neighbours.dtype)]))
        first = int(np.searchsorted(ids, nodes.start))
        shape = (len(own), len(ids))
        columns = np.searchsorted(ids, neighbours), bounds - bounds[0]
        beside = sparse.csr_array((np.ones(len(neighbours), np.float32), *columns), shape=shape)
        itself = sparse.eye_array(*shape, k=first, dtype=np.float32, format="csr")
        looped = sparse.csr_array(beside + itself)
        return cls(ids, LoopedEdges.of(looped, degree[ids] + 1, slice(first, first + len(own))))


class GraphNetwork(nn.Module):
    """Layers over a graph, with normalisation, an activation and dropout between them.

    Each layer applies its module `linear` to each node, and then aggregates over neighbours. The
    method `gather` of a layer does the second step for a part of the nodes.
    """

    takes_node_graph = True

    def __init__(
        self,
        layers: Sequence[nn.Module],
        activation: nn.Module,
        dropout: float,
        norms: Sequence[nn.Module] = (),
    ):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(norms or [nn.Identity() for _ in layers[1:]])
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: NodeGraph) -> Tensor:
        hidden: Features = graph.features
        for layer, norm in zip(self.layers, self.norms, strict=False):
            hidden = self.dropout(self.activation(norm(layer(graph.edges, hidden))))
        logits: Tensor = self.layers[-1](graph.edges, hidden)
        return logits


class GCN(GraphNetwork):
    """Graph convolutional network, optionally with batch normalisation over the nodes."""

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        hidden_sizes: Sequence[int] = (64,),
        dropout: float = 0.5,
        batch_norm: bool = False,
    ):
        widths = [n_features, *hidden_sizes, n_outputs]
        layers = [GraphConvolution(*pair) for pair in pairwise(widths)]
        norms = [nn.BatchNorm1d(width) for width in hidden_sizes] if batch_norm else []
        super().__init__(layers, nn.ReLU(), dropout, norms)


class GAT(GraphNetwork):
    """Graph attention network: `n_heads` heads per hidden layer, and one in the output layer."""

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        hidden_sizes: Sequence[int] = (64,),
        dropout: float = 0.5,
        batch_norm: bool = False,
        n_heads: int = 8,
    ):
        uneven = [width for width in hidden_sizes if width % n_heads]
        if uneven:
            raise ValueError(
                f"`hidden_sizes` must be multiples of {n_heads}, the number of attention heads, "
                f"got {uneven[0]}."
            )
        widths = [n_features, *hidden_sizes]
        layers: list[Any] = [
            GraphAttention(before, after // n_heads, n_heads)
            for before, after in zip(widths, hidden_sizes, strict=False)
        ]
        layers.append(GraphAttention(widths[-1], n_outputs, 1, mean=True))
        norms = [nn.BatchNorm1d(width) for width in hidden_sizes] if batch_norm else []
        super().__init__(layers, nn.ELU(), dropout, norms)


ARCHITECTURES: dict[str, Callable[..., GraphNetwork]] = {"gcn": GCN, "gat": GAT}


def layerwise_logits(
    network: GraphNetwork, graph: NodeGraph, device: torch.device, *, verbose: bool = False
) -> Tensor:
    """Compute the logits of all nodes layer by layer, with the network in evaluation mode.

    The graph is on the CPU. The inputs of each layer are stored in a temporary file, in the folder
    that `tempfile` chooses. Memory holds only the edges, one chunk and the logits (n_nodes,
    n_classes).
    """
    total = (1 + len(network.layers)) * graph.n_nodes
    bar = tqdm(total=total, desc="layers", unit="node", disable=not verbose)
    # Errors of the deletion are ignored: after an exception, the traceback keeps memory maps alive,
    # and Windows cannot delete a mapped file.
    with TemporaryDirectory(prefix="skuq-", ignore_cleanup_errors=True) as folder, bar:
        return _logits_by_layers(network, graph, device, folder, bar)


@torch.no_grad()
def _logits_by_layers(
    network: GraphNetwork, graph: NodeGraph, device: torch.device, folder: str, bar: tqdm[Any]
) -> Tensor:
    """Compute logits through memory-mapped files, which are closed when this function returns."""
    layers = cast(list[GraphLayer], list(network.layers))
    features = cast(Tensor, graph.features)
    projected = _scratch(folder, graph, layers[0].linear.out_features)
    for nodes in chunks(np.zeros(graph.n_nodes, np.int64), graph.n_features):
        projected[nodes] = layers[0].linear(features[nodes].to(device)).cpu().numpy()
        bar.update(nodes.stop - nodes.start)
    for layer, norm, following in zip(layers, network.norms, layers[1:], strict=False):
        out = _scratch(folder, graph, following.linear.out_features)
        for nodes, gathered in _gathered(layer, graph, projected, device, bar):
            hidden = network.activation(norm(gathered))  # without dropout
            out[nodes] = following.linear(hidden).cpu().numpy()
        projected = out
    last = _gathered(layers[-1], graph, projected, device, bar)
    return torch.cat([logits.cpu() for _, logits in last])


def chunks(degree: NDArray[np.integer], width: int) -> Iterator[slice]:
    """Yield ranges of nodes that hold, with their neighbours, at most `CHUNK_FLOATS` numbers.

    A single node whose neighbours exceed the limit is a chunk by itself.
    """
    n_read = np.cumsum(degree + 1)
    start = 0
    while start < len(degree):
        before = n_read[start - 1] if start else 0
        stop = int(np.searchsorted(n_read, before + CHUNK_FLOATS // width, side="right"))
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _gathered(
    layer: GraphLayer,
    graph: NodeGraph,
    projected: NDArray[np.float32],
    device: torch.device,
    bar: tqdm[Any],
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the outputs of a layer in chunks, from the projected features of all nodes."""
    degree = np.diff(graph.adjacency.indptr)
    for nodes in chunks(degree, projected.shape[1]):
        near = Neighbours.of(graph.adjacency, nodes, degree)
        values = torch.from_numpy(projected[near.ids]).to(device)
        yield nodes, layer.gather(near.edges.to(device), values)
        bar.update(nodes.stop - nodes.start)


def _scratch(folder: str, graph: NodeGraph, width: int) -> NDArray[np.float32]:
    """Create an array on disk with one row per node."""
    path = Path(folder, f"{len(list(Path(folder).iterdir()))}.float32")
    return np.memmap(path, np.float32, mode="w+", shape=(graph.n_nodes, width))
