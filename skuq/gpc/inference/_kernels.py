"""Covariance matrices of scikit-learn kernels, and contractions with their derivatives.

scikit-learn differentiates a kernel into an array of shape (n, n, n_theta), which for one
length scale per feature is larger than anything else that inference needs. All that inference
asks for is the inner product of each derivative with one matrix, and that takes a few matrix
products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Kernel,
    Matern,
    Product,
    Sum,
)

from skuq.base import FloatArray
from skuq.gpc.inference._kernel_leaves import LEAVES, Pullback

_SUPPORTED = (
    "RBF, Matern with nu=1.5 or nu=2.5, RationalQuadratic, ConstantKernel, and sums and "
    "products of these"
)


def check_kernel(kernel: Any, n_features: int) -> None:
    """Raise unless the kernel is one that this package can differentiate.

    Parameters
    ----------
    kernel : object
        What a user passed as kernel.
    n_features : int
        Number of columns of the inputs.

    Raises
    ------
    ValueError
        If a part of it is not supported, or has another number of length scales than one or
        one per feature.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._kernels import check_kernel
    >>> check_kernel(2.0 * RBF([1.0, 3.0]), n_features=2)
    """
    if type(kernel) in (Sum, Product):
        check_kernel(kernel.k1, n_features)
        check_kernel(kernel.k2, n_features)
        return
    if type(kernel) not in LEAVES:
        got = repr(kernel) if isinstance(kernel, Kernel) else f"{type(kernel).__name__} object"
        raise ValueError(
            f"Expected a kernel of sklearn.gaussian_process.kernels made of {_SUPPORTED}; got "
            f"{got}. Replace it by one of these."
        )
    if type(kernel) is Matern and kernel.nu not in (1.5, 2.5):
        raise ValueError(
            f"Expected Matern with nu=1.5 or nu=2.5, got nu={kernel.nu}; use one of them, or RBF "
            "for the limit of large nu."
        )
    scales = np.atleast_1d(getattr(kernel, "length_scale", 1.0))
    if len(scales) not in (1, n_features):
        raise ValueError(
            f"{type(kernel).__name__} has {len(scales)} length scales, but the inputs have "
            f"{n_features} features; give one length scale, or one per feature."
        )


def covariance(kernel: Any, X: FloatArray, Z: FloatArray | None = None) -> FloatArray:
    """Covariance of the latent function between inputs.

    Parameters
    ----------
    kernel : scikit-learn kernel
        One that `check_kernel` accepts.
    X : ndarray of shape (n, n_features)
        Inputs.
    Z : ndarray of shape (m, n_features), default=None
        Other inputs; None stands for X.

    Returns
    -------
    ndarray of shape (n, m)
        ``kernel(X, Z)``, up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._kernels import covariance
    >>> covariance(4.0 * RBF(), np.array([[0.0], [1.0]])).round(2)
    array([[4.  , 2.43],
           [2.43, 4.  ]])
    """
    return covariance_with_pullback(kernel, X, Z)[0]


def covariance_with_pullback(
    kernel: Any, X: FloatArray, Z: FloatArray | None = None
) -> tuple[FloatArray, Pullback]:
    """`covariance`, and the function that contracts its derivatives.

    The function takes G, the derivative of some number with respect to the covariance matrix
    and not necessarily symmetric, and returns ``sum_ab G_ab dK_ab / dtheta_j``, that number's
    derivative with respect to ``kernel.theta``, in its order. It keeps what the matrix was
    computed from, so that distances and exponentials are evaluated once for both.

    Parameters
    ----------
    kernel, X, Z
        As for `covariance`.

    Returns
    -------
    covariance : ndarray of shape (n, m)
    pullback : callable
        Takes an array of shape (n, m), returns one of shape (n_theta,).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._kernels import covariance_with_pullback
    >>> _, pullback = covariance_with_pullback(4.0 * RBF(), np.array([[0.0], [1.0]]))
    >>> pullback(np.ones((2, 2))).round(2)
    array([12.85,  4.85])
    """
    K, pullback = _node(kernel, X, Z)
    if np.ndim(K) == 0:
        K = np.full((len(X), len(X if Z is None else Z)), K)
    return K, pullback


def prior_variance(kernel: Any) -> float:
    """Variance of the latent function before any data, the same at every input.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._kernels import prior_variance
    >>> prior_variance(4.0 * RBF() + 1.0)
    5.0
    """
    if type(kernel) is Sum:
        return prior_variance(kernel.k1) + prior_variance(kernel.k2)
    if type(kernel) is Product:
        return prior_variance(kernel.k1) * prior_variance(kernel.k2)
    return float(kernel.constant_value) if type(kernel) is ConstantKernel else 1.0


def _node(kernel: Any, X: FloatArray, Z: FloatArray | None) -> tuple[Any, Pullback]:
    """Value and pullback of a part of the kernel; constants stay scalars."""
    if type(kernel) in (Sum, Product):
        first, second = _node(kernel.k1, X, Z), _node(kernel.k2, X, Z)
        return (_sum if type(kernel) is Sum else _product)(first, second)
    return LEAVES[type(kernel)](kernel, X, Z)


def _sum(first: tuple[Any, Pullback], second: tuple[Any, Pullback]) -> tuple[Any, Pullback]:
    def pullback(G: Any) -> FloatArray:
        return np.concatenate([first[1](G), second[1](G)])

    return first[0] + second[0], pullback


def _product(first: tuple[Any, Pullback], second: tuple[Any, Pullback]) -> tuple[Any, Pullback]:
    def pulled(node: tuple[Any, Pullback], other: Any, G: Any) -> FloatArray:
        if np.ndim(other) == 0:
            return other * node[1](G)  # a pullback is linear, so no matrix need be scaled
        if np.ndim(node[0]) == 0:
            return node[1](np.vdot(other, G))
        return node[1](G * other)

    def pullback(G: Any) -> FloatArray:
        return np.concatenate([pulled(first, second[0], G), pulled(second, first[0], G)])

    return first[0] * second[0], pullback
