"""Stationary kernels as sums of products of profiles, with norms of their Taylor terms.

Every supported kernel is a sum of terms ``variance * prod_p kappa_p(s_p)``, where ``s_p`` is
a squared distance with one precision (inverse squared length-scale) per feature. A term computes
values, derivatives, and the error of a Taylor polynomial of ``k(x, .)`` in the norm of the
kernel's Hilbert space. All bounds of this package derive from this error. Equation numbers refer to
the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Kernel,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
)
from torch import Tensor


class TaylorNorms(NamedTuple):
    """Norms of the Taylor terms ``k(c + t, .) = a0 + a1 + a2 + rho`` (Eq. 4 of the proofs page)."""

    a1: Tensor  # norm of the linear term
    a2: Tensor  # norm of the quadratic term; 0 for kernels that are expanded to first order
    rho: Tensor  # bound on the norm of the remainder


class Profile(Protocol):
    """Correlation as a convex, decreasing function of the squared distance s."""

    # `order` is the highest degree, at most 2, for which the Taylor polynomial exists in the
    # Hilbert space of the profile.

    @property
    def order(self) -> int: ...

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]: ...

    def norms(self, q: Tensor, order: int) -> TaylorNorms: ...

    def sixth(self, q: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SquaredExponential:
    """``exp(-s / 2)``."""

    order = 2

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        value = torch.exp(-s / 2)
        return [value, -value / 2, value / 4][: order + 1]

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        return _smooth_norms(q, 3.0, 15.0, order)

    def sixth(self, q: Tensor) -> Tensor:
        return 15 ** (1 / 6) * q.sqrt()


@dataclass(frozen=True)
class Rational:
    """``(1 + s / (2 alpha)) ** -alpha``."""

    alpha: float
    order = 2

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        # ``base ** -alpha`` would multiply the rounding error of the base by alpha.
        share = s / (2 * self.alpha)
        base, value = 1 + share, torch.exp(-self.alpha * torch.log1p(share))
        first = -value / (2 * base)
        second = value * (self.alpha + 1) / (4 * self.alpha * base**2)
        return [value, first, second][: order + 1]

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        return _smooth_norms(q, self._fourth_moment, self._sixth_moment, order)

    def sixth(self, q: Tensor) -> Tensor:
        return self._sixth_moment ** (1 / 6) * q.sqrt()

    @property
    def _fourth_moment(self) -> float:
        return 3 * (self.alpha + 1) / self.alpha

    @property
    def _sixth_moment(self) -> float:
        return 15 * (self.alpha + 1) * (self.alpha + 2) / self.alpha**2


@dataclass(frozen=True)
class Matern52:
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

    def sixth(self, q: Tensor) -> Tensor:
        return torch.where(q > 0, math.inf, 0.0).to(q)


@dataclass(frozen=True)
class Matern32:
    """``(1 + u) exp(-u)`` with ``u^2 = 3 s``."""

    order = 1

    def derivatives(self, s: Tensor, order: int) -> list[Tensor]:
        if order > 1:
            raise ValueError(
                "A Matern kernel with nu=1.5 can be expanded to first order only, got "
                f"order={order}."
            )
        u = (3 * s).sqrt()
        decay = torch.exp(-u)
        return [(1 + u) * decay, -1.5 * decay][: order + 1]

    def norms(self, q: Tensor, order: int) -> TaylorNorms:
        y = 3 * q
        return TaylorNorms(y.sqrt(), torch.zeros_like(y), 4 / 3 * y**0.75)  # Eq. 6

    def sixth(self, q: Tensor) -> Tensor:
        return torch.where(q > 0, math.inf, 0.0).to(q)


def _smooth_norms(q: Tensor, fourth: float, sixth: float, order: int) -> TaylorNorms:
    """Norms from moments of the spectral measure; q is the second moment along t."""
    a2 = math.sqrt(fourth) / 2 * q  # Eq. 3 and 4
    if order == 1:
        return TaylorNorms(q.sqrt(), torch.zeros_like(q), a2)
    return TaylorNorms(q.sqrt(), a2, math.sqrt(sixth) / 6 * q**1.5)


@dataclass(frozen=True)
class Term:
    """``variance * prod_p profiles[p](s_p)``, with `precisions` of shape (p, n_features)."""

    variance: float
    profiles: tuple[Profile, ...]
    precisions: Tensor

    def norms(self, half_widths: Tensor, order: int, distance: Tensor | None = None) -> TaylorNorms:
        """Taylor norms over boxes with half-widths of shape (..., n_features).

        `distance` bounds the distance of points from the centres of the boxes.
        """
        # The norm of a product of functions is the product of their norms. Expansions of profiles
        # are multiplied term by term, and terms of higher order than `order` are added to the
        # remainder.
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
        """Sixth root of the sixth moment of the spectral measure along the half-widths."""
        roots = torch.zeros_like(half_widths[..., 0])
        for profile, precision in zip(self.profiles, self.precisions, strict=True):
            roots = roots + profile.sixth((half_widths**2 * precision).sum(-1))
        return self.variance ** (1 / 6) * roots

    def squared_distances(self, X: Tensor, Z: Tensor) -> Iterator[Tensor]:
        """Squared distances s between the rows of `X` and `Z`, one matrix per profile."""
        for root in self.precisions.sqrt():
            mode = "donot_use_mm_for_euclid_dist"  # accurate for small distances
            yield torch.cdist(X * root, Z * root, compute_mode=mode) ** 2


@dataclass(frozen=True)
class StationaryKernel:
    """Sum of terms; see the docstring of the module."""

    terms: tuple[Term, ...]  # at least one

    @property
    def variance(self) -> float:
        """``k(x, x)``, the same for every x."""
        return sum(term.variance for term in self.terms)

    @property
    def order(self) -> int:
        """Highest order to which all terms can be expanded."""
        return min((p.order for term in self.terms for p in term.profiles), default=2)

    def norms(self, half_widths: Tensor, distance: Tensor | None = None) -> TaylorNorms:
        """Taylor norms over boxes, from the orthogonal sum of the terms' Hilbert spaces (Eq. 8).

        `distance` bounds the distance of points from the centres of the boxes.
        """
        norms = (term.norms(half_widths, self.order, distance) for term in self.terms)
        pieces = zip(*norms, strict=True)
        return TaylorNorms(*(torch.stack(piece).square().sum(0).sqrt() for piece in pieces))

    def gradient_norms(self, half_widths: Tensor) -> tuple[Tensor, Tensor]:
        """Norms b1 and beta of terms of the partial derivatives of ``k(c + t, .)`` (Eq. 12).

        Shapes: `half_widths` (b, f), the units of the derivatives; returns (b, f) each. The norms
        follow from Hoelder's inequality, and are infinite if the kernel is not smooth enough.
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
        """Prior variances of the partial derivatives of a latent function, (n_features,)."""
        total = torch.zeros_like(self.terms[0].precisions.sum(0))
        for term in self.terms:
            for profile, precision in zip(term.profiles, term.precisions, strict=True):
                at_zero = profile.derivatives(torch.zeros_like(precision[:1]), 1)[1]
                total = total - 2 * term.variance * at_zero * precision
        return total

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        """Covariances of shape (n, m) between the rows of `X` and `Z`."""
        total = X.new_zeros(len(X), len(Z))
        for term in self.terms:
            values = torch.full_like(total, term.variance)
            for profile, squared in zip(term.profiles, term.squared_distances(X, Z), strict=True):
                values = values * profile.derivatives(squared, 0)[0]
            total = total + values
        return total

    def sensitivity(self, X: Tensor) -> Tensor:
        """Covariances between the rows of `X`, each times its condition number ``1 + s``."""
        total = X.new_zeros(len(X), len(X))
        for term in self.terms:
            values, condition = torch.full_like(total, term.variance), torch.ones_like(total)
            for profile, squared in zip(term.profiles, term.squared_distances(X, X), strict=True):
                values, condition = values * profile.derivatives(squared, 0)[0], condition + squared
            total = total + values * condition
        return total

    def reach(self, X: Tensor) -> float:
        """Bound on the squared distances of all terms, both from the origin and between rows."""
        distances = [(X**2 @ t.precisions.T).sum(-1).max() for t in self.terms if t.profiles]
        return 4 * max((float(distance) for distance in distances), default=0.0)

    def to(self, device: torch.device) -> StationaryKernel:
        """Copy to a device."""
        return StationaryKernel(
            tuple(Term(t.variance, t.profiles, t.precisions.to(device)) for t in self.terms)
        )


