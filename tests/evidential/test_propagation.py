"""Propagation over edges and similar nodes, against dense formulas and loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from benchmarks.evidential_methods import EvidentialGNN, LogitUncertainty
from skuq import EvidentialProbe
from skuq.evidential import GraphClassifier, as_node_graph, propagate
from skuq.evidential._graphs import diffuse, similar_nodes
from skuq.features import nearest_others
from tests.evidential.probes import new_probe


def dense_vacuity(adjacency, alpha):
    rows = np.where(adjacency.any(axis=1, keepdims=True), adjacency, np.eye(len(adjacency)))
    step = 0.5 * np.eye(len(rows)) + 0.5 * rows / rows.sum(axis=1, keepdims=True)
    start = alpha.shape[1] / alpha.sum(axis=1)
    return (start / (step @ step @ start))[:, None] * alpha


def dense_evidence(adjacency, alpha):
    looped = adjacency + np.eye(len(adjacency))
    root = np.diag(looped.sum(axis=1) ** -0.5)
    result = alpha
    for _ in range(10):
        result = 0.9 * root @ looped @ root @ result + 0.1 * alpha
    return result


def dense_diffusion(adjacency, alpha):
    """Personalised PageRank of the vacuity, as the sum over walks of each length."""
    looped = adjacency + np.eye(len(adjacency))
    walk = looped / looped.sum(axis=1, keepdims=True)
    start = alpha.shape[1] / alpha.sum(axis=1)
    ends = [np.linalg.matrix_power(0.9 * walk, length) @ start for length in range(11)]
    return (start / (ends[10] + 0.1 * sum(ends[:10])))[:, None] * alpha


DENSE = {"diffusion": dense_diffusion, "vacuity": dense_vacuity, "evidence": dense_evidence}
DENSE |= {"both": lambda a, alpha: dense_vacuity(a, dense_evidence(a, alpha))}


@pytest.mark.parametrize("scheme", DENSE)
@settings(max_examples=25)
@given(n=st.integers(1, 9), density=st.floats(0, 0.6), seed=st.integers(0))
def test_schemes_are_the_dense_formulas_with_the_paper_s_settings(scheme, n, density, seed):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < density, 1)
    upper[:, -1] = False  # the last node is alone
    adjacency, alpha = (upper | upper.T).astype(float), rng.lognormal(2, 3, size=(n, 3))
    matrix, before = sparse.csr_array(adjacency), alpha.copy()
    result = propagate(matrix, alpha, scheme)
    np.testing.assert_array_equal(matrix.toarray(), adjacency)
    np.testing.assert_array_equal(alpha, before)
    np.testing.assert_allclose(result, DENSE[scheme](adjacency, alpha), rtol=1e-10)
    np.testing.assert_allclose(result[-1], alpha[-1])
    assert (result > 0).all()
    if scheme in ("diffusion", "vacuity"):  # these leave expected probabilities
        np.testing.assert_allclose(*(a / a.sum(axis=1, keepdims=True) for a in (result, alpha)))


def similar_by_hand(adjacency, features, n_similar=10):
    """All pairs, one node after the other."""
    n = len(features)
    diffused = unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    walk = (adjacency + np.eye(n)) / (adjacency.sum(axis=1, keepdims=True) + 1)
    for _ in range(10):
        diffused = 0.9 * walk @ diffused + 0.1 * unit
    diffused /= np.linalg.norm(diffused, axis=1, keepdims=True)
    similar = np.zeros((n, n))
    for i, cosine in enumerate(diffused @ diffused.T):
        cosine[i] = -2
        nearest = np.argsort(-cosine)[:n_similar]
        similar[i, nearest] = similar[nearest, i] = 1
    return similar


def test_each_node_is_joined_with_the_ten_most_similar_also_if_features_are_compressed(data):
    graph = as_node_graph(data.graph)
    assert "similar" not in vars(graph.to("meta"))  # nothing is sought by the move
    expected = similar_by_hand(data.adjacency.toarray(), np.asarray(data.features, dtype=float))
    found = graph.similar
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found is graph.similar is graph.to("meta").similar
    rng, groups = np.random.default_rng(0), np.repeat(range(4), 25)
    topics = rng.random((4, 300)) ** 8
    features = sparse.csr_array(rng.poisson(3 * topics[groups]).astype(float))
    similar = similar_nodes(sparse.csr_array((100, 100)), features).toarray()
    assert (groups[similar.nonzero()[0]] == groups[similar.nonzero()[1]]).all()
    assert similar.sum(axis=1).min() >= 10


@pytest.mark.parametrize("n_equal", [0, 500])
def test_among_many_rows_most_of_the_nearest_are_found(monkeypatch, n_equal):
    rows = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
    rows[:n_equal] = rows[0]
    exact = nearest_others(rows, 10)
    monkeypatch.setattr("skuq.features.MANY_ROWS", 2000)
    found = nearest_others(rows, 10)
    assert all(len({row, *others}) == 11 for row, others in enumerate(found))
    pairs = list(zip(found, exact, strict=True))[n_equal:]
    assert np.mean([len(np.intersect1d(*pair)) for pair in pairs]) > 9.5
    assert (rows[found[:n_equal]] == rows[0]).all()


@pytest.mark.parametrize("n_described", [0, 1, 3])
def test_nodes_without_features_are_joined_with_no_other(n_described):
    features = np.zeros((6, 2))
    features[:n_described] = [1.0, 2.0]
    similar = similar_nodes(sparse.csr_array((6, 6)), sparse.csr_array(features)).toarray()
    expected = np.zeros((6, 6))
    expected[:n_described, :n_described] = 1 - np.eye(n_described)
    np.testing.assert_array_equal(similar, expected)


def test_uncertainty_is_diffused_over_edges_and_then_over_similar_nodes(data, gcn, probe, nodes, y):
    def expected(alpha, graph=gcn.graph_):
        diffused = propagate(graph.adjacency, alpha, "diffusion")
        return propagate(graph.similar, diffused, "diffusion")

    similar = new_probe(gcn, propagation="similarity").fit(nodes, y)
    np.testing.assert_allclose(similar.alpha_, expected(probe.alpha_))
    elsewhere = similar.with_graph(data.graph).alpha_
    np.testing.assert_allclose(elsewhere, expected(probe.alpha_), rtol=1e-5)
    schemes = None, "similarity"
    network = GraphClassifier(data.graph, max_epochs=2, random_state=0)
    plain, similar = (EvidentialGNN(network, propagation=s).fit(nodes, y) for s in schemes)
    np.testing.assert_allclose(similar.alpha_, expected(plain.alpha_))
    scores = (LogitUncertainty(gcn, method="energy", propagation=s) for s in schemes)
    energy, averaged = (each.fit(nodes, y).score_ for each in scores)
    diffused = diffuse(gcn.graph_.similar, diffuse(gcn.graph_.adjacency, energy))
    np.testing.assert_allclose(averaged, diffused)


def test_features_on_disk_are_refused_before_any_training(gcn, on_disk, nodes, y, monkeypatch):
    def train(*args, **kwargs):
        raise AssertionError("A training began.")

    monkeypatch.setattr(EvidentialProbe, "_evaluate_estimator", train)
    with pytest.raises(ValueError, match=r"on disk.*'diffusion'"):
        new_probe(gcn, graph=on_disk, propagation="similarity").fit(nodes, y)
