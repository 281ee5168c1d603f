"""Exact intervals, tests and their power, against scipy, brute force and simulation."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from skuq import CalibrationAuditor
from skuq.audit import (
    BinSums,
    audit_bins,
    clopper_pearson,
    detectable_gap,
    intervals,
    required_samples,
)
from skuq.audit.intervals import ece_bootstrap, ece_under_calibration

SEEDS = range(3)
SCALE = 1000


def one_bin_each(count, correct, confidence, scale=SCALE):
    """Bins with given counts and mean confidences, these in units of ``1 / scale``."""
    count, correct, confidence = np.broadcast_arrays(count, correct, confidence)
    edges = np.linspace(0, scale, len(count) + 1).astype(int)
    return BinSums(edges, count, correct, np.rint(count * confidence).astype(int), scale)


def upper_tail(k, n, p):
    """P(K >= k), term by term."""
    p = Fraction(p)
    return float(sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(max(k, 0), n + 1)))


def sum_of_trials(probabilities):
    """Distribution of the number of successes of unequal trials, by convolution."""
    distribution = np.ones(1)
    for p in probabilities:
        distribution = np.convolve(distribution, [1 - p, p])
    return distribution


@pytest.mark.parametrize("trials", [1, 2, 10, 53, 400])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.9995])
def test_limits_equal_the_exact_interval_of_scipy(trials, level):
    successes = np.unique(np.linspace(0, trials, 12).astype(int))
    low, high = clopper_pearson(successes, trials, (1 - level) / 2)
    for k, ours in zip(successes.tolist(), zip(low, high, strict=True), strict=True):
        expected = binomtest(k, trials).proportion_ci(level, method="exact")
        assert ours == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 7), (7, 7), (19, 25)])
def test_limits_are_where_the_tail_of_a_slow_sum_has_the_given_size(k, n):
    low, high = clopper_pearson(k, n, 0.01)
    if k > 0:
        assert upper_tail(k, n, float(low)) == pytest.approx(0.01)
    if k < n:
        assert 1 - upper_tail(k + 1, n, float(high)) == pytest.approx(0.01)
    assert 0 <= low <= k / n <= high <= 1


def test_limits_without_trials_are_those_of_a_probability():
    assert clopper_pearson([0], [0], 0.025) == ([0.0], [1.0])


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 20), Fraction(3, 10)])
@pytest.mark.parametrize("n", [1, 6, 30])
def test_p_values_are_slow_sums_of_the_binomial_tail_at_the_edge_of_alpha(alpha, n):
    confidence = 700
    correct = np.arange(n + 1)
    audit = audit_bins(one_bin_each(n, correct, confidence), alpha=float(alpha), n_tests=3)
    for k, p_value in zip(correct.tolist(), audit.p_value, strict=True):
        high, low = Fraction(7, 10) + alpha, Fraction(7, 10) - alpha
        under = upper_tail(k, n, high) if high < 1 else 1.0
        over = 1 - upper_tail(k + 1, n, low)
        assert p_value == pytest.approx(min(1.0, 2 * 3 * min(under, over)), rel=1e-9, abs=1e-14)


bins = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(100, SCALE))
)


@given(
    rows=st.lists(bins, min_size=1, max_size=8),
    alpha=st.floats(0, 1),
    level=st.floats(0.01, 0.999),
    n_tests=st.integers(1, 500),
)
def test_findings_are_significant_exactly_where_the_limits_lie_beyond_alpha(
    rows, alpha, level, n_tests
):
    count, correct, confidence = np.array(rows).T
    audit = audit_bins(
        one_bin_each(count, correct, confidence),
        alpha=alpha,
        confidence_level=level,
        n_tests=n_tests,
    )
    assume((np.abs(audit.p_value - (1 - level)) > 1e-9).all())
    under, over = audit.gap_low > alpha, audit.gap_high < -alpha
    np.testing.assert_array_equal(audit.significant, under | over)
    np.testing.assert_array_equal(audit.direction == "underconfident", under)
    np.testing.assert_array_equal(audit.direction == "overconfident", over)
    assert not (audit.significant & audit.within_alpha).any()
    assert (audit.gap_low <= audit.gap + 1e-12).all()
    assert (audit.gap <= audit.gap_high + 1e-12).all()
    np.testing.assert_allclose(audit.gap, correct / count - confidence / SCALE, atol=1e-12)


@pytest.mark.parametrize("alpha", ["0.0157", "0.01", "0.03", "0.05", "0.09", "0.15", "0.29", "0.3"])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_gap_of_exactly_alpha_is_within_it_and_one_unit_more_is_not(alpha, side):
    count = np.arange(1, 500)
    correct = count // 2
    unit = 10**9
    at_edge = correct * unit - side * count * int(Fraction(alpha) * unit)
    sums = BinSums(np.linspace(0, unit, 500).astype(int), count, correct, at_edge, unit)
    assert audit_bins(sums, alpha=float(alpha)).within_alpha.all()
    beyond = sums._replace(confidence=at_edge - side)
    assert not audit_bins(beyond, alpha=float(alpha)).within_alpha.any()


def test_an_empty_bin_passes_and_is_not_counted_as_a_test():
    sums = one_bin_each([20, 0, 20], [19, 0, 13], [400, 0, 650])
    audit = audit_bins(sums, alpha=0.05)
    assert audit.count.tolist() == [20, 0, 20]
    assert audit.within_alpha.tolist() == [False, True, True]
    assert audit.significant.tolist() == [True, False, False]
    assert audit.direction.tolist() == ["underconfident", "", ""]
    assert audit.p_value[1] == 1.0
    assert np.isnan([audit.confidence[1], audit.accuracy[1], audit.gap[1]]).all()
    np.testing.assert_array_equal(audit.p_value, audit_bins(sums, alpha=0.05, n_tests=2).p_value)


def test_p_values_grow_with_the_number_of_tests_and_limits_widen():
    sums = one_bin_each([20, 30], [19, 13], [400, 650])
    one, ten = (audit_bins(sums, alpha=0.05, n_tests=n) for n in (1, 10))
    np.testing.assert_allclose(ten.p_value, np.minimum(1, 10 * one.p_value))
    assert (ten.gap_low < one.gap_low).all()
    assert (ten.gap_high > one.gap_high).all()


def unequal_probabilities(kind, n, rng):
    if kind == "one risky":  # errors of a bin come from a single sample
        return np.r_[1 - rng.uniform(0.005, 0.11), np.full(n - 1, 1 - 1e-9)]
    if kind == "split":
        return np.repeat([0.999, 0.3], [n - n // 3, n // 3])
    return rng.uniform(0.05, 1, size=n) if kind == "spread" else rng.beta(0.3, 0.1, size=n)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["one risky", "split", "spread", "extreme"])
@pytest.mark.parametrize("n", [3, 20, 150])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_unequal_trials_give_false_alarms_with_at_most_the_stated_probability(seed, kind, n, level):
    p = unequal_probabilities(kind, n, np.random.default_rng(seed))
    outcomes = one_bin_each(n, np.arange(n + 1), p.mean() * 10**12, scale=10**12)
    alarm = audit_bins(outcomes, alpha=0.0, confidence_level=level, n_tests=1).significant
    assert sum_of_trials(p)[alarm].sum() <= 1 - level


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_the_edge_of_alpha_gives_false_alarms_with_at_most_the_stated_probability(alpha):
    for n in (5, 40, 200):
        for confidence in (550, 700, 850):
            audit = audit_bins(
                one_bin_each(n, np.arange(n + 1), confidence), alpha=alpha, n_tests=1
            )
            for side in (-1, 1):
                law = binom.pmf(np.arange(n + 1), n, confidence / SCALE + side * alpha)
                assert law[audit.significant].sum() <= 0.05


@pytest.mark.parametrize(("n", "with_groups"), [(30, False), (300, False), (120, True)])
def test_audits_of_a_calibrated_model_find_something_at_most_as_often_as_stated(
    monkeypatch, n, with_groups
):
    monkeypatch.setattr(intervals, "N_SIMULATIONS", 1)
    rng = np.random.default_rng(0)
    repeats = 1000
    found = 0
    for _ in range(repeats):
        proba = rng.dirichlet([1, 1, 1], size=n)
        y = (proba.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1).clip(0, 2)
        groups = {"group": rng.integers(2, size=n)} if with_groups else None
        audit = CalibrationAuditor.from_predictions(
            y, proba, classes=range(3), alpha=0.0, groups=groups, random_state=0
        )
        found += not audit.passed_
    assert found / repeats <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)


POWER = {"alpha": 0.05, "n_tests": 10}


def power_at(count, confidence, gap, **settings):
    """Probability of an underconfidence finding, by the findings of `audit_bins` themselves."""
    outcomes = one_bin_each(count, np.arange(count + 1), confidence * SCALE)
    found = audit_bins(outcomes, **settings).direction == "underconfident"
    return binom.pmf(np.arange(count + 1), count, min(confidence + gap, 1.0))[found].sum()


@pytest.mark.parametrize("power", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("confidence", [0.5, 0.62, 0.8])
@pytest.mark.parametrize("n_tests", [1, 40])
def test_at_the_detectable_gap_the_power_is_the_requested_one(power, confidence, n_tests):
    settings = {"alpha": 0.05, "n_tests": n_tests}
    for count in (50, 150):
        gap = float(detectable_gap(count, confidence, power=power, **settings))
        assert power_at(count, confidence, gap, **settings) == pytest.approx(power, abs=1e-6)


def test_an_undetectable_gap_is_nan_and_even_a_perfect_accuracy_is_then_not_found():
    count = np.arange(1, 40)
    gaps = detectable_gap(count, 0.5, **POWER)
    certain = [power_at(int(n), 0.5, 0.5, **POWER) == 1.0 for n in count]
    np.testing.assert_array_equal(np.isnan(gaps), np.logical_not(certain))
    assert 0 < np.isnan(gaps).sum() < len(count)
    assert np.isnan(detectable_gap([0, 100, 10**6], [np.nan, 0.95, 0.99], **POWER)).all()


def test_the_detectable_gap_shrinks_to_alpha_with_more_samples():
    gaps = detectable_gap([100, 1000, 10**4, 10**6, 10**8], 0.5, **POWER)
    assert (np.diff(gaps) < 0).all()
    assert gaps[-1] == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("gap", [0.15, 0.3, 0.45])
@pytest.mark.parametrize("confidence", [0.5, 0.7])
@pytest.mark.parametrize(("power", "n_tests", "level"), [(0.8, 10, 0.95), (0.3, 1, 0.8)])
def test_required_samples_are_the_first_of_a_slow_search(gap, confidence, power, n_tests, level):
    accuracy = min(confidence + gap, 1.0)
    tail = (1 - level) / (2 * n_tests)
    edge = confidence + 0.05

    def reached(n):
        tails = binom.sf(np.arange(n + 1) - 1, n, edge)  # P(K >= k) for k = 0 .. n
        return binom.pmf(np.arange(n + 1)[tails < tail], n, accuracy).sum() >= power

    expected = next(n for n in range(1, 2000) if reached(n))
    settings = {"alpha": 0.05, "n_tests": n_tests, "confidence_level": level}
    ours = required_samples(gap, confidence, power=power, **settings)
    assert ours == expected


@pytest.mark.parametrize(
    ("gap", "confidence"), [(0.05, 0.5), (0.01, 0.5), (-0.2, 0.5), (0.5, 0.96), (0.0501, 0.5)]
)
def test_samples_for_what_no_number_finds_are_infinite(gap, confidence):
    assert required_samples(gap, confidence, **POWER) == np.inf
    if gap <= POWER["alpha"]:  # a false alarm is no finding, however small the power
        assert required_samples(gap, confidence, power=1e-4, **POWER) == np.inf


def test_required_samples_broadcast_and_count_an_accuracy_above_one_as_one():
    grid = required_samples([[0.3], [0.9]], [0.5, 0.7], **POWER)
    assert grid.shape == (2, 2)
    assert grid[1].tolist() == required_samples([0.5, 0.3], [0.5, 0.7], **POWER).tolist()


def test_detectable_gap_and_required_samples_agree():
    count = int(required_samples(0.25, 0.5, **POWER))
    assert detectable_gap(count, 0.5, **POWER) <= 0.25 + 1e-9
    assert not detectable_gap(count - 1, 0.5, **POWER) <= 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_the_noise_floor_is_that_of_simulated_labels(seed):
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.integers(550, SCALE, size=12)) / SCALE
    units = np.repeat((confidence * SCALE).round().astype(int), 25)  # equal within their bin
    count = np.full(12, 25)
    edges = np.linspace(0, SCALE, 13).astype(int)
    sums = BinSums(edges, count, count, units.reshape(12, 25).sum(axis=1), SCALE)
    ours = ece_under_calibration(sums, np.random.RandomState(seed))
    labels = rng.random((4000, 12, 25)) < units.reshape(12, 25) / SCALE
    slow = np.abs(labels.sum(axis=2) - 25 * confidence).sum(axis=1) / 300
    assert ours.shape == (2000,)
    assert ours.mean() == pytest.approx(slow.mean(), abs=6 * slow.std() / np.sqrt(2000))
    assert np.quantile(ours, 0.95) == pytest.approx(np.quantile(slow, 0.95), rel=0.05)


def test_the_noise_floor_ignores_empty_bins_and_is_zero_for_certain_predictions():
    sums = one_bin_each([0, 50], [0, 40], [0, SCALE])
    assert (ece_under_calibration(sums, np.random.RandomState(0)) == 0).all()


@pytest.mark.parametrize("correct", [(45, 0, 30), (60, 0, 22), (60, 0, 40)])
def test_the_bootstrap_is_that_of_resampled_rows(correct):
    rng = np.random.default_rng(0)
    count, confidence = [60, 0, 40], [600, 0, 900]
    sums = one_bin_each(count, correct, confidence)
    ours = ece_bootstrap(sums, np.random.RandomState(0))
    bin_of_row = np.repeat([0, 2], [60, 40])
    right = np.concatenate([np.arange(n) < k for n, k in zip(count, correct, strict=True)])
    rows = rng.integers(100, size=(4000, 100))
    deviation = [
        np.abs(((right[rows] - confidence[b] / SCALE) * (bin_of_row[rows] == b)).sum(axis=1))
        for b in (0, 2)
    ]
    slow = np.sum(deviation, axis=0) / 100
    assert ours.mean() == pytest.approx(slow.mean(), abs=6 * slow.std() / np.sqrt(2000))
    assert ours.std() == pytest.approx(slow.std(), rel=0.15)


def test_the_bootstrap_of_many_samples_is_centred_on_the_calibration_error():
    sums = one_bin_each([10**6, 2 * 10**6], [800_000, 1_200_000], [500, 900])
    drawn = ece_bootstrap(sums, np.random.RandomState(0))
    assert drawn.mean() == pytest.approx(sums.expected_calibration_error, rel=1e-3)
