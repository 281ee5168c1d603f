"""Envelopes of covariances over boxes against the covariances themselves."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from .oracles import KERNELS, ROUNDING, random_box, relaxed, sample


def evaluate(envelope, t):
    constant, linear, quadratic = envelope
    return constant + t @ linear.T + t**2 @ quadratic.T


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("half_width", [0.05, 0.5, 3.0])
def test_envelopes_enclose_covariances(name, half_width):
    for d in (1, 3):
        rng, kernel = np.random.default_rng(d), KERNELS[name](d)
        inputs, (lower, upper) = rng.normal(size=(12, d)), random_box(rng, d, half_width)
        inputs[0] = (lower + upper) / 2  # the covariance is not smooth there for some kernels
        box = relaxed(kernel, inputs, lower, upper)
        X = sample(rng, lower, upper)
        values, t = kernel(X, inputs), X - box.centre
        (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
        for bound in (box.floor, evaluate(box.below, t), low + t @ low_slope.T):
            assert (bound <= values + ROUNDING).all()
        for bound in (box.ceiling, evaluate(box.above, t), high + t @ high_slope.T):
            assert (bound >= values - ROUNDING).all()


@pytest.mark.parametrize("name", KERNELS)
def test_floor_and_ceiling_are_attained(name):
    rng, kernel = np.random.default_rng(0), KERNELS[name](2)
    inputs, (lower, upper) = rng.normal(size=(6, 2)), random_box(rng, 2, 0.6)
    box = relaxed(kernel, inputs, lower, upper)
    near = np.clip(inputs, lower, upper)
    far = np.where(inputs > box.centre, lower, upper)
    for i, z in enumerate(inputs):
        ends = kernel(np.stack([near[i], far[i]]), z[None])[:, 0]
        np.testing.assert_allclose([box.ceiling[i], box.floor[i]], ends, rtol=1e-12)


@pytest.mark.parametrize("upper", [-1.0, np.inf, np.nan])
def test_boxes_must_be_boxes(upper):
    with pytest.raises(ValueError, match="finite corners with lower <= upper"):
        relaxed(RBF(), np.zeros((1, 1)), np.zeros(1), np.array([upper]))
