"""Training through skorch: weights, seeds, and no trace in global state."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from skorch import NeuralNetClassifier

from skuq.models import MLP, default_classifier, fit_net

CPU = torch.device("cpu")


@pytest.fixture
def data():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


def fitted_weights(X, y, **kw):
    net = fit_net(default_classifier(4, 3, device=CPU).set_params(max_epochs=5), X, y, **kw)
    return {name: value.numpy() for name, value in net.module_.state_dict().items()}


def assert_same(first, second, **tolerance):
    for name in first:
        np.testing.assert_allclose(first[name], second[name], **tolerance)


def test_same_seed_gives_the_same_weights_and_another_does_not(data):
    first = fitted_weights(*data, seed=3)
    assert_same(first, fitted_weights(*data, seed=3), rtol=0)
    assert not np.allclose(first["0.weight"], fitted_weights(*data, seed=4)["0.weight"])


def test_training_leaves_the_global_random_state_alone(data):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    fitted_weights(*data, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_equal_repetition_in_one_batch(data):
    X, y = data[0][::3], data[1][::3]
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = fitted_weights(X, y, seed=0, sample_weight=weight.astype(float))
    repeated = fitted_weights(np.repeat(X, weight, axis=0), np.repeat(y, weight), seed=0)
    assert_same(weighted, repeated, rtol=1e-7, atol=1e-9)


def test_batches_of_zero_weight_do_not_spoil_training(data):
    net = default_classifier(4, 3, device=CPU).set_params(max_epochs=2, batch_size=10)
    weight = np.zeros(150)
    weight[0] = 1
    fit_net(net, *data, seed=0, sample_weight=weight)
    assert all(torch.isfinite(p).all() for p in net.module_.parameters())


def test_weights_for_a_net_that_cannot_use_them_are_refused(data):
    net = NeuralNetClassifier(MLP(4, 3), verbose=0)
    with pytest.raises(ValueError, match="`sample_weight` needs a net that can use it"):
        fit_net(net, *data, seed=0, sample_weight=np.ones(150))


def test_weighted_loss_without_one_loss_per_sample_is_refused(data):
    net = default_classifier(4, 3, device=CPU).set_params(criterion__reduction="mean")
    with pytest.raises(ValueError, match="set criterion__reduction='none'"):
        fit_net(net, *data, seed=0, sample_weight=np.ones(150))
