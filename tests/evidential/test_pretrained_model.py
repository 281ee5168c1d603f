"""Models of all kinds under the probe on a graph, and what is needed of DGL."""

import copy
import sys

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skuq.evidential import GraphClassifier, as_node_graph
from tests.evidential.probes import new_probe


@pytest.fixture(scope="module")
def dgl_graph(dgl, data):
    edges = [torch.tensor(ends) for ends in data.adjacency.nonzero()]
    graph = dgl.add_self_loop(dgl.graph(tuple(edges), num_nodes=150))
    graph.ndata["feat"] = torch.tensor(data.features)
    return graph


@pytest.fixture
def dgl_module(dgl):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = dgl.nn.GraphConv(6, 8)
            self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
            self.last = dgl.nn.GraphConv(8, 3)

        def embed(self, graph, features):
            return self.dropout(self.norm(self.first(graph, features)).relu())

        def forward(self, graph, features):
            return self.last(graph, self.embed(graph, features))

    return Network()


@pytest.fixture
def pyg_module(pyg):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = pyg.nn.GCNConv(6, 8), pyg.nn.GCNConv(8, 3)
            self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)

        def embed(self, x, edge_index):
            return self.dropout(self.norm(self.first(x, edge_index)).relu())

        def forward(self, x, edge_index):
            return self.last(self.embed(x, edge_index), edge_index)

    return Network()


@pytest.fixture(scope="module")
def pyg_graph(pyg, data):
    edges = torch.tensor(np.array(data.adjacency.nonzero()))
    return pyg.data.Data(x=torch.tensor(data.features), edge_index=edges)


def check_untouched(module, call, nodes, y, graph, layer=-1):
    """Fit on a module in training mode; it is not changed, and its own logits are used."""
    twin = copy.deepcopy(module).eval()
    module.train()
    before = copy.deepcopy(module.state_dict())
    probe = new_probe(module, graph=graph, layer=layer).fit(nodes, y)
    assert all(m.training for m in module.modules())
    assert all(p.requires_grad for p in module.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        expected = call(twin).double().softmax(dim=1).numpy()
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, rtol=1e-6)
    return probe


def test_dgl_module_is_called_as_dgl_has_it(dgl_module, dgl_graph, nodes, y):
    check_untouched(
        dgl_module, lambda m: m(dgl_graph, dgl_graph.ndata["feat"]), nodes, y, dgl_graph
    )


def test_pyg_module_is_called_as_pyg_has_it(pyg_module, pyg_graph, nodes, y):
    check_untouched(pyg_module, lambda m: m(pyg_graph.x, pyg_graph.edge_index), nodes, y, pyg_graph)


@pytest.mark.parametrize(
    "layer",
    [
        -2,
        "dropout",
    ],
)
def test_hidden_units_of_a_dgl_module(dgl_module, dgl_graph, nodes, y, layer):
    probe = new_probe(dgl_module, graph=dgl_graph, layer=layer).fit(nodes, y)
    with torch.no_grad():
        hidden = dgl_module.eval().embed(dgl_graph, dgl_graph.ndata["feat"])
    torch.testing.assert_close(probe.head_.mean, hidden.mean(dim=0))


@pytest.mark.parametrize("layer", [-2, "dropout"])
def test_hidden_units_of_a_pyg_module(pyg_module, pyg_graph, nodes, y, layer):
    probe = new_probe(pyg_module, graph=pyg_graph, layer=layer).fit(nodes, y)
    with torch.no_grad():
        hidden = pyg_module.eval().embed(pyg_graph.x, pyg_graph.edge_index)
    torch.testing.assert_close(probe.head_.mean, hidden.mean(dim=0))


def test_dgl_module_on_matrices_sees_a_graph_with_loops(dgl_module, dgl_graph, data, nodes, y):
    ours, theirs = (
        new_probe(dgl_module, graph=graph).fit(nodes, y).alpha_ for graph in (data.graph, dgl_graph)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_skorch_net_around_a_dgl_module(dgl_module, dgl_graph, nodes, y):
    class OnNodes(NeuralNetClassifier):
        def infer(self, x, **fit_params):
            return self.module_(dgl_graph, dgl_graph.ndata["feat"])[x]

    net = OnNodes(
        dgl_module,
        criterion=nn.CrossEntropyLoss,
        max_epochs=20,
        lr=0.1,
        batch_size=-1,
        train_split=None,
        verbose=0,
    ).fit(nodes, y)
    probe = new_probe(net, graph=dgl_graph).fit(nodes, y)
    expected = net.predict_proba(np.arange(150))
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, rtol=1e-4)
    np.testing.assert_array_equal(probe.predict(range(150)), net.predict(np.arange(150)))


