"""Remainders of the second-order expansions of covariances over boxes.

Equations are those of the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`), whose
symbols a0, a1, a2, rho, s0, s1, s2, t0, t1, r and varsigma are used here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import LatentModel
from skuq.gpc.bounds._regions import BallParts
from skuq.gpc.bounds._stationary import TaylorNorms


class CovarianceParts(NamedTuple):
    """Inputs of the remainders of covariances over b boxes, by pairs of functions.

    Attributes
    ----------
    covariance : Tensor of shape (b, n_pairs)
        Covariances at the centres.
    left, taken : Tensor of shape (b, n_pairs, f, f)
        Covariances of the derivatives: what the data left of the prior's, and what they took.
    norms : TaylorNorms
        Of the pieces of ``k(c + t, .)``.
    error : Tensor of shape (b, n_pairs)
        Rounding errors of the covariances.
    model : LatentModel
        The posterior.
    ball : BallParts or None
        Restricts the boxes.
    """

    covariance: Tensor
    left: Tensor
    taken: Tensor
    norms: TaylorNorms
    error: Tensor
    model: LatentModel
    ball: BallParts | None

    def deviations(self) -> Deviations:
        """Deviations of each latent function: no more than the prior's."""
        model, norms = self.model, self.norms
        own = model.pairs[0] == model.pairs[1]
        left, error = self.left[:, own], self.error[:, own]
        variance = self.covariance[:, own]
        values = variance, model.kernel.variance - variance
        slopes = (_form_reach(form, self.ball) for form in (left, self.taken[:, own]))
        s0, t0, s1, t1 = _roots(values, slopes, norms, error, model)
        inexact = 2 * model.varsigma * norms.a1[:, None, None] ** 2 + error[..., None]
        each = left.diagonal(dim1=-2, dim2=-1).clamp(min=0) + inexact
        return Deviations(s0, s1, each.sqrt(), t0, t1)

    def contrast_rest(self) -> Tensor | None:
        """Remainder of the variance of any contrast of unit length, (b,) (Eq. 11)."""
        model = self.model
        count, own = model.n_latent, model.pairs[0] == model.pairs[1]
        if count == 1:
            return None
        values = (
            torch.linalg.eigvalsh(contrasts(unfold(part, count)))[:, -1:]
            for part in (self.covariance, model.kernel.variance * own - self.covariance)
        )
        slopes = (
            # Less a shift that makes entries of different functions small; contrasts ignore it.
            unfold(_form_reach(form - form[:, ~own].mean(1, keepdim=True), self.ball), count)
            for form in (self.left, self.taken)
        )
        largest = (part.sum(-1).amax(-1, keepdim=True) for part in slopes)
        error = count * self.error.amax(-1, keepdim=True)  # a spectral norm of errors of entries
        deviations = _roots(values, largest, self.norms, error, model)
        sums = (2 * part for part in deviations)
        return (_covariance_rest(sums, self.norms, model) + error)[:, 0]


