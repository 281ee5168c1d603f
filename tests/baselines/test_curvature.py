"""Curvatures against automatic second derivatives, posteriors against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.func import hessian
from torch.nn.functional import cross_entropy, linear

from skuq.baselines import _laplace as curvature_module
from skuq.baselines._laplace import (
    evidence_prior_precision,
    last_layer_curvature,
    last_layer_posterior,
)


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
    """Second derivatives of the summed loss, in the documented order of the parameters."""
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
    found = evidence_prior_precision(torch.tensor(eigenvalues), squared_norm)

    def minus_log_evidence(log_precision):
        a = math.exp(log_precision)
        return 0.5 * a * squared_norm - 0.5 * np.log(a / (a + eigenvalues)).sum()

    bounds = math.log(1e-8), math.log(1e8)
    options = {"bounds": bounds, "method": "bounded", "options": {"xatol": 1e-10}}
    best = minimize_scalar(minus_log_evidence, **options)
    assert math.log(found) == pytest.approx(best.x, abs=1e-4)


def test_prior_precision_is_bounded_where_the_evidence_has_no_maximum():
    assert evidence_prior_precision(torch.ones(3), 0.0) == pytest.approx(1e8)
    assert evidence_prior_precision(torch.zeros(3), 1.0) == pytest.approx(1e-8)


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


def test_posterior_of_logistic_regression_has_the_closed_form_variance():
    # One parameter: curvature sum p (1 - p) x^2 by hand.
    x, w, prior = np.array([-1.0, 0.5, 2.0]), 0.3, 2.0
    p = 1 / (1 + np.exp(-w * x))
    variance = 1 / ((p * (1 - p) * x**2).sum() + prior)
    H = torch.tensor([[(p * (1 - p) * x**2).sum()]])
    posterior = last_layer_posterior(torch.tensor([[w]]), None, H, prior)
    mean, factor = posterior.outputs(torch.tensor([[4.0]]))
    assert mean.item() == pytest.approx(4 * w)
    assert factor.item() == pytest.approx(4 * math.sqrt(variance))


def test_precision_that_rounding_made_indefinite_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match="positive definite"):
        last_layer_posterior(torch.zeros(2, 1), None, -torch.eye(2), 0.5)
