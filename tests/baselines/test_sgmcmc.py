"""Models of Markov chains around a given one."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skuq.baselines import SGMCMCClassifier
from skuq.models import adopt
from tests.baselines.oracles import assert_as_by_hand


@pytest.fixture
def chains():
    pytest.importorskip("posteriors")
    return SGMCMCClassifier(n_chains=3, n_samples=2, steps_per_sample=10, random_state=0)


@pytest.mark.parametrize(
    ("parameters", "setting"), [("all", "selected"), ("last", "expected"), ("all", "pairwise")]
)
def test_models_of_chains_are_compared_as_the_equations_say(
    iris, dropped, chains, parameters, setting
):
    chains.set_params(
        estimator=FrozenEstimator(dropped), parameters=parameters, setting=setting
    ).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    n_moved = {"all": 4, "last": 2}[parameters]
    assert len(chains.samples_) == n_moved
    names = [name for name, _ in dropped.named_parameters()][-n_moved:]
    samples = []
    for number in range(6):
        model = adopt(dropped).module
        for name, moved in zip(names, chains.samples_.values(), strict=True):
            model.get_parameter(name).copy_(moved[number])
        samples.append(model(X).softmax(-1).numpy())
    reference = dropped(X).softmax(-1).detach().numpy()
    u = chains.predict_uncertainty(iris[0][:9])
    assert_as_by_hand(u, reference, np.stack(samples, 1), setting, atol=1e-12)


def test_chains_widen_with_temperature_and_narrow_with_data(iris, dropped, chains):
    chains.set_params(estimator=FrozenEstimator(dropped), steps_per_sample=20)
    X = iris[0][:50]
    usual = chains.fit(*iris).predict_uncertainty(X).epistemic.mean()
    cold = chains.set_params(temperature=0.1).fit(*iris).predict_uncertainty(X).epistemic.mean()
    chains.set_params(temperature=1.0)
    weight = np.full(150, 10.0)
    more = chains.fit(*iris, sample_weight=weight).predict_uncertainty(X).epistemic.mean()
    assert cold < usual
    assert more < usual


@pytest.mark.usefixtures("short_training")
def test_cyclical_chains_and_langevin_chains_run(iris, chains):
    cyclical = clone(chains).set_params(n_cycles=2)
    langevin = clone(chains).set_params(method="sgld")
    results = [m.fit(*iris).predict_uncertainty(iris[0]) for m in (chains, cyclical, langevin)]
    for one, other in itertools.combinations(results, 2):
        assert not np.allclose(one.epistemic, other.epistemic)
