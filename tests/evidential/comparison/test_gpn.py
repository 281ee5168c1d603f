"""The Graph Posterior Network against dense matrices and plain formulas."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.special import digamma, gammaln
from skorch.callbacks import Callback

from skuq.evidential import GraphClassifier, GraphPosteriorNetwork
from skuq.evidential._graphs import as_node_graph
from skuq.evidential.comparison._gpn import GPN_SETTINGS
from skuq.evidential.comparison._posterior_network import (
    PosteriorLoss,
    PosteriorNetwork,
    class_shares,
)

pytest.importorskip("dgl")


def network(graph, share=(0.5, 0.3, 0.2), **settings):
    torch.manual_seed(0)
    sizes = {"hidden_sizes": (5,), "dropout": 0.5, "n_latent": 4, "n_flow_layers": 3}
    walk = {"n_steps": 3, "teleport": 0.2}
    made = PosteriorNetwork(graph.n_features, torch.tensor(share), **{**sizes, **walk, **settings})
    return made.eval()


def fitted(data, nodes, y, *, warm_up=5, teleport=0.1, **settings):
    settings = {
        "graph": data.graph,
        **GPN_SETTINGS,
        "max_epochs": 20,
        "random_state": 0,
        **settings,
    }
    model = GraphPosteriorNetwork(GraphClassifier(**settings), warm_up=warm_up, teleport=teleport)
    return model.fit(nodes, y)


def test_concentrations_against_dense_pagerank(data):
    graph = as_node_graph(data.graph)
    made = network(graph)
    with torch.no_grad():
        own, alpha = made.own_evidence(graph).numpy(), made(graph).numpy()
    looped = graph.adjacency.toarray() + np.eye(graph.n_nodes)
    scale = looped.sum(axis=1) ** -0.5
    walk = scale[:, None] * looped * scale
    spread = own
    for _ in range(3):
        spread = 0.8 * walk @ spread + 0.2 * own
    np.testing.assert_allclose(alpha, 1 + spread, rtol=1e-4)


def test_own_evidence_is_budget_times_share_times_density(data):
    graph = as_node_graph(data.graph)
    made = network(graph)
    with torch.no_grad():
        density = made.flows(made.encoder(graph.features)).double().exp().numpy()
        own = made.own_evidence(graph).numpy()
    np.testing.assert_allclose(own, (4 * np.pi) ** 2 * np.array([0.5, 0.3, 0.2]) * density, 1e-4)


def test_evidence_stays_finite_far_away(data):
    graph = as_node_graph((data.adjacency, 1e6 * data.features))
    with torch.no_grad():
        alpha = network(graph, hidden_sizes=())(graph)
    assert torch.isfinite(alpha).all()
    assert (alpha >= 1).all()
    assert (alpha - 1).max() < 1e-10


def entropy_of(alpha):
    """Differential entropy of a Dirichlet distribution."""
    total = alpha.sum()
    log_beta = gammaln(alpha).sum() - gammaln(total)
    return log_beta + (total - len(alpha)) * digamma(total) - (alpha - 1) @ digamma(alpha)


def test_loss_by_definition():
    alpha = torch.tensor([[2.0, 5.0, 1.5], [30.0, 2.0, 1.0]])
    weight = torch.tensor([1.0, 0.5])
    found = PosteriorLoss(0.3)(alpha, torch.tensor([1, 0]), {"weight": weight})
    cross_entropy = digamma([8.5, 33.0]) - digamma([5.0, 30.0])
    entropy = np.array([entropy_of(row) for row in alpha.double().numpy()])
    np.testing.assert_allclose(found, ((cross_entropy - 0.3 * entropy) * [1, 0.5]).sum(), 1e-6)


def test_shares_are_weighted_and_positive():
    share = class_shares(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 1.0]), 3)
    np.testing.assert_allclose(share, [0.75, 1e-12, 0.25], rtol=1e-6)


@pytest.mark.slow
def test_it_learns_and_knows_what_is_far(data, nodes, y, others):
    """Four nodes without neighbours lie far from all others."""
    adjacency = sparse.block_diag([data.adjacency, sparse.coo_array((4, 4))])
    far = np.full((4, data.features.shape[1]), 30, dtype=np.float32)
    graph = as_node_graph((adjacency, np.concatenate([data.features, far])))
    model = fitted(data, nodes, y, graph=graph, max_epochs=200)
    assert model.score(others, data.labels[others]) > 0.8
    assert (model.alpha_ >= 1).all()
    epistemic = model.predict_uncertainty(range(154)).epistemic
    assert epistemic[150:].min() > np.quantile(epistemic[:150], 0.95)


class Recorder(Callback):
    """Keeps the encoder's and the flows' weights at the end of each epoch."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, net, **kwargs):
        inner = net.module_.network
        parts = (inner.encoder[0].weight, inner.flows.centre)
        self.seen.append([part.detach().clone() for part in parts])


@pytest.mark.parametrize("warm_up", [0, 2])
def test_warm_up_trains_the_flows_alone(data, nodes, y, warm_up):
    recorder = Recorder()
    fitted(data, nodes, y, warm_up=warm_up, max_epochs=5, callbacks=[recorder])
    encoder, flows = zip(*recorder.seen, strict=True)
    moves = [not torch.equal(a, b) for a, b in pairwise(encoder)]
    # from the end of epoch k to that of epoch k + 1
    assert moves == [epoch > warm_up for epoch in range(2, 6)]
    assert all(not torch.equal(a, b) for a, b in pairwise(flows))


def test_errors(data, nodes, y):
    with pytest.raises(ValueError, match="'teleport' parameter"):
        fitted(data, nodes, y, teleport=1.5)
    with pytest.raises(ValueError, match="one class only"):
        fitted(data, nodes, np.zeros(len(nodes)))
