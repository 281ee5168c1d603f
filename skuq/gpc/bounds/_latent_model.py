"""Posterior of the latent functions as tensors, with the constants that bounds need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.bounds._stationary import StationaryKernel, from_sklearn
from skuq.gpc.inference._posterior import JointPosterior, Posterior

UNIT = 2.0**-53  # relative rounding error of one float64 operation


@dataclass(frozen=True)
class Whitening:
    """Map from ``r(x)`` to whitened rows ``T r(x)``, which are almost orthonormal functions."""

    matrix: Tensor  # (m, m), T
    # Bound c on the largest eigenvalue of ``T K T'`` (Eq. 30): the length of a whitened row is at
    # most sqrt(c) times the norm in the kernel's Hilbert space
    excess: float
    coefficients: Tensor  # (L,), norms of the coefficients of the means
    spectral: Tensor  # (n_pairs,), spectral norms of the matrices R
    frobenius: Tensor  # (n_pairs,), Frobenius norms of the matrices R

    def to(self, device: torch.device) -> Whitening:
        """Copy to a device."""
        tensors = (self.coefficients, self.spectral, self.frobenius)
        return Whitening(
            self.matrix.to(device), self.excess, *(tensor.to(device) for tensor in tensors)
        )


@dataclass(frozen=True)
class LatentModel:
    """Tensors of a posterior on one device, with constants that bounds need."""

    # Bounds hold for the function that these float64 numbers define in exact arithmetic.

    kernel: StationaryKernel  # prior covariance
    inputs: Tensor  # (m, n_features), training inputs or inducing points
    weights: Tensor  # (L, m), coefficients of the means
    # (L (L + 1) / 2, m, m), symmetric matrices R of the pairs ``c <= d``, in the order of
    # ``np.triu_indices(L)``
    reduction: Tensor
    norms: Tensor  # (L,), upper bounds on the norms of the means in the kernel's Hilbert space
    # The covariance plus `varsigma` times the prior covariance is positive semi-definite (Eq. 2 of
    # the proofs page)
    varsigma: float
    # If set, `weights` and `reduction` are coefficients of the whitened rows, not of ``r(x)``
    whitening: Whitening | None = None

    @classmethod
    def from_posterior(cls, posterior: Posterior, device: torch.device) -> LatentModel:
        """Convert a posterior; the cost is a few matrix decompositions."""
        inputs = torch.tensor(posterior.inputs, dtype=torch.float64)
        kernel = from_sklearn(posterior.kernel, inputs.shape[1])
        if isinstance(posterior, JointPosterior) and posterior.whitener is not None:
            return cls._whitened(kernel, inputs, posterior, posterior.whitener, device)
        weights = torch.tensor(posterior.weights, dtype=torch.float64)
        matrices = torch.tensor(posterior.reduction(), dtype=torch.float64)
        inputs_at_origin = inputs - inputs.mean(0)  # minimises rounding errors of distances
        gram = kernel(inputs_at_origin, inputs_at_origin)
        # Eq. 27, with a margin for two nested sums of products
        unit = 4 * (sum(inputs.shape) + 32) * UNIT * (1 + kernel.reach(inputs_at_origin))
        squared = ((weights @ gram) * weights).sum(-1)  # Eq. 1
        rounding = unit * ((weights.abs() @ gram) * weights.abs()).sum(-1)
        norms = (squared.clamp(min=0) + rounding).sqrt()
        varsigma = _indefiniteness(gram, matrices, len(weights), unit)
        reduction = (matrices + matrices.mT) / 2  # this leaves ``r(x)' R r(x)`` unchanged
        inputs, weights = inputs.to(device), weights.to(device)
        return cls(
            kernel.to(device), inputs, weights, reduction.to(device), norms.to(device), varsigma
        )

    @classmethod
    def _whitened(
        cls,
        kernel: StationaryKernel,
        inputs: Tensor,
        posterior: JointPosterior,
        whitener: FloatArray,
        device: torch.device,
    ) -> LatentModel:
        T = torch.tensor(whitener, dtype=torch.float64)
        weights = torch.tensor(posterior.coefficients, dtype=torch.float64)
        matrices = torch.tensor(posterior.matrices, dtype=torch.float64)
        excess = _largest_of_whitened(kernel, inputs, T)
        eigenvalues = torch.linalg.eigvalsh(_joint(matrices, len(weights)))
        slack = 8 * len(eigenvalues) * UNIT * float(eigenvalues.abs().max())
        most, least = float(eigenvalues[-1]) + slack, float(eigenvalues[0]) - slack
        varsigma = max(0.0, most * excess - 1) + max(0.0, -least) * excess  # Eq. 30
        coefficients = torch.linalg.vector_norm(weights, dim=-1) * (1 + 1e-12)
        whitening = Whitening(
            T,
            excess,
            coefficients,
            torch.linalg.matrix_norm(matrices, 2) * (1 + 1e-9),
            torch.linalg.matrix_norm(matrices) * (1 + 1e-9),
        )
        reduction = (matrices + matrices.mT) / 2
        inputs, weights, reduction = (part.to(device) for part in (inputs, weights, reduction))
        norms = (excess**0.5 * coefficients).to(device)
        kernel = kernel.to(device)
        return cls(kernel, inputs, weights, reduction, norms, varsigma, whitening.to(device))

    def whiten(self, rows: Tensor) -> Tensor:
        """Map ``r(x)``, shape (..., m), to whitened rows if the model is whitened."""
        return rows if self.whitening is None else rows @ self.whitening.matrix.mT

    def unwhiten(self, weights: Tensor) -> Tensor:
        """Map coefficients of whitened rows, shape (..., m), to coefficients of ``r(x)``."""
        return weights if self.whitening is None else weights @ self.whitening.matrix

    @property
    def n_latent(self) -> int:
        """Number of latent functions, L."""
        return len(self.weights)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Indices ``c <= d`` of the latent functions of each matrix."""
        rows, columns = np.triu_indices(self.n_latent)
        device = self.inputs.device
        return torch.as_tensor(rows, device=device), torch.as_tensor(columns, device=device)

    @cached_property
    def own_and_crossed(self) -> tuple[Tensor, Tensor]:
        """Positions of the pairs ``c == d``, and of the pairs ``c < d``."""
        rows, columns = np.triu_indices(self.n_latent)
        device = self.inputs.device
        found = np.flatnonzero(rows == columns), np.flatnonzero(rows != columns)
        return torch.as_tensor(found[0], device=device), torch.as_tensor(found[1], device=device)

    @cached_property
    def row_sums(self) -> Tensor:
        """Absolute row sums of the matrices, shape (n_pairs, m)."""
        return self.reduction.abs().sum(-1)


