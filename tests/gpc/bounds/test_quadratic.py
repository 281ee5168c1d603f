"""Lower bounds of quadratic functions over boxes."""

import numpy as np
import pytest
import torch

from skuq.gpc.bounds._quadratic import box_minimum
from skuq.gpc.bounds._regions import BallParts

from .oracles import grid

SHAPES = ["convex", "concave", "saddle", "diagonal", "flat"]


def random_quadratics(rng, shape, f, count=40):
    root = rng.normal(size=(count, f, f))
    signs = {"convex": np.ones(f), "concave": -np.ones(f), "flat": np.zeros(f)}
    weights = signs.get(shape, rng.choice([-1.0, 1.0], (count, f)) * np.ones((count, f)))
    weights = np.broadcast_to(weights, (count, f))
    if shape == "diagonal":
        root = np.broadcast_to(np.eye(f), (count, f, f))
    hessian = 3 * np.einsum("nij,nj,nkj->nik", root, weights, root)
    return [rng.normal(size=count), 2 * rng.normal(size=(count, f)), hessian]


def values(parts, t):
    value, gradient, hessian = parts
    return value[:, None] + gradient @ t.T + np.einsum("ni,bij,nj->bn", t, hessian, t) / 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f", [1, 2, 3])
def test_no_point_of_the_box_is_below_the_bound(shape, f):
    rng = np.random.default_rng(f)
    parts = random_quadratics(rng, shape, f)
    bound, point = box_minimum(*map(torch.as_tensor, parts))
    least = values(parts, grid(-np.ones(f), np.ones(f), 21)).min(axis=1)
    assert (bound.numpy() <= least).all()
    assert bool((point.abs() <= 1).all())


@pytest.mark.parametrize("shape", ["convex", "diagonal", "flat"])
def test_what_is_convex_or_separable_is_solved(shape):
    parts = random_quadratics(np.random.default_rng(0), shape, 2)
    if shape == "convex":  # well away from singular, where a few sweeps suffice
        parts[2] = parts[2] + 20 * np.eye(2)
    bound, point = box_minimum(*map(torch.as_tensor, parts))
    least = values(parts, grid(-np.ones(2), np.ones(2), 401)).min(axis=1)
    np.testing.assert_allclose(bound, least, atol=2e-3 if shape == "convex" else 1e-3)
    if shape != "diagonal":  # whose steps are from saddle points
        attained = np.array(
            [
                values([p[i : i + 1] for p in parts], point[i : i + 1].numpy())[0, 0]
                for i in range(40)
            ]
        )
        np.testing.assert_allclose(attained, least, atol=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("offset", [0.0, 0.6])
def test_a_ball_within_the_box_is_respected_and_used(shape, norm, offset):
    rng = np.random.default_rng(0)
    parts = random_quadratics(rng, shape, 2)
    center, widths, radius = np.array([offset, -offset / 2]), np.array([1.0, 0.4]), 0.5
    n = len(parts[0])
    expanded = (torch.as_tensor(p).expand(n, *np.shape(p)) for p in (center, widths, radius))
    part = BallParts(*expanded, norm)
    t = grid(-np.ones(2), np.ones(2), 101)
    t = t[np.linalg.norm(t * widths - center, norm, axis=1) <= radius]
    bound, _ = box_minimum(*map(torch.as_tensor, parts), part)
    assert (bound.numpy() <= values(parts, t).min(axis=1)).all()
    alone, _ = box_minimum(*map(torch.as_tensor, parts))
    assert (bound >= alone).all()
    assert (bound > alone + 1e-3).any()


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_rounding_never_lifts_the_bound(scale):
    value, gradient, hessian = torch.ones(1).double(), torch.zeros(1, 3), torch.ones(1, 3, 3)
    bound, _ = box_minimum(value * scale, gradient.double(), hessian.double() * scale)
    assert float(bound) <= scale  # the minimum is attained on a whole plane
    assert float(bound) >= scale * (1 - 1e-9)


@pytest.mark.parametrize(
    ("gradient", "hessian", "radius", "least"),
    [
        ([0, 0], [[0, 0], [0, 0]], None, 0),
        ([0, 0], [[-3, 1], [1, 0]], None, -2.5),  # the diagonal, minus the rest: Eq. 14
        ([1, 1], [[0, 1], [1, 0]], None, -1.5),  # a tangent, minus what makes it convex: Eq. 15
        ([0.1, 0], [[0.5, 0.2], [0.2, 0.5]], None, -1 / 84),  # within the box
        ([-3, 0], [[1, 0], [0, 1]], 0.9, -2.3),  # a tangent at the least point of the box
        ([-3, 0], [[1, 0], [0, -1]], 0.1, -0.305),  # a tangent at zero
    ],
)
def test_bounds_are_as_good_as_their_formulas(gradient, hessian, radius, least):
    parts = [torch.tensor([part] * 3).double() for part in (0.0, gradient, hessian)]
    ball = None
    if radius is not None:
        zero = torch.zeros(3, 2).double()
        ball = BallParts(zero, zero + 1, torch.full((3,), radius).double(), 2)
    bound, _ = box_minimum(*parts, ball)
    np.testing.assert_allclose(bound, least, atol=1e-4)


def test_small_functions_keep_their_digits_beside_large_ones():
    parts = [torch.as_tensor(p) for p in random_quadratics(np.random.default_rng(0), "saddle", 2)]
    scale = torch.logspace(-12, 12, len(parts[0])).double()
    together, _ = box_minimum(*(torch.einsum("b,b...->b...", scale, part) for part in parts))
    alone, _ = box_minimum(*parts)
    np.testing.assert_allclose(together / scale, alone, rtol=1e-9)
