"""Evidential networks and the kernel prior: losses by definition, priors against loops."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.csgraph import shortest_path
from scipy.special import digamma, gammaln
from scipy.stats import norm
from torch.distributions import Categorical, Dirichlet, kl_divergence

from benchmarks.evidential_methods import EvidentialGNN, KernelDirichletGNN, gkde
from benchmarks.evidential_methods.dirichlet_networks import DirichletLoss
from benchmarks.evidential_methods.gkde import KernelLoss, hops, kernel_dirichlet
from skuq.evidential import GraphClassifier, propagate


def of_evidence(data, entropy_weight=1e-4, propagation=None, **settings):
    settings = {"hidden_sizes": (8,), "max_epochs": 40, "random_state": 0, **settings}
    network = GraphClassifier(data.graph, **settings)
    return EvidentialGNN(network, entropy_weight=entropy_weight, propagation=propagation)


def divergence_from_uniform(alpha):
    total = alpha.sum()
    moments = (alpha - 1) @ (digamma(alpha) - digamma(total))
    return gammaln(total) - gammaln(alpha).sum() - gammaln(len(alpha)) + moments


def test_loss_of_evidence_by_definition():
    alpha = torch.tensor([[2.0, 5.0, 1.5], [1.0, 1.0, 9e6]])
    found = DirichletLoss(0.3)(alpha, torch.tensor([1, 0]))
    cross_entropy = digamma([8.5, 9e6 + 2]) - digamma([5.0, 1.0])
    divergence = [divergence_from_uniform(row) for row in alpha.double().numpy()]
    np.testing.assert_allclose(found, cross_entropy + 0.3 * np.array(divergence), rtol=1e-6)


def test_evidence_is_learnt_and_a_larger_weight_leaves_less(data, nodes, y, others):
    fitted = of_evidence(data, learning_rate=0.1, patience=3)
    fitted.fit(nodes, y, X_val=others, y_val=data.labels[others])
    assert len(fitted.history_) < 40
    assert fitted.score(others, data.labels[others]) > 0.8
    assert (fitted.alpha_ >= 1).all()
    alpha = fitted.predict_dirichlet(others)
    u = fitted.predict_uncertainty(others)
    np.testing.assert_allclose(u.epistemic, 3 / alpha.sum(axis=1))
    np.testing.assert_allclose(u.aleatoric, 1 - fitted.predict_proba(others).max(axis=1))
    fitted = (of_evidence(data, weight).fit(nodes, y) for weight in (0.0, 1.0))
    little, much = (np.median(each.predict_uncertainty(others).epistemic) for each in fitted)
    assert much > 2 * little


@pytest.mark.parametrize("scheme", ["vacuity", "evidence", "both"])
def test_propagation_follows_the_training(data, nodes, y, scheme):
    plain = of_evidence(data).fit(nodes, y)
    spread = of_evidence(data, propagation=scheme).fit(nodes, y)
    expected = propagate(plain.graph_.adjacency, plain.alpha_, scheme)
    np.testing.assert_allclose(spread.alpha_, expected)
    assert abs(spread.alpha_ - plain.alpha_).max() > 0.1


ALPHA = torch.tensor([[3.0, 1.5, 1.2], [1.0, 9.0, 2.0], [1.1, 1.1, 40.0]])
CODES = torch.tensor([0, -1, 1])
WEIGHT = torch.tensor([2.0, 0.0, 1.0])
PRIOR = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.4, 1.2], [1.0, 1.0, 3.0]]).double()
TEACHER = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]).double()
INPUTS = {"weight": WEIGHT, "prior": PRIOR, "log_proba": TEACHER.log()}


def expected_square():
    """Of the two labelled nodes, by moments of the Dirichlet distribution."""
    values = []
    for row in (0, 2):
        law = Dirichlet(ALPHA[row].double())
        true = torch.nn.functional.one_hot(CODES[row], 3)
        values.append(((true - law.mean) ** 2 + law.variance).sum())
    return (2 * values[0] + values[1]) / 3


@pytest.mark.parametrize("teacher_weight", [0.0, 0.25])
def test_loss_while_training_and_while_validating(teacher_weight):
    loss = KernelLoss().train()
    loss.teacher_weight = teacher_weight
    alpha = ALPHA.double()
    from_prior = kl_divergence(Dirichlet(alpha), Dirichlet(PRIOR)).mean()
    student = Categorical(alpha / alpha.sum(dim=1, keepdim=True))
    from_teacher = kl_divergence(student, Categorical(TEACHER)).mean()
    expected = expected_square() + 0.1 * from_prior + teacher_weight * from_teacher
    share = torch.full((len(ALPHA),), 1 / len(ALPHA))
    torch.testing.assert_close(loss(ALPHA, CODES, {**INPUTS, "share": share}), expected)
    loss.teacher_weight = 1.0
    torch.testing.assert_close(loss.eval()(ALPHA, CODES, {"weight": WEIGHT}), expected_square())


def model(data, **settings):
    settings = {"hidden_sizes": (16,), "max_epochs": 60, "random_state": 0, **settings}
    return KernelDirichletGNN(GraphClassifier(data.graph, **settings))


def test_weight_counts_as_repetition(data, nodes, y):
    weight = np.where(np.arange(len(nodes)) == 3, 3.0, 1.0)
    rows = np.repeat(np.arange(len(nodes)), weight.astype(int))
    weighted = model(data, max_epochs=15).fit(nodes, y, sample_weight=weight)
    repeated = model(data, max_epochs=15).fit(nodes[rows], y[rows])
    np.testing.assert_allclose(weighted.alpha_, repeated.alpha_, rtol=1e-3)


def test_it_learns_with_a_teacher_and_a_prior_and_stops_early(data, nodes, y, others):
    fitted = model(data).fit(nodes, y)
    assert fitted.teacher_.hidden_sizes == (64,)
    assert fitted.network_.network.layers[0].linear.out_features == 16
    expected = kernel_dirichlet(fitted.graph_.adjacency, nodes, y, 3)
    np.testing.assert_allclose(fitted.prior_, expected, rtol=1e-6)
    assert fitted.score(others, data.labels[others]) > 0.8
    assert (fitted.alpha_ >= 1).all()
    stopped = model(data, learning_rate=0.1, patience=3)
    stopped.fit(nodes, y, X_val=others, y_val=data.labels[others])
    assert len(stopped.history_) < 60
    assert "valid_loss" in stopped.teacher_.history_[-1]


def test_the_teacher_weighs_more_from_epoch_to_epoch(data, nodes, y, monkeypatch):
    weights = []
    forward = KernelLoss.forward

    def recorded(self, *args):
        weights.append(self.teacher_weight)
        return forward(self, *args)

    monkeypatch.setattr(KernelLoss, "forward", recorded)
    model(data, max_epochs=202).fit(nodes, y)
    np.testing.assert_allclose(weights, np.minimum(1, np.arange(1, 203) / 200))


@pytest.fixture(scope="module")
def adjacency(data):
    """A generated graph, with a part of its own and a long chain."""
    chain = sparse.diags_array([np.ones(14), np.ones(14)], offsets=[1, -1])
    return sparse.csr_array(sparse.block_diag([data.adjacency[:60, :60], chain]))


def test_hops_against_shortest_paths(adjacency):
    sources = np.array([0, 17, 60, 67, 17])
    expected = shortest_path(adjacency.toarray(), unweighted=True, indices=sources).T
    found = hops(adjacency, sources, cutoff=1000)
    np.testing.assert_array_equal(np.where(found < 0, np.inf, found), expected)
    assert (found < 0).any()
    near = hops(adjacency, sources, cutoff=3)
    np.testing.assert_array_equal(near, np.where((found > 3) | (found < 0), -1, found))


def test_prior_against_shortest_paths(adjacency, monkeypatch):
    nodes, codes = np.array([0, 5, 9, 60]), np.array([2, 0, 2, 1])
    lengths = shortest_path(adjacency.toarray(), unweighted=True, indices=nodes)
    expected = np.ones((adjacency.shape[0], 4))
    for code, length in zip(codes, lengths, strict=True):
        expected[:, code] += np.where(length <= 10, norm.pdf(length), 0)
    found = kernel_dirichlet(adjacency, nodes, codes, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[71, 1] == 1  # 11 edges away
    found = kernel_dirichlet(adjacency, nodes[:1], codes[3:], 2, weight=np.array([3.0]), sigma=2.0)
    at_neighbour = found[np.flatnonzero(adjacency[[0]].toarray()[0])[0], 1]
    assert at_neighbour == pytest.approx(1 + 3 * norm.pdf(1, scale=2))
    # Batches of labelled nodes add up.
    nodes, codes = np.arange(40), np.arange(40) % 3
    whole = kernel_dirichlet(adjacency, nodes, codes, 3)
    monkeypatch.setattr(gkde, "BATCH_SIZE", 7)
    np.testing.assert_allclose(kernel_dirichlet(adjacency, nodes, codes, 3), whole)
