"""Models of all kinds under the probe on a graph; what is read in networks, which stay as is."""

import copy
import sys
from itertools import product

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNet, NeuralNetClassifier
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from skuq._networks import MLP, LeNet
from skuq.evidential import GraphClassifier, NodeBatches, _graph_libraries, as_node_graph
from skuq.evidential._outputs import node_model, read_layer
from tests.evidential.probes import Linear, Sums, new_probe

EVERYONE = np.arange(150)


class Convolutions(nn.Module):
    def __init__(self, kind, is_dgl):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.is_dgl = kind(6, 8), kind(8, 3), is_dgl
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def embed(self, *inputs):
        return self.dropout(self.norm(self.first(*inputs)).relu())

    def forward(self, first, second):
        hidden = self.embed(first, second)
        return self.last(first, hidden) if self.is_dgl else self.last(hidden, second)


@pytest.fixture(params=["dgl", "pyg"])
def of_library(request):
    """A network, a graph of its library, and the inputs that the library gives the network."""
    name = request.param
    library, graph = (request.getfixturevalue(each) for each in (name, f"{name}_graph"))
    if name == "dgl":
        return Convolutions(library.nn.GraphConv, True), graph, (graph, graph.ndata["feat"])
    return Convolutions(library.nn.GCNConv, False), graph, (graph.x, graph.edge_index)


def check_proba(probe, expected, **tolerance):
    expected = torch.as_tensor(expected).double().numpy()
    np.testing.assert_allclose(probe.predict_proba(EVERYONE), expected, **tolerance)


def test_network_is_called_as_its_library_has_it_and_stays_as_it_is(of_library, nodes, y):
    network, graph, inputs = of_library
    twin, before = copy.deepcopy(network).eval(), copy.deepcopy(network.state_dict())
    probe = new_probe(network.train(), graph=graph).fit(nodes, y)
    assert all(m.training for m in network.modules())
    assert all(p.requires_grad for p in network.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with torch.no_grad():
        check_proba(probe, twin(*inputs).double().softmax(dim=1), rtol=1e-6)
        hidden = twin.embed(*inputs)
    for layer in (-2, "dropout"):
        probe = new_probe(network, graph=graph, layer=layer).fit(nodes, y)
        torch.testing.assert_close(probe.head_.mean, hidden.mean(dim=0))


def test_dgl_module_on_matrices_sees_a_graph_with_loops(dgl, dgl_graph, data, nodes, y):
    network, given = dgl.nn.GraphConv(6, 3), {"graph": data.graph}
    settings = {"graph": dgl_graph}, given, given | {"batch_size": 20}
    expected, *others = (new_probe(network, **each).fit(nodes, y).alpha_ for each in settings)
    for found in others:
        np.testing.assert_allclose(found, expected, rtol=1e-4)


class Probabilities(Sums):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index).softmax(dim=1)


