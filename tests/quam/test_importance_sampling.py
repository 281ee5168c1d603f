"""Mixture importance sampling against exhaustive integration over two parameters."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, spearmanr
from torch import nn

from skuq import QUAMClassifier, _information
from skuq._information import decompose_expected, decompose_pairwise, decompose_selected
from skuq._networks import BinaryLogits
from skuq.quam import PointwiseSearch
from skuq.quam import _importance_sampling as mis
from skuq.quam._importance_sampling import ImportanceSampling, Trajectories, pool_weights

PRIOR_SCALE = 2.0
TEST_POINTS = np.array([[1.0, 0.2], [3.0, -2.0], [-2.0, 2.5], [0.0, 0.0]])


@pytest.fixture(scope="module")
def logistic():
    """Logistic regression with two weights, no bias and eight samples: everything is integrable."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 2))
    y = (X[:, 0] + 0.3 * rng.normal(size=8) > 0).astype(int)
    return X, y


def log_sigmoid(z):
    return -np.logaddexp(0, -z)


def log_posterior(weights, X, y):
    """Unnormalised, shape (n_models,)."""
    margin = (weights @ X.T) * (2 * y - 1)
    return log_sigmoid(margin).sum(-1) - (weights**2).sum(-1) / (2 * PRIOR_SCALE**2)


def predictions(weights, points):
    """Log-probabilities of both classes, shape (n_points, n_models, 2)."""
    z = points @ weights.T
    return np.stack([log_sigmoid(-z), log_sigmoid(z)], axis=-1)


@pytest.fixture(scope="module")
def exact(logistic):
    """A fine grid of weights, its density, and the mode."""
    axis = np.linspace(-12, 12, 201)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    log_density = log_posterior(grid, *logistic)
    density = np.exp(log_density - log_density.max())
    return grid, density / density.sum(), grid[density.argmax()]


def test_mixture_importance_sampling_converges_to_the_integrals(logistic, exact):
    grid, density, mode = exact
    # All integrals of Eq. 1 and Eq. 2 by summation over the grid.
    proba = np.exp(predictions(grid, TEST_POINTS))
    reference = np.exp(predictions(mode[None], TEST_POINTS))[:, 0]
    mean = np.einsum("m,nmk->nk", density, proba)
    aleatoric = -(proba * np.log(proba)).sum(-1) @ density
    epistemic = -(mean * np.log(mean)).sum(-1) - aleatoric
    divergence = (reference[:, None] * np.log(reference[:, None] / proba)).sum(-1) @ density
    # Samples of Eq. 6 with Gaussian components and equal shares, off the posterior mode, as
    # adversarial models are: the weights must mend it.
    centres = mode + np.array([[0.0, 0.0], [2.0, 3.0], [1.0, -3.0], [4.0, 0.0]])
    rng = np.random.default_rng(0)
    samples = centres[rng.integers(4, size=200_000)] + 2 * rng.normal(size=(200_000, 2))
    proposal = np.mean([multivariate_normal(c, 4 * np.eye(2)).pdf(samples) for c in centres], 0)
    log_ratio = log_posterior(samples, *logistic) - np.log(proposal)
    weights = mis.importance_weights(torch.as_tensor(log_ratio)).numpy()
    weights = np.broadcast_to(weights, (len(TEST_POINTS), len(samples)))
    log_proba = predictions(samples, TEST_POINTS)
    expected = decompose_expected(log_proba, weights)
    selected = decompose_selected(np.log(reference), log_proba, weights)
    tolerance = {"rel": 0.02, "abs": 2e-3}
    assert expected.aleatoric == pytest.approx(aleatoric, **tolerance)
    assert expected.epistemic == pytest.approx(epistemic, **tolerance)
    entropy = -(reference * np.log(reference)).sum(-1)
    assert selected.aleatoric == pytest.approx(entropy, **tolerance)
    assert selected.epistemic == pytest.approx(divergence, **tolerance)
    # Without the ratio p / q the same samples are far off: the assertions above can fail.
    unweighted = decompose_selected(np.log(reference), log_proba, np.full_like(weights, 5e-6))
    assert unweighted.epistemic[:3] != pytest.approx(divergence[:3], rel=0.3)


