"""Local ``.npz`` files: plain arrays, never pickles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


def load_npz(name: str, data_dir: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read all arrays of a local ``.npz`` file; files with pickled objects are refused.

    Parameters
    ----------
    name : str
        Name of the data set: the file is ``NAME.npz`` or ``NAME_test.npz``.
    data_dir : path-like
        Folder of the file.

    Returns
    -------
    dict of str to ndarray
        Arrays by name.

    Raises
    ------
    FileNotFoundError
        If there is no such file; the message lists those that are there.
    ValueError
        If an array holds Python objects.
    """
    folder = Path(data_dir)
    for path in (folder / f"{name}.npz", folder / f"{name}_test.npz"):
        if path.is_file():
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
    found = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
    raise FileNotFoundError(f"No data set {name!r} in {folder}; data sets there: {found}.")


def load_table(name: str, data_dir: str | os.PathLike[str]) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Read a table with numeric and categorical columns from a local ``.npz`` file.

    Parameters
    ----------
    name, data_dir
        As in `load_npz`. The file holds numbers ``num`` with ``num_names``, codes ``cat``
        with ``cat_names`` and ``levels_NAME`` for each of these, and classes ``y``.

    Returns
    -------
    X : DataFrame of shape (n_samples, n_columns)
        Numeric columns, then categorical ones as text; a code of -1 is missing (None).
    y : ndarray of shape (n_samples,)
        Classes.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it holds no table of this form.
    """
    import pandas as pd

    arrays = load_npz(name, data_dir)
    missing = {"num", "num_names", "cat", "cat_names", "y"} - set(arrays)
    if missing:
        raise ValueError(
            f"Data set {name!r} is not a table: it lacks {', '.join(sorted(missing))}."
        )
    X = pd.DataFrame(arrays["num"], columns=arrays["num_names"].tolist())
    for column, codes in zip(arrays["cat_names"].tolist(), arrays["cat"].T, strict=True):
        levels = arrays[f"levels_{column}"].astype(object)
        X[column] = pd.Series(np.where(codes < 0, None, levels[codes]), dtype=object)
    return X, arrays["y"]
