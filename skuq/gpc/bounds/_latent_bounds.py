"""Second-order expansions of latent means and covariances over boxes, with proven remainders.

At a point ``c + t`` of a box with centre c, the mean is the inner product of a fixed function with
``k(c + t, .)``, and the covariance is a positive semi-definite form of ``k(c + t, .)``. The norm of
the Taylor remainder of ``k(c + t, .)`` in the kernel's Hilbert space thus bounds the remainders of
mean and covariance, even if the terms of different training points cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import UNIT, LatentModel, StationaryKernel, TaylorNorms, Term
from skuq.gpc.bounds._regions import BallParts, Moments, Region

_ENTRIES = 6_000_000  # maximum number of entries in a temporary array


class Evaluation(NamedTuple):
    mean: Tensor
    covariance: Tensor
    mean_gradient: Tensor
    covariance_gradient: Tensor
    mean_error: Tensor  # bound on the rounding error of `mean`
    covariance_error: Tensor  # bound on the rounding error of `covariance`


class Expansion(NamedTuple):
    mean: Moments  # of the L latent functions
    covariance: Moments  # of the n_pairs pairs of functions, in the order of ``np.triu_indices(L)``
    # (b,), bound on the spectral norm of the covariance matrix's error after a suitable shift
    # ``a_j + a_k`` of each entry (j, k); None if unknown
    contrast_rest: Tensor | None = None

    def select(self, rows: Tensor) -> Expansion:
        rest = None if self.contrast_rest is None else self.contrast_rest[rows]
        return Expansion(self.mean.select(rows), self.covariance.select(rows), rest)

    def covariances(self, weights: Tensor) -> Moments:
        """Compute weighted sums of the covariances, with weights of shape (b, o, n_pairs)."""
        # The remainder is the smaller of two bounds: the weighted sum of remainders in `combine`;
        # or the nuclear norm of centred weights times `contrast_rest`, plus a shift term (Eq. 11).
        combined = self.covariance.combine(weights)
        if self.contrast_rest is None:
            return combined
        full = unfold(weights, self.mean.value.shape[1]) / 2
        full = full + torch.diag_embed(full.diagonal(dim1=-2, dim2=-1))
        centred = contrasts(full)
        nuclear = torch.linalg.eigvalsh(centred).abs().sum(-1) * (1 + 1e-12)
        entry = self.covariance.rest.amax(-1, keepdim=True)
        rest = nuclear * self.contrast_rest[:, None] + (full - centred).abs().sum((-2, -1)) * entry
        return combined._replace(rest=torch.minimum(combined.rest, rest))


class _Rows(NamedTuple):
    """Rows ``r(x)`` at the centres; of a whitened model, `value` and `jacobian` are whitened."""

    value: Tensor  # (b, m)
    jacobian: Tensor  # (b, m, f)
    # (b, m), bound on the sum of the polynomial's absolute terms, times the condition number
    magnitude: Tensor
    curvature: list[tuple[Tensor, Tensor, Tensor]]  # (c, l, r) of each term c l r' of the Hessian
    diagonal: list[tuple[Tensor, Tensor]]  # (c, s) of each term c diag(s) of the Hessian

    def hessian(self, weights: Tensor) -> Tensor:
        """Compute the Hessian of ``weights @ r(x)`` for weights of shape (b, k, m)."""
        shape = (*weights.shape[:2], self.jacobian.shape[-1], self.jacobian.shape[-1])
        total = weights.new_zeros(shape)
        for coefficient, left, right in self.curvature:
            product = torch.einsum("bkm,bmf,bmg->bkfg", weights * coefficient[:, None], left, right)
            total = total + (product + product.mT) / 2
        for coefficient, squares in self.diagonal:
            sums = (weights * coefficient[:, None]).sum(-1)
            total = total + torch.diag_embed(sums[..., None] * squares[:, None])
        return total


class Expander:
    """Expands moments in the features `free` (f,); other features keep their value in `base`."""

    def __init__(self, model: LatentModel, base: Tensor, free: Tensor):
        self.model = model
        mask = torch.ones(base.shape[1], dtype=torch.bool, device="cpu")
        mask[free] = False
        # Index with integers: indexing with a mask makes the CPU wait for the GPU.
        fixed, free = torch.nonzero(mask)[:, 0].to(base.device), free.to(base.device)
        self._inputs = model.inputs[:, free]
        precisions = [term.precisions[:, free] for term in model.kernel.terms]
        terms = zip(model.kernel.terms, precisions, strict=True)
        self.kernel = StationaryKernel(tuple(Term(t.variance, t.profiles, own) for t, own in terms))
        self._offsets = [
            _offsets(base[:, fixed], model.inputs[:, fixed], term.precisions[:, fixed])
            for term in model.kernel.terms
        ]  # one array of shape (n, n_profiles, m) per term
        self._same = (model.pairs[0] == model.pairs[1]).to(base)
        self._prior_slopes = self.kernel.slopes()

    def expand(self, region: Region, owner: Tensor) -> Expansion:
        # `owner` (b,) is the row of `base` (n, d) with the point to which each box belongs.
        centers, half_widths, ball = region.coordinates()
        rows = self._rows(centers, half_widths, owner, self.kernel.order)
        norms = self.kernel.norms(half_widths, None if ball is None else ball.distance())
        errors = self._rounding(rows.magnitude, norms.a1 + norms.a2)
        mean, mean_gradient, covariance, gradient, r_R = self._first_order(rows)
        slopes = torch.diag_embed(self._prior_slopes * half_widths**2)[:, None]
        jacobian_R = torch.einsum("bmf,pmn->bpfn", rows.jacobian, self.model.reduction)
        bilinear = jacobian_R @ rows.jacobian[:, None]
        hessian = -2 * (bilinear + rows.hessian(self.model.unwhiten(r_R)))
        if self.kernel.order == 1:  # at order 1, the prior also contributes to the Hessian
            hessian = hessian + 2 * slopes * self._same[:, None, None]
        left = slopes * self._same[:, None, None] - bilinear
        parts = CovarianceParts(covariance, left, bilinear, norms, errors[1], self.model, ball)
        b1, beta = self.kernel.gradient_norms(half_widths)
        rest, gradient_rest = parts.rests(b1, beta)
        gradient_rest = gradient_rest + 2 * errors[1][..., None]
        covariances = Moments(covariance, gradient, hessian, rest + errors[1], gradient_rest, ball)
        weights = self.model.unwhiten(self.model.weights)
        hessian = rows.hessian(weights.expand(len(mean), -1, -1))
        rest = self.model.norms * norms.rho[:, None] + errors[0]  # Eq. 9
        gradient_rest = self.model.norms[:, None] * beta[:, None] + 2 * errors[0][..., None]
        means = Moments(mean, mean_gradient, hessian, rest, gradient_rest, ball)
        return Expansion(means, covariances, parts.contrast_rest())

    def evaluate(self, points: Tensor, owner: Tensor) -> Evaluation:
        # With half-widths of 1, gradients are in units of the features. With `extent` 0, rounding
        # errors are bounded for the points alone, not for boxes of these half-widths.
        rows = self._rows(points, torch.ones_like(points), owner, 1, extent=0.0)
        mean, mean_gradient, covariance, gradient, _ = self._first_order(rows)
        return Evaluation(
            mean, covariance, mean_gradient, gradient, *self._rounding(rows.magnitude, 0.0)
        )

    def shares(self, half_widths: Tensor) -> Tensor:
        sizes = self._prior_slopes * half_widths**2
        return sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-300)

    def _rows(
        self, centers: Tensor, half_widths: Tensor, owner: Tensor, order: int, extent: float = 1.0
    ) -> _Rows:
        # `magnitude` is bounded over the box whose half-widths are `extent` times `half_widths`.
        delta = centers[:, None] - self._inputs
        squared = delta**2
        values, jacobians, magnitudes = [], [], []
        curvature, diagonal = [], []
        for term, offsets in zip(self.kernel.terms, self._offsets, strict=True):
            near = [squared @ w for w in term.precisions]
            total = [offsets[owner, p] + s for p, s in enumerate(near)]
            table = [
                profile.derivatives(s, order)
                for profile, s in zip(term.profiles, total, strict=True)
            ]
            variance = torch.full_like(delta[..., 0], term.variance)
            covariance = _product(variance, table)
            size, condition = covariance, torch.ones_like(covariance)
            directions = [delta * (w * half_widths)[:, None] for w in term.precisions]
            squares = [w * half_widths**2 for w in term.precisions]
            # `reaches` bounds the linear terms by the Cauchy-Schwarz inequality. It need not be
            # tight, because the magnitude is used only for rounding errors.
            sums = [extent**2 * q.sum(-1)[:, None] for q in squares]
            reaches = [(s * q).sqrt() for s, q in zip(near, sums, strict=True)]
            for p, direction in enumerate(directions):
                slope = 2 * _product(variance, table, p)
                jacobians.append(slope[..., None] * direction)
                size = size - slope * reaches[p]
                condition = condition + total[p]
                if order == 1:
                    continue
                diagonal.append((slope, squares[p]))
                size = size - slope / 2 * sums[p]
                for other, opposite in enumerate(directions):
                    bend = 4 * _product(variance, table, p, other)
                    curvature.append((bend, direction, opposite))
                    size = size + bend / 2 * reaches[p] * reaches[other]
            values.append(covariance)
            magnitudes.append(size * condition)
        value, magnitude = reduce(add, values), reduce(add, magnitudes)
        jacobian = reduce(add, jacobians) if jacobians else torch.zeros_like(delta)
        whitened = self.model.whiten(value), self.model.whiten(jacobian.mT).mT
        return _Rows(*whitened, magnitude, curvature, diagonal)

    def _first_order(self, rows: _Rows) -> tuple[Tensor, ...]:
        """Return mean, its gradient, covariance, its gradient, and ``r(x)' R`` for each pair."""
        r_R = (rows.value @ self.model.reduction).transpose(0, 1)
        prior = self.model.kernel.variance * self._same
        return (  # Eq. 1
            rows.value @ self.model.weights.T,
            self.model.weights @ rows.jacobian,
            prior - (r_R @ rows.value[..., None])[..., 0],
            -2 * r_R @ rows.jacobian,
            r_R,
        )

    def _rounding(self, magnitude: Tensor, norm: Tensor | float) -> tuple[Tensor, Tensor]:
        """Bound the rounding errors of the means (b, L) and covariances (b, n_pairs)."""
        # Eq. 27: each polynomial is a sum of m products. The relative error of a factor is a few
        # rounding units times a condition number, which `magnitude` includes. `norm` bounds the
        # norm of the Taylor polynomial of ``k(c + t, .)`` without its constant term.
        unit = 1.1 * (len(self.model.inputs) + self.model.inputs.shape[1] + 32) * UNIT
        variance, whitening = self.model.kernel.variance, self.model.whitening
        if whitening is None:
            mean = unit * magnitude @ self.model.weights.abs().T
            squared = magnitude**2 @ self.model.row_sums.T
            return mean, 2 * unit * (squared + variance)
        # Eq. 31
        moved = torch.linalg.vector_norm(magnitude @ whitening.matrix.abs().mT, dim=-1)
        length = whitening.excess**0.5 * (variance**0.5 + norm) + torch.zeros_like(moved)
        mean = 4 * unit * (moved + length)[:, None] * whitening.coefficients
        crossed = (length * moved)[:, None] * whitening.spectral
        squared = (length**2)[:, None] * whitening.frobenius
        return mean, 4 * unit * (2 * crossed + squared + variance)


