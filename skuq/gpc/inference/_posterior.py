"""Gaussian posteriors of the latent functions, and predictions.

At an input x, the latent means are linear functions of ``r(x) = k(inputs, x)``, and the covariances
are quadratic. Predictions are averages of the likelihood over these Gaussians. Line numbers refer
to Algorithm 3.4 of Rasmussen and Williams, "Gaussian Processes for Machine Learning".
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.stats import norm, qmc
from torch import Tensor

from skuq._information import entropy
from skuq.base import FloatArray
from skuq.devices import with_gradients
from skuq.gpc.inference import _softmax_averages as softmax
from skuq.gpc.inference._kernels import covariance, prior_variance
from skuq.gpc.inference._likelihoods import Nodes, affordable_accuracy, normal_nodes
from skuq.gpc.inference._softmax_averages import Split

_BATCH_ENTRIES = 4_000_000  # maximum number of entries in a temporary float64 array (32 MB)
_ACCURACIES = (1e-10, 1e-8, 1e-6)  # tried in this order until one does not need too many nodes
_ENTRIES = 500_000  # maximum number of entries in a temporary array, to fit into the CPU cache
TIE = 1e-9  # probabilities that differ by less than this count as equal
UNSURE = 0.0125  # tolerated error of probabilities for more than three classes
_LOG_DRAWS = 13  # log2 of the number of quasi-random points
# Largest standard deviation for which joint quadrature over three classes is faster than
# `three_class_probabilities`.
_NARROW = 1.5


@dataclass(frozen=True)
class FactoredPosterior:
    """Posterior of one latent function per class, from Laplace's method with an exact prior.

    Covariance of c and d at x: ``(c == d) (k(x, x) - r' E_c r) + (M^-1 E_c r)' (M^-1 E_d r)``.
    """

    kernel: Any  # with optimised hyperparameters, shared by all classes
    inputs: FloatArray  # (m, n_features), training inputs
    weights: FloatArray  # (L, m), coefficients of the means
    blocks: FloatArray  # (L, m, m), symmetric matrices E_c
    factor: FloatArray  # (m, m), M: lower Cholesky factor of the sum of all E_c

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean (n, L) and covariance (n, L, L) of the latent functions at each input."""
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
            cov[rows] = by_point @ by_point.swapaxes(1, 2)  # Lines 13, 15
            cov[rows, range(n_latent), range(n_latent)] += np.maximum(own, 0.0)
        return mean, cov

    def reduction(self) -> FloatArray:
        """Return a matrix R for each pair ``c <= d``, in the order of ``np.triu_indices(L)``."""
        # The covariance of c at x and d at z is ``(c == d) k(x, z) - r(x) @ R[pair] @ r(z)``.
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
    """Posterior with one matrix R per pair of latent functions, for whitened rows ``T r(x)``."""

    # With inducing points, the entries of r(x) are almost linearly dependent functions of x, and
    # cancellation in ``r' R r`` would lose all digits. The entries of a whitened row are
    # orthonormal functions, and R has entries of at most 1 (Eq. 30 of the guide's proofs page).

    kernel: Any  # with optimised hyperparameters, shared by all classes
    inputs: FloatArray  # (m, n_features), training inputs, or inducing points
    coefficients: FloatArray  # (L, m), coefficients of the means for whitened rows
    matrices: FloatArray  # (L (L + 1) / 2, m, m), R of each pair, for whitened rows
    whitener: FloatArray | None = None  # (m, m), T; None means the identity matrix

    @property
    def weights(self) -> FloatArray:
        return self.coefficients if self.whitener is None else self.coefficients @ self.whitener

    def moments(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
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
        if self.whitener is None:
            return self.matrices
        result: FloatArray = self.whitener.T @ self.matrices @ self.whitener
        return result


Posterior = FactoredPosterior | JointPosterior


def _cross_covariances(
    kernel: Any, inputs: FloatArray, X: FloatArray, entries: int
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield slices of X and rows ``r(x)``; the caller's arrays have `entries` entries per input."""
    size = max(1, _BATCH_ENTRIES // entries)
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        yield rows, covariance(kernel, X[rows], inputs)


@with_gradients()
def class_probabilities(likelihood: str, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Average the likelihood over Gaussian latent functions, (n, n_classes)."""
    # Shapes: mean (n, L), covariance (n, L, L); L is 1 for binary likelihoods. Errors are below
    # 1e-10 for two and three classes, and for four classes if differences of latent functions have
    # standard deviations of about 1. Otherwise, errors are about 1e-2. This is proven if the latent
    # functions are almost independent after removal of a common shift (Eq. 35 of the proofs page of
    # the user guide); otherwise, 8,192 quasi-random points are used, and the error is an estimate.
    if likelihood == "probit":
        z = torch.as_tensor(mean[:, 0] / np.sqrt(1 + covariance[:, 0, 0]))
        return torch.stack([torch.special.ndtr(-z), torch.special.ndtr(z)], -1).numpy()
    proba = np.empty((len(mean), mean.shape[1] + (mean.shape[1] == 1)))
    wide = np.zeros(len(mean), dtype=bool)
    if likelihood == "softmax" and mean.shape[1] == 3:
        wide = _principal(torch.as_tensor(covariance))[0].amax(-1).numpy() > _NARROW
        proba[wide] = softmax.three_class_probabilities(mean[wide], covariance[wide])
    elif likelihood == "softmax" and mean.shape[1] > 3:
        pairs = covariance[:, *np.triu_indices(mean.shape[1])]
        parts = softmax.split(torch.as_tensor(pairs), mean.shape[1])
        # The factor 0.8 leaves a margin for the error from normalising rows.
        wide = (softmax.correction_error(parts) < 0.8 * UNSURE).numpy()
        parts = Split(*(part[wide] for part in parts))
        found = softmax.corrected_probabilities(torch.as_tensor(mean[wide]), parts)
        proba[wide] = found.clamp(min=0).numpy()
    narrow = np.flatnonzero(~wide)
    for rows, latent, weights in _draws(mean[narrow], covariance[narrow]):
        if likelihood == "softmax":
            proba[narrow[rows]] = torch.softmax(latent, 1) @ weights
        else:
            proba[narrow[rows]] = torch.sigmoid(torch.cat([-latent, latent], 1)) @ weights
    return proba / proba.sum(axis=1, keepdims=True)


def most_probable(proba: FloatArray) -> NDArray[np.intp]:
    """Return the index of the most probable class of each row; the first class if several tie."""
    # Far from all data, probabilities are equal up to rounding, which must not decide the class.
    return (proba >= proba.max(axis=1, keepdims=True) - TIE).argmax(axis=1)


@with_gradients()
def expected_entropy(likelihood: str, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Average the entropy of the class probabilities over Gaussian latent functions, (n,), nats."""
    result = np.empty(len(mean))
    for rows, latent, weights in _draws(mean, covariance):
        result[rows] = entropy(_log_proba(likelihood, latent).movedim(1, -1)) @ weights
    return result


def _draws(
    mean: FloatArray, covariance: FloatArray
) -> Iterator[tuple[NDArray[np.intp], Tensor, Tensor]]:
    """Yield rows, nodes of their latent Gaussians (b, L, nodes), and weights of the nodes."""
    # Points with similar standard deviations share nodes, which do not depend on other points.
    center = torch.as_tensor(mean, dtype=torch.float64)
    roots, vectors = _principal(torch.as_tensor(covariance, dtype=torch.float64))
    # Entries of a unit vector differ by at most sqrt(2). With the factor 1.45 instead, round values
    # of prior variances do not lie on the boundary between two groups.
    reach = (1.45 * roots).clamp(min=2.0**-4)
    octaves, group = np.unique(reach.log2().ceil().numpy(), axis=0, return_inverse=True)
    for index, octave in enumerate(octaves):
        scales, factor = list(2.0**octave), vectors * roots[:, None]
        accuracy = affordable_accuracy(scales, _ACCURACIES)
        if accuracy is not None:
            nodes = normal_nodes(scales, accuracy, center)
        else:
            # Use the symmetric root, because it does not depend on the choice of eigenvectors.
            nodes, factor = _quasi_random(center), factor @ vectors.mT
        size = max(1, _ENTRIES // (len(nodes.weights) * (center.shape[1] + 1)))
        members = np.flatnonzero(group.ravel() == index)
        for rows in np.split(members, range(size, len(members), size)):
            yield rows, center[rows, :, None] + factor[rows] @ nodes.points.T, nodes.weights


def _principal(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviations (n, k) along the principal axes of centred functions, and these axes."""
    n_latent = covariance.shape[-1]
    if n_latent == 1:
        return covariance[:, 0].clamp(min=0).sqrt(), torch.ones_like(covariance)
    contrast = torch.eye(n_latent).to(covariance) - 1 / n_latent
    values, vectors = torch.linalg.eigh(contrast @ covariance @ contrast)
    return values[:, 1:].clamp(min=0).sqrt(), vectors[..., 1:]


def _quasi_random(like: Tensor) -> Nodes:
    uniform = qmc.Sobol(like.shape[1], seed=0).random_base2(_LOG_DRAWS)
    points = torch.as_tensor(norm.ppf(np.clip(uniform, 1e-12, 1 - 1e-12)))
    return Nodes(points, torch.full((len(points),), 1 / len(points)).to(like), math.inf)


def _log_proba(likelihood: str, latent: Tensor) -> Tensor:
    if likelihood == "softmax":
        return torch.log_softmax(latent, 1)
    log_cdf = torch.special.log_ndtr if likelihood == "probit" else torch.nn.functional.logsigmoid
    return torch.cat([log_cdf(-latent), log_cdf(latent)], 1)
