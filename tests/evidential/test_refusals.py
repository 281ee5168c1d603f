"""What is refused, with a word of ours that names the problem; all parameters have an effect."""

import sys
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
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
    as_node_graph,
    labelled_nodes,
)
from skuq.evidential._graphs import as_features, checked_nodes
from tests.evidential.probes import PARTS, Linear, Sums, new_probe

SQUARE, FEATURES, IDS = np.eye(4)[::-1], np.arange(1.0, 9.0).reshape(4, 2), np.arange(60)
ROWS = np.random.default_rng(0).normal(size=(60, 4))
CODES = IDS % 3


def on_edges(edges):
    return SimpleNamespace(x=FEATURES, edge_index=edges)


GRAPHS = [
    *((graph, TypeError, type(graph).__name__) for graph in (None, SQUARE, (SQUARE,))),
    ((SQUARE, None), ValueError, "shape"),
    ((SQUARE[:3], FEATURES), ValueError, r"square, got shape \(3, 4\)"),
    ((SQUARE[0], FEATURES), ValueError, r"square, got shape \(4,\)"),
    ((SQUARE, FEATURES[:3]), ValueError, "4 nodes, but 3 rows"),
    ((SQUARE * np.nan, FEATURES), ValueError, "adjacency matrix contains NaN"),
    ((np.where(SQUARE, np.inf, 0), FEATURES), ValueError, "adjacency matrix contains"),
    *((on_edges(torch.zeros(s)), ValueError, r"n_edges.*shape \(5,") for s in [(5, 2), (5,)]),
    (on_edges(np.array([[0.0, 1.2], [0.9, 2.0]])), ValueError, "ids, got .*float64"),
    (on_edges(torch.tensor([[0.0, np.nan], [1.0, 2.0]])), ValueError, "ids, got .*float32"),
    (on_edges(np.eye(2, dtype=bool)), ValueError, "ids, got .*bool"),
    (on_edges([[0], [7]]), ValueError, "from 0 to 3, got 0 to 7"),
    (on_edges([[0, 1], [-1, 2]]), ValueError, "from 0 to 3, got -1 to 2"),
]
NO_IDS = [
    ([0, 4], "between 0 and 3, got 0 to 4"),
    ([-1, 2], "got -1 to 2"),
    ([np.inf, 1.0], "between"),
    *((X, "integers") for X in ([0.5, 1.0], [np.nan, 1.0], pd.Series([0.5]))),
    *((X, "integers") for X in (["0", "1"], [None, 1])),
    ([True, False], r"mask .* \(4,\), got \(2,\)"),
    (np.ones((4, 4), bool), r"mask .* got \(4, 4\)"),
    (np.ones((3, 1), bool), r"mask .* got \(3,\)"),
    *((X, "one or more") for X in ([False] * 4, [], np.empty((0, 1), int))),
    *((np.zeros(shape, int), r"\(n, 1\), got shape \(") for shape in [(2, 2), (2, 1, 1), ()]),
    ([1, 0, 0, 1], "4 values, all 0 or 1"),
    (torch.tensor([1, 0, 0, 1], dtype=torch.uint8), "boolean mask"),
    (np.array([[1.0], [0], [0], [1]]), "boolean mask"),
]
WRONG_DATA = [  # the empty word: the message is not ours
    ({"y": np.zeros(60, int)}, "one class"),
    *(({"y": y}, "") for y in (np.linspace(0, 1, 60), np.zeros(59, int))),
    ({"X": np.arange(100, 160)}, "between 0 and 149, got 100 to 159"),
    ({"y_val": [0]}, "both"),
    ({"X_val": [70], "y_val": ["a"]}, "`y_val`"),
    ({"X_val": [170], "y_val": [0]}, "between"),
    ({"X_val": [70, 71], "y_val": [0]}, ""),
    *(({"sample_weight": weight}, "") for weight in (-np.ones(60), np.zeros(60), np.ones(3))),
]
BAD = np.eye(20)
BAD[3, 3] = np.nan
NO_FEATURES = [
    *((convert(BAD), "NaN") for convert in (np.asarray, sparse.csr_array, torch.tensor)),
    (torch.tensor(BAD).to_sparse(), "NaN"),
    *((convert(np.where(BAD == BAD, BAD, -np.inf)), "infinity") for convert in (list, np.array)),
    *((convert(np.diag([1e300] + [1.0] * 19)), "float32") for convert in (list, sparse.csr_array)),
    *((np.ones(shape), r"\(n_nodes, n_features\), got \(3") for shape in [(3,), (3, 0), (3, 2, 2)]),
]
ON_DISK = [
    (np.zeros((4, 2)), "float64"),
    (np.full((4, 2), np.nan, np.float32), "NaN"),
    (np.zeros(4, np.float32), "shape"),
    (np.zeros((3, 2), np.float32), "4 nodes, but 3 rows"),
]


