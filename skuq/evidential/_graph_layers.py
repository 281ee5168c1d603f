"""Layers over a graph in plain torch: convolution, attention, personalised PageRank.

Each layer sums messages over the edges into each node. The sum is computed as a product with a
sparse matrix, which avoids storing a message per edge. Because graphs are undirected, the gradient
of a sum is a sum over the same edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from skuq.evidential._sparse_features import (
    Features,
    SparseLinear,
    csr_of_parts,
    has_csr_products,
)

SLOPE = 0.2  # negative slope of the leaky ReLU (Velickovic et al., 2018, Section 2.1)


@dataclass(frozen=True, eq=False)
class LoopedEdges:
    """Edges into nodes, grouped by target, including a self-loop at each node.

    The targets are all nodes of a graph or only some of them; in the second case, the sources may
    include further nodes. Gradients are implemented only if the targets are all nodes.
    """

    bounds: Tensor  # (n_nodes + 1,), int32: row pointers of the edges into each target
    source: Tensor  # (n_edges,), int32: positions of the sources among the nodes that are read
    degree: Tensor  # (n_read,), float32: in-degrees, in the whole graph, of the nodes that are read
    own: slice  # positions of the targets among the nodes that are read

    @classmethod
    def of(
        cls, matrix: sparse.csr_array, degree: NDArray[np.integer], own: slice = slice(None)
    ) -> LoopedEdges:
        """Build the edges from columns to rows of an adjacency matrix with self-loops."""
        bounds, source = (
            torch.tensor(part, dtype=torch.int32) for part in (matrix.indptr, matrix.indices)
        )
        return cls(bounds, source, torch.tensor(degree, dtype=torch.float32), own)

    def to(self, device: torch.device | str) -> LoopedEdges:
        bounds, source, degree = (p.to(device) for p in (self.bounds, self.source, self.degree))
        return LoopedEdges(bounds, source, degree, self.own)

    @cached_property
    def target(self) -> Tensor:
        """Target of each edge, of shape (n_edges,)."""
        nodes = torch.arange(len(self.bounds) - 1, device=self.bounds.device)
        n_edges = len(self.source)  # an explicit size avoids a synchronisation with the GPU
        return nodes.repeat_interleave(self.bounds.diff(), output_size=n_edges)

    @cached_property
    def reverse(self) -> Tensor:
        """Position of the reverse of each edge, of shape (n_edges,)."""
        return self.source.argsort(stable=True)

    @cached_property
    def ones(self) -> Tensor:
        return torch.ones(len(self.source), device=self.source.device)

    def matrix(self, weight: Tensor) -> Tensor:
        """Build a sparse matrix of shape (n_nodes, n_read) from weights of edges."""
        shape = len(self.bounds) - 1, len(self.degree)
        return csr_of_parts(self.bounds, self.source, weight, shape)

    def total(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        """Sum the sources' weighted values, of shape (n_read, n), over the edges into each node."""
        weight = self.ones.to(values.dtype) if weight is None else weight
        if has_csr_products(values.device.type):
            return self.matrix(weight) @ values
        messages = weight[:, None] * values.index_select(0, self.source)
        out = values.new_zeros(len(self.bounds) - 1, values.shape[1])
        return out.index_add_(0, self.target, messages)

    def products(self, targets: Tensor, sources: Tensor) -> Tensor:
        """Inner product of the values at the two endpoints of each edge, of shape (n_edges,).

        `targets` has shape (n_nodes, n), `sources` has shape (n_read, n).
        """
        if has_csr_products(sources.device.type):
            pattern = self.matrix(self.ones.to(sources.dtype))
            product = torch.sparse.sampled_addmm(pattern, targets, sources.T, beta=0.0)
            return product.values()
        ends = targets.index_select(0, self.target), sources.index_select(0, self.source)
        return (ends[0] * ends[1]).sum(dim=1)


