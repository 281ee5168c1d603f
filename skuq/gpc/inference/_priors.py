"""Gaussian priors of the latent values at training inputs, exact or low-rank.

Laplace's method and expectation propagation replace the likelihood of each point by a Gaussian
factor, called a site, and condition the prior on all sites. The low-rank prior approximates the
latent values at training points by ``K_nm K_mm^-1 u``, where u are the latent values at m inducing
points. Predictions use the exact conditional distribution given u, and need no training points.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans

from skuq.base import FloatArray
from skuq.gpc.inference._kernels import covariance_with_pullback, prior_variance
from skuq.gpc.inference._posterior import JointPosterior

_MAX_JITTER = 1e-4  # if a matrix needs more jitter, relative to its mean diagonal, the fit fails
# If a site contributes less than this share of the posterior precision at its point, the usual
# formula for the variance at this point loses digits, and a different formula is used.
_WEAK_SITE = 1e-7
_JITTER = 1e-9  # relative jitter for inducing points; with less, predictions would lose digits


def cholesky_with_jitter(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Return the lower Cholesky factor, and the jitter with which factorisation succeeded."""
    # The jitter is 0 or a power of ten, relative to the mean diagonal; upper triangles are ignored.
    factor, info = lapack.dpotrf(matrix, lower=1)
    scale = float(np.mean(np.diagonal(matrix)))
    if info < 0 or not np.isfinite(scale):
        raise np.linalg.LinAlgError("A covariance matrix contains entries that are not finite.")
    jitter = 0.0
    while info:
        jitter = 10 * jitter or 1e-15
        if jitter > 1.01 * _MAX_JITTER:
            raise np.linalg.LinAlgError(
                f"A covariance matrix is not positive definite, even if {_MAX_JITTER:g} times its "
                "mean diagonal is added to the diagonal. Scale the features, remove duplicate "
                "inputs, or narrow the bounds of the kernel's length scales and variances."
            )
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += jitter * scale
        factor, info = lapack.dpotrf(shifted, lower=1, overwrite_a=1)
    return factor, jitter


class DensePrior:
    """Exact prior: K is the covariance matrix of all training inputs."""

    def __init__(self, kernel: Any, X: FloatArray) -> None:
        self.kernel, self.inputs = clone(kernel), X
        self.matrix, self.pullback = covariance_with_pullback(self.kernel, X)

    def multiply(self, alpha: FloatArray) -> FloatArray:
        """Compute ``K alpha`` for each row of an array of shape (n,) or (n_classes, n)."""
        return alpha @ self.matrix

    def condition(self, precision: FloatArray) -> DenseConditional:
        """Condition on Gaussian sites with these non-negative precisions, (n,)."""
        return DenseConditional(self, precision)


