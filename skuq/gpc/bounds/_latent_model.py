"""The posterior as tensors, the Taylor norms of its kernel, and constants for bounds.

Every supported kernel is a sum of terms ``variance * prod_p kappa_p(s_p)``. Each ``s_p`` is a
squared distance, weighted with a precision (inverse squared length-scale) per feature. Bounds
follow from the norm, in the kernel's Hilbert space, of the error of a Taylor polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.inference._posterior import JointPosterior, Posterior

UNIT = 2.0**-53  # relative rounding error of one float64 operation


class TaylorNorms(NamedTuple):
    """Norms of the Taylor terms ``k(c + t, .) = a0 + a1 + a2 + rho`` (Eq. 4 of the proofs page)."""

    a1: Tensor  # norm of the linear term
    a2: Tensor  # norm of the quadratic term; 0 for kernels that are expanded to first order
    rho: Tensor  # bound on the norm of the remainder


# A profile is a convex and decreasing function that maps the squared distance s to a correlation.
# Its `order` is the highest degree, at most 2, of a Taylor polynomial that exists in its Hilbert
# space.


class _Smooth:
    """Profile whose Taylor norms are computed from moments of its spectral measure."""

    order = 2
    fourth_moment: float
    sixth_moment: float

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        # q is the second moment of the spectral measure in the direction t.
        a2 = math.sqrt(self.fourth_moment) / 2 * q  # Eq. 3 and 4
        if order == 1:
            return TaylorNorms(q.sqrt(), torch.zeros_like(q), a2)
        return TaylorNorms(q.sqrt(), a2, math.sqrt(self.sixth_moment) / 6 * q**1.5)

    def sixth(self, q: Tensor) -> Tensor:
        return self.sixth_moment ** (1 / 6) * q.sqrt()


@dataclass(frozen=True)
class SquaredExponential(_Smooth):
    """``exp(-s / 2)``."""

    fourth_moment = 3.0
    sixth_moment = 15.0

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        value = torch.exp(-s / 2)
        return [value, -value / 2, value / 4][: order + 1]


@dataclass(frozen=True)
class Rational(_Smooth):
    """``(1 + s / (2 alpha)) ** -alpha``."""

    alpha: float

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        # `log1p` is used because ``base ** -alpha`` multiplies the rounding error of base by alpha.
        share = s / (2 * self.alpha)
        base, value = 1 + share, torch.exp(-self.alpha * torch.log1p(share))
        first = -value / (2 * base)
        second = value * (self.alpha + 1) / (4 * self.alpha * base**2)
        return [value, first, second][: order + 1]

    @property
    def fourth_moment(self) -> float:  # type: ignore[override]
        return 3 * (self.alpha + 1) / self.alpha

    @property
    def sixth_moment(self) -> float:  # type: ignore[override]
        return 15 * (self.alpha + 1) * (self.alpha + 2) / self.alpha**2


class _Rough:
    """Profile whose spectral measure has an infinite sixth moment."""

    def sixth(self, q: Tensor) -> Tensor:
        return torch.where(q > 0, math.inf, 0.0).to(q)


@dataclass(frozen=True)
class Matern52(_Rough):
    """``(1 + u + u^2 / 3) exp(-u)`` with ``u^2 = 5 s``."""

    order = 2

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        u = (5 * s).sqrt()
        decay = torch.exp(-u)
        values = [(1 + u + u * u / 3) * decay, -5 / 6 * (1 + u) * decay, 25 / 12 * decay]
        return values[: order + 1]

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        y = 5 * q
        if order == 1:
            return TaylorNorms((y / 3).sqrt(), torch.zeros_like(y), y / 2)
        rho = 16 / (15 * math.sqrt(3)) * y**1.25  # Eq. 5
        return TaylorNorms((y / 3).sqrt(), y / 2, rho)


@dataclass(frozen=True)
class Matern32(_Rough):
    """``(1 + u) exp(-u)`` with ``u^2 = 3 s``, which has expansions of order 0 and 1 only."""

    order = 1

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        u = (3 * s).sqrt()
        decay = torch.exp(-u)
        return [(1 + u) * decay, -1.5 * decay][: order + 1]

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        y = 3 * q
        return TaylorNorms(y.sqrt(), torch.zeros_like(y), 4 / 3 * y**0.75)  # Eq. 6


Profile = SquaredExponential | Rational | Matern52 | Matern32


@dataclass(frozen=True)
class Term:
    variance: float
    profiles: tuple[Profile, ...]
    precisions: Tensor

    def norms(self, half_widths: Tensor, order: int, distance: Tensor | None = None) -> TaylorNorms:
        """Compute Taylor norms over boxes with half-widths of shape (..., n_features).

        `distance`, if passed, bounds the distance of points from the centres of the boxes.
        """
        # The norm of a product of functions is the product of their norms. The expansions of all
        # profiles are multiplied. Products of an order above `order` belong to the remainder.
        a1 = a2 = rho = torch.zeros_like(half_widths[..., 0])
        for profile, precision in zip(self.profiles, self.precisions, strict=True):
            q = (half_widths**2 * precision).sum(-1)
            if distance is not None:
                q = torch.minimum(q, distance**2 * precision.max())
            b1, b2, sigma = profile.norms(q, order)
            crossed = a1 * b1
            # Eq. 7
            rho = rho + sigma * (1 + a1 + a2) + a1 * b2 + a2 * b1 + a2 * b2
            if order == 1:
                rho, crossed = rho + crossed, torch.zeros_like(crossed)
            a1, a2 = a1 + b1, a2 + b2 + crossed
        scale = math.sqrt(self.variance)
        return TaylorNorms(scale * a1, scale * a2, scale * rho)

    def sixth(self, half_widths: Tensor) -> Tensor:
        """Bound the sixth root of the spectral measure's sixth moment along `half_widths`."""
        roots = torch.zeros_like(half_widths[..., 0])
        for profile, precision in zip(self.profiles, self.precisions, strict=True):
            roots = roots + profile.sixth((half_widths**2 * precision).sum(-1))
        return self.variance ** (1 / 6) * roots

    def squared_distances(self, X: Tensor, Z: Tensor) -> Iterator[Tensor]:
        for root in self.precisions.sqrt():
            mode = "donot_use_mm_for_euclid_dist"  # matrix products lose digits of small distances
            yield torch.cdist(X * root, Z * root, compute_mode=mode) ** 2


