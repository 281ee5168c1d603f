"""Data from local ``.npz`` files, without pickled objects, and from scikit-learn's digits."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Set
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import validate_params

from skuq.base import FloatArray
from skuq.extras import import_optional

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
Built = TypeVar("Built")

SIDE = 8  # side length of scikit-learn's digits, in pixels
PHOTO_SIDE = 64  # side length of a patch of a photograph before downsampling to SIDE

# Exceptions raised when a damaged archive is read.
_DAMAGED = (BadZipFile, EOFError, OSError, RuntimeError, ValueError, zlib.error)


def load_npz(name: str, data_dir: str | os.PathLike[str]) -> Arrays:
    """Read all arrays of a local ``.npz`` file, which must not contain pickled objects.

    Parameters
    ----------
    name : str
        Name of the data set; the file is ``NAME.npz`` or ``NAME_test.npz``.
    data_dir : path-like
        Folder of the file.

    Returns
    -------
    dict of str to ndarray
        Arrays by name.

    Raises
    ------
    FileNotFoundError
        If the file does not exist; the message lists the data sets in the folder.
    ValueError
        If an array contains Python objects, or the file is damaged or not an ``.npz`` file.
    """
    folder = Path(data_dir)
    for path in (folder / f"{name}.npz", folder / f"{name}_test.npz"):
        if path.is_file():
            return _read(path)
    found = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
    raise FileNotFoundError(f"No data set {name!r} in {folder}; data sets in this folder: {found}.")


def _read(path: Path) -> Arrays:
    with path.open("rb") as file:  # outside `try`: a failure here does not mean a damaged file
        try:
            # `np.load` would treat any other file as a pickle, and suggest allow_pickle=True.
            with NpzFile(file, allow_pickle=False) as archive:
                arrays = dict(archive)
        except _DAMAGED as error:
            reason = str(error) or type(error).__name__
            raise ValueError(
                f"{path} is not a complete .npz file of plain arrays: {reason}"
            ) from error
    for key, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise ValueError(
                f"{path} is not an .npz file of plain arrays: member {key!r} is not an array."
            )
    return arrays


def load_as(
    kind: str,
    build: Callable[[Arrays], Built],
    needed: Set[str],
    name: str,
    data_dir: str | os.PathLike[str],
) -> Built:
    """Read a local file and convert its arrays with `build`; error messages name the data set."""
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
        As in `load_npz`. The file contains numeric columns ``num`` with names ``num_names``,
        integer codes ``cat`` of categorical columns with names ``cat_names``, an array
        ``levels_NAME`` for each categorical column, and classes ``y``.

    Returns
    -------
    X : DataFrame of shape (n_samples, n_columns)
        Numeric columns, followed by categorical columns as text; a code of -1 is missing (None).
    y : ndarray of shape (n_samples,)
        Classes.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ValueError
        If the file does not contain a table in this format.
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
            f"{part} has shape {shape} instead of {expected}, the lengths of y and of {part}_names",
        )
    columns = [*arrays["num_names"].ravel().tolist(), *arrays["cat_names"].ravel().tolist()]
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    expect(not repeated, f"several columns have the name {', '.join(map(repr, repeated))}")
    X = pd.DataFrame(numbers, columns=columns[: numbers.shape[1]])
    for column, codes in zip(columns[numbers.shape[1] :], arrays["cat"].T, strict=True):
        X[column] = pd.Series(_texts(arrays, column, codes), dtype=object)
    return X, y


def _texts(arrays: Arrays, column: str, codes: NDArray[Any]) -> NDArray[Any]:
    """Convert the codes of a categorical column to levels, and -1 to None."""
    expect(f"levels_{column}" in arrays, f"it lacks levels_{column}")
    levels = arrays[f"levels_{column}"].ravel().tolist()
    expect(codes.dtype.kind in "iu", f"codes of {column!r} are {codes.dtype}, not integers")
    wrong = codes[(codes < -1) | (codes >= len(levels))]
    expect(
        not len(wrong),
        f"codes of {column!r} must be from -1 to {len(levels) - 1}, got {wrong[:3].tolist()}",
    )
    return np.array([*levels, None], dtype=object)[codes]  # code -1 selects the last item, None


class DigitsWithOOD(NamedTuple):
    """Training digits, test digits and out-of-distribution inputs.

    Attributes
    ----------
    X_train, X_test : ndarray of shape (n_samples, 64), float64
        Images of 8 x 8 pixels, brightness in [0, 1].
    y_train, y_test : ndarray of shape (n_samples,), int64
        Digits 0 to 9.
    ood : dict of str to ndarray of shape (n_ood, 64), float64
        Inputs by kind: ``rotated`` test digits, ``inverted`` test digits, uniform ``noise``, and
        patches of ``photographs``; brightness in [0, 1].
    """

    X_train: FloatArray
    X_test: FloatArray
    y_train: NDArray[np.int64]
    y_test: NDArray[np.int64]
    ood: dict[str, FloatArray]


@validate_params(
    {"n_test": [Integral], "n_ood": [Integral], "random_state": ["random_state"]},
    prefer_skip_nested_validation=True,
)
def load_digits_with_ood(
    *, n_test: int = 200, n_ood: int = 50, random_state: Any = None
) -> DigitsWithOOD:
    """Load scikit-learn's digits and generate out-of-distribution inputs of the same shape.

    Parameters
    ----------
    n_test : int, default=200
        Number of test digits; the other digits are training data.
    n_ood : int, default=50
        Number of out-of-distribution inputs of each kind, at most `n_test`.
    random_state : int, RandomState instance or None, default=None
        Seed for the choice of test digits, noise and patches.

    Returns
    -------
    DigitsWithOOD

    Raises
    ------
    ImportError
        If Pillow, which reads the photographs, is missing (install extra ``plot``).

    Examples
    --------
    >>> from skuq.datasets import load_digits_with_ood
    >>> data = load_digits_with_ood(n_test=100, n_ood=20, random_state=0)
    >>> data.X_test.shape, sorted(data.ood)
    ((100, 64), ['inverted', 'noise', 'photographs', 'rotated'])
    """
    if not 0 < n_ood <= n_test:
        raise ValueError(f"`n_ood` must be between 1 and n_test={n_test}, got {n_ood}.")
    rng = check_random_state(random_state)
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X / 16, y, test_size=n_test, random_state=rng, stratify=y
    )
    images = X_test[:n_ood].reshape(-1, SIDE, SIDE)
    ood = {
        "rotated": np.rot90(images, axes=(1, 2)).reshape(n_ood, -1),
        "inverted": 1 - X_test[:n_ood],
        "noise": rng.uniform(size=(n_ood, SIDE * SIDE)),
        "photographs": _photo_patches(n_ood, rng),
    }
    return DigitsWithOOD(X_train, X_test, y_train, y_test, ood)


def _photo_patches(n_patches: int, rng: np.random.RandomState) -> FloatArray:
    """Draw square grey patches of scikit-learn's two photographs, downsampled to digit size."""
    import_optional("PIL", extra="plot")
    photos = [photo.mean(axis=-1) / 255 for photo in load_sample_images().images]
    block = PHOTO_SIDE // SIDE
    patches = np.empty((n_patches, SIDE, SIDE))
    for patch in patches:
        photo = photos[rng.randint(len(photos))]
        top, left = (rng.randint(size - PHOTO_SIDE) for size in photo.shape)
        piece = photo[top : top + PHOTO_SIDE, left : left + PHOTO_SIDE]
        patch[:] = piece.reshape(SIDE, block, SIDE, block).mean(axis=(1, 3))
    return patches.reshape(n_patches, -1)
