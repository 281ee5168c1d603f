"""Graph networks: convolution (GCN) and attention (GAT), on graphs in DGL's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from skuq.evidential._graphs import NodeGraph, block_of, import_dgl
from skuq.evidential._neighbours import Neighbours
from skuq.evidential._sparse import Features, SparseLinear, csr_tensor


class GraphNetwork(nn.Module):
    """Layers over a graph, with an activation and dropout between them.

    Parameters
    ----------
    layers : sequence of modules
        Each is called with a graph and features: it applies its `linear` to each node, and then
        gathers from neighbours, which `gather` does for a part of the nodes.
    activation : torch.nn.Module
        Between the layers.
    dropout : float
        Probability of dropping a hidden unit during training.
    norms : sequence of modules, default=()
        Applied to the output of each layer but the last, before the activation.
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
            hidden = self.dropout(self.activation(norm(layer(graph, hidden))))
        logits: Tensor = self.layers[-1](graph, hidden)
        return logits


class GraphConvolution(nn.Module):
    """Convolution over neighbours, ``D^-1/2 (A + I) D^-1/2 X W + b``.

    References
    ----------
    Kipf and Welling, ICLR 2017.
    """

    def __init__(self, n_inputs: int, n_outputs: int):
        super().__init__()
        self.linear = SparseLinear(n_inputs, n_outputs, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.average = import_dgl().nn.GraphConv(n_outputs, n_outputs, weight=False)

    def forward(self, graph: NodeGraph, features: Features) -> Tensor:
        out: Tensor = self.average(graph.convolution, self.linear(features))
        return out

    def gather(self, near: Neighbours, projected: Tensor) -> Tensor:
        """Outputs of some nodes, from the projected features of these and their neighbours."""
        scale = torch.from_numpy(near.degree).to(projected)[:, None].rsqrt()
        summed = csr_tensor(near.matrix).to(projected.device) @ (scale * projected)
        out: Tensor = scale[near.own] * summed + self.average.bias
        return out


class GraphAttention(nn.Module):
    """Attention over neighbours, several heads side by side or averaged.

    References
    ----------
    Velickovic et al., ICLR 2018.
    """

    def __init__(self, n_inputs: int, n_outputs: int, n_heads: int, *, mean: bool = False):
        super().__init__()
        self.mean = mean
        self.linear = SparseLinear(n_inputs, n_heads * n_outputs, bias=False)
        self.attention = import_dgl().nn.GATConv(n_heads * n_outputs, n_outputs, n_heads)
        self.attention.fc = nn.Identity()  # `linear` takes its place, for sparse features too

    def forward(self, graph: NodeGraph, features: Features) -> Tensor:
        return self._joined(self.attention(graph.convolution, self.linear(features)))

    def gather(self, near: Neighbours, projected: Tensor) -> Tensor:
        """Outputs of some nodes, from the projected features of these and their neighbours."""
        block = block_of(near.matrix, projected.device)
        return self._joined(self.attention(block, (projected, projected[near.own])))

    def _joined(self, heads: Tensor) -> Tensor:
        return heads.mean(dim=1) if self.mean else heads.flatten(1)


class GCN(GraphNetwork):
    """Graph convolutional network.

    Parameters
    ----------
    n_features, n_outputs : int
        Width of input and output.
    hidden_sizes : sequence of int, default=(64,)
        Width of each hidden layer.
    dropout : float, default=0.5
        Probability of dropping a hidden unit during training.
    batch_norm : bool, default=False
        Whether each hidden layer is batch-normalised over the nodes before its activation.

    References
    ----------
    Kipf and Welling, ICLR 2017.
    """

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
    """Graph attention network.

    Parameters
    ----------
    n_features, n_outputs : int
        Width of input and output.
    hidden_sizes : sequence of int, default=(64,)
        Width of each hidden layer, over all heads together.
    dropout, batch_norm
        As in `GCN`.
    n_heads : int, default=8
        Heads of each hidden layer; must divide its width. The last layer has one.

    References
    ----------
    Velickovic et al., ICLR 2018.
    """

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
                f"`hidden_sizes` must be multiples of {n_heads} heads, got {uneven[0]}."
            )
        widths = [n_features, *hidden_sizes]
        layers: list[Any] = [
            GraphAttention(before, after // n_heads, n_heads)
            for before, after in zip(widths, hidden_sizes, strict=False)
        ]
        layers.append(GraphAttention(widths[-1], n_outputs, 1, mean=True))
        norms = [nn.BatchNorm1d(width) for width in hidden_sizes] if batch_norm else []
        super().__init__(layers, nn.ELU(), dropout, norms)


GraphLayer = GraphConvolution | GraphAttention

ARCHITECTURES: dict[str, Callable[..., GraphNetwork]] = {"gcn": GCN, "gat": GAT}
