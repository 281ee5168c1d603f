"""Covariance matrices of scikit-learn kernels, and inner products with their derivatives.

scikit-learn's gradient of a kernel, of shape (n, n, n_theta), would need more memory than the rest
of inference, which only needs the inner product of each derivative with one matrix.

Kernels are built from leaves: constants, and functions of a distance, such as RBF. For each leaf, a
function in `LEAVES` returns the covariance matrix (a scalar for a constant) and the pullback, which
maps a matrix G to its inner products with the derivatives by the leaf's free hyperparameters.
"""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels
from sklearn.gaussian_process.kernels import Kernel

from skuq.base import FloatArray

Pullback = Callable[[Any], FloatArray]

_FAR = 1e4  # if a squared distance from the centre is larger, differences are squared directly


def _constant(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[float, Pullback]:
    value = float(kernel.constant_value)
    fixed = kernel.hyperparameter_constant_value.fixed
    return value, lambda G: np.empty(0) if fixed else np.array([value * np.sum(G)])


class _Scaled:
    def __init__(self, kernel: Any, X: FloatArray, Z: FloatArray | None) -> None:
        scale = np.asarray(kernel.length_scale, np.float64)
        # Centred inputs have smaller squares, whose differences lose fewer digits.
        center = X.mean(axis=0)
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
            distance *= -2.0  # after the product: X @ X.T is exactly symmetric, (-2 X) @ X.T is not
        distance += squares[0][:, None]
        distance += squares[1]
        np.maximum(distance, 0.0, out=distance)
        if Z is None:
            np.fill_diagonal(distance, 0.0)
        self.squared = distance

    def length_scale_gradient(self, H: FloatArray) -> FloatArray:
        """Compute ``sum_ab H_ab (x_aj - z_bj)^2`` for each j, or its sum over j if isotropic."""
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
        slope = 3.0 * decay  # -2 times the derivative of K with respect to the squared distance
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
    kernels.ConstantKernel: _constant,
    kernels.Matern: _matern,
    kernels.RBF: _rbf,
    kernels.RationalQuadratic: _rational,
}


def check_kernel(kernel: Any, n_features: int) -> None:
    if type(kernel) in (kernels.Sum, kernels.Product):
        check_kernel(kernel.k1, n_features)
        check_kernel(kernel.k2, n_features)
        return
    if type(kernel) not in LEAVES:
        got = repr(kernel) if isinstance(kernel, Kernel) else f"{type(kernel).__name__} object"
        raise ValueError(
            "The kernel must be a sum or product of RBF, Matern with nu=1.5 or nu=2.5, "
            "RationalQuadratic and ConstantKernel of sklearn.gaussian_process.kernels; got "
            f"{got}. Replace it. In regression, a WhiteKernel may be added, but not multiplied."
        )
    if type(kernel) is kernels.Matern and kernel.nu not in (1.5, 2.5):
        raise ValueError(
            f"Expected Matern with nu=1.5 or nu=2.5, got nu={kernel.nu}; use one of these values, "
            "or RBF, the limit of large nu."
        )
    scales = np.atleast_1d(getattr(kernel, "length_scale", 1.0))
    if len(scales) not in (1, n_features):
        raise ValueError(
            f"{type(kernel).__name__} has {len(scales)} length scales, but the inputs have "
            f"{n_features} features; pass one length scale, or one per feature."
        )


def covariance(kernel: Any, X: FloatArray, Z: FloatArray | None = None) -> FloatArray:
    return covariance_with_pullback(kernel, X, Z)[0]


def covariance_with_pullback(
    kernel: Any, X: FloatArray, Z: FloatArray | None = None
) -> tuple[FloatArray, Pullback]:
    # The pullback maps G (n, m), the derivative of a scalar by K, to the derivative of this scalar
    # by `kernel.theta`, ``sum_ab G_ab dK_ab / dtheta_j``. G need not be symmetric.
    K, pullback = _node(kernel, X, Z)
    if np.ndim(K) == 0:
        K = np.full((len(X), len(X if Z is None else Z)), K)
    return K, pullback


def prior_variance(kernel: Any) -> float:
    if type(kernel) is kernels.Sum:
        return prior_variance(kernel.k1) + prior_variance(kernel.k2)
    if type(kernel) is kernels.Product:
        return prior_variance(kernel.k1) * prior_variance(kernel.k2)
    return float(kernel.constant_value) if type(kernel) is kernels.ConstantKernel else 1.0


def _node(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[Any, Pullback]:
    """Compute covariance and pullback of a part of the kernel; constants stay scalars."""
    if type(kernel) in (kernels.Sum, kernels.Product):
        first, second = _node(kernel.k1, X, Z), _node(kernel.k2, X, Z)
        return (_sum if type(kernel) is kernels.Sum else _product)(first, second)
    return LEAVES[type(kernel)](kernel, X, Z)


def _sum(first: tuple[Any, Pullback], second: tuple[Any, Pullback]) -> tuple[Any, Pullback]:
    return first[0] + second[0], lambda G: np.concatenate([first[1](G), second[1](G)])


def _product(first: tuple[Any, Pullback], second: tuple[Any, Pullback]) -> tuple[Any, Pullback]:
    def pulled(node: tuple[Any, Pullback], other: Any, G: Any) -> FloatArray:
        if np.ndim(other) == 0:
            return other * node[1](G)  # a pullback is linear, and its result smaller than G
        if np.ndim(node[0]) == 0:
            return node[1](np.vdot(other, G))
        return node[1](G * other)

    def pullback(G: Any) -> FloatArray:
        return np.concatenate([pulled(first, second[0], G), pulled(second, first[0], G)])

    return first[0] * second[0], pullback


def check_noisy_kernel(kernel: Any, n_features: int) -> None:
    """Raise unless the kernel is a supported kernel, possibly with WhiteKernels added to it."""
    if all(is_noise(part) for part in summands(kernel)):
        raise ValueError(
            f"The kernel {kernel} represents noise alone; add the covariance of a function to it, "
            "such as RBF()."
        )
    check_kernel(latent_kernel(kernel), n_features)


def summands(kernel: Any) -> list[Any]:
    if type(kernel) is kernels.Sum:
        return summands(kernel.k1) + summands(kernel.k2)
    return [kernel]


def latent_kernel(kernel: Any) -> Any:
    return reduce(add, (part for part in summands(kernel) if not is_noise(part)))


def noise_level(kernel: Any) -> float:
    return float(sum(part.noise_level for part in summands(kernel) if is_noise(part)))


def is_noise(kernel: Any) -> bool:
    return isinstance(kernel, kernels.WhiteKernel)