class DenseConditional:
    """`DensePrior` given Gaussian sites of precisions W: its covariance S is ``(K^-1 + W)^-1``."""

    # R is ``(K + W^-1)^-1``, so that ``S = K - K R K``; `log_determinant` is ``log |I + K W|``.
    # All results are computed from ``B = I + W^1/2 K W^1/2``, whose eigenvalues are at least 1
    # (Rasmussen and Williams, 2006, Eq. 3.26-3.27). Algorithm numbers refer to this book.

    def __init__(self, prior: DensePrior, precision: FloatArray) -> None:
        self._prior, self._root = prior, np.sqrt(precision)
        matrix = prior.matrix * self._root[:, None]
        matrix *= self._root
        matrix[np.diag_indices_from(matrix)] += 1.0
        # Algorithm 3.1, line 5; Algorithm 3.5, line 13
        self._factor, self.jitter = cholesky_with_jitter(matrix.T)
        self.log_determinant = 2.0 * float(np.log(np.diagonal(self._factor)).sum())

    @cached_property
    def _inverse(self) -> FloatArray:
        """Upper triangle of B^-1, with zeros below it, in the memory order of K."""
        inverse: FloatArray = lapack.dpotri(self._factor, lower=1)[0].T
        return inverse

    @property
    def inverse_diagonal(self) -> FloatArray:
        """``1 - W_ii S_ii``, the diagonal of B^-1, computed without cancellation, (n,)."""
        return np.diagonal(self._inverse)

    @cached_property
    def variance(self) -> FloatArray:
        """Diagonal of S, (n,)."""
        explained = 1.0 - self.inverse_diagonal
        weak = np.flatnonzero(explained < _WEAK_SITE)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = explained / self._root**2
        if len(weak):
            scaled = self._root[:, None] * self._prior.matrix[:, weak]
            half = blas.dtrsm(1.0, self._factor, scaled, lower=1)
            own = prior_variance(self._prior.kernel)
            variance[weak] = np.maximum(own - np.einsum("ij,ij->j", half, half), 0.0)
        return variance

    def alpha(self, b: FloatArray) -> FloatArray:
        """Return ``alpha = K^-1 S b = b - R K b``, (n,), so that the mean S b is ``K alpha``."""
        scaled = self._root * self._prior.multiply(b)
        # Algorithm 3.1, line 7; Algorithm 3.6, line 3
        return b - self._root * lapack.dpotrs(self._factor, scaled, lower=1)[0]

    def solve(self, y: FloatArray) -> FloatArray:
        """Compute ``R y``, (n,), which equals ``alpha(W y)``, with less loss by cancellation."""
        solved: FloatArray = lapack.dpotrs(self._factor, self._root * y, lower=1)[0]
        return self._root * solved

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Compute ``left' dK right - tr(R dK) / 2`` for all free hyperparameters."""
        # Algorithm 5.1, line 7; Algorithm 5.2, line 6. Because dK is symmetric, the upper triangle
        # of R, with half the diagonal, suffices.
        G = self._inverse * -self._root[:, None]
        G *= self._root
        G[np.diag_indices_from(G)] *= 0.5
        blas.dger(1.0, right, left, a=G.T, overwrite_a=1)  # G += left right', in place
        return self._prior.pullback(G)

    def posterior(self, alpha: FloatArray) -> JointPosterior:
        """Return the posterior with mean ``K alpha`` at the training inputs and covariance S."""
        upper = self._inverse * self._root[:, None]
        upper *= self._root
        matrix = upper + np.triu(upper, 1).T
        return JointPosterior(self._prior.kernel, self._prior.inputs, alpha[None], matrix[None])

    def regression(self, y: FloatArray) -> JointPosterior:
        """Return the posterior with mean ``K R y`` at the training inputs and covariance S."""
        # T with ``R = T' T`` is the whitener, so that nothing cancels even if noise is very small.
        whitener: FloatArray = lapack.dtrtri(self._factor, lower=1)[0] * self._root
        mean, matrix = (whitener @ y)[None], np.eye(len(y))[None]
        return JointPosterior(self._prior.kernel, self._prior.inputs, mean, matrix, whitener)


def choose_inducing(
    X: FloatArray,
    n_inducing: int,
    random_state: Any = None,
    sample_weight: FloatArray | None = None,
) -> FloatArray:
    """Return cluster centres of inputs, or all distinct inputs if at most `n_inducing` exist."""
    distinct, position = np.unique(X, axis=0, return_inverse=True)
    if len(distinct) <= n_inducing:
        return distinct
    clusters = MiniBatchKMeans(n_inducing, n_init=1, random_state=random_state)
    clusters.fit(distinct, sample_weight=np.bincount(position.ravel(), sample_weight))
    return np.unique(clusters.cluster_centers_, axis=0)


