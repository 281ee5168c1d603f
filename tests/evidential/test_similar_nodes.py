"""Nodes of similar features, and uncertainty that is averaged over them."""

import numpy as np
import pytest
from scipy import sparse

from benchmarks.evidential_methods import EvidentialGNN, LogitUncertainty
from skuq import EvidentialProbe
from skuq.evidential import (
    GraphClassifier,
    as_node_graph,
    propagate,
)
from skuq.evidential._propagation import diffuse, similar_nodes
from tests.evidential.probes import new_probe


def similar_by_hand(adjacency, features, n_similar=10):
    """All pairs, one node after the other."""
    n = len(features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    walk = (adjacency + np.eye(n)) / (adjacency.sum(axis=1, keepdims=True) + 1)
    diffused = unit
    for _ in range(10):
        diffused = 0.9 * walk @ diffused + 0.1 * unit
    diffused /= np.linalg.norm(diffused, axis=1, keepdims=True)
    similar = np.zeros((n, n))
    for i, cosine in enumerate(diffused @ diffused.T):
        cosine[i] = -2
        nearest = np.argsort(-cosine)[:n_similar]
        similar[i, nearest] = similar[nearest, i] = 1
    return similar


def test_each_node_is_joined_with_the_ten_of_the_most_similar_diffused_features(data):
    graph = as_node_graph(data.graph)
    expected = similar_by_hand(data.adjacency.toarray(), np.asarray(data.features, dtype=float))
    np.testing.assert_array_equal(graph.similar.toarray(), expected)
    assert graph.similar is graph.similar


def test_features_of_many_columns_are_compressed_without_changing_what_is_near():
    rng = np.random.default_rng(0)
    topics = rng.random((4, 300)) ** 8
    groups = np.repeat(range(4), 25)
    features = rng.poisson(3 * topics[groups]).astype(float)
    adjacency = sparse.csr_array((100, 100))
    similar = similar_nodes(adjacency, sparse.csr_array(features)).toarray()
    assert (groups[similar.nonzero()[0]] == groups[similar.nonzero()[1]]).all()
    assert similar.sum(axis=1).min() >= 10


@pytest.mark.parametrize("n_described", [0, 1, 3])
def test_nodes_without_features_are_joined_with_no_other(n_described):
    features = np.zeros((6, 2))
    features[:n_described] = [1.0, 2.0]
    similar = similar_nodes(sparse.csr_array((6, 6)), sparse.csr_array(features)).toarray()
    expected = np.zeros((6, 6))
    expected[:n_described, :n_described] = 1 - np.eye(n_described)
    np.testing.assert_array_equal(similar, expected)


def test_uncertainty_is_diffused_over_edges_and_then_over_similar_nodes(data, gcn, nodes, y):
    graph = gcn.graph_

    def expected(alpha):
        diffused = propagate(graph.adjacency, alpha, "diffusion")
        return propagate(graph.similar, diffused, "diffusion")

    plain, similar = (
        new_probe(gcn, propagation=scheme).fit(nodes, y) for scheme in (None, "similarity")
    )
    np.testing.assert_allclose(similar.alpha_, expected(plain.alpha_))
    np.testing.assert_allclose(
        similar.with_graph(data.graph).alpha_, expected(plain.alpha_), rtol=1e-5
    )
    settings = GraphClassifier(data.graph, max_epochs=2, random_state=0)
    plain, similar = (
        EvidentialGNN(settings, propagation=scheme).fit(nodes, y) for scheme in (None, "similarity")
    )
    np.testing.assert_allclose(similar.alpha_, expected(plain.alpha_))
    energy, averaged = (
        LogitUncertainty(gcn, method="energy", propagation=scheme).fit(nodes, y).score_
        for scheme in (None, "similarity")
    )
    np.testing.assert_allclose(averaged, diffuse(graph.similar, diffuse(graph.adjacency, energy)))


def test_features_on_disk_are_refused_in_words_before_any_training(
    data, gcn, nodes, y, tmp_path, monkeypatch
):
    def train(*args, **kwargs):
        raise AssertionError("A training began.")

    monkeypatch.setattr(EvidentialProbe, "_evaluate_estimator", train)
    monkeypatch.setattr(LogitUncertainty, "_evaluate_estimator", train)
    monkeypatch.setattr("benchmarks.evidential_methods.dirichlet_networks.train_on_graph", train)
    np.save(tmp_path / "features.npy", np.asarray(data.features, dtype=np.float32))
    on_disk = data.adjacency, np.load(tmp_path / "features.npy", mmap_mode="r")
    for estimator in (
        new_probe(gcn, graph=on_disk, propagation="similarity"),
        LogitUncertainty(gcn, graph=on_disk, propagation="similarity"),
        EvidentialGNN(GraphClassifier(on_disk, max_epochs=1), propagation="similarity"),
    ):
        with pytest.raises(ValueError, match=r"on disk. Use propagation='diffusion'"):
            estimator.fit(nodes, y)


def test_similar_nodes_are_found_once_for_all_devices(data):
    graph = as_node_graph(data.graph)
    assert "similar" not in vars(graph.to("meta"))  # nothing is sought by the move
    found = graph.similar
    assert graph.to("meta").similar is found
