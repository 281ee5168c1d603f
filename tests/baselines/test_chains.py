"""Markov chains on targets of which mean and variance are known."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from torch import nn

from skuq._networks import MLP, BinaryLogits, stack_parameters
from skuq.baselines import SGMCMCClassifier
from skuq.baselines import _sgmcmc as chains_module
from skuq.baselines._sampled import TrainingRows
from skuq.models import adopt
from tests.baselines.oracles import assert_as_by_hand

SETTINGS = {"n_samples": 4, "steps_per_sample": 5, "learning_rate": 0.05}
SETTINGS |= {"train_batch_size": 100, "prior_precision": 1.0}
METHODS = {
    "sghmc": {"method": "sghmc", "learning_rate": 0.1, "steps_per_sample": 40},
    "sgld": {"method": "sgld", "learning_rate": 0.015, "steps_per_sample": 60},
}


@pytest.fixture(autouse=True)
def needs_posteriors_and_leaves_the_global_random_state_alone():
    pytest.importorskip("posteriors")
    state = torch.random.get_rng_state()
    yield
    assert torch.equal(state, torch.random.get_rng_state())


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run_chains(module, starts, train, seed=0, **settings):
    settings = SGMCMCClassifier(**{**SETTINGS, **settings})
    return chains_module.run_chains(settings, module, starts, train, generator(seed))


def training_rows(X, y, weight=None):
    return TrainingRows(X, y, torch.ones(len(X)).double() if weight is None else weight.double())


def linear(n_in, n_out):
    layer = nn.utils.skip_init(nn.Linear, n_in, n_out, bias=False, dtype=torch.float64)
    return layer.requires_grad_(False)


@pytest.fixture(scope="module")
def small():
    X = torch.randn(12, 3, generator=generator(5), dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MLP(3, 2, hidden_sizes=(4,)).double().eval().requires_grad_(False)
    return module, training_rows(X, torch.arange(12) % 2, torch.rand(12, generator=generator(6)))


@pytest.mark.parametrize(("method", "temperature"), [("sghmc", 0.25), ("sgld", 1.0)])
def test_without_a_say_of_the_data_the_gaussian_prior_is_sampled(method, temperature):
    # All inputs are 0: the likelihood is constant and the target N(0, temperature / 4).
    module, train = linear(2, 3), training_rows(torch.zeros(1, 2).double(), torch.zeros(1).long())
    starts = {"weight": torch.full((400, 3, 2), 0.3, dtype=torch.float64)}
    settings = {**METHODS[method], "temperature": temperature, "prior_precision": 4.0}
    found = run_chains(module, starts, train, **settings)
    values = torch.stack([models["weight"] for models in found])[1:]  # one to forget the start
    sd = math.sqrt(temperature / 4)
    assert abs(values.mean()) < 0.06 * sd
    assert values.var() / sd**2 == pytest.approx(1, abs=0.08)


def exact_moments(x, y, weight, prior_precision, temperature):
    """Mean and variance of the posterior of one logistic weight, by quadrature."""
    grid = np.linspace(-15, 15, 20_001)
    logits = grid[:, None] * x
    log_likelihood = (weight * (y * logits - np.logaddexp(0, logits))).sum(1)
    log_p = (log_likelihood - prior_precision / 2 * grid**2) / temperature
    p = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    return p @ grid, p @ (grid - p @ grid) ** 2


@pytest.mark.parametrize(("method", "temperature"), [("sghmc", 0.5), ("sgld", 1.0)])
def test_posterior_of_a_logistic_weight_is_sampled(method, temperature):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=10), np.arange(10) % 2
    x += y
    weight = rng.uniform(0.5, 2.0, size=10)
    mean, variance = exact_moments(x, y, weight, 0.5, temperature)
    module = nn.Sequential(linear(1, 1), BinaryLogits())
    train = training_rows(torch.as_tensor(x)[:, None], torch.as_tensor(y), torch.as_tensor(weight))
    # Time runs slower here by the sum of weights, in which the loss is measured.
    settings = {"learning_rate": 0.3, "steps_per_sample": 60, "prior_precision": 0.5}
    starts = {"0.weight": torch.zeros(800, 1, 1, dtype=torch.float64)}
    found = run_chains(module, starts, train, **settings, method=method, temperature=temperature)
    values = torch.stack([models["0.weight"] for models in found])[1:]
    assert float(values.mean()) == pytest.approx(mean, abs=0.12 * math.sqrt(variance))
    assert float(values.var()) / variance == pytest.approx(1, abs=0.15)


def test_log_posterior_of_batches_averages_to_that_of_all_data(small):
    module, train = small
    log_posterior = chains_module._log_posterior(module, train, 2.0)
    starts = stack_parameters(module, 3)
    batches = torch.randperm(12, generator=generator()).split(4)
    mean = np.mean([log_posterior(starts, batch)[0].item() for batch in batches])
    whole = log_posterior(starts, torch.arange(12))[0].item()
    assert mean == pytest.approx(whole, rel=1e-12)
    logits = module(train.X)  # the three chains are at the same place
    loss = nn.functional.cross_entropy(logits, train.y, reduction="none") @ train.weight
    square = sum(p.square().sum() for p in module.parameters())
    expected = -3 * float(loss + square) / float(train.weight.sum())
    assert whole == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_chains_start_apart_and_depend_on_the_generator_alone(small, method):
    module, train = small
    before = {name: p.clone() for name, p in module.named_parameters()}
    starts = stack_parameters(module, 3)
    settings = {"method": method, "train_batch_size": 5}
    runs = (run_chains(module, starts, train, seed, **settings) for seed in (0, 0, 1))
    first, again, other = map(list, runs)
    assert len(first) == SETTINGS["n_samples"]
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name])
        assert torch.equal(starts[name][1], p)
        assert first[0][name].shape == (3, *p.shape)
        assert not torch.equal(first[-1][name][0], first[-1][name][1])
        assert torch.equal(first[-1][name], again[-1][name])
        assert not torch.equal(first[-1][name], other[-1][name])


def test_models_handed_out_are_the_callers_to_alter(small):
    starts = stack_parameters(small[0], 2, ["2.weight"])
    untouched = list(run_chains(small[0], starts, small[1]))
    assert [list(each) for each in untouched] == [["2.weight"]] * 4  # the others stay
    assert not torch.equal(untouched[0]["2.weight"], untouched[1]["2.weight"])
    for number, each in enumerate(run_chains(small[0], starts, small[1])):
        assert torch.equal(each["2.weight"], untouched[number]["2.weight"])
        each["2.weight"].zero_()


def test_hamiltonian_chains_do_not_leap_off_their_start(small):
    # Momenta at temperature 1 instead of 1 / sum of weights would move all weights by about
    # the step size at once.
    module, train = small
    train = train._replace(weight=train.weight * 1e6)
    starts = stack_parameters(module, 20)
    (moved,) = run_chains(module, starts, train, n_samples=1, steps_per_sample=1)
    for name, start in starts.items():
        assert (moved[name] - start).abs().max() < 1e-3


def test_cycles_explore_without_noise_and_then_sample():
    settings = SGMCMCClassifier(learning_rate=0.2, n_samples=6, steps_per_sample=5, n_cycles=2)
    rate, heat, exploration = chains_module._schedule(settings, 3.0)
    # Three models per cycle: 15 steps that travel and 15 that sample.
    assert [exploration(sample) for sample in range(6)] == [15, 0, 0, 15, 0, 0]
    rates = [rate(torch.tensor(step)) for step in range(60)]
    assert rates[:30] == rates[30:]
    assert rates[0] == 0.2
    assert rates[15] == pytest.approx(0.1)
    assert all(0 < b < a for a, b in itertools.pairwise(rates[:30]))
    assert [heat(torch.tensor(step)) for step in range(30)] == [0.0] * 15 + [3.0] * 15


def test_cycles_are_followed_step_by_step(small, monkeypatch):
    module, train = small
    seen = []
    schedule_of = chains_module._schedule

    def recording(*args):
        rate, *others = schedule_of(*args)
        return lambda step: seen.append(int(step)) or rate(step), *others

    monkeypatch.setattr(chains_module, "_schedule", recording)
    models = run_chains(module, stack_parameters(module, 2), train, n_cycles=2)
    assert len(list(models)) == 4
    assert seen == list(range(40))  # 2 cycles of 2 * 5 steps that travel and as many that sample


def test_missing_package_is_named_with_its_extra(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "posteriors", None)
    with pytest.raises(ImportError, match=r"skuq\[sgmcmc\]"):
        list(run_chains(small[0], stack_parameters(small[0], 2), small[1]))


@pytest.mark.parametrize(("parameters", "n_moved"), [("all", 4), ("last", 2)])
def test_models_of_chains_are_compared_as_the_equations_say(iris, dropped, parameters, n_moved):
    options = {"n_chains": 3, "n_samples": 2, "steps_per_sample": 10, "random_state": 0}
    chains = SGMCMCClassifier(FrozenEstimator(dropped), parameters=parameters, **options).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    names = [name for name, _ in dropped.named_parameters()][-n_moved:]
    samples = []
    for number in range(6):
        model = adopt(dropped).module
        for name, moved in zip(names, chains.samples_.values(), strict=True):
            model.get_parameter(name).copy_(moved[number])
        samples.append(model(X).softmax(-1).numpy())
    u = chains.predict_uncertainty(iris[0][:9])
    assert_as_by_hand(u, None, np.stack(samples, 1), "expected", atol=1e-12)
