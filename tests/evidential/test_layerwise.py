"""Evaluation layer by layer, with features on disk, equals one pass over the whole graph."""

import tempfile

import numpy as np
import pytest
import torch
from scipy import sparse

from skuq.evidential import GraphClassifier, as_node_graph
from skuq.evidential import _layerwise as layerwise
from skuq.evidential._backbones import GAT, GCN, GraphNetwork
from skuq.evidential._neighbours import Neighbours
from tests.evidential.probes import new_probe

pytestmark = pytest.mark.usefixtures("dgl")
CPU = torch.device("cpu")


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
    monkeypatch.setattr(layerwise, "CHUNK_FLOATS", n_floats)
    found = layerwise.layerwise_logits(network, graph, CPU)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.01


def test_chunks_hold_what_was_asked_for_and_every_node_once(monkeypatch):
    monkeypatch.setattr(layerwise, "CHUNK_FLOATS", 40)
    degree = np.random.default_rng(0).integers(0, 4, size=50)
    degree[[7, 20]] = 30
    found = list(layerwise.chunks(degree, 2))
    assert np.concatenate([np.arange(50)[part] for part in found]).tolist() == list(range(50))
    read = [(degree[part] + 1).sum() for part in found]
    assert all(n <= 20 or part.stop - part.start == 1 for n, part in zip(read, found, strict=True))
    assert len(found) < 15


def test_neighbours_are_those_of_the_adjacency_matrix(data):
    adjacency = as_node_graph(data.graph).adjacency
    near = Neighbours.of(adjacency, slice(40, 70), np.diff(adjacency.indptr))
    full = np.zeros((30, len(data.labels)))
    full[:, near.ids] = near.matrix.toarray()
    looped = adjacency.toarray() + np.eye(len(data.labels))
    np.testing.assert_array_equal(full, looped[40:70])
    np.testing.assert_array_equal(near.degree, looped.sum(axis=1)[near.ids])
    np.testing.assert_array_equal(near.ids[near.own], np.arange(40, 70))


def test_probe_of_a_graph_on_disk_is_that_of_the_graph_in_memory(
    data, on_disk, gcn, nodes, y, others, no_pass, monkeypatch
):
    expected = new_probe(gcn, graph=data.graph, propagation="diffusion").fit(nodes, y)
    no_pass()
    monkeypatch.setattr(layerwise, "CHUNK_FLOATS", 500)
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
        (np.zeros((3, 2), np.float32), "4 nodes, but features of 3"),
    ],
)
def test_features_on_disk_that_cannot_be_used_are_refused(tmp_path, values, named):
    np.save(tmp_path / "features.npy", values)
    with pytest.raises(ValueError, match=named):
        as_node_graph((np.zeros((4, 4)), np.load(tmp_path / "features.npy", mmap_mode="r")))
