"""Laplace's approximation for several classes, with one kernel for all latent functions.

Arrays over classes and points have shape (n_classes, n). W, the negative second derivative of
the log-likelihood, is ``w (diag(p) - p p')`` at each point of weight w with probabilities p.
Algorithms and lines are those of Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skuq.base import FloatArray, IntArray
from skuq.gpc.inference._laplace import Evidence
from skuq.gpc.inference._likelihoods import SoftmaxLikelihood
from skuq.gpc.inference._posterior import FactoredPosterior, JointPosterior
from skuq.gpc.inference._prior import DensePrior
from skuq.gpc.inference._softmax_factors import DenseSoftmax, LowRankSoftmax
from skuq.gpc.inference._sparse import LowRankPrior

_MAX_NEWTON = 100
_MAX_HALVINGS = 40
_MAX_CONJUGATE = 200
_TOLERANCE = 1e-13  # of the objective; convergence is quadratic


class _Mode(NamedTuple):
    """Most probable latent values ``f = alpha K``, and the probabilities there."""

    alpha: FloatArray
    f: FloatArray
    proba: FloatArray
    objective: float


def softmax_evidence(
    prior: DensePrior | LowRankPrior,
    labels: IntArray,
    n_classes: int,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
    eval_gradient: bool = True,
) -> Evidence:
    """Approximate marginal likelihood and its gradient.

    Parameters
    ----------
    prior : DensePrior or LowRankPrior
        Prior of each latent function at the training inputs.
    labels : ndarray of shape (n,), int
        Class of each point, from 0 to ``n_classes - 1``.
    n_classes : int
        Number of latent functions.
    sample_weight : ndarray of shape (n,), default=None
        Non-negative factors of the log-likelihoods; None stands for ones.
    state : ndarray of shape (n_classes, n), default=None
        ``Evidence.state`` of an earlier call, to start from.
    eval_gradient : bool, default=True
        Whether to compute the gradient.

    Returns
    -------
    Evidence

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Algorithm 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._prior import DensePrior
    >>> from skuq.gpc.inference._softmax import softmax_evidence
    >>> prior = DensePrior(RBF(), np.array([[0.0], [1.0], [4.0]]))
    >>> round(softmax_evidence(prior, np.array([0, 1, 2]), 3).value, 3)
    -3.502
    """
    likelihood = SoftmaxLikelihood(labels, n_classes, sample_weight)
    mode, factors, converged = _find_mode(prior, likelihood, state)
    gradient = np.empty(0)
    if eval_gradient:
        # The modes move with the hyperparameters, and the determinant with the modes.
        in_f = likelihood.determinant_gradient(mode.proba, *factors.covariances())
        gradient = factors.gradient(0.5 * mode.alpha + factors.alpha(in_f), mode.alpha)
    value = mode.objective - 0.5 * factors.log_determinant  # Algorithm 3.3, line 16
    return Evidence(value, gradient, mode.alpha, max(prior.jitter, factors.jitter), converged)


def softmax_posterior(
    prior: DensePrior | LowRankPrior,
    labels: IntArray,
    n_classes: int,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
) -> FactoredPosterior | JointPosterior:
    """Gaussian posterior around the most probable latent functions.

    Parameters
    ----------
    prior, labels, n_classes, sample_weight, state
        As for `softmax_evidence`.

    Returns
    -------
    FactoredPosterior or JointPosterior

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Algorithm 3.4.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._prior import DensePrior
    >>> from skuq.gpc.inference._softmax import softmax_posterior
    >>> X = np.array([[0.0], [1.0], [4.0]])
    >>> posterior = softmax_posterior(DensePrior(RBF(), X), np.array([0, 1, 2]), 3)
    >>> posterior.moments(np.array([[4.0]]))[0].round(2)
    array([[-0.25, -0.24,  0.49]])
    """
    likelihood = SoftmaxLikelihood(labels, n_classes, sample_weight)
    mode, factors, _ = _find_mode(prior, likelihood, state)
    return factors.posterior(mode.alpha)


def _find_mode(
    prior: DensePrior | LowRankPrior, likelihood: SoftmaxLikelihood, state: FloatArray | None
) -> tuple[_Mode, DenseSoftmax | LowRankSoftmax, bool]:
    """Newton's method (Algorithm 3.3), first with approximate steps without factorisations."""
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
        # Lines 11-14, for the step instead of the next alpha
        alpha_step = factors.alpha(likelihood.gradient(mode.proba) - mode.alpha)
        advanced, done = _advance(likelihood, mode, alpha_step, prior.multiply(alpha_step))
        if done:
            return mode, factors, True  # not the advanced one, which has other factors
        mode = advanced
    return mode, _factors(prior, mode, likelihood), False


def _factors(
    prior: DensePrior | LowRankPrior, mode: _Mode, likelihood: SoftmaxLikelihood
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
    """Take the step, halved until the objective does not fall; return whether it was the last."""
    # Twice the gain that the quadratic model still predicts.
    decrement = np.vdot(alpha_step, f_step) + np.vdot(f_step, likelihood.curve(mode.proba, f_step))
    if decrement <= _TOLERANCE * (1.0 + abs(mode.objective)):
        return _evaluate(likelihood, mode.alpha + alpha_step, mode.f + f_step), True
    for _ in range(_MAX_HALVINGS):
        trial = _evaluate(likelihood, mode.alpha + alpha_step, mode.f + f_step)
        if trial.objective >= mode.objective:
            return trial, False
        alpha_step, f_step = 0.5 * alpha_step, 0.5 * f_step
    return mode, True  # rounding: no better point can be told from this one


def _conjugate_gradients(
    prior: DensePrior | LowRankPrior, likelihood: SoftmaxLikelihood, mode: _Mode
) -> tuple[FloatArray, FloatArray]:
    """Newton's step ``(I + W K)^-1 (g - alpha)``, roughly, and K times it.

    ``I + W K`` is self-adjoint and positive in the inner product that K defines, in which
    this is the method of conjugate gradients. Each iteration multiplies by K once.
    """
    residual = likelihood.gradient(mode.proba) - mode.alpha
    K_residual = prior.multiply(residual)
    norm = first = float(np.vdot(residual, K_residual))
    alpha, f = np.zeros_like(residual), np.zeros_like(residual)
    direction, K_direction = residual, K_residual
    tolerance = min(1e-2, first)  # tightens as the mode comes near: superlinear convergence
    for _ in range(_MAX_CONJUGATE):
        image = direction + likelihood.curve(mode.proba, K_direction)
        slope = float(np.vdot(image, K_direction))
        if not slope > 0:
            break  # K is zero, or zero but for rounding, in all directions that are left
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
