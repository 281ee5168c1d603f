"""Results of the methods of `RobustGPC` and `RobustGPRegressor` for regions."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray


class Bounds(NamedTuple):
    """Proven bounds on predictions over a region around each of n points.

    The predictions are the probabilities of k classes, or the mean or the standard deviation that a
    regressor predicts (in the unit of the target, without the axis k).

    Attributes
    ----------
    min_lower, min_upper : ndarray of shape (n, k) or (n,), float64
        Bounds on the smallest value in the region (Blaas et al., AISTATS 2020, Eq. 3).
    max_lower, max_upper : ndarray of shape (n, k) or (n,), float64
        Bounds on the largest value in the region (Eq. 4).
    argmin, argmax : ndarray of shape (n, k, n_features) or (n, n_features), float64
        Points of the region that attain `min_upper` and `max_lower`, up to the numerical error of
        the prediction: rounding, or 1e-5 for the likelihood "softmax".
    n_regions : ndarray of shape (n,), int64
        Number of boxes that were bounded.
    converged : ndarray of shape (n,), bool
        Whether all gaps between lower and upper bounds of the point are within `tol`. If not,
        `max_time` or `max_regions` was reached; the bounds are valid, but wider.
    lower, upper : ndarray of shape (n, k) or (n,), float64
        `min_lower` and `max_upper`: all values in the region lie between them.
    """

    min_lower: FloatArray
    min_upper: FloatArray
    max_lower: FloatArray
    max_upper: FloatArray
    argmin: FloatArray
    argmax: FloatArray
    n_regions: NDArray[np.int64]
    converged: NDArray[np.bool_]

    @property
    def lower(self) -> FloatArray:
        return self.min_lower

    @property
    def upper(self) -> FloatArray:
        return self.max_upper


class RegressionBounds(NamedTuple):
    """Bounds on the predicted mean, and on the standard deviation of ``predict``."""

    mean: Bounds
    std: Bounds


class Certificate(NamedTuple):
    """Decision for each of n points on whether the prediction can change within its region.

    The prediction of a classifier changes if the predicted class changes. The prediction of a
    regressor changes if the mean changes by more than the tolerance.

    Attributes
    ----------
    status : ndarray of shape (n,), str
        "safe" (proven), "unsafe" (a counterexample was found) or "undecided".
    margin_lower, margin_upper : ndarray of shape (n,), float64
        Bounds on the smallest margin in the region, refined only until the decision was certain.
        The margin is the probability of the class minus the probability of the most probable other
        class; with `delta` or `tolerance`, it is the allowed change minus the actual change.
    counterexample : ndarray of shape (n, n_features), float64
        Point of the region with a different prediction if "unsafe", otherwise NaN.
    n_regions : ndarray of shape (n,), int64
        Number of boxes that were bounded.
    """

    status: NDArray[np.str_]
    margin_lower: FloatArray
    margin_upper: FloatArray
    counterexample: FloatArray
    n_regions: NDArray[np.int64]


class SafeRadius(NamedTuple):
    """Radius around each of n points within which the prediction is proven not to change.

    `Certificate` defines when a prediction changes.

    Attributes
    ----------
    lower : ndarray of shape (n,), float64
        Proven radius: the prediction is the same at all points within this distance that lie in the
        domain and differ from the given point only in the free features. 0 if nothing was proven.
    upper : ndarray of shape (n,), float64
        Distance of the nearest counterexample that was found; infinite if none was found.
    counterexample : ndarray of shape (n, n_features), float64
        The nearest counterexample that was found; NaN if none was found.
    """

    lower: FloatArray
    upper: FloatArray
    counterexample: FloatArray


class FeatureEffects(NamedTuple):
    """Effect of each feature on the probability of a class.

    Attributes
    ----------
    local : ndarray of shape (n, n_features), float64
        Effect at each point, positive if the probability increases with the feature (Blaas et al.,
        AISTATS 2020, Eq. 23-25); a difference of probabilities between -2 and 2.
    overall : ndarray of shape (n_features,), float64
        Mean of `local` over the points (Eq. 26).
    error : ndarray of shape (n, n_features), float64
        Proven bound on the error of `local`.
    """

    local: FloatArray
    overall: FloatArray
    error: FloatArray


class Attack(NamedTuple):
    """Points found by an attack.

    Attributes
    ----------
    points : ndarray of shape (n, n_features), float64
        For each region, the point with the lowest probability that was found.
    proba : ndarray of shape (n,), float64
        Probability of the attacked class at `points`.
    success : ndarray of shape (n,), bool
        Whether a different class is predicted at `points`.
    """

    points: FloatArray
    proba: FloatArray
    success: NDArray[np.bool_]
