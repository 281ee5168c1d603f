"""Heads: positive evidence; losses by definition, integration and sampling; the objective."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.special import beta as beta_function
from scipy.special import digamma
from torch import nn
from torch.distributions import Dirichlet

from benchmarks.evidential_methods.gkde import expected_square_loss
from skuq._information import has_conventional_offset
from skuq.evidential import EvidenceLoss
from skuq.evidential._evidence import (
    LogitEvidence,
    NetworkEvidence,
    ProbeLoss,
    ice_loss,
    pcl_loss,
    safe_exp,
    uce_loss,
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
    return NetworkEvidence(mean, scale, 4, **settings).requires_grad_(False)


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
    loss = ProbeLoss(EvidenceLoss(*settings))(evidence, torch.tensor(problem["codes"]), inputs)
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
    for weights in [(0.1, 0.0), (0.0, 0.1)]:
        assert (loss_of(problem, *weights, 100.0, 0.0)[1] != 0).all()


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
    head = LogitEvidence(1.0, centred=True)
    torch.testing.assert_close(head(two), head(torch.stack([-z, torch.zeros(7)], dim=1)))
    torch.testing.assert_close(head(two), torch.stack([(1 - z / 2).exp(), (1 + z / 2).exp()], 1))


ALPHA = torch.tensor(
    [[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 1e-2]],
    dtype=torch.float64,
)


def codes(value, n=4):
    return torch.full((n,), value)


def sampled(alpha, function, n=100_000):
    """Mean of a function of class probabilities, and its standard error."""
    values = function(np.random.default_rng(0).dirichlet(alpha, size=n))
    return values.mean(), values.std() / np.sqrt(n)


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("alpha", ALPHA[:3].numpy(), ids=str)
def test_uce_is_the_integral_of_the_cross_entropy(alpha, label):
    a, b = alpha[label], alpha.sum() - alpha[label]  # one probability is Beta distributed
    # The weight of the rule is p^(a-1) (1-p)^(b-1) log p.
    integral, _ = quad(lambda p: 1.0, 0, 1, weight="alg-loga", wvar=(a - 1, b - 1), epsabs=0)
    loss = uce_loss(torch.tensor(alpha)[None], codes(label, 1)).item()
    assert loss == pytest.approx(-integral / beta_function(a, b), rel=1e-6)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_uce_is_the_mean_cross_entropy_of_sampled_probabilities(label):
    for alpha, loss in zip(ALPHA[:3], uce_loss(ALPHA[:3], codes(label, 3)), strict=True):
        mean, error = sampled(alpha.numpy(), lambda p: -np.log(p[:, label]))
        assert loss.item() == pytest.approx(mean, abs=5 * error)


def test_uce_approaches_the_cross_entropy_as_evidence_grows():
    proba = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    loss = uce_loss(1e9 * proba, torch.tensor([1]))
    torch.testing.assert_close(loss, -proba[:, 1].log(), rtol=0, atol=1e-7)


def test_ice_is_the_squared_distance_of_the_definition():
    rng = np.random.default_rng(0)
    q, p = rng.exponential(size=(5, 3)), rng.dirichlet(np.ones(3), size=5)
    expected = [np.sum(((3 + q[i].sum()) * p[i] - q[i]) ** 2) for i in range(5)]
    np.testing.assert_allclose(ice_loss(torch.tensor(q), torch.tensor(p)), expected)


@settings(max_examples=50)
@given(
    arrays(np.float64, 4, elements=st.floats(0, 1e3)),
    arrays(np.float64, 4, elements=st.floats(1e-3, 1)),
)
def test_ice_is_at_least_the_number_of_classes(q, p):
    # The two vectors differ by C in sum, so by 1 in each class at best.
    loss = ice_loss(torch.tensor(q)[None], torch.tensor(p / p.sum())[None])
    assert loss.item() >= 4 * (1 - 1e-9)


def test_ice_is_smallest_one_below_the_implied_concentration():
    proba = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    evidence = (3 + 20) * proba - 1
    assert ice_loss(evidence, proba).item() == pytest.approx(3)


@pytest.mark.parametrize("levels", [(100.0, 0.0), (10.0, 2.0)])
@pytest.mark.parametrize("confidence", [0.2, 0.5, 0.9, 1.0])
def test_pcl_is_smallest_where_it_says(confidence, levels):
    high, low = levels
    grid = torch.linspace(0, 150, 15_001, dtype=torch.float64)
    loss = pcl_loss(grid, torch.full_like(grid, confidence), *levels)
    best = grid[loss.argmin()].item()
    assert best == pytest.approx(confidence * high + (1 - confidence) * low, abs=0.011)


def test_pcl_is_the_two_hinges_of_the_definition():
    e = torch.tensor([-0.0, 1.0, 5.0, 30.0], dtype=torch.float64)
    r = torch.tensor([0.25, 0.25, 0.5, 0.8], dtype=torch.float64)
    expected = [
        max(0, 10 - a) ** 2 + (1 - b) / b * max(0, a - 2) ** 2
        for a, b in zip(e.tolist(), r.tolist(), strict=True)
    ]
    assert pcl_loss(e, r, 10.0, 2.0).tolist() == pytest.approx(expected)


def test_pcl_does_not_punish_much_evidence_for_what_is_certain():
    evidence = torch.tensor([100.0, 1e4])
    assert pcl_loss(evidence, torch.ones(2), 100.0, 0.0).tolist() == [0, 0]


@pytest.mark.parametrize("label", [0, 1, 2])
def test_square_loss_is_squared_bias_plus_variance(label):
    distribution = Dirichlet(ALPHA)
    true = torch.eye(3, dtype=torch.float64)[label]
    expected = ((true - distribution.mean).square() + distribution.variance).sum(dim=1)
    torch.testing.assert_close(expected_square_loss(ALPHA, codes(label)), expected)


def test_square_loss_is_the_mean_of_sampled_probabilities():
    true = np.eye(3)[1]
    for alpha, loss in zip(ALPHA, expected_square_loss(ALPHA, codes(1)), strict=True):
        mean, error = sampled(alpha.numpy(), lambda p: ((true - p) ** 2).sum(axis=1))
        assert loss.item() == pytest.approx(mean, abs=5 * error)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "loss",
    [
        lambda a: uce_loss(a, torch.tensor([0, 1])),
        lambda a: expected_square_loss(a, torch.tensor([0, 1])),
        lambda a: ice_loss(a, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=a.dtype)),
        lambda a: pcl_loss(a.sum(dim=1), torch.tensor([1.0, 0.5], dtype=a.dtype), 100.0, 0.0),
    ],
    ids=["uce", "square", "ice", "pcl"],
)
def test_losses_and_gradients_are_finite_at_extremes(loss, dtype, scale):
    alpha = (scale * torch.tensor([[1.0, 3.0], [1.0, 1.0]], dtype=dtype)).requires_grad_()
    values = loss(alpha)
    values.sum().backward()
    assert values.shape == (2,)
    assert torch.isfinite(values).all()
    assert torch.isfinite(alpha.grad).all()
