"""Laplace approximation for several classes, with one kernel for all latent functions.

Arrays over classes and points have the shape (n_classes, n). W is minus the second derivative of
the log-likelihood: ``w (diag(p) - p p')`` at a point of weight w with class probabilities p. S is
the posterior covariance ``(K^-1 + W)^-1``. Numbers of algorithms and lines refer to Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas, lapack

from skuq.base import FloatArray, IntArray
from skuq.gpc.inference._hyperparameters import Approximation, Inference
from skuq.gpc.inference._likelihoods import SoftmaxLikelihood
from skuq.gpc.inference._posterior import FactoredPosterior, JointPosterior
from skuq.gpc.inference._priors import DensePrior, LowRankPrior, Prior, cholesky_with_jitter

_MAX_NEWTON = 100
_MAX_HALVINGS = 40
_MAX_CONJUGATE = 200
_TOLERANCE = 1e-13  # Newton's method ends if twice the predicted relative gain is at most this


class _Mode(NamedTuple):
    """Latent values ``f = alpha K`` at or near the mode, with the class probabilities there."""

    alpha: FloatArray
    f: FloatArray
    proba: FloatArray
    objective: float


class SoftmaxLaplace(Inference):
    """Laplace's method for several classes (Algorithms 3.3 and 3.4)."""

    def __init__(
        self, labels: IntArray, n_classes: int, sample_weight: FloatArray | None = None
    ) -> None:
        self._likelihood = SoftmaxLikelihood(labels, n_classes, sample_weight)

    def approximate(self, prior: Prior, state: FloatArray | None) -> Approximation:
        """Find the mode, starting from `state`, an alpha (n_classes, n), if it is better than 0."""
        likelihood = self._likelihood
        mode, factors, converged = _find_mode(prior, likelihood, state)
        value = mode.objective - 0.5 * factors.log_determinant  # Algorithm 3.3, line 16

        def gradient() -> FloatArray:
            # The determinant depends on the hyperparameters also through the mode.
            in_f = likelihood.determinant_gradient(mode.proba, *factors.sweep[:2])
            return factors.gradient(0.5 * mode.alpha + factors.alpha(in_f), mode.alpha)

        return Approximation(factors, mode.alpha, value, gradient, mode.alpha, converged)


def _find_mode(
    prior: Prior, likelihood: SoftmaxLikelihood, state: FloatArray | None
) -> tuple[_Mode, DenseSoftmax | LowRankSoftmax, bool]:
    """Run Newton's method (Algorithm 3.3), first with approximate steps by conjugate gradients."""
    mode = _evaluate(likelihood, np.zeros_like(likelihood.target), likelihood.target * 0.0)
    if state is not None:
        warm = _evaluate(likelihood, state, prior.multiply(state))
        mode = max(mode, warm, key=lambda candidate: candidate.objective)
    for _ in range(_MAX_NEWTON):
        step = _conjugate_gradients(prior, likelihood, mode)
        mode, done = _advance(likelihood, mode, *step)
        if done:
            break
    for _ in range(_MAX_NEWTON):
        factors = _factors(prior, mode, likelihood)  # Lines 4-10
        # Lines 11-14 of the algorithm, which compute the step to the next alpha.
        alpha_step = factors.alpha(likelihood.gradient(mode.proba) - mode.alpha)
        advanced, done = _advance(likelihood, mode, alpha_step, prior.multiply(alpha_step))
        if done:
            return mode, factors, True  # the factors belong to `mode`, not to `advanced`
        mode = advanced
    return mode, _factors(prior, mode, likelihood), False


def _factors(
    prior: Prior, mode: _Mode, likelihood: SoftmaxLikelihood
) -> DenseSoftmax | LowRankSoftmax:
    if isinstance(prior, DensePrior):
        return DenseSoftmax(prior, mode.proba, likelihood.weight)
    return LowRankSoftmax(prior, mode.proba, likelihood.weight)


def _evaluate(likelihood: SoftmaxLikelihood, alpha: FloatArray, f: FloatArray) -> _Mode:
    value, proba = likelihood.evaluate(f)
    return _Mode(alpha, f, proba, value - 0.5 * float(np.vdot(alpha, f)))


def _advance(
    likelihood: SoftmaxLikelihood, mode: _Mode, alpha_step: FloatArray, f_step: FloatArray
) -> tuple[_Mode, bool]:
    """Take a Newton step, halved until the objective is not lower; also return whether to stop."""
    # The decrement is twice the gain that the quadratic model predicts.
    decrement = np.vdot(alpha_step, f_step) + np.vdot(f_step, likelihood.curve(mode.proba, f_step))
    if decrement <= _TOLERANCE * (1.0 + abs(mode.objective)):
        return _evaluate(likelihood, mode.alpha + alpha_step, mode.f + f_step), True
    for _ in range(_MAX_HALVINGS):
        trial = _evaluate(likelihood, mode.alpha + alpha_step, mode.f + f_step)
        if trial.objective >= mode.objective:
            return trial, False
        alpha_step, f_step = 0.5 * alpha_step, 0.5 * f_step
    return mode, True  # no step length improves the objective


