"""The network of the Graph Posterior Network, and its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skuq.evidential._graphs import NodeGraph, import_dgl
from skuq.evidential._losses import dirichlet_entropy, uce_loss
from skuq.evidential._sparse import SparseLinear
from skuq.evidential.comparison._flows import RadialFlows

# Bounds of the logarithm of a node's own evidence: from none to far more than any budget.
LOG_EVIDENCE = 30.0


class PosteriorNetwork(nn.Module):
    """Evidence from the density of each class at a node, spread over the graph.

    Parameters
    ----------
    n_features : int
        Number of features.
    class_share : Tensor of shape (n_classes,)
        Share of each class in the training data.
    hidden_sizes : sequence of int
        Width of each hidden layer of the encoder.
    dropout : float
        Probability of dropping a hidden unit while training.
    n_latent : int
        Dimension of the space that densities live in.
    n_flow_layers : int
        Radial layers of each density.
    n_steps : int
        Steps of personalised PageRank.
    teleport : float
        Weight of a node's own evidence in each step.

    References
    ----------
    Stadler et al., NeurIPS 2021.
    """

    takes_node_graph = True

    def __init__(
        self,
        n_features: int,
        class_share: Tensor,
        *,
        hidden_sizes: Sequence[int],
        dropout: float,
        n_latent: int,
        n_flow_layers: int,
        n_steps: int,
        teleport: float,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        widths = [n_features, *hidden_sizes]
        for before, after in zip(widths, hidden_sizes, strict=False):
            layers += [SparseLinear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.encoder = nn.Sequential(*layers, SparseLinear(widths[-1], n_latent))
        self.flows = RadialFlows(len(class_share), n_latent, n_flow_layers)
        self.register_buffer("log_share", class_share.log())
        # The budget sqrt(4 pi)^d makes up for densities that shrink with the dimension d.
        self.log_budget = n_latent * math.log(4 * math.pi) / 2
        self.spread: Any = import_dgl().nn.APPNPConv(n_steps, teleport)

    def own_evidence(self, graph: NodeGraph) -> Tensor:
        """Evidence of shape (n_nodes, n_classes) from the features of each node alone."""
        density = self.flows(self.encoder(graph.features)) + self.log_share
        return (density + self.log_budget).clamp(-LOG_EVIDENCE, LOG_EVIDENCE).exp()

    def forward(self, graph: NodeGraph) -> Tensor:
        """Concentrations of shape (n_nodes, n_classes)."""
        alpha: Tensor = 1 + self.spread(graph.convolution, self.own_evidence(graph))
        return alpha


class PosteriorLoss(nn.Module):
    """Expected cross-entropy minus entropy of the distribution, summed over nodes.

    Parameters
    ----------
    entropy_weight : float
        Weight of the entropy.
    """

    def __init__(self, entropy_weight: float):
        super().__init__()
        self.entropy_weight = entropy_weight

    def forward(self, alpha: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        alpha = alpha.double()  # differences of large logarithms of the gamma function
        loss = uce_loss(alpha, codes) - self.entropy_weight * dirichlet_entropy(alpha)
        total: Tensor = (inputs["weight"].to(alpha) * loss).sum()
        return total


def class_shares(codes: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Weighted share of each class, positive, of shape (n_classes,) and float32."""
    share = torch.bincount(codes, weights=weight.double(), minlength=n_classes)
    return (share / share.sum()).clamp_min(1e-12).float()
