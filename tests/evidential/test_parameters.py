"""Each parameter of the probe's parts and of the classifier of nodes has an effect."""

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import nn

from skuq import EvidentialProbe
from skuq.evidential import EvidenceLoss, GraphClassifier, NetworkHead, NodeBatches
from tests.evidential.probes import PARTS

X, Y = load_iris(return_X_y=True)
LOSS, NETWORK = {"loss": EvidenceLoss()}, {"head": NetworkHead()}
ON_ROWS = [  # settings of the probe, a parameter, and two values of it
    (NETWORK, "head__activation", ["exp", "softplus"]),
    (NETWORK, "head__layer", [-1, -2]),
    (NETWORK, "head__hidden_sizes", [(), (4,)]),
    (NETWORK, "random_state", [0, 1]),
    (LOSS, "loss__ice_weight", [0.0, 1e-2]),
    (LOSS, "loss__pcl_weight", [0.0, 1e-2]),
    (LOSS, "loss__evidence_id", [50.0, 100.0]),
    ({"loss": EvidenceLoss(pcl_weight=0)}, "loss__evidence_id", [50.0, 100.0]),
    (LOSS, "loss__evidence_ood", [0.0, 10.0]),
    (LOSS, "loss__weight_decay", [0.0, 0.1]),
]
ON_GRAPH = [
    ({}, "propagation", ["auto", None]),
    ({}, "propagation", ["diffusion", "vacuity"]),
    ({}, "propagation", ["evidence", "both"]),
    ({}, "propagation", ["diffusion", "similarity"]),
    ({"batches": NodeBatches(200)}, "batches__max_neighbors", [None, 1]),
    ({"batches": NodeBatches(40, max_neighbors=1)}, "random_state", [0, 1]),
]
CLASSIFIER = {
    "architecture": ["gcn", "gat"],
    "hidden_sizes": [(8,), (16,)],
    "dropout": [0.0, 0.5],
    "batch_norm": [False, True],
    "learning_rate": [0.01, 0.1],
    "weight_decay": [0.0, 0.1],
    "max_epochs": [3, 4],
    "random_state": [0, 1],
}


class Sums(nn.Module):
    """Sums over neighbours, without a library of graphs; it notes the sizes of its inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.sizes = nn.Linear(6, 3), []

    def __deepcopy__(self, memo):
        return self

    def forward(self, x, edge_index):
        self.sizes.append(len(x))
        values = self.linear(x)
        return values.index_add(0, edge_index[1], values[edge_index[0]])


def without_effect(cases, make, known, new):
    """Cases whose values give the same uncertainty."""
    same = []
    for settings, name, values in cases:
        estimators = [clone(make(**settings)).set_params(**{name: value}) for value in values]
        parts = [each.fit(*known).predict_uncertainty(new).parts for each in estimators]
        same += [(settings, name)] if np.array_equal(*parts) else []
    return same


def test_parameters_of_a_probe_have_an_effect_on_rows():
    model = LogisticRegression(max_iter=1000).fit(X, Y)

    def make(**settings):
        return EvidentialProbe(model, **{"max_epochs": 2, "random_state": 0, **settings})

    assert without_effect(ON_ROWS, make, (X, Y), X) == []


@pytest.fixture
def graph(data):
    edges = torch.tensor(np.array(data.adjacency.nonzero()))
    return SimpleNamespace(x=torch.tensor(data.features).float(), edge_index=edges)


def test_parameters_of_a_probe_have_an_effect_on_a_graph(graph, nodes, y, others):
    def make(**settings):
        settings = {"max_epochs": 2, "random_state": 0, **settings}
        return EvidentialProbe(Sums(), graph=graph, **settings)

    assert without_effect(ON_GRAPH, make, (nodes, y), others) == []


def test_size_of_batches_decides_on_memory_and_not_on_the_result(graph, nodes, y):
    whole, parts = (
        EvidentialProbe(Sums(), graph=graph, batches=batches, max_epochs=1, random_state=0)
        for batches in (None, NodeBatches(5))
    )
    np.testing.assert_allclose(whole.fit(nodes, y).alpha_, parts.fit(nodes, y).alpha_, rtol=1e-5)
    assert whole.estimator.sizes == [150]
    assert len(parts.estimator.sizes) > 30
    assert parts.estimator.sizes[-1] < 150


def test_every_parameter_of_the_parts_is_tested():
    probe = EvidentialProbe(**{name: part(1) for name, part in PARTS.items()})
    deep = {name for _, name, _ in ON_ROWS + ON_GRAPH if "__" in name} | {"batches__batch_size"}
    assert deep == {name for name in probe.get_params() if "__" in name}
    without_result = {"callbacks", "device", "verbose", "graph", "patience"}
    assert {*CLASSIFIER, *without_result} == signature(GraphClassifier).parameters.keys()


def test_parameters_of_the_classifier_have_an_effect(data, nodes, y):
    same, settings = [], {"hidden_sizes": (8,), "max_epochs": 2, "random_state": 0}
    for name, values in CLASSIFIER.items():
        changed = [{**settings, name: value} for value in values]
        found = [GraphClassifier(data.graph, **each).fit(nodes, y).proba_ for each in changed]
        same += [name] if np.array_equal(*found) else []
    assert same == []
