"""Gaussian posteriors of one latent function: Laplace's method, EP, and regression.

Numbers of algorithms, lines and equations refer to Rasmussen and Williams, "Gaussian Processes for
Machine Learning", 2006, or, where stated, to Titsias, "Variational Learning of Inducing Variables
in Sparse Gaussian Processes", AISTATS 2009. A site of expectation propagation (EP) has a precision
and a shift, which the book calls tau and nu. In regression, each target is a site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from skuq.base import FloatArray
from skuq.gpc.inference._hyperparameters import Approximation, Inference
from skuq.gpc.inference._kernels import is_noise, latent_kernel, noise_level, summands
from skuq.gpc.inference._likelihoods import LIKELIHOODS, Derivatives, tilted_moments
from skuq.gpc.inference._posterior import JointPosterior
from skuq.gpc.inference._priors import Conditional, LowRankPrior, Prior

_MAX_NEWTON = 200
_MAX_HALVINGS = 40
_GAIN = 1e-18  # Newton's method ends at this relative gain; sqrt(_GAIN) is the evidence's error
_ROUNDING = 1e-12  # smaller gains end the iteration unless each is at most half the previous gain
_MAX_SWEEPS = 500
_TOLERANCE = 1e-7  # EP ends if no site's change, multiplied by `_scale`, is larger
_MIN_DAMPING = 0.05
_NEAR = 0.5  # a sweep with a larger change restarts the extrapolation
_HISTORY = 8  # number of sweeps from which the next sites are extrapolated


@dataclass(frozen=True)
class _BinaryInference(Inference):
    y: FloatArray  # (n,), -1 or 1
    likelihood: str
    sample_weight: FloatArray | None = None  # (n,)


class Laplace(_BinaryInference):
    """Laplace's method: Algorithms 3.1 and 5.1 for the evidence, 3.2 for the posterior."""

    def approximate(self, prior: Prior, state: FloatArray | None) -> Approximation:
        """Maximise by Newton's method (Algorithm 3.1); halve a step that would lower the value."""

        def evaluate(alpha: FloatArray, f: FloatArray) -> tuple[float, Derivatives]:
            at = LIKELIHOODS[self.likelihood](self.y, f)
            if self.sample_weight is not None:
                at = Derivatives(*(self.sample_weight * value for value in at))
            return float(at.value.sum() - 0.5 * alpha @ f), at

        alpha = f = np.zeros(len(self.y))  # Line 2
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
            # The decrement is twice the gain that the quadratic model predicts.
            decrement = float(alpha_step @ f_step - at.second @ f_step**2)
            previous, gain = gain, decrement / (1.0 + abs(objective))
            if gain <= _GAIN or _ROUNDING >= gain > 0.5 * previous:
                break
            for _ in range(_MAX_HALVINGS):
                trial, trial_at = evaluate(alpha + alpha_step, f + f_step)
                # Near the mode, accept full steps: these converge, but rounding may lower `trial`.
                if trial >= objective or gain <= _ROUNDING:
                    break
                alpha_step, f_step = 0.5 * alpha_step, 0.5 * f_step
            else:
                break  # no step length improves the objective
            alpha, f, objective, at = alpha + alpha_step, f + f_step, trial, trial_at
        else:
            conditional = prior.condition(-at.second)
        value = objective - 0.5 * conditional.log_determinant  # Line 10

        def gradient() -> FloatArray:
            # Algorithm 5.1, line 9: the determinant depends on the hyperparameters also through the
            # mode. The sign is plus, because W is minus the second derivative.
            s_2 = 0.5 * conditional.variance * at.third
            # Lines 11-15 for all hyperparameters at once: s_2' (I + K W)^-1 = alpha(s_2)'
            return conditional.gradient(0.5 * alpha + conditional.alpha(s_2), alpha)

        return Approximation(conditional, alpha, value, gradient, alpha, gain < 1e-6)


