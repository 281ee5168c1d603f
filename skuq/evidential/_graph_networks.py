"""Graph networks in plain torch, GCN and GAT, and their layer-wise evaluation for large graphs.

Layer-wise evaluation computes each layer for all nodes, in chunks, before the next layer: a chunk
needs only its nodes and their direct neighbours. One pass over the whole graph has the same result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from skorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from skuq._networks import TrainingSettings, train
from skuq._progress import progress
from skuq.evidential._graphs import Features, LoopedEdges, NodeGraph

Architecture = Literal["gcn", "gat"]
_Map = Callable[[Tensor], Tensor]

N_HEADS = 8  # number of attention heads of each hidden layer of a GAT
SLOPE = 0.2  # negative slope of the leaky ReLU (Velickovic et al., 2018, Section 2.1)
CHUNK_FLOATS = 2**24  # maximum number of values of a chunk's nodes and their neighbours: 64 MiB


class _LinearMap(torch.autograd.Function):
    """A linear map `along` of values, and its transpose `back` for the gradient."""

    @staticmethod
    def forward(ctx: Any, along: _Map, back: _Map, values: Tensor) -> Tensor:
        ctx.back = back
        return along(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.back(gradient.contiguous())


class SparseLinear(nn.Linear):
    def forward(self, input: Features) -> Tensor:
        if isinstance(input, Tensor):
            return super().forward(input)
        maps = input.matrix.matmul, input.transpose.matmul
        product: Tensor = _LinearMap.apply(*maps, self.weight.T)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class _Attention(torch.autograd.Function):
    """One attention head: mean over the edges into each node, weighted by a softmax of scores.

    A score is the leaky ReLU of the sum of `left` at the source and `right` at the target.
    """

    @staticmethod
    def forward(
        ctx: Any, edges: LoopedEdges, left: Tensor, right: Tensor, values: Tensor
    ) -> Tensor:
        source, target = edges.source, edges.target
        raw = left.index_select(0, source) + right.index_select(0, target)
        score = leaky_relu(raw, SLOPE)
        largest = torch.full_like(right, -torch.inf).scatter_reduce_(0, target, score, "amax")
        weight = (score - largest.index_select(0, target)).exp_()
        summed = edges.total(torch.cat([values, torch.ones_like(values[:, :1])], dim=1), weight)
        out, norm = summed[:, :-1] / summed[:, -1:], summed[:, -1]
        ctx.edges = edges
        ctx.save_for_backward(raw, weight / norm.index_select(0, target), values, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        edges: LoopedEdges = ctx.edges
        raw, weight, values, out = ctx.saved_tensors
        gradient = gradient.contiguous()
        # Gradient of the softmax: a_e (<g, h_e> - sum_e a_e <g, h_e>); the sum equals <g, out>.
        change = edges.products(gradient, values)
        change -= (gradient * out).sum(dim=1).index_select(0, edges.target)
        change *= torch.where(raw > 0, weight, SLOPE * weight)
        back = change.index_select(0, edges.reverse), weight.index_select(0, edges.reverse)
        one = torch.ones_like(gradient[:, :1])
        left, right = edges.total(one, back[0])[:, 0], edges.total(one, change)[:, 0]
        return None, left, right, edges.total(gradient, back[1])


def normalised_total(edges: LoopedEdges, values: Tensor) -> Tensor:
    """Sum values over neighbours with symmetric normalisation, ``D^-1/2 (A + I) D^-1/2 X``."""
    scale = edges.degree.to(values.dtype).rsqrt()[:, None]
    maps = edges.total, edges.total  # the graph is undirected, so the transpose is equal
    total: Tensor = _LinearMap.apply(*maps, scale * values)  # type: ignore[no-untyped-call]
    return scale[edges.own] * total


class GraphLayer(nn.Module):
    linear: SparseLinear

    def forward(self, edges: LoopedEdges, features: Features) -> Tensor:
        return self.gather(edges, self.linear(features))

    @abstractmethod
    def gather(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        """Aggregate the outputs of `linear` over neighbours."""


class GraphConvolution(GraphLayer):
    """Convolution over neighbours, ``D^-1/2 (A + I) D^-1/2 X W + b`` (Kipf and Welling, 2017)."""

    def __init__(self, n_inputs: int, n_outputs: int):
        super().__init__()
        self.linear = SparseLinear(n_inputs, n_outputs, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    def gather(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        return normalised_total(edges, projected) + self.bias


class GraphAttention(GraphLayer):
    """Multi-head attention; heads are concatenated or averaged (Velickovic et al., ICLR 2018)."""

    def __init__(self, n_inputs: int, n_outputs: int, n_heads: int, *, mean: bool = False):
        super().__init__()
        self.mean = mean
        width = n_heads * n_outputs
        self.linear = SparseLinear(n_inputs, width, bias=False)
        # Weights of the source's features, and of the target's features, in the score of an edge.
        self.attn_l = nn.Parameter(torch.empty(1, n_heads, n_outputs))
        self.attn_r = nn.Parameter(torch.empty(1, n_heads, n_outputs))
        self.bias = nn.Parameter(torch.zeros(width))
        # The recorded results are from DGL's layer, which also draws weights of a further linear
        # map. Draw them, too: otherwise, later layers would get different initial weights.
        nn.init.xavier_normal_(nn.Linear(width, width, bias=False).weight)
        for weight in (self.attn_l, self.attn_r):
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))

    def gather(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        values = projected.view(len(projected), *self.attn_l.shape[1:])
        left = (values * self.attn_l).sum(dim=2)
        right = (values[edges.own] * self.attn_r).sum(dim=2)
        heads = zip(left.unbind(1), right.unbind(1), values.unbind(1), strict=True)
        gathered = [_Attention.apply(edges, *head) for head in heads]  # type: ignore[no-untyped-call]
        out = torch.stack(gathered, dim=1) + self.bias.view(self.attn_l.shape)
        return out.mean(dim=1) if self.mean else out.flatten(1)


class GraphNetwork(nn.Module):
    """A GCN, or a GAT with one output head, optionally with batch normalisation over the nodes."""

    takes_node_graph = True

    def __init__(
        self,
        architecture: Architecture,
        n_features: int,
        n_outputs: int,
        hidden_sizes: Sequence[int] = (64,),
        dropout: float = 0.5,
        batch_norm: bool = False,
    ):
        super().__init__()
        widths = [n_features, *hidden_sizes]
        layers: list[nn.Module]
        if architecture == "gcn":
            layers = [GraphConvolution(*pair) for pair in pairwise([*widths, n_outputs])]
        else:
            uneven = [width for width in hidden_sizes if width % N_HEADS]
            if uneven:
                raise ValueError(
                    f"`hidden_sizes` must be multiples of {N_HEADS}, the number of attention "
                    f"heads, got {uneven[0]}."
                )
            layers = [GraphAttention(n, width // N_HEADS, N_HEADS) for n, width in pairwise(widths)]
            layers.append(GraphAttention(widths[-1], n_outputs, 1, mean=True))
        self.layers = nn.ModuleList(layers)
        norms = [nn.BatchNorm1d(n) if batch_norm else nn.Identity() for n in hidden_sizes]
        self.norms = nn.ModuleList(norms)
        self.activation = nn.ReLU() if architecture == "gcn" else nn.ELU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: NodeGraph) -> Tensor:
        hidden: Features = graph.features
        for layer, norm in zip(self.layers, self.norms, strict=False):
            hidden = self.dropout(self.activation(norm(layer(graph.edges, hidden))))
        logits: Tensor = self.layers[-1](graph.edges, hidden)
        return logits


class Samples(NamedTuple):
    inputs: Mapping[str, NDArray[Any]]  # "inputs" for the network, and further arrays for the loss
    codes: NDArray[np.int64]  # (n_samples,): class codes, -1 if unlabelled


class Labelled(NamedTuple):
    """Labelled samples, each array of shape (n_labelled,)."""

    rows: NDArray[np.int64]  # positions among all samples, or node ids; may contain duplicates
    codes: NDArray[np.int64]  # class codes: positions of the labels in the array of classes
    weight: NDArray[np.float64]

    def as_samples(self) -> Samples:
        return Samples({"inputs": self.rows, "weight": self.weight}, self.codes)


class OnNodes(nn.Module):
    """A graph network whose inputs are node ids."""

    def __init__(self, network: nn.Module, graph: NodeGraph):
        super().__init__()
        self.network, self.graph = network, graph

    def forward(self, nodes: Tensor) -> Any:
        return self.network(self.graph)[nodes]


def train_on_graph(
    network: nn.Module,
    criterion: nn.Module,
    graph: NodeGraph,
    training: Samples,
    validation: Labelled | None,
    *,
    settings: TrainingSettings,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> tuple[nn.Module, Any, Tensor]:
    """Train a graph network in place; return it, its history and the outputs of all nodes.

    The inputs of the samples are node ids. The outputs are float64 tensors on the CPU. `settings`
    contains the user's callbacks, which run after `callbacks`.
    """
    device = torch.device(settings.device)
    on_device = graph.to(device)
    fit = partial(train, settings=settings, seed=seed, callbacks=callbacks)
    held_out = validation and validation.as_samples()
    trained, history = fit(OnNodes(network, on_device), criterion, *training, validation=held_out)
    network = trained.network  # type: ignore[assignment]
    with torch.no_grad():
        outputs = network.to(device)(on_device).cpu().double()
    return network.cpu(), history, outputs


def layerwise_logits(
    network: GraphNetwork, graph: NodeGraph, device: torch.device, *, verbose: bool = False
) -> Tensor:
    """Compute the logits of all nodes layer by layer, with the graph on the CPU.

    The inputs of each layer are stored in a temporary file; memory holds only the edges, one chunk
    and the logits (n_nodes, n_classes).
    """
    total = (1 + len(network.layers)) * graph.n_nodes
    bar = progress(total=total, desc="layers", unit="node", verbose=verbose)
    # Ignore errors when the folder is deleted: after an exception, the traceback keeps memory maps
    # alive, and Windows cannot delete a mapped file.
    with TemporaryDirectory(prefix="skuq-", ignore_cleanup_errors=True) as folder, bar:
        return _logits_by_layers(network, graph, device, folder, bar)


@torch.no_grad()
def _logits_by_layers(
    network: GraphNetwork, graph: NodeGraph, device: torch.device, folder: str, bar: Any
) -> Tensor:
    # Only local variables hold the memory maps, so the files are closed when this function returns.
    layers = cast(list[GraphLayer], list(network.layers))
    features = cast(Tensor, graph.features)
    degree = np.diff(graph.adjacency.indptr)

    def scratch(layer: GraphLayer) -> NDArray[np.float32]:
        path, width = Path(folder, str(layers.index(layer))), layer.linear.out_features
        return np.memmap(path, np.float32, mode="w+", shape=(graph.n_nodes, width))

    def gathered(layer: GraphLayer) -> Iterator[tuple[slice, Tensor]]:
        """Yield a layer's outputs in chunks; `projected` holds its linear map of all inputs."""
        for nodes in chunks(degree, projected.shape[1]):
            ids, edges = _edges_into(nodes, graph.adjacency, degree)
            values = torch.from_numpy(projected[ids]).to(device)
            yield nodes, layer.gather(edges.to(device), values)
            bar.update(nodes.stop - nodes.start)

    projected = scratch(layers[0])
    for nodes in chunks(np.zeros(graph.n_nodes, np.int64), graph.n_features):
        projected[nodes] = layers[0].linear(features[nodes].to(device)).cpu().numpy()
        bar.update(nodes.stop - nodes.start)
    for layer, norm, following in zip(layers, network.norms, layers[1:], strict=False):
        out = scratch(following)
        for nodes, values in gathered(layer):
            hidden = network.activation(norm(values))  # without dropout
            out[nodes] = following.linear(hidden).cpu().numpy()
        projected = out
    return torch.cat([logits.cpu() for _, logits in gathered(layers[-1])])


