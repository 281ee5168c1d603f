"""Regions as users give them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from .bounds.oracles import around

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


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ((None, 1), (-np.inf, 1)),
        ((0, None), (0, np.inf)),
        (([0, None, 0.5], [None, 0.6, 1]), ([0, -np.inf, 0.5], [np.inf, 0.6, 1])),
        ((None, None), (-np.inf, np.inf)),
    ],
)
def test_none_is_an_open_end_of_a_domain(given, same):
    one, two = (around(X[:1], radius=0.3, domain=domain) for domain in (given, same))
    assert_array_equal(one.lower, two.lower)
    assert_array_equal(one.upper, two.upper)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_projections_and_steps_end_in_the_region(norm):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(300, 3))
    center = torch.as_tensor(points)
    region = around(points, rng.uniform(0, 0.6, 300), norm=norm, features=[0, 2], domain=(0, 1))
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    for _ in range(3):
        moved = region.project(center + torch.as_tensor(rng.normal(size=points.shape)))
        assert (region.lower <= moved).all()
        assert (moved <= region.upper).all()
        if region.radius is not None:
            assert (torch.linalg.vector_norm(moved - center, order, -1) <= region.radius).all()
        step = region.steepest(torch.as_tensor(rng.normal(size=points.shape)))
        assert (step[:, 1] == 0).all()
    gradient = torch.tensor([[1.0, -3.0, 2.0], [0.0, 0.0, 0.0]]).double()
    step = around(X, 0.5, norm=norm, features=[0, 2]).steepest(gradient)
    expected = {
        "linf": [1.0, 0.0, 1.0],
        "l2": np.array([1, 0, 2]) * 0.5 / np.sqrt(5),
        "l1": [0.0, 0.0, 0.5],
    }
    assert_allclose(step[0], expected[norm])
    assert_array_equal(step[1], 0)
