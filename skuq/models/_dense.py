"""Sparse matrices made dense, which networks need."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import gen_batches
from torch import Tensor

_ROWS = 4096  # made dense at once


def to_dense(X: Any) -> Any:
    """Return a sparse matrix as an array, and anything else as it is.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
        Inputs.

    Returns
    -------
    array-like of shape (n_samples, n_features)
    """
    return X.toarray() if issparse(X) else X


def to_tensor(X: Any, dtype: torch.dtype) -> Tensor:
    """Copy an array, or a sparse matrix some rows at a time, into a tensor.

    Parameters
    ----------
    X : array-like of shape (n_samples, ...) or sparse matrix
        Numbers.
    dtype : torch.dtype
        Type of the tensor.

    Returns
    -------
    Tensor of shape (n_samples, ...)
        On the CPU.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> to_tensor(csr_array([[0, 2], [1, 0]]), torch.float32)
    tensor([[0., 2.],
            [1., 0.]])
    """
    if not issparse(X):
        array = np.asarray(X)
        if min(array.strides, default=0) < 0:  # torch takes no reversed array, even of one row
            array = array.copy()
        return torch.tensor(array, dtype=dtype)  # a copy, since arrays may be read-only
    tensor = torch.empty(X.shape, dtype=dtype)
    by_row = X.tocsr()
    for rows in gen_batches(X.shape[0], _ROWS):
        tensor[rows] = torch.from_numpy(by_row[rows].toarray())
    return tensor
