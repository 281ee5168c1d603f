"""Local ``.npz`` files: plain arrays, never pickles."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
Built = TypeVar("Built")

# What reading raises where bytes of an archive are wrong or missing.
_DAMAGED = (BadZipFile, EOFError, OSError, RuntimeError, ValueError, zlib.error)


def load_npz(name: str, data_dir: str | os.PathLike[str]) -> Arrays:
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
        If an array holds Python objects, or the file is damaged or no ``.npz`` file.
    """
    folder = Path(data_dir)
    for path in (folder / f"{name}.npz", folder / f"{name}_test.npz"):
        if path.is_file():
            return _read(path)
    found = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
    raise FileNotFoundError(f"No data set {name!r} in {folder}; data sets there: {found}.")


def _read(path: Path) -> Arrays:
    with path.open("rb") as file:  # where this fails, the file itself may be in order
        try:
            # `np.load` would take a file of another kind for a pickle, and tell how to run it.
            with NpzFile(file, allow_pickle=False) as archive:
                arrays = dict(archive)
        except _DAMAGED as error:
            reason = str(error) or type(error).__name__
            raise ValueError(
                f"{path} is no complete .npz file of plain arrays: {reason}"
            ) from error
    for key, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{path} is no .npz file of plain arrays: {key!r} in it is no array.")
    return arrays


def load_as(
    kind: str,
    build: Callable[[Arrays], Built],
    needed: Set[str],
    name: str,
    data_dir: str | os.PathLike[str],
) -> Built:
    """What `build` makes of a local file; what is wrong with it is told with the file's name."""
    arrays = load_npz(name, data_dir)
    try:
        missing = sorted(needed - set(arrays))
        expect(not missing, f"it lacks {', '.join(missing)}")
        return build(arrays)
    except ValueError as error:
        raise ValueError(f"Data set {name!r} is not a {kind}: {error}.") from error


def expect(condition: Any, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


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
    needed = {"num", "num_names", "cat", "cat_names", "y"}
    return load_as("table", _as_table, needed, name, data_dir)


def _as_table(arrays: Arrays) -> tuple[pd.DataFrame, NDArray[Any]]:
    import pandas as pd

    numbers, y = arrays["num"], arrays["y"]
    expect(y.ndim == 1, f"y of shape {y.shape} is not one class per row")
    for part in ("num", "cat"):
        shape, names = arrays[part].shape, arrays[f"{part}_names"]
        expected = (len(y), names.size)
        expect(
            shape == expected,
            f"{part} has shape {shape} instead of {expected}, the numbers of classes in y and of "
            f"names in {part}_names",
        )
    columns = [*arrays["num_names"].ravel().tolist(), *arrays["cat_names"].ravel().tolist()]
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    expect(not repeated, f"more than one column is called {', '.join(map(repr, repeated))}")
    X = pd.DataFrame(numbers, columns=columns[: numbers.shape[1]])
    for column, codes in zip(columns[numbers.shape[1] :], arrays["cat"].T, strict=True):
        X[column] = pd.Series(_texts(arrays, column, codes), dtype=object)
    return X, y


def _texts(arrays: Arrays, column: str, codes: NDArray[Any]) -> NDArray[Any]:
    """A categorical column: the level of each code, None for -1."""
    expect(f"levels_{column}" in arrays, f"it lacks levels_{column}")
    levels = arrays[f"levels_{column}"].ravel().tolist()
    expect(codes.dtype.kind in "iu", f"codes of {column!r} are {codes.dtype}, not integers")
    wrong = codes[(codes < -1) | (codes >= len(levels))]
    expect(
        not len(wrong),
        f"codes of {column!r} must be from -1 to {len(levels) - 1}, got {wrong[:3].tolist()}",
    )
    return np.array([*levels, None], dtype=object)[codes]  # -1 is the last
