"""Network and loss of the Graph Posterior Network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet

from skuq.evidential._graphs import NodeGraph, import_dgl
from skuq.evidential._losses import uce_loss
from skuq.evidential._sparse import SparseLinear
from skuq.evidential.comparison._flows import RadialFlows

# Bounds of the logarithm of a node's own evidence: from none to far more than any budget.
LOG_EVIDENCE = 30.0


class PosteriorNetwork(nn.Module):
    """Evidence from the density of each class at a node, propagated over the graph.

    Parameters
    ----------
    n_features : int
        Number of features.
    class_share : Tensor of shape (n_classes,)
        Share of each class in the training data.
    hidden_sizes : sequence of int
        Width of each hidden layer of the encoder.
    dropout : float
        Probability of dropping a hidden unit during training.
    n_latent : int
        Dimension of the latent space.
    n_flow_layers : int
        Number of radial layers of each density.
    n_steps : int
        Number of steps of personalised PageRank.
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
        # The budget sqrt(4 pi)^d compensates for densities that shrink with the dimension d.
        self.log_budget = n_latent * math.log(4 * math.pi) / 2
        self.pagerank: Any = import_dgl().nn.APPNPConv(n_steps, teleport)

    def own_evidence(self, graph: NodeGraph) -> Tensor:
        """Compute evidence (n_nodes, n_classes) from the features of each node alone."""
        density = self.flows(self.encoder(graph.features)) + self.log_share
        return (density + self.log_budget).clamp(-LOG_EVIDENCE, LOG_EVIDENCE).exp()

    def forward(self, graph: NodeGraph) -> Tensor:
        """Compute concentrations of shape (n_nodes, n_classes)."""
        alpha: Tensor = 1 + self.pagerank(graph.convolution, self.own_evidence(graph))
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
        alpha = alpha.double()  # large logarithms of the gamma function cancel
        entropy = Dirichlet(alpha, validate_args=False).entropy()  # type: ignore[no-untyped-call]
        loss = uce_loss(alpha, codes) - self.entropy_weight * entropy
        total: Tensor = (inputs["weight"].to(alpha) * loss).sum()
        return total


def class_shares(codes: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Compute the weighted share of each class, positive, of shape (n_classes,) and float32."""
    share = torch.bincount(codes, weights=weight.double(), minlength=n_classes)
    return (share / share.sum()).clamp_min(1e-12).float()
