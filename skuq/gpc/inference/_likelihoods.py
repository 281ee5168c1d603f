"""Likelihoods of targets given latent values, and averages of likelihoods over Gaussians.

`tilted_moments` computes averages for expectation propagation. `normal_nodes` returns nodes of the
trapezoidal rule with a proven error bound, for averages in predictions and bounds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import erfcx, expit, log_expit, log_ndtr, logsumexp
from torch import Tensor

from skuq.base import FloatArray, IntArray

_FAR = 30.0  # for z < -_FAR, the asymptotic series is more accurate than the formulas for other z
_WINDOW = 8.6  # standard deviations beyond which a normal density is below 1e-16 of its peak
_NARROW = 1e-150  # standard deviations are at least this, so that 1 / sd**2 does not overflow
_EDGE = {"probit": 10.0, "logit": 40.0}  # the log-likelihood bends between -_EDGE and _EDGE
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
MAX_CLASSES = 3  # limit for joint quadrature, whose cost is exponential in the number of classes
_MAX_NODES = 400_000
_REACH = 7.8  # standard deviations beyond which the normal probability is below 1e-14


class Derivatives(NamedTuple):
    """Log-likelihoods of targets, and their derivatives by the latent values, (n,) each."""

    value: FloatArray
    first: FloatArray
    second: FloatArray
    third: FloatArray


class TiltedMoments(NamedTuple):
    """Log of a likelihood's average over each Gaussian, and derivatives by its mean, (n,) each."""

    log_mean: FloatArray
    first: FloatArray
    second: FloatArray


def probit(y: FloatArray, f: FloatArray) -> Derivatives:
    """Evaluate the likelihood ``Phi(y f)``; Phi is the standard normal distribution function."""
    # y is -1 or 1. The second derivative in the result is <= 0, in spite of rounding.
    z = y * f
    with np.errstate(over="ignore"):
        ratio = np.sqrt(2.0 / np.pi) / erfcx(-z / np.sqrt(2.0))  # normal density / Phi
    curvature = np.clip(ratio * (ratio + z), 0.0, 1.0)
    third = curvature * (ratio + z) - ratio * (1.0 - curvature)
    far = z < -_FAR
    if far.any():
        # Asymptotic series in 1 / z, because the formulas above subtract almost equal numbers.
        u = 1.0 / z[far] ** 2
        curvature[far] = 1 - u * (1 - u * (6 - u * (50 - u * 518)))
        third[far] = -u / z[far] * (2 - u * (24 - u * (300 - u * 4144)))
    return Derivatives(log_ndtr(z), y * ratio, -curvature, y * third)


def logit(y: FloatArray, f: FloatArray) -> Derivatives:
    # y is -1 or 1. The second derivative in the result is <= 0.
    z = y * f
    wrong = expit(-z)
    curvature = wrong * expit(z)
    return Derivatives(log_expit(z), y * wrong, -curvature, curvature * np.tanh(0.5 * f))


LIKELIHOODS = {"probit": probit, "logit": logit}


class SoftmaxLikelihood:
    """Weighted log-likelihood of labels (n,) whose probabilities are ``softmax(f)``."""

    def __init__(
        self, labels: IntArray, n_classes: int, sample_weight: FloatArray | None = None
    ) -> None:
        self.weight = np.ones(len(labels)) if sample_weight is None else sample_weight
        self.target = self.weight * (labels == np.arange(n_classes)[:, None])

    def evaluate(self, f: FloatArray) -> tuple[float, FloatArray]:
        """Return the log-likelihood in nats, and the probabilities (n_classes, n)."""
        normaliser = logsumexp(f, axis=0)
        proba = np.exp(f - normaliser)
        return float(np.vdot(self.target, f) - self.weight @ normaliser), proba

    def gradient(self, proba: FloatArray) -> FloatArray:
        """Return the derivative of the log-likelihood with respect to f, shape (n_classes, n)."""
        return self.target - self.weight * proba

    def curve(self, proba: FloatArray, b: FloatArray) -> FloatArray:
        return self.weight * proba * (b - (proba * b).sum(axis=0))

    def determinant_gradient(
        self, proba: FloatArray, variance: FloatArray, covariance_with_mean: FloatArray
    ) -> FloatArray:
        """Return the derivative of ``-log |K^-1 + W| / 2`` with respect to f (n_classes, n)."""
        # W is minus the second derivative of the log-likelihood. `variance` contains the posterior
        # variances S_cc of the latent functions; `covariance_with_mean`, which is ``S p``, contains
        # their covariances with the p-weighted average of all functions. Both are (n_classes, n).
        h = variance - 2.0 * covariance_with_mean
        return -0.5 * self.curve(proba, h)


