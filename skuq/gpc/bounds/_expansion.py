"""Latent mean and covariance over boxes: second-order expansions with proven remainders.

Over a box ``c + t``, every latent moment is written as value, gradient and Hessian at the
centre plus a remainder that is bounded through the Hilbert space of the kernel. The mean is
the inner product of a fixed function with ``k(c + t, .)``, the covariance a positive
semi-definite form in it; what a Taylor polynomial leaves out of ``k(c + t, .)`` therefore
bounds both, whatever cancels between training points. Equations are those of the proofs page
of the user guide (`docs/guide/robust_gpc_proofs.rst`), whose symbols are used here; the
remainders of covariances are in `_remainders`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import UNIT, LatentModel
from skuq.gpc.bounds._regions import BallParts, Region
from skuq.gpc.bounds._remainders import CovarianceParts, contrasts, unfold
from skuq.gpc.bounds._stationary import StationaryKernel, Term

_ENTRIES = 6_000_000  # numbers in the largest temporary array


class Moments(NamedTuple):
    """Expansion of one family of functions over boxes, in coordinates ``t in [-1, 1]^f``.

    Attributes
    ----------
    value : Tensor of shape (b, k)
        At the centres.
    gradient : Tensor of shape (b, k, f)
        Times the half-widths of the boxes.
    hessian : Tensor of shape (b, k, f, f)
        Times the half-widths on both sides.
    rest : Tensor of shape (b, k)
        Bound on the error of the second-order polynomial anywhere in the box, rounding
        included.
    gradient_rest : Tensor of shape (b, k, f)
        Bound on the error of ``gradient + hessian @ t`` as the gradient at t, in boxes that lie
        in their ball.
    ball : BallParts, default=None
        Restricts the boxes.
    """

    value: Tensor
    gradient: Tensor
    hessian: Tensor
    rest: Tensor
    gradient_rest: Tensor
    ball: BallParts | None = None

    def select(self, rows: Tensor) -> Moments:
        """The expansions over some of the boxes."""
        ball = None if self.ball is None else self.ball.select(rows)
        return self._each(lambda part: part[rows], ball)

    def combine(self, weights: Tensor) -> Moments:
        """Weighted sums of the k functions, with weights of shape (b, o, k); k becomes o."""
        absolute = weights.abs()
        return Moments(
            (weights @ self.value[..., None])[..., 0],
            weights @ self.gradient,
            torch.einsum("bok,bkfg->bofg", weights, self.hessian),
            (absolute @ self.rest[..., None])[..., 0],
            absolute @ self.gradient_rest,
            self.ball,
        )

    def flatten(self) -> Moments:
        """Each function of each box as a single function of a box of its own."""
        ball = None if self.ball is None else self.ball.repeat(self.value.shape[1])
        return self._each(lambda part: part.flatten(0, 1)[:, None], ball)

    def plus(self, other: Moments) -> Moments:
        """Sum of two families of functions."""
        return Moments(
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            self.rest + other.rest,
            self.gradient_rest + other.gradient_rest,
            self.ball,
        )

    def quadratic_reach(self) -> Tensor:
        """Largest absolute value of each second-order part, shape (b, k)."""
        sums = self.hessian.abs().sum(-1)
        reach = sums.sum(-1)
        if self.ball is not None:
            frobenius = torch.linalg.matrix_norm(self.hessian) * (1 + 1e-12)
            largest = torch.minimum(sums.amax(-1), frobenius)
            reach = torch.minimum(reach, largest * self.ball.squared_length()[:, None])
        return reach / 2

    def reach(self) -> Tensor:
        """Largest distance of each function from its value at the centre, shape (b, k)."""
        linear = self.gradient.abs().sum(-1)
        if self.ball is not None:
            linear = torch.minimum(linear, self.ball.linear_reach(self.gradient))
        return linear + self.quadratic_reach() + self.rest

    def _each(self, change: Callable[[Tensor], Tensor], ball: BallParts | None) -> Moments:
        return Moments(
            change(self.value),
            change(self.gradient),
            change(self.hessian),
            change(self.rest),
            change(self.gradient_rest),
            ball,
        )

    def range(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of shape (b, k) over the boxes."""
        reach = self.reach()
        return self.value - reach, self.value + reach