class LowRankPrior:
    """Low-rank prior with covariance ``K = K_nm K_mm^-1 K_mn = features features'``."""

    # Quinonero-Candela and Rasmussen, "A Unifying View of Sparse Approximate Gaussian Process
    # Regression", JMLR 6, 2005, Section 5 (deterministic training conditional).

    def __init__(self, kernel: Any, X: FloatArray, inducing: FloatArray) -> None:
        self.kernel, self.inputs = clone(kernel), inducing
        own, self._own_pullback = covariance_with_pullback(self.kernel, inducing)
        cross, self._cross_pullback = covariance_with_pullback(self.kernel, X, inducing)
        own[np.diag_indices_from(own)] *= 1.0 + _JITTER
        self.factor, more = cholesky_with_jitter(own)
        self.jitter = _JITTER + more
        self.features: FloatArray = solve_triangular(self.factor, cross.T, lower=True).T

    def multiply(self, alpha: FloatArray) -> FloatArray:
        return (alpha @ self.features) @ self.features.T

    def condition(self, precision: FloatArray) -> LowRankConditional:
        return LowRankConditional(self, precision)

    @cached_property
    def missed(self) -> FloatArray:
        """Prior variance at each training input that `features` do not explain, (n,)."""
        explained = np.einsum("ij,ij->i", self.features, self.features)
        return np.maximum(prior_variance(self.kernel) - explained, 0.0)

    def missed_gradient(self, weights: FloatArray) -> FloatArray:
        """Differentiate ``weights @ missed`` with respect to all free hyperparameters."""
        scaled = weights[:, None] * self.features
        _, pullback = covariance_with_pullback(self.kernel, self.inputs[:1])
        of_prior = pullback(np.full((1, 1), weights.sum()))
        return of_prior - self.gradient(2 * scaled, -self.features.T @ scaled)

    def to_inputs(self, values: FloatArray) -> FloatArray:
        """Map coefficients of features to coefficients of inducing points: ``factor^-T values``."""
        return solve_triangular(self.factor, values, lower=True, trans="T")

    def whitener(self) -> FloatArray:
        """Return the inverse of the factor, which maps ``K_xm`` to features of x."""
        inverse: FloatArray = lapack.dtrtri(self.factor, lower=1)[0]
        return inverse

    def gradient(self, cross: FloatArray, own: FloatArray) -> FloatArray:
        """Compute ``sum G_nm dK_nm + sum G_mm dK_mm`` for all free hyperparameters."""
        # G_nm is ``cross @ factor^-1``, and G_mm is ``factor^-T @ own @ factor^-1``.
        own = self.to_inputs(self.to_inputs(own).T).T
        own[np.diag_indices_from(own)] += self.jitter * np.mean(np.diagonal(own))
        return self._cross_pullback(self.to_inputs(cross.T).T) + self._own_pullback(own)


class LowRankConditional:
    """`LowRankPrior` conditioned on Gaussian sites; the methods are those of `DenseConditional`."""

    # All results are computed from ``H = I + features' W features``.

    def __init__(self, prior: LowRankPrior, precision: FloatArray) -> None:
        self._prior, self._precision = prior, precision
        scaled = prior.features * np.sqrt(precision)[:, None]
        H = scaled.T @ scaled
        H[np.diag_indices_from(H)] += 1.0
        self._factor, jitter = cholesky_with_jitter(H)
        self.jitter = max(prior.jitter, jitter)
        self.log_determinant = 2.0 * float(np.log(np.diagonal(self._factor)).sum())

    @property
    def inverse_diagonal(self) -> FloatArray:
        return np.maximum(1.0 - self._precision * self.variance, np.finfo(float).eps)

    @cached_property
    def variance(self) -> FloatArray:
        half = solve_triangular(self._factor, self._prior.features.T, lower=True)
        return np.einsum("ij,ij->j", half, half)

    def alpha(self, b: FloatArray) -> FloatArray:
        features = self._prior.features
        solved = lapack.dpotrs(self._factor, b @ features, lower=1)[0]
        return b - self._precision * (features @ solved)

    def solve(self, y: FloatArray) -> FloatArray:
        return self.alpha(self._precision * y)

    @cached_property
    def _inverse(self) -> FloatArray:
        inverse: FloatArray = lapack.dpotrs(self._factor, np.eye(len(self._factor)), lower=1)[0]
        return inverse

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        features = self._prior.features
        a, b = left @ features, right @ features
        cross = left[:, None] * b + right[:, None] * a
        cross -= self._precision[:, None] * (features @ self._inverse)
        own = 0.5 * (np.eye(len(a)) - self._inverse) - np.outer(a, b)
        return self._prior.gradient(cross, own)

    def posterior(self, alpha: FloatArray) -> JointPosterior:
        prior = self._prior
        matrix = np.eye(len(self._inverse)) - self._inverse
        matrix = 0.5 * (matrix + matrix.T)
        means = (alpha @ prior.features)[None]
        return JointPosterior(prior.kernel, prior.inputs, means, matrix[None], prior.whitener())

    def regression(self, y: FloatArray) -> JointPosterior:
        return self.posterior(self.solve(y))


Prior = DensePrior | LowRankPrior
Conditional = DenseConditional | LowRankConditional