class Deviations(NamedTuple):
    """Standard deviations of the pieces of ``k(c + t, .)``, per latent function.

    Those that are left by the data, s, and those that the data took away, t. Those of a2 and rho
    are bounded by the prior's: s2 and r, of `_prior_deviations`.
    """

    s0: Tensor  # (b, L), of a0
    s1: Tensor  # (b, L), of a1 anywhere in the box
    s1_each: Tensor  # (b, L, f), of b0, the value of each partial derivative
    t0: Tensor  # as s0
    t1: Tensor  # as s1

    def rest(self, norms: TaylorNorms, model: LatentModel) -> Tensor:
        """Remainder of the second-order polynomial of each covariance, (b, n_pairs)."""
        c, d = model.pairs
        sums = (part[:, c] + part[:, d] for part in (self.s0, self.t0, self.s1, self.t1))
        return _covariance_rest(sums, norms, model)

    def gradient_rest(
        self, norms: TaylorNorms, b1: Tensor, beta: Tensor, model: LatentModel
    ) -> Tensor:
        """Remainder of the linear polynomial of each gradient, (b, n_pairs, f)."""
        c, d = model.pairs
        s0, s1, s1_each = self.s0[..., None], self.s1[..., None], self.s1_each
        (s2_r,) = (part[:, None, None] for part in _prior_deviations(model, norms.a2 + norms.rho))
        s_b1, s_beta = (part[:, None] for part in _prior_deviations(model, b1, beta))
        # Eq. 13
        total = (s1_each[:, c] + s1_each[:, d]) * s2_r
        after_a0 = s1[:, c] + s1[:, d] + 2 * s2_r
        total = total + s_b1 * after_a0 + s_beta * (s0[:, c] + s0[:, d] + after_a0)
        norm = (model.kernel.variance**0.5 + norms.a1 + norms.a2 + norms.rho)[:, None, None]
        gradient_norm = norms.a1[:, None, None] + s_b1 + s_beta
        return total + 2 * model.varsigma * norm * gradient_norm


def _roots(
    values: Iterable[Tensor],
    slopes: Iterable[Tensor],
    norms: TaylorNorms,
    error: Tensor,
    model: LatentModel,
) -> list[Tensor]:
    """Deviations s0, t0, s1, t1 from variances of a0 and a1 that are off by `error`, (b, k)."""
    a1 = norms.a1[:, None] ** 2
    of_a0, of_a1 = (error + model.varsigma * part for part in (model.kernel.variance, 2 * a1))
    return [(part.clamp(min=0) + of_a0).sqrt() for part in values] + [
        (torch.minimum(part, a1) + of_a1).sqrt() for part in slopes
    ]


def _covariance_rest(sums: Iterable[Tensor], norms: TaylorNorms, model: LatentModel) -> Tensor:
    """Remainder of covariances from sums of two s0, t0, s1, t1 each, (b, k) (Eq. 11)."""
    s0, t0, s1, t1 = sums
    s2, r = (part[:, None] for part in _prior_deviations(model, norms.a2, norms.rho))
    if model.kernel.order == 1:  # the prior's share of the polynomial is not constant
        t0, t1 = s0, s1
    total = torch.minimum(s1, t1) * s2 + s2**2
    total = total + (torch.minimum(s0 + s1, t0 + t1) + 2 * s2) * r + r**2
    norm = model.kernel.variance**0.5 + norms.a1 + norms.a2 + norms.rho
    return total + model.varsigma * norm[:, None] ** 2


def _form_reach(form: Tensor, ball: BallParts | None) -> Tensor:
    """Largest absolute value of each quadratic form ``t' F t``, forms of shape (b, k, f, f)."""
    sums = form.abs().sum(-1)
    reach = sums.sum(-1)
    if ball is not None:
        reach = torch.minimum(reach, sums.amax(-1) * ball.squared_length()[:, None])
    return reach


def unfold(pairs: Tensor, count: int) -> Tensor:
    """Symmetric matrices (..., count, count) from their entries at the pairs ``j <= k``."""
    j, k = torch.triu_indices(count, count, device=pairs.device)
    full = pairs.new_zeros(*pairs.shape[:-1], count, count)
    full[..., j, k] = full[..., k, j] = pairs
    return full


def contrasts(matrix: Tensor) -> Tensor:
    """Symmetric matrices up to a shift, which weights that add up to 0 do not see."""
    matrix = matrix - matrix.mean(-1, keepdim=True)
    return matrix - matrix.mean(-2, keepdim=True)


def _prior_deviations(model: LatentModel, *norms: Tensor) -> tuple[Tensor, ...]:
    """Bounds of semi-norms by norms, which they exceed by a factor of 1 + 2 varsigma at most."""
    return tuple((1 + 2 * model.varsigma) * norm for norm in norms)