def _indefiniteness(gram: Tensor, reduction: Tensor, n_latent: int, unit: float) -> float:
    """Bound varsigma on the relative excess of the reduction over the prior covariance (Eq. 2)."""
    # With ``R = F F'``, varsigma is ``lambda_max(F' K F) - 1``, at least 0, plus two terms: one for
    # negative eigenvalues of R, the other for rounding errors of relative size `unit`.
    m = len(gram)
    values, vectors = torch.linalg.eigh(_joint(reduction, n_latent))
    factor = (vectors * values.clamp(min=0).sqrt()).reshape(n_latent, m, -1)
    product = torch.einsum("cmi,cmj->ij", factor, gram @ factor)
    largest = torch.linalg.eigvalsh(product)[-1]
    scale = float(gram.diagonal().sum() * values.abs().max())
    negative = float((-values[0]).clamp(min=0) * gram.diagonal().sum())
    return max(0.0, float(largest) - 1) + negative + n_latent * unit * max(1.0, scale)


def _joint(reduction: Tensor, n_latent: int) -> Tensor:
    """Assemble the matrices of all pairs into one symmetric block matrix, (L m, L m)."""
    m = reduction.shape[-1]
    joint = reduction.new_zeros(n_latent, m, n_latent, m)
    for block, c, d in zip(reduction, *np.triu_indices(n_latent), strict=True):
        joint[c, :, d], joint[d, :, c] = block, block.mT
    return joint.reshape(n_latent * m, -1)


def _largest_of_whitened(kernel: StationaryKernel, inputs: Tensor, T: Tensor) -> float:
    """Bound on the largest eigenvalue of ``T K T'`` (Eq. 30)."""
    # L is the inverse of T up to rounding: ``K <= L L' + eta`` and ``T L = I + E``.
    m, d = inputs.shape
    inputs = inputs - inputs.mean(0)  # minimises rounding errors of distances
    L = torch.linalg.solve_triangular(T, torch.eye(m).to(T), upper=False)
    gram, sensitivity = kernel(inputs, inputs), kernel.sensitivity(inputs)
    sums = 1.1 * (m + 8) * UNIT  # Eq. 27
    entries = 1.1 * (d + 32) * UNIT * (1 + kernel.reach(inputs))
    rounding = sums * (L.abs() @ L.abs().mT) + entries * sensitivity
    difference = torch.linalg.eigvalsh(L @ L.mT - gram)
    least = float(difference[0]) - 8 * m * UNIT * float(difference.abs().max())
    eta = max(0.0, float(rounding.sum(-1).max()) - least)
    product = (T @ L - torch.eye(m).to(T)).abs() + sums * (T.abs() @ L.abs())
    error = float((product.sum(0).max() * product.sum(1).max()).sqrt())
    stretch = float(T.abs().sum(0).max() * T.abs().sum(1).max())
    return ((1 + error) ** 2 + eta * stretch) * (1 + 1e-12)