def from_sklearn(kernel: Kernel, n_features: int) -> StationaryKernel:
    """Convert a scikit-learn kernel to a sum of products."""
    return StationaryKernel(tuple(_terms(kernel, n_features)))


def _terms(kernel: Kernel, n_features: int) -> list[Term]:
    if isinstance(kernel, Sum):
        return [*_terms(kernel.k1, n_features), *_terms(kernel.k2, n_features)]
    if isinstance(kernel, Product):
        right = _terms(kernel.k2, n_features)
        return [_product(a, b) for a in _terms(kernel.k1, n_features) for b in right]
    if isinstance(kernel, ConstantKernel):
        return [Term(float(kernel.constant_value), (), torch.zeros(0, n_features).double())]
    profile = _profile(kernel)
    scale = np.broadcast_to(np.asarray(kernel.length_scale, float), (n_features,))
    # Products and quotients, unlike powers, are exactly invariant to scaling by powers of two.
    return [Term(1.0, (profile,), torch.as_tensor(1 / (scale * scale))[None])]


def _profile(kernel: Kernel) -> Profile:
    if isinstance(kernel, Matern):  # checked before RBF, its base class
        if kernel.nu in (1.5, 2.5):
            return Matern32() if kernel.nu == 1.5 else Matern52()
    elif isinstance(kernel, RationalQuadratic):
        return Rational(float(kernel.alpha))
    elif isinstance(kernel, RBF):
        return SquaredExponential()
    raise ValueError(
        f"Bounds are not known for the kernel {kernel!r}; build it from RBF, Matern with nu=1.5 "
        "or nu=2.5, RationalQuadratic and ConstantKernel with + and *."
    )


def _product(a: Term, b: Term) -> Term:
    """Product of two terms; squared exponentials are merged into one."""
    profiles = [*a.profiles, *b.profiles]
    precisions = torch.cat([a.precisions, b.precisions])
    gaussian = [isinstance(profile, SquaredExponential) for profile in profiles]
    if sum(gaussian) > 1:
        merged = precisions[torch.tensor(gaussian)].sum(0, keepdim=True)
        others = [p for p, is_gaussian in zip(profiles, gaussian, strict=True) if not is_gaussian]
        profiles = [SquaredExponential(), *others]
        precisions = torch.cat([merged, precisions[~torch.tensor(gaussian)]])
    return Term(a.variance * b.variance, tuple(profiles), precisions)
