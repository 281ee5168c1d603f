"""Digits to learn from, and inputs that are not digits."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import validate_params

from skuq.base import FloatArray
from skuq.extras import import_optional

SIDE = 8  # of scikit-learn's digits, in pixels
PHOTO_SIDE = 64  # of the piece of a photograph that is shrunk to a digit's size


class DigitsWithOOD(NamedTuple):
    """Digits to learn from, digits to test on, and inputs that are not digits.

    Attributes
    ----------
    X_train, X_test : ndarray of shape (n_samples, 64), float64
        Images of 8 x 8 pixels, brightness in [0, 1].
    y_train, y_test : ndarray of shape (n_samples,), int64
        Digits 0 to 9.
    ood : dict of str to ndarray of shape (n_ood, 64), float64
        ``rotated`` and ``inverted`` test digits, uniform ``noise``, and patches of
        ``photographs``; brightness in [0, 1].
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
    """Load scikit-learn's digits and make out-of-distribution inputs of the same shape.

    Parameters
    ----------
    n_test : int, default=200
        Test digits; all others train.
    n_ood : int, default=50
        Out-of-distribution inputs of each kind, at most `n_test`.
    random_state : int, RandomState instance or None, default=None
        Choice of the test digits, noise and patches.

    Returns
    -------
    DigitsWithOOD

    Raises
    ------
    ImportError
        If Pillow is missing, which reads the photographs (it comes with extra ``plot``).

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
