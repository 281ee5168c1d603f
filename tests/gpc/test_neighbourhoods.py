"""Regions as users give them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .bounds.oracles import ORDERS, around, tensor, within

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
