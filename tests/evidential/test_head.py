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


@given(st.floats(-80, 6), st.floats(-20, 30), st.floats(-1e30, 1e30))
def test_exponential_is_accurate_far_below_its_cap_and_never_exceeds_it(low, cap, x):
    assert safe_exp(torch.tensor(low)).item() == pytest.approx(math.exp(low), rel=1e-4)
    value = safe_exp(torch.tensor(x, dtype=torch.float64), cap).item()
    assert 0 <= value <= math.exp(cap) * (1 + 1e-12)


def test_exponential_rises_everywhere_and_so_does_its_gradient_stay_finite():
    x = torch.linspace(-100, 40, 1001, dtype=torch.float64, requires_grad=True)
    value = safe_exp(x)
    value.sum().backward()
    assert (value.diff() > 0).all()
    assert torch.isfinite(x.grad).all()
    assert (x.grad >= 0).all()


Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def head(**settings):
    torch.manual_seed(0)
    mean, scale = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.5, 1.0])
    return NetworkEvidence(mean, scale, 4, **settings).requires_grad_(False)


@pytest.mark.parametrize(
    ("activation", "function"), [("exp", np.exp), ("softplus", lambda x: np.log1p(np.exp(x)))]
)
def test_evidence_is_the_activated_linear_map_of_standardised_inputs(activation, function):
    network = head(activation=activation)
    (linear,) = network.layers
    scores = ((Z - network.mean) / network.scale).numpy() @ linear.weight.numpy().T
    expected = function(scores + linear.bias.numpy())
    np.testing.assert_allclose(network(Z).numpy(), expected, rtol=2e-4)
    far = network(1e6 * Z)
    assert torch.isfinite(far).all()
    assert (far >= 0).all()


def test_further_layers_have_the_widths_asked_for():
    network = head(hidden_sizes=(7, 5))
    widths = [m.out_features for m in network.layers if isinstance(m, nn.Linear)]
    assert widths == [7, 5, 4]
    assert network(Z).shape == (6, 4)


def test_evidence_of_logits_does_not_depend_on_a_conventional_offset():
    z = torch.linspace(-3, 3, 7)
    two = torch.stack([torch.zeros(7), z], dim=1)
    assert has_conventional_offset(two)
    torch.manual_seed(0)
    assert has_conventional_offset(torch.randn(50, 4).log_softmax(dim=1))
    assert not has_conventional_offset(torch.randn(50, 4))
    head = LogitEvidence(1.0, centred=True)
    torch.testing.assert_close(head(two), head(torch.stack([-z, torch.zeros(7)], dim=1)))
    torch.testing.assert_close(head(two), torch.stack([(1 - z / 2).exp(), (1 + z / 2).exp()], 1))


@pytest.fixture
def problem():
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
    names = {"proba": "p", "weight": "weight", "label_weight": "label_weight"}
    inputs = {name: torch.tensor(problem[key]) for name, key in names.items()}
    evidence = torch.tensor(problem["q"], requires_grad=True)
    loss = ProbeLoss(EvidenceLoss(*settings))(evidence, torch.tensor(problem["codes"]), inputs)
    loss.backward()
    return loss.item(), evidence.grad.numpy()


@pytest.mark.parametrize(
    "settings", [(0.0, 0.0, 100.0, 0.0), (0.3, 0, 100.0, 0), (0, 0.2, 100.0, 0), (0.1, 0.5, 60, 30)]
)
def test_objective_is_that_of_the_paper_and_labels_enter_its_first_term_alone(problem, settings):
    loss, gradient = loss_of(problem, *settings)
    names = dict(zip(("ice", "pcl", "high", "low"), settings, strict=True))
    assert loss == pytest.approx(by_hand(**problem, **names))
    unlabelled = problem["codes"] < 0
    assert (gradient[~unlabelled] != 0).all()
    assert (gradient[unlabelled] != 0).all() == any(settings[:2])
    assert any(settings[:2]) or not gradient[unlabelled].any()
    loss, gradient = loss_of({**problem, "p": np.eye(3)[[1, 0, 2, 2, 1, 0, 1]]}, *settings)
    assert np.isfinite([loss, *gradient.ravel()]).all()


