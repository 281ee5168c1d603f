"""Features on which the last step of a model decides."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from skuq.models import LearnerModel, adopt, head_features

X = np.random.default_rng(0).normal(size=(30, 4))
Y = np.arange(30) % 3
SCALED = StandardScaler().fit_transform(X)


class Named(nn.Module):
    """A head that is called with its input by name, before something of torch's functions."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, X):
        return self.head(input=self.body(X).relu()).log_softmax(-1)


def test_of_a_network_they_enter_the_last_layer():
    mlp = MLPClassifier((8,), max_iter=5)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        pipe = make_pipeline(StandardScaler(), mlp).fit(X, Y)
    model = adopt(pipe)
    hidden = np.maximum(SCALED @ mlp.coefs_[0] + mlp.intercepts_[0], 0)
    np.testing.assert_allclose(head_features(model, model.inputs(X)), hidden, atol=1e-12)
    named = adopt(Named())
    with torch.no_grad():
        expected = named.module.body(named.inputs(X)).relu().numpy()
    np.testing.assert_array_equal(head_features(named, named.inputs(X)), expected)


def test_of_learners_they_are_the_inputs_if_these_are_numbers():
    forest = RandomForestClassifier(2, random_state=0)
    pipe = make_pipeline(StandardScaler(), forest).fit(X, Y)
    model = LearnerModel(estimator=forest, transform=pipe[:-1].transform)
    np.testing.assert_allclose(head_features(model, model.inputs(X)), SCALED)
    whole = LearnerModel(estimator=forest)
    table = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]})
    np.testing.assert_array_equal(head_features(whole, table), [[1, 1], [np.nan, 0]])
    assert head_features(whole, table.assign(text=["x", "y"])) is None


def test_models_of_nodes_have_none():
    data = make_node_classes(40, random_state=0)
    classifier = GraphClassifier(data.graph, max_epochs=1, random_state=0)
    model = classifier.fit(np.arange(40), data.labels).as_model()
    assert head_features(model, model.inputs(np.arange(4))) is None