def tilted_moments(
    name: str, y: FloatArray, mean: FloatArray, variance: FloatArray, power: FloatArray
) -> TiltedMoments:
    """Compute the log of ``E[p(y | f) ** power]`` for ``f ~ N(mean, variance)``."""
    # y is -1 or 1, and power > 0. The second derivative in the result is <= 0.
    # The probit likelihood with power 1 has a closed form. Otherwise, Gauss-Legendre quadrature
    # with a relative error of about 1e-12 is used. Its panels surround the mode of the tilted
    # density ``p(y | f) ** power * N(f | mean, variance)``, and end where the likelihood bends.
    if name == "probit" and np.all(power == 1):
        scale = 1.0 / np.sqrt(1.0 + variance)
        at_mean = probit(y, mean * scale)
        return TiltedMoments(at_mean.value, at_mean.first * scale, at_mean.second * scale**2)
    # Derivatives are computed as expectations, under the tilted density, of derivatives of the
    # log-likelihood: differences of moments would lose digits. The integration variable is
    # ``t = (f - mean) / sd``, which also works in the limit of variance 0.
    mean, power = (y * mean)[:, None], power[:, None]
    sd = np.maximum(np.sqrt(variance), _NARROW)[:, None]

    def log_density(t: FloatArray) -> tuple[FloatArray, Derivatives]:
        at = LIKELIHOODS[name](np.ones(1), mean + sd * t)
        return power * at.value - 0.5 * t**2, at

    centre = _tilted_mode(name, mean, sd, power)
    top = log_density(centre)[0]
    reach = np.repeat([[-_WINDOW, _WINDOW]], len(y), axis=0)
    while (far := log_density(centre + 0.5 * reach)[0] < top - 0.5 * _WINDOW**2).any():
        reach[far] *= 0.5
    low, high = (centre + reach).T[..., None]
    bends = (np.array([-_EDGE[name], 0.0, _EDGE[name]]) - mean) / sd
    edges = np.sort(np.hstack([low, np.clip(bends, low, high), centre, high]), axis=1)
    half, middle = 0.5 * np.diff(edges), 0.5 * (edges[:, 1:] + edges[:, :-1])
    t = (middle[..., None] + half[..., None] * _NODES).reshape(len(y), -1)
    area = (half[..., None] * _WEIGHTS).reshape(len(y), -1)
    log_value, at = log_density(t)
    density = area * np.exp(log_value - top)
    total = density.sum(axis=1)
    density /= total[:, None]
    slope = power * at.first
    first = np.einsum("ij,ij->i", density, slope)
    spread = (slope - first[:, None]) ** 2 + power * at.second
    second = np.minimum(np.einsum("ij,ij->i", density, spread), 0.0)
    log_mean = np.log(total) + top[:, 0] - 0.5 * np.log(2.0 * np.pi)
    return TiltedMoments(log_mean, y * first, second)


def _tilted_mode(name: str, mean: FloatArray, sd: FloatArray, power: FloatArray) -> FloatArray:
    """Find the mode t of ``p(1 | mean + sd t) ** power N(t | 0, 1)`` to 1 % of the peak's width."""
    one, slope = np.ones(1), sd * power
    t = np.maximum(-mean, 0.0) / sd  # Newton's method converges monotonically from here
    for _ in range(100):
        at = LIKELIHOODS[name](one, mean + sd * t)
        bend = 1.0 - slope * sd * at.second
        step = (t - slope * at.first) / bend
        t = t - step
        if np.all(np.abs(step) * np.sqrt(bend) <= 1e-2):
            break
    return t


class Nodes(NamedTuple):
    """Nodes and weights of a quadrature rule for averages over standard normal variables."""

    points: Tensor  # (n, dimensions)
    weights: Tensor  # (n,), with sum 1 up to `error`
    error: float  # bound on the error of averages of the functions described in `normal_nodes`


def normal_nodes(scales: Sequence[float], accuracy: float, like: Tensor) -> Nodes:
    """Return nodes for averages of g, a sigmoid or softmax of a linear function of normal t_i."""
    # `scales` contains, for each variable t_i, the largest change of a difference between two
    # arguments of g if t_i increases by 1. `accuracy` is the target error per dimension. For
    # complex arguments within pi / 2 of the real axis, |g| <= 1, because ``exp(f_i - f_j)`` has a
    # positive real part. If t_i is within a of the real axis and h is the step, the error per
    # dimension is at most ``2 exp(a^2 / 2) / (exp(2 pi a / h) - 1)`` (Trefethen and Weideman, "The
    # Exponentially Convergent Trapezoidal Rule", SIAM Review 2014, Theorem 5.1).
    axes, masses = zip(*(_axis(scale, accuracy, like) for scale in scales), strict=True)
    dimensions = len(axes)
    points = torch.cartesian_prod(*axes).reshape(-1, dimensions)
    weights = torch.cartesian_prod(*masses).reshape(-1, dimensions).prod(-1)
    kept = weights > accuracy / 100 / len(weights)
    dropped = float(weights[~kept].sum())
    beyond = sum(math.erfc(float(axis[-1]) / math.sqrt(2)) for axis in axes)
    error = dimensions * (accuracy + 1e-13) + dropped + beyond
    return Nodes(points[kept], weights[kept], error)


def node_count(scales: Sequence[float], accuracy: float) -> int:
    like = torch.empty(0, dtype=torch.float64)
    return math.prod(len(_axis(scale, accuracy, like)[0]) for scale in scales)


def affordable_accuracy(scales: Sequence[float], accuracies: Sequence[float]) -> float | None:
    """Return the first accuracy that needs at most `_MAX_NODES` nodes, or None if all need more."""
    return next((a for a in accuracies if node_count(scales, a) <= _MAX_NODES), None)


def _axis(scale: float, accuracy: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return equidistant nodes of one variable, and their weights for the normal density."""
    width = min(math.pi / (2 * max(scale, 1e-300)), 4.0)
    height = 2 * math.exp(width**2 / 2)
    step = 2 * math.pi * width / math.log1p(height / accuracy)  # Eq. 28 of the proofs page
    reach = min(_REACH, math.sqrt(2 * math.log(100 / accuracy)) + 1)  # nodes end at this distance
    half = math.ceil(reach / step)
    nodes = step * torch.arange(-half, half + 1, dtype=like.dtype, device=like.device)
    return nodes, step / math.sqrt(2 * math.pi) * torch.exp(-(nodes**2) / 2)
