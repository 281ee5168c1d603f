"""Sparse features compute what dense ones do."""

import numpy as np
import pytest
import torch
from scipy import sparse

from skuq.evidential import SparseLinear, _graphs
from skuq.evidential._graphs import SparseFeatures, as_features, has_csr_products


@pytest.fixture
def matrix():
    rng = np.random.default_rng(0)
    drawn = rng.random((30, 40)) * (rng.random((30, 40)) < 0.05)
    return sparse.csr_array(drawn, dtype=np.float32)


@pytest.fixture
def dense(matrix):
    return torch.tensor(matrix.toarray())


def gradients(layer, features, weight):
    layer.zero_grad()
    (weight * layer(features)).sum().backward()
    return [parameter.grad.clone() for parameter in layer.parameters()]


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layer_and_its_gradient_equal_the_dense_ones(matrix, dense, bias):
    torch.manual_seed(0)
    layer = SparseLinear(40, 5, bias=bias)
    features = SparseFeatures.from_scipy(matrix)
    torch.testing.assert_close(layer(features), torch.nn.Linear.forward(layer, dense))
    weight = torch.randn(30, 5)
    expected = gradients(layer, dense, weight)
    for ours, theirs in zip(gradients(layer, features, weight), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradient_passes_through_what_follows(matrix, dense):
    torch.manual_seed(0)
    layer = SparseLinear(40, 5)
    losses = []
    for features in (SparseFeatures.from_scipy(matrix), dense):
        layer.zero_grad()
        loss = layer(features).relu().T.square().mean()  # gradients that are not contiguous
        loss.backward()
        losses.append((loss.detach(), layer.weight.grad.clone()))
    torch.testing.assert_close(losses[0], losses[1])


def test_features_know_their_shape_and_dense_form(matrix, dense):
    features = SparseFeatures.from_scipy(matrix)
    assert features.shape == (30, 40)
    assert torch.equal(features.to_dense(), dense)
    assert torch.equal(features.transpose.to_dense(), dense.T)
    moved = features.to("cpu")
    assert moved.matrix.device == torch.device("cpu")
    assert torch.equal(moved.to_dense(), dense)


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m,
        sparse.csc_array,
        sparse.coo_array,
        sparse.csr_matrix,
        sparse.bsr_array,
        sparse.lil_array,
        sparse.dok_array,
        lambda m: m.astype(np.float64),
        lambda m: m.toarray(),
        lambda m: m.toarray().tolist(),
        lambda m: np.asfortranarray(m.toarray()),
        lambda m: torch.tensor(m.toarray()),
        lambda m: torch.tensor(m.toarray(), requires_grad=True),
        lambda m: torch.tensor(m.toarray()).to_sparse(),
        lambda m: SparseFeatures.from_scipy(m).matrix,
    ],
    ids=[
        *["csr", "csc", "coo", "matrix", "bsr", "lil", "dok", "float64"],
        *["ndarray", "list", "fortran", "tensor", "with gradient", "sparse tensor", "csr tensor"],
    ],
)
def test_features_in_any_layout_are_the_same(matrix, dense, convert):
    features = as_features(convert(matrix))
    assert isinstance(features, SparseFeatures)
    assert torch.equal(features.to_dense(), dense)


@pytest.mark.parametrize("convert", [lambda a: a, sparse.csr_array], ids=["dense", "sparse"])
def test_share_of_non_zeros_decides_the_layout(convert):
    values = np.zeros((10, 10))
    values[0, :9] = 1
    assert isinstance(as_features(convert(values)), SparseFeatures)
    values[0, 9] = 1
    taken = as_features(convert(values))
    assert isinstance(taken, torch.Tensor)
    assert taken.dtype == torch.float32
    np.testing.assert_array_equal(taken.numpy(), values)


def test_integers_and_truth_values_become_numbers():
    assert as_features(np.eye(3, dtype=bool)).tolist() == np.eye(3).tolist()
    assert as_features(np.eye(3, dtype=int)).dtype == torch.float32


def test_later_changes_of_the_given_array_do_not_show():
    values = np.ones((3, 3), dtype=np.float32)
    features = as_features(values)
    values[:] = 7
    assert features.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("bad", "convert"),
    [
        (np.nan, lambda a: a),
        (np.inf, sparse.csr_array),
        (-np.inf, torch.tensor),
        (np.nan, lambda a: torch.tensor(a).to_sparse()),
    ],
    ids=["dense", "sparse", "tensor", "sparse tensor"],
)
def test_values_that_are_no_numbers_are_refused(convert, bad):
    values = np.eye(20)
    values[3, 3] = bad
    with pytest.raises(ValueError, match="features contain NaN, infinity or a value too large"):
        as_features(convert(values))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a,
        sparse.csr_array,
    ],
    ids=["dense", "sparse"],
)
def test_values_beyond_single_precision_are_refused(convert):
    with pytest.raises(ValueError, match="features contain NaN, infinity or a value too large"):
        as_features(convert(np.diag([1e300] + [1.0] * 19)))


@pytest.mark.parametrize("shape", [(3,), (3, 0), (3, 2, 2)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"must have shape \(n_nodes, n_features\), got \(3"):
        as_features(np.ones(shape))


def test_features_are_dense_where_torch_lacks_sparse_products(matrix, dense, monkeypatch):
    assert has_csr_products("cpu")
    monkeypatch.setattr(_graphs, "has_csr_products", lambda device_type: False)
    assert torch.equal(SparseFeatures.from_scipy(matrix).to("cpu"), dense)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, torch.from_numpy, "memmap"])
def test_values_that_are_not_finite_are_found_in_chunks(container, tmp_path, monkeypatch):
    monkeypatch.setattr("skuq.evidential._graphs.CHECKED_FLOATS", 8)
    features = np.eye(6, 4, dtype=np.float32)
    features[4, 2], features[5, 0] = np.nan, np.inf
    if container == "memmap":
        np.save(tmp_path / "features.npy", features)
        features = np.load(tmp_path / "features.npy", mmap_mode="r")
    else:
        features = container(features)
    with pytest.raises(ValueError, match="Replace missing"):
        as_features(features)
