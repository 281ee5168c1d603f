"""Audit of sums alone: limits, findings, chance, and tolerances that fresh draws pass."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from skuq import calibration
from skuq.calibration import BinSums, audit_sums, choose_tolerance, detectable_gap, scan_bins
from skuq.calibration._bin_audit import _within, audit_bins, ece_bootstrap, ece_under_calibration
from tests.reporter import one_bin_each

SCALE = 1000


@pytest.mark.parametrize(("trials", "level"), [(1, 0.8), (2, 0.95), (53, 0.9995), (400, 0.95)])
def test_limits_equal_the_exact_interval_of_scipy(trials, level):
    successes = np.unique(np.linspace(0, trials, 12).astype(int))
    low, high = calibration.clopper_pearson(successes, trials, (1 - level) / 2)
    exact = [binomtest(k, trials).proportion_ci(level, method="exact") for k in successes.tolist()]
    np.testing.assert_allclose(np.column_stack([low, high]), exact, rtol=1e-9)
    assert calibration.clopper_pearson([0], [0], 0.025) == ([0.0], [1.0])


@pytest.mark.parametrize("alpha", ["0.0157", "0.01", "0.03", "0.05", "0.09", "0.15", "0.29", "0.3"])
def test_a_gap_of_exactly_alpha_is_within_it_and_one_unit_more_is_not(alpha):
    count, unit = np.arange(1, 500), 10**9
    edges, correct = np.linspace(0, unit, 500).astype(int), count // 2
    for side in (-1, 1):
        at_edge = correct * unit - side * count * int(Fraction(alpha) * unit)
        sums = BinSums(edges, count, correct, at_edge, unit)
        assert _within(sums, float(alpha)).all()  # a scan of so many bins takes long
        assert not _within(sums._replace(confidence=at_edge - side), float(alpha)).any()


def test_limits_share_the_level_among_both_sides_of_all_filled_bins_and_families():
    count, correct = np.array([30, 0, 1, 400]), np.array([21, 0, 1, 390])
    confidence = np.array([600, 0, 800, 950]) * count
    sums = BinSums(np.array([500, 700, 750, 900, 1000]), count, correct, confidence, SCALE)
    found = audit_bins(sums, tolerance=0.05, confidence_level=0.9, n_families=2)
    np.testing.assert_array_equal([*found.lower, *found.upper[3:]], [0.5, 0.7, 0.75, 0.9, 1.0])
    for b in (0, 2, 3):
        test = binomtest(int(correct[b]), int(count[b]))
        interval = test.proportion_ci(1 - 0.1 / 2 / 3, method="exact")  # two families, three bins
        limits, mean = (found.gap_low[b], found.gap_high[b]), confidence[b] / count[b] / SCALE
        assert limits == pytest.approx((interval.low - mean, interval.high - mean), abs=1e-9)
    weak = one_bin_each([60], [50], [650])  # more families can take a finding away
    assert audit_bins(weak, tolerance=0.05).significant.tolist() == [True]
    assert audit_bins(weak, tolerance=0.05, n_families=20).significant.tolist() == [False]


bins = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(100, SCALE))
)


@settings(max_examples=15)
@given(
    rows=st.lists(bins, min_size=1, max_size=6),
    tolerance=st.floats(0, 1),
    level=st.floats(0.01, 0.999),
    n_families=st.integers(1, 50),
)
def test_a_bin_tells_of_the_finding_it_belongs_to(rows, tolerance, level, n_families):
    count, correct, confidence = np.array(rows).T
    sums = one_bin_each(count, correct, confidence)
    audit = audit_bins(sums, tolerance=tolerance, confidence_level=level, n_families=n_families)
    scan = scan_bins(sums, tolerance=tolerance, level=(1 - level) / n_families)
    expected = [(0, "", p) for p in scan.p_value]
    for k, found in enumerate(scan.findings, 1):
        for b in range(found.first, found.last + 1):
            expected[b] = k, found.direction, found.p_value
    number, direction, p_value = map(list, zip(*expected, strict=True))
    assert (audit.finding.tolist(), audit.direction.tolist()) == (number, direction)
    assert audit.significant.tolist() == [k > 0 for k in number]
    np.testing.assert_array_equal(audit.p_value, np.minimum(1, n_families * np.array(p_value)))
    assert (audit.p_value[audit.significant] < 1 - level).all()
    np.testing.assert_allclose(audit.gap, correct / count - confidence / SCALE, atol=1e-12)
    assert (audit.gap_low <= audit.gap + 1e-12).all()
    assert (audit.gap <= audit.gap_high + 1e-12).all()
    assert audit.threshold == scan.threshold
    assert audit.threshold_overconfident == scan.threshold_overconfident


def test_an_empty_bin_passes_does_not_widen_the_limits_and_is_in_no_finding():
    audit = audit_bins(one_bin_each([20, 0, 20], [19, 0, 13], [400, 0, 650]), tolerance=0.05)
    assert audit.count.tolist() == [20, 0, 20]
    assert audit.within_tolerance.tolist() == [False, True, True]
    assert audit.finding.tolist() == [1, 0, 0]
    assert audit.p_value[1] == 1.0
    nothing = [audit.confidence[1], audit.accuracy[1], audit.gap[1]]
    assert np.isnan([*nothing, audit.detectable_underconfidence[1]]).all()
    two = audit_bins(one_bin_each([20, 20], [19, 13], [400, 650]), tolerance=0.05)
    for name in ("gap_low", "gap_high"):
        np.testing.assert_array_equal(getattr(audit, name)[[0, 2]], getattr(two, name))
    audit = audit_bins(one_bin_each([30, 0, 30], [24, 0, 27], [600, 0, 700]), tolerance=0.0)
    assert audit.finding.tolist() == [1, 0, 1]  # one finding around an empty bin
    assert audit.p_value[1] == 1.0
    assert audit.p_value[0] == audit.p_value[2] < 0.05


def test_an_audit_tells_what_its_thresholds_reveal_in_each_bin_and_in_all_of_them():
    count, confidence = [200, 0, 400], np.array([0.6, np.nan, 0.8])
    audit = audit_bins(one_bin_each(count, [120, 0, 320], [600, 0, 800]), tolerance=0.05)
    for side, threshold in (("under", audit.threshold), ("over", audit.threshold_overconfident)):
        given = {"tolerance": 0.05, "threshold": threshold, "direction": f"{side}confident"}
        gaps = detectable_gap(count, confidence, **given)
        np.testing.assert_array_equal(getattr(audit, f"detectable_{side}confidence"), gaps)
        shift = getattr(audit, f"detectable_{side}confident_shift")
        assert shift == pytest.approx(float(detectable_gap(600, 11 / 15, **given)))


def test_the_noise_floor_is_that_of_simulated_labels():
    rng = np.random.default_rng(0)
    units = np.sort(rng.integers(550, SCALE, size=12))  # equal within their bin
    count, edges = np.full(12, 25), np.linspace(0, SCALE, 13).astype(int)
    ours = ece_under_calibration(BinSums(edges, count, count, 25 * units, SCALE))
    labels = rng.binomial(25, units / SCALE, size=(4000, 12))
    slow = np.abs(labels - 25 * units / SCALE).sum(axis=1) / 300
    assert ours.shape == (2000,)
    assert ours.mean() == pytest.approx(slow.mean(), abs=6 * slow.std() / np.sqrt(2000))
    assert np.quantile(ours, 0.95) == pytest.approx(np.quantile(slow, 0.95), rel=0.05)
    certain = one_bin_each([0, 50], [0, 40], [0, SCALE])  # an empty bin does not count
    assert (ece_under_calibration(certain) == 0).all()


def test_a_single_sample_counts_and_so_does_a_bin_of_hardly_any_weight():
    single = one_bin_each([1, 0], [1, 0], [700, 0])
    np.testing.assert_allclose(ece_bootstrap(single), 0.3)
    floor = ece_under_calibration(single)
    np.testing.assert_allclose(np.unique(floor), [0.3, 0.7])
    assert np.isclose(floor, 0.3).mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.21 / 2000))
    # Rounded down, the effective number of predictions may be 0, but it counts as 1.
    half = np.array([0.5])
    tiny = BinSums(np.array([0, SCALE]), half, half, 700 * half, SCALE, 0.6 * half)
    assert tiny.effective_count.tolist() == [0]
    np.testing.assert_allclose(np.unique(ece_under_calibration(tiny)), [0.3, 0.7])


@pytest.mark.parametrize("correct", [(45, 0, 30), (60, 0, 22), (60, 0, 40)])
def test_the_bootstrap_is_that_of_resampled_rows(correct):
    count, confidence = np.array([60, 0, 40]), np.array([600, 0, 900])
    ours = ece_bootstrap(one_bin_each(count, correct, confidence))
    bin_of_row = np.repeat(np.eye(3), count, axis=0)  # (100, 3)
    right = np.concatenate([np.arange(n) < k for n, k in zip(count, correct, strict=True)])
    deviation = bin_of_row * (right[:, None] - confidence / SCALE)
    rows = np.random.default_rng(0).integers(100, size=(3000, 100))
    slow = np.abs(deviation[rows].sum(axis=1)).sum(axis=1) / 100
    assert ours.mean() == pytest.approx(slow.mean(), abs=6 * slow.std() / np.sqrt(2000))
    assert ours.std() == pytest.approx(slow.std(), rel=0.15)
    many = one_bin_each([10**6, 2 * 10**6], [800_000, 1_200_000], [500, 900])
    assert ece_bootstrap(many).mean() == pytest.approx(many.expected_calibration_error, rel=1e-3)


def test_a_group_with_a_finding_fails_the_audit_and_no_step_of_algorithm_1():
    whole, part = one_bin_each([600], [425], [700]), one_bin_each([150], [145], [700])
    assert audit_sums(whole, tolerance=0.1).passed
    empty = one_bin_each([0], [0], [0])  # is not a family
    result = audit_sums(whole, {"g": part, "none": empty}, tolerance=0.1)
    assert (result.passed, result.within_tolerance, result.n_families) == (False, True, 2)
    result = audit_sums(whole, confidence_level=0.9)
    drawn, honest = ece_bootstrap(whole), ece_under_calibration(whole)
    assert result.ece_interval == pytest.approx(np.quantile(drawn, [0.05, 0.95]))
    assert result.ece_chance == pytest.approx(np.quantile(honest, 0.9))


@pytest.mark.parametrize("region_tolerance", [None, 0.1, 0.3])
def test_regions_are_searched_among_the_rows_and_are_one_more_family(region_tolerance):
    X = np.arange(1000)[:, None] % 10
    correct = (np.arange(1000) % 100 < 60) | (X[:, 0] == 7)
    predictions = calibration.TopLabelPredictions(np.full(1000, 6 * 10**8, np.int32), correct)
    sums, given = one_bin_each([1000], [correct.sum()], [600]), {"confidence_level": 0.9}
    searched = {"region_tolerance": region_tolerance, "rows": (X, predictions)}
    result = audit_sums(sums, tolerance=0.2, **searched, **given)
    assert (result.passed, result.n_families) == (False, 2)
    given |= {"tolerance": region_tolerance or 0.2, "n_families": 1 / (1 - calibration.ALL_SAMPLES)}
    assert result.regions == calibration.search_regions(X, predictions, **given)
    assert result.regions.regions[0].conditions == {0: 7.0}
    assert audit_sums(sums, tolerance=0.2, confidence_level=0.9).passed


FIVE = {"n_bins": 5, "random_state": 0}


def recorded(n, wrong_by=0.0):
    """Labels and probabilities; confidence is `wrong_by` lower than accuracy, at least 0.5."""
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.5, 1, n)
    y = (rng.random(n) > accuracy).astype(int)
    confidence = np.clip(accuracy - wrong_by, 0.5, 1)
    return y, np.column_stack([confidence, 1 - confidence])


def share_passed(y, proba, size, level, tolerance):
    rng = np.random.default_rng(1)
    answers = calibration.top_label_predictions(y, proba, classes=[0, 1])
    edges = calibration.bin_edges(answers.confidence, 5, "uniform")
    drawn = (answers.at(rng.integers(len(y), size=size)) for _ in range(50))
    sums = (calibration.bin_sums(each, edges) for each in drawn)
    scans = (calibration.scan_bins(each, tolerance=tolerance, level=1 - level) for each in sums)
    return np.mean([not scan.findings for scan in scans])


@pytest.mark.parametrize(("wrong_by", "size", "level"), [(0.0, 300, 0.95), (0.1, 600, 0.8)])
def test_with_the_tolerance_fresh_draws_pass_as_often_as_asked(monkeypatch, wrong_by, size, level):
    # Tests keep their level with any number of simulations.
    monkeypatch.setattr("skuq.calibration._scan.N_SIMULATIONS", 500)
    y, proba = recorded(2000, wrong_by)
    given = {"reference_size": size, "confidence_level": level, "n_repeats": 100, **FIVE}
    study = choose_tolerance(y, proba, **given)
    passed = share_passed(y, proba, size, level, study.tolerance)
    # Errors of the draws of the study, 100, and of these.
    assert passed >= level - 3.5 * np.sqrt(level * (1 - level) * (1 / 100 + 1 / 50))
    if study.tolerance > 0.02:  # it is no larger than needed
        assert share_passed(y, proba, size, level, study.tolerance - 0.03) < passed
    assert study.region_tolerance is None


def test_the_size_is_that_of_the_predictions_the_seed_decides_and_classes_are_the_columns():
    y, proba = recorded(400, 0.1)
    names = np.array(["z", "a"])

    def study(seed, y=y, **settings):
        return choose_tolerance(y, proba, n_bins=5, n_repeats=10, random_state=seed, **settings)

    one = study(3)
    assert one == study(3, reference_size=400) == study(np.random.RandomState(3))
    assert one == study(3, names[y], classes=names)
    assert one != study(4)


def test_a_level_that_few_simulations_cannot_resolve_is_that_of_the_bound():
    # All draws are the same: 50 correct ones of 50, in one bin, are evidence of
    # -50 log(0.7 + tolerance), in one run.
    settings = {"classes": [0, 1], "confidence_level": 0.999, "n_repeats": 30}
    study = choose_tolerance(np.zeros(50), [[0.7, 0.3]] * 50, n_bins=1, random_state=0, **settings)
    assert study.tolerance == pytest.approx((0.8 * 0.5 * 0.001) ** (1 / 50) - 0.7, abs=1e-3)


@pytest.mark.parametrize(("n", "size"), [(300, 30), (300, 300), (40, 300)])
@pytest.mark.parametrize(("samples", "cells", "most"), [(50, 10**6, 50), (10**6, 120, 60)])
def test_of_large_reference_sets_as_many_samples_are_drawn_as_are_searched(
    monkeypatch, n, size, samples, cells, most
):
    monkeypatch.setattr("skuq.calibration._conditions.MAX_SAMPLES", samples)
    monkeypatch.setattr("skuq.calibration._conditions.MAX_CELLS", cells)
    searched, name = [], "skuq.calibration._bin_audit.region_tolerance"
    monkeypatch.setattr(name, lambda *given: searched.append(given))
    X = np.random.default_rng(0).uniform(0.5, 1, (n, 2)).round(3)
    given = {"reference_size": size, "n_repeats": 3, "confidence_level": 0.8, "random_state": 0}
    proba = np.column_stack([X[:, 0], 1 - X[:, 0]])
    choose_tolerance(np.arange(n) % 2, proba, X=X, **given)
    ((drawn, level),) = searched
    assert (len(drawn), level) == (3, 0.8)
    for conditions, predictions in drawn:
        confidence = predictions.confidence[:, None] / 10**9
        assert len(confidence) == conditions.masks.shape[1] == min(size, most)
        for (column, rule), mask in zip(conditions.rules, conditions.masks, strict=True):
            if column == 0:  # which is the confidence
                expected = calibration.region_mask({0: rule}, confidence)
                np.testing.assert_array_equal(mask, expected)
