"""Models of all kinds under the probe on a graph, and what is needed of DGL."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNet, NeuralNetClassifier
from torch import nn

from skuq.evidential import NodeBatches, _graph_libraries, as_node_graph
from skuq.evidential._outputs import node_model
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


@pytest.mark.parametrize("settings", [{}, {"batch_size": 40}])
def test_missing_dgl_is_named_where_a_network_is_called_with_its_graph(
    monkeypatch, data, nodes, y, settings
):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ImportError, match=r"dgl is needed.*`edge_index` and `x`"):
        new_probe(Altering(), graph=data.graph, **settings).fit(nodes, y)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 40}])
def test_a_network_of_features_and_edges_needs_neither_library(
    monkeypatch, data, nodes, y, settings
):
    for library in ("dgl", "torch_geometric"):
        monkeypatch.setitem(sys.modules, library, None)

    class OwnAndNeighbours(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 3)

        def forward(self, x, edge_index):
            source, target = edge_index
            projected = self.linear(x)
            return projected.index_add(0, target, projected[source])

    network, looped = OwnAndNeighbours(), data.adjacency.toarray() + np.eye(150)
    graph = SimpleNamespace(
        x=torch.tensor(data.features), edge_index=torch.tensor(np.array(data.adjacency.nonzero()))
    )
    probe = new_probe(network, graph=graph, **settings).fit(nodes, y)
    with torch.no_grad():
        logits = torch.tensor(looped) @ network.linear(graph.x).double()
    expected = logits.softmax(dim=1).numpy()
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, rtol=1e-4, atol=1e-6)


def test_pyg_module_needs_no_dgl(monkeypatch, pyg_module, pyg_graph, nodes, y):
    monkeypatch.setitem(sys.modules, "dgl", None)
    probe = new_probe(pyg_module, graph=pyg_graph, propagation="both")
    assert np.isfinite(probe.fit(nodes, y).alpha_).all()


@pytest.mark.parametrize("layers", [("GCNConv", {}), ("SGConv", {"K": 2})])
def test_caches_of_pyg_layers_do_not_answer_for_another_graph(pyg, pyg_graph, nodes, y, layers):
    class Network(nn.Module):
        def __init__(self, cached):
            super().__init__()
            torch.manual_seed(0)
            name, settings = layers
            self.layer = getattr(pyg.nn, name)(6, 3, cached=cached, **settings)

        def forward(self, x, edge_index):
            return self.layer(x, edge_index)

    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    other = pyg.data.Data(x=pyg_graph.x, edge_index=order[pyg_graph.edge_index])
    caching, plain = Network(True), Network(False)
    caching(pyg_graph.x, pyg_graph.edge_index)  # as its training does
    kept = vars(caching.layer).copy()
    for batches in (None, NodeBatches(40)):
        probes = [
            new_probe(network, graph=pyg_graph, batches=batches).fit(nodes, y)
            for network in (caching, plain)
        ]
        np.testing.assert_allclose(*[probe.alpha_ for probe in probes], rtol=1e-4)
        np.testing.assert_allclose(*[p.with_graph(other).alpha_ for p in probes], rtol=1e-4)
    assert all(vars(caching.layer)[name] is value for name, value in kept.items())


def test_caches_of_dgl_layers_do_not_answer_for_another_graph(dgl, dgl_graph, nodes, y):
    torch.manual_seed(0)
    caching, plain = (dgl.nn.SGConv(6, 3, k=2, cached=cached) for cached in (True, False))
    plain.load_state_dict(caching.state_dict())
    caching(dgl_graph, dgl_graph.ndata["feat"])
    other = dgl_graph.local_var()
    other.ndata["feat"] = dgl_graph.ndata["feat"].flip(0)
    ours, theirs = (
        new_probe(network, graph=dgl_graph).fit(nodes, y).with_graph(other)
        for network in (caching, plain)
    )
    np.testing.assert_allclose(ours.alpha_, theirs.alpha_, rtol=1e-4)


class Altering(nn.Module):
    """A network that alters what it is called with."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, first, second):
        features, graph = (first, None) if isinstance(first, torch.Tensor) else (second, first)
        features -= 1
        if graph is not None:
            graph.ndata["hidden"] = features
        return self.linear(features)


