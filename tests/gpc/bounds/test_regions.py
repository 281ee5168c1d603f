"""Regions of boxes and balls: nothing of the intersection is ever cut off."""

import numpy as np
import pytest
import torch

from skuq.gpc.bounds._regions import BallParts, Region

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
    np.testing.assert_allclose(tight.lower, [[0.6, -reach]])
    np.testing.assert_allclose(tight.upper, [[1.0, reach]])
    assert bool(kept)
    _, kept = Region(center, tensor([[0.9, 0.9]]), upper, radius, norm).shrink()
    assert not bool(kept)


@NORMS
def test_a_ball_of_radius_zero_is_a_point(norm):
    center = tensor([[0.3, 0.1]])
    tight, kept = Region(center, center - 0.3, center + 0.7, tensor([0.0]), norm).shrink()
    np.testing.assert_array_equal(tight.lower, center)
    np.testing.assert_array_equal(tight.upper, center)
    assert bool(kept)


@NORMS
def test_boxes_within_the_ball_are_told_from_others(norm):
    edge = 0.5 if norm == 1 else 2**-0.5
    for size, inside in ((edge * 0.999, True), (edge * 1.001, False)):
        box = tensor([[1 - size, 1.0]]), tensor([[1.0, 1 + size]])
        region = Region(tensor([[1.0, 1.0]]), *box, tensor([1.0]), norm)
        assert bool(region.is_box()) == inside
        assert bool(Region(*([region.center] * 3)).is_box())


@NORMS
def test_points_outside_are_pulled_in_and_others_stay(norm):
    rng = np.random.default_rng(0)
    points = tensor(rng.normal(size=(500, 3)))
    ball = ball_of(torch.zeros(500, 3).double(), tensor([0.9] * 500), norm)
    pulled = ball.project(points)
    assert bool(inside_of(ball, pulled).all())
    inside = inside_of(ball, points)
    np.testing.assert_allclose(pulled[inside], points[inside], rtol=1e-14)
    distance = torch.linalg.vector_norm(pulled[~inside], norm, -1)
    np.testing.assert_allclose(distance, 0.9, rtol=1e-9)


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


@NORMS
def test_features_of_no_width_do_not_matter(norm):
    part = BallParts(tensor([[0.0, 0.0]]), tensor([[0.5, 0.0]]), tensor([1.0]), norm)
    assert part.linear_minimum(tensor([[1.0, 0.0]])).item() == pytest.approx(-2.0)


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
            assert float(part.squared_length()) >= (t**2).sum(axis=1).max()
            assert float(part.distance()) >= np.linalg.norm(t * widths, norm, axis=1).max()
            gradient = rng.normal(size=(1, 2, f))
            reach = part.linear_reach(tensor(gradient)).numpy()
            assert (reach[0] >= np.abs(t @ gradient[0].T).max(axis=0)).all()


@NORMS
def test_a_ball_is_far_smaller_than_the_box_around_it(norm):
    offset = torch.zeros(1, 100).double()
    part = BallParts(offset, offset + 0.5, tensor([0.5]), norm)
    assert float(part.squared_length()) == pytest.approx(1.0)