class _Total(torch.autograd.Function):
    """Sum over the edges into each node, with its gradient."""

    @staticmethod
    def forward(ctx: Any, edges: LoopedEdges, values: Tensor) -> Tensor:
        ctx.edges = edges
        return edges.total(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.edges.total(gradient.contiguous())


class _Attention(torch.autograd.Function):
    """One attention head: mean over the edges into each node, weighted by a softmax of scores.

    The score of an edge is the leaky ReLU of the sum of `left` at its source and `right` at its
    target.
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
    total: Tensor = _Total.apply(edges, scale * values)  # type: ignore[no-untyped-call]
    return scale[edges.own] * total


def personalised_pagerank(
    edges: LoopedEdges, values: Tensor, n_steps: int, teleport: float
) -> Tensor:
    """Propagate values by personalised PageRank (Gasteiger et al., ICLR 2019)."""
    out = values
    for _ in range(n_steps):
        out = (1 - teleport) * normalised_total(edges, out) + teleport * values
    return out


class Average(nn.Module):
    """Normalised sum over neighbours, plus a bias."""

    def __init__(self, n_outputs: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    def forward(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        return normalised_total(edges, projected) + self.bias


class GraphConvolution(nn.Module):
    """Convolution over neighbours, ``D^-1/2 (A + I) D^-1/2 X W + b`` (Kipf and Welling, 2017)."""

    def __init__(self, n_inputs: int, n_outputs: int):
        super().__init__()
        self.linear = SparseLinear(n_inputs, n_outputs, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.average = Average(n_outputs)

    def forward(self, edges: LoopedEdges, features: Features) -> Tensor:
        return self.gather(edges, self.linear(features))

    def gather(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        """Compute outputs of the targets from the projected features of all sources."""
        out: Tensor = self.average(edges, projected)
        return out


class GraphAttention(nn.Module):
    """Multi-head attention; heads are concatenated or averaged (Velickovic et al., ICLR 2018)."""

    def __init__(self, n_inputs: int, n_outputs: int, n_heads: int, *, mean: bool = False):
        super().__init__()
        self.mean = mean
        self.linear = SparseLinear(n_inputs, n_heads * n_outputs, bias=False)
        self.attention = nn.ParameterDict(
            {
                # weights of the source's features, and of the target's, in the score of an edge
                "attn_l": torch.empty(1, n_heads, n_outputs),
                "attn_r": torch.empty(1, n_heads, n_outputs),
                "bias": torch.zeros(n_heads * n_outputs),
            }
        )
        # The recorded results were made with DGL's layer, which also draws weights for its own
        # linear map. This map is replaced by `linear` here. Its weights are still drawn, and then
        # discarded, because the draw changes the state of the random generator, and hence the
        # initial weights of later layers.
        width = n_heads * n_outputs
        nn.init.xavier_normal_(nn.Linear(width, width, bias=False).weight)
        for name in ("attn_l", "attn_r"):
            nn.init.xavier_normal_(self.attention[name], gain=nn.init.calculate_gain("relu"))

    def forward(self, edges: LoopedEdges, features: Features) -> Tensor:
        return self.gather(edges, self.linear(features))

    def gather(self, edges: LoopedEdges, projected: Tensor) -> Tensor:
        """Compute outputs of the targets from the projected features of all sources."""
        attn_l, attn_r, bias = (self.attention[name] for name in ("attn_l", "attn_r", "bias"))
        values = projected.view(len(projected), *attn_l.shape[1:])
        left = (values * attn_l).sum(dim=2)
        right = (values[edges.own] * attn_r).sum(dim=2)
        heads = zip(left.unbind(1), right.unbind(1), values.unbind(1), strict=True)
        gathered = [_Attention.apply(edges, *head) for head in heads]  # type: ignore[no-untyped-call]
        out = torch.stack(gathered, dim=1) + bias.view(attn_l.shape)
        return out.mean(dim=1) if self.mean else out.flatten(1)


GraphLayer = GraphConvolution | GraphAttention
