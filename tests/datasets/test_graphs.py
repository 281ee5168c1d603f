"""Graphs with classes: they are as asked for."""

import numpy as np
import pytest

from skuq.datasets import GraphData, make_node_classes
from skuq.evidential import as_node_graph


@pytest.fixture(scope="module")
def data():
    return make_node_classes(2000, random_state=0)


def same_class_share(data):
    u, v = data.adjacency.nonzero()
    return (data.labels[u] == data.labels[v]).mean()


def test_shapes_and_types_are_those_documented(data):
    assert isinstance(data, GraphData)
    assert data.adjacency.shape == (2000, 2000)
    assert (data.features.shape, data.features.dtype) == ((2000, 16), np.float32)
    assert np.unique(data.labels).tolist() == [0, 1, 2, 3]
    assert (data.splits.shape, data.splits.dtype) == ((1, 2000), np.int8)
    assert {name: left.tolist() for name, left in data.left_out.items()} == {"OS-1": [3]}


def test_adjacency_is_symmetric_without_loops_and_repetitions(data):
    assert (data.adjacency != data.adjacency.T).nnz == 0
    assert not data.adjacency.diagonal().any()
    assert np.unique(data.adjacency.data).tolist() == [1]


@pytest.mark.parametrize("homophily", [0.0, 0.5, 0.8, 1.0])
def test_share_of_edges_within_a_class(homophily):
    drawn = make_node_classes(3000, n_classes=5, homophily=homophily, random_state=0)
    expected = homophily + (1 - homophily) / 5  # edges at random join equals too
    assert same_class_share(drawn) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("mean_degree", [0.0, 2.0, 6.0, 20.0])
def test_number_of_neighbours(mean_degree):
    drawn = make_node_classes(3000, mean_degree=mean_degree, random_state=0)
    degree = drawn.adjacency.sum(axis=1)
    assert degree.mean() == pytest.approx(mean_degree, rel=0.03)


def test_features_lie_around_a_mean_of_each_class(data):
    for label in range(4):
        own = data.features[data.labels == label]
        np.testing.assert_allclose(own.std(axis=0), 1, atol=0.12)
    means = np.array([data.features[data.labels == label].mean(axis=0) for label in range(4)])
    assert np.sqrt((means**2).mean()) == pytest.approx(1.0, abs=0.25)


def test_separation_scales_the_means():
    drawn = make_node_classes(4000, separation=0.0, random_state=0)
    means = [drawn.features[drawn.labels == label].mean(axis=0) for label in range(4)]
    assert np.abs(means).max() < 0.15


def test_split_has_the_sizes_documented(data):
    (split,) = data.splits
    assert np.bincount(data.labels[split == 0]).tolist() == [20] * 4
    assert (split == 2).sum() == 400
    assert (split == 1).sum() == 2000 - 400 - 80


def test_small_classes_train_with_half_of_what_is_not_tested():
    drawn = make_node_classes(100, n_classes=5, random_state=0)
    (split,) = drawn.splits
    assert (split == 2).sum() == 20
    for label in range(5):
        own = split[drawn.labels == label]
        rest = (own != 2).sum()
        assert (own == 0).sum() == min(20, rest // 2)


def test_sizes_are_those_asked_for():
    drawn = make_node_classes(50, n_classes=2, n_features=3, random_state=0)
    assert drawn.features.shape == (50, 3)
    assert np.unique(drawn.labels).tolist() == [0, 1]
    assert drawn.left_out["OS-1"].tolist() == [1]


def test_seed_fixes_everything():
    first, again, other = (make_node_classes(200, random_state=seed) for seed in (3, 3, 4))
    assert (first.adjacency != again.adjacency).nnz == 0
    for name in ("features", "labels", "splits"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))


def test_more_classes_than_nodes_are_no_problem():
    drawn = make_node_classes(3, n_classes=10, random_state=0)
    assert drawn.adjacency.shape == (3, 3)


def test_graph_is_what_estimators_take(data):
    graph = as_node_graph(data.graph)
    assert (graph.adjacency != data.adjacency).nnz == 0