@pytest.mark.parametrize("library", ["dgl", "pyg", "none"])
def test_a_network_that_alters_its_inputs_leaves_the_graph_alone(
    request, data, nodes, y, library, dgl
):
    given = data.graph if library == "none" else request.getfixturevalue(f"{library}_graph")
    graph = as_node_graph(given)
    for _ in range(2):
        probe = new_probe(Altering(), graph=graph).fit(nodes, y)
        with torch.no_grad():
            logits = Altering().linear(torch.tensor(data.features) - 1)
        expected = logits.double().softmax(dim=1).numpy()
        np.testing.assert_allclose(probe.predict_proba(range(150)), expected, rtol=1e-5)
    features = {"dgl": lambda: given.ndata["feat"], "pyg": lambda: given.x}
    found = features.get(library, lambda: graph.features)()
    np.testing.assert_array_equal(found, data.features.astype(np.float32))
    if library == "dgl":
        assert "hidden" not in given.ndata


class TwoOutputs(Altering):
    def forward(self, x, edge_index):
        return self.linear(x), x


class Wordless(Altering):
    def forward(self, x, edge_index):
        raise RuntimeError


@pytest.mark.parametrize("settings", [{}, {"layer": -2}, {"batch_size": 20}])
@pytest.mark.parametrize(
    ("network", "message"),
    [
        (TwoOutputs(), "one tensor of logits.* got tuple"),
        (Wordless(), "6 features; it raised: RuntimeError"),
    ],
)
def test_what_a_network_returns_or_raises_is_named(pyg_graph, nodes, y, network, message, settings):
    with pytest.raises(ValueError, match=message):
        new_probe(network, graph=pyg_graph, **settings).fit(nodes, y)


@pytest.mark.parametrize("norm", [None, nn.utils.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_tensors_of_the_last_training_step_do_not_keep_a_network_from_being_read(
    pyg_module, pyg_graph, nodes, y, norm
):
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg_module if norm is None else norm(nn.Linear(6, 3))

        def forward(self, x, edge_index):
            self.last = self.first(*([x, edge_index] if norm is None else [x]))
            return self.last

    network = Keeping()
    network(pyg_graph.x, pyg_graph.edge_index).sum().backward()
    probe = new_probe(network, graph=pyg_graph).fit(nodes, y)
    assert network.last.requires_grad
    with torch.no_grad():
        expected = network.eval()(pyg_graph.x, pyg_graph.edge_index).softmax(dim=1)
    np.testing.assert_allclose(probe.predict_proba(range(150)), expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_script_module_is_refused_by_name(pyg_graph, nodes, y):
    with pytest.raises(TypeError, match="Cannot adopt a ScriptModule"):
        new_probe(torch.jit.script(Altering()), graph=pyg_graph).fit(nodes, y)


@pytest.mark.parametrize("name", ["edge_weight", "edge_attr"])
def test_weights_of_edges_that_a_network_could_take_are_named(pyg, pyg_graph, nodes, y, name):
    class Weighted(Altering):
        def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
            return self.linear(x)

    weighted = pyg_graph.clone()
    weighted[name] = torch.ones(pyg_graph.num_edges)
    with pytest.warns(UserWarning, match=f"without the graph's `{name}`"):
        new_probe(Weighted(), graph=weighted).fit(nodes, y)
    new_probe(Weighted(), graph=pyg_graph).fit(nodes, y)
    if name == "edge_attr":  # which its layers do not read
        new_probe(pyg.nn.GCN(6, 8, 2, 3), graph=weighted).fit(nodes, y)


def test_skorch_net_that_is_no_classifier_is_a_network_without_labels(pyg_module, pyg_graph, y):
    class OnNodes(NeuralNet):
        def infer(self, x, **fit_params):
            return self.module_(pyg_graph.x, pyg_graph.edge_index)[x]

    net = OnNodes(pyg_module, criterion=nn.CrossEntropyLoss, lr=0.1, verbose=0).initialize()
    names = np.array(["ant", "bee", "cat"])
    found, expected = (
        new_probe(model, graph=pyg_graph).fit(range(60), names[y]) for model in (net, net.module_)
    )
    np.testing.assert_array_equal(found.predict(range(150)), expected.predict(range(150)))


def test_only_networks_of_dgl_are_kept_where_dgl_computes(
    monkeypatch, dgl, gcn, dgl_graph, pyg_graph
):
    def without_cuda(graph, device):
        raise dgl.DGLError("no such device")

    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(_graph_libraries, "resolve_device", lambda device: cuda)
    monkeypatch.setattr(dgl.DGLGraph, "to", without_cuda)
    pairs = (Altering(), pyg_graph), (Altering(), dgl_graph), (gcn.network_, dgl_graph)
    models = [node_model(network, as_node_graph(graph), None) for network, graph in pairs]
    models += [model.followed_by(nn.Identity()) for model in models]
    assert [model.resolved("auto") for model in models] == [cuda, cpu, cuda] * 2
    with pytest.raises(ValueError, match="not supported by the installed DGL"):
        models[1].resolved("cuda")
