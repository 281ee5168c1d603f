"""Graphs with classes: drawn ones are as asked for, files are read as they are."""

import numpy as np
import pytest
from scipy import sparse

from skuq.datasets import GraphData, load_graph, make_node_classes
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


@pytest.mark.parametrize(
    "setting",
    [
        {"homophily": 1.5},
        {"homophily": -1},
        {"homophily": float("nan")},
        {"n_classes": 0},
        {"mean_degree": -1},
        {"n_nodes": -1},
        {"n_features": 1.5},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=rf"'{name}' parameter .* Got {value} instead"):
        make_node_classes(**setting)


def test_graph_is_what_estimators_take(data):
    graph = as_node_graph(data.graph)
    assert (graph.adjacency != data.adjacency).nnz == 0


ARRAYS = {
    "adj_indptr": np.array([0, 1, 3, 4], dtype=np.int64),
    "adj_indices": np.array([1, 0, 2, 1], dtype=np.uint16),
    "feat_indptr": np.array([0, 1, 1, 3]),
    "feat_indices": np.array([4, 0, 2]),
    "feat_data": np.array([0.5, 1.0, 2.0]),
    "feat_shape": np.array([3, 5]),
    "labels": np.array([1, 0, 1], dtype=np.int8),
    "split": np.array([[0, 1, 2], [2, 1, 0]], dtype=np.int8),
    "ood_os1": np.array([1]),
    "ood_os2": np.array([0]),
}


def write(folder, arrays, name="tiny"):
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize("file", ["tiny", "tiny_test"])
def test_file_is_read_as_it_is(tmp_path, file):
    write(tmp_path, ARRAYS, file)
    data = load_graph("tiny", str(tmp_path))
    assert data.adjacency.toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    expected = [[0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0], [1, 0, 2, 0, 0]]
    assert data.features.toarray().tolist() == expected
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [1, 0, 1]
    for matrix in (data.adjacency, data.features):
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    assert data.splits.tolist() == ARRAYS["split"].tolist()
    assert {name: left.tolist() for name, left in data.left_out.items()} == {
        "OS-1": [1],
        "OS-2": [0],
    }
    assert as_node_graph(data.graph).n_nodes == 3


def test_file_may_lack_splits_and_left_out_classes(tmp_path):
    write(tmp_path, {k: v for k, v in ARRAYS.items() if k != "split" and k[:3] != "ood"})
    data = load_graph("tiny", tmp_path)
    assert data.splits.shape == (0, 3)
    assert data.left_out == {}


def test_what_is_drawn_comes_back_from_a_file(tmp_path):
    drawn = make_node_classes(60, random_state=0)
    features = sparse.csr_array(drawn.features)
    arrays = {
        "adj_indptr": drawn.adjacency.indptr,
        "adj_indices": drawn.adjacency.indices,
        "feat_indptr": features.indptr,
        "feat_indices": features.indices,
        "feat_data": features.data,
        "feat_shape": features.shape,
        "labels": drawn.labels,
        "split": drawn.splits,
    }
    write(tmp_path, arrays, "drawn")
    again = load_graph("drawn", tmp_path)
    assert (again.adjacency != drawn.adjacency).nnz == 0
    np.testing.assert_array_equal(again.features.toarray(), drawn.features)


@pytest.mark.parametrize("name", sorted(ARRAYS.keys() - {"split", "ood_os1", "ood_os2"}))
def test_file_without_an_array_is_refused(tmp_path, name):
    write(tmp_path, {key: value for key, value in ARRAYS.items() if key != name})
    with pytest.raises(ValueError, match=f"'tiny' is not a graph: it lacks {name}"):
        load_graph("tiny", tmp_path)


def test_all_that_is_missing_is_named(tmp_path):
    write(tmp_path, {"labels": ARRAYS["labels"]})
    with pytest.raises(ValueError, match="lacks adj_indices, adj_indptr, feat_data, feat_indices"):
        load_graph("tiny", tmp_path)


def test_missing_file_is_named_with_those_there_are(tmp_path):
    write(tmp_path, ARRAYS)
    with pytest.raises(FileNotFoundError, match=r"'cora' .* data sets in this folder: tiny\."):
        load_graph("cora", tmp_path)


def test_pickled_objects_are_refused(tmp_path):
    write(tmp_path, {**ARRAYS, "labels": np.array([1, None, 2], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        load_graph("tiny", tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"adj_indices": [1, 0, 3, 1]}, "adj_indices and adj_indptr .* matrix of shape .3, 3."),
        ({"adj_indices": [1, 0, -1, 1]}, "adj_indices and adj_indptr .* matrix of shape .3, 3."),
        ({"adj_indices": [1, 0, 2**32 + 2, 1]}, "adj_indices and adj_indptr .* of shape .3, 3."),
        ({"adj_indices": [1.0, 0.0, 2.0, 1.0]}, "adj_indices and adj_indptr are not integers"),
        ({"adj_indptr": [0, 1, 4]}, "adj_indices and adj_indptr .* matrix of shape .3, 3."),
        ({"adj_indptr": [0, 3, 1, 4]}, "adj_indices and adj_indptr .* matrix of shape .3, 3."),
        ({"feat_indices": [5, 0, 2]}, "feat_indices and feat_indptr .* matrix of shape .3, 5."),
        ({"feat_data": [1.0]}, "feat_indices and feat_indptr .* matrix of shape .3, 5."),
        ({"feat_shape": [2, 5], "feat_indptr": [0, 1, 3]}, r"feat_shape is \(2, 5\) instead of"),
        ({"feat_shape": 3}, r"feat_shape is \(3,\) instead of \(3, n_features\)"),
        ({"split": [[0] * 4]}, r"split has shape \(1, 4\) instead of \(n_splits, 3\)"),
        ({"split": [0, 1, 2]}, r"split has shape \(3,\) instead of \(n_splits, 3\)"),
        ({"labels": [[1, 0, 1]]}, r"labels has shape \(1, 3\) instead of \(3,\)"),
    ],
)
def test_a_graph_whose_parts_do_not_fit_is_refused(tmp_path, changes, reason):
    write(tmp_path, {**ARRAYS, **changes})
    with pytest.raises(ValueError, match=rf"^Data set 'tiny' is not a graph: {reason}"):
        load_graph("tiny", tmp_path)
