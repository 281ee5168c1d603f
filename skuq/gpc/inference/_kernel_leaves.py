"""The parts that kernels are composed of: constants and functions of one distance.

A part is evaluated by ``part(kernel, X, Z)``, which returns its matrix, or a scalar where it is
constant, and its pullback: the function that takes a matrix G to the inner products of G with
the derivatives in the part's free hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.base import FloatArray

Pullback = Callable[[Any], FloatArray]

_FAR = 1e4  # squared distance from the centre; differences of such squares keep 12 decimal places


def _constant(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[float, Pullback]:
    value = float(kernel.constant_value)
    fixed = kernel.hyperparameter_constant_value.fixed

    def pullback(G: Any) -> FloatArray:
        return np.empty(0) if fixed else np.array([value * np.sum(G)])

    return value, pullback


class _Scaled:
    """Inputs in units of the length scales, and their squared distances."""

    def __init__(self, kernel: Any, X: FloatArray, Z: FloatArray | None) -> None:
        scale = np.asarray(kernel.length_scale, np.float64)
        center = X.mean(axis=0)  # distances are differences of squares; keep these small
        self.X = (X - center) / scale
        self.Z = self.X if Z is None else (Z - center) / scale
        self.isotropic = scale.size == 1
        self.fixed = kernel.hyperparameter_length_scale.fixed
        squares = np.einsum("ij,ij->i", self.X, self.X), np.einsum("ij,ij->i", self.Z, self.Z)
        if max(square.max() for square in squares) > _FAR:
            variances = np.broadcast_to(scale**2, X.shape[1:])
            self.squared = cdist(X, X if Z is None else Z, "seuclidean", V=variances) ** 2
            return
        distance = (-2.0 * self.X) @ self.Z.T if Z is not None else self.X @ self.X.T
        if Z is None:
            distance *= -2.0  # after the product, which is symmetric to the last bit that way
        distance += squares[0][:, None]
        distance += squares[1]
        np.maximum(distance, 0.0, out=distance)
        if Z is None:
            np.fill_diagonal(distance, 0.0)
        self.squared = distance

    def length_scale_gradient(self, H: FloatArray) -> FloatArray:
        """``sum_ab H_ab (x_aj - z_bj)^2`` for each feature j, or over all features."""
        if self.fixed:
            return np.empty(0)
        if self.isotropic:
            return np.array([np.vdot(H, self.squared)])
        squares = H.sum(axis=1) @ self.X**2 + H.sum(axis=0) @ self.Z**2
        return squares - 2.0 * np.einsum("ij,ij->j", self.X, H @ self.Z)


def _rbf(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[FloatArray, Pullback]:
    scaled = _Scaled(kernel, X, Z)
    K = np.exp(-0.5 * scaled.squared)
    return K, lambda G: scaled.length_scale_gradient(G * K)


def _matern(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[FloatArray, Pullback]:
    scaled = _Scaled(kernel, X, Z)
    root = np.sqrt(2.0 * kernel.nu * scaled.squared)
    decay = np.exp(-root)
    if kernel.nu == 1.5:
        slope = 3.0 * decay  # minus twice the derivative in the squared distance
        K = (1.0 + root) * decay
    else:
        slope = 5.0 / 3.0 * (1.0 + root) * decay
        K = (1.0 + root + root**2 / 3.0) * decay
    return K, lambda G: scaled.length_scale_gradient(G * slope)


def _rational(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[FloatArray, Pullback]:
    scaled = _Scaled(kernel, X, Z)
    alpha, fixed = float(kernel.alpha), kernel.hyperparameter_alpha.fixed
    ratio = scaled.squared / (2.0 * alpha)
    logarithm = np.log1p(ratio)
    K = np.exp(-alpha * logarithm)

    def pullback(G: Any) -> FloatArray:
        weighted = G * K
        tail = weighted / (1.0 + ratio)
        in_alpha = alpha * (np.vdot(tail, ratio) - np.vdot(weighted, logarithm))
        in_scale = scaled.length_scale_gradient(tail)
        return in_scale if fixed else np.concatenate([[in_alpha], in_scale])

    return K, pullback


LEAVES: dict[type, Callable[..., tuple[Any, Pullback]]] = {
    ConstantKernel: _constant,
    Matern: _matern,
    RBF: _rbf,
    RationalQuadratic: _rational,
}
