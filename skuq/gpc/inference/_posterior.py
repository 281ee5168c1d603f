"""Gaussian posteriors of the latent functions, all of one form.

Every inference method of this package ends with latent functions that are jointly Gaussian at
any input x, with moments that are a linear and a quadratic form in ``r(x) = k(inputs, x)``.
Algorithms and lines are those of Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import solve_triangular

from skuq.base import FloatArray
from skuq.gpc.inference._kernels import covariance, prior_variance

_BATCH_ENTRIES = 4_000_000  # float64 numbers in the largest temporary array, 32 MB


class Posterior(Protocol):
    """Interface of the posteriors.

    Attributes
    ----------
    kernel : scikit-learn kernel
        With the hyperparameters that were used.
    inputs : ndarray of shape (m, n_features)
        Training inputs, or inducing points.
    weights : ndarray of shape (L, m)
        One row per latent function; its mean at x is ``weights @ r(x)``.
    """

    @property
    def kernel(self) -> Any: ...

    @property
    def inputs(self) -> FloatArray: ...

    @property
    def weights(self) -> FloatArray: ...

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (n, L) and covariance (n, L, L) of the latent functions at each input."""

    def reduction(self) -> FloatArray:
        """Matrices R, shape (L (L + 1) / 2, m, m).

        For the pairs ``c <= d`` in the order of ``np.triu_indices(L)``, the covariance of the
        latent functions c at x and d at z is ``(c == d) k(x, z) - r(x) @ R[pair] @ r(z)``.
        """


