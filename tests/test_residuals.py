"""Noise that differs from input to input: quantiles of residuals, and intervals made of them."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from skuq.residuals import (
    LEVELS,
    ResidualForest,
    RowNoise,
    central_interval,
    interpolated,
    interval_scores,
    mean_and_variance,
    stretched,
    widened,
)

WANTED = np.array([0.05, 0.3, 0.5, 0.95])
# Features, and residuals whose spread is the first feature, longer on the upper side.
RNG = np.random.default_rng(0)
X = RNG.uniform(0.1, 2, size=(500, 2))
RESIDUALS = X[:, 0] * (RNG.exponential(size=500) - 1)


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.residuals.N_TREES", 20)
        return ResidualForest.fit(X, RESIDUALS, seed=1)


def brute_force(forest, row, *, trees=None, without=None):
    """Meinshausen 2006: the smallest y with F >= u, F by weights that a leaf divides equally."""
    weights = np.zeros(len(forest.residuals))
    for k in range(len(forest.forest.estimators_)) if trees is None else trees:
        tree = forest.forest.estimators_[k]
        leaf = tree.apply(row[None].astype(np.float32))[0]
        known = tree.apply(X[forest.rows].astype(np.float32)) == leaf
        weights += forest.weight * known / (forest.weight * known).sum()
    if without is not None:
        weights[without] = 0
    share = np.cumsum(weights) / weights.sum()
    return [forest.residuals[np.searchsorted(share, level - 1e-12)] for level in WANTED]


def test_quantiles_are_those_of_residuals_that_share_leaves_or_out_of_bag(fitted):
    new = np.random.default_rng(3).uniform(0.1, 2, size=(5, 2))
    expected = [brute_force(fitted, row) for row in new]
    np.testing.assert_allclose(fitted.quantiles(new, WANTED), expected)
    low, high = fitted.quantiles(np.array([[0.3, 1.0], [1.7, 1.0]]), np.array([0.05, 0.95])).T
    assert (high - low)[1] > 2.5 * (high - low)[0]  # in truth 5.7 times
    assert (high > -1.5 * low).all()  # longer above
    found = fitted.out_of_bag_quantiles(WANTED)
    for k in (0, 300, 499):
        unseen, row = np.flatnonzero(~fitted.in_bag[k]), X[fitted.rows[k]]
        np.testing.assert_allclose(found[k], brute_force(fitted, row, trees=unseen, without=k))


def test_rows_count_by_their_weight_and_those_beyond_memory_are_drawn(few_trees, monkeypatch):
    weight = np.arange(60) % 3 * np.random.default_rng(2).uniform(0.5, 1, size=60)
    forest = ResidualForest.fit(X[:60], RESIDUALS[:60], weight)
    assert set(forest.rows) == set(np.flatnonzero(weight))
    np.testing.assert_allclose(forest.quantiles(X[:1], WANTED)[0], brute_force(forest, X[0]))
    monkeypatch.setattr("skuq.residuals.MAX_ROWS", 200)
    forest = ResidualForest.fit(X, RESIDUALS)
    assert len(forest.residuals) == len(set(forest.rows)) == 200
    np.testing.assert_array_equal(RESIDUALS[forest.rows], forest.residuals)


@pytest.mark.parametrize("n", [2, 3, 7, 15, 20])
def test_few_residuals_have_one_distribution_and_rows_do_not_depend_on_others(n, few_trees):
    residuals = np.arange(n) - n / 2
    forest = ResidualForest.fit(np.zeros((n, 1)), residuals)
    found = forest.quantiles(np.zeros((1, 1)), np.array([0.01, 0.99]))
    np.testing.assert_array_equal(found, [[residuals[0], residuals[-1]]])
    # Levels that equal cumulative shares, which other rows must not round up or down.
    found = forest.quantiles(np.zeros((1000, 1)), np.arange(1, n) / n)
    np.testing.assert_array_equal(found, np.tile(forest.residuals[:-1], (1000, 1)))


@pytest.mark.parametrize("kind", ["table", "texts", "polars"])
def test_inputs_of_any_kind_have_noise(kind, few_trees):
    rng = np.random.default_rng(0)
    town = rng.choice(["Ulm", "Linz"], size=400)
    residuals = np.where(town == "Ulm", 5, 0.5) * rng.normal(size=400)
    inputs = pd.DataFrame({"town": town, "age": rng.uniform(size=400)})
    predicted = np.zeros(400)
    if kind == "texts":
        inputs, predicted = town.astype(object), np.where(town == "Ulm", 1.0, 0.0)
    elif kind == "polars":
        inputs = pytest.importorskip("polars").from_pandas(inputs)
    noise = RowNoise.fit(inputs, predicted, residuals, np.ones(400), seed=0, n_jobs=None)
    std = np.sqrt(noise.variance(inputs, predicted))
    assert np.median(std[town == "Ulm"]) > 5 * np.median(std[town == "Linz"])


def test_equal_residuals_have_some_variance(few_trees):
    X, residuals = np.zeros((400, 1)), np.append(np.zeros(399), 1.0)
    noise = RowNoise.fit(X, np.arange(400.0), residuals, np.ones(400), seed=0, n_jobs=None)
    assert noise.variance(np.zeros((1, 1)), np.zeros(1))[0] > 0


def test_limit_makes_intervals_cover(monkeypatch):
    monkeypatch.setattr("skuq.residuals.N_TREES", 20)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(3000, 1))
    residuals = X[:, 0] * rng.normal(size=3000)
    noise = RowNoise.fit(X[:1000], X[:1000, 0], residuals[:1000], np.ones(1000), seed=0, n_jobs=1)
    for coverage in (0.5, 0.9):
        ends = noise.quantiles(X[1000:], X[1000:, 0], LEVELS)
        lower, upper = stretched(*central_interval(ends, LEVELS, coverage), noise.limit(coverage))
        covered = np.mean((lower <= residuals[1000:]) & (residuals[1000:] <= upper))
        assert covered == pytest.approx(coverage, abs=0.03)


def test_normal_noise_and_normal_models_add_up_and_other_levels_are_interpolated():
    noise = 3 * norm.ppf(LEVELS)[None]
    found = widened(noise + 7, np.array([7.0]), LEVELS, np.array([4.0]))
    np.testing.assert_allclose(found, 7 + 5 * norm.ppf(LEVELS)[None])
    mean, variance = mean_and_variance(found, LEVELS)
    assert mean == pytest.approx(7)
    assert variance == pytest.approx(25, rel=0.05)  # the tails beyond the levels are cut
    # Linearly; those beyond are the outermost.
    found = interpolated(LEVELS[None] * 10, LEVELS, np.array([0.001, 0.33, 0.5, 0.9999]))
    np.testing.assert_allclose(found, [[0.05, 3.3, 5.0, 9.95]])


def test_scores_are_limits_of_stretched_intervals():
    rng = np.random.default_rng(0)
    lower, upper, y = rng.normal(size=50), 3 + rng.normal(size=50) ** 2, 4 * rng.normal(size=50)
    scores = interval_scores(y, lower, upper)
    for limit in (-0.3, 0.0, 0.8):
        low, high = stretched(lower, upper, limit)
        np.testing.assert_array_equal((low <= y) & (y <= high), scores <= limit)
    low, high = stretched(lower, upper, -3.0)
    np.testing.assert_allclose(low, high)  # never less than the middle
    score = interval_scores(np.array([5.0]), np.zeros(1), np.zeros(1))  # all targets may be equal
    assert 1e300 < score[0] < np.inf
