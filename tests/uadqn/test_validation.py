"""Checks of environment seeds and of observations."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces

from skuq.uadqn._estimator import checked_observations, checked_seeds
from tests.uadqn.environments import MIXED

CELL = spaces.Box(0, 1, (10,), np.float32)
CELLS = np.eye(10, dtype=np.float32)
OBSERVATIONS = {
    "nan": (np.full((2, 10), np.nan), "contain NaN, or infinity"),
    "infinity": (np.full((2, 10), -np.inf), "contain NaN, or infinity"),
    "empty": (np.zeros((0, 10)), r"at least one sample, got \(0, 10\)"),
    "too wide": (np.zeros((2, 11)), r"\(n_samples, 10\) .* got \(2, 11\)"),
    "too deep": (np.zeros((2, 10, 1)), r"\(n_samples, 10\) .* got \(2, 10, 1\)"),
    "a single one": (np.zeros(10), r"got \(10,\); one observation needs a first axis"),
    "a number": (3.0, r"\(n_samples, 10\) .* got \(\)"),
    "strings": ([["a"] * 10], "must be numbers, got dtype <U1"),
    "objects": (np.full((1, 10), None), "must be numbers, got dtype object"),
    "overflow": (np.full((1, 10), 1e300), "infinity as float32"),
    "a dictionary": ({"cell": CELLS}, r"\(n_samples, 10\)"),
}


@pytest.mark.parametrize(("X", "message"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_bad_observations(X, message):
    with pytest.raises(ValueError, match=message):
        checked_observations(X, CELL)


def test_cells_of_a_grid_are_0_or_1():
    grid = spaces.Box(0, 1, (2, 2, 1), bool)
    assert checked_observations(np.ones((1, 2, 2, 1)), grid).dtype == bool
    with pytest.raises(ValueError, match="must be elements of Box"):
        checked_observations(np.full((1, 2, 2, 1), 7.3), grid)


def test_observations_take_the_dtype_of_their_space():
    X = checked_observations(CELLS.tolist(), CELL)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, CELLS)


def mixed(n_samples=5):
    samples = [MIXED.sample() for _ in range(n_samples)]
    return {key: np.stack([sample[key] for sample in samples]) for key in MIXED.spaces}


def test_bad_dictionaries_of_observations():
    X = mixed()
    for wrong in (X["vector"], {"vector": X["vector"]}, X | {"more": X["vector"]}):
        with pytest.raises(ValueError, match=r"dict with keys \['image', 'vector'\]"):
            checked_observations(wrong, MIXED)
    with pytest.raises(ValueError, match="one observation needs a first axis"):
        checked_observations({key: x[0] for key, x in X.items()}, MIXED)
    with pytest.raises(ValueError, match="NaN"):
        checked_observations(X | {"vector": X["vector"] * np.nan}, MIXED)
    for n_samples in (1, 3):
        with pytest.raises(ValueError, match="numbers of samples"):
            checked_observations(X | {"vector": X["vector"][:n_samples]}, MIXED)


@pytest.mark.parametrize("X", [[5], [-1], [1.5]])
def test_discrete_observations_out_of_range(X):
    with pytest.raises(ValueError, match="Observations"):
        checked_observations(X, spaces.Discrete(5))


SEEDS_OF = "integers from 0"
BAD_SEEDS = {
    "fractions": ([0.5, 1.0], SEEDS_OF),
    "negative": ([3, -1], SEEDS_OF),
    "nan": ([np.nan], SEEDS_OF),
    "strings": (["a", "b"], SEEDS_OF),
    "none": ([None], SEEDS_OF),
    "two columns": ([[1, 2]], r"\(n_seeds, 1\) with at least one seed, got shape \(1, 2\)"),
    "empty": ([], r"at least one seed, got shape \(0,\)"),
    "a number": (3, r"got shape \(\)"),
    "observations": (CELLS, r"got shape \(10, 10\)"),
}


@pytest.mark.parametrize(("X", "message"), BAD_SEEDS.values(), ids=BAD_SEEDS)
def test_bad_seeds(X, message):
    with pytest.raises(ValueError, match=message):
        checked_seeds(X)


@pytest.mark.parametrize("X", [[np.inf], [1e300], np.array([2**64 - 1], np.uint64), [1j]])
def test_seeds_that_are_no_int64(X):
    with pytest.raises(ValueError, match="Seeds of an environment"):
        checked_seeds(X)


@pytest.mark.parametrize("X", [[3, 1], [[3], [1]], [3.0, 1.0], np.array([3, 1], np.uint8)])
def test_seeds_become_int64(X):
    np.testing.assert_array_equal(checked_seeds(X), np.array([3, 1], np.int64), strict=True)
