"""Distances between features: unit vectors, and Mahalanobis distances as Euclidean ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from sklearn.preprocessing import normalize

from skuq.base import FloatArray

Features = Sequence[NDArray[Any]]  # of some layers, each (n_samples, n_features)


def unit_vectors(features: Features) -> NDArray[np.float32]:
    """Scale features so that squared Euclidean distances are mean cosine distances of all parts."""
    # |a - b|^2 = 1 - cos(a, b) for vectors of squared length 1/2.
    length = np.sqrt(0.5 / len(features))
    return np.hstack([(normalize(part) * length).astype(np.float32) for part in features])


@dataclass(frozen=True)
class Whitening:
    """Linear map after which squared Euclidean distances are squared Mahalanobis distances.

    Attributes
    ----------
    centre : ndarray of shape (n_features,)
        Subtracted first.
    matrix : ndarray of shape (n_features, n_features)
        Square root of the precision.
    """

    centre: FloatArray
    matrix: FloatArray

    def __call__(self, features: Features) -> FloatArray:
        whitened: FloatArray = (np.hstack(features) - self.centre) @ self.matrix
        return whitened


def fit_whitening(
    features: FloatArray, codes: NDArray[np.int64], *, precision: float = 0.0
) -> tuple[FloatArray, Whitening]:
    """Fit normal distributions to classes, with one covariance for all of them.

    The covariance is that of features around their class means, shrunk as Ledoit and Wolf
    proposed after each feature was scaled to variance 1, so that features of any scale and
    number can be used. Those that do not vary within classes are not scaled.

    Shapes: `features` (n_samples, n_features), `codes` (n_samples,); returns (n_classes,
    n_features).
    """
    present, of_sample = np.unique(codes, return_inverse=True)
    means = np.stack([features[codes == code].mean(axis=0) for code in present])
    residuals = features - means[of_sample]
    scale = np.sqrt((residuals**2).mean(axis=0))
    rounding = max(1e-12, 10 * precision)  # of sums, which is more than that of single numbers
    varies = scale > rounding * np.abs(features).max(axis=0, initial=0)
    if not varies.any():
        raise ValueError(
            "The features of the training samples do not vary within classes, so that Mahalanobis "
            "distances are not defined; use distance='cosine' or more training samples."
        )
    scale[~varies] = 1
    covariance = LedoitWolf(assume_centered=True).fit(residuals / scale)
    variances, directions = np.linalg.eigh(covariance.covariance_)
    smallest = np.finfo(np.float64).eps * len(variances) * variances.max()
    matrix = directions / np.sqrt(variances.clip(smallest)) / scale[:, None]
    return means, Whitening(features.mean(axis=0), matrix)
