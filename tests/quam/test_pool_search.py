"""Gradient search on a pool."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import nn

from skuq import QUAMClassifier
from skuq._networks import LeNet
from skuq.quam import PointwiseSearch, PoolSearch, _base
from skuq.quam import _gradient_search as search_module


@pytest.fixture(scope="module")
def linear():
    """A problem whose search is convex: a linear model of noisy labels."""
    X, y = make_classification(300, n_features=3, n_redundant=0, flip_y=0.2, random_state=0)
    X = X.astype(np.float32)
    given = LogisticRegression(C=np.inf).fit(X, y)
    net = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(np.r_[-given.coef_, given.coef_] / 2))
        net[0].bias.copy_(torch.tensor(np.r_[-given.intercept_, given.intercept_] / 2))
    pool = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    return X, y, net, pool


@pytest.fixture(scope="module")
def found(linear):
    """To be used without a change of parameters."""
    X, y, net, pool = linear
    return QUAMClassifier(net, search=PoolSearch(n_steps=20)).fit(X, y, X_pool=pool)


def test_models_of_a_linear_network_are_those_of_a_weighted_fit(linear):
    """With a constant penalty c the pool weighs 1 / c of the training data."""
    X, y, net, pool = linear
    search = PoolSearch(n_steps=300, c0=10.0, eta=1.0, learning_rate_decay=0.01 ** (-1 / 300))
    quam = QUAMClassifier(net, search=search, gamma=1e9).fit(X, y, X_pool=pool)
    weight = np.r_[np.ones(300), np.full(80, 300 / 10 / 80)]
    models = quam.adversarial_models(X)
    assert models.target.tolist() == [[0, 1]] * 300
    for code in (0, 1):
        labels = np.r_[y, np.full(80, code)]
        exact = LogisticRegression(C=np.inf, tol=1e-8).fit(np.r_[X, pool], labels, weight)
        np.testing.assert_allclose(models.proba[:, code], exact.predict_proba(X), atol=5e-3)
        expected = log_loss(y, exact.predict_proba(X)) - quam.reference_loss_
        assert quam._found.excess_loss[code, -1] == pytest.approx(expected, abs=2e-3)


def test_uncertainty_is_that_of_the_given_model_and_the_searches_half_and_half(linear, found):
    X = linear[0]
    quam = clone(found).set_params(temperature=1e9).fit(*linear[:2], X_pool=linear[3])
    u = quam.predict_uncertainty(X[:7])
    outputs = quam._found.outputs(torch.tensor(X[:7])).softmax(-1).numpy()  # (7, 2, 2, 2)
    mean = (quam.predict_proba(X[:7]) + outputs.mean(axis=(1, 2))) / 2
    np.testing.assert_allclose(u.total, -(mean * np.log(mean)).sum(axis=1), rtol=1e-6)
    assert (u.epistemic >= 0).all()


def test_new_inputs_are_searched_for_the_same_classes(linear):
    X, y, net, pool = linear
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=20), n_targets=1).fit(X, y, X_pool=pool)
    new = quam.search_pool(X[:50] + 3)
    assert new._found.targets.tolist() == quam._found.targets.tolist()
    x = torch.tensor(X[:5])
    assert not torch.allclose(new._found.outputs(x), quam._found.outputs(x))


def test_new_inputs_are_searched_together_with_enough_inputs_of_the_pool(
    linear, found, monkeypatch
):
    search = Mock()
    monkeypatch.setattr(_base, "_FEWEST", 60)
    monkeypatch.setattr(QUAMClassifier, "_search_on", search)
    for n in (5, 50, 100):
        found.search_pool(linear[0][:n])
    sizes = [len(call.args[0]) for call in search.call_args_list]
    assert sizes == [60, 100, 180]  # as many as are needed, as many as are new, all 80


def test_models_within_two_standard_errors_of_the_losses_count_alike(found):
    assert found._importance_sampling().temperature == 2 * found._found.standard_error > 1e-4


def test_searches_in_turn_find_what_they_find_together(linear, found, monkeypatch):
    X, y, _, pool = linear
    monkeypatch.setattr(search_module, "_TENSORS_OF_WEIGHTS", 0)
    in_turn = clone(found).fit(X, y, X_pool=pool)
    assert len(in_turn._found.weights) == 2
    expected = found.predict_uncertainty(X[:5])
    np.testing.assert_allclose(in_turn.predict_uncertainty(X[:5]), expected, rtol=1e-5)


def test_features_before_the_first_linear_layer_stay_as_they_are():
    X = np.random.default_rng(0).normal(size=(20, 1, 16, 16)).astype(np.float32)
    torch.manual_seed(0)
    net = LeNet(image_shape=(1, 16, 16)).eval()
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=2), n_targets=2)
    quam.fit(X, np.arange(20) % 10, X_pool=2 * X)
    sizes = sorted(weights[0].numel() for weights in quam._found.weights[0].values())
    linear = [p for name, p in net.named_parameters() if name.startswith("classifier")]
    assert sizes == sorted(p.numel() for p in linear)
    assert quam.predict_uncertainty(X[:3]).epistemic.shape == (3,)


def test_an_untargeted_search_finds_one_model(linear):
    X, y, net, pool = linear
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=30, targeted=False))
    quam.fit(X, y, X_pool=pool)
    models = quam.adversarial_models(X[:6])
    assert models.proba.shape == (6, 1, 2)
    np.testing.assert_array_equal(models.target, models.proba.argmax(-1))
    assert (quam.predict_uncertainty(X[:6]).epistemic > 0).any()


def test_a_prior_counts_in_the_losses(linear):
    X, y, net, pool = linear
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=1, c0=0.0))
    plain = quam.fit(X, y, X_pool=pool)._found
    prior = quam.set_params(search__prior_precision=30.0).fit(X, y, X_pool=pool)._found
    norms = [
        sum(float(w[k].square().sum()) for w in plain.weights[0].values())
        - sum(float(p.square().sum()) for p in net.parameters())
        for k in range(2)
    ]
    difference = (prior.excess_loss - plain.excess_loss).ravel()
    np.testing.assert_allclose(difference, 30 / 300 / 2 * np.array(norms), rtol=1e-4)


def test_losses_of_models_are_weighted_means_over_the_samples(linear, found):
    X, y, net, pool = linear
    weight = np.random.default_rng(1).exponential(size=len(X)) + 0.01
    quam = clone(found).fit(X, y, X_pool=pool, sample_weight=weight)
    rows = np.arange(len(X))
    log_proba = quam._found.outputs(torch.tensor(X)).log_softmax(-1).numpy()
    given = net(torch.tensor(X)).double().log_softmax(-1).detach().numpy()
    losses = given[rows, y] - log_proba[rows, :, :, y].transpose(1, 2, 0)
    expected = np.average(losses, axis=-1, weights=weight)
    np.testing.assert_allclose(quam._found.excess_loss, expected, rtol=1e-5, atol=1e-7)


class Functional(nn.Module):
    """A convolution before linear layers, in a forward pass of its own."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.convolution = nn.Conv1d(1, 3, 2)
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, X):
        hidden = self.first(self.convolution(X[:, None]).relu().flatten(1)).relu()
        return self.factor * self.last(hidden)


@pytest.mark.filterwarnings("ignore:The model's loss")
@pytest.mark.parametrize(
    ("search", "factor"), [(PoolSearch(n_steps=3), 1), (PointwiseSearch(n_steps=3), 2)]
)
def test_all_weights_move_on_request_alone(linear, search, factor):
    X, y = linear[0][:40], linear[1][:40]
    torch.manual_seed(0)
    network = Functional(factor)
    with pytest.warns(UserWarning, match="last layer is searched: 'last', 12 of") as said:
        quam = QUAMClassifier(network, search=search).fit(X, y)
    uncut = [each for each in said if "evaluated in every step" in str(each.message)]
    assert len(uncut) == (factor != 1)
    assert [p.split(".")[-1] for p in quam._problem.problem.parameters] == ["weight", "bias"]
    assert np.isfinite(quam.predict_uncertainty(X[:3]).total).all()
    every = QUAMClassifier(network, search=clone(search).set_params(parameters="all"))
    assert len(every.fit(X, y)._problem.problem.parameters) == 6
