"""The posterior of the latent functions as tensors, with the constants of its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from skuq.gpc.bounds._stationary import StationaryKernel, from_sklearn
from skuq.gpc.inference._posterior import Posterior

UNIT = 2.0**-53  # relative rounding error of one float64 operation


@dataclass(frozen=True)
class LatentModel:
    """Tensors of a posterior on one device, with the norms of its means and its indefiniteness.

    The function that is bounded is the one that these float64 numbers define in exact
    arithmetic.

    Attributes
    ----------
    kernel : StationaryKernel
        Prior covariance.
    inputs : Tensor of shape (m, n_features)
        Training inputs or inducing points.
    weights : Tensor of shape (L, m)
        Coefficients of the means.
    reduction : Tensor of shape (L (L + 1) / 2, m, m)
        Matrices R of the pairs ``c <= d`` in the order of ``np.triu_indices(L)``, symmetric.
    norms : Tensor of shape (L,)
        Upper bounds of the means' norms in the kernel's Hilbert space.
    varsigma : float
        The covariance is positive semi-definite up to this share of the prior's (Eq. 2 of the
        proofs page).
    """

    kernel: StationaryKernel
    inputs: Tensor
    weights: Tensor
    reduction: Tensor
    norms: Tensor
    varsigma: float

    @classmethod
    def from_posterior(cls, posterior: Posterior, device: torch.device) -> LatentModel:
        """Prepare a posterior; costs a few decompositions of its matrices, once."""
        inputs = torch.tensor(posterior.inputs, dtype=torch.float64)
        kernel = from_sklearn(posterior.kernel, inputs.shape[1])
        weights = torch.tensor(posterior.weights, dtype=torch.float64)
        matrices = torch.tensor(posterior.reduction(), dtype=torch.float64)
        inputs_at_origin = inputs - inputs.mean(0)  # where distances lose the fewest digits
        gram = kernel(inputs_at_origin, inputs_at_origin)
        # Eq. 27, with room for two sums of products, one within the other
        unit = 4 * (sum(inputs.shape) + 32) * UNIT * (1 + kernel.reach(inputs_at_origin))
        squared = ((weights @ gram) * weights).sum(-1)  # Eq. 1
        rounding = unit * ((weights.abs() @ gram) * weights.abs()).sum(-1)
        norms = (squared.clamp(min=0) + rounding).sqrt()
        varsigma = _indefiniteness(gram, matrices, len(weights), unit)
        reduction = (matrices + matrices.mT) / 2  # enough where both arguments are the same
        inputs, weights = inputs.to(device), weights.to(device)
        return cls(
            kernel.to(device), inputs, weights, reduction.to(device), norms.to(device), varsigma
        )

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
    def row_sums(self) -> Tensor:
        """Sums of absolute values along each row of the matrices, shape (n_pairs, m)."""
        return self.reduction.abs().sum(-1)


def _indefiniteness(gram: Tensor, reduction: Tensor, n_latent: int, unit: float) -> float:
    """Share of the prior by which the reduction exceeds it in any direction (Eq. 2).

    With ``R = F F'`` this is the largest eigenvalue of ``F' K F`` above 1, plus what R has
    of negative eigenvalues, plus the rounding error of computing both, of relative size `unit`.
    """
    m = len(gram)
    joint = reduction.new_zeros(n_latent, m, n_latent, m)
    for block, c, d in zip(reduction, *np.triu_indices(n_latent), strict=True):
        joint[c, :, d], joint[d, :, c] = block, block.mT
    values, vectors = torch.linalg.eigh(joint.reshape(n_latent * m, -1))
    factor = (vectors * values.clamp(min=0).sqrt()).reshape(n_latent, m, -1)
    product = torch.einsum("cmi,cmj->ij", factor, gram @ factor)
    largest = torch.linalg.eigvalsh(product)[-1]
    scale = float(gram.diagonal().sum() * values.abs().max())
    negative = float((-values[0]).clamp(min=0) * gram.diagonal().sum())
    return max(0.0, float(largest) - 1) + negative + n_latent * unit * max(1.0, scale)
