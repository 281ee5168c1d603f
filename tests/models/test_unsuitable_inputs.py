"""Common mistakes with a network that is trained already: each is named where it is made."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skuq
from skuq._networks import MLP
from tests.models.around import around

X = np.random.default_rng(0).normal(size=(120, 3, 4))
NEW = np.random.default_rng(1).normal(size=(40, 3, 4))
Y = (X[:, 0, 0] > 0).astype(int)


def network(n_outputs=2, *, sign=1.0):
    """A network that knows the labels: its last logit is large for the second one."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, n_outputs)]
    made = nn.Sequential(*layers).double().eval().requires_grad_(False)
    for parameter in made.parameters():
        parameter.zero_()
    made[1].weight[0, 0], made[1].weight[1, 0] = 1.0, -1.0
    made[4].weight[-1, 0], made[4].weight[-1, 1] = 20.0 * sign, -20.0 * sign
    return made


def fitted(made, X, y):
    held_out = {"X_held_out": NEW} if isinstance(made, skuq.OODDetector) else {}
    return made.fit(X, y, **held_out)


@pytest.fixture(params=["detector", "pool", "reference", "distance", "dropout", "Laplace", "probe"])
def make(request):
    return partial(around, request.param)


@pytest.mark.filterwarnings("error")
def test_a_model_worse_than_guessing_is_told(make):
    fitted(make(network()), X, Y)
    with pytest.warns(UserWarning, match="worse than guessing"):
        fitted(make(network(sign=-1.0)), X, Y)


@pytest.mark.filterwarnings("error")
def test_one_logit_is_that_of_the_second_label(make):
    labels = np.array(["no", "yes"])[Y]
    one, two = (fitted(make(network(n_outputs)), X, labels) for n_outputs in (1, 2))
    np.testing.assert_array_equal(one.predict(NEW), two.predict(NEW))
    if hasattr(one, "predict_proba"):
        np.testing.assert_allclose(one.predict_proba(NEW), two.predict_proba(NEW))
    with pytest.warns(UserWarning, match="sigmoid"):
        skuq.ReferenceClassifier(nn.Sequential(network(1), nn.Sigmoid())).fit(X, labels)
    with pytest.raises(ValueError, match="One logit"):
        fitted(make(network(1)), X, np.arange(120) % 3)


def test_data_that_are_not_one_array_or_have_no_axis_of_samples_are_refused(make):
    of_one = TensorDataset(torch.tensor(X))
    after_fit = fitted(make(network()), X, Y)
    for inputs, message in (
        (of_one, "`X` is a TensorDataset"),
        (DataLoader(of_one), "`X` is a DataLoader"),
        ({"image": X, "age": X[:, 0]}, "`X` is a dict of 2 inputs"),
        ((X, X[:, 0]), "`X` is a tuple of 2 inputs"),
    ):
        for y in (Y, None):
            with pytest.raises(TypeError, match=message):
                fitted(make(network()), inputs, y)
        with pytest.raises(TypeError, match=message):
            after_fit.predict(inputs)
    for one in (NEW[0], torch.tensor(NEW[0])):
        with pytest.raises(ValueError, match=r"X\[None\]"):
            after_fit.predict(one)


class OfNodes(nn.Sequential):
    takes_node_graph = True

    def forward(self, graph):
        return super().forward(graph.features)


@pytest.mark.parametrize("kind", ["points", "reference", "tuner", "probe", "nodes"])
def test_a_final_softmax_is_warned_of_once(kind):
    torch.manual_seed(0)
    X, made = (np.arange(30), OfNodes) if kind == "nodes" else (np.eye(30), nn.Sequential)
    for last, n_warnings in ((nn.Softmax(dim=-1), 1), (nn.LogSoftmax(dim=-1), 0)):
        module = made(MLP(30, 3), last)
        estimator = around("probe" if kind == "nodes" else kind, module)
        if kind == "nodes":
            estimator.set_params(graph=(np.zeros((30, 30)), np.eye(30) + 0.1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.fit(X, np.arange(30) % 3)
        assert sum("softmax" in str(each.message) for each in caught) == n_warnings