class _Sweep(NamedTuple):
    conditional: Conditional
    alpha: FloatArray
    evidence: float
    proposal: FloatArray  # (2, n), precisions and shifts of the updated sites
    change: float  # largest change of a precision or shift, multiplied by `_scale`


class ExpectationPropagation(_BinaryInference):
    """Expectation propagation (Section 3.6; Algorithms 3.6 and 5.2, lines 5-9)."""

    # A sweep updates all sites in parallel, with damped steps if full steps overshoot. The fixed
    # point is that of sequential updates.

    def approximate(self, prior: Prior, state: FloatArray | None) -> Approximation:
        """Repeat damped sweeps until the sites (2, n) converge, from the sites in `state`."""
        n = len(self.y)
        weight = np.ones(n) if self.sample_weight is None else self.sample_weight
        copies = np.ceil(weight)
        power = np.divide(weight, copies, out=np.ones(n), where=copies > 0)
        sites = np.zeros((2, n)) if state is None else state
        sweep, mixing = self._sweep(prior, sites, copies, power), _Mixing()
        for _ in range(_MAX_SWEEPS):
            if sweep.change <= _TOLERANCE or not np.isfinite(sweep.change):
                break
            sites = mixing.next(sites, sweep)
            sweep = self._sweep(prior, sites, copies, power)
        converged = sweep.change <= _TOLERANCE
        conditional, alpha, evidence = sweep[:3]
        gradient = partial(conditional.gradient, 0.5 * alpha, alpha)
        return Approximation(conditional, alpha, evidence, gradient, sites, converged)

    def _sweep(
        self, prior: Prior, sites: FloatArray, copies: FloatArray, power: FloatArray
    ) -> _Sweep:
        """Update all sites in parallel (Algorithm 3.5, lines 4-15)."""
        precision, shift = sites
        conditional = prior.condition(copies * precision)  # Line 13
        alpha = conditional.alpha(copies * shift)
        mean, variance = prior.multiply(alpha), conditional.variance  # Line 15
        # Posterior precision without one copy of the site, divided by that with all copies.
        count = np.maximum(copies, 1.0)
        left = (count - 1.0 + conditional.inverse_diagonal) / count
        cavity, spread = (mean - variance * shift) / left, variance / left  # Lines 5, 6
        tilted = tilted_moments(self.likelihood, self.y, cavity, spread, power)  # Line 7
        # Updated sites: their product with the cavity has the tilted moments (lines 8 and 9).
        shrinkage = np.maximum(1.0 + spread * tilted.second, np.finfo(float).eps)
        shifted = (tilted.first - cavity * tilted.second) / shrinkage
        proposal = np.array([-tilted.second / shrinkage, shifted])
        growth = 1.0 + spread * precision  # Line 17
        exponent = 0.5 * spread * shift**2 + cavity * shift
        exponent -= 0.5 * precision * cavity**2
        evidence = copies @ (tilted.log_mean + 0.5 * np.log(growth) - exponent / growth)
        evidence = evidence + 0.5 * (copies * shift) @ mean - 0.5 * conditional.log_determinant
        change = float(np.max(np.abs(proposal - sites) * _scale(variance) * (copies > 0)))
        return _Sweep(conditional, alpha, float(evidence), proposal, change)


def _scale(variance: FloatArray) -> FloatArray:
    """Return factors that make changes of precisions and shifts dimensionless, (2, n)."""
    return np.array([variance, np.sqrt(variance)])


