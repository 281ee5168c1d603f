"""Mixtures located at adversarial models, against grids of weights and torch's distributions."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.nn.functional import cross_entropy

from skuq import QUAMClassifier
from skuq.information import decompose_expected, decompose_selected, kl_divergence
from skuq.models import MLP, BinaryLogits, TrainingSet, stack_parameters, stacked_forward
from skuq.quam._batch import SearchSettings
from skuq.quam._components import GaussianMixtures, flatten, laplace_precision, unflatten
from skuq.quam._mixtures import MixtureSampler, MixtureSettings
from skuq.quam._objectives import targeted
from skuq.quam._sampling import BestModels, best_adversarial_models
from skuq.quam._search import Schedule, excess_loss, penalty_schedule, search_adversarial_models

POINTS = np.array([[1.0, 0.2], [3.0, -2.0], [-2.0, 2.5], [0.5, 1.0]])
GRID = np.stack(np.meshgrid(*[np.linspace(-10, 10, 401)] * 2), axis=-1).reshape(-1, 2)


def linear_logits(weights, X):
    return weights @ X.T


def log_sigmoid(z):
    return -np.logaddexp(0, -z)


class Toy:
    """A posterior over two weights, all of it on a grid."""

    precision = 0.25

    def __init__(self):
        rng = np.random.default_rng(0)
        self.X = rng.normal(size=(12, 2))
        self.y = (self.X[:, 0] + rng.normal(size=12) > 0).astype(int)
        margin = linear_logits(GRID, self.X) * (2 * self.y - 1)
        self.log_density = log_sigmoid(margin).sum(-1) - self.precision / 2 * (GRID**2).sum(-1)
        self.mode = GRID[self.log_density.argmax()]
        z = linear_logits(GRID, POINTS).T
        self.log_proba = np.stack([log_sigmoid(-z), log_sigmoid(z)], axis=-1)
        self.log_reference = self.log_proba[:, self.log_density.argmax()]

    def density(self, power=1.0):
        density = np.exp(power * (self.log_density - self.log_density.max()))
        return density / density.sum()

    def exact(self, setting):
        weights = np.broadcast_to(self.density(), self.log_proba.shape[:2])
        if setting == "selected":
            return decompose_selected(self.log_reference, self.log_proba, weights).epistemic
        return decompose_expected(self.log_proba, weights).epistemic

    def estimate(self, module, **params):
        quam = QUAMClassifier(
            FrozenEstimator(module),
            weight_decay=self.precision / len(self.y),
            n_steps=30,
            c0=2.0,
            gamma=0.1,
            random_state=0,
            **params,
        )
        return quam.fit(self.X, self.y).predict_uncertainty(POINTS).epistemic


def linear_module(weights):
    layer = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weights)[None])
    return nn.Sequential(layer, BinaryLogits())


def disguised_module(weights):
    """The same function, of which the full curvature has no formula."""
    layer, tail = linear_module(weights)
    return nn.Sequential(layer, nn.Identity(), tail)


@pytest.fixture(scope="module")
def toy():
    return Toy()


@pytest.mark.parametrize("setting", ["selected", "expected"])
@pytest.mark.parametrize("make", [linear_module, disguised_module], ids=["full", "diagonal"])
def test_laplace_mixture_converges_to_the_integral(toy, make, setting):
    module, exact = make(toy.mode), toy.exact(setting)

    def error(**params):
        return np.abs(toy.estimate(module, setting=setting, **params) / exact - 1).max()

    many = error(mixture="laplace", n_samples=2000)
    assert many < 0.06
    assert many < 0.2 * error(mixture="laplace", n_samples=3)
    assert many < 0.5 * error(mixture="dirac")


@pytest.mark.parametrize("gamma", [0.0, 0.02, 10.0])
@pytest.mark.parametrize("learning_rate", [0.1, 1.0])
def test_tracked_weights_are_those_of_the_best_adversarial_models(gamma, learning_rate):
    torch.manual_seed(0)
    module = MLP(4, 3, hidden_sizes=(6,)).double().eval().requires_grad_(False)
    X, y, x = torch.randn(12, 4).double(), torch.arange(12) % 3, torch.randn(5, 4).double()
    reference_loss = cross_entropy(module(X), y, reduction="none")
    train = TrainingSet(X, y, torch.ones(12).double(), reference_loss)
    log_reference = module(x).log_softmax(-1)
    of_searches = log_reference.repeat_interleave(3, 0)
    best = BestModels(lambda own: kl_divergence(of_searches, own.log_softmax(-1)), gamma)
    seen = []
    found = search_adversarial_models(
        module,
        stack_parameters(module, 15),
        x,
        train,
        # Batches in turn, so that the loss goes up and down.
        [torch.arange(6) + 6 * (step % 2) for step in range(13)],
        objective=targeted(torch.arange(3).expand(5, -1)),
        schedule=penalty_schedule(
            12, c0=2.0, eta=1.3, update_every=1, learning_rate=learning_rate, decay=1.0
        ),
        observer=lambda *shown: (seen.append(1), best.observe(*shown)),
    )
    assert len(seen) == 12
    assert (found.excess_loss.diff(dim=-1) > 0).any()
    expected = best_adversarial_models(
        log_reference, found.outputs.log_softmax(-1), found[1], gamma
    )
    own = stacked_forward(
        module, best.weights, x.repeat_interleave(3, 0)[:, None], shared_input=False
    )
    proba = own.squeeze(1).log_softmax(-1).exp().reshape(5, 3, 3)
    np.testing.assert_array_equal(proba, expected.proba)


@pytest.mark.parametrize("full", [True, False])
def test_mixture_density_and_draws_are_those_of_torch(full):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    root = torch.randn(3, 4, 5, 5, generator=generator, dtype=torch.float64).tril()
    root.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
    if not full:
        root = torch.diag_embed(root.diagonal(dim1=-2, dim2=-1))
    oracle = MixtureSameFamily(
        Categorical(torch.ones(3, 4)), MultivariateNormal(mean, precision_matrix=root @ root.mT)
    )
    mixtures = GaussianMixtures(mean, root if full else root.diagonal(dim1=-2, dim2=-1))
    models = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    expected = oracle.log_prob(models.movedim(1, 0)).mT
    torch.testing.assert_close(mixtures.log_density(models), expected, rtol=1e-9, atol=1e-9)
    # Draws are linear in the noise: its unit vectors give a root of the covariance.
    unit = [mixtures.draw(row.expand(4, -1)) - mean for row in torch.eye(5, dtype=torch.float64)]
    spread = torch.stack(unit, dim=-1)
    covariance = oracle.component_distribution.covariance_matrix
    torch.testing.assert_close(spread @ spread.mT, covariance, rtol=1e-8, atol=1e-9)


LAYERS = {
    "linear": lambda: nn.Linear(3, 4),
    "binary": lambda: nn.Sequential(nn.Linear(3, 1), BinaryLogits()),
    "other tail": lambda: nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(-1)),
}


@pytest.mark.parametrize("moved", ["both", "weight", "bias"])
@pytest.mark.parametrize("kind", LAYERS)
def test_precision_is_the_hessian_of_the_log_posterior(kind, moved):
    torch.manual_seed(0)
    module = LAYERS[kind]().double().requires_grad_(False)
    names = [name for name, _ in module.named_parameters() if moved == "both" or moved in name]
    models = {k: torch.randn_like(w) for k, w in stack_parameters(module, 5, names).items()}
    X, y, share = torch.randn(7, 3).double(), torch.arange(7) % 2, torch.rand(7).double()
    rows = flatten(models)
    prior = torch.rand(rows.shape[1]).double()
    root = laplace_precision(module, models, X, share, temperature=0.2, prior_precision=prior)
    assert (root.ndim == 3) == (kind != "other tail" and moved != "bias")

    def energy(row):
        logits = stacked_forward(module, unflatten(row[None], models), X, shared_input=True)[0]
        return cross_entropy(logits, y, reduction="none") @ share / 0.2 + row**2 @ prior / 2

    for row, own in zip(rows, root, strict=True):
        hessian = torch.autograd.functional.hessian(energy, row)
        found, expected = (own @ own.mT, hessian) if own.ndim == 2 else (own**2, hessian.diag())
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_large_layers_take_the_diagonal():
    layer = nn.Linear(600, 2)
    prior = torch.ones(1202, dtype=torch.float64)
    root = laplace_precision(
        layer,
        stack_parameters(layer, 2),
        torch.ones(3, 600),
        torch.ones(3),
        temperature=1.0,
        prior_precision=prior,
    )
    assert root.shape == (2, 1202)


def sampler_at(toy, kind, temperature, *, n_points, n_searches, n_samples, decayed=True):
    """What a mixture draws if all searches end at the mode."""
    module = linear_module(toy.mode).requires_grad_(False)
    X, y = torch.as_tensor(toy.X), torch.as_tensor(toy.y)
    losses = cross_entropy(module(X), y, reduction="none")
    train = TrainingSet(X, y, torch.ones(len(y), dtype=torch.float64), losses)
    objective = targeted(torch.zeros(n_points, n_searches, dtype=torch.int64))
    sampler = MixtureSampler(
        lambda own: own[:, 0],
        objective,
        n_searches,
        MixtureSettings(kind, n_samples, temperature, 1),
    )
    n_models = n_points * n_searches
    models = stack_parameters(module, n_models)
    sampler.observe(torch.zeros(n_models, 2), torch.zeros(n_models), models)
    decay = toy.precision / len(y) if decayed else 0.0
    settings = SearchSettings(("0.weight",), Schedule((), ()), 100, decay, 0, "cpu")
    x = torch.as_tensor(POINTS[:1]).repeat(n_points, 1)
    return sampler.draw(module, x, train, torch.arange(len(y)), settings), (
        module,
        train,
        objective,
    )


@pytest.mark.parametrize("heat", [1.0, 3.0])
def test_chains_sample_the_tempered_posterior(toy, heat):
    pytest.importorskip("posteriors")
    sample, _ = sampler_at(toy, "sgld", heat / len(toy.y), n_points=1, n_searches=300, n_samples=80)
    late = sample.outputs[0, -300 * 20 :, 1].numpy()
    density, z = toy.density(1 / heat), linear_logits(GRID, POINTS[:1])[:, 0]
    mean = density @ z
    deviation = np.sqrt(density @ (z - mean) ** 2)
    assert late.mean() == pytest.approx(mean, abs=0.15 * deviation)
    assert late.std() == pytest.approx(deviation, rel=0.15)
    assert sample.log_proposal is None


def test_points_share_noise_and_searches_do_not(toy):
    pytest.importorskip("posteriors")
    for kind in ("sgld", "laplace"):
        sample, _ = sampler_at(toy, kind, 0.1, n_points=3, n_searches=2, n_samples=4)
        first, *others = sample.outputs
        assert all(torch.equal(first, other) for other in others)
        assert len(first.unique(dim=0)) == 8


@pytest.mark.parametrize("decayed", [True, False])
def test_log_posterior_has_one_prior(toy, decayed):
    """Weight decay is the prior, or one as wide as the reference model's weights is."""
    T = 0.1
    sample, (module, train, objective) = sampler_at(
        toy, "laplace", T, n_points=1, n_searches=2, n_samples=3, decayed=decayed
    )
    z = linear_logits(GRID, POINTS[:1])[:, 0]
    assert np.abs(z).max() > sample.outputs.abs().max()  # the models are within reach of the grid
    noise = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    precision = toy.precision / len(toy.y) / T if decayed else 1 / np.mean(toy.mode**2)
    mode = stack_parameters(module, 1)
    root = laplace_precision(
        module,
        mode,
        train.X,
        torch.full((len(toy.y),), 1 / len(toy.y), dtype=torch.float64),
        temperature=T,
        prior_precision=torch.full((2,), precision, dtype=torch.float64),
    )
    weights = flatten(mode) + noise.flatten(0, 1) @ torch.linalg.inv(root[0])
    torch.testing.assert_close(sample.outputs[0, :, 1], weights @ torch.as_tensor(POINTS[0]))
    losses = excess_loss(
        module, {"0.weight": weights[:, None]}, train, torch.arange(len(toy.y)), objective
    )
    expected = -losses / T - precision / 2 * weights.square().sum(-1)
    gap = sample.log_posterior[0] - expected
    torch.testing.assert_close(gap, gap[:1].expand(6), rtol=0, atol=1e-8)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="module")
