"""Evidential graph networks: the loss by definition, and what propagation adds."""

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln

from benchmarks.evidential_methods import EvidentialGNN
from benchmarks.evidential_methods.dirichlet_networks import DirichletLoss
from skuq.evidential import GraphClassifier, propagate


def model(data, entropy_weight=1e-4, propagation=None, **settings):
    settings = {"hidden_sizes": (8,), "max_epochs": 40, "random_state": 0, **settings}
    network = GraphClassifier(data.graph, **settings)
    return EvidentialGNN(network, entropy_weight=entropy_weight, propagation=propagation)


def divergence_from_uniform(alpha):
    total = alpha.sum()
    moments = (alpha - 1) @ (digamma(alpha) - digamma(total))
    return gammaln(total) - gammaln(alpha).sum() - gammaln(len(alpha)) + moments


def test_loss_by_definition():
    alpha = torch.tensor([[2.0, 5.0, 1.5], [1.0, 1.0, 9e6]])
    found = DirichletLoss(0.3)(alpha, torch.tensor([1, 0]))
    cross_entropy = digamma([8.5, 9e6 + 2]) - digamma([5.0, 1.0])
    divergence = [divergence_from_uniform(row) for row in alpha.double().numpy()]
    np.testing.assert_allclose(found, cross_entropy + 0.3 * np.array(divergence), rtol=1e-6)


def test_it_learns(data, nodes, y, others):
    fitted = model(data, learning_rate=0.1, patience=3)
    fitted.fit(nodes, y, X_val=others, y_val=data.labels[others])
    assert len(fitted.history_) < 40
    assert fitted.score(others, data.labels[others]) > 0.8
    assert (fitted.alpha_ >= 1).all()
    alpha = fitted.predict_dirichlet(others)
    u = fitted.predict_uncertainty(others)
    np.testing.assert_allclose(u.epistemic, 3 / alpha.sum(axis=1))
    np.testing.assert_allclose(u.aleatoric, 1 - fitted.predict_proba(others).max(axis=1))


def test_a_larger_weight_leaves_less_evidence(data, nodes, y, others):
    epistemic = [
        np.median(model(data, weight).fit(nodes, y).predict_uncertainty(others).epistemic)
        for weight in (0.0, 1.0)
    ]
    assert epistemic[1] > 2 * epistemic[0]


@pytest.mark.parametrize("scheme", ["vacuity", "evidence", "both"])
def test_propagation_follows_the_training(data, nodes, y, scheme):
    plain = model(data).fit(nodes, y)
    spread = model(data, propagation=scheme).fit(nodes, y)
    expected = propagate(plain.graph_.adjacency, plain.alpha_, scheme)
    np.testing.assert_allclose(spread.alpha_, expected)
    assert abs(spread.alpha_ - plain.alpha_).max() > 0.1
