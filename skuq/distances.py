"""Feature maps that turn cosine and Mahalanobis distances into Euclidean distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from skuq.base import FloatArray

Features = Sequence[NDArray[Any]]  # one array per layer, each (n_samples, n_features)


def unit_vectors(features: Features) -> NDArray[np.float32]:
    """Scale features so that squared Euclidean distances equal layer-averaged cosine distances."""
    # |a - b|^2 = 1 - cos(a, b) for vectors of squared length 1/2.
    length = np.sqrt(0.5 / len(features))
    return np.hstack([(normalize(part) * length).astype(np.float32) for part in features])


@dataclass(frozen=True)
class Whitening:
    """Linear map that turns Mahalanobis distances into Euclidean distances.

    `matrix`, (n_features, n_features), is the square root of the precision.
    """

    centre: FloatArray
    matrix: FloatArray

    def __call__(self, features: Features) -> FloatArray:
        whitened: FloatArray = (np.hstack(features) - self.centre) @ self.matrix
        return whitened


def fit_whitening(
    features: FloatArray,
    codes: NDArray[np.int64],
    *,
    weight: FloatArray | None = None,
    precision: float = 0.0,
) -> tuple[FloatArray, Whitening]:
    """Fit one normal distribution per class, all with the same covariance.

    Each feature is scaled to variance 1 within classes (features that do not vary within classes
    stay unscaled). The covariance around the class means is then shrunk as Ledoit and Wolf
    proposed. The shrunk covariance is invertible for any number of features.

    Shapes: `features` (n_samples, n_features), `codes` (n_samples,), `weight` (n_samples,).
    Sample weights default to 1. Returns the class means, (n_classes, n_features), and the map.
    """
    weight = np.ones(len(codes)) if weight is None else weight
    present, of_sample = np.unique(codes, return_inverse=True)
    rows = [of_sample == k for k in range(len(present))]
    means = np.stack([np.average(features[row], axis=0, weights=weight[row]) for row in rows])
    residuals = features - means[of_sample]
    scale = np.sqrt(np.average(residuals**2, axis=0, weights=weight))
    rounding = max(1e-12, 10 * precision)  # sums have larger rounding errors than their terms
    varies = scale > rounding * np.abs(features).max(axis=0, initial=0)
    if not varies.any():
        raise ValueError(
            "Mahalanobis distances are not defined, because the features of the training samples "
            "do not vary within classes; use distance='cosine' or more training samples."
        )
    scale[~varies] = 1
    variances, directions = np.linalg.eigh(_shrunk_covariance(residuals / scale, weight))
    smallest = np.finfo(np.float64).eps * len(variances) * variances.max()
    matrix = directions / np.sqrt(variances.clip(smallest)) / scale[:, None]
    return means, Whitening(np.average(features, axis=0, weights=weight), matrix)


def _shrunk_covariance(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """Covariance of weighted rows around 0, shrunk towards a multiple of the identity.

    Ledoit, Wolf, "A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices", Journal
    of Multivariate Analysis 88, 2004, Lemma 3.2 to 3.4; a row of weight 2 counts as two samples.
    scikit-learn's `LedoitWolf` does not accept weights.
    """
    n_samples, n_features = weight.sum(), rows.shape[1]
    sample: FloatArray = (rows.T * weight) @ rows / n_samples
    mean_variance = np.trace(sample) / n_features
    distance = (sample**2).sum() - n_features * mean_variance**2  # d^2, times n_features
    # The mean of |x x^T - S|^2 equals the mean of |x|^4 minus |S|^2.
    error = (weight @ (rows**2).sum(axis=1) ** 2 / n_samples - (sample**2).sum()) / n_samples
    shrinkage = min(error / distance, 1.0) if distance > 0 and error > 0 else 0.0
    shrunk = (1 - shrinkage) * sample
    shrunk.flat[:: n_features + 1] += shrinkage * mean_variance
    return shrunk
