"""Data: digits with foreign inputs, the papers' synthetic data, and local ``.npz`` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from skuq.base import FloatArray
from skuq.extras import import_optional

if TYPE_CHECKING:
    import pandas as pd

SIDE = 8  # of scikit-learn's digits, in pixels
PHOTO_SIDE = 64  # of the piece of a photograph that is shrunk to a digit's size


class DigitsWithForeign(NamedTuple):
    """Digits to learn from, digits to test on, and inputs that are no digits.

    Attributes
    ----------
    X_train, X_test : ndarray of shape (n_samples, 64), float64
        Images of 8 x 8 pixels, brightness in [0, 1].
    y_train, y_test : ndarray of shape (n_samples,), int64
        Digits 0 to 9.
    foreign : dict of str to ndarray of shape (n_foreign, 64), float64
        ``rotated`` and ``inverted`` test digits, uniform ``noise``, and patches of
        ``photographs``; brightness in [0, 1].
    """

    X_train: FloatArray
    X_test: FloatArray
    y_train: NDArray[np.int64]
    y_test: NDArray[np.int64]
    foreign: dict[str, FloatArray]


def load_digits_with_foreign(
    *, n_test: int = 200, n_foreign: int = 50, random_state: Any = None
) -> DigitsWithForeign:
    """Load scikit-learn's digits and make foreign inputs of the same shape.

    Parameters
    ----------
    n_test : int, default=200
        Test digits; all others train.
    n_foreign : int, default=50
        Foreign inputs of each kind, at most `n_test`.
    random_state : int, RandomState instance or None, default=None
        Choice of the test digits, noise and patches.

    Returns
    -------
    DigitsWithForeign

    Raises
    ------
    ImportError
        If Pillow is missing, which reads the photographs (it comes with extra ``plot``).

    Examples
    --------
    >>> from skuq.datasets import load_digits_with_foreign
    >>> data = load_digits_with_foreign(n_test=100, n_foreign=20, random_state=0)
    >>> data.X_test.shape, sorted(data.foreign)
    ((100, 64), ['inverted', 'noise', 'photographs', 'rotated'])
    """
    if not 0 < n_foreign <= n_test:
        raise ValueError(f"`n_foreign` must be between 1 and n_test={n_test}, got {n_foreign}.")
    rng = check_random_state(random_state)
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X / 16, y, test_size=n_test, random_state=rng, stratify=y
    )
    images = X_test[:n_foreign].reshape(-1, SIDE, SIDE)
    foreign = {
        "rotated": np.rot90(images, axes=(1, 2)).reshape(n_foreign, -1),
        "inverted": 1 - X_test[:n_foreign],
        "noise": rng.uniform(size=(n_foreign, SIDE * SIDE)),
        "photographs": _photo_patches(n_foreign, rng),
    }
    return DigitsWithForeign(X_train, X_test, y_train, y_test, foreign)


def _photo_patches(n_patches: int, rng: np.random.RandomState) -> FloatArray:
    """Grey square pieces of scikit-learn's two photographs, averaged down to a digit's size."""
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


# Corners of the uncertainty region of the mixture below, per feature.
GAUSSIAN_REGION = {0: (2.0, 2.75), 1: (0.0, 1.5)}


def make_gaussian_classes(
    n_samples: tuple[int, int, int] = (1000, 1000, 100), *, random_state: Any = None
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw the three normal classes on which Mirage is shown (Appendix D.1).

    Parameters
    ----------
    n_samples : tuple of int, default=(1000, 1000, 100)
        Samples of each class.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 2), float64
        Inputs. Those of class 0 in `GAUSSIAN_REGION` are far from the other classes.
    y : ndarray of shape (n_samples,), int64
        Classes 0 to 2.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025.

    Examples
    --------
    >>> from skuq.datasets import make_gaussian_classes
    >>> X, y = make_gaussian_classes(random_state=0)
    >>> X.shape, y.shape
    ((2100, 2), (2100,))
    """
    rng = check_random_state(random_state)
    means = [(3.0, 2.0), (5.0, 5.0), (3.0, 4.0)]
    covariances = [[[1.0, 0.8], [0.8, 1.0]], [[1.0, -0.8], [-0.8, 1.0]], 0.1 * np.eye(2)]
    classes = [
        rng.multivariate_normal(mean, covariance, n)
        for mean, covariance, n in zip(means, covariances, n_samples, strict=True)
    ]
    return np.concatenate(classes), np.repeat(np.arange(3), n_samples)


def make_heteroscedastic(
    n_samples: int = 1000, *, random_state: Any = None
) -> tuple[FloatArray, FloatArray]:
    """Draw the regression problem on which Mirage is shown (Eq. 17 to 19).

    Parameters
    ----------
    n_samples : int, default=1000
        Number of samples.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 1), float64
        Inputs, uniform on [-4, 4].
    y : ndarray of shape (n_samples,), float64
        ``sin(2 x) + 0.3 x^2 - 0.4 x + 1`` with noise of standard deviation
        ``0.2 + 0.8 exp(-(x / 1.5)^2)``.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Appendix C.4.2. The range of the inputs is not stated there.

    Examples
    --------
    >>> from skuq.datasets import make_heteroscedastic
    >>> X, y = make_heteroscedastic(50, random_state=0)
    >>> X.shape, y.shape
    ((50, 1), (50,))
    """
    rng = check_random_state(random_state)
    x = rng.uniform(-4, 4, size=n_samples)
    noise = (0.2 + 0.8 * np.exp(-((x / 1.5) ** 2))) * rng.normal(size=n_samples)
    return x[:, None], np.sin(2 * x) + 0.3 * x**2 - 0.4 * x + 1 + noise


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
        raise ValueError(f"Data set {name!r} is no table: it has no {', '.join(sorted(missing))}.")
    X = pd.DataFrame(arrays["num"], columns=arrays["num_names"].tolist())
    for column, codes in zip(arrays["cat_names"].tolist(), arrays["cat"].T, strict=True):
        levels = arrays[f"levels_{column}"].astype(object)
        X[column] = pd.Series(np.where(codes < 0, None, levels[codes]), dtype=object)
    return X, arrays["y"]
