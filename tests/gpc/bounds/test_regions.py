"""Regions, as users state them, too, the balls that cut them, and minima of quadratic functions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skuq.gpc.bounds._regions import BallParts, Region, box_minimum

from .oracles import ORDERS, around, grid, tensor, within

NORMS = pytest.mark.parametrize("norm", [1, 2])


def length(points, norm):
    return np.linalg.norm(points, norm, axis=-1)


def ball_of(center, radius, norm):
    return Region(tensor(center), tensor(center) - 9, tensor(center) + 9, tensor(radius), norm)


def random_points(rng, norm, n, f, center, radius):
    direction = rng.normal(size=(n, f)) * (rng.random((n, f)) < 0.7)
    direction[np.arange(n), rng.integers(0, f, n)] += 0.1
    direction /= length(direction, norm)[:, None]
    share = np.where(rng.random((n, 1)) < 0.5, 1 - 1e-15, rng.random((n, 1)))
    return center + radius * share * direction


@NORMS
def test_shrinking_keeps_every_point_of_the_ball_and_the_box(norm):
    rng = np.random.default_rng(0)
    for f in (1, 2, 4):
        center = rng.normal(size=f)
        points = random_points(rng, norm, 4000, f, center, 0.7)
        lower = center + rng.uniform(-1, 0.6, (50, f))
        upper = lower + rng.exponential(0.7, (50, f))
        balls = tensor([center] * 50), tensor(lower), tensor(upper), tensor([0.7] * 50)
        tight, kept = Region(*balls, norm).shrink()
        assert within(lower, tight.lower, np.inf)
        assert within(-np.inf, tight.upper[kept], upper[kept.numpy()])
        for i in range(50):
            inside = points[((lower[i] <= points) & (points <= upper[i])).all(axis=1)]
            assert len(inside) == 0 or bool(kept[i])
            assert within(tight.lower[i], inside, tight.upper[i])


@NORMS
def test_shrinking_is_exact(norm):
    center, upper, radius = tensor([[0.0, 0.0]]), tensor([[2.0, 2.0]]), tensor([1.0])
    tight, kept = Region(center, tensor([[0.6, -2.0]]), upper, radius, norm).shrink()
    reach = 0.4 if norm == 1 else 0.8
    assert_allclose(torch.cat([tight.lower, tight.upper]), [[0.6, -reach], [1.0, reach]])
    assert bool(kept)
    assert not bool(Region(center, tensor([[0.9, 0.9]]), upper, radius, norm).shrink()[1])
    center = tensor([[0.3, 0.1]])  # a ball of radius 0 is a point
    tight, kept = Region(center, center - 0.3, center + 0.7, tensor([0.0]), norm).shrink()
    assert_array_equal(torch.cat([tight.lower, tight.upper]), [[0.3, 0.1]] * 2)
    assert bool(kept)


@NORMS
def test_boxes_within_the_ball_are_told_from_others(norm):
    edge, center = 0.5 if norm == 1 else 2**-0.5, tensor([[1.0, 1.0]])
    for size, inside in ((edge * 0.999, True), (edge * 1.001, False)):
        box = tensor([[1 - size, 1.0]]), tensor([[1.0, 1 + size]])
        assert bool(Region(center, *box, tensor([1.0]), norm).is_box()) == inside
    alone = Region(center, center, center).is_box()
    assert bool(alone)
    assert alone.dtype == torch.bool


@NORMS
@settings(max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    place=st.sampled_from([0.0, 1.0, -1e9, 1.7e9]),
    grains=st.floats(0.3, 1e5),
    f=st.sampled_from([1, 2, 5, 60]),
)
def test_points_outside_are_pulled_in_and_others_stay(norm, seed, place, grains, f):
    """Also where the radius is a few steps of float64."""
    rng, radius = np.random.default_rng(seed), grains * np.spacing(max(abs(place), 1.0))
    center = place + radius * rng.normal(size=(20, f))
    steps = rng.normal(size=(20, f)) * rng.choice([0.01, 1, 9], (20, 1))
    points = center + radius * steps
    pulled = ball_of(center, [radius], norm).project(tensor(points)).numpy()
    for a, b in zip(pulled.tolist(), center.tolist(), strict=True):  # without rounding
        powers = (abs(Fraction(x) - Fraction(y)) ** norm for x, y in zip(a, b, strict=True))
        assert sum(powers) <= Fraction(radius) ** norm
    inside = length(points - center, norm) < radius * (1 - 1e-11)
    assert_array_equal(pulled[inside], points[inside])
    # Towards the centre means between the two.
    assert within(np.minimum(points, center), pulled, np.maximum(points, center))
    pulled = ball_of(0 * center, [0.9], norm).project(tensor(steps)).numpy()
    assert_allclose(length(pulled, norm), length(steps, norm).clip(max=0.9), rtol=1e-9)


@NORMS
def test_linear_functions_are_bounded_over_the_ball(norm):
    rng = np.random.default_rng(1)
    center, radius = rng.normal(size=3), 0.6
    points = random_points(rng, norm, 5000, 3, center, radius)
    ball = ball_of([center], [radius], norm)
    for _ in range(30):
        box_center = center + rng.normal(size=3) / 3
        half_widths, gradient = rng.exponential(size=3) + 1e-3, rng.normal(size=3)
        given = map(tensor, ([center - box_center], [half_widths], [radius]))
        part = BallParts(*given, norm)
        found = part.linear_minimum(tensor([gradient])).item()
        assert found <= ((points - box_center) / half_widths @ gradient).min()
        steepest = ball.steepest(tensor([gradient / half_widths]))[0].numpy()
        lowest = (center - steepest - box_center) / half_widths @ gradient
        assert found == pytest.approx(lowest, rel=1e-9)
    # Features of no width do not matter, and a ball is far smaller than the box around it.
    part = BallParts(tensor([[0.0, 0.0]]), tensor([[0.5, 0.0]]), tensor([1.0]), norm)
    assert part.linear_minimum(tensor([[1.0, 0.0]])).item() == pytest.approx(-2.0)
    part = BallParts(tensor([[0.0] * 100]), tensor([[0.5] * 100]), tensor([0.5]), norm)
    assert float(part.squared_length()) == pytest.approx(1.0)
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
def test_lengths_and_distances_hold_for_every_point_of_the_ball_and_the_box(norm):
    rng = np.random.default_rng(2)
    for f in (1, 3, 5):
        points = random_points(rng, norm, 4000, f, np.zeros(f), 0.8)
        for _ in range(20):
            center, widths = rng.normal(size=f) / 4, rng.exponential(size=f) / 2 + 0.05
            part = BallParts(-tensor([center]), tensor([widths]), tensor([0.8]), norm)
            gradient, t = rng.normal(size=(1, 2, f)), (points - center) / widths
            t = t[(np.abs(t) <= 1).all(axis=1)]
            if len(t):
                assert (t**2).sum(axis=1).max() <= float(part.squared_length()) <= f + 1e-9
                assert float(part.distance()) >= length(t * widths, norm).max()
                reach = part.linear_reach(tensor(gradient)).numpy()
                assert (reach[0] >= np.abs(t @ gradient[0].T).max(axis=0)).all()


SHAPES = ["convex", "concave", "saddle", "diagonal", "flat"]


def random_quadratics(rng, shape, f, count=40):
    root = rng.normal(size=(count, f, f))
    weights = rng.choice([-1.0, 1.0], (count, f))
    if shape in ("convex", "concave", "flat"):
        weights[:] = {"convex": 1, "concave": -1, "flat": 0}[shape]
    if shape == "diagonal":
        root[:] = np.eye(f)
    hessian = 3 * np.einsum("nij,nj,nkj->nik", root, weights, root)
    return [rng.normal(size=count), 2 * rng.normal(size=(count, f)), hessian]


def values(parts, t):
    value, gradient, hessian = parts
    return value[:, None] + gradient @ t.T + np.einsum("ni,bij,nj->bn", t, hessian, t) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_no_point_of_the_box_is_below_the_bound_and_what_is_convex_or_separable_is_solved(shape):
    for f in (1, 2, 3):
        parts = random_quadratics(np.random.default_rng(f), shape, f)
        bound, point = box_minimum(*map(tensor, parts))
        least = values(parts, grid(-np.ones(f), np.ones(f), 21)).min(axis=1)
        assert (bound.numpy() <= least).all()
        assert bool((point.abs() <= 1).all())
    if shape in ("concave", "saddle"):
        return
    parts = random_quadratics(np.random.default_rng(0), shape, 2)
    if shape == "convex":  # well away from singular, where a few sweeps suffice
        parts[2] = parts[2] + 20 * np.eye(2)
    bound, point = box_minimum(*map(tensor, parts))
    least = values(parts, grid(-np.ones(2), np.ones(2), 401)).min(axis=1)
    assert_allclose(bound, least, atol=2e-3 if shape == "convex" else 1e-3)
    if shape != "diagonal":  # whose steps are from saddle points
        assert_allclose(np.diagonal(values(parts, point.numpy())), least, atol=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("norm", "offset"), [(1, 0.0), (2, 0.6)])
def test_a_ball_within_the_box_is_respected_and_used(shape, norm, offset):
    parts = random_quadratics(np.random.default_rng(0), shape, 2)
    center, widths = np.array([offset, -offset / 2]), np.array([1.0, 0.4])
    ball = BallParts(tensor([center] * 40), tensor([widths] * 40), tensor([0.5] * 40), norm)
    t = grid(-np.ones(2), np.ones(2), 101)
    t = t[length(t * widths - center, norm) <= 0.5]
    bound, _ = box_minimum(*map(tensor, parts), ball)
    alone, _ = box_minimum(*map(tensor, parts))
    assert (bound.numpy() <= values(parts, t).min(axis=1)).all()
    assert (bound >= alone).all()
    assert (bound > alone + 1e-3).any()


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_rounding_never_lifts_the_bound(scale):
    """Of a minimum that is attained on a whole plane."""
    bound, _ = box_minimum(tensor([scale]), tensor([[0.0] * 3]), tensor(np.full((1, 3, 3), scale)))
    assert scale * (1 - 1e-9) <= float(bound) <= scale


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
    ball = None
    if radius is not None:
        ball = BallParts(tensor([[0.0] * 2] * 3), tensor([[1.0] * 2] * 3), tensor([radius] * 3), 2)
    bound, _ = box_minimum(*(tensor([part] * 3) for part in (0.0, gradient, hessian)), ball)
    assert_allclose(bound, least, atol=1e-4)


def test_small_functions_keep_their_digits_beside_large_ones():
    parts = [tensor(p) for p in random_quadratics(np.random.default_rng(0), "saddle", 2)]
    scale = torch.logspace(-12, 12, 40).double()
    together, _ = box_minimum(*(torch.einsum("b,b...->b...", scale, part) for part in parts))
    assert_allclose(together / scale, box_minimum(*parts)[0], rtol=1e-9)


X = np.array([[0.1, 0.5, 0.9], [0.4, 0.2, 0.0]])


def test_balls_boxes_features_and_domains_combine():
    one = around(X, radius=[0.1, 0.2], features=[-3, -1], domain=(0.0, 1.0))
    assert_allclose(one.lower, [[0.0, 0.5, 0.8], [0.2, 0.2, 0.0]])
    assert_allclose(one.upper, [[0.2, 0.5, 1.0], [0.6, 0.2, 0.2]])
    assert_array_equal(one.free, [0, 2])
    assert one.radius is None
    two = around(X, radius=0.3, norm="l1", features=[False, True, False])
    assert_array_equal(two.free, [1])
    assert_array_equal(two.radius, [0.3, 0.3])
    three = around(X, region=(X - [0.0, 1.0, 0.0], 2.0), domain=([0, -0.5, 0], np.inf))
    assert_allclose(three.lower, [[0.1, -0.5, 0.9], [0.4, -0.5, 0.0]])
    assert_allclose(three.upper, 2.0)
    open_ends = around(X[:1], 0.3, domain=([0, None, 0.7], [None, 0.6, 1]))
    assert_allclose([open_ends.lower[0], open_ends.upper[0]], [[0, 0.2, 0.7], [0.4, 0.6, 1]])
    for domain in ((None, 1), (0, None), (None, None)):
        ends = [-np.inf if domain[0] is None else 0, np.inf if domain[1] is None else 1]
        found = around(X[:1], 0.3, domain=domain)
        assert_allclose([found.lower, found.upper], [(X[:1] + s).clip(*ends) for s in (-0.3, 0.3)])


@pytest.mark.parametrize("norm", ORDERS)
def test_projections_and_steps_end_in_the_region(norm):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(300, 3))
    region = around(points, rng.uniform(0, 0.6, 300), norm=norm, features=[0, 2], domain=(0, 1))
    for _ in range(3):
        moved = region.project(tensor(points + rng.normal(size=points.shape)))
        assert within(region.lower, moved, region.upper)
        if region.radius is not None:
            distance = np.linalg.norm(moved.numpy() - points, ORDERS[norm], axis=-1)
            assert (distance <= np.asarray(region.radius)).all()
        assert (region.steepest(tensor(rng.normal(size=points.shape)))[:, 1] == 0).all()
    gradient = tensor([[1.0, -3.0, 2.0], [0.0, 0.0, 0.0]])
    step = around(X, 0.5, norm=norm, features=[0, 2]).steepest(gradient)
    l2 = np.array([1, 0, 2]) * 0.5 / np.sqrt(5)
    assert_allclose(step[0], {"linf": [1, 0, 1], "l2": l2, "l1": [0, 0, 0.5]}[norm])
    assert_array_equal(step[1], 0)