def _offsets(points: Tensor, inputs: Tensor, precisions: Tensor) -> Tensor:
    """Compute squared distances (n, n_profiles, m) accurately, as sums of squared differences."""
    size = max(1, _ENTRIES // max(1, inputs.numel()))
    parts = [
        torch.einsum("bmf,pf->bpm", (part[:, None] - inputs) ** 2, precisions)
        for part in torch.split(points, size)
    ]
    return torch.cat(parts)


def _product(variance: Tensor, table: list[list[Tensor]], *raised: int) -> Tensor:
    """Multiply `variance` by one derivative per profile p, of order ``raised.count(p)``."""
    total = variance
    for p, derivatives in enumerate(table):
        total = total * derivatives[raised.count(p)]
    return total


class CovarianceParts(NamedTuple):
    """Quantities from which the remainders of covariances over b boxes are bounded."""

    covariance: Tensor  # (b, n_pairs), covariances at the centres
    left: Tensor  # (b, n_pairs, f, f), posterior covariances of the derivatives
    taken: Tensor  # (b, n_pairs, f, f), prior minus posterior covariances of the derivatives
    norms: TaylorNorms  # norms of the Taylor terms of ``k(c + t, .)``
    error: Tensor  # (b, n_pairs), rounding errors of the covariances
    model: LatentModel  # the posterior
    ball: BallParts | None  # balls with which the boxes are intersected

    def rests(self, b1: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the errors of second-order expansions, and of the gradients of these expansions.

        Shapes: (b, n_pairs) and (b, n_pairs, f). `b1` and `beta` are the norms of Eq. 12.
        """
        # For each Taylor term, s is its posterior standard deviation, and t the square root of its
        # prior minus its posterior variance. s0 and t0 are those of a0; s1 and t1 bound those of a1
        # in the whole box. For a2 and rho, the prior standard deviations s2 and r, computed by
        # `_prior_deviation`, are upper bounds on both s and t.
        model, norms = self.model, self.norms
        own, _ = model.own_and_crossed
        left, error = self.left[:, own], self.error[:, own]
        variance = self.covariance[:, own]
        values = variance, model.kernel.variance - variance
        slopes = (_form_reach(form, self.ball) for form in (left, self.taken[:, own]))
        s0, t0, s1, t1 = _roots(values, slopes, norms, error, model)
        c, d = model.pairs
        sums = (part[:, c] + part[:, d] for part in (s0, t0, s1, t1))
        rest = _covariance_rest(sums, norms, model)
        inexact = 2 * model.varsigma * norms.a1[:, None, None] ** 2 + error[..., None]
        # Posterior standard deviation of each partial derivative at the centre (b0 of Eq. 13).
        s1_each = (left.diagonal(dim1=-2, dim2=-1).clamp(min=0) + inexact).sqrt()
        s0, s1 = s0[..., None], s1[..., None]
        s2_r = _prior_deviation(model, norms.a2 + norms.rho)[:, None, None]
        s_b1, s_beta = (_prior_deviation(model, part)[:, None] for part in (b1, beta))
        # Eq. 13
        total = (s1_each[:, c] + s1_each[:, d]) * s2_r
        after_a0 = s1[:, c] + s1[:, d] + 2 * s2_r
        total = total + s_b1 * after_a0 + s_beta * (s0[:, c] + s0[:, d] + after_a0)
        norm = (model.kernel.variance**0.5 + norms.a1 + norms.a2 + norms.rho)[:, None, None]
        gradient_norm = norms.a1[:, None, None] + s_b1 + s_beta
        return rest, total + 2 * model.varsigma * norm * gradient_norm

    def contrast_rest(self) -> Tensor | None:
        """Bound the remainder (b,) of the variance of ``w @ f`` if |w| = 1, sum(w) = 0 (Eq. 11)."""
        model = self.model
        count, own = model.n_latent, model.pairs[0] == model.pairs[1]
        if count == 1:
            return None
        _, crossed = model.own_and_crossed
        values = (
            torch.linalg.eigvalsh(contrasts(unfold(part, count)))[:, -1:]
            for part in (self.covariance, model.kernel.variance * own - self.covariance)
        )
        slopes = (
            # Subtract the mean off-diagonal entry from all entries: off-diagonal entries become
            # small, and the variances of differences do not change.
            unfold(_form_reach(form - form[:, crossed].mean(1, keepdim=True), self.ball), count)
            for form in (self.left, self.taken)
        )
        largest = (part.sum(-1).amax(-1, keepdim=True) for part in slopes)
        error = count * self.error.amax(-1, keepdim=True)  # bounds the spectral norm of the errors
        deviations = _roots(values, largest, self.norms, error, model)
        sums = (2 * part for part in deviations)
        return (_covariance_rest(sums, self.norms, model) + error)[:, 0]


def _roots(
    values: Iterable[Tensor],
    slopes: Iterable[Tensor],
    norms: TaylorNorms,
    error: Tensor,
    model: LatentModel,
) -> list[Tensor]:
    """Return s0, t0, s1, t1 of `rests`, (b, k); `error` bounds the rounding errors of variances."""
    a1 = norms.a1[:, None] ** 2
    of_a0, of_a1 = (error + model.varsigma * part for part in (model.kernel.variance, 2 * a1))
    return [(part.clamp(min=0) + of_a0).sqrt() for part in values] + [
        (torch.minimum(part, a1) + of_a1).sqrt() for part in slopes
    ]


def _covariance_rest(sums: Iterable[Tensor], norms: TaylorNorms, model: LatentModel) -> Tensor:
    """Bound remainders of covariances, (b, k); `sums` add s0, t0, s1 and t1 of two functions."""
    s0, t0, s1, t1 = sums
    s2, r = (_prior_deviation(model, part)[:, None] for part in (norms.a2, norms.rho))
    if model.kernel.order == 1:  # at order 1, the prior's part of the polynomial is not constant
        t0, t1 = s0, s1
    total = torch.minimum(s1, t1) * s2 + s2**2
    total = total + (torch.minimum(s0 + s1, t0 + t1) + 2 * s2) * r + r**2
    norm = model.kernel.variance**0.5 + norms.a1 + norms.a2 + norms.rho
    return total + model.varsigma * norm[:, None] ** 2


def _form_reach(form: Tensor, ball: BallParts | None) -> Tensor:
    """Bound ``|t' F t|`` over the boxes, for quadratic forms F of shape (b, k, f, f)."""
    sums = form.abs().sum(-1)
    reach = sums.sum(-1)
    if ball is not None:
        reach = torch.minimum(reach, sums.amax(-1) * ball.squared_length()[:, None])
    return reach


def unfold(pairs: Tensor, count: int) -> Tensor:
    """Build symmetric matrices (..., count, count) from their entries with ``j <= k``."""
    j, k = torch.triu_indices(count, count, device=pairs.device)
    full = pairs.new_zeros(*pairs.shape[:-1], count, count)
    full[..., j, k] = full[..., k, j] = pairs
    return full


def pair_weights(first: Tensor, second: Tensor) -> Tensor:
    """Return each pair's weight in the covariance of two linear combinations, (..., n_pairs)."""
    j, k = torch.triu_indices(first.shape[-1], first.shape[-1], device=first.device)
    total = first[..., j] * second[..., k] + first[..., k] * second[..., j]
    return total * torch.where(j == k, 0.5, 1.0)


def leads_of_classes(n_classes: int) -> Tensor:
    """Return the weights (C, C - 1, C) of the differences ``f_c - f_j`` for all j != c."""
    eye = torch.eye(n_classes, dtype=torch.float64)
    return torch.stack([row - torch.cat([eye[:c], eye[c + 1 :]]) for c, row in enumerate(eye)])


def contrasts(matrix: Tensor) -> Tensor:
    """Subtract row and column means; ``w' M w`` does not change for weights w with sum 0."""
    matrix = matrix - matrix.mean(-1, keepdim=True)
    return matrix - matrix.mean(-2, keepdim=True)


def _prior_deviation(model: LatentModel, norm: Tensor) -> Tensor:
    return (1 + 2 * model.varsigma) * norm  # upper bound on the standard deviation
