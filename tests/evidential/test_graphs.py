"""Graphs from all libraries in one form."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from torch import nn

from skuq.evidential import GraphClassifier, NodeGraph, as_node_graph
from skuq.evidential._graph_libraries import call_on_graph
from skuq.evidential._graphs import SparseFeatures, checked_nodes

# A loop at 0, the edge 0-1 in one direction, twice; 1-2 in both directions; 3 alone.
SOURCE, TARGET = [0, 0, 0, 1, 2], [0, 1, 1, 2, 1]
EXPECTED = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=float)
FEATURES = np.arange(1.0, 9.0).reshape(4, 2)


def coo(kind=sparse.coo_array):
    return kind(sparse.coo_array((np.ones(5), (SOURCE, TARGET)), shape=(4, 4)))


def check(graph):
    assert isinstance(graph, NodeGraph)
    np.testing.assert_array_equal(graph.adjacency.toarray(), EXPECTED)
    np.testing.assert_array_equal(graph.features.to_dense().numpy(), FEATURES)
    assert (graph.n_nodes, graph.n_features) == (4, 2)
    assert repr(graph) == "NodeGraph(n_nodes=4, n_edges=2, n_features=2)"


@pytest.mark.parametrize(
    "adjacency",
    [
        coo(),
        coo(sparse.csr_array),
        coo(sparse.csc_matrix),
        coo(sparse.lil_array),
        coo().toarray(),
        coo().toarray().astype(bool),
        coo().toarray().astype(int).tolist(),
        torch.tensor(coo().toarray()),
        -0.5 * coo(),
    ],
    ids=["coo", "csr", "csc", "lil", "dense", "bool", "list", "tensor", "weights"],
)
def test_adjacency_in_any_form_is_taken(adjacency):
    check(as_node_graph((adjacency, FEATURES)))


@pytest.mark.parametrize(
    "features",
    [
        FEATURES,
        sparse.csr_array(FEATURES),
        torch.tensor(FEATURES),
        torch.tensor(FEATURES).bfloat16(),
        pd.DataFrame(FEATURES),
    ],
    ids=["dense", "sparse", "tensor", "bfloat16", "frame"],
)
def test_features_in_any_form_are_taken(features):
    check(as_node_graph((coo(), features)))


def test_list_of_two_is_taken():
    check(as_node_graph([coo(), FEATURES]))


def test_dgl_graph_is_taken(dgl):
    given = dgl.graph((torch.tensor(SOURCE), torch.tensor(TARGET)), num_nodes=4)
    given.ndata["feat"] = torch.tensor(FEATURES)
    graph = as_node_graph(given)
    check(graph)
    assert graph.original is given


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dgl_graph_with_either_index_is_taken(dgl, dtype):
    given = dgl.graph((torch.tensor(SOURCE), torch.tensor(TARGET)), num_nodes=4).astype(dtype)
    given.ndata["feat"] = torch.tensor(FEATURES)
    check(as_node_graph(given))


def test_pyg_graph_is_taken(pyg):
    edges = torch.tensor([SOURCE, TARGET])
    given = pyg.data.Data(x=torch.tensor(FEATURES, dtype=torch.float32), edge_index=edges)
    graph = as_node_graph(given)
    check(graph)
    assert graph.original is given


def test_node_graph_stays_itself():
    graph = as_node_graph((EXPECTED, FEATURES))
    assert as_node_graph(graph) is graph


def test_features_may_be_sparse_and_stay_so():
    values = sparse.csr_array(([1.0], ([2], [30])), shape=(4, 50))
    graph = as_node_graph((EXPECTED, values))
    assert isinstance(graph.features, SparseFeatures)
    np.testing.assert_array_equal(graph.features.to_dense().numpy(), values.toarray())


def test_stored_zeros_are_no_edges_and_stay_in_the_given_matrix():
    given = sparse.csr_array(([0.0, 1.0], ([0, 1], [2, 0])), shape=(3, 3))
    graph = as_node_graph((given, np.eye(3)))
    assert graph.adjacency.toarray().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert given.nnz == 2


def test_graph_without_edges_is_taken():
    graph = as_node_graph((np.zeros((3, 3)), np.eye(3)))
    assert graph.adjacency.nnz == 0


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (None, TypeError, "must be one DGLGraph.*got NoneType"),
        (EXPECTED, TypeError, "got ndarray"),
        ((EXPECTED,), TypeError, "got tuple"),
        ("graph", TypeError, "got str"),
        ((EXPECTED, None), ValueError, "no features"),
        ((EXPECTED[:3], FEATURES), ValueError, r"must be square, got shape \(3, 4\)"),
        ((EXPECTED[0], FEATURES), ValueError, r"must be square, got shape \(4,\)"),
        ((EXPECTED, FEATURES[:3]), ValueError, "4 nodes, but 3 rows of features"),
        ((EXPECTED, FEATURES * np.nan), ValueError, "features contain NaN"),
        ((EXPECTED, FEATURES[:, 0]), ValueError, "must have shape"),
        ((EXPECTED * np.nan, FEATURES), ValueError, "adjacency matrix contains NaN"),
        ((np.where(EXPECTED, np.inf, 0), FEATURES), ValueError, "adjacency matrix contains NaN"),
        ((np.zeros((0, 0)), np.zeros((0, 2))), ValueError, "no nodes"),
    ],
)
def test_what_is_no_graph_is_refused(graph, error, message):
    with pytest.raises(error, match=message):
        as_node_graph(graph)


def test_dgl_graph_without_features_is_refused(dgl):
    given = dgl.graph(([0], [1]))
    with pytest.raises(ValueError, match=r'into graph\.ndata\["feat"\]'):
        as_node_graph(given)


def test_dgl_graph_with_several_types_is_refused(dgl):
    given = dgl.heterograph({("a", "to", "b"): ([0], [1])})
    with pytest.raises(ValueError, match="one type of nodes and one type of edges"):
        as_node_graph(given)


def test_pyg_graph_without_features_is_refused(pyg):
    given = pyg.data.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(ValueError, match="its attribute `x` is None"):
        as_node_graph(given)


def test_pyg_graph_without_edges_is_refused(pyg):
    with pytest.raises(ValueError, match="edge_index"):
        as_node_graph(pyg.data.Data(x=torch.ones(3, 2)))


@pytest.mark.parametrize(("edge", "message"), [((0, 7), "got 0 to 7"), ((-1, 0), "got -1 to 0")])
def test_pyg_edges_to_no_node_are_refused(pyg, edge, message):
    given = pyg.data.Data(x=torch.ones(3, 2), edge_index=torch.tensor([[edge[0]], [edge[1]]]))
    with pytest.raises(ValueError, match=f"must be node ids from 0 to 2, {message}"):
        as_node_graph(given)


@pytest.mark.parametrize("container", [list, tuple])
def test_several_graphs_are_refused(pyg, dgl, container):
    given = pyg.data.Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    for graphs in ([given] * 2, [given] * 3, [dgl.graph(([0], [1]))] * 2):
        with pytest.raises(TypeError, match="must be one DGLGraph"):
            as_node_graph(container(graphs))


def test_copies_and_clones_share_the_graph():
    graph = as_node_graph((EXPECTED, FEATURES))
    assert copy.deepcopy({"graph": graph})["graph"] is graph
    assert clone(GraphClassifier(graph)).graph is graph


def test_clones_share_a_pair():
    pair = coo(), FEATURES
    assert clone(GraphClassifier(pair)).graph is pair


def test_clones_share_a_dgl_graph(dgl):
    given = dgl.graph(([0], [1]))
    assert clone(clone(GraphClassifier(given))).graph is given


def test_clone_copies_what_is_not_shared():
    original = GraphClassifier((coo(), FEATURES), hidden_sizes=[5, 6], learning_rate=0.3)
    twin = clone(original)
    assert twin.get_params() == original.get_params()
    assert twin.hidden_sizes is not original.hidden_sizes


def test_pickled_graph_is_the_same_and_lacks_the_cache():
    graph = as_node_graph((EXPECTED, FEATURES))
    before = graph.edges
    again = pickle.loads(pickle.dumps(graph))
    assert "edges" not in vars(again)
    check(again)
    assert torch.equal(again.edges.source, before.source)
    assert graph.edges is before


def test_edges_have_one_loop_at_each_node():
    edges = as_node_graph((EXPECTED, FEATURES)).edges
    dense = np.zeros((4, 4))
    np.add.at(dense, (edges.target, edges.source), 1)
    np.testing.assert_array_equal(dense, EXPECTED + np.eye(4))
    np.testing.assert_array_equal(edges.degree, dense.sum(axis=1))


@pytest.mark.parametrize(
    "X",
    [
        [3, 0, 3],
        (3, 0, 3),
        np.array([3, 0, 3], dtype=np.uint8),
        np.array([[3], [0], [3]]),
        np.array([3.0, 0.0, 3.0]),
        torch.tensor([3, 0, 3]),
        pd.Series([3, 0, 3], index=[7, 8, 9]),
        pd.Series([3, 0, 3], dtype="Int64"),
        pd.DataFrame({"node": [3, 0, 3]}),
        pd.Index([3, 0, 3]),
    ],
    ids=lambda X: type(X).__name__,
)
def test_node_ids_are_taken_in_any_form(X):
    ids = checked_nodes(X, 4)
    assert ids.dtype == np.int64
    assert ids.tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    "mask",
    [
        [True, False, False, True],
        torch.tensor([1, 0, 0, 1]).bool(),
        np.array([[True], [False], [False], [True]]),
        pd.DataFrame({"known": [True, False, False, True]}),
    ],
)
def test_a_mask_of_all_nodes_stands_for_the_ids_in_it(mask):
    assert checked_nodes(mask, 4).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([0, 4], "between 0 and 3, got 0 to 4"),
        ([-1, 2], "between 0 and 3, got -1 to 2"),
        ([0.5, 1.0], "which are integers, got dtype float64"),
        ([np.nan, 1.0], "which are integers, got dtype float64"),
        ([np.inf, 1.0], "between 0 and 3"),
        (["0", "1"], "which are integers, got dtype <U1"),
        ([None, 1], "which are integers, got dtype object"),
        ([True, False], r"mask over the nodes must have shape \(4,\), got \(2,\)"),
        (np.ones((4, 4), bool), r"mask over the nodes must have shape \(4,\), got \(4, 4\)"),
        (np.ones((3, 1), bool), r"mask over the nodes must have shape \(4,\), got \(3,\)"),
        ([False] * 4, "no node ids"),
        (np.zeros((2, 2), int), r"shape \(n,\) or \(n, 1\), got shape \(2, 2\)"),
        (np.zeros((2, 1, 1), int), r"got shape \(2, 1, 1\)"),
        (3, r"got shape \(\)"),
        ([], "X contains no node ids; at least one"),
        (np.empty((0, 1), int), "no node ids"),
        (pd.Series([0.5]), "which are integers"),
        ([1, 0, 0, 1], "4 values, all 0 or 1, and looks like a mask of dtype int"),
        (torch.tensor([1, 0, 0, 1], dtype=torch.uint8), "Pass a boolean mask"),
        (np.array([[1.0], [0], [0], [1]]), "looks like a mask"),
    ],
)
def test_what_are_no_node_ids_is_refused(X, message):
    with pytest.raises(ValueError, match=message):
        checked_nodes(X, 4)


def test_all_of_two_nodes_are_ids():
    assert checked_nodes([1, 0], 2).tolist() == [1, 0]
    assert checked_nodes([1, 0, 1], 4).tolist() == [1, 0, 1]


def test_an_undirected_matrix_is_taken_without_a_copy():
    matrix = sparse.csr_array(np.array([[0, 2.0, 0], [2, 0, 1], [0, 1, 0]]))
    adjacency = as_node_graph((matrix, np.eye(3))).adjacency
    assert np.shares_memory(adjacency.indices, matrix.indices)
    np.testing.assert_array_equal(adjacency.toarray(), matrix.toarray() > 0)


@pytest.mark.parametrize(
    ("data", "indices", "indptr"),
    [
        ([1.0, 1], [1, 2], [0, 1, 2, 2]),
        ([1.0, 1, 1], [0, 1, 0], [0, 2, 3, 3]),
        ([1.0, 0, 1, 0], [1, 2, 0, 0], [0, 2, 3, 4]),
        ([1.0, 1, 1, 1], [1, 1, 0, 0], [0, 2, 4, 4]),
        ([1.0, 1, 1, 1], [2, 1, 0, 0], [0, 2, 3, 4]),
    ],
    ids=["directed", "loop", "zero", "repeated", "unsorted"],
)
def test_any_other_matrix_is_made_undirected(data, indices, indptr):
    matrix = sparse.csr_array((data, indices, indptr), shape=(3, 3))
    dense = matrix.toarray() != 0
    found = as_node_graph((matrix, np.eye(3))).adjacency
    np.testing.assert_array_equal(found.toarray(), (dense | dense.T) & ~np.eye(3, dtype=bool))
    assert found.has_canonical_format


@pytest.mark.parametrize(
    "features", [FEATURES, sparse.csr_array(FEATURES), FEATURES.tolist()], ids=type
)
@pytest.mark.parametrize("edges", [np.array, torch.tensor, list])
def test_object_with_edges_and_features_in_any_form_is_taken(edges, features):
    given = SimpleNamespace(x=features, edge_index=edges([SOURCE, TARGET]))
    graph = as_node_graph(given)
    check(graph)
    found = call_on_graph(Shapes(), graph)
    assert found.tolist() == [[4, 2, 2, 5]]


class Shapes(nn.Module):
    def forward(self, x, edge_index):
        return torch.tensor([[*x.shape, *edge_index.shape]])


@pytest.mark.parametrize("edges", [torch.tensor([SOURCE, TARGET]).T, torch.tensor(SOURCE)])
def test_edges_of_another_shape_are_refused(edges):
    with pytest.raises(ValueError, match=r"`edge_index` must have shape \(2, n_edges\), got \(5"):
        as_node_graph(SimpleNamespace(x=FEATURES, edge_index=edges))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (np.array([[0.0, 1.2], [0.9, 2.0]]), "dtype torch.float64"),
        (torch.tensor([[0.0, np.nan], [1.0, 2.0]]), "dtype torch.float32"),
        (np.array([[True, False], [False, True]]), "dtype torch.bool"),
        (np.array([[1j], [0j]]), "dtype torch.complex128"),
    ],
)
def test_edges_of_what_are_no_ids_are_refused(edges, message):
    with pytest.raises(ValueError, match=f"must contain integer node ids.*got {message}"):
        as_node_graph(SimpleNamespace(x=FEATURES, edge_index=edges))


@pytest.mark.parametrize("edges", [torch.tensor([SOURCE, TARGET]).float(), [SOURCE, TARGET]])
def test_edges_in_whole_numbers_of_any_kind_are_taken(edges):
    check(as_node_graph(SimpleNamespace(x=FEATURES, edge_index=edges)))


def test_no_edges_are_taken_without_a_type():
    graph = as_node_graph(SimpleNamespace(x=FEATURES, edge_index=[[], []]))
    assert graph.adjacency.nnz == 0


def test_same_graphs_have_the_same_edges_and_features():
    few = np.eye(4, 50)
    for features in (FEATURES, few):
        graph = as_node_graph((coo(), features))
        assert graph.is_same(graph)
        assert graph.is_same(as_node_graph((EXPECTED, features.copy())))
        assert not graph.is_same(as_node_graph((np.roll(EXPECTED, 1, (0, 1)), features)))
        assert not graph.is_same(as_node_graph((np.zeros((4, 4)), features)))
        for others in (features[::-1], features[:, :1], few + 1):
            assert not graph.is_same(as_node_graph((EXPECTED, others)))
