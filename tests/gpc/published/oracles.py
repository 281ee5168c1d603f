"""Kernels, boxes and quadratic forms that the tests of the published bounds share."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from benchmarks.published_gpc.linear_programmes import relax
from skuq.gpc.bounds._latent_model import from_sklearn

SCALES = [0.7, 1.9, 1.1]
KERNELS = {
    "rbf": lambda d: RBF(1.2),
    "ard": lambda d: ConstantKernel(2.0) * RBF(SCALES[:d]),
    "matern32": lambda d: Matern(0.9, nu=1.5),
    "matern52": lambda d: Matern(SCALES[:d], nu=2.5),
    "rational": lambda d: RationalQuadratic(1.0, alpha=0.6),
    "sum": lambda d: 0.5 * RBF(SCALES[:d]) + Matern(0.5, nu=1.5) + ConstantKernel(0.3),
    "product": lambda d: RBF(SCALES[:d]) * RationalQuadratic(0.8, 1.5) * Matern(2.0, nu=2.5),
}
ROUNDING = 1e-9


def relaxed(kernel, inputs, lower, upper):
    return relax(from_sklearn(kernel, inputs.shape[1]), inputs, lower, upper)


def random_box(rng, d, half_width):
    centre = rng.normal(size=d)
    sides = half_width * rng.uniform(0.5, 1.0, d)
    return centre - sides, centre + sides


def sample(rng, lower, upper, n=400):
    corners = np.stack(np.meshgrid(*zip(lower, upper, strict=True)), -1).reshape(-1, len(lower))
    return np.vstack([rng.uniform(lower, upper, (n, len(lower))), corners])


def random_form(rng, kernel, inputs):
    """Inverse of a covariance with noise, as the posteriors have it."""
    return np.linalg.inv(kernel(inputs) + np.diag(rng.uniform(0.5, 3.0, len(inputs))))
