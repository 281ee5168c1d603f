"""Expectation propagation for binary targets.

Numbers of algorithms and lines refer to Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006. `shift` and `precision` are the natural parameters of sites, which the book calls
nu and tau.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skuq.base import FloatArray
from skuq.gpc.inference._laplace import Evidence
from skuq.gpc.inference._likelihoods import TiltedMoments, tilted_moments
from skuq.gpc.inference._posterior import Posterior
from skuq.gpc.inference._priors import Conditional, Prior

_MAX_SWEEPS = 500
_TOLERANCE = 1e-7  # largest change of the sites at convergence, in units of the marginal variance
_MIN_DAMPING = 0.05
_NEAR = 0.5  # a sweep with a larger change restarts the extrapolation
_HISTORY = 8  # number of sweeps used for extrapolation


class _Sites(NamedTuple):
    """Gaussian factors ``exp(shift f - precision f^2 / 2)``, one per copy of a point."""

    precision: FloatArray
    shift: FloatArray


class _Targets(NamedTuple):
    """Targets, repeated ceil(w) times for weight w, with the likelihood raised to a power <= 1."""

    likelihood: str
    y: FloatArray
    copies: FloatArray
    power: FloatArray


class _Sweep(NamedTuple):
    """Posterior and evidence for given sites, and the sites proposed by moment matching."""

    conditional: Conditional
    alpha: FloatArray
    evidence: float
    proposal: _Sites
    change: float


def ep_evidence(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
    eval_gradient: bool = True,
) -> Evidence:
    """Approximate log marginal likelihood and its gradient."""
    # y (n,), -1 or 1, sample_weight (n,), state (2, n) or None
    # Section 3.6 and Algorithm 5.2. All sites are updated in parallel, with damped steps where full
    # steps overshoot; the fixed point is the same as for sequential updates.
    sites, sweep, converged = _fixed_point(prior, y, likelihood, sample_weight, state)
    gradient = np.empty(0)
    if eval_gradient:
        # Algorithm 5.2, lines 5-9
        gradient = sweep.conditional.gradient(0.5 * sweep.alpha, sweep.alpha)
    jitter = max(prior.jitter, sweep.conditional.jitter)
    return Evidence(sweep.evidence, gradient, np.array(sites), jitter, converged)


def ep_posterior(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    *,
    sample_weight: FloatArray | None = None,
    state: FloatArray | None = None,
) -> Posterior:
    """Gaussian posterior whose marginals match the moments of the tilted distributions."""
    # Algorithm 3.6
    _, sweep, _ = _fixed_point(prior, y, likelihood, sample_weight, state)
    return sweep.conditional.posterior(sweep.alpha)


def _fixed_point(
    prior: Prior,
    y: FloatArray,
    likelihood: str,
    sample_weight: FloatArray | None,
    state: FloatArray | None,
) -> tuple[_Sites, _Sweep, bool]:
    """Repeat damped sweeps until the sites converge."""
    weight = np.ones(len(y)) if sample_weight is None else sample_weight
    copies = np.ceil(weight)
    power = np.divide(weight, copies, out=np.ones(len(y)), where=copies > 0)
    targets = _Targets(likelihood, y, copies, power)
    sites = _Sites(*(np.zeros((2, len(y))) if state is None else state))
    sweep, mixing = _sweep(prior, targets, sites), _Mixing()
    for _ in range(_MAX_SWEEPS):
        if sweep.change <= _TOLERANCE:
            return sites, sweep, True
        if not np.isfinite(sweep.change):
            break
        sites = mixing.next(sites, sweep)
        sweep = _sweep(prior, targets, sites)
    return sites, sweep, False


class _Mixing:
    """Anderson acceleration of a fixed-point iteration, restarted if changes increase."""

    # Walker and Ni, "Anderson Acceleration for Fixed-Point Iterations", SIAM Journal on Numerical
    # Analysis 49, 2011.

    def __init__(self) -> None:
        self._damping, self._best = 1.0, np.inf
        self._points: list[FloatArray] = []
        self._steps: list[FloatArray] = []

    def next(self, sites: _Sites, sweep: _Sweep) -> _Sites:
        """Propose the next sites from the history of sites and their updates."""
        if sweep.change > min(2.0 * self._best, _NEAR):
            self._points, self._steps = [], []
        if sweep.change > 2.0 * self._best:
            self._damping, self._best = max(0.5 * self._damping, _MIN_DAMPING), sweep.change
        self._best = min(self._best, sweep.change)
        point = np.array(sites)
        step = np.array(sweep.proposal) - point
        self._points = [*self._points[-_HISTORY:], point]
        self._steps = [*self._steps[-_HISTORY:], step]
        scale = np.array([sweep.conditional.variance, np.sqrt(sweep.conditional.variance)])
        moved, changed = np.diff(self._points, axis=0), np.diff(self._steps, axis=0)
        columns = (changed * scale).reshape(len(changed), step.size).T
        share = np.linalg.lstsq(columns, (step * scale).ravel(), rcond=1e-10)[0]
        target = point + self._damping * step
        target -= np.tensordot(share, moved + self._damping * changed, 1)
        return _Sites(np.maximum(target[0], 0.0), target[1])


def _sweep(prior: Prior, targets: _Targets, sites: _Sites) -> _Sweep:
    """Update all sites in parallel (Algorithm 3.5, lines 4-15)."""
    copies, shift = targets.copies, sites.shift
    conditional = prior.condition(copies * sites.precision)  # Line 13
    alpha = conditional.alpha(copies * shift)
    mean, variance = prior.multiply(alpha), conditional.variance  # Line 15
    # Ratio of the precision without one copy of the site to the precision with all copies.
    left = (np.maximum(copies, 1.0) - 1.0 + conditional.inverse_diagonal) / np.maximum(copies, 1.0)
    cavity_mean, cavity_variance = (mean - variance * shift) / left, variance / left  # Lines 5, 6
    tilted = tilted_moments(  # Line 7
        targets.likelihood, targets.y, cavity_mean, cavity_variance, targets.power
    )
    proposal = _matching(tilted, cavity_mean, cavity_variance)
    growth = 1.0 + cavity_variance * sites.precision  # Line 17
    exponent = 0.5 * cavity_variance * shift**2 + cavity_mean * shift
    exponent -= 0.5 * sites.precision * cavity_mean**2
    terms = tilted.log_mean + 0.5 * np.log(growth) - exponent / growth
    evidence = copies @ terms + 0.5 * (copies * shift) @ mean - 0.5 * conditional.log_determinant
    change = max(
        np.max(np.abs(proposal.precision - sites.precision) * variance * (copies > 0)),
        np.max(np.abs(proposal.shift - shift) * np.sqrt(variance) * (copies > 0)),
    )
    return _Sweep(conditional, alpha, float(evidence), proposal, float(change))


def _matching(tilted: TiltedMoments, mean: FloatArray, variance: FloatArray) -> _Sites:
    """Sites with which the cavity has the tilted moments (lines 8 and 9)."""
    shrinkage = np.maximum(1.0 + variance * tilted.second, np.finfo(float).eps)
    precision = -tilted.second / shrinkage
    return _Sites(precision, (tilted.first - mean * tilted.second) / shrinkage)