@pytest.mark.parametrize(
    ("kind", "criterion"), [(Sums, nn.CrossEntropyLoss), (Probabilities, nn.NLLLoss)]
)
def test_skorch_nets_keep_their_predictions(plain_graph, nodes, y, kind, criterion):
    net = NeuralNetClassifier(kind, criterion=criterion, classes=[2, 0, 1]).initialize()
    probe = new_probe(net, graph=plain_graph).fit(nodes, y)
    with torch.no_grad():
        proba = Probabilities()(plain_graph.x, plain_graph.edge_index)[:, [1, 2, 0]]
    check_proba(probe, proba, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(probe.predict(EVERYONE), proba.argmax(dim=1))


def test_skorch_net_that_is_no_classifier_is_a_network_without_labels(plain_graph, nodes, y):
    net, names = NeuralNet(Sums, criterion=nn.CrossEntropyLoss).initialize(), np.array(list("abc"))
    probes = (new_probe(model, graph=plain_graph).fit(nodes, names[y]) for model in (net, Sums()))
    np.testing.assert_array_equal(*(probe.predict(EVERYONE) for probe in probes))


def test_frozen_classifier_is_what_it_wraps_and_brings_its_graph(gcn, probe, data, nodes, y):
    assert probe.graph is None
    assert probe.graph_ is gcn.graph_
    for model, graph in [(gcn, data.graph), (FrozenEstimator(gcn), None)]:
        found = new_probe(model, graph=graph).fit(nodes, y)
        np.testing.assert_array_equal(found.alpha_, probe.alpha_)


def test_default_model_is_a_trained_graph_network_and_a_search_finds_others(data, nodes, y, others):
    assert new_probe(graph=data.graph).fit(nodes, y).score(others, data.labels[others]) > 0.85
    classifier = GraphClassifier(data.graph, max_epochs=3, random_state=0)
    search = GridSearchCV(classifier, {"hidden_sizes": [(4,), (8,)]}, cv=2).fit(nodes, y)
    found = new_probe(search).fit(nodes, y).predict(nodes)
    np.testing.assert_array_equal(found, search.predict(nodes))


def test_unfitted_classifier_is_cloned_and_trained(data, nodes, y):
    model = GraphClassifier(None, hidden_sizes=(8,), max_epochs=10, random_state=0)
    probe = new_probe(model, graph=data.graph).fit(nodes, y)
    assert model.graph is None
    assert not hasattr(model, "network_")
    alone = clone(model).set_params(graph=data.graph)
    brought = new_probe(alone).fit(nodes, y)
    check_proba(probe, brought.predict_proba(EVERYONE), rtol=1e-9)
    check_proba(probe, alone.fit(nodes, y).predict_proba(EVERYONE), rtol=1e-9)
    model.set_params(random_state=None, max_epochs=2)  # the probe's then seeds it
    found = (new_probe(model, graph=data.graph).fit(nodes, y).alpha_ for _ in range(2))
    np.testing.assert_array_equal(*found)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "wrap"),
    [
        (MLPClassifier((7,), max_iter=20, random_state=0), FrozenEstimator),
        (make_pipeline(StandardScaler(), LogisticRegression()), lambda m: m),
    ],
)
def test_classifier_of_features_needs_no_dgl(monkeypatch, data, nodes, y, model, wrap):
    monkeypatch.setitem(sys.modules, "dgl", None)
    expected = model.fit(data.features[nodes], y).predict_proba(data.features)
    probe = new_probe(wrap(model), graph=data.graph).fit(nodes, y)
    check_proba(probe, expected, rtol=1e-3, atol=1e-6)


def test_classifiers_of_features_may_be_sparse_or_not_fitted(data, nodes, y):
    features = sparse.lil_array((150, 40))
    features[np.arange(150), data.labels + 5] = 1
    features = features.tocsr()
    model = LogisticRegression().fit(features[nodes], y)
    probe = new_probe(model, graph=(data.adjacency, features)).fit(nodes, y)
    check_proba(probe, model.predict_proba(features), atol=1e-5)
    for weight in (None, 0.1 + nodes % 5):
        probe = new_probe(LogisticRegression(), graph=data.graph)
        probe.fit(nodes, y, sample_weight=weight)
        model = LogisticRegression().fit(data.features[nodes], y, weight)
        check_proba(probe, model.predict_proba(data.features), atol=1e-3)


class OfData(Linear):
    def forward(self, data):
        return self.linear(data.x)


def sorted_later(network):
    net = NeuralNetClassifier(network, verbose=0, criterion=nn.CrossEntropyLoss).initialize()
    net.classes_inferred_ = np.array([2, 0, 1])
    return net


@pytest.mark.parametrize("wrap", [lambda network: network, sorted_later])
def test_a_network_may_take_a_whole_pyg_object(plain_graph, nodes, y, wrap):
    probes = (new_probe(wrap(each), graph=plain_graph) for each in (OfData(), Linear()))
    np.testing.assert_array_equal(*(probe.fit(nodes, y).alpha_ for probe in probes))


