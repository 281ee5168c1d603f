"""Regions and the balls that cut them, and minima of quadratic functions over them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skuq.gpc.bounds._regions import BallParts, Region, box_minimum

from .oracles import grid

NORMS = pytest.mark.parametrize("norm", [1, 2])


def inside_of(ball, points):
    return torch.linalg.vector_norm(points - ball.center, ball.norm, -1) <= ball.radius


def ball_of(center, radius, norm):
    """A ball in a box that does not cut it."""
    return Region(center, center - 9, center + 9, radius, norm)


def random_points(rng, norm, n, f, center, radius):
    """Points of a ball, many of them on its border or on an axis."""
    direction = rng.normal(size=(n, f)) * (rng.random((n, f)) < 0.7)
    direction[np.arange(n), rng.integers(0, f, n)] += 0.1
    direction /= np.linalg.norm(direction, norm, axis=1, keepdims=True)
    share = np.where(rng.random((n, 1)) < 0.5, 1 - 1e-15, rng.random((n, 1)))
    return center + radius * share * direction


def tensor(array):
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


@NORMS
def test_shrinking_keeps_every_point_of_the_ball_and_the_box(norm):
    rng = np.random.default_rng(0)
    for f in (1, 2, 4):
        center, radius = rng.normal(size=f), 0.7
        points = random_points(rng, norm, 4000, f, center, radius)
        lower = center + rng.uniform(-1, 0.6, (50, f))
        upper = lower + rng.exponential(0.7, (50, f))
        around = tensor(center).expand(50, f)
        region = Region(around, tensor(lower), tensor(upper), tensor([radius] * 50), norm)
        tight, kept = region.shrink()
        tight_lower, tight_upper = tight.lower, tight.upper
        assert bool((tight_lower >= tensor(lower)).all())
        assert bool((tight_upper <= tensor(upper))[kept].all())
        for i in range(50):
            inside = points[((lower[i] <= points) & (points <= upper[i])).all(axis=1)]
            assert len(inside) == 0 or bool(kept[i])
            assert (tight_lower[i].numpy() <= inside).all()
            assert (inside <= tight_upper[i].numpy()).all()


@NORMS
def test_shrinking_is_exact(norm):
    center, upper, radius = tensor([[0.0, 0.0]]), tensor([[2.0, 2.0]]), tensor([1.0])
    tight, kept = Region(center, tensor([[0.6, -2.0]]), upper, radius, norm).shrink()
    reach = 0.4 if norm == 1 else 0.8
    assert_allclose(tight.lower, [[0.6, -reach]])
    assert_allclose(tight.upper, [[1.0, reach]])
    assert bool(kept)
    _, kept = Region(center, tensor([[0.9, 0.9]]), upper, radius, norm).shrink()
    assert not bool(kept)
    center = tensor([[0.3, 0.1]])  # a ball of radius 0 is a point
    tight, kept = Region(center, center - 0.3, center + 0.7, tensor([0.0]), norm).shrink()
    assert_array_equal(torch.cat([tight.lower, tight.upper]), [[0.3, 0.1]] * 2)
    assert bool(kept)


@NORMS
def test_boxes_within_the_ball_are_told_from_others(norm):
    edge = 0.5 if norm == 1 else 2**-0.5
    for size, inside in ((edge * 0.999, True), (edge * 1.001, False)):
        box = tensor([[1 - size, 1.0]]), tensor([[1.0, 1 + size]])
        region = Region(tensor([[1.0, 1.0]]), *box, tensor([1.0]), norm)
        assert bool(region.is_box()) == inside
        alone = Region(*([region.center] * 3)).is_box()
        assert bool(alone)
        assert alone.dtype == torch.bool


@NORMS
def test_points_outside_are_pulled_in_and_others_stay(norm):
    rng = np.random.default_rng(0)
    points = tensor(rng.normal(size=(500, 3)))
    ball = ball_of(torch.zeros(500, 3).double(), tensor([0.9] * 500), norm)
    pulled = ball.project(points)
    assert bool(inside_of(ball, pulled).all())
    inside = inside_of(ball, points)
    assert_allclose(pulled[inside], points[inside], rtol=1e-14)
    distance = torch.linalg.vector_norm(pulled[~inside], norm, -1)
    assert_allclose(distance, 0.9, rtol=1e-9)


@NORMS
@settings(max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    place=st.sampled_from([0.0, 1.0, -1e9, 1.7e9]),
    grains=st.floats(0.3, 1e5),
    f=st.sampled_from([1, 2, 5, 60]),
)
def test_points_are_pulled_in_where_the_radius_is_a_few_steps_of_float64(
    norm, seed, place, grains, f
):
    rng = np.random.default_rng(seed)
    radius = grains * np.spacing(max(abs(place), 1.0))
    center = place + radius * rng.normal(size=(20, f))
    points = center + radius * rng.normal(size=(20, f)) * rng.choice([0.01, 1, 9], (20, 1))
    ball = Region(tensor(center), tensor(center - 9), tensor(center + 9), tensor([radius]), norm)
    pulled = ball.project(tensor(points)).numpy()
    distance = [exact_distance(a, b, norm) for a, b in zip(pulled, center, strict=True)]
    assert max(distance) <= Fraction(radius) ** norm
    inside = np.linalg.norm(points - center, norm, axis=1) < radius * (1 - 1e-11)
    assert_array_equal(pulled[inside], points[inside])
    # Towards the centre means between the two.
    assert ((np.minimum(points, center) <= pulled) & (pulled <= np.maximum(points, center))).all()


def exact_distance(a, b, norm):
    """The power of the distance of two points, without rounding."""
    return sum(
        abs(Fraction(x) - Fraction(y)) ** norm for x, y in zip(a.tolist(), b.tolist(), strict=True)
    )


@NORMS
def test_linear_functions_are_bounded_over_the_ball(norm):
    rng = np.random.default_rng(1)
    center, radius = rng.normal(size=3), 0.6
    points = random_points(rng, norm, 5000, 3, center, radius)
    ball = ball_of(tensor(center[None]), tensor([radius]), norm)
    for _ in range(30):
        box_center = center + rng.normal(size=3) / 3
        half_widths, gradient = rng.exponential(size=3) + 1e-3, rng.normal(size=3)
        offset, widths = tensor((center - box_center)[None]), tensor(half_widths[None])
        part = BallParts(offset, widths, tensor([radius]), norm)
        found = part.linear_minimum(tensor(gradient[None])).item()
        least = ((points - box_center) / half_widths @ gradient).min()
        assert found <= least
        steepest = ball.steepest(tensor((gradient / half_widths)[None]))[0].numpy()
        lowest = (center - steepest - box_center) / half_widths @ gradient
        assert found == pytest.approx(lowest, rel=1e-9)
    # Features of no width do not matter, and a ball is far smaller than the box around it.
    part = BallParts(tensor([[0.0, 0.0]]), tensor([[0.5, 0.0]]), tensor([1.0]), norm)
    assert part.linear_minimum(tensor([[1.0, 0.0]])).item() == pytest.approx(-2.0)
    offset = torch.zeros(1, 100).double()
    part = BallParts(offset, offset + 0.5, tensor([0.5]), norm)
    assert float(part.squared_length()) == pytest.approx(1.0)


@NORMS
def test_no_step_within_a_ball_leads_further_than_the_steepest(norm):
    rng = np.random.default_rng(3)
    center, gradient = rng.normal(size=(2, 4, 3))
    ball = ball_of(tensor(center), tensor([0.2, 0.5, 1.0, 3.0]), norm)
    step = ball.steepest(tensor(gradient))
    length = torch.linalg.vector_norm(step, norm, -1)
    assert_allclose(length, ball.radius)
    for i in range(4):
        others = random_points(rng, norm, 2000, 3, np.zeros(3), float(ball.radius[i]))
        assert step[i].numpy() @ gradient[i] >= (others @ gradient[i]).max()
    lower, upper = tensor([[0.0, -1.0, 2.0]]), tensor([[0.5, 2.0, 2.0]])
    step = Region(lower, lower, upper).steepest(tensor([[-2.0, 0.1, 1.0]]))  # of a box
    assert_array_equal(step, [[-0.5, 3.0, 0.0]])


def test_half_widths_reach_both_faces_in_spite_of_rounding_and_no_further():
    rng = np.random.default_rng(4)
    lower = rng.normal(size=(200, 2))
    upper = lower + rng.exponential(size=(200, 2))
    origin, half_widths, ball = Region(tensor(lower), tensor(lower), tensor(upper)).coordinates()
    assert ball is None
    parts = (part.flatten().tolist() for part in (lower, origin, half_widths, upper))
    for low, middle, half, high in zip(*(map(Fraction, part) for part in parts), strict=True):
        assert middle - half <= low
        assert high <= middle + half
        assert float(half) <= float(high - low) / 2 * (1 + 1e-12)


@NORMS
def test_regions_are_seen_from_the_ball_if_it_is_closer_than_the_box(norm):
    center, radius = torch.zeros(1, 2).double(), tensor([1.0])
    cut = Region(center, tensor([[-1.0, -1.0]]), tensor([[0.5, 1.0]]), radius, norm)
    origin, half_widths, ball = cut.coordinates()
    assert_array_equal(origin, center)
    assert_allclose(half_widths, [[1.0, 1.0]])
    assert_array_equal(ball.offset, center)
    small = Region(center, tensor([[0.0, 0.0]]), tensor([[0.4, 0.2]]), radius, norm)
    origin, half_widths, ball = small.coordinates()
    assert_allclose(origin, [[0.2, 0.1]])
    assert_allclose(half_widths, [[0.2, 0.1]])
    assert_allclose(ball.offset, [[-0.2, -0.1]])
    assert (ball.radius, ball.norm) == (radius, norm)


@NORMS
def test_some_of_the_regions_in_some_features(norm):
    center = tensor(np.arange(6).reshape(3, 2))
    region = Region(center, center - 1, center + 2, tensor([0.1, 0.2, 0.3]), norm)
    assert len(region) == 3
    part = region.of_features(torch.tensor([1]))[torch.tensor([2, 0])]
    ends = torch.cat([part.center, part.lower, part.upper], 1)
    assert_array_equal(ends, [[5, 4, 7], [1, 0, 3]])
    assert_array_equal(part.radius, [0.3, 0.1])
    assert part.norm == norm


@NORMS
def test_lengths_and_distances_hold_for_every_point_of_the_ball_and_the_box(norm):
    rng = np.random.default_rng(2)
    for f in (1, 3, 5):
        points = random_points(rng, norm, 4000, f, np.zeros(f), 0.8)
        for _ in range(20):
            center, widths = rng.normal(size=f) / 4, rng.exponential(size=f) / 2 + 0.05
            part = BallParts(-tensor(center[None]), tensor(widths[None]), tensor([0.8]), norm)
            t = (points - center) / widths
            t = t[(np.abs(t) <= 1).all(axis=1)]
            if len(t) == 0:
                continue
            assert (t**2).sum(axis=1).max() <= float(part.squared_length()) <= f + 1e-9
            assert float(part.distance()) >= np.linalg.norm(t * widths, norm, axis=1).max()
            gradient = rng.normal(size=(1, 2, f))
            reach = part.linear_reach(tensor(gradient)).numpy()
            assert (reach[0] >= np.abs(t @ gradient[0].T).max(axis=0)).all()


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
def test_no_point_of_the_box_is_below_the_bound(shape):
    for f in (1, 2, 3):
        parts = random_quadratics(np.random.default_rng(f), shape, f)
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
    assert_allclose(bound, least, atol=2e-3 if shape == "convex" else 1e-3)
    if shape != "diagonal":  # whose steps are from saddle points
        attained = np.diagonal(values(parts, point.numpy()))
        assert_allclose(attained, least, atol=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("norm", "offset"), [(1, 0.0), (2, 0.6)])
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
    assert_allclose(bound, least, atol=1e-4)


def test_small_functions_keep_their_digits_beside_large_ones():
    parts = [torch.as_tensor(p) for p in random_quadratics(np.random.default_rng(0), "saddle", 2)]
    scale = torch.logspace(-12, 12, len(parts[0])).double()
    together, _ = box_minimum(*(torch.einsum("b,b...->b...", scale, part) for part in parts))
    alone, _ = box_minimum(*parts)
    assert_allclose(together / scale, alone, rtol=1e-9)