@dataclass(frozen=True)
class BinaryPosterior:
    """Posterior of a single latent function; see `Posterior`.

    Parameters
    ----------
    kernel : scikit-learn kernel
        With the hyperparameters that were used.
    inputs : ndarray of shape (m, n_features)
        Training inputs, or inducing points.
    weights : ndarray of shape (1, m)
        Coefficients of the mean.
    matrix : ndarray of shape (m, m)
        The symmetric matrix R in the variance ``k(x, x) - r(x)' R r(x)``.
    """

    kernel: Any
    inputs: FloatArray
    weights: FloatArray
    matrix: FloatArray

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (n, 1) and covariance (n, 1, 1) of the latent function at each input."""
        mean, variance = np.empty((len(X), 1)), np.empty((len(X), 1, 1))
        prior = prior_variance(self.kernel)
        for rows, cross in _cross_covariances(self.kernel, self.inputs, X, len(self.inputs)):
            mean[rows, 0] = cross @ self.weights[0]  # Algorithms 3.2 and 3.6, line 4
            # Lines 5 and 6
            variance[rows, 0, 0] = prior - np.einsum("ij,ij->i", cross @ self.matrix, cross)
        return mean, np.maximum(variance, 0.0)

    def reduction(self) -> FloatArray:
        """The one matrix R, shape (1, m, m)."""
        return self.matrix[None]


@dataclass(frozen=True)
class FactoredPosterior:
    """Posterior of one latent function per class in the form that Laplace's method yields.

    The covariance of the latent functions c and d at x is
    ``(c == d) (k(x, x) - r' E_c r) + (M^-1 E_c r)' (M^-1 E_d r)``.

    Parameters
    ----------
    kernel : scikit-learn kernel
        With the hyperparameters that were used, shared by all classes.
    inputs : ndarray of shape (m, n_features)
        Training inputs.
    weights : ndarray of shape (L, m)
        Coefficients of the means.
    blocks : ndarray of shape (L, m, m)
        The symmetric matrices E_c.
    factor : ndarray of shape (m, m)
        M, the lower Cholesky factor of their sum.

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Algorithm 3.4.
    """

    kernel: Any
    inputs: FloatArray
    weights: FloatArray
    blocks: FloatArray
    factor: FloatArray

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (n, L) and covariance (n, L, L) of the latent functions at each input."""
        n_latent = len(self.weights)
        mean, cov = np.empty((len(X), n_latent)), np.empty((len(X), n_latent, n_latent))
        prior, entries = prior_variance(self.kernel), n_latent * len(self.inputs)
        for rows, cross in _cross_covariances(self.kernel, self.inputs, X, entries):
            mean[rows] = cross @ self.weights.T  # Line 9
            projected = np.stack([block @ cross.T for block in self.blocks])  # Line 10
            own = prior - np.einsum("cji,ij->ic", projected, cross)
            for c in range(n_latent):  # Line 11
                projected[c] = solve_triangular(self.factor, projected[c], lower=True)
            by_point = np.moveaxis(projected, 2, 0)
            cov[rows] = by_point @ by_point.swapaxes(1, 2)  # Line 13
            # Line 15
            cov[rows, range(n_latent), range(n_latent)] += np.maximum(own, 0.0)
        return mean, cov

    def reduction(self) -> FloatArray:
        """Matrices R of all pairs of classes, shape (L (L + 1) / 2, m, m)."""
        solved = [solve_triangular(self.factor, block, lower=True) for block in self.blocks]
        pairs = list(zip(*np.triu_indices(len(self.weights)), strict=True))
        result = np.empty((len(pairs), *self.factor.shape))
        for out, (c, d) in zip(result, pairs, strict=True):
            np.negative(solved[c].T @ solved[d], out=out)
            if c == d:
                out += self.blocks[c]
        return result


@dataclass(frozen=True)
class JointPosterior:
    """Posterior of latent functions in whitened rows ``T r(x)``, with the matrices themselves.

    The rows of inducing points all but depend on one another, and what is left of ``r' R r``
    after cancellation is rounding. In whitened rows, which are orthonormal functions, no entry
    of a matrix exceeds 1, and nothing cancels (Eq. 30 of the proofs page of the user guide).

    Parameters
    ----------
    kernel : scikit-learn kernel
        With the hyperparameters that were used, shared by all classes.
    inputs : ndarray of shape (m, n_features)
        Training inputs, or inducing points.
    coefficients : ndarray of shape (L, m)
        Coefficients of the means in the whitened rows.
    matrices : ndarray of shape (L (L + 1) / 2, m, m)
        The matrices R of `Posterior.reduction`, of the whitened rows.
    whitener : ndarray of shape (m, m), default=None
        T; None is the identity.
    """

    kernel: Any
    inputs: FloatArray
    coefficients: FloatArray
    matrices: FloatArray
    whitener: FloatArray | None = None

    @property
    def weights(self) -> FloatArray:
        """Coefficients of the means in ``r(x)`` itself, shape (L, m)."""
        return self.coefficients if self.whitener is None else self.coefficients @ self.whitener

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (n, L) and covariance (n, L, L) of the latent functions at each input."""
        n_latent = len(self.coefficients)
        mean, cov = np.empty((len(X), n_latent)), np.empty((len(X), n_latent, n_latent))
        prior = prior_variance(self.kernel)
        for rows, cross in _cross_covariances(self.kernel, self.inputs, X, len(self.inputs)):
            white = cross if self.whitener is None else cross @ self.whitener.T
            mean[rows] = white @ self.coefficients.T
            for matrix, c, d in zip(self.matrices, *np.triu_indices(n_latent), strict=True):
                value = prior * (c == d) - np.einsum("ij,ij->i", white @ matrix, white)
                cov[rows, c, d] = cov[rows, d, c] = np.maximum(value, 0.0) if c == d else value
        return mean, cov

    def reduction(self) -> FloatArray:
        """Matrices R of all pairs of classes, shape (L (L + 1) / 2, m, m)."""
        if self.whitener is None:
            return self.matrices
        result: FloatArray = self.whitener.T @ self.matrices @ self.whitener
        return result


def _cross_covariances(
    kernel: Any, inputs: FloatArray, X: FloatArray, entries: int
) -> Iterator[tuple[slice, FloatArray]]:
    """Rows ``r(x)`` for a batch of x at a time, given the numbers that one x takes up."""
    size = max(1, _BATCH_ENTRIES // entries)
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        yield rows, covariance(kernel, X[rows], inputs)
