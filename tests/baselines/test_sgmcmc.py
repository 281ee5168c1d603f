"""Models of Markov chains around a given one."""

import numpy as np
import pytest
import torch
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
