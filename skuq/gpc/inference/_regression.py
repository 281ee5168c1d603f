"""Gaussian-process regression: kernels with noise, marginal likelihood, posterior.

The noise of targets is Gaussian; each target is therefore a Gaussian site. Inference is exact for
the given prior; with inducing points, this prior is a low-rank approximation. Equation numbers
refer to Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, or to Titsias,
"Variational Learning of Inducing Variables in Sparse Gaussian Processes", AISTATS 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel, KernelOperator, Sum, WhiteKernel

from skuq.base import FloatArray
from skuq.gpc.inference._kernels import check_kernel
from skuq.gpc.inference._laplace import Evidence
from skuq.gpc.inference._posterior import JointPosterior
from skuq.gpc.inference._priors import Conditional, DensePrior, LowRankPrior


def check_noisy_kernel(kernel: Any, n_features: int) -> None:
    """Raise unless the kernel is a supported kernel, optionally plus WhiteKernels."""
    latent = [part for part in summands(kernel) if not _is_noise(part)]
    if any(_contains_noise(part) for part in latent):
        raise ValueError(
            f"WhiteKernel represents the noise of targets; it can be added to a kernel, but not "
            f"multiplied, got {kernel}. Use the form k1 * k2 + WhiteKernel()."
        )
    if not latent:
        raise ValueError(
            f"The kernel {kernel} represents noise alone; add the covariance of a latent function, "
            "such as RBF()."
        )
    check_kernel(latent_kernel(kernel), n_features)


def summands(kernel: Any) -> list[Any]:
    """Summands of a kernel, in the order of their hyperparameters."""
    if type(kernel) is Sum:
        return summands(kernel.k1) + summands(kernel.k2)
    return [kernel]


def latent_kernel(kernel: Any) -> Any:
    """Covariance of the latent function: the kernel without WhiteKernels."""
    return reduce(add, (part for part in summands(kernel) if not _is_noise(part)))


def noise_level(kernel: Any) -> float:
    """Sum of the noise variances of all WhiteKernels."""
    return float(sum(part.noise_level for part in summands(kernel) if _is_noise(part)))


def _is_noise(kernel: Any) -> bool:
    return isinstance(kernel, WhiteKernel)


def _contains_noise(kernel: Any) -> bool:
    if isinstance(kernel, KernelOperator):
        return _contains_noise(kernel.k1) or _contains_noise(kernel.k2)
    return _is_noise(kernel)


class NoisyPrior(NamedTuple):
    """Prior of the latent function at the training inputs, and noise of the targets."""

    kernel: Kernel  # with noise
    prior: DensePrior | LowRankPrior
    noise: FloatArray  # (n,), noise variance of each target

    @classmethod
    def of(
        cls, kernel: Any, prior: Callable[[Any], DensePrior | LowRankPrior], alpha: FloatArray
    ) -> NoisyPrior:
        """Build the prior of a kernel; `alpha` (n,) is added to the kernel's noise variance."""
        return cls(kernel, prior(latent_kernel(kernel)), alpha + noise_level(kernel))

    def condition(self, weight: FloatArray) -> Conditional:
        """Condition the latent function on targets with these sample weights, shape (n,)."""
        return self.prior.condition(weight / self.noise)

    def gradient(self, latent: FloatArray, of_noise: float) -> FloatArray:
        """Combine derivatives with respect to latent hyperparameters and to the noise, in order."""
        found, position = [], 0
        for part in summands(self.kernel):
            count = len(part.theta)
            if _is_noise(part):
                found.append(np.full(count, part.noise_level * of_noise))
            else:
                found.append(latent[position : position + count])
                position += count
        return np.concatenate(found)


def regression_evidence(
    noisy: NoisyPrior,
    y: FloatArray,
    sample_weight: FloatArray,
    *,
    state: FloatArray | None = None,
    eval_gradient: bool = True,
) -> Evidence:
    """Log marginal likelihood and its gradient (Eq. 2.30 and 5.9)."""
    # y, sample_weight (n,); `state` is unused, because there is no iteration. With inducing points,
    # the value is the lower bound of Titsias, Eq. 9, which includes a penalty for the variance that
    # the inducing points do not explain. A sample of weight w stands for w equal samples, whose
    # joint likelihood is a constant times the likelihood of their mean.
    prior, noise = noisy.prior, noisy.noise
    conditional = noisy.condition(sample_weight)
    alpha = conditional.solve(y)
    value = -0.5 * (
        float(y @ alpha)
        + conditional.log_determinant
        + float(sample_weight @ np.log(2 * np.pi * noise))
    )
    precision = sample_weight / noise
    missed = prior.missed if isinstance(prior, LowRankPrior) else np.zeros(len(y))
    value -= 0.5 * float(precision @ missed)
    gradient = np.empty(0)
    if eval_gradient:
        own = precision * conditional.inverse_diagonal
        by_noise = 0.5 * ((alpha**2 - own) / sample_weight - (sample_weight - 1) / noise)
        by_noise += 0.5 * precision * missed / noise
        latent = conditional.gradient(0.5 * alpha, alpha)
        if isinstance(prior, LowRankPrior):
            latent = latent - 0.5 * prior.missed_gradient(precision)
        gradient = noisy.gradient(latent, float(by_noise.sum()))
    return Evidence(value, gradient, alpha, max(prior.jitter, conditional.jitter), True)


def regression_posterior(
    noisy: NoisyPrior, y: FloatArray, sample_weight: FloatArray
) -> JointPosterior:
    """Posterior of the latent function (Eq. 2.25 and 2.26)."""
    return noisy.condition(sample_weight).regression(y)
