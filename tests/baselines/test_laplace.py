"""Laplace's approximation of the last layer: curvatures, posteriors and evidence in closed form."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.func import hessian
from torch.nn.functional import cross_entropy, linear

from skuq._networks import BinaryLogits, Columns, LogProbabilities
from skuq.baselines import LaplaceClassifier
from skuq.baselines import _laplace as curvature_module
from skuq.baselines._laplace import last_layer_curvature, last_layer_posterior
from tests.baselines.oracles import seeded_module
from tests.written import Written


def rand(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture(autouse=True)
def leaves_the_global_random_state_alone():
    state = torch.random.get_rng_state()
    yield
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.fixture(params=[None, 40], ids=["one chunk", "many chunks"])
def chunk(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(curvature_module, "_CHUNK", request.param)


def softmax_hessian(features, weights, sample_weight, targets, bias):
    inputs = torch.cat([features, torch.ones(len(features), 1)], 1) if bias else features

    def loss(flat):
        logits = inputs @ flat.reshape(weights.shape).mT
        return sample_weight @ cross_entropy(logits, targets, reduction="none")

    return hessian(loss)(weights.flatten()), (inputs @ weights.mT).log_softmax(-1)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(("bias", "n_classes"), [(True, 2), (False, 4)])
def test_last_layer_curvature_is_the_hessian_of_the_summed_loss(bias, n_classes):
    features, weight = rand(15, 3), rand(15).exp()
    weights = rand(n_classes, 3 + bias, seed=1)
    targets = torch.arange(15) % n_classes
    expected, log_proba = softmax_hessian(features, weights, weight, targets, bias)
    found = last_layer_curvature(features, log_proba, weight, bias=bias)
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float64
    assert torch.linalg.eigvalsh(found).min() > -1e-12


def test_nearly_certain_class_keeps_its_curvature():
    log_proba = torch.tensor([[0.0, -60.0]], dtype=torch.float64)  # 1 - p is below rounding
    found = last_layer_curvature(torch.ones(1, 1), log_proba, torch.ones(1), bias=False)
    expected = torch.full((2,), math.exp(-60), dtype=torch.float64)
    torch.testing.assert_close(found.diagonal(), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("scale", "squared_norm"), [(1e-3, 1.0), (1e-3, 50.0), (1.0, 1e-3), (1e4, 1.0), (1e4, 50.0)]
)
def test_prior_precision_maximises_the_evidence(scale, squared_norm):
    eigenvalues = np.random.default_rng(0).gamma(0.5, scale, size=20)
    found = curvature_module.evidence_prior_precision(torch.tensor(eigenvalues), squared_norm)

    def minus_log_evidence(log_precision):
        a = math.exp(log_precision)
        return 0.5 * a * squared_norm - 0.5 * np.log(a / (a + eigenvalues)).sum()

    bounds = math.log(1e-8), math.log(1e8)
    options = {"bounds": bounds, "method": "bounded", "options": {"xatol": 1e-10}}
    best = minimize_scalar(minus_log_evidence, **options)
    assert math.log(found) == pytest.approx(best.x, abs=1e-4)


def test_prior_precision_is_bounded_where_the_evidence_has_no_maximum():
    assert curvature_module.evidence_prior_precision(torch.ones(3), 0.0) == pytest.approx(1e8)
    assert curvature_module.evidence_prior_precision(torch.zeros(3), 1.0) == pytest.approx(1e-8)


@pytest.mark.parametrize("bias", [True, False])
def test_distribution_of_outputs_follows_from_that_of_the_weights(bias):
    known, weights, features = rand(20, 2), rand(3, 2, seed=4), rand(6, 2, seed=8)
    shift = rand(3, seed=5) if bias else None
    log_proba = linear(known, weights, shift).log_softmax(-1)
    H = last_layer_curvature(known, log_proba, torch.ones(20), bias=bias)
    covariance = torch.linalg.inv(H + 0.7 * torch.eye(len(H), dtype=torch.float64))
    mean, factor = last_layer_posterior(weights, shift, H, 0.7).outputs(features)
    torch.testing.assert_close(mean, linear(features, weights, shift))
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    for one, root in zip(features, factor, strict=True):
        phi = torch.cat([one, torch.ones(1)]) if bias else one
        J = torch.block_diag(phi[None], phi[None], phi[None])
        torch.testing.assert_close(root @ root.mT, J @ covariance @ J.mT)


def test_posterior_of_logistic_regression_has_the_closed_form_variance_and_is_positive_definite():
    # One parameter: curvature sum p (1 - p) x^2 by hand.
    x, w, prior = np.array([-1.0, 0.5, 2.0]), 0.3, 2.0
    p = 1 / (1 + np.exp(-w * x))
    variance = 1 / ((p * (1 - p) * x**2).sum() + prior)
    H = torch.tensor([[(p * (1 - p) * x**2).sum()]])
    posterior = last_layer_posterior(torch.tensor([[w]]), None, H, prior)
    mean, factor = posterior.outputs(torch.tensor([[4.0]]))
    assert mean.item() == pytest.approx(4 * w)
    assert factor.item() == pytest.approx(4 * math.sqrt(variance))
    with pytest.raises(ValueError, match="positive definite"):
        last_layer_posterior(torch.zeros(2, 1), None, -torch.eye(2), 0.5)


def test_laplace_of_binary_logistic_regression_has_the_closed_form(iris):
    X, y = iris[0][50:, :2], iris[1][50:]
    weight = np.random.default_rng(0).uniform(0.2, 2, len(y))
    mine = LogisticRegression().fit(X, y, sample_weight=weight)
    options = {"prior_precision": 0.5, "n_samples": 4000, "setting": "selected"}
    model = LaplaceClassifier(FrozenEstimator(mine), random_state=0, **options)
    model.fit(X, y, sample_weight=weight)
    phi = np.c_[X, np.ones(len(X))]
    p = mine.predict_proba(X)[:, 1]
    covariance = np.linalg.inv(phi.T * (weight * p * (1 - p)) @ phi + 0.5 * np.eye(3))
    _, factor = model.posterior_.outputs(torch.as_tensor(X))
    variance = np.einsum("ni,ij,nj->n", phi, covariance, phi)
    np.testing.assert_allclose(factor[:, 0, 0] ** 2, variance, rtol=1e-6)
    # Eq. 2 by quadrature over the one logit, against sampling.
    z = mine.decision_function(X[:6])[:, None]
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    sampled = z + np.sqrt(variance[:6, None]) * nodes
    reference = p[:6, None]
    divergence = reference * (z - sampled) + np.logaddexp(0, sampled) - np.logaddexp(0, z)
    u = model.predict_uncertainty(X[:6])
    np.testing.assert_allclose(u.epistemic, divergence @ (mass / mass.sum()), rtol=0.1)


def test_laplace_draws_logits_as_it_would_by_drawing_weights(iris):
    model = LaplaceClassifier(n_samples=20_000, prior_precision=1.0, random_state=0).fit(*iris)
    X = iris[0][[0, 70]]
    logits_drawn = model._sampler(torch.device("cpu"))(X).exp()
    mean, factor, _ = vars(model.posterior_).values()  # covariance of the weights: F^T F
    noise = torch.randn(20_000, len(factor), generator=torch.Generator().manual_seed(1)).double()
    layers = mean + (noise @ factor).reshape(-1, *mean.shape)  # biases in the last column
    module = model.model_.module
    features = nn.Sequential(*list(module)[:-1])(torch.as_tensor(X))
    logits = torch.einsum("nd,scd->nsc", features, layers[..., :-1]) + layers[..., -1]
    weights_drawn = logits.softmax(-1)
    for moment in (0.5, 1.0, 2.0):
        found, expected = ((p**moment).mean(1) for p in (logits_drawn, weights_drawn))
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.003)


def test_prior_precision_is_the_one_of_the_largest_evidence(iris):
    mine = LogisticRegression(C=10).fit(*iris)
    auto = LaplaceClassifier(FrozenEstimator(mine), random_state=0).fit(*iris)
    p = mine.predict_proba(iris[0])
    phi = np.c_[iris[0], np.ones(150)]
    H = sum(
        np.kron(np.diag(q) - np.outer(q, q), np.outer(f, f)) for q, f in zip(p, phi, strict=True)
    )
    square = (mine.coef_**2).sum() + (mine.intercept_**2).sum()

    def log_evidence(a):
        determinant = np.linalg.slogdet(H + a * np.eye(len(H)))[1]
        return 0.5 * (len(H) * np.log(a) - a * square - determinant)

    best = log_evidence(auto.prior_precision_)
    assert best > max(log_evidence(factor * auto.prior_precision_) for factor in (0.95, 1.05))
    fixed = clone(auto).set_params(prior_precision=auto.prior_precision_).fit(*iris)
    expected = auto.predict_uncertainty(iris[0][:5])
    np.testing.assert_array_equal(fixed.predict_uncertainty(iris[0][:5]), expected)


def with_tail(*tail, n_outputs=3, bias=True):
    def layers():
        return nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, n_outputs, bias=bias), *tail

    return seeded_module(lambda: nn.Sequential(*layers()).double())


def test_a_last_layer_may_lack_a_bias_and_be_followed_by_a_softmax(iris):
    networks = with_tail(), with_tail(nn.Softmax(dim=-1), LogProbabilities())
    models = (LaplaceClassifier(FrozenEstimator(each), random_state=0) for each in networks)
    plain, wrapped = (each.fit(*iris).predict_uncertainty(iris[0][:5]) for each in models)
    np.testing.assert_allclose(wrapped, plain, rtol=1e-6)
    rows = iris[1] < 2
    module = with_tail(BinaryLogits(), n_outputs=1, bias=False)
    model = LaplaceClassifier(FrozenEstimator(module), random_state=0)
    model.fit(iris[0][rows], iris[1][rows])
    assert model.posterior_.mean.shape == (1, 5)
    assert (model.predict_uncertainty(iris[0][:5]).epistemic > 0).all()


def test_linear_tail_is_the_same_as_other_weights_in_the_last_layer(iris):
    order = [2, 0, 1]
    tailed = with_tail(Written(lambda self, X: 2 * X + torch.arange(3.0)), Columns(order))
    direct = with_tail()
    with torch.no_grad():
        for p, q in zip(direct[2].parameters(), tailed[2].parameters(), strict=True):
            p.copy_(2 * q[order])
        direct[2].bias += torch.tensor(order)
    # Weights twice as large have a prior of a quarter of the precision.
    first = LaplaceClassifier(FrozenEstimator(tailed), prior_precision=2.0).fit(*iris)
    second = LaplaceClassifier(FrozenEstimator(direct), prior_precision=0.5).fit(*iris)
    features = direct[:2](torch.as_tensor(iris[0][:4])).detach()
    _, factor = first.posterior_.outputs(features)
    logit_factor = 2 * factor[:, order]
    _, expected = second.posterior_.outputs(features)
    torch.testing.assert_close(logit_factor @ logit_factor.mT, expected @ expected.mT)
    drawn = first._sampler(torch.device("cpu"))(iris[0][:4])
    generator = torch.Generator().manual_seed(first._sampling_seed)
    noise = torch.randn(100, 3, dtype=torch.float64, generator=generator)
    mean = direct(torch.as_tensor(iris[0][:4])).detach()
    by_hand = mean[:, None] + torch.einsum("nkl,sl->nsk", logit_factor, noise)
    torch.testing.assert_close(drawn, by_hand.log_softmax(-1))
