"""Graph networks against dense computations and PyG; layer by layer they return the same."""

import tempfile
import weakref
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from skuq.evidential import GraphClassifier, _graph_networks, as_node_graph
from skuq.evidential._graph_networks import (
    GraphNetwork,
    _edges_into,
    chunks,
    layerwise_logits,
)
from tests.evidential.probes import new_probe

GCN, GAT = partial(GraphNetwork, "gcn"), partial(GraphNetwork, "gat")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def adjacency():
    """Nodes 0 to 10 at random, node 11 alone."""
    upper = np.triu(np.random.default_rng(0).random((12, 12)) < 0.3, 1)
    upper[:, 11] = False
    return (upper | upper.T).astype(np.float32)


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def graph(adjacency, features):
    return as_node_graph((adjacency, features))


def with_random_weights(network):
    """Biases too, which start at 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return network.eval().requires_grad_(False)


def dense_convolution(adjacency, X, layer):
    looped = torch.tensor(adjacency) + torch.eye(len(adjacency))
    root = torch.diag(looped.sum(dim=1) ** -0.5)
    return root @ looped @ root @ X @ layer.linear.weight.T + layer.bias


def dense_attention(adjacency, X, layer, n_heads, *, mean):
    looped = torch.tensor(adjacency) + torch.eye(len(adjacency))
    heads = (X @ layer.linear.weight.T).reshape(len(X), n_heads, -1)
    out = []
    for k in range(n_heads):
        h = heads[:, k]
        score = (h @ layer.attn_r[0, k])[:, None] + h @ layer.attn_l[0, k]
        score = nn.functional.leaky_relu(score, 0.2).masked_fill(looped == 0, -torch.inf)
        out.append(score.softmax(dim=1) @ h)
    bias = layer.bias.reshape(n_heads, -1)
    result = torch.stack(out, dim=1) + bias
    return result.mean(dim=1) if mean else result.flatten(1)


@pytest.mark.parametrize("hidden_sizes", [(), (7,), (7, 4)])
def test_gcn_is_the_dense_product(graph, adjacency, features, hidden_sizes):
    network = with_random_weights(GCN(5, 3, hidden_sizes))
    X = torch.tensor(features)
    for layer in network.layers[:-1]:
        X = dense_convolution(adjacency, X, layer).relu()
    expected = dense_convolution(adjacency, X, network.layers[-1])
    torch.testing.assert_close(network(graph), expected, rtol=1e-5, atol=1e-5)


def test_gat_is_the_dense_attention(graph, adjacency, features):
    network = with_random_weights(GAT(5, 3, (16,)))
    first, last = network.layers
    X = dense_attention(adjacency, torch.tensor(features), first, 8, mean=False)
    expected = dense_attention(adjacency, nn.functional.elu(X), last, 1, mean=True)
    torch.testing.assert_close(network(graph), expected, rtol=1e-5, atol=1e-5)


def edge_index(adjacency):
    return torch.tensor(np.array(np.nonzero(adjacency)))


def test_gcn_equals_pyg(pyg, graph, adjacency, features):
    network = with_random_weights(GCN(5, 3, (7,)))
    X = torch.tensor(features)
    for i, layer in enumerate(network.layers):
        theirs = pyg.nn.GCNConv(*reversed(layer.linear.weight.shape))
        theirs.lin.weight.data = layer.linear.weight
        theirs.bias.data = layer.bias
        X = theirs(X if i == 0 else X.relu(), edge_index(adjacency))
    torch.testing.assert_close(network(graph), X.detach(), rtol=0, atol=1e-5)


def test_gat_equals_pyg(pyg, graph, adjacency, features):
    network = with_random_weights(GAT(5, 3, (16,)))
    X = torch.tensor(features)
    for i, (layer, heads) in enumerate(zip(network.layers, (8, 1), strict=True)):
        n_out, n_in = layer.linear.weight.shape
        theirs = pyg.nn.GATConv(n_in, n_out // heads, heads)
        theirs.lin.weight.data = layer.linear.weight
        theirs.att_src.data, theirs.att_dst.data = layer.attn_l, layer.attn_r
        theirs.bias.data = layer.bias
        X = theirs(X if i == 0 else nn.functional.elu(X), edge_index(adjacency))
    torch.testing.assert_close(network(graph), X.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_sparse_features_give_the_same_outputs_and_gradients(architecture, adjacency):
    values = np.zeros((12, 40), dtype=np.float32)
    values[np.arange(12), np.arange(12) * 3] = 1.5
    both = as_node_graph((adjacency, values)), as_node_graph((adjacency, values + 0.0))
    both[1].features = torch.tensor(values)
    torch.manual_seed(0)
    network = architecture(40, 3, (8,)).eval()
    results = []
    for graph in both:
        network.zero_grad()
        outputs = network(graph)
        outputs.square().sum().backward()
        results.append([outputs.detach(), *(p.grad.clone() for p in network.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_node_alone_depends_on_its_own_features_only(architecture, adjacency, features):
    network = with_random_weights(architecture(5, 3, (8,)))
    changed = features.copy()
    changed[:11] += 1
    before = network(as_node_graph((adjacency, features)))
    after = network(as_node_graph((adjacency, changed)))
    torch.testing.assert_close(after[11], before[11])
    assert (after[:11] - before[:11]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_dropout_acts_in_training_alone(architecture, graph):
    torch.manual_seed(0)
    network = architecture(5, 3, (8,), dropout=0.5)
    assert not torch.equal(network(graph), network(graph))
    network.eval()
    assert torch.equal(network(graph), network(graph))


def test_batch_norm_normalises_hidden_layers(graph, adjacency, features):
    torch.manual_seed(0)
    network = GCN(5, 3, (7,), dropout=0.0, batch_norm=True)
    X = dense_convolution(adjacency, torch.tensor(features), network.layers[0])
    X = ((X - X.mean(dim=0)) / (X.var(dim=0, correction=0) + 1e-5).sqrt()).relu()
    expected = dense_convolution(adjacency, X, network.layers[1])
    torch.testing.assert_close(network(graph), expected, rtol=1e-4, atol=1e-5)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"multiples of 8, .* got 12"):
        GAT(5, 3, (16, 12))


def test_explicit_loops_and_weights_of_the_given_matrix_do_not_matter(adjacency, features, graph):
    network = with_random_weights(GCN(5, 3))
    given = sparse.csr_array(3 * adjacency + np.eye(12))
    torch.testing.assert_close(network(as_node_graph((given, features))), network(graph))


@pytest.fixture
def on_disk(data, tmp_path):
    """The graph with its features in a file."""
    np.save(tmp_path / "features.npy", data.features)
    return data.adjacency, np.load(tmp_path / "features.npy", mmap_mode="r")


@pytest.fixture
def no_pass(monkeypatch):
    """No network may be evaluated on all nodes at once."""

    def refuse(self, graph):
        raise AssertionError("evaluated on the whole graph")

    return lambda: monkeypatch.setattr(GraphNetwork, "forward", refuse)


def hub_graph(path):
    """A graph with a node next to all others but one, which is alone; features in a file."""
    random = np.random.default_rng(0)
    edges = np.triu(random.uniform(size=(60, 60)) < 0.05, 1)
    edges[0, 1:59] = True
    edges[:, 59] = False
    np.save(path, random.normal(size=(60, 5)).astype(np.float32))
    return as_node_graph((sparse.csr_array(edges + edges.T), np.load(path, mmap_mode="r")))


@pytest.mark.parametrize("n_floats", [8, 500, 10**6], ids=["single nodes", "chunks", "at once"])
@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_result_is_that_of_a_pass_over_the_graph(
    tmp_path, monkeypatch, architecture, batch_norm, n_floats
):
    graph = hub_graph(tmp_path / "features.npy")
    torch.manual_seed(0)
    network = architecture(5, 3, (16, 8), batch_norm=batch_norm)
    network(graph)  # so that normalisations know means and variances
    network.eval()
    with torch.no_grad():
        expected = network(graph)
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", n_floats)
    found = layerwise_logits(network, graph, CPU)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.01


def test_no_file_is_mapped_any_more_when_its_folder_goes(tmp_path, monkeypatch):
    """Windows deletes no mapped file."""
    maps, alive = [], []

    def mapped(*arguments, **options):
        found = memmap(*arguments, **options)
        maps.append(weakref.ref(found))
        return found

    class Folder(TemporaryDirectory):
        def cleanup(self):
            alive.extend(each for each in maps if each() is not None)
            super().cleanup()

    graph, memmap = hub_graph(tmp_path / "features.npy"), np.memmap
    monkeypatch.setattr(np, "memmap", mapped)
    monkeypatch.setattr(_graph_networks, "TemporaryDirectory", Folder)
    layerwise_logits(GCN(5, 3, (16, 8)).eval(), graph, CPU)
    assert len(maps) == 3
    assert not alive


def test_chunks_hold_what_was_asked_for_and_every_node_once(monkeypatch):
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", 40)
    degree = np.random.default_rng(0).integers(0, 4, size=50)
    degree[[7, 20]] = 30
    found = list(chunks(degree, 2))
    assert np.concatenate([np.arange(50)[part] for part in found]).tolist() == list(range(50))
    read = [(degree[part] + 1).sum() for part in found]
    assert all(n <= 20 or part.stop - part.start == 1 for n, part in zip(read, found, strict=True))
    assert len(found) < 15


def test_neighbours_are_those_of_the_adjacency_matrix(data):
    adjacency = as_node_graph(data.graph).adjacency
    ids, near = _edges_into(slice(40, 70), adjacency, np.diff(adjacency.indptr))
    full = np.zeros((30, len(data.labels)))
    np.add.at(full, (near.target, ids[near.source]), 1)
    looped = adjacency.toarray() + np.eye(len(data.labels))
    np.testing.assert_array_equal(full, looped[40:70])
    np.testing.assert_array_equal(near.degree, looped.sum(axis=1)[ids])
    np.testing.assert_array_equal(ids[near.own], np.arange(40, 70))


def test_probe_of_a_graph_on_disk_is_that_of_the_graph_in_memory(
    data, on_disk, gcn, nodes, y, others, no_pass, monkeypatch
):
    expected = new_probe(gcn, graph=data.graph, propagation="diffusion").fit(nodes, y)
    no_pass()
    monkeypatch.setattr(_graph_networks, "CHUNK_FLOATS", 500)
    probe = new_probe(gcn, graph=on_disk, propagation="diffusion").fit(nodes, y)
    np.testing.assert_allclose(probe.alpha_, expected.alpha_, rtol=1e-4)
    elsewhere = expected.with_graph(on_disk).predict_uncertainty(others)
    np.testing.assert_allclose(
        elsewhere.epistemic, expected.predict_uncertainty(others).epistemic, rtol=1e-5
    )


def test_files_are_removed_and_a_bar_is_shown_if_asked_for(
    on_disk, gcn, nodes, y, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    probe = new_probe(gcn, graph=on_disk).fit(nodes, y)
    assert "layers" not in capsys.readouterr().err
    probe.set_params(verbose=1).with_graph(on_disk)
    assert "450/450" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_networks_of_others_and_training_read_features_from_disk(on_disk, data, nodes, y, others):
    in_memory, mapped = (
        GraphClassifier(graph, hidden_sizes=(4,), max_epochs=3, random_state=0).fit(nodes, y)
        for graph in (data.graph, on_disk)
    )
    np.testing.assert_array_equal(in_memory.predict_proba(others), mapped.predict_proba(others))


def test_features_on_disk_are_not_copied(on_disk):
    graph = as_node_graph(on_disk)
    assert graph.on_disk
    assert np.shares_memory(graph.features.numpy(), on_disk[1])


def test_other_layers_than_the_logits_are_refused(on_disk, gcn, nodes, y):
    with pytest.raises(ValueError, match=r"`layer`=-2.*only the logits"):
        new_probe(gcn, graph=on_disk, layer=-2).fit(nodes, y)


def test_a_network_for_other_features_is_named(gcn, nodes, y, tmp_path):
    graph = hub_graph(tmp_path / "features.npy")
    with pytest.raises(ValueError, match=r"cannot be evaluated on this graph.*5 features"):
        new_probe(gcn, graph=graph).fit(nodes[:50], y[:50])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (np.zeros((4, 2)), "float32, got float64"),
        (np.full((4, 2), np.nan, np.float32), "NaN"),
        (np.zeros(4, np.float32), "shape"),
        (np.zeros((3, 2), np.float32), "4 nodes, but 3 rows of features"),
    ],
)
def test_features_on_disk_that_cannot_be_used_are_refused(tmp_path, values, named):
    np.save(tmp_path / "features.npy", values)
    with pytest.raises(ValueError, match=named):
        as_node_graph((np.zeros((4, 4)), np.load(tmp_path / "features.npy", mmap_mode="r")))
