"""Curvatures against automatic second derivatives, posteriors against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.func import functional_call, hessian, jacrev
from torch.nn.functional import cross_entropy

from skuq.baselines import _curvature as curvature_module
from skuq.baselines._curvature import (
    diagonal_curvature,
    evidence_prior_precision,
    gaussian_last_layer_curvature,
    last_layer_curvature,
    last_layer_posterior,
    sample_diagonal_posterior,
)
from skuq.models import MLP, LeNet, stacked_forward


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
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_last_layer_curvature_is_the_hessian_of_the_summed_loss(bias, n_classes):
    features, weight = rand(15, 3), rand(15).exp()
    weights = rand(n_classes, 3 + bias, seed=1)
    targets = torch.arange(15) % n_classes
    expected, log_proba = softmax_hessian(features, weights, weight, targets, bias)
    found = last_layer_curvature(features.float().double(), log_proba, weight, bias=bias)
    close = last_layer_curvature(features, log_proba, weight, bias=bias)
    torch.testing.assert_close(close, expected)
    assert found.dtype == torch.float64
    assert torch.linalg.eigvalsh(close).min() > -1e-12


@pytest.mark.usefixtures("chunk")
def test_models_that_share_features_are_done_in_one_call():
    features, weight = rand(9, 2), rand(9).exp()
    log_proba = rand(2, 3, 9, 4, seed=2).log_softmax(-1)
    together = last_layer_curvature(features, log_proba, weight)
    assert together.shape == (2, 3, 12, 12)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(
                together[i, j], last_layer_curvature(features, log_proba[i, j], weight)
            )


def test_nearly_certain_class_keeps_its_curvature():
    log_proba = torch.tensor([[0.0, -60.0]], dtype=torch.float64)  # 1 - p is below rounding
    found = last_layer_curvature(torch.ones(1, 1), log_proba, torch.ones(1), bias=False)
    expected = torch.full((2,), math.exp(-60), dtype=torch.float64)
    torch.testing.assert_close(found.diagonal(), expected, rtol=1e-12, atol=0.0)


def test_gaussian_curvature_is_the_hessian_of_the_summed_loss():
    features, weight, y = rand(12, 3), rand(12).exp(), rand(12, 2, seed=3)
    variance, weights = torch.tensor([0.5, 2.0]).double(), rand(2, 4, seed=1)
    inputs = torch.cat([features, torch.ones(12, 1)], 1)

    def loss(flat):
        means = inputs @ flat.reshape(2, 4).mT
        return (weight[:, None] * (means - y) ** 2 / (2 * variance)).sum()

    blocks = gaussian_last_layer_curvature(features, variance, weight)
    torch.testing.assert_close(torch.block_diag(*blocks), hessian(loss)(weights.flatten()))


def brute_force_diagonal(module, parameters, X, weight, variance):
    """Sum over samples of the diagonal of J^T L J, every matrix written out."""
    total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in parameters}
    for x, w in zip(X, weight, strict=True):

        def outputs(own, x=x):
            return functional_call(module, own, (x[None],))[0]

        own = {name: value.detach() for name, value in parameters}
        p = outputs(own).softmax(-1)
        inner = torch.diag(p) - torch.outer(p, p) if variance is None else torch.diag(1 / variance)
        for name, slopes in jacrev(outputs)(own).items():
            J = slopes.flatten(1)
            total[name] += w * (J.mT @ inner @ J).diagonal().reshape(total[name].shape)
    return total


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("variance", [None, torch.tensor([0.5, 1.0, 3.0]).double()])
def test_diagonal_curvature_is_the_sum_over_samples(variance):
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    module = MLP(4, 3, hidden_sizes=(5,), batch_norm=True).double().eval()
    torch.random.set_rng_state(torch_state)
    X, weight = rand(7, 4), rand(7, seed=1).exp()
    found = diagonal_curvature(
        module, dict(module.named_parameters()), X, weight, variance=variance
    )
    expected = brute_force_diagonal(module, list(module.named_parameters()), X, weight, variance)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)


def test_diagonal_of_a_linear_model_is_the_diagonal_of_its_full_curvature():
    layer = nn.utils.skip_init(nn.Linear, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(rand(4, 3))
        layer.bias.copy_(rand(4, seed=1))
    X, weight = rand(10, 3, seed=2), rand(10, seed=3).exp()
    parameters = dict(layer.named_parameters())
    found = diagonal_curvature(layer, parameters, X, weight)
    full = last_layer_curvature(X, layer(X).detach().log_softmax(-1), weight)
    together = torch.cat([found["weight"], found["bias"][:, None]], 1).flatten()
    torch.testing.assert_close(together, full.diagonal())


def test_diagonal_curvature_takes_chosen_parameters_of_another_model():
    with torch.random.fork_rng():
        module = LeNet(3, image_shape=(1, 16, 16)).eval()
    names = list(dict(module.named_parameters()))[-2:]
    elsewhere = {name: dict(module.named_parameters())[name] + 0.5 for name in names}
    X, weight = rand(3, 256).float(), torch.ones(3)
    found = diagonal_curvature(module, elsewhere, X, weight)
    assert list(found) == names
    with torch.no_grad():
        for name in names:
            module.get_parameter(name).add_(0.5)
    moved = diagonal_curvature(module, {n: module.get_parameter(n) for n in names}, X, weight)
    for name in names:
        torch.testing.assert_close(found[name], moved[name])


def log_evidence(log_precision, eigenvalues, squared_norm):
    a = math.exp(log_precision)
    return 0.5 * np.log(a / (a + eigenvalues)).sum() - 0.5 * a * squared_norm


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("squared_norm", [1e-3, 1.0, 50.0])
def test_prior_precision_maximises_the_evidence(scale, squared_norm):
    eigenvalues = np.random.default_rng(0).gamma(0.5, scale, size=20)
    found = evidence_prior_precision(torch.tensor(eigenvalues), squared_norm)
    best = minimize_scalar(
        lambda log: -log_evidence(log, eigenvalues, squared_norm),
        bounds=(math.log(1e-8), math.log(1e8)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert math.log(found) == pytest.approx(best.x, abs=1e-4)


def test_prior_precision_is_bounded_where_the_evidence_has_no_maximum():
    assert evidence_prior_precision(torch.ones(3), 0.0) == pytest.approx(1e8)
    assert evidence_prior_precision(torch.zeros(3), 1.0) == pytest.approx(1e-8)


def make_posterior(bias=True, prior_precision=0.7):
    features, weights = rand(20, 2), rand(3, 2, seed=4)
    shift = rand(3, seed=5) if bias else None
    logits = features @ weights.mT + (0 if shift is None else shift)
    H = last_layer_curvature(features, logits.log_softmax(-1), torch.ones(20), bias=bias)
    posterior = last_layer_posterior(weights, shift, H, prior_precision)
    precision = H + prior_precision * torch.eye(len(H), dtype=torch.float64)
    return posterior, torch.linalg.inv(precision), weights, shift


@pytest.mark.parametrize("bias", [True, False])
def test_sampled_layers_have_the_mean_and_covariance_of_the_posterior(bias):
    posterior, covariance, weights, shift = make_posterior(bias)
    drawn = posterior.sample(40_000, torch.Generator().manual_seed(0))
    assert set(drawn) == ({"weight", "bias"} if bias else {"weight"})
    flat = drawn["weight"]
    mean = weights
    if bias:
        flat = torch.cat([flat, drawn["bias"][..., None]], -1)
        mean = torch.cat([weights, shift[:, None]], -1)
    flat = flat.flatten(1)
    assert torch.allclose(flat.mean(0), mean.flatten(), atol=4 * covariance.max().sqrt() / 200)
    scale = covariance.diagonal().sqrt()
    error = (torch.cov(flat.mT) - covariance) / torch.outer(scale, scale)
    assert error.abs().max() < 0.03


@pytest.mark.parametrize("bias", [True, False])
def test_distribution_of_outputs_follows_from_that_of_the_weights(bias):
    posterior, covariance, weights, shift = make_posterior(bias)
    features = rand(6, 2, seed=8)
    mean, factor = posterior.outputs(features)
    expected = features @ weights.mT + (0 if shift is None else shift)
    torch.testing.assert_close(mean, expected)
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    for one, root in zip(features, factor, strict=True):
        phi = torch.cat([one, torch.ones(1)]) if bias else one
        J = torch.block_diag(phi[None], phi[None], phi[None])
        torch.testing.assert_close(root @ root.mT, J @ covariance @ J.mT)


def test_logits_of_sampled_layers_agree_with_the_distribution_of_outputs():
    posterior, *_ = make_posterior()
    layer = nn.utils.skip_init(nn.Linear, 2, 3, dtype=torch.float64)
    models = posterior.sample(40_000, torch.Generator().manual_seed(1))
    features = 3 * rand(4, 2, seed=9)
    logits = stacked_forward(layer, models, features, shared_input=True)
    mean, factor = posterior.outputs(features)
    for point in range(4):
        deviation = (logits[:, point] - mean[point]) @ torch.linalg.inv(factor[point]).mT
        assert deviation.mean(0).abs().max() < 4 / 200  # white noise if the two agree
        assert (torch.cov(deviation.mT) - torch.eye(3)).abs().max() < 0.03


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


def test_diagonal_samples_have_the_variance_of_each_parameter():
    mean = {"a": rand(2, 2).float(), "b": rand(3, seed=1)}
    curvature = {name: value.double().exp() for name, value in mean.items()}
    drawn = sample_diagonal_posterior(
        mean, curvature, 0.5, 40_000, torch.Generator().manual_seed(0)
    )
    for name, value in mean.items():
        assert drawn[name].dtype == value.dtype
        sd = (1 / (curvature[name] + 0.5)).sqrt()
        assert (((drawn[name].mean(0) - value) / sd).abs() < 4 / 200).all()
        assert ((drawn[name].std(0) / sd - 1).abs() < 0.02).all()


def test_samples_depend_on_the_generator_alone():
    posterior, *_ = make_posterior()
    first, again, other = (
        posterior.sample(2, torch.Generator().manual_seed(seed))["weight"] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_precision_that_is_not_positive_definite_is_refused():
    with pytest.raises(ValueError, match="larger `prior_precision`"):
        last_layer_posterior(torch.zeros(1, 2), None, -torch.eye(2), 0.5)