def fitted(iris):
    """Few weights, and a prior, so that no estimate rests on a single model."""
    quam = QUAMClassifier(
        LogisticRegression(), n_steps=10, n_samples=5, weight_decay=0.01, random_state=0
    )
    return quam.fit(*iris)


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_all_mixtures_quantify_and_differ(fitted, iris, setting):
    pytest.importorskip("posteriors")
    found = {}
    for mixture in ("trajectory", "dirac", "laplace", "sgld"):
        u = fitted.set_params(mixture=mixture, setting=setting).predict_uncertainty(iris[0][:6])
        assert np.isfinite(u.total).all()
        assert (u.epistemic > 0).all()
        found[mixture] = u.epistemic
    assert len({tuple(part) for part in found.values()}) == 4
    fewer = fitted.set_params(mixture="laplace", n_samples=2).predict_uncertainty(iris[0][:6])
    fitted.set_params(n_samples=5)
    assert (fewer.epistemic != found["laplace"]).any()


@pytest.mark.parametrize("mixture", ["laplace", "sgld"])
@pytest.mark.parametrize("estimator", [LogisticRegression(), None], ids=["linear", "net"])
@pytest.mark.filterwarnings("ignore:Importance weights")
def test_result_depends_on_the_seed_but_not_on_the_batch_size(iris, mixture, estimator):
    pytest.importorskip("posteriors")
    settings = {"n_steps": 6, "n_samples": 3, "train_batch_size": 50, "weight_decay": 0.01}
    quam = QUAMClassifier(estimator, mixture=mixture, random_state=0, **settings).fit(*iris)
    whole, again = (quam.predict_uncertainty(iris[0][:7]).epistemic for _ in range(2))
    np.testing.assert_array_equal(whole, again)
    pieces = quam.set_params(batch_size=3).predict_uncertainty(iris[0][:7]).epistemic
    np.testing.assert_allclose(pieces, whole, rtol=1e-6)
    quam._search_seed += 1
    assert (quam.predict_uncertainty(iris[0][:7]).epistemic != pieces).any()