class _Mixing:
    """Anderson acceleration of a fixed-point iteration; it restarts if changes increase."""

    # Walker and Ni, "Anderson Acceleration for Fixed-Point Iterations", SIAM Journal on Numerical
    # Analysis 49, 2011.

    def __init__(self) -> None:
        self._damping, self._best = 1.0, np.inf
        self._points: list[FloatArray] = []
        self._steps: list[FloatArray] = []

    def next(self, sites: FloatArray, sweep: _Sweep) -> FloatArray:
        """Extrapolate the next sites from the last sites and their updates."""
        if sweep.change > min(2.0 * self._best, _NEAR):
            self._points, self._steps = [], []
        if sweep.change > 2.0 * self._best:
            self._damping, self._best = max(0.5 * self._damping, _MIN_DAMPING), sweep.change
        self._best = min(self._best, sweep.change)
        step = sweep.proposal - sites
        self._points = [*self._points[-_HISTORY:], sites]
        self._steps = [*self._steps[-_HISTORY:], step]
        scale = _scale(sweep.conditional.variance)
        moved, changed = np.diff(self._points, axis=0), np.diff(self._steps, axis=0)
        columns = (changed * scale).reshape(len(changed), step.size).T
        share = np.linalg.lstsq(columns, (step * scale).ravel(), rcond=1e-10)[0]
        target: FloatArray = sites + self._damping * step
        target -= np.tensordot(share, moved + self._damping * changed, 1)
        target[0] = np.maximum(target[0], 0.0)
        return target


class NoisyPrior(NamedTuple):
    kernel: Kernel  # including WhiteKernels
    prior: Prior
    noise: FloatArray  # (n,), noise variance of each target

    @classmethod
    def of(cls, kernel: Any, prior: Callable[[Any], Prior], alpha: FloatArray) -> NoisyPrior:
        return cls(kernel, prior(latent_kernel(kernel)), alpha + noise_level(kernel))

    def gradient(self, latent: FloatArray, of_noise: float) -> FloatArray:
        """Order derivatives for latent and noise hyperparameters as in ``kernel.theta``."""
        found, position = [], 0
        for part in summands(self.kernel):
            count = len(part.theta)
            if is_noise(part):
                found.append(np.full(count, part.noise_level * of_noise))
            else:
                found.append(latent[position : position + count])
                position += count
        return np.concatenate(found)


@dataclass(frozen=True)
class Regression(Inference):
    """Exact inference for targets with Gaussian noise (Eq. 2.30 and 5.9)."""

    y: FloatArray  # (n,)
    sample_weight: FloatArray  # (n,)

    def approximate(self, noisy: NoisyPrior, state: FloatArray | None) -> Approximation:
        # `state` is unused, because there is no iteration. With inducing points, the value is the
        # lower bound of Titsias, Eq. 9, with a penalty for variance that inducing points do not
        # explain. A sample of weight w stands for w equal samples, whose joint likelihood is
        # proportional to that of one sample with noise variance ``noise / w``.
        prior, noise, weight = noisy.prior, noisy.noise, self.sample_weight
        precision = weight / noise
        conditional = prior.condition(precision)
        alpha = conditional.solve(self.y)
        fit, scale = float(self.y @ alpha), float(weight @ np.log(2 * np.pi * noise))
        value = -0.5 * (fit + conditional.log_determinant + scale)
        missed = prior.missed if isinstance(prior, LowRankPrior) else np.zeros(len(self.y))
        value -= 0.5 * float(precision @ missed)

        def gradient() -> FloatArray:
            own = precision * conditional.inverse_diagonal
            by_noise = 0.5 * ((alpha**2 - own) / weight - (weight - 1) / noise)
            by_noise += 0.5 * precision * missed / noise
            latent = conditional.gradient(0.5 * alpha, alpha)
            if isinstance(prior, LowRankPrior):
                latent = latent - 0.5 * prior.missed_gradient(precision)
            return noisy.gradient(latent, float(by_noise.sum()))

        return Approximation(conditional, alpha, value, gradient, alpha, True)

    def posterior(self, noisy: NoisyPrior, state: FloatArray | None = None) -> JointPosterior:
        """Return the posterior of the latent function (Eq. 2.25 and 2.26)."""
        return noisy.prior.condition(self.sample_weight / noisy.noise).regression(self.y)
