"""Laplace's approximation of the last layer against closed forms."""

import numpy as np
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import nn

from skuq._networks import BinaryLogits, Columns, LogProbabilities
from skuq.baselines import LaplaceClassifier
from tests.baselines.oracles import seeded_module


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


def test_what_follows_the_last_layer_may_not_matter(iris):
    plain, wrapped = (
        LaplaceClassifier(FrozenEstimator(with_tail(*tail)), random_state=0)
        .fit(*iris)
        .predict_uncertainty(iris[0][:5])
        for tail in ((), (nn.Softmax(dim=-1), LogProbabilities()))
    )
    np.testing.assert_allclose(wrapped, plain, rtol=1e-6)


class Doubled(nn.Module):
    def forward(self, X):
        return 2 * X + torch.arange(3.0)


def test_linear_tail_is_the_same_as_other_weights_in_the_last_layer(iris):
    order = [2, 0, 1]
    tailed = with_tail(Doubled(), Columns(order))
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


def test_last_layer_may_have_no_bias_and_one_output(iris):
    rows = iris[1] < 2
    module = with_tail(BinaryLogits(), n_outputs=1, bias=False)
    model = LaplaceClassifier(FrozenEstimator(module), random_state=0)
    model.fit(iris[0][rows], iris[1][rows])
    assert model.posterior_.mean.shape == (1, 5)
    assert (model.predict_uncertainty(iris[0][:5]).epistemic > 0).all()
