"""Node features as tensors: dense, sparse if most elements are zero, or on disk."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import gen_batches
from torch import Tensor, nn

CHECKED_FLOATS = 2**24  # count of numbers in a chunk, when features on disk are validated


def csr_tensor(matrix: sparse.csr_array, dtype: torch.dtype = torch.float32) -> Tensor:
    """Copy a scipy matrix to a sparse CSR tensor with 32-bit indices, which are faster."""
    bounds = torch.tensor(matrix.indptr, dtype=torch.int32)
    columns = torch.tensor(matrix.indices, dtype=torch.int32)
    values = torch.tensor(matrix.data, dtype=dtype)
    return csr_of_parts(bounds, columns, values, matrix.shape, check_invariants=True)


def csr_of_parts(
    bounds: Tensor,
    columns: Tensor,
    values: Tensor,
    shape: tuple[int, ...],
    *,
    check_invariants: bool = False,
) -> Tensor:
    """Build a sparse CSR tensor from row bounds, column indices and values."""
    with warnings.catch_warnings():
        # torch warns once per process that the CSR layout is in beta.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            bounds, columns, values, size=shape, check_invariants=check_invariants
        )


@cache
def has_csr_products(device_type: str) -> bool:
    """Whether torch can multiply sparse CSR tensors on a device type; MPS cannot."""
    try:
        bounds = torch.tensor([0, 1], dtype=torch.int32, device=device_type)
        one = torch.ones(1, 1, device=device_type)
        matrix = csr_of_parts(bounds, bounds[:1], one[0], (1, 1))
        torch.sparse.sampled_addmm(matrix, one, matrix @ one, beta=0.0)
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """A sparse matrix with its transpose, which torch would otherwise rebuild for each gradient."""

    matrix: Tensor  # (n_nodes, n_features), sparse CSR
    transpose: Tensor  # (n_features, n_nodes), sparse CSR

    @classmethod
    def from_scipy(cls, matrix: sparse.csr_array) -> SparseFeatures:
        """Copy a scipy matrix of shape (n_nodes, n_features) to float32 tensors."""
        return cls(csr_tensor(matrix), csr_tensor(sparse.csr_array(matrix.T)))

    @property
    def shape(self) -> torch.Size:
        return self.matrix.shape

    def to(self, device: torch.device | str) -> Features:
        """Return the features on a device; dense if the device lacks sparse products."""
        if not has_csr_products(torch.device(device).type):
            return self.to_dense().to(device)
        return SparseFeatures(self.matrix.to(device), self.transpose.to(device))

    def to_dense(self) -> Tensor:
        return self.matrix.to_dense()

    def rows(self, rows: NDArray[np.integer]) -> Tensor:
        """Return the given rows as a dense tensor on the CPU."""
        return torch.from_numpy(as_scipy(self)[rows].toarray())


Features = Tensor | SparseFeatures


def as_scipy(features: Features) -> sparse.csr_array:
    """Copy features to a scipy matrix of shape (n_nodes, n_features)."""
    if isinstance(features, Tensor):
        return sparse.csr_array(features.cpu().numpy())
    m = features.matrix.cpu()
    parts = (part.numpy() for part in (m.values(), m.col_indices(), m.crow_indices()))
    return sparse.csr_array(tuple(parts), shape=tuple(m.shape))


def same_features(ours: Features, theirs: Features) -> bool:
    """Whether two feature matrices from `as_features` are equal."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(ours, theirs)
    if isinstance(ours, Tensor) or isinstance(theirs, Tensor) or ours.shape != theirs.shape:
        return False
    parts = ((m.crow_indices(), m.col_indices(), m.values()) for m in (ours.matrix, theirs.matrix))
    return all(torch.equal(mine, other) for mine, other in zip(*parts, strict=True))


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: SparseFeatures, weight: Tensor) -> Tensor:
        ctx.transpose = features.transpose
        product: Tensor = features.matrix @ weight
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.transpose @ gradient.contiguous()


class SparseLinear(nn.Linear):
    """A linear layer that accepts dense or sparse features."""

    def forward(self, input: Features) -> Tensor:
        if isinstance(input, Tensor):
            return super().forward(input)
        product: Tensor = _SparseProduct.apply(input, self.weight.T)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


def as_features(values: Any, *, sparse_below: float = 0.1) -> Features:
    """Convert a feature matrix to a float32 tensor, or to `SparseFeatures` if most values are zero.

    The tensor of a memory map reads from the file at each use.
    """
    if isinstance(values, np.memmap):
        return _mapped(values)
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.to_dense() if values.layout != torch.strided else values
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    scattered = sparse.issparse(values)
    with np.errstate(over="ignore"):  # values beyond the range of float32 raise an error below
        values = (
            sparse.csr_array(values, dtype=np.float32)
            if scattered
            else np.asarray(values, dtype=np.float32)
        )
    _check_matrix(values)
    _check_finite(values)
    n_nonzero = values.nnz if scattered else np.count_nonzero(values)
    if n_nonzero < sparse_below * np.prod(values.shape):
        return SparseFeatures.from_scipy(sparse.csr_array(values))
    dense = values.toarray() if scattered else values
    return torch.tensor(dense, dtype=torch.float32)


def _mapped(values: np.memmap[Any, Any]) -> Tensor:
    """Wrap a memory map in a tensor, after validating its values in chunks."""
    _check_matrix(values)
    if values.dtype != np.float32:
        raise ValueError(
            f"Node features on disk must be float32, got {values.dtype}; store them as float32, or "
            "load them into memory with numpy.array."
        )
    for rows in gen_batches(len(values), max(1, CHECKED_FLOATS // values.shape[1])):
        _check_finite(values[rows], rows.start)
    with warnings.catch_warnings():
        # A read-only map is safe, because features are never written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def _check_matrix(values: Any) -> None:
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(
            f"Node features must have shape (n_nodes, n_features), got {tuple(values.shape)}."
        )


def _check_finite(values: Any, first_node: int = 0) -> None:
    """Raise if features of consecutive nodes, in an array or a CSR matrix, are not finite."""
    data = values.data if sparse.issparse(values) else values
    bad = ~np.isfinite(data)
    if not bad.any():
        return
    if sparse.issparse(values):
        position = int(bad.argmax())
        node = int(np.searchsorted(values.indptr, position, side="right")) - 1
        column, value = int(values.indices[position]), data[position]
    else:
        node, column = map(int, np.unravel_index(bad.argmax(), bad.shape))
        value = data[node, column]
    raise ValueError(
        "Node features contain NaN, infinity or a value too large for float32: the first is "
        f"{value} in column {column} of node {first_node + node}. Replace missing values, for "
        "example by the mean of the column, and rescale large values."
    )
