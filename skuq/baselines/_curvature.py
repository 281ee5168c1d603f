"""Curvature of the training loss in the last layer, and the resulting Gaussian posterior.

The loss is a sum of negative log-likelihoods over samples. For a linear layer before a softmax,
the Hessian of the loss is the generalised Gauss-Newton matrix, which is positive semidefinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from skuq._networks import HeldOnDevice

# Largest number of elements of an intermediate result: 64 MiB in double precision.
_CHUNK = 2**23
# Outside these bounds the evidence is constant up to rounding, or has no maximum.
_PRECISION_BOUNDS = (1e-8, 1e8)


def _chunks(n_samples: int, numbers_per_sample: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(1, numbers_per_sample))
    return (slice(start, start + step) for start in range(0, n_samples, step))


def _with_constant(features: Tensor, bias: bool) -> Tensor:
    features = features.double()
    return torch.nn.functional.pad(features, (0, 1), value=1.0) if bias else features


def last_layer_curvature(
    features: Tensor, log_proba: Tensor, weight: Tensor, *, bias: bool = True
) -> Tensor:
    """Curvature of the cross-entropy with respect to a linear layer before a softmax.

    The curvature is ``sum_i weight_i (diag(p_i) - p_i p_i^T) (x) (f_i f_i^T)``, where f are the
    features, with a constant 1 appended for the bias.

    Shapes: `features` (n_samples, n_features), `log_proba` (..., n_samples, n_classes),
    `weight` (n_samples,); returns (..., n_classes * width, n_classes * width).

    Source: Bishop, "Pattern Recognition and Machine Learning", 2006, Eq. 4.110; Daxberger et
    al., "Laplace Redux", NeurIPS 2021, Section 2.
    """
    phi, p, weight = _with_constant(features, bias), log_proba.double().exp(), weight.double()
    models, n_classes, width = p.shape[:-2], p.shape[-1], phi.shape[1]
    total = phi.new_zeros(*models, n_classes, width, n_classes, width)
    for rows in _chunks(len(phi), math.prod(models) * n_classes * width):
        total += _softmax_curvature(phi[rows], p[..., rows, :], weight[rows])
    return total.reshape(*models, n_classes * width, n_classes * width)


def _softmax_curvature(phi: Tensor, p: Tensor, weight: Tensor) -> Tensor:
    """Sum over one chunk, shape (..., n_classes, width, n_classes, width)."""
    # Eq. 4.110 (Bishop)
    n_classes, width = p.shape[-1], phi.shape[1]
    crossed = ((weight.sqrt()[:, None] * p)[..., None] * phi[:, None]).flatten(-2)
    total = -(crossed.mT @ crossed).reshape(*p.shape[:-2], n_classes, width, n_classes, width)
    # Compute 1 - p as the sum of the probabilities of the other classes. This sum is accurate even
    # if p is close to 1.
    others = p @ (1 - torch.eye(n_classes, dtype=p.dtype, device=p.device))
    own = (weight[:, None] * p * others).mT[..., None] * phi
    total.diagonal(dim1=-4, dim2=-2).copy_((own.mT @ phi).movedim(-3, -1))
    return total


def evidence_prior_precision(eigenvalues: Tensor, squared_norm: float) -> float:
    """Prior precision that maximises the Laplace approximation of the evidence.

    At prior precision a, the log evidence is, up to a constant,
    ``1/2 sum_i log(a / (a + eigenvalue_i)) - a/2 squared_norm``. As a function of a, it has a
    single maximum.

    Source: MacKay, "Bayesian Interpolation", Neural Computation 1992, Section 4.4; Bishop,
    "Pattern Recognition and Machine Learning", 2006, Eq. 3.86, 3.91 and 3.92.
    """
    eigenvalues = eigenvalues.double().clamp_min(0)  # rounding may make eigenvalues negative
    low, high = map(math.log, _PRECISION_BOUNDS)
    log_precision = 0.0
    for _ in range(60):  # each step at least halves the error
        # gamma, the number of well-determined parameters: Eq. 3.91 (Bishop)
        gamma = float((eigenvalues / (eigenvalues + math.exp(log_precision))).sum())
        # At the maximum of the evidence, the precision is gamma / squared_norm: Eq. 3.92 (Bishop)
        target = math.log(max(gamma, 1e-300)) - math.log(max(squared_norm, 1e-300))
        log_precision = min(max((log_precision + target) / 2, low), high)
    return math.exp(log_precision)


def _factor(precision: Tensor) -> Tensor:
    """Matrix F such that ``F^T F`` is the inverse of a precision matrix."""
    cholesky, failed = torch.linalg.cholesky_ex(precision)
    if bool(failed.any()):
        raise ValueError(
            "The posterior precision is not positive definite; scale the features, for instance "
            "with StandardScaler, or use a larger `prior_precision`."
        )
    identity = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
    return torch.linalg.solve_triangular(cholesky, identity, upper=False)


@dataclass(frozen=True)
class LastLayerPosterior(HeldOnDevice):
    """Gaussian posterior of a linear layer; see `last_layer_posterior`.

    Attributes
    ----------
    mean : Tensor of shape (n_outputs, width), float64
        Weights of the layer; the last column is the bias if the layer has one.
    factor : Tensor of shape (n_outputs * width, n_outputs * width), float64
        Matrix F such that ``F^T F`` is the covariance.
    bias : bool
        Whether the layer has a bias.
    """

    mean: Tensor
    factor: Tensor
    bias: bool

    def _copy_to(self, device: torch.device) -> LastLayerPosterior:
        return LastLayerPosterior(self.mean.to(device), self.factor.to(device), self.bias)

    def outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and triangular covariance factor of the layer's Gaussian outputs at each input.

        Shapes: `features` (n_points, n_features); returns (n_points, n_outputs) and (n_points,
        n_outputs, n_outputs).
        """
        phi = _with_constant(features, self.bias)
        n_outputs, width = self.mean.shape
        by_feature = self.factor.reshape(-1, n_outputs, width).permute(2, 0, 1).flatten(1)
        root = (phi @ by_feature).reshape(len(phi), -1, n_outputs)
        # Use a QR decomposition: forming the covariance would square the condition number.
        upper = torch.linalg.qr(root, mode="r").R
        sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper)
        return phi @ self.mean.mT, (sign[..., None] * upper).mT


def last_layer_posterior(
    weight: Tensor, bias: Tensor | None, curvature: Tensor, prior_precision: float
) -> LastLayerPosterior:
    """Laplace approximation of the posterior of a linear layer.

    A Gaussian around the layer's weights, with precision
    ``curvature + prior_precision * identity``.

    Shapes: `weight` (n_outputs, n_features), `bias` (n_outputs,), `curvature` (n_outputs *
    width, n_outputs * width).

    Source: MacKay, "A Practical Bayesian Framework for Backpropagation Networks", 1992; Bishop,
    "Pattern Recognition and Machine Learning", 2006, Eq. 4.142 to 4.144; Daxberger et al.,
    "Laplace Redux", NeurIPS 2021.
    """
    columns = [weight] if bias is None else [weight, bias[:, None]]
    mean = torch.cat(columns, dim=1).detach().to(curvature.device).double()
    prior = prior_precision * torch.eye(mean.numel(), dtype=mean.dtype, device=mean.device)
    # Eq. 4.142 to 4.144 (Bishop)
    return LastLayerPosterior(mean, _factor(curvature.double() + prior), bias is not None)
