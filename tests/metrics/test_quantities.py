"""Scores of intervals and quantiles against slow loops and scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.metrics import mean_pinball_loss

from skuq.metrics import (
    interval_coverage,
    interval_score,
    pinball_loss,
)
from tests.metrics.problems import SEEDS, random_intervals, random_quantities

# Intervals


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_interval_measures_equal_slow_loops(seed, coverage):
    y_true, lower, upper = random_intervals(seed)
    score, held = 0.0, 0
    for value, low, high in zip(y_true, lower, upper, strict=True):
        score += high - low
        if value < low:
            score += 2 / (1 - coverage) * (low - value)
        elif value > high:
            score += 2 / (1 - coverage) * (value - high)
        else:
            held += 1
    assert interval_score(y_true, lower, upper, coverage=coverage) == pytest.approx(score / 60)
    assert interval_coverage(y_true, lower, upper) == held / 60
    assert 0 < held < 60


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_the_interval_score_is_the_pinball_loss_of_both_limits(seed, coverage):
    y_true, lower, upper = random_intervals(seed)
    levels = [(1 - coverage) / 2, (1 + coverage) / 2]
    both = pinball_loss(y_true, np.stack([lower, upper], axis=1), levels)
    # Both are minimised by the same quantiles: one is the other times 4 / (1 - coverage).
    assert interval_score(y_true, lower, upper, coverage=coverage) == pytest.approx(
        4 / (1 - coverage) * both
    )


def test_the_interval_score_is_smallest_for_the_true_quantiles():
    y = np.random.default_rng(0).normal(size=100_000)
    scores = {
        factor: interval_score(y, *np.outer([-factor, factor], np.ones(len(y))), coverage=0.8)
        for factor in np.arange(0.8, 1.9, 0.1).round(1)
    }
    assert min(scores, key=scores.get) == pytest.approx(norm.ppf(0.9), abs=0.06)


def test_limits_belong_to_the_interval_and_may_be_open_or_equal():
    y_true, lower, upper = [1.0, 2.0, 5.0, 3.0], [1.0, 0.0, -np.inf, 3.0], [2.0, 2.0, 4.0, 3.0]
    assert interval_coverage(y_true, lower, upper) == 0.75
    assert interval_coverage(y_true, [-np.inf] * 4, [np.inf] * 4) == 1
    assert interval_score(y_true, lower, upper) == np.inf
    ignored = {"sample_weight": [1, 1, 0, 1]}
    assert interval_score(y_true, lower, upper, **ignored) == 1


@pytest.mark.parametrize(
    ("y_true", "lower", "upper", "message"),
    [
        ([1, np.nan], [0, 0], [2, 2], "`y_true` must be finite, got nan in row 1"),
        ([1, np.inf], [0, 0], [2, 2], "`y_true` must be finite, got inf in row 1"),
        ([1, 1], [0, np.nan], [2, 2], "`lower` must contain numbers or -inf .*, got nan in row 1"),
        ([1, 1], [0, 0], [2, -np.inf], r"`upper` must .* or inf \(unb.*\), got -inf in row 1"),
        ([1, 1], [np.inf, 0], [np.inf, 2], r"`lower` must .* or -inf \(unb.*\), got inf in row 0"),
        ([1, 1], [0, 3], [2, 2], "`lower` must be <= `upper`, got 3 > 2 in row 1"),
        ([1, 1], [0], [2, 2], "`lower`, `upper` must each have one row per sample, got 1, 2"),
        ([1], [0, 0], [2, 2], "`y_true`, `lower`, `upper` must .* got 1, 2, 2 rows"),
        ([1, 1], [[0], [0]], [2, 2], r"`lower` must be one-dimensional, got shape \(2, 1\)"),
        ([1, 1], ["a", "b"], [2, 2], "`lower` must be finite, got values that are not numbers"),
    ],
)
@pytest.mark.parametrize("metric", [interval_score, interval_coverage])
def test_wrong_intervals_are_named(metric, y_true, lower, upper, message):
    with pytest.raises(ValueError, match=message):
        metric(y_true, lower, upper)


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.1, np.nan])
def test_a_coverage_is_a_share(coverage):
    with pytest.raises(ValueError, match="`coverage` must lie strictly between 0 and 1, got"):
        interval_score([1.0], [0.0], [2.0], coverage=coverage)


# Quantiles


@pytest.mark.parametrize("seed", SEEDS)
def test_pinball_loss_is_the_mean_over_levels_of_that_of_sklearn(seed):
    y_true, mean, std = random_quantities(seed)
    levels = np.array([0.95, 0.1, 0.5])  # in any order
    quantiles = mean[:, None] + std[:, None] * norm.ppf(levels)
    weight = np.random.default_rng(seed).exponential(size=60)
    for weighted in ({}, {"sample_weight": weight}):
        expected = np.mean(
            [
                mean_pinball_loss(y_true, column, alpha=level, **weighted)
                for column, level in zip(quantiles.T, levels, strict=True)
            ]
        )
        assert pinball_loss(y_true, quantiles, levels, **weighted) == pytest.approx(expected)
        frame = pd.DataFrame(quantiles, columns=levels.astype(str))
        assert pinball_loss(pd.Series(y_true), frame, levels, **weighted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("quantiles", "levels", "message"),
    [
        ([1.0, 2.0], [0.5], r"`y_quantiles` must have two dimensions.* got shape \(2,\)"),
        (np.empty((2, 0)), [0.5], r"`y_quantiles` must .* at least one column, got shape \(2, 0"),
        ([[1.0], [np.nan]], [0.5], "`y_quantiles` must be finite, got nan in row 1"),
        ([[1.0], [2.0]], [0.1, 0.9], "one column per level, got 1 columns for 2 levels"),
        ([[1.0], [2.0]], 0.5, r"`levels` must be one-dimensional, got shape \(\)"),
        ([[1.0], [2.0]], [1.0], "`levels` must lie strictly between 0 and 1, got levels from 1"),
        ([[1.0]], [0.5], "`y_true`, `y_quantiles` must each have one row per sample, got 2, 1"),
    ],
)
def test_wrong_quantiles_are_named(quantiles, levels, message):
    with pytest.raises(ValueError, match=message):
        pinball_loss([1.0, 2.0], quantiles, levels)
