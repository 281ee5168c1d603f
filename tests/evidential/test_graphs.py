"""Graphs from all libraries in one form, their features, node ids and labels."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.base import clone
from torch import nn

from skuq.evidential import GraphClassifier, SparseLinear, _graphs, as_node_graph, labelled_nodes
from skuq.evidential._graph_libraries import call_on_graph
from skuq.evidential._graphs import SparseFeatures, as_features, checked_nodes

# A loop at 0, the edge 0-1 in one direction, twice; 1-2 in both directions; 3 alone.
SOURCE, TARGET = [0, 0, 0, 1, 2], [0, 1, 1, 2, 1]
EXPECTED = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=float)
FEATURES = np.arange(1.0, 9.0).reshape(4, 2)
COO = sparse.coo_array((np.ones(5), (SOURCE, TARGET)), shape=(4, 4))


def check(graph):
    np.testing.assert_array_equal(graph.adjacency.toarray(), EXPECTED)
    np.testing.assert_array_equal(graph.features.to_dense().numpy(), FEATURES)
    assert repr(graph) == "NodeGraph(n_nodes=4, n_edges=2, n_features=2)"
    return graph


def given(features=FEATURES, edges=(SOURCE, TARGET)):
    return SimpleNamespace(x=features, edge_index=edges)


class Shapes(nn.Module):
    def forward(self, x, edge_index):
        return torch.tensor([*x.shape, *edge_index.shape])


def test_graph_in_any_form_is_taken():
    adjacencies = [COO, COO.tocsr(), sparse.csc_matrix(COO), COO.tolil(), COO.toarray()]
    adjacencies += [COO.toarray().astype(bool), COO.toarray().tolist(), -0.5 * COO]
    for adjacency in [*adjacencies, torch.tensor(COO.toarray())]:
        check(as_node_graph((adjacency, FEATURES)))
    features = [FEATURES, sparse.csr_array(FEATURES), torch.tensor(FEATURES), FEATURES.tolist()]
    for values in [*features, torch.tensor(FEATURES).bfloat16(), pd.DataFrame(FEATURES)]:
        check(as_node_graph([COO, values]))
        assert call_on_graph(Shapes(), check(as_node_graph(given(values)))).tolist() == [4, 2, 2, 5]
    edges = torch.tensor([SOURCE, TARGET])
    for ends in (edges.numpy(), edges, edges.float(), edges.tolist()):
        graph = check(as_node_graph(given(edges=ends)))
    assert as_node_graph(graph) is graph
    assert as_node_graph(given(edges=[[], []])).adjacency.nnz == 0


def test_graphs_of_libraries_are_taken(dgl, pyg):
    for dtype in (torch.int32, torch.int64):
        graph = dgl.graph((torch.tensor(SOURCE), torch.tensor(TARGET)), num_nodes=4).astype(dtype)
        graph.ndata["feat"] = torch.tensor(FEATURES)
        assert check(as_node_graph(graph)).original is graph
    edges = torch.tensor([SOURCE, TARGET])
    graph = pyg.data.Data(x=torch.tensor(FEATURES).float(), edge_index=edges)
    assert check(as_node_graph(graph)).original is graph


@pytest.mark.parametrize(
    ("kind", "data", "indices", "indptr"),
    [
        ("undirected", [2.0, 2, 1, 1], [1, 0, 2, 1], [0, 1, 3, 4]),
        ("directed", [1.0, 1], [1, 2], [0, 1, 2, 2]),
        ("loop", [1.0, 1, 1], [0, 1, 0], [0, 2, 3, 3]),
        ("zero", [1.0, 0, 1, 0], [1, 2, 0, 0], [0, 2, 3, 4]),
        ("repeated", [1.0, 1, 1, 1], [1, 1, 0, 0], [0, 2, 4, 4]),
        ("unsorted", [1.0, 1, 1, 1], [2, 1, 0, 0], [0, 2, 3, 4]),
    ],
)
def test_a_matrix_is_made_undirected_by_a_copy_unless_it_is(kind, data, indices, indptr):
    matrix = sparse.csr_array((data, indices, indptr), shape=(3, 3))
    dense = matrix.toarray() != 0
    found = as_node_graph((matrix, np.eye(3))).adjacency
    assert np.shares_memory(found.indices, matrix.indices) == (kind == "undirected")
    np.testing.assert_array_equal(found.toarray(), (dense | dense.T) & ~np.eye(3, dtype=bool))
    assert found.has_canonical_format
    assert matrix.nnz == len(data)


def test_copies_clones_and_pickles():
    graph = as_node_graph((EXPECTED, FEATURES))
    assert copy.deepcopy({"graph": graph})["graph"] is graph
    before = graph.edges
    again = pickle.loads(pickle.dumps(graph))
    assert "edges" not in vars(again)
    assert torch.equal(check(again).edges.source, before.source)
    original = GraphClassifier((COO, FEATURES), hidden_sizes=[5, 6], learning_rate=0.3)
    assert clone(clone(original)).get_params() == original.get_params()
    assert clone(original).hidden_sizes is not original.hidden_sizes
    with sklearn.config_context(enable_metadata_routing=True):
        weighted = clone(GraphClassifier(graph).set_fit_request(sample_weight=True))
        assert weighted.get_metadata_routing().fit.requests["sample_weight"] is True


def test_same_graphs_have_the_same_edges_and_features():
    few = np.eye(4, 50)
    for features in (FEATURES, few):
        graph = as_node_graph((COO, features))
        assert graph.is_same(graph)
        assert graph.is_same(as_node_graph((EXPECTED, features.copy())))
        for adjacency in (np.roll(EXPECTED, 1, (0, 1)), np.zeros((4, 4))):
            assert not graph.is_same(as_node_graph((adjacency, features)))
        for others in (features[::-1], features[:, :1], few + 1):
            assert not graph.is_same(as_node_graph((EXPECTED, others)))


def test_node_ids_and_masks_are_taken_in_any_form():
    ids = [3, 0, 3]
    forms = [ids, tuple(ids), np.array(ids, np.uint8), np.array([ids]).T, np.array(ids, float)]
    forms += [torch.tensor(ids), pd.Series(ids, index=[7, 8, 9]), pd.Series(ids, dtype="Int64")]
    for X in [*forms, pd.DataFrame({"node": ids}), pd.Index(ids)]:
        assert checked_nodes(X, 4).dtype == np.int64
        assert checked_nodes(X, 4).tolist() == ids
    mask = np.array([True, False, False, True])
    for X in (mask.tolist(), torch.tensor(mask), mask[:, None], pd.DataFrame({"known": mask})):
        assert checked_nodes(X, 4).tolist() == [0, 3]
    assert checked_nodes([1, 0], 2).tolist() == [1, 0]  # not a mask
    assert checked_nodes([1, 0, 1], 4).tolist() == [1, 0, 1]


def test_labelled_nodes_have_codes_weights_and_classes(graph, nodes, y):
    data = labelled_nodes(graph, [4, 2, 4], ["b", "a", "b"], [1, 2, 0.5], [[9]], ["a"])
    assert data.classes.tolist() == ["a", "b"]
    assert [part.tolist() for part in data.training] == [[4, 2, 4], [1, 0, 1], [1, 2, 0.5]]
    assert [part.tolist() for part in data.validation] == [[9], [0], [1]]
    data = labelled_nodes(graph, [4, 2], [5, 3], X_val=[7], y_val=[4], known_classes=np.arange(5))
    assert data.classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.validation.codes.tolist() == [4]
    data = labelled_nodes(graph, pd.Series(nodes, index=nodes[::-1]), pd.Series(y))
    np.testing.assert_array_equal([data.training.rows, data.training.codes], [nodes, y])
    given = {"X": [4, 2], "y": [5, 3], "sample_weight": [1, 2], "X_val": [7], "y_val": [3]}
    arguments = labelled_nodes(graph, **given).as_arguments()
    assert {name: value.tolist() for name, value in arguments.items()} == given


DRAWN = np.random.default_rng(0).random((30, 40))
MATRIX = sparse.csr_array(np.where(DRAWN < 0.05, DRAWN, 0), dtype=np.float32)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layer_and_its_gradient_equal_the_dense_ones(bias):
    torch.manual_seed(0)
    layer, weight, results = SparseLinear(40, 5, bias=bias), torch.randn(30, 5), []
    for features in (SparseFeatures.from_scipy(MATRIX), torch.tensor(MATRIX.toarray())):
        layer.zero_grad()
        outputs = layer(features)
        (weight * outputs).relu().T.square().sum().backward()  # gradients not contiguous
        results.append([outputs.detach(), *(p.grad.clone() for p in layer.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sparse_features_in_any_layout_are_the_same(monkeypatch):
    dense = torch.tensor(MATRIX.toarray())
    forms = [MATRIX, MATRIX.astype(np.float64), MATRIX.toarray(), MATRIX.toarray().tolist()]
    kinds = ["csc_array", "coo_array", "csr_matrix", "bsr_array", "lil_array", "dok_array"]
    forms += [getattr(sparse, kind)(MATRIX) for kind in kinds] + [np.asfortranarray(dense)]
    forms += [dense, dense.clone().requires_grad_(), dense.to_sparse()]
    for form in [*forms, SparseFeatures.from_scipy(MATRIX).matrix]:
        features = as_features(form)
        assert isinstance(features.to("cpu"), SparseFeatures)
        assert features.shape == (30, 40)
        assert torch.equal(features.to_dense(), dense)
        assert torch.equal(features.transpose.to_dense(), dense.T)
    monkeypatch.setattr(_graphs, "has_csr_products", lambda device_type: False)
    assert torch.equal(features.to("cpu"), dense)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_share_of_non_zeros_decides_the_layout(convert):
    values = np.zeros((10, 10))
    values[0, :9] = 1
    assert isinstance(as_features(convert(values)), SparseFeatures)
    values[0, 9] = 1
    taken = as_features(convert(values))
    assert taken.dtype == torch.float32
    np.testing.assert_array_equal(taken, values)


def test_dense_features_are_copied_as_numbers_and_those_on_disk_are_not(on_disk):
    for dtype in (bool, int):
        assert as_features(np.eye(3, dtype=dtype)).tolist() == np.eye(3).tolist()
    values = np.ones((3, 3), dtype=np.float32)
    features = as_features(values)
    values[:] = 7
    assert features.unique().tolist() == [1]
    graph = as_node_graph(on_disk)
    assert graph.on_disk
    assert np.shares_memory(graph.features.numpy(), on_disk[1])