def _conjugate_gradients(
    prior: Prior, likelihood: SoftmaxLikelihood, mode: _Mode
) -> tuple[FloatArray, FloatArray]:
    """Approximate the Newton step ``(I + W K)^-1 (g - alpha)``; also return K times this step."""
    # The method applies because I + W K is symmetric and positive in the inner product ``a' K b``.
    residual = likelihood.gradient(mode.proba) - mode.alpha
    K_residual = prior.multiply(residual)
    norm = first = float(np.vdot(residual, K_residual))
    alpha, f = np.zeros_like(residual), np.zeros_like(residual)
    direction, K_direction = residual, K_residual
    tolerance = min(1e-2, first)  # accurate steps near the mode make convergence superlinear
    for _ in range(_MAX_CONJUGATE):
        image = direction + likelihood.curve(mode.proba, K_direction)
        slope = float(np.vdot(image, K_direction))
        if not slope > 0:
            break  # K is zero up to rounding in all remaining directions
        size = norm / slope
        alpha, f = alpha + size * direction, f + size * K_direction
        residual = residual - size * image
        K_residual = prior.multiply(residual)
        norm, previous = float(np.vdot(residual, K_residual)), norm
        if norm <= tolerance * first:
            break
        direction = residual + norm / previous * direction
        K_direction = K_residual + norm / previous * K_direction
    return alpha, f