def test_what_is_not_a_graph_is_refused(dgl, pyg):
    edge, data = dgl.graph(([0], [1])), pyg.data.Data(x=torch.ones(3, 2))
    for graph, error, word in [
        *GRAPHS,
        (edge, ValueError, "feat"),
        (dgl.heterograph({("a", "to", "b"): ([0], [1])}), ValueError, "one type"),
        (pyg.data.Data(edge_index=torch.zeros(2, 1)), ValueError, "`x`"),
        (data, ValueError, "edge_index"),
        ([edge, edge], TypeError, "one DGLGraph"),
        ((data, data), TypeError, "one DGLGraph"),
    ]:
        with pytest.raises(error, match=word):
            as_node_graph(graph)


def test_what_are_not_nodes_with_labels_is_refused(graph, nodes, y):
    for X, word in NO_IDS:
        with pytest.raises(ValueError, match=word):
            checked_nodes(X, 4)
    for change, word in WRONG_DATA:
        with pytest.raises(ValueError, match=word):
            labelled_nodes(graph, **{"X": nodes, "y": y, **change})


@pytest.mark.parametrize("chunk", [8, 2**24])
def test_what_are_not_features_is_refused(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("skuq.evidential._graphs.CHECKED_FLOATS", chunk)
    for values, word in NO_FEATURES:
        with pytest.raises(ValueError, match=word):
            as_features(values)
    for k, (values, word) in enumerate(ON_DISK):
        np.save(tmp_path / f"{k}.npy", values)
        with pytest.raises(ValueError, match=word):
            as_node_graph((SQUARE, np.load(tmp_path / f"{k}.npy", mmap_mode="r")))


class Network(Linear):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, edge_index):
        return self.function(self, x)


def raises(self, x):
    raise RuntimeError


def two(self, x):
    return self.linear(x), x


OUTPUTS = [  # functions of the features, a word, and settings of the probe
    (lambda self, x: x[:10], r"\(150, n_classes\), got \(10, 6\)", {}),
    (lambda self, x: x[:, :1], r"got \(150, 1\)", {}),
    (lambda self, x: x[:, 0], r"got \(150,\)", {}),
    (lambda self, x: x[:, :2], "2 ", {}),
    *((lambda self, x: x * np.inf, "NaN or infinity", given) for given in ({}, {"batch_size": 20})),
    *((two, "one tensor of logits.* got tuple", given) for given in ({}, {"batch_size": 20})),
    *((raises, "6 features; it raised: RuntimeError", given) for given in ({}, {"layer": -2})),
    (lambda self, x: x[:, :3] - x[:, :3].mean(dim=0), "16 edges", {"batch_size": 10}),
    (lambda self, x: torch.ones(len(x), 3), "features", {"batch_size": 10}),
    (lambda self, x: x[:, 0], "cannot be evaluated", {"batch_size": 10}),
    (lambda self, x: x[:10], "cannot be evaluated", {"batch_size": 10}),
    (lambda self, x: x[:, :3] * torch.tensor([1, 1, torch.nan]), "NaN", {"batch_size": 10}),
]


@pytest.mark.filterwarnings("ignore:The model's loss")
def test_networks_without_logits_of_the_classes_are_refused(plain_graph, nodes, y):
    for function, word, settings in OUTPUTS:
        with pytest.raises(ValueError, match=word):
            new_probe(Network(function), graph=plain_graph, **settings).fit(nodes, y)


PLAIN = {"pcl_weight": 0}
REFUSED = [  # settings of the probe on a graph, and its data
    ({"layer": -4}, {}, "2 matching"),
    ({"layer": "nope"}, {}, "`layer`='nope'.*0 matching"),
    ({"learning_rate": 1e30}, {}, r"diverged: .*`learning_rate`"),
    ({"learning_rate": 1e10, "activation": "softplus"}, {}, "diverged"),
    ({"batch_size": 0}, {}, "batch_size"),
    ({"batch_size": 10, "max_neighbors": 0}, {}, "max_neighbors"),
    ({"batch_size": 10}, {}, "your own"),
    ({}, {"X_val": [70]}, "both"),
    ({}, {"y": np.where(IDS % 2, 7, 6)}, r"`y` .*\[6, 7\]"),
    ({}, {"y": np.where(IDS % 2, "ant", "bee")}, "`y` "),
    ({}, {"X_val": [70], "y_val": [9]}, r"`y_val` .*\[9\]"),
]


