"""Heads and losses by definition and integration; uncertainty of Dirichlet distributions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats
from scipy.integrate import quad
from scipy.special import beta as beta_function
from scipy.special import digamma, entr, expit

from skuq._information import has_conventional_offset
from skuq.evidential import EvidenceLoss, dirichlet_uncertainty
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
    assert (torch.isfinite(x.grad) & (x.grad >= 0)).all()


@pytest.mark.parametrize(
    ("activation", "function"), [("exp", np.exp), ("softplus", lambda x: np.log1p(np.exp(x)))]
)
def test_evidence_is_the_activated_linear_map_of_standardised_inputs(activation, function):
    torch.manual_seed(0)
    mean, scale = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.5, 1.0])
    Z = torch.randn(6, 3)
    network = NetworkEvidence(mean, scale, 4, activation=activation).requires_grad_(False)
    (linear,) = network.layers
    scores = ((Z - mean) / scale).numpy() @ linear.weight.numpy().T + linear.bias.numpy()
    np.testing.assert_allclose(network(Z).numpy(), function(scores), rtol=2e-4)
    far = network(1e6 * Z)
    assert (torch.isfinite(far) & (far >= 0)).all()


def test_evidence_of_logits_does_not_depend_on_a_conventional_offset():
    z = torch.linspace(-3, 3, 7)
    two = torch.stack([torch.zeros(7), z], dim=1)
    four = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    found = [has_conventional_offset(each) for each in (two, four.log_softmax(dim=1), four)]
    assert found == [True, True, False]
    head = LogitEvidence(1.0, centred=True)
    torch.testing.assert_close(head(two), head(torch.stack([-z, torch.zeros(7)], dim=1)))
    torch.testing.assert_close(head(two), torch.stack([(1 - z / 2).exp(), (1 + z / 2).exp()], 1))


RNG = np.random.default_rng(0)
PROBLEM = {"q": RNG.exponential(20, size=(7, 3)), "p": RNG.dirichlet(np.ones(3), size=7)}
PROBLEM |= {"codes": np.array([0, -1, 2, 1, -1, -1, 0]), "weight": RNG.uniform(0.5, 2, size=7)}
PROBLEM |= {"label_weight": np.array([1.0, 0, 2, 0.5, 0, 0, 1])}


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


def loss_of(problem, *levels):
    names = {"proba": "p", "weight": "weight", "label_weight": "label_weight"}
    inputs = {name: torch.tensor(problem[key]) for name, key in names.items()}
    evidence = torch.tensor(problem["q"], requires_grad=True)
    loss = ProbeLoss(EvidenceLoss(*levels))(evidence, torch.tensor(problem["codes"]), inputs)
    loss.backward()
    return loss.item(), evidence.grad.numpy()


@pytest.mark.parametrize(
    "levels", [(0.0, 0.0, 100.0, 0.0), (0.3, 0, 100.0, 0), (0, 0.2, 100.0, 0), (0.1, 0.5, 60, 30)]
)
def test_objective_is_that_of_the_paper_and_labels_enter_its_first_term_alone(levels):
    loss, gradient = loss_of(PROBLEM, *levels)
    names = dict(zip(("ice", "pcl", "high", "low"), levels, strict=True))
    assert loss == pytest.approx(by_hand(**PROBLEM, **names))
    labelled = PROBLEM["codes"] >= 0
    assert (gradient[labelled] != 0).all()
    assert (gradient[~labelled] != 0).ravel().tolist() == [any(levels[:2])] * 9
    loss, gradient = loss_of({**PROBLEM, "p": np.eye(3)[[1, 0, 2, 2, 1, 0, 1]]}, *levels)
    assert np.isfinite([loss, *gradient.ravel()]).all()


@pytest.mark.parametrize("label", [0, 1, 2])
def test_uce_is_the_integral_of_the_cross_entropy(label):
    for alpha in np.array([[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0]]):
        a, b = alpha[label], alpha.sum() - alpha[label]  # one probability is Beta distributed
        # The weight of the rule is p^(a-1) (1-p)^(b-1) log p.
        integral, _ = quad(lambda p: 1.0, 0, 1, weight="alg-loga", wvar=(a - 1, b - 1), epsabs=0)
        loss = uce_loss(torch.tensor(alpha)[None], torch.tensor([label])).item()
        assert loss == pytest.approx(-integral / beta_function(a, b), rel=1e-6)


@pytest.mark.parametrize("levels", [(100.0, 0.0), (10.0, 2.0)])
def test_pcl_is_smallest_where_it_says(levels):
    high, low = levels
    grid = torch.linspace(0, 150, 15_001, dtype=torch.float64)
    for confidence in (0.2, 0.5, 0.9, 1.0):
        loss = pcl_loss(grid, torch.full_like(grid, confidence), *levels)
        best = grid[loss.argmin()].item()
        assert best == pytest.approx(confidence * high + (1 - confidence) * low, abs=0.011)


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: uce_loss(a, torch.tensor([0, 1])),
        lambda a: ice_loss(a, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=a.dtype)),
        lambda a: pcl_loss(a.sum(dim=1), torch.tensor([1.0, 0.5], dtype=a.dtype), 100.0, 0.0),
    ],
    ids=["uce", "ice", "pcl"],
)
def test_losses_and_gradients_are_finite_at_extremes(loss):
    alpha = torch.tensor([[1.0, 3.0], [1.0, 1.0]])
    for scale in (1e-6, 1.0, 1e7):
        for dtype in (torch.float32, torch.float64):
            given = (scale * alpha.to(dtype)).requires_grad_()
            values = loss(given)
            values.sum().backward()
            assert torch.isfinite(values).all()
            assert torch.isfinite(given.grad).all()


ALPHA = np.array([[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 0.01]])
CONCENTRATIONS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5),
    elements=st.floats(1e-6, 1e9),
)
both_measures = pytest.mark.parametrize("measure", ["vacuity", "information"])


def test_vacuity_measure_is_the_paper_s():
    u, strength = dirichlet_uncertainty(ALPHA), ALPHA.sum(axis=1)
    np.testing.assert_allclose(u.epistemic, 3 / strength)
    np.testing.assert_allclose(u.aleatoric, 1 - ALPHA.max(axis=1) / strength)


@both_measures
@settings(max_examples=30)
@given(alpha=CONCENTRATIONS)
def test_total_is_the_sum_and_no_part_is_negative(measure, alpha):
    u = dirichlet_uncertainty(alpha, measure)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-8)
    for part in u.parts:
        assert part.dtype == np.float64
        assert part.shape == (len(alpha),)
        assert (part >= 0).all()
    if measure == "information":
        mean = alpha / alpha.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(u.total, entr(mean).sum(axis=1), rtol=1e-7)


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.5, 3.0), (20.0, 30.0), (0.2, 0.1)])
def test_expected_entropy_of_two_classes_is_an_integral(alpha):
    # Over the logit, where the integrand is smooth however small alpha is.
    x = np.linspace(-300, 300, 600_001)
    log_density = alpha[0] * -np.logaddexp(0, -x) + alpha[1] * -np.logaddexp(0, x)
    density = np.exp(log_density - log_density.max())
    expected = np.average(entr(expit(x)) + entr(expit(-x)), weights=density)
    u = dirichlet_uncertainty(np.array([alpha]), "information")
    assert u.aleatoric[0] == pytest.approx(expected, rel=1e-6)


def test_expected_entropy_is_the_mean_over_samples():
    found = dirichlet_uncertainty(ALPHA, "information").aleatoric
    for alpha, entropy in zip(ALPHA, found, strict=True):
        values = entr(stats.dirichlet(alpha).rvs(50_000, random_state=0)).sum(axis=1)
        assert entropy == pytest.approx(values.mean(), abs=5 * values.std() / np.sqrt(50_000))


@both_measures
def test_epistemic_part_falls_to_zero_as_evidence_of_the_same_proportions_grows(measure):
    proportions = np.array([0.6, 0.3, 0.1])
    near, far = np.logspace(-2, 6, 30)[:, None], np.logspace(7, 18, 99)[:, None]
    assert (np.diff(dirichlet_uncertainty(near * proportions, measure).epistemic) < 0).all()
    u = dirichlet_uncertainty(far * proportions, measure)
    assert ((u.epistemic >= 0) & (u.epistemic < 1e-6)).all()
    expected = {"vacuity": 0.4, "information": entr(proportions).sum()}[measure]
    assert u.aleatoric[-1] == pytest.approx(expected)


@both_measures
def test_smallest_concentrations_give_no_nan(measure):
    alpha = np.array([[5.0, np.finfo(np.float64).tiny], [1e-300, 1e-300]])
    assert np.isfinite(dirichlet_uncertainty(alpha, measure)).all()
    u = dirichlet_uncertainty(np.full((1, 2), 1e-9), "information")
    assert u.epistemic[0] == pytest.approx(np.log(2), rel=1e-6)  # almost all is epistemic