def test_chains_need_their_extra_and_nothing_else_does(fitted, iris, monkeypatch):
    monkeypatch.setitem(sys.modules, "posteriors", None)
    with pytest.raises(ImportError, match=r"pip install 'skuq\[sgmcmc\]'"):
        fitted.set_params(mixture="sgld").predict_uncertainty(iris[0][:2])
    u = fitted.set_params(mixture="laplace").predict_uncertainty(iris[0][:2])
    assert np.isfinite(u.total).all()


def test_tensors_of_zeros_stay_in_mixtures_too(iris):
    pytest.importorskip("posteriors")
    X, y = iris[0], np.minimum(iris[1], 1)
    mine = LogisticRegression(fit_intercept=False).fit(X, y)
    quam = QUAMClassifier(
        FrozenEstimator(mine), n_steps=5, n_samples=3, weight_decay=0.01, random_state=0
    ).fit(X, y)
    # Without an intercept all models predict one half at the origin.
    for mixture in ("laplace", "sgld"):
        u = quam.set_params(mixture=mixture).predict_uncertainty(np.zeros((1, 4)))
        assert u.epistemic == pytest.approx(0, abs=1e-12)


def test_importance_weights_that_rest_on_one_model_are_reported(iris):
    quam = QUAMClassifier(mixture="laplace", n_steps=3, n_samples=3, random_state=0).fit(*iris)
    with pytest.warns(RuntimeWarning, match="Importance weights .*parameters='last'"):
        quam.predict_uncertainty(iris[0][:4])


@pytest.mark.parametrize(
    ("params", "message"),
    [({"mixture": "gauss"}, "'mixture' parameter"), ({"n_samples": 0}, "'n_samples' parameter")],
)
def test_invalid_mixtures_are_refused(iris, params, message):
    with pytest.raises(ValueError, match=message):
        QUAMClassifier(**params).fit(*iris)