ALPHA = torch.tensor(
    [[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 1e-2]],
    dtype=torch.float64,
)
each_label = pytest.mark.parametrize("label", [0, 1, 2])


def codes(value, n=4):
    return torch.full((n,), value)


def check_against_samples(losses, function, alphas):
    for alpha, loss in zip(alphas.numpy(), losses, strict=True):
        values = function(np.random.default_rng(0).dirichlet(alpha, size=100_000))
        error = values.std() / np.sqrt(len(values))
        assert loss.item() == pytest.approx(values.mean(), abs=5 * error)


@each_label
def test_uce_is_the_integral_and_the_sampled_mean_of_the_cross_entropy(label):
    for alpha in ALPHA[:3].numpy():
        a, b = alpha[label], alpha.sum() - alpha[label]  # one probability is Beta distributed
        # The weight of the rule is p^(a-1) (1-p)^(b-1) log p.
        integral, _ = quad(lambda p: 1.0, 0, 1, weight="alg-loga", wvar=(a - 1, b - 1), epsabs=0)
        loss = uce_loss(torch.tensor(alpha)[None], codes(label, 1)).item()
        assert loss == pytest.approx(-integral / beta_function(a, b), rel=1e-6)
    losses = uce_loss(ALPHA[:3], codes(label, 3))
    check_against_samples(losses, lambda p: -np.log(p[:, label]), ALPHA[:3])


def test_uce_approaches_the_cross_entropy_as_evidence_grows():
    proba = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    loss = uce_loss(1e9 * proba, torch.tensor([1]))
    torch.testing.assert_close(loss, -proba[:, 1].log(), rtol=0, atol=1e-7)


def test_ice_is_the_squared_distance_of_the_definition():
    rng = np.random.default_rng(0)
    q, p = rng.exponential(size=(5, 3)), rng.dirichlet(np.ones(3), size=5)
    expected = [np.sum(((3 + q[i].sum()) * p[i] - q[i]) ** 2) for i in range(5)]
    np.testing.assert_allclose(ice_loss(torch.tensor(q), torch.tensor(p)), expected)
    proba = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    assert ice_loss((3 + 20) * proba - 1, proba).item() == pytest.approx(3)  # the smallest


@settings(max_examples=30)
@given(
    arrays(np.float64, 4, elements=st.floats(0, 1e3)),
    arrays(np.float64, 4, elements=st.floats(1e-3, 1)),
)
def test_ice_is_at_least_the_number_of_classes(q, p):
    # The two vectors differ by C in sum, so by 1 in each class at best.
    loss = ice_loss(torch.tensor(q)[None], torch.tensor(p / p.sum())[None])
    assert loss.item() >= 4 * (1 - 1e-9)


@pytest.mark.parametrize("levels", [(100.0, 0.0), (10.0, 2.0)])
def test_pcl_is_smallest_where_it_says(levels):
    high, low = levels
    grid = torch.linspace(0, 150, 15_001, dtype=torch.float64)
    for confidence in (0.2, 0.5, 0.9, 1.0):
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
    certain = pcl_loss(torch.tensor([100.0, 1e4]), torch.ones(2), 100.0, 0.0)
    assert certain.tolist() == [0, 0]


@each_label
def test_square_loss_is_squared_bias_plus_variance_and_the_sampled_mean(label):
    distribution = Dirichlet(ALPHA)
    true, losses = torch.eye(3).double()[label], expected_square_loss(ALPHA, codes(label))
    expected = ((true - distribution.mean).square() + distribution.variance).sum(dim=1)
    torch.testing.assert_close(losses, expected)
    check_against_samples(losses, lambda p: ((true.numpy() - p) ** 2).sum(axis=1), ALPHA)


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
def test_losses_and_gradients_are_finite_at_extremes(loss, dtype):
    for scale in (1e-6, 1.0, 1e7):
        alpha = (scale * torch.tensor([[1.0, 3.0], [1.0, 1.0]], dtype=dtype)).requires_grad_()
        values = loss(alpha)
        values.sum().backward()
        assert values.shape == (2,)
        assert torch.isfinite(values).all()
        assert torch.isfinite(alpha.grad).all()
