"""Audit of sums alone: limits, exact tolerance, finding of each bin, chance, and the result."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from skuq.calibration import (
    BinSums,
    TopLabelPredictions,
    audit_sums,
    bin_sums,
    detectable_gap,
    scan_bins,
    search_regions,
)
from skuq.calibration._bin_audit import _within, audit_bins, ece_bootstrap, ece_under_calibration
from skuq.calibration._scan import clopper_pearson
from tests.reporter import drawn_audit, one_bin_each, slow_evidence

# Bins

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
    assert _within(sums, float(alpha)).all()  # a scan of so many bins takes long
    beyond = sums._replace(confidence=at_edge - side)
    assert not _within(beyond, float(alpha)).any()


bins = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(100, SCALE))
)


@pytest.mark.slow
@settings(max_examples=40)
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
    assert np.isnan(audit.detectable_underconfidence[1])
    assert np.isnan(audit.detectable_overconfidence[1])
    for b in (0, 2):
        k = np.arange(count[b] + 1)
        for sign, gap, threshold in (
            (1, audit.detectable_underconfidence[b], audit.threshold),
            (-1, audit.detectable_overconfidence[b], audit.threshold_overconfident),
        ):
            edge = confidence[b] / SCALE + sign * 0.05
            beyond = sign * (k / count[b] - edge) > 0
            evidence = np.array([slow_evidence(j, count[b], edge, sign) for j in k])
            found = beyond & (evidence >= threshold)
            truth = confidence[b] / SCALE + sign * gap
            assert binom.pmf(k, count[b], truth)[found].sum() == pytest.approx(0.8)
    whole = one_bin_each([600], [440], [220 / 300 * SCALE])  # the run of all bins
    together = detectable_gap(
        whole.count, whole.mean_confidence, alpha=0.05, threshold=audit.threshold
    )
    assert audit.detectable_underconfident_shift == pytest.approx(together[0])
    assert audit.detectable_underconfident_shift < np.nanmin(audit.detectable_underconfidence)
    above = detectable_gap(
        whole.count,
        whole.mean_confidence,
        alpha=0.05,
        threshold=audit.threshold_overconfident,
        direction="overconfident",
    )
    assert audit.detectable_overconfident_shift == pytest.approx(above[0])
    assert audit.detectable_overconfident_shift < np.nanmin(audit.detectable_overconfidence)


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


# Chance

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_noise_floor_is_that_of_simulated_labels(seed):
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.integers(550, SCALE, size=12)) / SCALE
    units = np.repeat((confidence * SCALE).round().astype(int), 25)  # equal within their bin
    count = np.full(12, 25)
    edges = np.linspace(0, SCALE, 13).astype(int)
    sums = BinSums(edges, count, count, units.reshape(12, 25).sum(axis=1), SCALE)
    ours = ece_under_calibration(sums)
    labels = rng.random((4000, 12, 25)) < units.reshape(12, 25) / SCALE
    slow = np.abs(labels.sum(axis=2) - 25 * confidence).sum(axis=1) / 300
    assert ours.shape == (2000,)
    assert ours.mean() == pytest.approx(slow.mean(), abs=6 * slow.std() / np.sqrt(2000))
    assert np.quantile(ours, 0.95) == pytest.approx(np.quantile(slow, 0.95), rel=0.05)


def test_the_noise_floor_ignores_empty_bins_and_is_zero_for_certain_predictions():
    sums = one_bin_each([0, 50], [0, 40], [0, SCALE])
    assert (ece_under_calibration(sums) == 0).all()


def test_a_single_sample_counts():
    sums = one_bin_each([1, 0], [1, 0], [700, 0])
    np.testing.assert_allclose(ece_bootstrap(sums), 0.3)
    floor = ece_under_calibration(sums)
    right = np.isclose(floor, 0.3)
    np.testing.assert_allclose(floor[~right], 0.7)
    assert right.mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 2000))


@pytest.mark.parametrize("correct", [(45, 0, 30), (60, 0, 22), (60, 0, 40)])
def test_the_bootstrap_is_that_of_resampled_rows(correct):
    rng = np.random.default_rng(0)
    count, confidence = [60, 0, 40], [600, 0, 900]
    sums = one_bin_each(count, correct, confidence)
    ours = ece_bootstrap(sums)
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
    drawn = ece_bootstrap(sums)
    assert drawn.mean() == pytest.approx(sums.expected_calibration_error, rel=1e-3)


@pytest.mark.parametrize("simulate", [ece_bootstrap, ece_under_calibration])
def test_the_same_sums_give_the_same_draws_and_no_other_random_state_is_used(simulate):
    sums = one_bin_each([30, 0, 70], [20, 0, 60], [600, 0, 900])
    drawn = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        drawn.append(simulate(sums))
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.testing.assert_array_equal(*drawn)
    assert len(set(drawn[0])) > 10


# Result


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_sums_alone_give_the_result_of_the_auditor(strategy):
    audit = drawn_audit("third", alpha=0.02, confidence_level=0.9, strategy=strategy)
    result = audit_sums(audit.sums_, audit.group_sums_, alpha=0.02, confidence_level=0.9)
    np.testing.assert_equal(result._asdict(), audit.result_._asdict())
    assert (result.passed, result.within_alpha) == (audit.passed_, audit.within_alpha_)


def sums_of(count, correct, confidence):
    return BinSums(np.array([0, 5, 10]), *np.array([count, correct, confidence]), scale=10)


def test_a_group_with_a_finding_fails_the_audit_and_no_step_of_algorithm_1():
    whole, part = sums_of([0, 600], [0, 425], [0, 4200]), sums_of([0, 150], [0, 145], [0, 1050])
    assert audit_sums(whole, alpha=0.1).passed
    result = audit_sums(whole, {"g": part}, alpha=0.1)
    assert not result.passed
    assert result.within_alpha
    assert result.n_families == 2


def test_calibration_errors_by_chance_are_those_of_the_level():
    sums = sums_of([0, 600], [0, 425], [0, 4200])
    result = audit_sums(sums, confidence_level=0.9)
    drawn, honest = ece_bootstrap(sums), ece_under_calibration(sums)
    assert result.ece_interval == pytest.approx(np.quantile(drawn, [0.05, 0.95]))
    assert result.ece_chance == pytest.approx(np.quantile(honest, 0.9))


@pytest.mark.parametrize("region_alpha", [None, 0.1, 0.3])
def test_regions_are_searched_among_the_rows_and_are_one_more_family(region_alpha):
    X = np.arange(1000)[:, None] % 10
    correct = (np.arange(1000) % 100 < 60) | (X[:, 0] == 7)
    predictions = TopLabelPredictions(np.full(1000, 6 * 10**8, np.int32), correct)
    sums = sums_of([0, 1000], [0, correct.sum()], [0, 6000])
    result = audit_sums(
        sums, alpha=0.2, region_alpha=region_alpha, confidence_level=0.9, rows=(X, predictions)
    )
    assert result.n_families == 2
    assert result.regions == search_regions(
        X, predictions, alpha=region_alpha or 0.2, confidence_level=0.9, n_families=2
    )
    assert result.regions.regions[0].conditions == {0: 7.0}
    assert not result.passed
    assert audit_sums(sums, alpha=0.2, confidence_level=0.9).passed


@pytest.mark.parametrize("limit", [0, 1])
def test_the_limits_of_a_share_are_accepted_and_those_of_a_level_refused(limit):
    sums = sums_of([0, 20], [0, 15], [0, 150])
    assert audit_sums(sums, alpha=limit, region_alpha=limit).passed
    with pytest.raises(ValueError, match="`confidence_level`"):
        audit_sums(sums, confidence_level=limit)


def test_sums_of_nothing_are_refused():
    with pytest.raises(ValueError, match="at least one prediction, got none"):
        audit_sums(sums_of([0, 0], [0, 0], [0, 0]))


def test_sums_of_weights_are_refused():
    predictions = TopLabelPredictions(np.full(20, 6 * 10**8, np.int32), np.ones(20, bool))
    edges = np.array([0, 5 * 10**8, 10**9])
    whole, weighted = (
        bin_sums(predictions, edges, weight=weight)[0] for weight in (None, np.full(20, 2.0))
    )
    for families in ((weighted,), (whole, {"group": weighted})):
        with pytest.raises(ValueError, match="must count predictions, got sums of weights"):
            audit_sums(*families)


def test_an_empty_group_is_not_a_family():
    empty = sums_of([0, 0], [0, 0], [0, 0])
    assert audit_sums(sums_of([0, 20], [0, 15], [0, 150]), {"none": empty}).n_families == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 5}, r"`alpha` must be in \[0, 1\]"),
        ({"region_alpha": 5}, r"`region_alpha` must be in \[0, 1\]"),
        ({"confidence_level": 95}, "`confidence_level`"),
    ],
)
def test_percentages_are_refused(settings, message):
    sums = BinSums(
        np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]), np.array([80, 0]), 10
    )
    with pytest.raises(ValueError, match=message):
        audit_sums(sums, **settings)
