"""Laplace approximation for binary targets.

Numbers of algorithms, lines and equations refer to Rasmussen and Williams, "Gaussian Processes for
Machine Learning", 2006.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skuq.base import FloatArray
from skuq.gpc.inference._likelihoods import LIKELIHOODS, Derivatives
from skuq.gpc.inference._posterior import Posterior
from skuq.gpc.inference._priors import Conditional, Prior

_MAX_NEWTON = 200
_MAX_HALVINGS = 40
_TOLERANCE = 1e-18  # relative gain of the objective; its square root is the error of the evidence
_ROUNDING = 1e-12  # smaller relative gains that do not decrease are rounding errors


class Evidence(NamedTuple):
    """Marginal likelihood of the targets for given hyperparameters."""

    value: float  # approximate log marginal likelihood, in nats
    # (n_theta,), derivative with respect to ``kernel.theta``; empty without `eval_gradient`
    gradient: FloatArray
    state: FloatArray  # warm start for an evaluation at nearby hyperparameters
    # Number added to the diagonal of a matrix to factorise it, relative to the diagonal's mean.
    jitter: float
    converged: bool  # whether the iteration converged


class _Mode(NamedTuple):
    """Mode of the latent values, ``f = K alpha``, and the posterior around it."""

    f: FloatArray
    alpha: FloatArray
    objective: float
    at: Derivatives
    conditional: Conditional
    converged: bool


def laplace_evidence(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
    eval_gradient: bool = True,
) -> Evidence:
    """Approximate log marginal likelihood and its gradient."""
    # y (n,), -1 or 1, sample_weight (n,), state (n,) or None
    # Algorithms 3.1 and 5.1
    mode = _find_mode(prior, y, likelihood, sample_weight, state)
    gradient = np.empty(0)
    if eval_gradient:
        # The determinant also depends on the hyperparameters through the mode.
        # Algorithm 5.1, line 9. The sign is plus, because W is minus the second derivative
        s_2 = 0.5 * mode.conditional.variance * mode.at.third
        # Lines 11-15 for all hyperparameters at once: s_2' (I + K W)^-1 = alpha(s_2)'
        left = 0.5 * mode.alpha + mode.conditional.alpha(s_2)
        gradient = mode.conditional.gradient(left, mode.alpha)
    # Algorithm 3.1, line 10
    value = mode.objective - 0.5 * mode.conditional.log_determinant
    jitter = max(prior.jitter, mode.conditional.jitter)
    return Evidence(value, gradient, mode.alpha, jitter, mode.converged)


def laplace_posterior(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
) -> Posterior:
    """Gaussian posterior around the mode of the latent function."""
    # Algorithm 3.2
    mode = _find_mode(prior, y, likelihood, sample_weight, state)
    return mode.conditional.posterior(mode.alpha)


def _find_mode(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    sample_weight: FloatArray | None,
    state: FloatArray | None,
) -> _Mode:
    """Newton's method (Algorithm 3.1) with step halving while the objective decreases."""

    def evaluate(alpha: FloatArray, f: FloatArray) -> tuple[float, Derivatives]:
        at = LIKELIHOODS[likelihood](y, f)
        if sample_weight is not None:
            at = Derivatives(*(sample_weight * value for value in at))
        return float(at.value.sum() - 0.5 * alpha @ f), at

    alpha = f = np.zeros(len(y))  # Line 2
    objective, at = evaluate(alpha, f)
    if state is not None:
        warm = prior.multiply(state)
        warm_objective, warm_at = evaluate(state, warm)
        if warm_objective > objective:
            alpha, f, objective, at = state, warm, warm_objective, warm_at
    gain = np.inf
    for _ in range(_MAX_NEWTON):
        conditional = prior.condition(-at.second)  # Lines 4 and 5: W = -at.second
        b = at.first - at.second * f  # Line 6
        alpha_step = conditional.alpha(b) - alpha  # Line 7
        f_step = prior.multiply(alpha_step)  # Line 8
        # Twice the gain predicted by the quadratic model.
        decrement = float(alpha_step @ f_step - at.second @ f_step**2)
        previous, gain = gain, decrement / (1.0 + abs(objective))
        if gain <= _TOLERANCE or _ROUNDING >= gain > 0.5 * previous:
            return _Mode(f, alpha, objective, at, conditional, True)
        for _ in range(_MAX_HALVINGS):
            trial, trial_at = evaluate(alpha + alpha_step, f + f_step)
            # Near the mode, full steps converge, although rounding may decrease the objective.
            if trial >= objective or gain <= _ROUNDING:
                break
            alpha_step, f_step = 0.5 * alpha_step, 0.5 * f_step
        else:
            break  # no measurable improvement
        alpha, f, objective, at = alpha + alpha_step, f + f_step, trial, trial_at
    return _Mode(f, alpha, objective, at, prior.condition(-at.second), gain < 1e-6)
