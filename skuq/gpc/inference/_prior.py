"""The Gaussian prior of the latent values at training inputs, and its conditioning.

Laplace's method and expectation propagation both replace the likelihood of each point by a
Gaussian one, a site. All they ask of a prior is to be conditioned on such sites, and an exact
prior and a low-rank one differ in nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.linalg import blas, lapack
from sklearn.base import clone

from skuq.base import FloatArray
from skuq.gpc.inference._kernels import covariance_with_pullback, prior_variance
from skuq.gpc.inference._posterior import BinaryPosterior, Posterior

_MAX_JITTER = 1e-4  # of the mean diagonal
_WEAK_SITE = 1e-7  # of the posterior precision; the difference from 1 is imprecise below


class Conditional(Protocol):
    """N(0, K) times Gaussian sites of precisions W: covariance ``S = (K^-1 + W)^-1``.

    With ``R = (K + W^-1)^-1``, so that ``S = K - K R K``.

    Attributes
    ----------
    log_determinant : float
        ``log |I + K W|``.
    jitter : float
        What was added to a diagonal, relative to its mean, to make it factorise.
    variance : ndarray of shape (n,)
        Diagonal ``S_ii``.
    inverse_diagonal : ndarray of shape (n,)
        Diagonal of B^-1, ``B = I + W^1/2 K W^1/2``: ``1 - W_ii S_ii`` without cancellation.
    """

    log_determinant: float
    jitter: float

    @property
    def inverse_diagonal(self) -> FloatArray: ...

    @property
    def variance(self) -> FloatArray: ...

    def alpha(self, b: FloatArray) -> FloatArray:
        """``K^-1 S b = b - R K b`` for b of shape (n,): S b is the mean, ``K alpha``."""

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """``left' dK right - tr(R dK) / 2`` for all free hyperparameters."""

    def posterior(self, alpha: FloatArray) -> Posterior:
        """Posterior with mean ``K alpha`` at the training inputs and covariance S."""


class Prior(Protocol):
    """N(0, K) at the training inputs."""

    jitter: float

    def multiply(self, alpha: FloatArray) -> FloatArray:
        """``K alpha`` for each row of an array of shape (n,) or (n_classes, n)."""

    def condition(self, precision: FloatArray) -> Conditional:
        """Multiply by Gaussian sites of these precisions, shape (n,), non-negative."""


def cholesky_with_jitter(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Cholesky factor of a symmetric matrix, or of the nearest one that has one.

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        Positive semidefinite but for rounding. Its lower triangle is read.

    Returns
    -------
    factor : ndarray of shape (n, n)
        Lower triangular.
    jitter : float
        What was added to the diagonal, relative to its mean: 0, or a power of ten.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not finite, or would need a jitter above 1e-4.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.gpc.inference._prior import cholesky_with_jitter
    >>> cholesky_with_jitter(np.array([[4.0]]))
    (array([[2.]]), 0.0)
    """
    factor, info = lapack.dpotrf(matrix, lower=1)
    scale = float(np.mean(np.diagonal(matrix)))
    if info < 0 or not np.isfinite(scale):
        raise np.linalg.LinAlgError("A covariance matrix has entries that are not finite.")
    jitter = 0.0
    while info:
        jitter = 10 * jitter or 1e-15
        if jitter > 1.01 * _MAX_JITTER:
            raise np.linalg.LinAlgError(
                "A covariance matrix is not positive definite, even with "
                f"{_MAX_JITTER:g} of its mean added to the diagonal. Scale the features, remove "
                "duplicates among the inputs, or narrow the bounds of the kernel's length "
                "scales and variances."
            )
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += jitter * scale
        factor, info = lapack.dpotrf(shifted, lower=1, overwrite_a=1)
    return factor, jitter


class DensePrior:
    """The exact prior: K is the covariance matrix of all training inputs.

    Parameters
    ----------
    kernel : scikit-learn kernel
        One that `check_kernel` accepts; later changes of it do no harm.
    X : ndarray of shape (n, n_features)
        Training inputs.

    Attributes
    ----------
    matrix : ndarray of shape (n, n)
        K.
    jitter : float
        0; the exact prior is never factorised itself.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._prior import DensePrior
    >>> prior = DensePrior(RBF(), np.array([[0.0], [9.0]]))
    >>> prior.condition(np.array([1.0, 3.0])).variance
    array([0.5 , 0.25])
    """

    jitter = 0.0

    def __init__(self, kernel: Any, X: FloatArray) -> None:
        self.kernel, self.inputs = clone(kernel), X
        self.matrix, self.pullback = covariance_with_pullback(self.kernel, X)

    def multiply(self, alpha: FloatArray) -> FloatArray:
        """``K alpha`` for each row of an array of shape (n,) or (n_classes, n)."""
        return alpha @ self.matrix

    def condition(self, precision: FloatArray) -> DenseConditional:
        """Multiply by Gaussian sites of these precisions, shape (n,), non-negative."""
        return DenseConditional(self, precision)


class DenseConditional:
    """`DensePrior` times Gaussian sites; see `Conditional`.

    Everything follows from ``B = I + W^1/2 K W^1/2``, whose eigenvalues are at least 1.

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Eq. 3.26-3.27;
    algorithms are those of this book.
    """

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
        """Upper triangle of B^-1, zero below, in the memory order of K."""
        inverse: FloatArray = lapack.dpotri(self._factor, lower=1)[0].T
        return inverse

    @property
    def inverse_diagonal(self) -> FloatArray:
        """``1 - W_ii S_ii``, the diagonal of B^-1."""
        return np.diagonal(self._inverse)

    @cached_property
    def variance(self) -> FloatArray:
        """Posterior variances, shape (n,)."""
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
        """``K^-1 S b = b - R K b`` for an array of shape (n,)."""
        scaled = self._root * self._prior.multiply(b)
        # Algorithm 3.1, line 7; Algorithm 3.6, line 3
        return b - self._root * lapack.dpotrs(self._factor, scaled, lower=1)[0]

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """``left' dK right - tr(R dK) / 2`` for all free hyperparameters."""
        # dK is symmetric: one triangle of R will do, its diagonal halved.
        # Algorithm 5.1, line 7; Algorithm 5.2, line 6
        G = self._inverse * -self._root[:, None]
        G *= self._root
        G[np.diag_indices_from(G)] *= 0.5
        blas.dger(1.0, right, left, a=G.T, overwrite_a=1)  # G += left right', in place
        return self._prior.pullback(G)

    def posterior(self, alpha: FloatArray) -> BinaryPosterior:
        """Posterior with mean ``K alpha`` at the training inputs and covariance S."""
        upper = self._inverse * self._root[:, None]
        upper *= self._root
        matrix = upper + np.triu(upper, 1).T
        return BinaryPosterior(self._prior.kernel, self._prior.inputs, alpha[None], matrix)