class DenseSoftmax:
    """A `DensePrior` per latent function, conditioned on a Gaussian of joint precision W."""

    # The blocks of ``R = (K + W^-1)^-1`` are ``(c == d) E_c - E_c (sum E)^-1 E_d``, where
    # ``E_c = (K + D_c^-1)^-1`` and D_c is the diagonal of W. Lower triangles are stored.

    def __init__(self, prior: DensePrior, proba: FloatArray, weight: FloatArray) -> None:
        self._prior, self._proba, self._weight = prior, proba, weight
        self.blocks: list[FloatArray] = []
        # 1 - D V, where D is the diagonal of W, and V the posterior variance if W were D.
        self._own = np.empty_like(proba)
        self.log_determinant = self.jitter = 0.0
        for root, own in zip(np.sqrt(weight * proba), self._own, strict=True):
            matrix = (prior.matrix * root[:, None]) * root
            matrix[np.diag_indices_from(matrix)] += 1.0
            factor = self._factorised(matrix.T)  # Algorithm 3.3, line 6
            block = lapack.dpotri(factor, lower=1, overwrite_c=1)[0]
            own[:] = np.diagonal(block)
            block *= root
            block *= root[:, None]  # Line 7
            self.blocks.append(block)
        total = self._sum_of_blocks()
        # Rows of points with weight 0 are 0 in all blocks: a 1 on the diagonal avoids singularity.
        total[np.diag_indices_from(total)] += weight == 0
        self.factor = self._factorised(total)  # Line 10
        with np.errstate(divide="ignore"):
            log_weight = np.where(weight > 0, np.log(weight), 0.0)
        self.log_determinant -= float(log_weight.sum())

    def _sum_of_blocks(self) -> FloatArray:
        total = self.blocks[0].copy(order="F")
        for block in self.blocks[1:]:
            total += block
        return total

    def _factorised(self, matrix: FloatArray) -> FloatArray:
        factor, jitter = cholesky_with_jitter(matrix)
        self.jitter = max(self.jitter, jitter)
        self.log_determinant += 2.0 * float(np.log(np.diagonal(factor)).sum())
        return factor

    def alpha(self, b: FloatArray) -> FloatArray:
        """Compute ``(I + W K)^-1 b``, shape (n_classes, n) (Algorithm 3.3, lines 12 and 13)."""
        scaled = b @ self._prior.matrix
        pairs = list(zip(self.blocks, scaled, strict=True))
        own = [blas.dsymv(1.0, E, v, lower=1) for E, v in pairs]
        common = lapack.dpotrs(self.factor, np.sum(own, axis=0), lower=1)[0]
        own = [blas.dsymv(1.0, E, common - v, lower=1) for E, v in pairs]
        result: FloatArray = b + own
        return result

    @cached_property
    def sweep(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return variances S_cc, covariances ``S p``, and one triangle of sum_c R_cc."""
        # Off-diagonal entries of the triangle are doubled. Covariances are inaccurate if p is 0 up
        # to rounding, but the effect of a covariance is proportional to its p.
        inverse = lapack.dtrtri(self.factor, lower=1)[0]
        by_weight = _reciprocal(self._weight)
        mean_part = inverse - self.factor.T * by_weight
        variance, with_mean = np.empty_like(self._proba), np.empty_like(self._proba)
        G = self._sum_of_blocks()
        for c, (block, p) in enumerate(zip(self.blocks, self._proba, strict=True)):
            full = block + np.tril(block, -1).T
            solved = blas.dtrsm(1.0, self.factor, full.T, lower=1, overwrite_b=1)
            G = blas.dsyrk(-1.0, solved, beta=1.0, c=G, trans=1, lower=1, overwrite_c=1)
            by_diagonal = by_weight * _reciprocal(p)
            solved *= -by_diagonal
            solved += inverse
            alone = (1.0 - self._own[c]) * by_diagonal
            variance[c] = alone + np.einsum("ij,ij->j", solved, solved)
            with_mean[c] = alone * p + np.einsum("ij,ij->j", solved, mean_part)
        G *= 2.0
        G[np.diag_indices_from(G)] *= 0.5
        return variance, with_mean, G.T

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self._prior.pullback(left.T @ right - 0.5 * self.sweep[2])

    def posterior(self, alpha: FloatArray) -> FactoredPosterior:
        blocks = np.array([lower + np.tril(lower, -1).T for lower in self.blocks])
        return FactoredPosterior(self._prior.kernel, self._prior.inputs, alpha, blocks, self.factor)


class LowRankSoftmax:
    """As `DenseSoftmax`, with `LowRankPrior`."""

    # All results are computed from ``H = I + features' W features``, with n_classes**2 blocks.

    def __init__(self, prior: LowRankPrior, proba: FloatArray, weight: FloatArray) -> None:
        self._prior, self._proba, self._weight = prior, proba, weight
        n_classes, m = len(proba), prior.features.shape[1]
        H = np.zeros((n_classes, m, n_classes, m))
        for c, d in zip(*np.triu_indices(n_classes), strict=True):
            curvature = weight * proba[c] * ((c == d) - proba[d])
            H[c, :, d] = H[d, :, c] = prior.features.T @ (curvature[:, None] * prior.features)
        matrix = H.reshape(n_classes * m, n_classes * m)
        matrix[np.diag_indices_from(matrix)] += 1.0
        self._factor, jitter = cholesky_with_jitter(matrix)
        self.jitter = max(prior.jitter, jitter)
        self.log_determinant = 2.0 * float(np.log(np.diagonal(self._factor)).sum())

    def alpha(self, b: FloatArray) -> FloatArray:
        features = self._prior.features
        projected = b @ features
        solved = lapack.dpotrs(self._factor, projected.ravel(), lower=1)[0]
        curved = solved.reshape(projected.shape) @ features.T
        curved -= (self._proba * curved).sum(axis=0)
        return b - self._weight * self._proba * curved

    @cached_property
    def _inverse(self) -> FloatArray:
        shape = (len(self._proba), self._prior.features.shape[1]) * 2
        inverse = lapack.dpotrs(self._factor, np.eye(len(self._factor)), lower=1)[0]
        return np.ascontiguousarray(inverse).reshape(shape)

    @cached_property
    def sweep(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return variances and covariances as `DenseSoftmax`, and ``(sum_c R_cc) @ features``."""
        features, proba = self._prior.features, self._proba
        variance, with_mean = np.empty_like(proba), np.zeros_like(proba)
        cross = np.zeros_like(features)
        for c, d in np.ndindex(len(proba), len(proba)):
            product = features @ self._inverse[d, :, c]
            covariance = np.einsum("ij,ij->i", product, features)
            with_mean[d] += covariance * proba[c]
            if c == d:
                variance[c] = covariance
            cross += (self._weight * proba[c] * ((c == d) - proba[d]))[:, None] * product
        return variance, with_mean, cross

    def gradient(self, left: FloatArray, right: FloatArray) -> FloatArray:
        a, b = left @ self._prior.features, right @ self._prior.features
        cross = left.T @ b + right.T @ a - self.sweep[2]
        traces = np.einsum("cicj->ij", self._inverse)
        own = 0.5 * (len(left) * np.eye(len(traces)) - traces) - a.T @ b
        return self._prior.gradient(cross, own)

    def posterior(self, alpha: FloatArray) -> JointPosterior:
        prior, rows = self._prior, np.triu_indices(len(alpha))
        matrices = np.empty((len(rows[0]), *prior.factor.shape))
        for out, c, d in zip(matrices, *rows, strict=True):
            inner = np.eye(len(out)) * (c == d) - self._inverse[c, :, d]
            out[:] = 0.5 * (inner + inner.T) if c == d else inner
        means = alpha @ prior.features
        return JointPosterior(prior.kernel, prior.inputs, means, matrices, prior.whitener())


def _reciprocal(values: FloatArray) -> FloatArray:
    """Return ``1 / values``, or 0 for values so small that the result could overflow."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 1e-100)