class Evaluation(NamedTuple):
    """Latent moments at points: values, gradients per feature, and rounding errors."""

    mean: Tensor
    covariance: Tensor
    mean_gradient: Tensor
    covariance_gradient: Tensor
    mean_error: Tensor
    covariance_error: Tensor


class Expansion(NamedTuple):
    """Latent moments over boxes: one mean per latent function, one covariance per pair.

    Attributes
    ----------
    mean, covariance : Moments
        Of the L latent functions, and of their pairs in the order of ``np.triu_indices(L)``.
    contrast_rest : Tensor of shape (b,), default=None
        Bound of the spectral norm of the covariances' errors, as matrices of which a shift
        ``a_j + a_k`` is left out; None if it is not known.
    """

    mean: Moments
    covariance: Moments
    contrast_rest: Tensor | None = None

    def select(self, rows: Tensor) -> Expansion:
        """The expansions over some of the boxes."""
        rest = None if self.contrast_rest is None else self.contrast_rest[rows]
        return Expansion(self.mean.select(rows), self.covariance.select(rows), rest)

    def covariances(self, weights: Tensor) -> Moments:
        """Weighted sums of the covariances, with weights of shape (b, o, n_pairs).

        Their remainders are bounded together where that is better: by the sum of the absolute
        eigenvalues of the weights, but for their share in a shift (Eq. 11).
        """
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
    """The rows ``r(x)`` at the centres, with derivatives in the coordinates of the boxes.

    Value and Jacobian are whitened if the model is; the rest is of ``r(x)`` itself.
    """

    value: Tensor  # (b, m)
    jacobian: Tensor  # (b, m, f)
    magnitude: Tensor  # (b, m), of all that enters the polynomial, times its condition
    curvature: list[tuple[Tensor, Tensor, Tensor]]  # Hessian: coefficient * left right'
    diagonal: list[tuple[Tensor, Tensor]]  # Hessian: coefficient * diag(squared half-widths)

    def hessian(self, weights: Tensor) -> Tensor:
        """Hessian of ``weights @ r(x)`` for weights of shape (b, k, m)."""
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
    """Expands the latent moments of a model around points whose other features are fixed.

    Parameters
    ----------
    model : LatentModel
        The posterior.
    base : Tensor of shape (n, n_features)
        Points that hold the fixed features.
    free : Tensor of shape (f,)
        Indices of the features that vary.
    """

    def __init__(self, model: LatentModel, base: Tensor, free: Tensor):
        self.model = model
        self._inputs = model.inputs[:, free]
        precisions = [term.precisions[:, free] for term in model.kernel.terms]
        self.kernel = StationaryKernel(
            tuple(
                Term(term.variance, term.profiles, precision)
                for term, precision in zip(model.kernel.terms, precisions, strict=True)
            )
        )
        fixed = torch.ones(base.shape[1], dtype=torch.bool, device=base.device)
        fixed[free] = False
        self._offsets = [
            _offsets(base[:, fixed], model.inputs[:, fixed], term.precisions[:, fixed])
            for term in model.kernel.terms
        ]  # one (n, n_profiles, m) per term
        self._same = (model.pairs[0] == model.pairs[1]).to(base)
        self._prior_slopes = self.kernel.slopes()

    def expand(self, region: Region, owner: Tensor) -> Expansion:
        """Second-order expansions around the centres of boxes.

        Parameters
        ----------
        region : Region
            The boxes in the free features, and the balls that cut them.
        owner : Tensor of shape (b,)
            Row of `base` that each box belongs to.

        Returns
        -------
        Expansion
        """
        centers, half_widths, ball = region.coordinates()
        rows = self._rows(centers, half_widths, owner, self.kernel.order)
        norms = self.kernel.norms(half_widths, None if ball is None else ball.distance())
        errors = self._rounding(rows.magnitude, norms.a1 + norms.a2)
        mean, mean_gradient, covariance, gradient, r_R = self._first_order(rows)
        slopes = torch.diag_embed(self._prior_slopes * half_widths**2)[:, None]
        jacobian_R = torch.einsum("bmf,pmn->bpfn", rows.jacobian, self.model.reduction)
        bilinear = jacobian_R @ rows.jacobian[:, None]
        hessian = -2 * (bilinear + rows.hessian(self.model.unwhiten(r_R)))
        if self.kernel.order == 1:  # no second derivatives for the prior's share to cancel
            hessian = hessian + 2 * slopes * self._same[:, None, None]
        left = slopes * self._same[:, None, None] - bilinear
        parts = CovarianceParts(covariance, left, bilinear, norms, errors[1], self.model, ball)
        deviations = parts.deviations()
        b1, beta = self.kernel.gradient_norms(half_widths)
        weights = self.model.unwhiten(self.model.weights)
        return Expansion(
            Moments(
                mean,
                mean_gradient,
                rows.hessian(weights.expand(len(mean), -1, -1)),
                self.model.norms * norms.rho[:, None] + errors[0],  # Eq. 9
                self.model.norms[:, None] * beta[:, None] + 2 * errors[0][..., None],
                ball,
            ),
            Moments(
                covariance,
                gradient,
                hessian,
                deviations.rest(norms, self.model) + errors[1],
                deviations.gradient_rest(norms, b1, beta, self.model) + 2 * errors[1][..., None],
                ball,
            ),
            parts.contrast_rest(),
        )

    def evaluate(self, points: Tensor, owner: Tensor) -> Evaluation:
        """Means and covariances at points, their gradients and their rounding errors."""
        rows = self._rows(points, torch.ones_like(points), owner, 1)
        mean, mean_gradient, covariance, gradient, _ = self._first_order(rows)
        return Evaluation(
            mean, covariance, mean_gradient, gradient, *self._rounding(rows.magnitude, 0.0)
        )

    def shares(self, half_widths: Tensor) -> Tensor:
        """Contribution of each feature to the size of boxes, (b, f), adding up to 1."""
        sizes = self._prior_slopes * half_widths**2
        return sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-300)

    def _rows(self, centers: Tensor, half_widths: Tensor, owner: Tensor, order: int) -> _Rows:
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
            # By the Cauchy-Schwarz inequality; the magnitude serves the rounding error only.
            reaches = [(s * q.sum(-1)[:, None]).sqrt() for s, q in zip(near, squares, strict=True)]
            for p, direction in enumerate(directions):
                slope = 2 * _product(variance, table, p)
                jacobians.append(slope[..., None] * direction)
                size = size - slope * reaches[p]
                condition = condition + total[p]
                if order == 1:
                    continue
                diagonal.append((slope, squares[p]))
                size = size - slope / 2 * squares[p].sum(-1)[:, None]
                for other, opposite in enumerate(directions):
                    bend = 4 * _product(variance, table, p, other)
                    curvature.append((bend, direction, opposite))
                    size = size + bend / 2 * reaches[p] * reaches[other]
            values.append(covariance)
            magnitudes.append(size * condition)
        value, magnitude = _total(values), _total(magnitudes)
        jacobian = _total(jacobians) if jacobians else torch.zeros_like(delta)
        whitened = self.model.whiten(value), self.model.whiten(jacobian.mT).mT
        return _Rows(*whitened, magnitude, curvature, diagonal)

    def _first_order(self, rows: _Rows) -> tuple[Tensor, ...]:
        """Values and gradients of means and covariances, and ``r(x)' R`` for each pair."""
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
        """Rounding errors of the polynomials of the means (b, L) and covariances (b, n_pairs).

        Sums of m products of numbers that are themselves accurate to a few units in the last
        place, times their condition, which `magnitude` holds. `norm` is that of the polynomial
        of ``k(c + t, .)`` without its value.
        """
        # Eq. 27
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
    """Squared distances (n, n_profiles, m) by differences, some points at a time."""
    size = max(1, _ENTRIES // max(1, inputs.numel()))
    parts = [
        torch.einsum("bmf,pf->bpm", (part[:, None] - inputs) ** 2, precisions)
        for part in torch.split(points, size)
    ]
    return torch.cat(parts)


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _product(variance: Tensor, table: list[list[Tensor]], *raised: int) -> Tensor:
    """Product of all profiles, each in the derivative that it is listed for."""
    total = variance
    for p, derivatives in enumerate(table):
        total = total * derivatives[raised.count(p)]
    return total
