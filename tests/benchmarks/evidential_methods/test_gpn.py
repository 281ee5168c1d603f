"""The Graph Posterior Network against dense matrices; its flows against differentiation."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.special import digamma
from scipy.stats import dirichlet
from skorch.callbacks import Callback
from torch.distributions import MultivariateNormal

from benchmarks.evidential_methods import GraphPosteriorNetwork
from benchmarks.evidential_methods.gpn import (
    GPN_SETTINGS,
    PosteriorLoss,
    PosteriorNetwork,
    RadialFlows,
    class_shares,
    radial_step,
)
from skuq.evidential import GraphClassifier, as_node_graph


def network(graph, share=(0.5, 0.3, 0.2), **settings):
    torch.manual_seed(0)
    sizes = {"hidden_sizes": (5,), "dropout": 0.5, "n_latent": 4, "n_flow_layers": 3}
    walk = {"n_steps": 3, "teleport": 0.2}
    made = PosteriorNetwork(graph.n_features, torch.tensor(share), **{**sizes, **walk, **settings})
    return made.eval()


def fitted(data, nodes, y, *, warm_up=5, teleport=0.1, **settings):
    options = {"graph": data.graph, **GPN_SETTINGS, "max_epochs": 20, "random_state": 0} | settings
    model = GraphPosteriorNetwork(GraphClassifier(**options), warm_up=warm_up, teleport=teleport)
    return model.fit(nodes, y)


def test_evidence_is_budget_times_share_times_density_spreads_and_is_finite_far_away(data):
    graph = as_node_graph(data.graph)
    made = network(graph)
    with torch.no_grad():
        own, alpha = made.own_evidence(graph).numpy(), made(graph).numpy()
        density = made.flows(made.encoder(graph.features)).double().exp().numpy()
    np.testing.assert_allclose(own, (4 * np.pi) ** 2 * np.array([0.5, 0.3, 0.2]) * density, 1e-4)
    looped = graph.adjacency.toarray() + np.eye(graph.n_nodes)
    scale = looped.sum(axis=1) ** -0.5
    walk = scale[:, None] * looped * scale
    spread = own
    for _ in range(3):
        spread = 0.8 * walk @ spread + 0.2 * own
    np.testing.assert_allclose(alpha, 1 + spread, rtol=1e-4)
    graph = as_node_graph((data.adjacency, 1e6 * data.features))
    with torch.no_grad():
        alpha = network(graph, hidden_sizes=())(graph)
    assert torch.isfinite(alpha).all()
    assert (alpha >= 1).all()
    assert (alpha - 1).max() < 1e-10


def test_loss_by_definition_and_shares_that_are_weighted_and_positive():
    alpha = np.array([[2.0, 5.0, 1.5], [30.0, 2.0, 1.0]])
    inputs = {"weight": torch.tensor([1.0, 0.5])}
    found = PosteriorLoss(0.3)(torch.tensor(alpha).float(), torch.tensor([1, 0]), inputs)
    cross_entropy = digamma([8.5, 33.0]) - digamma([5.0, 30.0])
    entropy = np.array([dirichlet(row).entropy() for row in alpha])
    np.testing.assert_allclose(found, ((cross_entropy - 0.3 * entropy) * [1, 0.5]).sum(), 1e-6)
    share = class_shares(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 1.0]), 3)
    np.testing.assert_allclose(share, [0.75, 1e-12, 0.25], rtol=1e-6)


def test_it_learns_and_knows_what_is_far(data, nodes, y, others):
    """Four nodes without neighbours lie far from all others."""
    adjacency = sparse.block_diag([data.adjacency, sparse.coo_array((4, 4))])
    far = np.full((4, data.features.shape[1]), 30, dtype=np.float32)
    graph = as_node_graph((adjacency, np.concatenate([data.features, far])))
    model = fitted(data, nodes, y, graph=graph, max_epochs=120)
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


@pytest.mark.parametrize(("n_dimensions", "stretch"), [(1, -0.6), (2, 0.0), (5, 2.5), (5, -0.6)])
def test_log_determinant_against_differentiation(n_dimensions, stretch):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(6, n_dimensions, generator=generator, dtype=torch.float64)
    centre = torch.randn(1, n_dimensions, generator=generator, dtype=torch.float64)
    settings = torch.tensor([[0.7]]).double(), torch.tensor([[stretch]]).double()
    _, log_det = radial_step(points, centre, *settings)
    one = lambda z: radial_step(z[None], centre, *settings)[0][0]  # noqa: E731
    for point, value in zip(points, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(one, point)
        torch.testing.assert_close(value, torch.linalg.slogdet(jacobian).logabsdet)


def test_a_point_at_the_centre_stays_and_has_a_gradient():
    centre = torch.zeros(1, 3, requires_grad=True)
    one = torch.ones(1, 1)
    moved, log_det = radial_step(torch.zeros(1, 3), centre, one, one)
    torch.testing.assert_close(moved, torch.zeros(1, 3))
    torch.testing.assert_close(log_det, torch.full((1,), 3 * np.log(2), dtype=torch.float32))
    log_det.sum().backward()
    assert torch.isfinite(centre.grad).all()


def flows(n_classes=3, n_dimensions=2, n_layers=4, spread=2.0):
    torch.manual_seed(0)
    made = RadialFlows(n_classes, n_dimensions, n_layers).double()
    with torch.no_grad():  # far from the identity that they start near
        for parameter in made.parameters():
            parameter.normal_(std=spread)
    return made


def test_densities_integrate_to_one():
    axis = torch.linspace(-14, 14, 701, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        mass = flows()(grid).exp().sum(dim=0) * (axis[1] - axis[0]) ** 2
    torch.testing.assert_close(mass, torch.ones(3, dtype=torch.float64), atol=1e-2, rtol=0)


def test_classes_do_not_mix_and_have_normal_densities_without_stretch():
    made = flows(n_dimensions=4)
    points = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    made(points)[:, 1].sum().backward()
    for parameter in made.parameters():
        assert (parameter.grad[:, [0, 2]] == 0).all()
        assert (parameter.grad[:, 1] != 0).any()
    made = flows(n_dimensions=3)
    with torch.no_grad():
        made.raw_stretch.copy_(made.raw_radius)  # softplus(s) - softplus(r) = 0
    points = torch.randn(7, 3, dtype=torch.float64)
    normal = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double()).log_prob(points)
    torch.testing.assert_close(made(points), normal[:, None].expand(7, 3))