@pytest.mark.parametrize("settings", [{}, {"batch_size": 40}])
def test_a_network_of_features_and_edges_needs_neither_library(
    monkeypatch, data, plain_graph, nodes, y, settings
):
    for library in ("dgl", "torch_geometric"):
        monkeypatch.setitem(sys.modules, library, None)
    probe = new_probe(Sums(), graph=plain_graph, **settings).fit(nodes, y)
    with torch.no_grad():
        values = Sums().linear(plain_graph.x).double().numpy()
    logits = torch.from_numpy(data.adjacency @ values + values)
    check_proba(probe, logits.softmax(dim=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("library", "layer", "settings"),
    [("pyg", "GCNConv", {}), ("pyg", "SGConv", {"K": 2}), ("dgl", "SGConv", {"k": 2})],
)
def test_caches_of_layers_do_not_answer_for_another_graph(
    request, nodes, y, library, layer, settings
):
    library, given = (request.getfixturevalue(each) for each in (library, f"{library}_graph"))
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    if "k" in settings:
        inputs, other, all_batches = (given, given.ndata["feat"]), given.local_var(), (None,)
        other.ndata["feat"] = inputs[1][order]
    else:
        inputs, all_batches = (given.x, given.edge_index), (None, NodeBatches(40))
        other = library.data.Data(x=given.x, edge_index=order[given.edge_index])
    torch.manual_seed(0)
    caching, plain = (getattr(library.nn, layer)(6, 3, cached=c, **settings) for c in (True, False))
    plain.load_state_dict(caching.state_dict())
    caching(*inputs)  # as its training does
    kept, alphas = vars(caching).copy(), []
    for network, batches in product((plain, caching), all_batches):
        probe = new_probe(network, graph=given, batches=batches).fit(nodes, y)
        alphas.append([probe.alpha_, probe.with_graph(other).alpha_])
    for found in alphas[1:]:
        np.testing.assert_allclose(found, alphas[0], rtol=1e-4)
    assert all(vars(caching)[name] is value for name, value in kept.items())


class Altering(Linear):
    def forward(self, first, second):
        features, graph = (first, None) if isinstance(first, torch.Tensor) else (second, first)
        features -= 1
        if graph is not None:
            graph.ndata["hidden"] = features
        return self.linear(features)


@pytest.mark.usefixtures("dgl")
@pytest.mark.parametrize("library", ["dgl", "pyg", "none"])
def test_a_network_that_alters_its_inputs_leaves_the_graph_alone(request, data, nodes, y, library):
    given = data.graph if library == "none" else request.getfixturevalue(f"{library}_graph")
    graph = as_node_graph(given)
    with torch.no_grad():
        logits = Altering().linear(torch.tensor(data.features) - 1)
    for _ in range(2):
        probe = new_probe(Altering(), graph=graph).fit(nodes, y)
        check_proba(probe, logits.double().softmax(dim=1), rtol=1e-5)
    own = given.ndata["feat"] if library == "dgl" else getattr(given, "x", graph.features)
    np.testing.assert_array_equal(own, data.features.astype(np.float32))
    assert library != "dgl" or "hidden" not in given.ndata


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_tensors_of_the_last_training_step_are_left_aside(plain_graph, nodes, y):
    class Keeping(Linear):
        def forward(self, x, edge_index):
            self.last = self.linear(x)
            return self.last

    network = Keeping()
    nn.utils.weight_norm(network.linear)
    network(plain_graph.x, None).sum().backward()
    probe = new_probe(network, graph=plain_graph).fit(nodes, y)
    assert network.last.requires_grad
    with torch.no_grad():
        check_proba(probe, network.eval()(plain_graph.x, None).softmax(dim=1), rtol=1e-5)


@pytest.mark.parametrize("name", ["edge_weight", "edge_attr"])
def test_weights_of_edges_that_a_network_could_take_are_named(pyg, pyg_graph, nodes, y, name):
    class Weighted(Linear):
        def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
            return self.linear(x)

    weighted = pyg_graph.clone()
    weighted[name] = torch.ones(pyg_graph.num_edges)
    with pytest.warns(UserWarning, match=f"without .*`{name}`"):
        new_probe(Weighted(), graph=weighted).fit(nodes, y)
    new_probe(Weighted(), graph=pyg_graph).fit(nodes, y)
    if name == "edge_attr":  # which its layers do not read
        new_probe(pyg.nn.GCN(6, 8, 2, 3), graph=weighted).fit(nodes, y)


def test_only_networks_of_dgl_are_kept_where_dgl_computes(
    monkeypatch, dgl, gcn, dgl_graph, pyg_graph
):
    def without_cuda(graph, device):
        raise dgl.DGLError("no such device")

    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(_graph_libraries, "resolve_device", lambda device: cuda)
    monkeypatch.setattr(dgl.DGLGraph, "to", without_cuda)
    pairs = (Linear(), pyg_graph), (Linear(), dgl_graph), (gcn.network_, dgl_graph)
    models = [node_model(network, as_node_graph(graph), None) for network, graph in pairs]
    for each in (models, [model.followed_by(nn.Identity()) for model in models]):
        assert [model.resolved("auto") for model in each] == [cuda, cpu, cuda]
    with pytest.raises(ValueError, match="DGL"):
        models[1].resolved("cuda")


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net():
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(6, 3)).eval()