@pytest.mark.parametrize(("settings", "change", "word"), REFUSED)
def test_a_probe_of_nodes_refuses(gcn, nodes, y, settings, change, word):
    with pytest.raises(ValueError, match=word):
        new_probe(gcn, **settings).fit(**{"X": nodes, "y": y, **change})


@pytest.mark.parametrize(
    ("settings", "change", "word"),
    [
        ({"layer": -3}, {}, "1 matching"),
        ({"head": "logits", "evidence_ood": 5.0, **PLAIN}, {}, "evidence_ood=5.0.* no effect"),
        ({"evidence_id": 50.0, **PLAIN}, {}, "evidence_id=50.0.* no effect"),
        ({"evidence_id": 5.0, "evidence_ood": 5.0}, {}, "`evidence_ood`"),
        *(({}, {"X": X}, "60 .* `graph`") for X in (IDS, pd.Series(IDS), [True] * 60)),
        ({}, {"X": ROWS[:9]}, ""),
        ({}, {"y": CODES + 5}, "`y`"),
        ({}, {"X_val": ROWS}, "both"),
        ({}, {"X_val": ROWS, "y_val": CODES[:3]}, ""),
        ({}, {"X_val": ROWS[:1], "y_val": [9]}, "`y_val`"),
        ({}, {"sample_weight": -np.ones(60)}, ""),
    ],
)
def test_a_probe_of_rows_refuses(settings, change, word):
    model = LogisticRegression().fit(ROWS, CODES)
    with pytest.raises(ValueError, match=word):
        new_probe(model, **settings).fit(**{"X": ROWS, "y": CODES, **change})


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"patience": 5}, "patience=5.* no effect"),
        ({"hidden_sizes": (), "dropout": 0.2}, "dropout=0.2.* no effect"),
        ({"hidden_sizes": (), "batch_norm": True}, "batch_norm=True.* no effect"),
        ({"architecture": "gat", "hidden_sizes": (16, 12)}, "multiples of 8, .*12"),
        ({"graph": (np.zeros((70, 70)), np.full((70, 2), np.nan))}, "NaN"),
    ],
)
def test_a_graph_classifier_refuses(data, nodes, y, settings, word):
    with pytest.raises(ValueError, match=word):
        GraphClassifier(**{"graph": data.graph, "max_epochs": 1, **settings}).fit(nodes, y)


def test_other_graphs_are_refused(data, gcn, probe, on_disk, nodes, y):
    for width in (5, 7):
        graph = data.adjacency, np.ones((150, width))
        for attempt in (new_probe(gcn, graph=graph).fit, lambda *_, g=graph: probe.with_graph(g)):
            with pytest.raises(ValueError, match=f"{width} features"):
                attempt(nodes, y)
    rows = EvidentialProbe(nn.Linear(2, 2), max_epochs=1).fit(np.eye(2), [0, 1])
    with pytest.raises(ValueError, match="feature rows"):
        rows.with_graph(data.graph)
    with pytest.raises(ValueError, match=r"`layer`=-2.*only the logits"):
        new_probe(gcn, graph=on_disk, layer=-2).fit(nodes, y)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_models_of_other_kinds_are_refused(data, plain_graph, nodes, y):
    script = torch.jit.script(nn.Linear(6, 3))
    for model, graph in [(object(), data.graph), (script, plain_graph)]:
        with pytest.raises(TypeError, match="Cannot adopt"):
            new_probe(model, graph=graph).fit(nodes, y)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 40}])
def test_missing_dgl_is_named_where_a_network_needs_its_graph(monkeypatch, data, nodes, settings):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ImportError, match=r"dgl.*`edge_index` and `x`"):
        new_probe(nn.Linear(6, 3), graph=data.graph, **settings).fit(nodes, nodes % 3)


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
PROPAGATIONS = [["auto", None], ["diffusion", "vacuity"], ["evidence", "both"]]
PROPAGATIONS += [["diffusion", "similarity"]]
ON_GRAPH = [
    *(({}, "propagation", pair) for pair in PROPAGATIONS),
    ({"batches": NodeBatches(200)}, "batches__max_neighbors", [None, 1]),
    ({"batches": NodeBatches(40, max_neighbors=1)}, "random_state", [0, 1]),
]
CLASSIFIER = {"architecture": ["gcn", "gat"], "hidden_sizes": [(8,), (16,)], "dropout": [0.0, 0.5]}
CLASSIFIER |= {"batch_norm": [False, True], "learning_rate": [0.01, 0.1]}
CLASSIFIER |= {"weight_decay": [0.0, 0.1], "max_epochs": [3, 4], "random_state": [0, 1]}


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