def test_frozen_classifier_is_what_it_wraps(gcn, data, nodes, y):
    alphas = [
        new_probe(model, graph=graph).fit(nodes, y).alpha_
        for model in (gcn, FrozenEstimator(gcn))
        for graph in (None, data.graph)
    ]
    for alpha in alphas[1:]:
        np.testing.assert_array_equal(alpha, alphas[0])


def test_graph_may_be_taken_from_the_model(gcn, nodes, y):
    probe = new_probe(gcn).fit(nodes, y)
    assert probe.graph is None
    assert probe.graph_ is gcn.graph_


def test_default_model_is_a_trained_graph_network(dgl, data, nodes, y, others):
    probe = new_probe(graph=data.graph).fit(nodes, y)
    assert probe.score(others, data.labels[others]) > 0.85


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        MLPClassifier((7,), max_iter=20, random_state=0),
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator], ids=["bare", "frozen"])
def test_classifier_of_features_needs_no_dgl(monkeypatch, data, nodes, y, model, wrap):
    monkeypatch.setitem(sys.modules, "dgl", None)
    model.fit(data.features[nodes], y)
    probe = new_probe(wrap(model), graph=data.graph, propagation="both")
    probe.fit(nodes, y)
    plain = new_probe(wrap(model), graph=data.graph).fit(nodes, y)
    expected = model.predict_proba(data.features)
    np.testing.assert_allclose(plain.predict_proba(range(150)), expected, rtol=1e-3, atol=1e-6)
    assert np.isfinite(probe.alpha_).all()


def test_classifier_of_sparse_features(data, nodes, y):
    features = sparse.lil_array((150, 40))
    features[np.arange(150), data.labels + 5] = 1
    features = features.tocsr()
    model = LogisticRegression().fit(features[nodes], y)
    probe = new_probe(model, graph=(data.adjacency, features)).fit(nodes, y)
    np.testing.assert_allclose(
        probe.predict_proba(range(150)), model.predict_proba(features), atol=1e-5
    )


def test_unfitted_classifier_of_features_is_trained(data, nodes, y):
    probe = new_probe(LogisticRegression(), graph=data.graph).fit(nodes, y)
    expected = LogisticRegression().fit(data.features[nodes], y).predict_proba(data.features)
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, atol=1e-3)


@pytest.mark.usefixtures("dgl")
def test_skorch_net_that_returns_probabilities_keeps_them(data, nodes, y):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 3)

        def forward(self, graph, features):
            return self.linear(features).softmax(dim=1)

    class OnNodes(NeuralNetClassifier):  # its default criterion wants probabilities
        def infer(self, x, **fit_params):
            return self.module_(None, torch.tensor(data.features))[x]

    net = OnNodes(Module, max_epochs=3, batch_size=-1, train_split=None, verbose=0).fit(nodes, y)
    probe = new_probe(net, graph=data.graph).fit(nodes, y)
    expected = net.predict_proba(np.arange(150))
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, atol=1e-5)


def test_model_of_another_kind_is_refused(data, nodes, y):
    with pytest.raises(TypeError, match="Cannot adopt"):
        new_probe(object(), graph=data.graph).fit(nodes, y)


@pytest.mark.parametrize(
    "make",
    [
        lambda graph: new_probe(graph=graph),
        lambda graph: new_probe(GraphClassifier(graph), graph=graph),
        lambda graph: GraphClassifier(graph),
    ],
    ids=["default", "probe", "classifier"],
)
def test_missing_dgl_is_named_with_what_installs_it(monkeypatch, data, nodes, y, make):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ImportError, match=r"pip install 'skuq\[graph\]'"):
        make(as_node_graph(data.graph)).fit(nodes, y)


def test_pyg_module_needs_no_dgl(monkeypatch, pyg_module, pyg_graph, nodes, y):
    monkeypatch.setitem(sys.modules, "dgl", None)
    probe = new_probe(pyg_module, graph=pyg_graph, propagation="both")
    assert np.isfinite(probe.fit(nodes, y).alpha_).all()