@pytest.mark.parametrize("setting", ["selected", "expected", "pairwise"])
def test_dirac_mixture_is_that_of_the_best_models(setting):
    generator = torch.Generator().manual_seed(0)
    log_reference = torch.randn(4, 3, generator=generator).double().log_softmax(-1)
    outputs = torch.randn(4, 3, 6, 3, generator=generator).double()
    excess = 0.1 * torch.rand(4, 3, 6, generator=generator).double()
    dirac = ImportanceSampling(setting, "dirac", temperature=0.05, gamma=0.04)
    found = mis.estimate_uncertainty(log_reference, Trajectories(outputs, excess), dirac)

    best = mis.best_adversarial_models(log_reference, outputs.log_softmax(-1), excess, gamma=0.04)
    np.testing.assert_array_equal(best.target, best.proba.argmax(axis=-1))
    weights = np.exp(-best.excess_loss / 0.05)
    weights /= weights.sum(axis=1, keepdims=True)
    if setting == "selected":
        aleatoric = -(log_reference.exp() * log_reference).sum(-1).numpy()
        epistemic = (weights * best.divergence).sum(axis=1)
    elif setting == "pairwise":
        aleatoric, epistemic = decompose_pairwise(np.log(best.proba), weights)
    else:
        mean = (weights[..., None] * best.proba).sum(axis=1)
        aleatoric = -(weights[..., None] * best.proba * np.log(best.proba)).sum(axis=(1, 2))
        epistemic = -(mean * np.log(mean)).sum(axis=1) - aleatoric
    np.testing.assert_allclose(found.aleatoric, aleatoric)
    np.testing.assert_allclose(found.epistemic, epistemic)


def test_quam_ranks_points_as_the_exact_integral_does(logistic, exact):
    grid, density, mode = exact
    linear = nn.Linear(2, 1, bias=False).double()
    linear.weight.data = torch.as_tensor(mode)[None]
    points = np.random.default_rng(1).normal(scale=2.0, size=(20, 2))
    log_proba = predictions(grid, points)
    weights = np.broadcast_to(density, (len(points), len(grid)))
    log_reference = predictions(mode[None], points)[:, 0]
    integrals = {
        "selected": decompose_selected(log_reference, log_proba, weights),
        "expected": decompose_expected(log_proba, weights),
        "pairwise": decompose_pairwise(log_proba, weights),
    }
    search = PointwiseSearch(n_steps=50, c0=1.0, batch_size=20)
    quam = QUAMClassifier(nn.Sequential(linear, BinaryLogits()), search=search).fit(*logistic)
    for setting, integral in integrals.items():
        found = quam.set_params(setting=setting).predict_uncertainty(points)
        assert spearmanr(found.epistemic, integral.epistemic).statistic > 0.8


