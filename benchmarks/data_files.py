"""Data sets of the benchmarks: local ``.npz`` files without pickled objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from skuq.datasets import GraphData

Arrays = dict[str, NDArray[Any]]


def load_npz(name: str, data_dir: str | Path) -> Arrays:
    """Read all arrays of ``NAME.npz`` or ``NAME_test.npz`` in a folder."""
    folder = Path(data_dir)
    for path in (folder / f"{name}.npz", folder / f"{name}_test.npz"):
        if path.is_file():
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
    found = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
    raise FileNotFoundError(f"No data set {name!r} in {folder}; data sets in this folder: {found}.")


def load_table(name: str, data_dir: str | Path) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Read a table: its numeric columns, then its categorical columns as text, and its classes.

    The file contains numeric columns ``num`` with names ``num_names``, integer codes ``cat`` of
    categorical columns with names ``cat_names`` (-1 is missing), an array ``levels_NAME`` for each
    categorical column, and classes ``y``.
    """
    arrays = load_npz(name, data_dir)
    X = pd.DataFrame(arrays["num"], columns=arrays["num_names"].ravel().tolist())
    for column, codes in zip(arrays["cat_names"].ravel().tolist(), arrays["cat"].T, strict=True):
        levels = [*arrays[f"levels_{column}"].ravel().tolist(), None]  # code -1 is the last item
        X[column] = pd.Series(np.array(levels, dtype=object)[codes], dtype=object)
    return X, arrays["y"]


def load_graph(name: str, data_dir: str | Path) -> GraphData:
    """Read a graph.

    The file contains the adjacency matrix as ``adj_indptr`` and ``adj_indices``, the features as
    ``feat_data``, ``feat_indices``, ``feat_indptr`` and ``feat_shape``, the classes ``labels``, and
    optionally ``split`` and the classes to leave out, ``ood_os1``, ``ood_os2`` and so on.
    """
    arrays = load_npz(name, data_dir)
    labels = arrays["labels"]
    n_nodes = len(labels)
    ones = np.ones(arrays["adj_indices"].shape, np.float32)
    feat_shape = tuple(arrays["feat_shape"].ravel().astype(int).tolist())
    return GraphData(
        _sparse(arrays, "adj", ones, (n_nodes, n_nodes)),
        _sparse(arrays, "feat", arrays["feat_data"].astype(np.float32), feat_shape),
        labels,
        arrays.get("split", np.empty((0, n_nodes), np.int8)),
        {f"OS-{n}": arrays[f"ood_os{n}"] for n in range(1, 100) if f"ood_os{n}" in arrays},
    )


def _sparse(
    arrays: Arrays, part: str, values: NDArray[np.float32], shape: tuple[int, ...]
) -> sparse.csr_array:
    indices, indptr = (arrays[f"{part}_{name}"].astype(np.int64) for name in ("indices", "indptr"))
    try:
        matrix = sparse.csr_array((values, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(f"`{part}_indices` and `{part}_indptr` are invalid: {error}") from error
    # Convert after the check, since indices too large for 32 bits would wrap around.
    matrix.indices, matrix.indptr = (x.astype(np.int32) for x in (matrix.indices, matrix.indptr))
    return matrix
