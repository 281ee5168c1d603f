"""Exact limits, exact tolerance and finding of each bin."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from skuq.calibration import (
    BinSums,
    audit_bins,
    clopper_pearson,
    detectable_gap,
    scan_bins,
)
from skuq.calibration import _limits as intervals
from tests.reporter import one_bin_each, slow_evidence

SCALE = 1000
LIMITS = "gap_low", "gap_high"


def upper_tail(k, n, p):
    """P(K >= k), term by term."""
    p = Fraction(p)
    return float(sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(max(k, 0), n + 1)))


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


@pytest.mark.parametrize("alpha", ["0.0157", "0.01", "0.03", "0.05", "0.09", "0.15", "0.29", "0.3"])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_gap_of_exactly_alpha_is_within_it_and_one_unit_more_is_not(alpha, side):
    count = np.arange(1, 500)
    correct = count // 2
    unit = 10**9
    at_edge = correct * unit - side * count * int(Fraction(alpha) * unit)
    sums = BinSums(np.linspace(0, unit, 500).astype(int), count, correct, at_edge, unit)
    assert intervals._within(sums, float(alpha)).all()  # a scan of so many bins takes long
    beyond = sums._replace(confidence=at_edge - side)
    assert not intervals._within(beyond, float(alpha)).any()


bins = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(100, SCALE))
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(bins, min_size=1, max_size=8),
    alpha=st.floats(0, 1),
    level=st.floats(0.01, 0.999),
    n_families=st.integers(1, 50),
)
def test_a_bin_tells_of_the_finding_it_belongs_to(rows, alpha, level, n_families):
    count, correct, confidence = np.array(rows).T
    sums = one_bin_each(count, correct, confidence)
    audit = audit_bins(sums, alpha=alpha, confidence_level=level, n_families=n_families)
    scan = scan_bins(sums, alpha=alpha, level=(1 - level) / n_families)
    expected = [(0, "", p) for p in scan.p_value]
    for k, found in enumerate(scan.findings, 1):
        for b in range(found.first, found.last + 1):
            expected[b] = k, found.direction, found.p_value
    number, direction, p_value = map(list, zip(*expected, strict=True))
    assert audit.finding.tolist() == number
    assert audit.direction.tolist() == direction
    assert audit.significant.tolist() == [k > 0 for k in number]
    np.testing.assert_array_equal(audit.p_value, np.minimum(1, n_families * np.array(p_value)))
    assert (audit.p_value[audit.significant] < 1 - level).all()
    assert audit.threshold == scan.threshold
    np.testing.assert_allclose(audit.gap, correct / count - confidence / SCALE, atol=1e-12)
    assert (audit.gap_low <= audit.gap + 1e-12).all()
    assert (audit.gap <= audit.gap_high + 1e-12).all()


def test_limits_share_the_level_among_both_sides_of_all_filled_bins():
    count, correct = np.array([30, 0, 1, 400]), np.array([21, 0, 1, 390])
    confidence = np.array([600, 0, 800, 950]) * count
    sums = BinSums(np.array([500, 700, 750, 900, 1000]), count, correct, confidence, SCALE)
    found = audit_bins(sums, alpha=0.05, confidence_level=0.9, n_families=2)
    np.testing.assert_array_equal(found.lower, [0.5, 0.7, 0.75, 0.9])
    np.testing.assert_array_equal(found.upper, [0.7, 0.75, 0.9, 1.0])
    for b in (0, 2, 3):
        test = binomtest(int(correct[b]), int(count[b]))
        interval = test.proportion_ci(1 - 0.1 / 2 / 3, method="exact")  # two families, three bins
        limits = found.gap_low[b], found.gap_high[b]
        mean = confidence[b] / count[b] / SCALE
        assert limits == pytest.approx((interval.low - mean, interval.high - mean), abs=1e-9)
    default = audit_bins(sums, alpha=0.05)
    one = audit_bins(sums, alpha=0.05, confidence_level=0.95, n_families=1)
    np.testing.assert_array_equal(default.gap_low, one.gap_low)


def test_an_audit_tells_what_it_would_find_with_a_probability_of_four_fifths():
    count, correct, confidence = [200, 0, 400], [120, 0, 320], [600, 0, 800]
    audit = audit_bins(one_bin_each(count, correct, confidence), alpha=0.05)
    assert audit.finding.dtype == np.int64
    assert np.isnan(audit.detectable_gap[1])
    for b in (0, 2):
        k = np.arange(count[b] + 1)
        evidence = [slow_evidence(j, count[b], confidence[b] / SCALE + 0.05) for j in k]
        truth = confidence[b] / SCALE + audit.detectable_gap[b]
        power = binom.pmf(k, count[b], truth)[np.array(evidence) >= audit.threshold].sum()
        assert power == pytest.approx(0.8)
    whole = one_bin_each([600], [440], [220 / 300 * SCALE])  # the run of all bins
    together = detectable_gap(
        whole.count, whole.mean_confidence, alpha=0.05, threshold=audit.threshold
    )
    assert audit.detectable_shift == pytest.approx(together[0])
    assert audit.detectable_shift < np.nanmin(audit.detectable_gap)


def test_an_empty_bin_passes_and_does_not_widen_the_limits():
    sums = one_bin_each([20, 0, 20], [19, 0, 13], [400, 0, 650])
    audit = audit_bins(sums, alpha=0.05)
    assert audit.count.tolist() == [20, 0, 20]
    assert audit.within_alpha.tolist() == [False, True, True]
    assert audit.significant.tolist() == [True, False, False]
    assert audit.finding.tolist() == [1, 0, 0]
    assert audit.direction.tolist() == ["underconfident", "", ""]
    assert audit.p_value[1] == 1.0
    assert np.isnan([audit.confidence[1], audit.accuracy[1], audit.gap[1]]).all()
    two = audit_bins(one_bin_each([20, 20], [19, 13], [400, 650]), alpha=0.05)
    np.testing.assert_array_equal(audit.gap_low[[0, 2]], two.gap_low)
    np.testing.assert_array_equal(audit.gap_high[[0, 2]], two.gap_high)


def test_an_empty_bin_inside_a_finding_is_no_part_of_it():
    audit = audit_bins(one_bin_each([30, 0, 30], [24, 0, 27], [600, 0, 700]), alpha=0.0)
    assert audit.finding.tolist() == [1, 0, 1]
    assert audit.direction.tolist() == ["underconfident", "", "underconfident"]
    assert audit.p_value[1] == 1.0
    assert audit.p_value[0] == audit.p_value[2] < 0.05


def test_p_values_grow_with_the_number_of_families_and_limits_widen():
    sums = one_bin_each([20, 30], [19, 13], [400, 650])
    one, ten = (audit_bins(sums, alpha=0.05, n_families=n) for n in (1, 10))
    np.testing.assert_allclose(ten.p_value, np.minimum(1, 10 * one.p_value))
    assert ten.threshold > one.threshold
    assert (ten.gap_low < one.gap_low).all()
    assert (ten.gap_high > one.gap_high).all()


def test_more_families_can_take_a_finding_away():
    sums = one_bin_each([60], [50], [650])
    assert audit_bins(sums, alpha=0.05).significant.tolist() == [True]
    assert audit_bins(sums, alpha=0.05, n_families=20).significant.tolist() == [False]


@pytest.mark.parametrize("n_families", [1, 7])
def test_limits_miss_the_truth_of_any_bin_with_at_most_the_stated_probability(
    simulated_once, n_families
):
    accuracy = np.array([0.52, 0.8, 0.97])
    for n in (5, 40, 200):
        k = np.arange(n + 1)
        held = 1.0
        sums = [one_bin_each([n] * 3, [j] * 3, [500, 800, 970]) for j in k]
        audits = [audit_bins(s, alpha=0.0, n_families=n_families) for s in sums]
        low, high = (np.array([getattr(a, x) + a.confidence for a in audits]) for x in LIMITS)
        for b, p in enumerate(accuracy):
            inside = (low[:, b] <= p) & (p <= high[:, b])
            held *= binom.pmf(k, n, p)[inside].sum()
        assert 1 - held <= 0.05 / n_families