def test_models_of_a_pool_are_weighed_by_loss_and_temperature_and_searches_stay_in_balance():
    loss = torch.tensor([[[0.2, 0.2]], [[0.0, 0.0]]], dtype=torch.float64)  # one search each
    ratio = np.exp(-0.2 / 0.5)
    expected = [[1, ratio / 2, ratio / 2], [1, 0.5, 0.5]]
    expected /= np.sum(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(pool_weights(loss, 0.5), expected)
    np.testing.assert_allclose(pool_weights(loss, 0.5, held_out=False)[0], [0.5, 0.25, 0.25])
    loss = torch.tensor([[[0.0, 0.5], [0.2, 0.2]], [[1.0, 1.5], [1.2, 1.2]]])
    weights = pool_weights(loss, temperature=0.5)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert 0.5 < weights[0, 0] < weights[1, 0]  # worse searches leave more to the given model
    by_search = weights[:, 1:].reshape(2, 2, 2).sum(-1)
    np.testing.assert_allclose(by_search[:, 0], by_search[:, 1])
    assert float(weights[0, 1] / weights[0, 2]) == pytest.approx(np.e)  # Eq. 4 within a search
    better = pool_weights(loss - 10, temperature=0.5)  # fitting better by chance counts as equal
    for equal in (better, pool_weights(loss, temperature=0.5, held_out=False)):
        np.testing.assert_allclose(equal[:, 0], 0.5)


def test_the_best_model_diverges_most_among_those_that_fit_or_fits_best():
    reference = torch.tensor([[0.8, 0.2], [0.8, 0.2]], dtype=torch.float64).log()
    proba = torch.tensor([0.7, 0.5, 0.1], dtype=torch.float64)  # of class 0, at three steps
    log_proba = torch.stack([proba, 1 - proba], -1).log().expand(2, 2, 3, 2)
    # At the first point one search keeps within gamma (exactly, at its second step), and the
    # other does not; at the second point both do.
    excess = [[[0.0, 0.5, 0.6], [0.9, 0.8, 0.7]], [[0.0, 0.1, 0.2], [0.4, 0.9, 0.9]]]
    excess = torch.tensor(excess, dtype=torch.float64)
    found = mis.best_adversarial_models(reference, log_proba, excess, 0.5)
    np.testing.assert_allclose(found.proba[..., 0], [[0.5, 0.1], [0.1, 0.7]])
    np.testing.assert_array_equal(found.feasible, [[True, False], [True, True]])
    np.testing.assert_allclose(found.excess_loss, [[0.5, 0.7], [0.2, 0.4]])
    np.testing.assert_array_equal(found.target, [[0, 1], [1, 0]])
    asked = mis.best_adversarial_models(reference, log_proba, excess, 0.5, torch.ones(2, 2).long())
    np.testing.assert_array_equal(asked.target, 1)
    best = found.proba
    divergence = 0.8 * np.log(0.8 / best[..., 0]) + 0.2 * np.log(0.2 / best[..., 1])
    np.testing.assert_allclose(found.divergence, divergence)
    adversarial = found.is_adversarial(found.divergence[0, 1])
    np.testing.assert_array_equal(adversarial, [[False, False], [True, False]])


@pytest.mark.parametrize("centred", [False, True])
def test_the_mixture_of_a_pool_holds_the_given_model_or_the_one_in_its_place(centred):
    random = np.random.default_rng(0)
    reference, centre = torch.as_tensor(np.log(random.dirichlet(np.ones(3), (2, 4))))
    outputs = torch.as_tensor(random.normal(size=(4, 3, 2, 3)))
    excess = torch.as_tensor(random.exponential(size=(4, 3, 2)))
    sampling = ImportanceSampling("selected", "trajectory", 0.5, 1.0, by_search=True)
    given = {"log_centre": centre} if centred else {}
    found = mis.estimate_uncertainty(reference, Trajectories(outputs, excess), sampling, **given)
    middle = centre if centred else reference
    weights = pool_weights(excess, 0.5, held_out=False)
    models = torch.cat([middle[:, None], outputs.log_softmax(-1).flatten(1, 2)], dim=1)
    divergence = decompose_selected(middle, models, weights).epistemic
    np.testing.assert_allclose(found.epistemic, divergence)
    np.testing.assert_allclose(found.aleatoric, _information.entropy(reference))


@pytest.mark.parametrize("n_given", [1, 2])
def test_range_is_that_of_given_models_and_those_that_fit(n_given):
    random = np.random.default_rng(0)
    given = np.log(random.dirichlet(np.ones(3), (6, n_given)))
    found = np.log(random.dirichlet(np.ones(3), (6, 2, 4)))
    excess = random.exponential(size=(6, 2, 4))
    excess[0], excess[1, 0, 0] = 2.0, 0.5  # none at the first point; one exactly at gamma
    as_tensors = [torch.as_tensor(each) for each in (given, found, excess)]
    for own, models, losses in ([given, found, excess], as_tensors):
        lower, upper = mis.plausible_range(own, Trajectories(models, losses), 0.5)
        assert isinstance(lower, np.ndarray)
        for i in range(6):
            models = np.exp(np.concatenate([given[i], found[i][excess[i] <= 0.5]]))
            np.testing.assert_allclose(lower[i], models.min(axis=0))
            np.testing.assert_allclose(upper[i], models.max(axis=0))


@pytest.mark.parametrize(
    ("setting", "mixture", "by_search"),
    [("selected", "trajectory", True), ("expected", "dirac", True), ("pairwise", "dirac", False)],
)
def test_arrays_of_learners_are_weighed_as_tensors_of_networks(setting, mixture, by_search):
    random = np.random.default_rng(0)
    arrays = random.normal(size=(5, 3)), random.normal(size=(5, 3, 4, 3)), random.random((5, 3, 4))
    sampling = ImportanceSampling(setting, mixture, 0.3, 0.4, by_search, held_out=True)

    def parts(reference, outputs, excess):
        given, others = map(_information.log_softmax, (reference, outputs))
        found = mis.estimate_uncertainty(given, Trajectories(outputs, excess), sampling)
        best = mis.best_adversarial_models(given, others, excess, sampling.gamma)
        return *found, *best

    for ours, theirs in zip(parts(*arrays), parts(*map(torch.tensor, arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