@dataclass(frozen=True)
class StationaryKernel:
    terms: tuple[Term, ...]  # at least one

    @property
    def variance(self) -> float:
        return sum(term.variance for term in self.terms)

    @property
    def order(self) -> int:
        return min((p.order for term in self.terms for p in term.profiles), default=2)

    def norms(self, half_widths: Tensor, distance: Tensor | None = None) -> TaylorNorms:
        """Combine the Taylor norms of the terms, whose Hilbert spaces are orthogonal (Eq. 8)."""
        norms = (term.norms(half_widths, self.order, distance) for term in self.terms)
        pieces = zip(*norms, strict=True)
        return TaylorNorms(*(torch.stack(piece).square().sum(0).sqrt() for piece in pieces))

    def gradient_norms(self, half_widths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norms b1 and beta, (b, f) each, for partial derivatives of ``k(c + t, .)``.

        By Hoelder's inequality, b1 bounds the linear Taylor term, beta the terms after it (Eq. 12).
        Units of features are `half_widths` (b, f). Norms of `_Rough` profiles are infinite.
        """
        b, f = half_widths.shape
        each = torch.diag_embed(half_widths)
        linear, rest = half_widths.new_zeros(b, f), half_widths.new_zeros(b, f)
        for term in self.terms:
            single, along = term.sixth(each), term.sixth(half_widths)[:, None]
            product = torch.where(single == 0, 0.0, single * along)
            linear = linear + term.variance ** (1 / 3) * product**2
            rest = rest + torch.where(single == 0, 0.0, product * along) ** 2
        return linear.sqrt(), rest.sqrt() / 2

    def slopes(self) -> Tensor:
        """Return the prior variances (n_features,) of a latent function's partial derivatives."""
        total = torch.zeros_like(self.terms[0].precisions.sum(0))
        for term in self.terms:
            for profile, precision in zip(term.profiles, term.precisions, strict=True):
                at_zero = profile.derivatives(torch.zeros_like(precision[:1]), 1)[1]
                total = total - 2 * term.variance * at_zero * precision
        return total

    def __call__(self, X: Tensor, Z: Tensor, sensitivity: bool = False) -> Tensor:
        """Compute covariances, each multiplied by its condition number if `sensitivity` is True."""
        total = X.new_zeros(len(X), len(Z))
        for term in self.terms:
            values, condition = torch.full_like(total, term.variance), torch.ones_like(total)
            for profile, squared in zip(term.profiles, term.squared_distances(X, Z), strict=True):
                values, condition = values * profile.derivatives(squared, 0)[0], condition + squared
            total = total + (values * condition if sensitivity else values)
        return total

    def reach(self, X: Tensor) -> float:
        """Bound the squared distances of rows from the origin and from each other, in all terms."""
        distances = [(X**2 @ t.precisions.T).sum(-1).max() for t in self.terms if t.profiles]
        return 4 * max((float(distance) for distance in distances), default=0.0)

    def to(self, device: torch.device) -> StationaryKernel:
        return StationaryKernel(
            tuple(Term(t.variance, t.profiles, t.precisions.to(device)) for t in self.terms)
        )


def from_sklearn(kernel: kernels.Kernel, n_features: int) -> StationaryKernel:
    return StationaryKernel(tuple(_terms(kernel, n_features)))


def _terms(kernel: kernels.Kernel, n_features: int) -> list[Term]:
    if isinstance(kernel, kernels.Sum):
        return [*_terms(kernel.k1, n_features), *_terms(kernel.k2, n_features)]
    if isinstance(kernel, kernels.Product):
        right = _terms(kernel.k2, n_features)
        return [_product(a, b) for a in _terms(kernel.k1, n_features) for b in right]
    if isinstance(kernel, kernels.ConstantKernel):
        return [Term(float(kernel.constant_value), (), torch.zeros(0, n_features).double())]
    profile = _profile(kernel)
    scale = np.broadcast_to(np.asarray(kernel.length_scale, float), (n_features,))
    # `scale * scale` rounds equally in units that differ by a power of two; `scale**2` may not.
    return [Term(1.0, (profile,), torch.as_tensor(1 / (scale * scale))[None])]


def _profile(kernel: kernels.Kernel) -> Profile:
    if isinstance(kernel, kernels.Matern):  # checked before RBF, the base class of Matern
        if kernel.nu in (1.5, 2.5):
            return Matern32() if kernel.nu == 1.5 else Matern52()
    elif isinstance(kernel, kernels.RationalQuadratic):
        return Rational(float(kernel.alpha))
    elif isinstance(kernel, kernels.RBF):
        return SquaredExponential()
    raise ValueError(f"Bounds are not known for the kernel {kernel!r}.")


def _product(a: Term, b: Term) -> Term:
    profiles = [*a.profiles, *b.profiles]
    precisions = torch.cat([a.precisions, b.precisions])
    gaussian = [isinstance(profile, SquaredExponential) for profile in profiles]
    if sum(gaussian) > 1:
        merged = precisions[torch.tensor(gaussian)].sum(0, keepdim=True)
        others = [p for p, is_gaussian in zip(profiles, gaussian, strict=True) if not is_gaussian]
        profiles = [SquaredExponential(), *others]
        precisions = torch.cat([merged, precisions[~torch.tensor(gaussian)]])
    return Term(a.variance * b.variance, tuple(profiles), precisions)


@dataclass(frozen=True)
class Whitening:
    matrix: Tensor  # (m, m), T, which maps rows ``r(x)`` to whitened rows
    # Bound c on the largest eigenvalue of ``T K T'`` (Eq. 30). The length of the whitened row of a
    # function is at most sqrt(c) times the norm of the function in the kernel's Hilbert space.
    excess: float
    coefficients: Tensor  # (L,), norms of the coefficients of the means
    spectral: Tensor  # (n_pairs,), spectral norms of the matrices R
    frobenius: Tensor  # (n_pairs,), Frobenius norms of the matrices R


@dataclass(frozen=True)
class LatentModel:
    # Bounds hold for the posterior that exact arithmetic would compute from these float64 numbers.

    kernel: StationaryKernel  # prior covariance
    inputs: Tensor  # (m, n_features), training inputs or inducing points
    weights: Tensor  # (L, m), coefficients of the means
    # (L (L + 1) / 2, m, m), symmetric matrices R of the pairs ``c <= d``, in the order of `pairs`
    reduction: Tensor
    norms: Tensor  # (L,), upper bounds on the norms of the means in the kernel's Hilbert space
    # Number such that the posterior covariance plus `varsigma` times the prior covariance is
    # positive semi-definite in spite of rounding (Eq. 2 of the proofs page)
    varsigma: float
    # If not None, `weights` and `reduction` are coefficients of whitened rows instead of ``r(x)``
    whitening: Whitening | None = None

    @classmethod
    def from_posterior(cls, posterior: Posterior, device: torch.device) -> LatentModel:
        inputs = torch.tensor(posterior.inputs, dtype=torch.float64)
        kernel = from_sklearn(posterior.kernel, inputs.shape[1])
        if isinstance(posterior, JointPosterior) and posterior.whitener is not None:
            return cls._whitened(kernel, inputs, posterior, posterior.whitener, device)
        weights = torch.tensor(posterior.weights, dtype=torch.float64)
        matrices = torch.tensor(posterior.reduction(), dtype=torch.float64)
        inputs_at_origin = inputs - inputs.mean(0)  # reduces rounding errors of distances
        gram = kernel(inputs_at_origin, inputs_at_origin)
        # Eq. 27, with the factor 4 as a margin, because two sums of products are nested.
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
        spectral = torch.linalg.matrix_norm(matrices, 2) * (1 + 1e-9)
        frobenius = torch.linalg.matrix_norm(matrices) * (1 + 1e-9)
        sizes = (part.to(device) for part in (coefficients, spectral, frobenius))
        whitening = Whitening(T.to(device), excess, *sizes)
        reduction = (matrices + matrices.mT) / 2
        inputs, weights, reduction = (part.to(device) for part in (inputs, weights, reduction))
        norms = (excess**0.5 * coefficients).to(device)
        kernel = kernel.to(device)
        return cls(kernel, inputs, weights, reduction, norms, varsigma, whitening)

    def whiten(self, rows: Tensor) -> Tensor:
        """Map rows ``r(x)`` (..., m) to whitened rows; identity if the model is not whitened."""
        return rows if self.whitening is None else rows @ self.whitening.matrix.mT

    def unwhiten(self, weights: Tensor) -> Tensor:
        """Map coefficients of whitened rows, (..., m), to coefficients of rows ``r(x)``."""
        return weights if self.whitening is None else weights @ self.whitening.matrix

    @property
    def n_latent(self) -> int:
        return len(self.weights)

    @cached_property
    def pairs(self) -> Tensor:
        return torch.triu_indices(self.n_latent, self.n_latent, device=self.inputs.device)

    @cached_property
    def own_and_crossed(self) -> tuple[Tensor, Tensor]:
        """Positions in `pairs` of the pairs with ``c == d``, and of those with ``c < d``."""
        own = self.pairs[0] == self.pairs[1]
        return torch.nonzero(own)[:, 0], torch.nonzero(~own)[:, 0]

    @cached_property
    def row_sums(self) -> Tensor:
        return self.reduction.abs().sum(-1)


def _indefiniteness(gram: Tensor, reduction: Tensor, n_latent: int, unit: float) -> float:
    """Compute varsigma, a bound on the excess of `reduction` over the prior covariance (Eq. 2)."""
    # With ``R = F F'``, varsigma is ``max(0, lambda_max(F' K F) - 1)`` plus two terms: one for
    # negative eigenvalues of R, and one for rounding errors of relative size `unit`.
    m = len(gram)
    values, vectors = torch.linalg.eigh(_joint(reduction, n_latent))
    factor = (vectors * values.clamp(min=0).sqrt()).reshape(n_latent, m, -1)
    product = torch.einsum("cmi,cmj->ij", factor, gram @ factor)
    largest = torch.linalg.eigvalsh(product)[-1]
    scale = float(gram.diagonal().sum() * values.abs().max())
    negative = float((-values[0]).clamp(min=0) * gram.diagonal().sum())
    return max(0.0, float(largest) - 1) + negative + n_latent * unit * max(1.0, scale)


def _joint(reduction: Tensor, n_latent: int) -> Tensor:
    m = reduction.shape[-1]
    joint = reduction.new_zeros(n_latent, m, n_latent, m)
    for block, c, d in zip(reduction, *np.triu_indices(n_latent), strict=True):
        joint[c, :, d], joint[d, :, c] = block, block.mT
    return joint.reshape(n_latent * m, -1)


def _largest_of_whitened(kernel: StationaryKernel, inputs: Tensor, T: Tensor) -> float:
    """Bound the largest eigenvalue of ``T K T'`` (Eq. 30)."""
    # L inverts T up to rounding: ``T L = I + E`` and ``K <= L L' + eta``, with small E and eta.
    m, d = inputs.shape
    inputs = inputs - inputs.mean(0)  # reduces rounding errors of distances
    L = torch.linalg.solve_triangular(T, torch.eye(m).to(T), upper=False)
    gram, sensitivity = (kernel(inputs, inputs, sensitive) for sensitive in (False, True))
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
