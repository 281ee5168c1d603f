"""Scores of intervals, quantiles and distributions against integrals, slow loops and sklearn."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import mean_pinball_loss

from skuq.metrics import (
    crps_ensemble,
    crps_gaussian,
    gaussian_negative_log_likelihood,
    interval_coverage,
    interval_score,
    mean_interval_width,
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
    assert mean_interval_width(lower, upper) == pytest.approx((upper - lower).mean())
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
    assert interval_score(y_true, lower, upper) == mean_interval_width(lower, upper) == np.inf
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


# Distributions


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (3.0, 0.2), (-1.0, 5.0)])
@pytest.mark.parametrize("y", [-2.0, 0.3, 3.0])
def test_crps_of_a_gaussian_is_the_integral_of_its_definition(y, mean, std):
    def squared(x):
        return (norm.cdf(x, mean, std) - (x >= y)) ** 2

    ends = min(y, mean - 10 * std), max(y, mean + 10 * std)
    integral = sum(
        quad(squared, *sorted(part), limit=200)[0] for part in ((ends[0], y), (y, ends[1]))
    )
    assert crps_gaussian([y], [mean], [std]) == pytest.approx(integral, rel=1e-6)


def slow_crps(y, drawn):
    pairs = np.mean([abs(one - other) for one in drawn for other in drawn])
    return np.mean([abs(one - y) for one in drawn]) - pairs / 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_draws", [1, 2, 7])
def test_crps_of_samples_equals_a_loop_over_all_pairs(seed, n_draws):
    y_true, mean, std = random_quantities(seed)
    drawn = np.random.default_rng(seed).normal(mean, std, size=(n_draws, 60)).T
    expected = np.mean([slow_crps(*row) for row in zip(y_true, drawn, strict=True)])
    assert crps_ensemble(y_true, drawn) == pytest.approx(expected)
    far = 1e9  # from 0, as dates are
    assert crps_ensemble(y_true + far, drawn + far) == pytest.approx(expected, rel=1e-6)


def test_crps_of_a_gaussian_of_its_samples_and_of_its_quantiles_agree():
    y_true, mean, std = random_quantities(0)
    expected = crps_gaussian(y_true, mean, std)
    levels = (np.arange(1000) + 0.5) / 1000
    quantiles = mean[:, None] + std[:, None] * norm.ppf(levels)
    assert 2 * pinball_loss(y_true, quantiles, levels) == pytest.approx(expected, rel=1e-3)
    # At these levels the loss is that of the quantiles as samples, exactly.
    assert crps_ensemble(y_true, quantiles) == pytest.approx(
        2 * pinball_loss(y_true, quantiles, levels)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_gaussian_log_likelihood_is_that_of_scipy(seed):
    y_true, mean, std = random_quantities(seed)
    expected = -norm.logpdf(y_true, mean, std).mean()
    assert gaussian_negative_log_likelihood(y_true, mean, std) == pytest.approx(expected)


def test_a_value_far_out_costs_the_likelihood_its_square_and_the_crps_its_distance():
    assert gaussian_negative_log_likelihood([1e6], [0.0], [1.0]) == pytest.approx(5e11)
    assert crps_gaussian([1e6], [0.0], [1.0]) == pytest.approx(1e6)


@pytest.mark.parametrize("metric", [crps_gaussian, gaussian_negative_log_likelihood])
@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([1.0, 2.0], [1.0, 0.0], "`std` must be > 0, got 0 in row 1"),
        ([1.0, 2.0], [-1.0, 1.0], "`std` must be > 0, got -1 in row 0"),
        ([1.0, np.nan], [1.0, 1.0], "`mean` must be finite, got nan in row 1"),
        ([1.0], [1.0, 1.0], "`y_true`, `mean`, `std` must .* got 2, 1, 2 rows"),
    ],
)
def test_wrong_gaussians_are_named(metric, mean, std, message):
    with pytest.raises(ValueError, match=message):
        metric([1.0, 2.0], mean, std)
