"""Models, regions and probabilities by other means than those of the package's bounds."""

import warnings

import numpy as np
import torch
from scipy.special import expit, ndtr, softmax
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq import RobustGPC
from skuq.gpc._estimator import Neighbourhood

ROUNDING = 1e-9  # of the probabilities computed here
ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}
KERNELS = {
    "rbf": lambda d: ConstantKernel(4.0) * RBF(0.7),
    "ard": lambda d: ConstantKernel(9.0) * RBF(np.linspace(0.6, 1.5, d)),
    "matern32": lambda d: ConstantKernel(4.0) * Matern(1.0, nu=1.5),
    "matern52": lambda d: ConstantKernel(4.0) * Matern(np.linspace(1.0, 1.6, d), nu=2.5),
    "rational": lambda d: ConstantKernel(4.0) * RationalQuadratic(0.8, 0.7),
    "sum": lambda d: ConstantKernel(2.0) * RBF(0.6) + 1.5 * RBF(2.0) + ConstantKernel(0.5),
    "product": lambda d: ConstantKernel(4.0) * RBF(1.5) * RationalQuadratic(1.2, 2.0),
    "mixed": lambda d: 3.0 * RBF(1.2) * Matern(2.0, nu=2.5) + 0.5 * Matern(1.5, nu=1.5),
}


def tensor(array):
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


def within(lower, values, upper, slack=0.0):
    lower, values, upper = (np.asarray(part) for part in (lower, values, upper))
    return bool(((lower - slack <= values) & (values <= upper + slack)).all())


def pairs_of(matrix):
    """Entries of symmetric matrices at the pairs ``j <= k``."""
    return matrix[..., *np.triu_indices(matrix.shape[-1])]


def full(pairs):
    n = int(np.sqrt(2 * pairs.shape[-1]))
    matrix, (rows, columns) = np.zeros((*pairs.shape[:-1], n, n)), np.triu_indices(n)
    matrix[..., rows, columns] = matrix[..., columns, rows] = pairs
    return matrix


def around(X, *arguments, **named):
    return Neighbourhood(*arguments, **named).around(X)


def fit_model(rng, kernel, likelihood="probit", d=2, n=16, n_classes=2, **parameters):
    """A classifier of labels that wave through the inputs; a seed and a kernel's name will do."""
    rng = np.random.default_rng(rng)
    kernel = KERNELS[kernel](d) if isinstance(kernel, str) else kernel
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X @ rng.normal(size=(d, n_classes))).argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)
    parameters = {"optimizer": None, "device": "cpu", "random_state": 0, **parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RobustGPC(kernel, likelihood=likelihood, **parameters).fit(X, y)


def moments(posterior, X):
    cross = posterior.kernel(X, posterior.inputs)
    reduced = np.einsum("ni,kij,nj->nk", cross, posterior.reduction(), cross, optimize=True)
    own = np.equal(*np.triu_indices(len(posterior.weights)))
    return cross @ posterior.weights.T, full(np.outer(posterior.kernel.diag(X), own) - reduced)


def probabilities(model, X):
    return average(model.likelihood_, *moments(model.posterior_, X))


def average(likelihood, mean, covariance):
    if mean.shape[1] == 3:
        return _three_classes(mean, covariance)
    if mean.shape[1] == 2:  # depends on the difference alone
        variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
        mean = mean[:, 1] - mean[:, 0]
    else:
        mean, variance = mean[:, 0], covariance[:, 0, 0]
    variance = np.maximum(variance, 0)
    if likelihood == "probit":
        p = ndtr(mean / np.sqrt(1 + variance))
    else:
        z, weights = _rule(np.sqrt(variance.max()))
        p = expit(mean[:, None] + np.sqrt(variance)[:, None] * z) @ weights
    return np.stack([1 - p, p], 1)


def _three_classes(mean, covariance):
    contrast = np.concatenate([np.eye(2), -np.ones((2, 1))], 1)
    values, vectors = np.linalg.eigh(contrast @ covariance @ contrast.T)
    factor = vectors * np.sqrt(np.maximum(values, 0))[:, None]
    z, weights = _rule(2 * np.abs(factor).max())
    pairs = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel()
    pairs, weights = pairs[weights > 1e-14], weights[weights > 1e-14]
    parts = []
    for rows in np.array_split(np.arange(len(mean)), 1 + len(mean) // 50):
        latent = np.zeros((len(rows), len(pairs), 3))
        latent[..., :2] = (mean[rows] @ contrast.T)[:, None] + pairs @ factor[rows].swapaxes(1, 2)
        parts.append(np.einsum("bnc,n->bc", softmax(latent, axis=-1), weights))
    return np.concatenate(parts)


def _rule(scale):
    """Trapezoidal rule that resolves a logistic function of a normal variable of this scale."""
    width = min(np.pi / (2 * max(scale, 1e-300)), 4.0)
    step = 2 * np.pi * width / 28
    z = step * np.arange(-np.ceil(8 / step), np.ceil(8 / step) + 1)
    weights = step * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z, weights / weights.sum()


def random_region(rng, X, norm, radius):
    """A request for regions in some features, one-sided ones if boxes, and their ends."""
    d = X.shape[1]
    features = np.sort(rng.choice(d, rng.integers(1, d + 1), replace=False))
    lower, upper = X - radius[:, None], X + radius[:, None]
    if norm == "box":
        lower, upper = (np.where(rng.random(X.shape) < 0.3, X, end) for end in (lower, upper))
    request = {"region": (lower, upper)} if norm == "box" else {"radius": radius, "norm": norm}
    free = np.isin(np.arange(d), features)
    ends = np.where(free, lower, X), np.where(free, upper, X)
    return {**request, "features": features}, *ends


def sample(rng, x, lower, upper, n, radius=None, norm="linf"):
    """Points of a region: uniform ones, corners, and ones with some features at the border."""
    points = lower + (upper - lower) * rng.random((n, len(x)))
    corners, border = rng.random((n // 3, len(x))), rng.random((n // 3, len(x)))
    points[: n // 3] = np.where(corners < 0.5, lower, upper)
    some = points[n // 3 : 2 * (n // 3)]
    some[:] = np.where(border < 0.3, lower, np.where(border < 0.6, upper, some))
    return inside(x, points, radius, norm)


def inside(x, points, radius=None, norm="linf"):
    """Points drawn towards x until they lie in the ball around it."""
    if norm == "linf" or radius is None:
        return points
    distance = np.linalg.norm(points - x, ORDERS[norm], axis=1)
    share = np.minimum(1, radius * (1 - 1e-14) / np.maximum(distance, 1e-300))
    return x + share[:, None] * (points - x)


def grid(lower, upper, n):
    axes = [np.linspace(a, b, n if a < b else 1) for a, b in zip(lower, upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(lower))
