"""Dropout that goes on: what varies, what does not, and against exact expectations."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import nn

from skuq.evidential import GraphClassifier, MCDropout
from skuq.evidential._pretrained_model import BATCH_SIZE
from skuq.evidential.comparison._dropout_masks import dropout_modules


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def network(dropout=0.5):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
    ).double()


def test_two_masks_have_a_closed_form():
    """One unit, dropped with probability 0.5: logits are (0, 0) or (0, 4)."""
    layer = nn.Linear(1, 2, bias=False)
    layer.weight.data = torch.tensor([[0.0], [2.0]])
    X, y = np.ones((2, 1)), np.array([0, 1])
    model = MCDropout(
        nn.Sequential(nn.Dropout(0.5), layer).double(), n_samples=400, random_state=0
    ).fit(X, y)
    sure = 1 / (1 + np.exp(-4))
    kept = (model.predict_proba(X)[0, 1] - 0.5) / (sure - 0.5)
    assert abs(kept - 0.5) < 4 * np.sqrt(0.25 / 400)
    of_sure = -sure * np.log(sure) - (1 - sure) * np.log(1 - sure)
    u = model.set_params(measure="information").predict_uncertainty(X)
    np.testing.assert_allclose(u.aleatoric, kept * of_sure + (1 - kept) * np.log(2), rtol=1e-6)


def test_predictions_do_not_depend_on_company(iris):
    X, y = iris
    many = np.tile(X, (BATCH_SIZE // len(X) + 2, 1))
    model = MCDropout(network(), random_state=0).fit(X, y)
    together = model.predict_proba(many)
    np.testing.assert_allclose(together[: len(X)], model.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(together[-len(X) :], model.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X[7:8]), together[7:8], atol=1e-12)


def test_dropping_channels_of_images_alike():
    torch.manual_seed(0)
    convolution = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(8 * 16, 2)
    ).double()
    X, y = np.random.default_rng(0).normal(size=(6, 1, 6, 6)), np.array([0, 1] * 3)
    model = MCDropout(convolution, n_samples=5, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X[2:4]), model.predict_proba(X)[2:4], atol=1e-12)
    plain = torch.softmax(convolution.eval()(torch.as_tensor(X)), dim=1).detach().numpy()
    assert abs(model.predict_proba(X) - plain).max() > 1e-3


def test_the_model_is_not_changed(iris):
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    MCDropout(model, random_state=0).fit(*iris).predict(iris[0])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_random_state_and_no_trace(iris):
    X, y = iris
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    model = network()
    torch.manual_seed(3)
    first = MCDropout(model, random_state=1).fit(X, y).predict_uncertainty(X).total
    again = MCDropout(model, random_state=1).fit(X, y).predict_uncertainty(X).total
    other = MCDropout(model, random_state=2).fit(X, y).predict_uncertainty(X).total
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first, again)
    assert abs(first - other).max() > 1e-6


def test_measures(iris):
    X, y = iris
    model = MCDropout(network(), random_state=0).fit(X, y)
    score = model.predict_uncertainty(X)
    np.testing.assert_allclose(score.total, 1 - model.predict_proba(X).max(axis=1))
    np.testing.assert_array_equal(score.aleatoric, score.epistemic)
    information = model.set_params(measure="information").predict_uncertainty(X)
    mean = model.predict_proba(X)
    np.testing.assert_allclose(information.total, -(mean * np.log(mean)).sum(axis=1), rtol=1e-9)
    assert (information.epistemic > 0).all()


@pytest.mark.parametrize("model", [network(dropout=0.0), nn.Linear(4, 3).double()])
def test_no_dropout(iris, model):
    with pytest.raises(ValueError, match="no dropout module with p > 0"):
        MCDropout(model).fit(*iris)


def test_a_model_without_dropout_modules_at_all(iris):
    with pytest.raises(ValueError, match="no dropout module with p > 0"):
        MCDropout(LogisticRegression(max_iter=1000).fit(*iris)).fit(*iris)


def test_only_modules_that_drop_are_found():
    found = dropout_modules(nn.Sequential(nn.Dropout(0.0), nn.Dropout2d(0.1), nn.AlphaDropout(0.5)))
    assert [type(module) for module in found] == [nn.Dropout2d]


def test_on_a_graph(gcn, nodes, y, others):
    model = MCDropout(gcn, n_samples=20, random_state=0).fit(nodes, y)
    proba = model.predict_proba(others)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert abs(proba - gcn.predict_proba(others)).max() > 1e-3
    again = MCDropout(gcn, n_samples=20, random_state=0).fit(nodes, y)
    np.testing.assert_array_equal(again.predict_proba(others), proba)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(others[::-1]), proba[::-1]
    )
    assert clone(model).estimator is gcn


def test_a_graph_network_without_dropout(dgl, data, nodes, y):
    model = GraphClassifier(data.graph, dropout=0.0, max_epochs=2, random_state=0)
    with pytest.raises(ValueError, match="no dropout module with p > 0"):
        MCDropout(model, graph=data.graph).fit(nodes, y)
