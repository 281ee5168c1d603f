"""Graph networks against dense computations, DGL and PyG; the classifier of nodes made of them."""

import pickle
import tempfile
import weakref
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from skorch.callbacks import Callback
from torch import nn

from skuq.evidential import (
    GraphClassifier,
    LoopedEdges,
    _graph_networks,
    _graphs,
    as_node_graph,
    normalised_total,
)
from skuq.evidential._graph_networks import GraphAttention, GraphNetwork, chunks, layerwise_logits
from tests.evidential.probes import new_probe

GCN, GAT = partial(GraphNetwork, "gcn"), partial(GraphNetwork, "gat")
CPU = torch.device("cpu")
both_architectures = pytest.mark.parametrize("architecture", [GCN, GAT], ids=["gcn", "gat"])
# Nodes 0 to 10 at random, node 11 alone.
UPPER = np.triu(np.random.default_rng(0).random((12, 12)) < 0.3, 1)
UPPER[:, 11] = False
ADJACENCY = (UPPER | UPPER.T).astype(np.float32)
FEATURES = np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)
GRAPH = as_node_graph((ADJACENCY, FEATURES))
LOOPED = torch.tensor(ADJACENCY + np.eye(12))


def doubles(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def with_random_weights(network):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return network.eval().requires_grad_(False)


def normalised():
    root = torch.diag(LOOPED.sum(dim=1) ** -0.5)
    return root @ LOOPED @ root


def dense_convolution(X, layer):
    return normalised().to(X) @ X @ layer.linear.weight.T + layer.bias


@pytest.fixture(params=["sparse products", "messages"])
def edges(request, monkeypatch):
    """Where torch lacks sparse products, each edge has a message."""
    if request.param == "messages":
        monkeypatch.setattr(_graphs, "has_csr_products", lambda device: False)
    looped = sparse.csr_array(LOOPED.double().numpy())
    return LoopedEdges.of(looped, np.diff(looped.indptr))


def check_with_gradients(ours, theirs, *inputs):
    results = []
    for function in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        (out * doubles(*out.shape)).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for mine, expected in zip(*results, strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10 * scale)


def test_total_over_neighbours_is_the_dense_product(edges):
    check_with_gradients(partial(normalised_total, edges), normalised().matmul, doubles(12, 4))


@pytest.mark.parametrize("mean", [False, True])
def test_attention_is_the_dense_softmax(edges, mean):
    layer = GraphAttention(3, 4, n_heads=2, mean=mean).double()

    def ours(x, attn_l, attn_r):
        weights = {"attn_l": attn_l, "attn_r": attn_r}
        return torch.func.functional_call(layer, weights, (edges, x))

    def dense(x, attn_l, attn_r):
        heads = (x @ layer.linear.weight.T).view(12, 2, 4)
        right, left = (heads * attn_r).sum(2), (heads * attn_l).sum(2)
        scores = right[:, None] + left  # (target, source, head)
        scores = nn.functional.leaky_relu(scores, 0.2)
        weight = scores.masked_fill(LOOPED[..., None] == 0, -torch.inf).softmax(dim=1)
        out = torch.einsum("tsh,shd->thd", weight, heads) + layer.bias.view(attn_l.shape)
        return out.mean(dim=1) if mean else out.flatten(1)

    attn_l, attn_r = 2 * doubles(1, 2, 4), doubles(1, 2, 4).flip(2)
    check_with_gradients(ours, dense, doubles(12, 3), attn_l, attn_r)
    x = (1e4 * doubles(12, 3)).requires_grad_()
    out = layer(edges, x)  # large scores stay finite
    out.sum().backward()
    assert torch.isfinite(torch.cat([out.flatten(), x.grad.flatten()])).all()


def test_initial_weights_are_those_of_networks_of_dgl(dgl):
    torch.manual_seed(0)
    ours = GraphAttention(6, 5, 3)
    after = torch.rand(1)
    torch.manual_seed(0)
    linear, theirs = nn.Linear(6, 15, bias=False), dgl.nn.GATConv(15, 5, 3)
    assert torch.equal(after, torch.rand(1))
    assert torch.equal(ours.linear.weight, linear.weight)
    for name in ("attn_l", "attn_r", "bias"):
        assert torch.equal(getattr(ours, name), theirs.state_dict()[name])


FEW = np.zeros((12, 40), dtype=np.float32)
FEW[np.arange(12), np.arange(12) * 3] = 1.5


@pytest.mark.parametrize(
    ("features", "hidden_sizes"), [(FEATURES, ()), (FEATURES, (7, 4)), (FEW, (7,))]
)
def test_gcn_is_the_dense_product(features, hidden_sizes):
    network = with_random_weights(GCN(features.shape[1], 3, hidden_sizes))
    graph, X = as_node_graph((ADJACENCY, features)), torch.tensor(features)
    assert isinstance(graph.features, torch.Tensor) == (features is FEATURES)
    for layer in network.layers[:-1]:
        X = dense_convolution(X, layer).relu()
    expected = dense_convolution(X, network.layers[-1])
    torch.testing.assert_close(network(graph), expected, rtol=1e-5, atol=1e-5)
    given = sparse.csr_array(3 * ADJACENCY + np.eye(12))  # explicit loops and weights
    torch.testing.assert_close(network(as_node_graph((given, features))), network(graph))


@both_architectures
def test_networks_equal_those_of_pyg(pyg, architecture):
    network, X = with_random_weights(architecture(5, 3, (16,))), torch.tensor(FEATURES)
    edge_index = torch.tensor(np.array(np.nonzero(ADJACENCY)))
    for i, (layer, heads) in enumerate(zip(network.layers, (8, 1), strict=True)):
        n_out, n_in = layer.linear.weight.shape
        if architecture is GCN:
            theirs = pyg.nn.GCNConv(n_in, n_out)
        else:
            theirs = pyg.nn.GATConv(n_in, n_out // heads, heads)
            theirs.att_src.data, theirs.att_dst.data = layer.attn_l, layer.attn_r
        theirs.lin.weight.data, theirs.bias.data = layer.linear.weight, layer.bias
        X = theirs(network.activation(X) if i else X, edge_index)
    torch.testing.assert_close(network(GRAPH), X.detach(), rtol=0, atol=1e-5)


def test_batch_norm_normalises_hidden_layers_and_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    network = GCN(5, 3, (7,), dropout=0.0, batch_norm=True)
    X = dense_convolution(torch.tensor(FEATURES), network.layers[0])
    X = ((X - X.mean(dim=0)) / (X.var(dim=0, correction=0) + 1e-5).sqrt()).relu()
    expected = dense_convolution(X, network.layers[1])
    torch.testing.assert_close(network(GRAPH), expected, rtol=1e-4, atol=1e-5)
    network = GCN(5, 3, (8,), dropout=0.5)
    assert not torch.equal(network(GRAPH), network(GRAPH))
    assert torch.equal(network.eval()(GRAPH), network(GRAPH))


@pytest.fixture(scope="module")
def hub_graph(tmp_path_factory):
    """A graph with a node next to all others but one, which is alone; features in a file."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("hub") / "features.npy"
    edges = np.triu(random.uniform(size=(60, 60)) < 0.05, 1)
    edges[0, 1:59] = True
    edges[:, 59] = False
    np.save(path, random.normal(size=(60, 5)).astype(np.float32))
    return as_node_graph((sparse.csr_array(edges + edges.T), np.load(path, mmap_mode="r")))


@pytest.mark.parametrize(
    ("n_floats", "batch_norm"), [(8, False), (500, True), (500, False), (10**6, True)]
)
@both_architectures
def test_result_is_that_of_a_pass_over_the_graph(
    hub_graph, monkeypatch, architecture, batch_norm, n_floats
):
    torch.manual_seed(0)
    network = architecture(5, 3, (16, 8), batch_norm=batch_norm)
    network(hub_graph)  # so that normalisations know means and variances
    network.eval()
    with torch.no_grad():
        expected = network(hub_graph)
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", n_floats)
    found = layerwise_logits(network, hub_graph, CPU)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.01


def test_no_file_is_mapped_any_more_when_its_folder_goes(hub_graph, monkeypatch):
    """Windows deletes no mapped file."""
    maps, alive, memmap = [], [], np.memmap

    def mapped(*arguments, **options):
        found = memmap(*arguments, **options)
        maps.append(weakref.ref(found))
        return found

    class Folder(TemporaryDirectory):
        def cleanup(self):
            alive.extend(each for each in maps if each() is not None)
            super().cleanup()

    monkeypatch.setattr(np, "memmap", mapped)
    monkeypatch.setattr(_graph_networks, "TemporaryDirectory", Folder)
    layerwise_logits(GCN(5, 3, (16, 8)).eval(), hub_graph, CPU)
    assert len(maps) == 3
    assert not alive


def test_chunks_hold_what_was_asked_for_and_every_node_once(monkeypatch):
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", 40)
    degree = np.where(np.isin(range(50), [7, 20]), 30, np.arange(50) % 4)
    found = list(chunks(degree, 2))
    assert np.concatenate([np.arange(50)[part] for part in found]).tolist() == list(range(50))
    assert all((degree[part] + 1).sum() <= 20 or part.stop - part.start == 1 for part in found)
    assert len(found) < 15


def test_probe_of_a_graph_on_disk_is_that_of_the_graph_in_memory(
    on_disk, probe, gcn, nodes, y, tmp_path, monkeypatch, capsys
):
    def refuse(self, graph):
        raise AssertionError("evaluated on the whole graph")

    monkeypatch.setattr(GraphNetwork, "forward", refuse)
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", 500)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = new_probe(gcn, graph=on_disk).fit(nodes, y)
    assert "layers" not in capsys.readouterr().err
    for each in (found, probe.with_graph(on_disk)):
        np.testing.assert_allclose(each.alpha_, probe.alpha_, rtol=1e-4)
    found.set_params(verbose=1).with_graph(on_disk)
    assert "450/450" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_networks_are_trained_on_features_from_disk(on_disk, data, nodes, y):
    model = GraphClassifier(None, hidden_sizes=(4,), max_epochs=3, random_state=0)
    both = (model.set_params(graph=each).fit(nodes, y).proba_ for each in (data.graph, on_disk))
    np.testing.assert_array_equal(*both)


QUICK = {"hidden_sizes": (8,), "max_epochs": 8, "random_state": 0}
NAMES = np.array(["cat", "dog", "eel"])


@pytest.fixture
def fit(data, nodes, y):
    def fit(X=nodes, labels=y, sample_weight=None, **settings):
        model = GraphClassifier(data.graph, **{**QUICK, **settings})
        return model.fit(X, labels, sample_weight)

    return fit


@pytest.mark.parametrize("architecture", ["gcn", "gat"])
def test_it_learns(fit, data, others, architecture):
    model = fit(architecture=architecture, hidden_sizes=(16,), max_epochs=40)
    assert model.score(others, data.labels[others]) > 0.85
    losses = model.history_[:, "train_loss"]
    assert losses[-1] < losses[0] / 2
    assert len(losses) == 40


def test_probabilities_are_those_of_the_network(gcn, nodes, y, others):
    proba = gcn.predict_proba(others)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    logits = gcn.network_(gcn.graph_).double().numpy()[others]
    np.testing.assert_allclose(np.diff(np.log(proba)), np.diff(logits), atol=1e-6)
    np.testing.assert_array_equal(gcn.predict(others), proba.argmax(axis=1))
    named = clone(gcn).fit(nodes, NAMES[y])
    assert named.classes_.tolist() == ["cat", "dog", "eel"]
    np.testing.assert_array_equal(named.predict([80, 70, 80]), NAMES[gcn.predict([80, 70, 80])])


def test_best_epoch_is_kept(data, nodes, others):
    """Labels that are learnt by heart: validation gets worse after a while."""
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(150) < 0.4, rng.integers(3, size=150), data.labels)
    settings = {"learning_rate": 0.05, "patience": 15, "dropout": 0.0, "random_state": 0}
    model = GraphClassifier(data.graph, max_epochs=150, **settings)
    model.fit(nodes, noisy[nodes], X_val=others, y_val=noisy[others])
    losses = np.array(model.history_[:, "valid_loss"])
    assert len(losses) == losses.argmin() + 16 < 150
    of_class = model.predict_proba(others)[range(90), noisy[others]]
    assert -np.log(of_class).mean() == pytest.approx(losses.min(), rel=1e-5)


def test_seed_fixes_everything_and_global_random_state_is_left_alone(fit):
    before = torch.get_rng_state()
    seeds = 3, 3, np.random.RandomState(3), np.random.RandomState(3), 4
    one, again, *drawn, other = (fit(random_state=seed).proba_ for seed in seeds)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(*drawn)
    assert np.abs(one - other).max() > 1e-3


def test_weight_counts_as_repetition_and_weight_zero_as_absence(fit, nodes, y):
    twice = fit(sample_weight=1.0 + (nodes < 10)).proba_
    repeated = fit(np.append(nodes, nodes[:10]), np.append(y, y[:10])).proba_
    np.testing.assert_allclose(twice, repeated, atol=1e-4)
    assert np.abs(twice - fit().proba_).max() > 1e-3
    fewer = fit(sample_weight=(nodes < 40).astype(float)).proba_
    np.testing.assert_allclose(fewer, fit(nodes[:40], y[:40]).proba_, atol=1e-4)


def test_fitted_model_is_pickled_and_an_unfitted_one_says_so(gcn, others):
    again = pickle.loads(pickle.dumps(gcn))
    np.testing.assert_array_equal(again.predict_proba(others), gcn.predict_proba(others))
    np.testing.assert_array_equal(*(model.network_(model.graph_) for model in (again, gcn)))
    for method in (clone(gcn).predict, clone(gcn).predict_proba):
        with pytest.raises(NotFittedError):
            method([0])


def test_searches_split_nodes_and_share_the_graph(data, nodes, y):
    model = GraphClassifier(data.graph, **{**QUICK, "learning_rate": 0.05, "max_epochs": 12})
    assert cross_val_score(model, nodes, NAMES[y], cv=2).min() > 0.75
    search = GridSearchCV(model, {"learning_rate": [1e-7, 0.05]}, cv=2)
    search.fit(nodes.reshape(-1, 1), y)
    assert search.best_params_ == {"learning_rate": 0.05}
    for ours, theirs in zip(search.best_estimator_.graph, data.graph, strict=True):
        assert ours is theirs


class Interrupt(Callback):
    def on_epoch_begin(self, net, **kwargs):
        if len(net.history) > 6:
            raise KeyboardInterrupt


def test_callbacks_run_and_an_interrupted_training_keeps_what_was_learnt(fit):
    model = fit(callbacks=[Interrupt()])
    np.testing.assert_array_equal(model.proba_, fit(max_epochs=6).proba_)