def chunks(degree: NDArray[np.integer], width: int) -> Iterator[slice]:
    """Yield ranges of nodes that, with their neighbours, have at most `CHUNK_FLOATS` values.

    A node whose neighbours exceed the limit is a chunk by itself.
    """
    n_read = np.cumsum(degree + 1)
    start = 0
    while start < len(degree):
        before = n_read[start - 1] if start else 0
        stop = int(np.searchsorted(n_read, before + CHUNK_FLOATS // width, side="right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def _edges_into(
    nodes: slice, adjacency: sparse.csr_array, degree: NDArray[np.integer]
) -> tuple[NDArray[np.integer], LoopedEdges]:
    """Return sorted ids of consecutive nodes and their neighbours, and edges into the nodes."""
    bounds = adjacency.indptr[nodes.start : nodes.stop + 1]
    neighbours = adjacency.indices[bounds[0] : bounds[-1]]
    own = np.arange(nodes.start, nodes.stop, dtype=neighbours.dtype)
    ids = np.unique(np.concatenate([neighbours, own]))
    first = int(np.searchsorted(ids, nodes.start))
    shape = (len(own), len(ids))
    parts = np.ones(len(neighbours), np.float32), np.searchsorted(ids, neighbours)
    beside = sparse.csr_array((*parts, bounds - bounds[0]), shape=shape)
    itself = sparse.eye_array(*shape, k=first, dtype=np.float32, format="csr")
    looped = sparse.csr_array(beside + itself)
    return ids, LoopedEdges.of(looped, degree[ids] + 1, slice(first, first + len(own)))
