"""A low-rank prior through inducing points, for many training points.

The latent values at training points are taken as ``K_nm K_mm^-1 u`` of the values u at m
inducing points; predictions keep the exact conditional given u. The posterior then has the
common form, with one row per inducing point instead of one per training point.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import lapack, solve_triangular
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans

from skuq.base import FloatArray
from skuq.gpc.inference._kernels import covariance_with_pullback
from skuq.gpc.inference._posterior import JointPosterior
from skuq.gpc.inference._prior import cholesky_with_jitter

_JITTER = 1e-9  # of the prior variance; with less, rounding in predictions grows instead


def choose_inducing(
    X: FloatArray,
    n_inducing: int,
    random_state: Any = None,
    sample_weight: FloatArray | None = None,
) -> FloatArray:
    """Inducing points: centres of clusters of the training inputs.

    Parameters
    ----------
    X : ndarray of shape (n, n_features)
        Training inputs.
    n_inducing : int
        How many are wanted; all distinct inputs are returned if there are no more.
    random_state : int, RandomState instance or None, default=None
        For the clustering.
    sample_weight : ndarray of shape (n,), default=None
        Of the training inputs; an input of weight 2 counts like two of weight 1.

    Returns
    -------
    ndarray of shape (m, n_features)
        Distinct points, ``m <= n_inducing``.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.gpc.inference._sparse import choose_inducing
    >>> choose_inducing(np.array([[0.0], [1.0], [1.0]]), 2)
    array([[0.],
           [1.]])
    """
    distinct, position = np.unique(X, axis=0, return_inverse=True)
    if len(distinct) <= n_inducing:
        return distinct
    clusters = MiniBatchKMeans(n_inducing, n_init=1, random_state=random_state)
    clusters.fit(distinct, sample_weight=np.bincount(position.ravel(), sample_weight))
    return np.unique(clusters.cluster_centers_, axis=0)


class LowRankPrior:
    """Prior of covariance ``K = K_nm K_mm^-1 K_mn``, in the form ``features features'``.

    Parameters
    ----------
    kernel : scikit-learn kernel
        One that `check_kernel` accepts; later changes of it do no harm.
    X : ndarray of shape (n, n_features)
        Training inputs.
    inducing : ndarray of shape (m, n_features)
        Inducing points.

    Attributes
    ----------
    features : ndarray of shape (n, m)
        ``K_nm`` times the inverse of the transposed Cholesky factor of ``K_mm``.
    jitter : float
        What was added to the diagonal of ``K_mm``, relative to its mean.

    References
    ----------
    Quinonero-Candela and Rasmussen, "A Unifying View of Sparse Approximate Gaussian Process
    Regression", JMLR 6, 2005, Section 5 (deterministic training conditional).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._sparse import LowRankPrior
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> prior = LowRankPrior(RBF(), X, X[::10])
    >>> prior.multiply(np.ones(50)).shape
    (50,)
    """

    def __init__(self, kernel: Any, X: FloatArray, inducing: FloatArray) -> None:
        self.kernel, self.inputs = clone(kernel), inducing
        own, self._own_pullback = covariance_with_pullback(self.kernel, inducing)
        cross, self._cross_pullback = covariance_with_pullback(self.kernel, X, inducing)
        own[np.diag_indices_from(own)] *= 1.0 + _JITTER
        self.factor, more = cholesky_with_jitter(own)
        self.jitter = _JITTER + more
        self.features: FloatArray = solve_triangular(self.factor, cross.T, lower=True).T

    def multiply(self, alpha: FloatArray) -> FloatArray:
        """``K alpha`` for each row of an array of shape (n,) or (n_classes, n)."""
        return (alpha @ self.features) @ self.features.T

    def condition(self, precision: FloatArray) -> LowRankConditional:
        """Multiply by Gaussian sites of these precisions, shape (n,), non-negative."""
        return LowRankConditional(self, precision)

    def to_inputs(self, values: FloatArray) -> FloatArray:
        """``factor^-T values``: from whitened coordinates to weights of inducing points."""
        return solve_triangular(self.factor, values, lower=True, trans="T")

    def whitener(self) -> FloatArray:
        """The inverse of the factor, with which ``K_xm`` becomes features of x."""
        inverse: FloatArray = lapack.dtrtri(self.factor, lower=1)[0]
        return inverse

    def gradient(self, cross: FloatArray, own: FloatArray) -> FloatArray:
        """``sum G_nm dK_nm + sum G_mm dK_mm``, both given in whitened coordinates.

        In these, G_nm is ``cross @ factor^-1`` and G_mm ``factor^-T @ own @ factor^-1``.
        """
        own = self.to_inputs(self.to_inputs(own).T).T
        own[np.diag_indices_from(own)] += self.jitter * np.mean(np.diagonal(own))
        return self._cross_pullback(self.to_inputs(cross.T).T) + self._own_pullback(own)


class LowRankConditional:
    """`LowRankPrior` times Gaussian sites; see `skuq.gpc.inference._prior.Conditional`.

    Everything follows from ``H = I + features' W features``.
    """

    def __init__(self, prior: LowRankPrior, precision: FloatArray) -> None:
        self._prior, self._precision = prior, precision
        scaled = prior.features * np.sqrt(precision)[:, None]
        H = scaled.T @ scaled
        H[np.diag_indices_from(H)] += 1.0
        self._factor, self.jitter = cholesky_with_jitter(H)
        self.log_determinant = 2.0 * float(np.log(np.diagonal(self._factor)).sum())

    @property
    def inverse_diagonal(self) -> FloatArray:
        """``1 - W_ii S_ii``, shape (n,); positive, also where rounding would deny it."""
        return np.maximum(1.0 - self._precision * self.variance, np.finfo(float).eps)

    @cached_property
    def variance(self) -> FloatArray:
        """Posterior variances, shape (n,)."""
        half = solve_triangular(self._factor, self._prior.features.T, lower=True)
        return np.einsum("ij,ij->j", half, half)

    def alpha(self, b: FloatArray) -> FloatArray:
        """``b - R K b = b - W S b`` for an array of shape (n,)."""
        features = self._prior.features
        solved = lapack.dpotrs(self._factor, b @ features, lower=1)[0]
        return b - self._precision * (features @ solved)

    @cached_property
    def _inverse(self) -> FloatArray:
        inverse: FloatArray = lapack.dpotrs(self._factor, np.eye(len(self._factor)), lower=1)[0]
        return inverse

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """``left' dK right - tr(R dK) / 2`` for all free hyperparameters."""
        features = self._prior.features
        a, b = left @ features, right @ features
        cross = left[:, None] * b + right[:, None] * a
        cross -= self._precision[:, None] * (features @ self._inverse)
        own = 0.5 * (np.eye(len(a)) - self._inverse) - np.outer(a, b)
        return self._prior.gradient(cross, own)

    def posterior(self, alpha: FloatArray) -> JointPosterior:
        """Posterior with mean ``K alpha`` at the training inputs and covariance S."""
        prior = self._prior
        matrix = np.eye(len(self._inverse)) - self._inverse
        matrix = 0.5 * (matrix + matrix.T)
        means = (alpha @ prior.features)[None]
        return JointPosterior(prior.kernel, prior.inputs, means, matrix[None], prior.whitener())