def read(network, layer, x=X):
    with torch.no_grad():
        return read_layer(network, lambda: network(x), layer)


def check_hidden(network, layer, expected):
    with torch.no_grad():
        logits, hidden = read(network, layer)
        torch.testing.assert_close(logits, network(X))
        torch.testing.assert_close(hidden, expected(X))


@pytest.mark.parametrize(
    ("layer", "n_modules"), [(-1, 6), (-2, 5), (-3, 3), (-4, 0), ("0", 1), ("1", 2), ("4", 5)]
)
def test_layers_hold_what_the_modules_before_them_compute(net, layer, n_modules):
    check_hidden(net, layer, net[:n_modules])


@pytest.mark.parametrize("layer", [-2, "0"])
def test_hooks_are_removed_even_after_an_error(layer):
    network = MLP(4, 3, hidden_sizes=(8,), dropout=0.5).train()
    read(network, layer)
    with pytest.raises(RuntimeError):
        read(network, layer, torch.zeros(5, 3))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert all(m.training for m in network.modules())


class Two(nn.Module):
    def __init__(self, call, width=2):
        super().__init__()
        self.call, self.first, self.last = call, nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.call(self, x)


POOLED = Two(lambda self, x: self.last(self.first(x.mean(dim=0)).expand(len(x), 2)))
IDLE = Two(lambda self, x: self.first(x), width=3)


@pytest.mark.parametrize(
    ("network", "layer", "word"),
    [
        (MLP(4, 3, hidden_sizes=(8, 6)), -5, "3 matching"),
        *(
            (MLP(4, 3), name, f"`layer`='{name}'.* 0 match.* 2")
            for name in ["nope", "", "0.weight"]
        ),
        (IDLE, "last", "0 matching"),
        (POOLED, "first", r"5 rows.*got \(2,\)"),
    ],
)
def test_layer_that_does_not_hold_samples_is_refused(network, layer, word):
    with pytest.raises(ValueError, match=word):
        read(network, layer)


def test_modules_that_run_twice_work_in_place_take_names_or_have_parametrised_weights_are_read():
    shared = nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 3))
    check_hidden(network, -3, network[:2])
    check_hidden(network, "0", network[:3])
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    check_hidden(network, "0", network[0])
    network = Two(lambda self, x: self.last(input=self.first(x)))
    check_hidden(network, -2, network.first)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), spectral_norm(nn.Linear(8, 3))).eval()
    check_hidden(network, -2, network[:2])
    network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).eval()
    register_parametrization(network[1], "weight", nn.Linear(8, 8))
    check_hidden(network, -2, network[0])


@pytest.mark.parametrize(("layer", "width"), [(-2, 84), (-3, 120), ("features.0", 6 * 24 * 24)])
def test_lenet_with_its_channels_flattened(layer, width):
    _, hidden = read(LeNet().eval(), layer, torch.zeros(2, 1, 28, 28))
    assert hidden.shape == (2, width)


def test_last_layer_of_a_gcn_is_given_its_hidden_units(gcn):
    network, graph = gcn.network_, gcn.graph_
    _, hidden = read(network, -2, graph)
    torch.testing.assert_close(hidden, network.layers[0](graph.edges, graph.features).relu())
