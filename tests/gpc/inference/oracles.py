"""Exact results for problems small enough to compute them."""

from itertools import pairwise

import numpy as np
from scipy.integrate import quad
from scipy.special import expit, log_expit, log_ndtr, ndtr
from scipy.stats import norm

from skuq.gpc.inference._single_latent import ExpectationPropagation, Laplace, Regression
from skuq.gpc.inference._softmax import SoftmaxLaplace

DISTRIBUTION = {"probit": ndtr, "logit": expit}
LOG_DENSITY = {"probit": log_ndtr, "logit": log_expit}


class Method:
    """Evidence and posterior as functions of the prior and the targets."""

    def __init__(self, inference):
        self.inference = inference

    def evidence(self, prior, *targets, state=None, eval_gradient=True, **more):
        return self.inference(*targets, **more).evidence(prior, state, eval_gradient)

    def posterior(self, prior, *targets, state=None, **more):
        return self.inference(*targets, **more).posterior(prior, state)


LAPLACE, EP = Method(Laplace), Method(ExpectationPropagation)
SOFTMAX, REGRESSION = Method(SoftmaxLaplace), Method(Regression)


def differences(function, theta, step=1e-4):
    weights = {1: 8, -1: -8, 2: -1, -2: 1}
    return [
        sum(weight * function(theta + k * shift) for k, weight in weights.items()) / (12 * step)
        for shift in step * np.eye(len(theta))
    ]


def gaussian_average(function, mean, sd):
    bends = (np.array([-40, -8, 0, 8, 40]) - mean) / sd
    edges = np.unique(np.clip([-12, *bends, 12], -12, 12))
    return sum(
        quad(lambda t: function(mean + sd * t) * norm.pdf(t), a, b, epsabs=1e-14, limit=500)[0]
        for a, b in pairwise(edges)
    )


def exact_posterior(K, likelihood, n_nodes=80, width=9.0):
    """Log-evidence, means and variances under N(0, K), by a sum over a grid of n axes.
    ``likelihood(f)`` takes latent values (n, ...) and returns likelihoods (...). The trapezoidal
    rule of a smooth density that vanishes at the ends is exact up to rounding."""
    axis = np.linspace(-width, width, n_nodes)
    z = np.stack(np.meshgrid(*[axis] * len(K), indexing="ij"))
    f = np.tensordot(np.linalg.cholesky(K), z, 1)
    density = np.exp(-0.5 * (z**2).sum(axis=0)) * likelihood(f)
    density *= ((axis[1] - axis[0]) / np.sqrt(2 * np.pi)) ** len(K)
    share, axes = density / density.sum(), [range(len(K)), range(1, len(K) + 1)]
    mean, second = (np.tensordot(share, f**k, axes) for k in (1, 2))
    return np.log(density.sum()), mean, second - mean**2
