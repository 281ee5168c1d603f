"""Each parameter has an effect, and is refused where it cannot have one."""

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
from skuq.evidential import (
    EvidenceLoss,
    GraphClassifier,
    NetworkHead,
    NodeBatches,
)

X, Y = load_iris(return_X_y=True)
MODELS = [LogisticRegression(C=C, max_iter=1000).fit(X, Y) for C in (1.0, 0.01)]
# Parameters that change no result: where and how it is computed, and what is shown of it.
WITHOUT_RESULT = {"callbacks", "device", "verbose"}


class Sums(nn.Module):
    """Sums over neighbours, without a library of graphs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, x, edge_index):
        values = self.linear(x)
        return values.index_add(0, edge_index[1], values[edge_index[0]])


@pytest.fixture(scope="module")
def graphs(data):
    """Graphs for networks of users, which differ in the features of one node."""
    edges = torch.tensor(np.array(data.adjacency.nonzero()))
    features = [torch.tensor(data.features) for _ in range(2)]
    features[1][100] += 1
    return [SimpleNamespace(x=x.float(), edge_index=edges) for x in features]


def outcome(estimator, known, new):
    """Uncertainty of new samples, and the length of the training."""
    fitted = clone(estimator).fit(*known[:2], X_val=known[2], y_val=known[3])
    u = fitted.predict_uncertainty(new)
    length = len(fitted.history_) if hasattr(fitted, "history_") else 0
    return np.concatenate([[length], u.aleatoric, u.epistemic])


ROWS, VALIDATED = (X, Y, None, None), (X[::2], Y[::2], X[1::2], (Y[1::2] + 1) % 3)
NETWORK = {"head": NetworkHead()}
EFFECTS = [  # settings of the probe, a parameter, and two values of it
    ({}, "estimator", MODELS),
    ({}, "head", ["logits", "network"]),
    (NETWORK, "head__activation", ["exp", "softplus"]),
    (NETWORK, "head__layer", [-1, -2]),
    (NETWORK, "head__hidden_sizes", [(), (4,)]),
    ({}, "loss", [EvidenceLoss(), EvidenceLoss(pcl_weight=1e-2)]),
    ({"loss": EvidenceLoss()}, "loss__ice_weight", [0.0, 1e-2]),
    ({"loss": EvidenceLoss()}, "loss__pcl_weight", [0.0, 1e-2]),
    ({"loss": EvidenceLoss()}, "loss__evidence_id", [50.0, 100.0]),
    ({"loss": EvidenceLoss(pcl_weight=0)}, "loss__evidence_id", [50.0, 100.0]),
    ({"loss": EvidenceLoss()}, "loss__evidence_ood", [0.0, 10.0]),
    ({"loss": EvidenceLoss()}, "loss__weight_decay", [0.0, 0.1]),
    ({}, "measure", ["vacuity", "information"]),
    ({}, "learning_rate", [0.01, 0.03]),
    ({}, "max_epochs", [2, 3]),
    (NETWORK, "random_state", [0, 1]),
]
ON_GRAPH = [
    ({}, "propagation", ["auto", None]),
    ({}, "propagation", ["diffusion", "vacuity"]),
    ({}, "propagation", ["evidence", "both"]),
    ({}, "propagation", ["diffusion", "similarity"]),
    ({"batches": NodeBatches(200)}, "batches__max_neighbors", [None, 1]),
    ({"batches": NodeBatches(40, max_neighbors=1)}, "random_state", [0, 1]),
]


def check_effect(estimator, name, values, known, new):
    found = [outcome(estimator.set_params(**{name: value}), known, new) for value in values]
    assert not np.array_equal(*found)


@pytest.mark.parametrize(("settings", "name", "values"), EFFECTS, ids=str)
def test_parameters_of_a_probe_on_rows(settings, name, values):
    probe = EvidentialProbe(MODELS[0], **{"max_epochs": 3, "random_state": 0, **settings})
    check_effect(clone(probe), name, values, ROWS, X)


def test_patience_of_a_probe_with_validation_data():
    probe = EvidentialProbe(MODELS[0], learning_rate=0.3, max_epochs=20)
    check_effect(probe, "patience", [1, 5], VALIDATED, X)


@pytest.mark.parametrize(("settings", "name", "values"), ON_GRAPH, ids=str)
def test_parameters_of_a_probe_on_a_graph(settings, name, values, graphs, nodes, y, others):
    settings = {"max_epochs": 3, "random_state": 0, **settings}
    probe = EvidentialProbe(Sums(), graph=graphs[0], **settings)
    check_effect(clone(probe), name, values, (nodes, y, None, None), others)


def test_graph_of_a_probe(graphs, nodes, y, others):
    probe = EvidentialProbe(Sums(), max_epochs=3)
    check_effect(probe, "graph", graphs, (nodes, y, None, None), others)


def test_size_of_batches(graphs, nodes, y):
    """Memory, not the result, depends on it."""
    sizes = []

    class Recorded(Sums):
        def forward(self, x, edge_index):
            sizes.append(len(x))
            return super().forward(x, edge_index)

    for batches in (None, NodeBatches(5)):
        sizes.append(batches)
        EvidentialProbe(Recorded(), graph=graphs[0], batches=batches, max_epochs=1).fit(nodes, y)
    assert sizes[:3] == [None, 150, sizes[2]]
    assert len(sizes) > 30
    assert sizes[-1] < 150


def test_every_parameter_of_a_probe_is_tested():
    tested = {name.partition("__")[0] for _, name, _ in EFFECTS + ON_GRAPH}
    tested |= {"graph", "patience", "batches", *WITHOUT_RESULT}
    assert tested == signature(EvidentialProbe).parameters.keys()
    deep = {name for _, name, _ in EFFECTS + ON_GRAPH if "__" in name} | {"batches__batch_size"}
    parts = EvidentialProbe(head=NetworkHead(), loss=EvidenceLoss(), batches=NodeBatches(1))
    assert deep == {name for name in parts.get_params() if "__" in name}


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


@pytest.fixture
def classifier(data):
    return GraphClassifier(data.graph, hidden_sizes=(8,), max_epochs=3, random_state=0)


@pytest.mark.parametrize("name", CLASSIFIER)
def test_parameters_of_the_classifier(classifier, nodes, y, others, name):
    found = [
        clone(classifier).set_params(**{name: value}).fit(nodes, y).predict_proba(others)
        for value in CLASSIFIER[name]
    ]
    assert not np.array_equal(*found)
    assert {*CLASSIFIER, "graph", "patience", *WITHOUT_RESULT} == signature(
        GraphClassifier
    ).parameters.keys()


def fit_without_effect(estimator, message, *known):
    with pytest.raises(ValueError, match=rf"{message}.* no effect"):
        estimator.fit(*known)


PLAIN = {"pcl_weight": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 5}, "patience=5"),
        ({"batches": NodeBatches(5)}, "batches=NodeBatches"),
        ({"propagation": "both"}, "propagation='both'"),
        ({"loss": EvidenceLoss(evidence_ood=5.0, **PLAIN)}, "evidence_ood=5.0"),
        ({"loss": EvidenceLoss(evidence_id=50.0, **PLAIN), **NETWORK}, "evidence_id=50.0"),
    ],
    ids=str,
)
def test_what_has_no_effect_on_rows_is_refused(settings, message):
    fit_without_effect(EvidentialProbe(MODELS[0], **settings), message, X, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 5}, "patience=5"),
        ({"hidden_sizes": (), "dropout": 0.2}, "dropout=0.2"),
        ({"hidden_sizes": (), "batch_norm": True}, "batch_norm=True"),
    ],
)
def test_what_has_no_effect_on_networks_is_refused(classifier, nodes, y, settings, message):
    classifier.set_params(**settings)
    fit_without_effect(classifier, message, nodes, y)
