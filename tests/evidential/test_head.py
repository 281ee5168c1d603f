"""Heads: positive evidence, and the objective of the paper."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma
from torch import nn

from skuq.evidential._head import (
    LogitHead,
    NetworkHead,
    ProbeLoss,
    has_conventional_offset,
    safe_exp,
)


@given(st.floats(-80, 6))
def test_exponential_is_accurate_far_below_its_cap(x):
    assert safe_exp(torch.tensor(x)).item() == pytest.approx(math.exp(x), rel=1e-4)


@given(st.floats(-20, 30), st.floats(-1e30, 1e30))
def test_exponential_never_exceeds_its_cap(cap, x):
    value = safe_exp(torch.tensor(x, dtype=torch.float64), cap).item()
    assert 0 <= value <= math.exp(cap) * (1 + 1e-12)


def test_exponential_rises_everywhere_and_so_does_its_gradient_stay_finite():
    x = torch.linspace(-100, 40, 1001, dtype=torch.float64, requires_grad=True)
    value = safe_exp(x)
    value.sum().backward()
    assert (value.diff() > 0).all()
    assert torch.isfinite(x.grad).all()
    assert (x.grad >= 0).all()


def head(**settings):
    torch.manual_seed(0)
    mean, scale = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.5, 1.0])
    return NetworkHead(mean, scale, 4, **settings).requires_grad_(False)


@pytest.fixture
def z():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("activation", "function"), [("exp", np.exp), ("softplus", lambda x: np.log1p(np.exp(x)))]
)
def test_evidence_is_the_activated_linear_map_of_standardised_inputs(z, activation, function):
    network = head(activation=activation)
    (linear,) = network.layers
    scores = ((z - network.mean) / network.scale).numpy() @ linear.weight.numpy().T
    expected = function(scores + linear.bias.numpy())
    np.testing.assert_allclose(network(z).numpy(), expected, rtol=2e-4)


def test_further_layers_have_the_widths_asked_for(z):
    network = head(hidden_sizes=(7, 5))
    widths = [m.out_features for m in network.layers if isinstance(m, nn.Linear)]
    assert widths == [7, 5, 4]
    assert network(z).shape == (6, 4)


@pytest.mark.parametrize("activation", ["exp", "softplus"])
def test_evidence_is_finite_and_not_negative_however_far_away(z, activation):
    evidence = head(activation=activation)(1e6 * z)
    assert torch.isfinite(evidence).all()
    assert (evidence >= 0).all()


@pytest.fixture
def problem():
    """Evidence, probabilities and weights of 7 nodes of 3 classes, 4 of them labelled."""
    rng = np.random.default_rng(0)
    return {
        "q": rng.exponential(20, size=(7, 3)),
        "p": rng.dirichlet(np.ones(3), size=7),
        "codes": np.array([0, -1, 2, 1, -1, -1, 0]),
        "weight": rng.uniform(0.5, 2, size=7),
        "label_weight": np.array([1.0, 0, 2, 0.5, 0, 0, 1]),
    }


def by_hand(q, p, codes, weight, label_weight, ice, pcl, high, low):
    """Eq. 15, node by node."""
    uce = regularisers = 0.0
    for i in range(len(q)):
        e = q[i].sum()
        alpha = (q.shape[1] + e) * p[i]
        if codes[i] >= 0:
            uce += label_weight[i] * (digamma(alpha.sum()) - digamma(alpha[codes[i]]))
        r = p[i].max()
        hinges = max(0, high - e) ** 2 + (1 - r) / r * max(0, e - low) ** 2
        regularisers += weight[i] * (ice * np.sum((alpha - q[i]) ** 2) + pcl * hinges)
    return uce / label_weight[codes >= 0].sum() + regularisers / weight.sum()


def loss_of(problem, *settings):
    inputs = {
        name: torch.tensor(problem[key])
        for name, key in (("proba", "p"), ("weight", "weight"), ("label_weight", "label_weight"))
    }
    evidence = torch.tensor(problem["q"], requires_grad=True)
    loss = ProbeLoss(*settings)(evidence, torch.tensor(problem["codes"]), inputs)
    loss.backward()
    return loss.item(), evidence.grad.numpy()


@pytest.mark.parametrize(
    "settings",
    [(0.0, 0.0, 100.0, 0.0), (0.3, 0.0, 100.0, 0.0), (0.0, 0.2, 100.0, 0.0), (0.1, 0.5, 60, 30)],
)
def test_objective_is_that_of_the_paper(problem, settings):
    assert loss_of(problem, *settings)[0] == pytest.approx(by_hand(**problem, **_names(settings)))


def _names(settings):
    return dict(zip(("ice", "pcl", "high", "low"), settings, strict=True))


def test_nodes_without_a_label_enter_the_regularisers_alone(problem):
    unlabelled = problem["codes"] < 0
    _, plain = loss_of(problem, 0.0, 0.0, 100.0, 0.0)
    assert (plain[unlabelled] == 0).all()
    assert (plain[~unlabelled] != 0).all()
    for settings in [(0.1, 0.0, 100.0, 0.0), (0.0, 0.1, 100.0, 0.0)]:
        assert (loss_of(problem, *settings)[1] != 0).all()


def test_probabilities_of_0_and_1_give_a_finite_loss_and_gradient(problem):
    problem["p"] = np.eye(3)[[1, 0, 2, 2, 1, 0, 1]]
    loss, gradient = loss_of(problem, 0.1, 0.1, 100.0, 0.0)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_evidence_of_logits_does_not_depend_on_a_conventional_offset():
    z = torch.linspace(-3, 3, 7)
    two = torch.stack([torch.zeros(7), z], dim=1)
    assert has_conventional_offset(two)
    assert has_conventional_offset(torch.randn(50, 4).log_softmax(dim=1))
    assert not has_conventional_offset(torch.randn(50, 4))
    head = LogitHead(1.0, centred=True)
    torch.testing.assert_close(head(two), head(torch.stack([-z, torch.zeros(7)], dim=1)))
    torch.testing.assert_close(head(two), torch.stack([(1 - z / 2).exp(), (1 + z / 2).exp()], 1))
