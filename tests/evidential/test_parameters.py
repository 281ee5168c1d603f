"""Each parameter of the probe's parts and of the classifier of nodes has an effect."""

from inspect import signature

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from skuq import EvidentialProbe
from skuq.evidential import EvidenceLoss, GraphClassifier, NetworkHead, NodeBatches
from tests.evidential.probes import PARTS, Sums

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


def without_effect(cases, estimator, graph, known, new):
    same = []
    for settings, name, values in cases:
        settings = {"max_epochs": 2, "random_state": 0, "graph": graph, **settings}
        probe = EvidentialProbe(estimator, **settings)
        fitted = [clone(probe).set_params(**{name: value}).fit(*known) for value in values]
        parts = [each.predict_uncertainty(new).parts for each in fitted]
        same += [(settings, name)] if np.array_equal(*parts) else []
    return same


def test_parameters_of_a_probe_have_an_effect(plain_graph, nodes, y, others):
    model = LogisticRegression(max_iter=1000).fit(X, Y)
    assert without_effect(ON_ROWS, model, None, (X, Y), X) == []
    assert without_effect(ON_GRAPH, Sums(), plain_graph, (nodes, y), others) == []


def test_every_parameter_of_the_parts_is_tested():
    probe = EvidentialProbe(**{name: part(1) for name, part in PARTS.items()})
    deep = {name for _, name, _ in ON_ROWS + ON_GRAPH if "__" in name} | {"batches__batch_size"}
    assert deep == {name for name in probe.get_params() if "__" in name}
    without_result = {"callbacks", "device", "verbose", "graph", "patience"}
    assert {*CLASSIFIER, *without_result} == signature(GraphClassifier).parameters.keys()


@pytest.mark.parametrize("name", CLASSIFIER)
def test_parameters_of_the_classifier_have_an_effect(data, nodes, y, name):
    settings = {"hidden_sizes": (8,), "max_epochs": 2, "random_state": 0}
    models = (GraphClassifier(data.graph, **settings | {name: value}) for value in CLASSIFIER[name])
    assert not np.array_equal(*(model.fit(nodes, y).proba_ for model in models))
