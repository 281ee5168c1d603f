"""Edges between nodes of similar features, and uncertainty that is averaged along them."""

import numpy as np
import pytest
from scipy import sparse

from skuq.evidential import (
    EvidentialGNN,
    GraphClassifier,
    LogitUncertainty,
    as_node_graph,
    propagate,
)
from skuq.evidential._dirichlet import diffuse
from skuq.evidential._similar_nodes import join_similar
from tests.evidential.probes import new_probe


def joined_by_hand(adjacency, features, n_similar=10):
    """All pairs, one node after the other."""
    n = len(features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    walk = (adjacency + np.eye(n)) / (adjacency.sum(axis=1, keepdims=True) + 1)
    diffused = unit
    for _ in range(10):
        diffused = 0.9 * walk @ diffused + 0.1 * unit
    diffused /= np.linalg.norm(diffused, axis=1, keepdims=True)
    joined = adjacency.astype(bool)
    for i, cosine in enumerate(diffused @ diffused.T):
        cosine[i] = -2
        nearest = np.argsort(-cosine)[:n_similar]
        joined[i, nearest] = joined[nearest, i] = True
    return joined


def test_each_node_is_joined_with_the_ten_of_the_most_similar_diffused_features(data):
    graph = as_node_graph(data.graph)
    expected = joined_by_hand(data.adjacency.toarray(), np.asarray(data.features, dtype=float))
    np.testing.assert_array_equal(graph.joined.toarray(), expected)
    assert graph.joined is graph.joined
    assert not graph.joined.diagonal().any()


def test_features_of_many_columns_are_compressed_without_changing_what_is_near():
    rng = np.random.default_rng(0)
    topics = rng.random((4, 300)) ** 8
    groups = np.repeat(range(4), 25)
    features = rng.poisson(3 * topics[groups]).astype(float)
    adjacency = sparse.csr_array((100, 100))
    joined = join_similar(adjacency, sparse.csr_array(features)).toarray()
    assert (groups[joined.nonzero()[0]] == groups[joined.nonzero()[1]]).all()
    assert joined.sum(axis=1).min() >= 10


@pytest.mark.parametrize("n_described", [0, 1, 3])
def test_nodes_without_features_are_joined_with_no_other(n_described):
    features = np.zeros((6, 2))
    features[:n_described] = [1.0, 2.0]
    joined = join_similar(sparse.csr_array((6, 6)), sparse.csr_array(features)).toarray()
    expected = np.zeros((6, 6))
    expected[:n_described, :n_described] = 1 - np.eye(n_described)
    np.testing.assert_array_equal(joined, expected)


def test_uncertainty_is_diffused_over_the_joined_edges(data, gcn, nodes, y):
    joined = gcn.graph_.joined
    plain, similar = (
        new_probe(gcn, propagation=scheme).fit(nodes, y) for scheme in (None, "similarity")
    )
    expected = propagate(joined, plain.alpha_, "diffusion")
    np.testing.assert_allclose(similar.alpha_, expected)
    np.testing.assert_allclose(similar.with_graph(data.graph).alpha_, expected, rtol=1e-5)
    energy, averaged = (
        LogitUncertainty(gcn, method="energy", propagation=scheme).fit(nodes, y).score_
        for scheme in (None, "similarity")
    )
    np.testing.assert_allclose(averaged, diffuse(joined, energy))
    settings = GraphClassifier(data.graph, max_epochs=2, random_state=0)
    plain, similar = (
        EvidentialGNN(settings, propagation=scheme).fit(nodes, y) for scheme in (None, "similarity")
    )
    np.testing.assert_allclose(similar.alpha_, propagate(joined, plain.alpha_, "diffusion"))


def test_features_on_disk_are_refused_in_words(data, gcn, nodes, y, tmp_path):
    np.save(tmp_path / "features.npy", np.asarray(data.features, dtype=np.float32))
    on_disk = data.adjacency, np.load(tmp_path / "features.npy", mmap_mode="r")
    probe = new_probe(gcn, graph=on_disk, propagation="similarity")
    with pytest.raises(ValueError, match=r"on disk. Use propagation='diffusion'"):
        probe.fit(nodes, y)
