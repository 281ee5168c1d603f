"""Exact results for problems small enough to compute them."""

from itertools import product

import numpy as np

from skuq.gpc.inference._single_latent import ExpectationPropagation, Laplace, Regression
from skuq.gpc.inference._softmax import SoftmaxLaplace


def of_prior(inference):
    """Evidence and posterior as functions of the prior and the targets."""

    def evidence(prior, *targets, state=None, eval_gradient=True, **more):
        return inference(*targets, **more).evidence(prior, state, eval_gradient)

    def posterior(prior, *targets, state=None, **more):
        return inference(*targets, **more).posterior(prior, state)

    return evidence, posterior


laplace_evidence, laplace_posterior = of_prior(Laplace)
ep_evidence, ep_posterior = of_prior(ExpectationPropagation)
softmax_evidence, softmax_posterior = of_prior(SoftmaxLaplace)
regression_evidence, regression_posterior = of_prior(Regression)


def differences(function, theta, step=1e-4):
    """Central differences of fourth order."""
    shifts = step * np.eye(len(theta))
    return np.array(
        [
            (8 * (function(theta + s) - function(theta - s)))
            - (function(theta + 2 * s) - function(theta - 2 * s))
            for s in shifts
        ]
    ) / (12 * step)


def exact_posterior(K, likelihood, n_nodes=80, width=9.0):
    """Log-evidence, means and variances under N(0, K), by a sum over a grid of n axes.

    ``likelihood(f)`` takes latent values (n, ...) and returns likelihoods (...). The
    trapezoidal rule of a smooth density that vanishes at the ends is exact up to rounding.
    """
    axis = np.linspace(-width, width, n_nodes)
    z = np.stack(np.meshgrid(*[axis] * len(K), indexing="ij"))
    f = np.tensordot(np.linalg.cholesky(K), z, 1)
    density = np.exp(-0.5 * (z**2).sum(axis=0)) * likelihood(f)
    density *= ((axis[1] - axis[0]) / np.sqrt(2 * np.pi)) ** len(K)
    total = density.sum()
    mean = np.array([(density * g).sum() for g in f]) / total
    second = np.array([(density * g**2).sum() for g in f]) / total
    return np.log(total), mean, second - mean**2


def labelings(n):
    return [np.array(y) for y in product([-1.0, 1.0], repeat=n)]
