"""Searches of a regressor against Algorithm 1 written out, and estimates against integrals."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skuq._networks import MLP
from skuq.quam import _importance_sampling as mis
from skuq.quam._gradient_search import SearchProblem, SearchSettings, penalty_schedule
from skuq.quam._importance_sampling import DIRECTIONS, ImportanceSampling, Trajectories, Visited
from skuq.quam._objectives import Divergence
from skuq.quam._pointwise_search import search_batch
from skuq.quam._search import Regression
from tests.written import Written

C0, ETA, LR, N_STEPS, NOISE = 3.0, 1.3, 0.1, 6, 0.4


def problem(n_outputs, seed=0):
    torch.manual_seed(seed)
    module = MLP(2, n_outputs, hidden_sizes=(5,)).double().eval().requires_grad_(False)
    X, x = torch.randn(9, 2).double(), torch.randn(3, 2).double()
    y, weight = torch.randn(9).double(), torch.rand(9).double()
    return module, X, y, weight, x


def log_density(outputs, y):
    variance = outputs[..., 1].exp() if outputs.shape[-1] == 2 else torch.tensor(NOISE)
    return torch.distributions.Normal(outputs[..., 0], variance.sqrt()).log_prob(y)


def normal(output):
    scale = (output[1] / 2).exp() if len(output) == 2 else torch.tensor(NOISE).double().sqrt()
    return torch.distributions.Normal(output[0], scale)


def algorithm_1(reference, x, direction, X, y, weight, attack):
    """Alg. 1 with the start and the direction of App. C.1, literally: one point, one search."""
    model = deepcopy(reference).requires_grad_(True)
    given = normal(reference(x[None])[0])
    optimizer = torch.optim.Adam(
        [{"params": p, "lr": LR * p.pow(2).mean().sqrt().item()} for p in model.parameters()]
    )
    if attack == "divergence":
        with torch.no_grad():
            model[-1].bias[0] += direction * 0.01 * given.scale
    outputs, excess = [], []
    for m in range(N_STEPS + 1):
        losses = log_density(reference(X), y) - log_density(model(X), y)
        l_pen = (weight * losses).sum() / weight.sum()
        found = normal(model(x[None])[0])
        if m > 0:
            outputs.append(model(x[None])[0].detach())
            excess.append(l_pen.detach())
        l_adv = -torch.distributions.kl_divergence(given, found)
        if direction * (found.mean - given.mean) < 0:  # back to the side that is wanted
            l_adv = l_adv + ((found.mean - given.mean) / found.scale) ** 2
        if attack == "displacement":
            l_adv = -direction * (found.mean - given.mean) / given.scale
        optimizer.zero_grad()
        (l_adv + C0 * ETA**m * l_pen).backward()
        optimizer.step()
    return torch.stack(outputs), torch.stack(excess)


@pytest.mark.parametrize("attack", ["displacement", "divergence"])
@pytest.mark.parametrize(("n_outputs", "seed"), [(1, 0), (2, 2)])
def test_batched_search_equals_algorithm_1_both_ways(n_outputs, seed, attack, bytes_of_a_tensor):
    module, X, y, weight, x = problem(n_outputs, seed)
    names = tuple(name for name, _ in module.named_parameters())
    noise = NOISE if n_outputs == 1 else None
    reference_loss = mis.gaussian_loss(module(X), y, noise)
    np.testing.assert_allclose(reference_loss, -log_density(module(X), y), rtol=1e-6)
    schedule = penalty_schedule(N_STEPS, c0=C0, eta=ETA, update_every=1, learning_rate=LR, decay=1)
    arrays = (part.numpy() for part in (X, y, weight, reference_loss))
    given_problem = SearchProblem(module, names, *arrays, seed=0)
    settings = SearchSettings(schedule, 0.0, 100, torch.device("cpu"))
    bias = given_problem.output_bias()
    objective = Regression(attack, noise, 1.0, bias).objective(module(x))
    if seed == 2:  # upward and downward searches one after the other
        bytes_of_a_tensor(1)
    found = search_batch(given_problem, settings, x.numpy(), objective, np.ones(len(x)))
    assert found.outputs.shape == (3, 2, N_STEPS, n_outputs)
    for i, (k, direction) in product(range(3), enumerate(DIRECTIONS)):
        outputs, excess = algorithm_1(module, x[i], direction, X, y, weight, attack)
        torch.testing.assert_close(found.outputs[i, k], outputs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.excess_loss[i, k], excess, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [NOISE, None])
def test_without_a_bias_the_first_gradient_leads_to_the_wanted_side(noise):
    reference = torch.tensor([[2.0, 0.3]] if noise is None else [[2.0]])
    outputs = reference.repeat_interleave(2, dim=0).requires_grad_()
    objective = Divergence(reference, noise)
    assert objective.offsets() == {}
    (gradient,) = torch.autograd.grad(objective.attack(outputs[None]).sum(), outputs)
    assert gradient[0, 0] < 0 < gradient[1, 0]
    # As large as it would be with the start moved by that much.
    sd = torch.tensor(noise or np.exp(0.3)).sqrt()
    moved = (reference.repeat(2, 1) + 0.01 * sd * torch.tensor([[1.0], [-1.0]])).detach()
    if noise is None:
        moved[:, 1] = reference[0, 1]
    moved.requires_grad_()
    bias = mis.OutputBias("bias", width=1, effect=1.0)
    attack = Divergence(reference, noise, bias=bias).attack
    (expected,) = torch.autograd.grad(attack(moved).sum(), moved)
    torch.testing.assert_close(gradient[:, 0], expected[:, 0], rtol=1e-4, atol=0)


class Squared(nn.Linear):
    """Its bias does not shift the output by a fixed amount."""

    def forward(self, X):
        return super().forward(X).square()


# An output layer that is neither the last attribute nor in a Sequential
LAYERS = {"top": nn.Linear(5, 1), "bottom": nn.Linear(2, 5)}
SHARED = Written(lambda self, X: 3 * self.top(self.bottom(X).tanh()) + 1, **LAYERS)
OUTPUT_BIASES = [
    *((SHARED, ("top.bias", 3.0)), (Squared(2, 1), None), (nn.Linear(2, 1, bias=False), None)),
    (nn.Linear(2, 1), ("bias", 1.0)),
]


@pytest.mark.parametrize(("module", "expected"), OUTPUT_BIASES)
def test_output_bias_is_found_by_what_it_does(module, expected):
    X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    names = tuple(name for name, _ in module.named_parameters())
    before = deepcopy(module.state_dict())
    found = SearchProblem(module, names, X, *[None] * 3, seed=0).output_bias()
    assert (found and (found.name, round(found.effect, 3))) == expected
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def information_by_integration(mean, variance, weights):
    """Entropy of the mixture on a fine grid, minus the expected one."""
    sd = np.sqrt(variance)
    parts = [np.linspace(m - 12 * s, m + 12 * s, 4001) for m, s in zip(mean, sd, strict=True)]
    y = np.unique(np.concatenate(parts))
    p = (np.exp(-(((y[:, None] - mean) / sd) ** 2) / 2) / sd) @ weights / np.sqrt(2 * np.pi)
    logs = np.log(np.where(p > 0, p, 1.0))
    own = np.log(2 * np.pi * np.e * variance) / 2
    return np.trapezoid(-p * logs, y) - weights @ own


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.sampled_from([0.0, 0.5]))
def test_information_of_a_mixture_equals_the_integral(seed, distance, unequal):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 8)
    mean, variance = distance * rng.normal(size=n), np.exp(unequal * rng.normal(size=n))
    weights = rng.dirichlet(np.ones(n))
    parts = (torch.tensor(part)[None] for part in (mean, variance, weights))
    found = mis.mixture_information(*parts)
    expected = information_by_integration(mean, variance, weights)
    assert float(found[0]) == pytest.approx(expected, abs=1e-2 if unequal else 1e-4)


def test_rare_models_far_away_count_in_the_information():
    parts = np.array([0.0, 1e3]), np.ones(2), np.array([0.999, 0.001])
    found = mis.mixture_information(*(torch.tensor(part)[None] for part in parts))
    assert float(found[0]) == pytest.approx(-(parts[2] @ np.log(parts[2])), rel=1e-6)


def trajectories(seed=0, n_outputs=2):
    rng = np.random.default_rng(seed)
    reference = torch.tensor(rng.normal(size=(4, n_outputs)))
    outputs = reference[:, None, None] + torch.tensor(rng.normal(size=(4, 2, 5, n_outputs)))
    return reference, Trajectories(outputs, torch.tensor(rng.exponential(0.02, (4, 2, 5))))


SELECTED = ImportanceSampling("selected", "trajectory", temperature=0.05, gamma=0.02)
SETTINGS = [SELECTED._replace(setting=name) for name in ("selected", "expected", "pairwise")]


@pytest.mark.parametrize(("n_outputs", "noise"), [(1, NOISE), (2, None)])
def test_uncertainties_equal_those_of_models_one_by_one(n_outputs, noise):
    reference, found = trajectories(n_outputs=n_outputs)
    kl = torch.distributions.kl_divergence
    visited = Visited.of(reference, found, noise)
    selected, expected, pairwise = map(visited.uncertainty, SETTINGS)
    about, among, also_among = map(visited.spread, SETTINGS)
    np.testing.assert_array_equal(pairwise.aleatoric, expected.aleatoric)
    np.testing.assert_array_equal(also_among, among)
    for i in range(4):
        p = normal(reference[i])
        weights = np.exp(-found.excess_loss[i].flatten().numpy() / 0.05)
        weights /= weights.sum()
        models = [normal(output) for output in found.outputs[i].flatten(0, 1)]
        mean = np.array([float(q.mean) for q in models])
        variance = np.array([float(q.variance) for q in models])
        assert selected.aleatoric[i] == pytest.approx(float(p.entropy()))
        assert selected.epistemic[i] == pytest.approx(weights @ [float(kl(p, q)) for q in models])
        entropies = [float(q.entropy()) for q in models]
        assert expected.aleatoric[i] == pytest.approx(weights @ entropies)
        information = information_by_integration(mean, variance, weights)
        assert expected.epistemic[i] == pytest.approx(information, abs=1e-2)
        pairs = np.array([[float(kl(q, other)) for other in models] for q in models])
        assert pairwise.epistemic[i] == pytest.approx(weights @ pairs @ weights)
        assert about[i] == pytest.approx(np.sqrt(weights @ (mean - float(p.mean)) ** 2))
        assert among[i] == pytest.approx(np.sqrt(weights @ (mean - weights @ mean) ** 2))


def test_best_models_are_the_most_divergent_that_fit_on_the_wanted_side():
    reference, found = trajectories()
    best = Visited.of(reference, found, None).best_models(0.02)
    assert set(best.feasible.flatten()) == {True, False}  # both cases occur
    for i, (k, direction) in product(range(4), enumerate(DIRECTIONS)):
        p, models = normal(reference[i]), [normal(o) for o in found.outputs[i, k]]
        excess = found.excess_loss[i, k].numpy()
        divergence = np.array([float(torch.distributions.kl_divergence(p, q)) for q in models])
        side = np.array([direction * float(q.mean - p.mean) > 0 for q in models])
        fits = (excess <= 0.02) & side
        at = np.where(fits, divergence, -1).argmax() if fits.any() else excess.argmin()
        expected = direction, float(models[at].mean), float(models[at].variance), divergence[at]
        given = [float(part[i, k]) for part in best]
        assert given == pytest.approx([*expected, excess[at], float(fits.any())])


def test_dirac_mixture_is_that_of_the_best_models():
    reference, found = trajectories()
    dirac = SELECTED._replace(mixture="dirac")
    spread = Visited.of(reference, found, None).spread(dirac)
    best = Visited.of(reference, found, None).best_models(0.02)
    weights = np.exp(-best.excess_loss / 0.05)
    weights /= weights.sum(axis=1, keepdims=True)
    squares = (best.mean - reference[:, :1].numpy()) ** 2
    np.testing.assert_allclose(spread**2, (weights * squares).sum(axis=1))


@pytest.mark.parametrize("held_out", [False, True])
def test_the_mixture_of_searches_holds_the_given_model_too(held_out):
    reference, found = trajectories()
    sampling = SELECTED._replace(by_search=True, held_out=held_out)
    spread = Visited.of(reference, found, None).spread(sampling)
    weights = mis.pool_weights(found.excess_loss, sampling.temperature, held_out=held_out).numpy()
    means = np.column_stack([reference[:, 0], found.outputs[..., 0].flatten(1)])
    squares = (means - reference[:, :1].numpy()) ** 2
    np.testing.assert_allclose(spread, np.sqrt((weights * squares).sum(axis=1)))
    expected = Visited.of(reference, found, None).uncertainty(sampling._replace(setting="expected"))
    log_variance = np.column_stack([reference[:, 1], found.outputs[..., 1].flatten(1)])
    entropies = (np.log(2 * np.pi * np.e) + log_variance) / 2
    np.testing.assert_allclose(expected.aleatoric, (weights * entropies).sum(axis=1))


def test_extreme_log_variances_keep_everything_finite():
    outputs = torch.tensor([[0.0, 1e6], [0.0, -1e6]], dtype=torch.float64)
    reference = torch.zeros(1, 2, dtype=torch.float64)
    assert torch.isfinite(Divergence(reference, None).attack(outputs[None])).all()
    assert torch.isfinite(mis.gaussian_loss(outputs, torch.ones(2).double(), None)).all()


@pytest.mark.parametrize(
    ("setting", "mixture", "noise"),
    [("selected", "dirac", 0.5), ("expected", "trajectory", None), ("pairwise", "dirac", None)],
)
def test_arrays_of_learners_are_weighed_as_tensors_of_networks(setting, mixture, noise):
    random = np.random.default_rng(0)
    arrays = random.normal(size=(5, 2)), random.normal(size=(5, 2, 4, 2)), random.random((5, 2, 4))
    sampling = ImportanceSampling(setting, mixture, 0.01, 0.4, by_search=True, held_out=True)

    def parts(reference, outputs, excess):
        found = Visited.of(reference, Trajectories(outputs, excess), noise)
        return *found.uncertainty(sampling), found.spread(sampling), *found.best_models(0.4)

    for ours, theirs in zip(parts(*arrays), parts(*map(torch.tensor, arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
