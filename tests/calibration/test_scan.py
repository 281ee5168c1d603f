"""The scan against slow loops and simulated models at the edge of the tolerance; its power."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from skuq.calibration import detectable_gap, planned_threshold, required_samples, scan_bins
from skuq.calibration._scan import (
    N_SIMULATIONS,
    clopper_pearson,
    detectable_shift,
    p_values,
    run_evidence,
)
from tests.reporter import one_bin_each, slow_evidence

SCALE = 1000
DIRECTIONS = {1: "underconfident", -1: "overconfident"}
CONFIDENCE = np.array([550, 650, 750, 850, 950])

SPLIT = {1: 0.8, -1: 0.2}  # of the level, over the two directions


def slow_runs(count, correct, confidence, alpha, sign):
    """Evidence of each run (first, last), by loops; confidences in units of ``1 / SCALE``."""
    runs = {}
    for first in range(len(count)):
        for last in range(first, len(count)):
            bins = range(first, last + 1)
            n, k = sum(int(count[b]) for b in bins), sum(int(correct[b]) for b in bins)
            edges = [min(max(confidence[b] / SCALE + sign * alpha, 0), 1) for b in bins]
            edge = math.fsum(count[b] * e for b, e in zip(bins, edges, strict=True)) / max(n, 1)
            runs[first, last] = slow_evidence(k, n, edge, sign)
    return runs


def slow_p_values(count, correct, confidence, alpha, sign, seed, repeats=800):
    """Share of simulated models at the edge with evidence as large as that of each run."""
    rng = np.random.default_rng(seed)
    edge = np.clip(confidence / SCALE + sign * alpha, 0, 1)
    largest = [
        max(slow_runs(count, rng.binomial(count, edge), confidence, alpha, sign).values())
        for _ in range(repeats)
    ]
    runs = slow_runs(count, correct, confidence, alpha, sign)
    return {
        run: np.mean([value >= evidence - 1e-9 for value in largest]) if evidence else 1.0
        for run, evidence in runs.items()
    }


@pytest.mark.parametrize(
    ("count", "correct", "alpha"),
    [
        ([40, 0, 25], [30, 0, 23], 0.05),
        ([5, 3, 4], [5, 3, 4], 0.0),
        ([200, 100, 300], [125, 60, 215], 0.02),
    ],
)
def test_evidence_and_p_values_are_those_of_slow_loops(count, correct, alpha):
    confidence = np.array([550, 650, 750])
    count, correct = np.array(count), np.array(correct)
    sums = one_bin_each(count, correct, confidence)
    scan = scan_bins(sums, alpha=alpha, level=0.999999)  # whatever deviates is told
    runs = {s: slow_runs(count, correct, confidence, alpha, s) for s in (1, -1)}
    chance = {s: slow_p_values(count, correct, confidence, alpha, s, seed=s + 2) for s in (1, -1)}
    for found in scan.findings:
        sign = 1 if found.direction == "underconfident" else -1
        run = found.first, found.last
        assert found.evidence == pytest.approx(runs[sign][run], rel=1e-9)
        p = chance[sign][run]
        error = 5 * np.sqrt(max(p, 0.001) * (1 / 800 + 1 / N_SIMULATIONS))
        error /= SPLIT[sign]
        assert found.p_value == pytest.approx(min(1, p / SPLIT[sign]), abs=error)
        np.testing.assert_array_equal(scan.p_value[run[0] : run[1] + 1], found.p_value)
    first = scan.findings[0]
    best = max(runs[1 if first.direction == "underconfident" else -1].values())
    assert first.evidence == pytest.approx(best)
    assert first.p_value == min(found.p_value for found in scan.findings)
    alone = scan_bins(sums, alpha=alpha, level=1e-9)
    assert alone.findings == []
    for b in range(3):
        p = min(chance[s][b, b] / SPLIT[s] for s in (1, -1))
        error = 25 * np.sqrt(max(p, 0.001) * (1 / 800 + 1 / N_SIMULATIONS))
        assert alone.p_value[b] == pytest.approx(min(1, p), abs=error)


@given(n=st.integers(1, 2000), edge=st.floats(1e-6, 1 - 1e-6))
def test_evidence_never_falls_with_a_further_correct_prediction(n, edge):
    k = np.arange(n + 1)
    above, below = (run_evidence(k, np.full(n + 1, n), np.float64(edge), s) for s in (1, -1))
    tolerance = 1e-9 * (1 + np.abs(above).max() + np.abs(below).max())
    assert (np.diff(above) >= -tolerance).all()
    assert (np.diff(below) <= tolerance).all()
    assert (np.minimum(above, below) == 0).all()
    assert (above >= 0).all()
    assert (below >= 0).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_evidence_of_few_samples_is_that_of_slow_loops_also_against_certainty(sign):
    n, k = np.array([(n, k) for n in range(5) for k in range(n + 1)]).T
    for edge in (0.2, 0.5, 0.9):
        found = run_evidence(k, n, np.full(len(k), edge), sign)
        slow = [slow_evidence(*sample, edge, sign) for sample in zip(k, n, strict=True)]
        np.testing.assert_allclose(found, slow)
    k, n = np.arange(4), np.full(4, 3)
    for edge in (0.0, 1.0):
        with np.errstate(all="raise"):
            found = run_evidence(k, n, np.full(4, edge), sign)
        np.testing.assert_array_equal(found, np.where(sign * (k / 3 - edge) > 0, np.inf, 0.0))


rows = st.integers(0, 200).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, SCALE - 1))
)


# Both directions are found: the one with the larger share of the level comes first, although its
# evidence is a little smaller.
@example(rows=[(39, 22, 45), (188, 18, 393)], alpha=0.0, level=0.3)
@settings(max_examples=15)
@given(
    rows=st.lists(rows, min_size=1, max_size=7),
    alpha=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    level=st.sampled_from([0.3, 0.05, 0.002, 1e-5]),
)
def test_findings_are_disjoint_and_the_threshold_decides_on_them(rows, alpha, level):
    count, correct, confidence = np.array(rows).T
    confidence = np.where(count > 0, confidence, 0)
    scan = scan_bins(one_bin_each(count, correct, confidence), alpha=alpha, level=level)
    taken = [b for found in scan.findings for b in range(found.first, found.last + 1)]
    assert len(taken) == len(set(taken))
    assert (np.diff([found.p_value for found in scan.findings]) >= 0).all()
    for direction in ("underconfident", "overconfident"):
        evidence = [found.evidence for found in scan.findings if found.direction == direction]
        assert (np.diff(evidence) <= 1e-8).all()
    assert all(0 <= found.p_value < level for found in scan.findings)
    assert ((scan.p_value >= 0) & (scan.p_value <= 1)).all()
    slow = {s: slow_runs(count, correct, confidence, alpha, s) for s in (1, -1)}
    for found in scan.findings:
        sign = 1 if found.direction == "underconfident" else -1
        equal = [
            last - first
            for (first, last), value in slow[sign].items()
            if abs(value - found.evidence) < 1e-10 and found.first <= first <= last <= found.last
        ]
        assert min(equal) == found.last - found.first  # no shorter part has as much
    best = max(slow[1].values())
    if abs(best - scan.threshold) > 1e-7 * (1 + best) and best > 2e-5:
        striking = best >= scan.threshold
        others = [found for found in scan.findings if found.direction == "overconfident"]
        under = any(found.direction == "underconfident" for found in scan.findings)
        assert under == striking or (striking and others)  # those may be more striking still


@pytest.mark.parametrize(("count", "level"), [(30, 0.2), (100, 0.05), (100, 5e-4), (200, 0.01)])
def test_the_threshold_is_exact_where_evidence_is_that_of_a_simulation(
    simulated_once, count, level
):
    # One bin has few possible values, so the threshold is next to one of them.
    for confidence in (500, 850):
        k = np.arange(count + 1)
        scans = [
            scan_bins(one_bin_each([count], [j], [confidence]), alpha=0.05, level=level) for j in k
        ]
        found = [any(f.direction == "underconfident" for f in scan.findings) for scan in scans]
        evidence = run_evidence(k, np.full(count + 1, count), confidence / SCALE + 0.05, 1)
        np.testing.assert_array_equal(evidence >= scans[0].threshold, found)
        assert found[-1] or count == 30
        assert not found[0]


def share_with_findings(count, draw, alpha, level=0.05, repeats=300):
    rng = np.random.default_rng(0)
    count = np.array(count)
    found = [
        bool(scan_bins(one_bin_each(count, draw(rng), CONFIDENCE), alpha=alpha, level=level)[0])
        for _ in range(repeats)
    ]
    return np.mean(found), np.sqrt(level * (1 - level) / repeats)


@pytest.mark.parametrize(
    ("count", "alpha", "side"),
    [
        ([3] * 5, 0.0, 0),
        ([60] * 5, 0.05, 1),
        ([60] * 5, 0.05, -1),
        ([100_000] * 5, 0.05, 1),
        ([1, 0, 0, 0, 0], 0.05, -1),
        ([500, 0, 2, 3, 40], 0.05, 0),
        ([0, 0, 25, 0, 0], 0.0, 0),
    ],
)
def test_a_model_that_keeps_to_alpha_is_failed_as_rarely_as_stated(
    simulated_once, count, alpha, side
):
    accuracy = np.clip(CONFIDENCE / SCALE + side * alpha, 0, 1)
    share, error = share_with_findings(count, lambda rng: rng.binomial(count, accuracy), alpha)
    assert share <= 0.05 + 3 * error


@pytest.mark.parametrize("level", [0.2, 0.01])
def test_the_level_is_the_one_that_was_asked_for(simulated_once, level):
    count, accuracy = [200] * 5, CONFIDENCE / SCALE + 0.04
    share, error = share_with_findings(
        count, lambda rng: rng.binomial(count, accuracy), 0.04, level=level, repeats=800
    )
    assert share <= level + 3 * error
    assert share >= level / 10  # nor is it needlessly strict


@pytest.mark.parametrize(
    ("kind", "side", "n"),
    [("split", 1, 4), ("split", -1, 80), ("spread", 1, 80), ("sure", 1, 80), ("sure", -1, 4)],
)
def test_unequal_predictions_within_a_bin_give_no_more_findings(simulated_once, kind, side, n):
    mean = CONFIDENCE / SCALE + side * 0.05
    if kind == "sure":  # as many certain ones as there can be
        p = np.clip(mean[:, None] * n - np.arange(n), 0, 1)
    else:
        offset = np.linspace(-1, 1, n) if kind == "spread" else np.where(np.arange(n) % 2, 1, -1)
        p = mean[:, None] + np.minimum(mean, 1 - mean)[:, None] * offset
    np.testing.assert_allclose(p.mean(axis=1), mean)
    share, error = share_with_findings([n] * 5, lambda rng: (rng.random(p.shape) < p).sum(1), 0.05)
    assert share <= 0.05 + 3 * error


def single_bins_find(sums, alpha, level=0.05):
    """Whether a test of each bin by itself finds anything, corrected by Bonferroni."""
    filled = sums.count > 0
    low, high = clopper_pearson(sums.correct, sums.count, level / 2 / filled.sum())
    gap_low, gap_high = low - sums.mean_confidence, high - sums.mean_confidence
    return bool(((gap_low > alpha) | (gap_high < -alpha))[filled].any())


@pytest.mark.parametrize(
    ("count", "accuracy"),
    [
        ([60] * 5, [0.70, 0.80, 0.75, 0.85, 0.95]),
        ([20] * 5, [0.55, 0.65, 0.95, 0.95, 0.95]),
        ([200] * 5, [0.65, 0.75, 0.85, 0.85, 0.95]),
    ],
)
def test_what_is_spread_over_bins_is_found_more_often_than_bin_by_bin(
    simulated_once, count, accuracy
):
    rng = np.random.default_rng(0)
    sums = [one_bin_each(count, rng.binomial(count, accuracy), CONFIDENCE) for _ in range(150)]
    ours = np.mean([bool(scan_bins(each, alpha=0.05).findings) for each in sums])
    assert ours > 1.15 * np.mean([single_bins_find(each, 0.05) for each in sums])


def test_a_deviation_over_two_bins_is_found_though_neither_is_by_itself():
    for count, correct in (([60, 0], [48, 0]), ([0, 60], [0, 53])):
        assert scan_bins(one_bin_each(count, correct, [650, 750]), alpha=0.05).findings == []
    scan = scan_bins(one_bin_each([60, 60], [48, 53], [650, 750]), alpha=0.05)
    assert [found[:3] for found in scan.findings] == [(0, 1, "underconfident")]
    np.testing.assert_array_equal(scan.p_value, scan.findings[0].p_value)


def test_findings_of_both_directions_are_told_most_striking_first():
    count, correct = [100, 300, 0, 200, 50], [85, 195, 0, 100, 48]
    scan = scan_bins(one_bin_each(count, correct, CONFIDENCE), alpha=0.05)
    assert [found[:3] for found in scan.findings] == [
        (3, 3, "overconfident"),
        (0, 0, "underconfident"),
    ]
    assert scan.p_value[2] == 1.0


def test_of_runs_with_equal_evidence_the_shortest_is_told():
    scan = scan_bins(one_bin_each([0, 0, 80, 0, 0], [0, 0, 78, 0, 0], [0, 0, 700, 0, 0]), alpha=0)
    assert [found[:2] for found in scan.findings] == [(2, 2)]
    huge = scan_bins(one_bin_each([0, 10**9, 0], [0, 10**9, 0], [0, 500, 0]), alpha=0.05)
    assert [found[:2] for found in huge.findings] == [(1, 1)]


def test_overwhelming_evidence_has_the_p_value_of_the_bound():
    sums = one_bin_each([50, 50], [20, 50], [400, 400])
    (found,) = scan_bins(sums, alpha=0.0).findings
    assert found[:2] == (1, 1)
    assert found.p_value == pytest.approx(3 / 0.8 * np.exp(-found.evidence))
    assert found.p_value < 1e-15
    assert scan_bins(sums, alpha=0.0, level=1e-12).findings == [found]


def test_p_values_count_the_model_itself_among_the_simulated_ones():
    found = p_values(np.array([3.0, 3.0, 0.0]), np.array([4, 99, 4]), 99, 10, 1)
    np.testing.assert_allclose(found, [5 / 100 / 0.8, 1, 1])
    # Where no simulated model gets that far, Chernoff's bound for all runs may be smaller.
    found = p_values(np.array([3.0, 20.0]), np.array([0, 0]), 99, 10, -1)
    np.testing.assert_allclose(found, [1 / 100 / 0.2, 10 * np.exp(-20) / 0.2])


def test_a_level_that_simulations_cannot_resolve_is_kept_by_the_bound():
    level = 1e-5
    threshold = scan_bins(one_bin_each([400], [0], [500]), alpha=0.0, level=level).threshold
    assert threshold == pytest.approx(np.log(1 / (0.8 * level)))
    k = np.arange(401)
    evidence = run_evidence(k, np.full(401, 400), 0.5, 1)
    least = int(np.flatnonzero(evidence >= threshold)[0])
    for correct, expected in ((least, True), (least - 1, False)):
        scan = scan_bins(one_bin_each([400], [correct], [500]), alpha=0.0, level=level)
        assert bool(scan.findings) == expected
    tail = sum(math.comb(400, j) for j in range(least, 401)) / 2**400
    assert tail / 0.8 <= level


def test_nothing_is_found_without_samples_or_where_certainty_is_tolerated():
    scan = scan_bins(one_bin_each([0, 0], [0, 0], [0, 0]), alpha=0.05)
    assert scan.findings == []
    assert scan.p_value.tolist() == [1, 1]
    for alpha in (0.05, 0.5, 1.0):
        scan = scan_bins(one_bin_each([10**6], [10**6], [960]), alpha=alpha)
        assert scan.findings == []
        assert scan.p_value.tolist() == [1.0]


@pytest.mark.parametrize(("correct", "direction"), [(39, 1), (5, -1)])
def test_a_single_bin_is_a_run(correct, direction):
    (found,) = scan_bins(one_bin_each([40], [correct], [600]), alpha=0.05).findings
    assert found[:3] == (0, 0, DIRECTIONS[direction])


def test_hundreds_of_bins_take_runs_of_ten_and_bounded_time():
    rng = np.random.default_rng(0)
    count, confidence = np.full(100, 40), np.linspace(510, 990, 100).astype(int)
    accuracy = confidence / 1000 + np.where(abs(np.arange(100) - 35) < 8, 0.2, 0.0)
    sums = one_bin_each(count, rng.binomial(count, accuracy.clip(max=1)), confidence)
    (found,) = scan_bins(sums, alpha=0.05).findings[:1]
    assert 25 <= found.first <= found.last <= 45
    assert found.last - found.first < 10
    assert found.direction == "underconfident"


def test_most_of_the_level_goes_to_underconfidence():
    under = scan_bins(one_bin_each([60], [48], [700]), alpha=0.0, level=0.9999).findings[0]
    over = scan_bins(one_bin_each([60], [36], [700]), alpha=0.0, level=0.9999).findings[0]
    assert (under.direction, over.direction) == ("underconfident", "overconfident")
    assert under.p_value < over.p_value
    low, high = (planned_threshold(direction=name) for name in DIRECTIONS.values())
    assert high - low == pytest.approx(np.log(4))


# Power

POWER = {"alpha": 0.05, "threshold": planned_threshold()}


def power_at(count, confidence, gap, level=0.05, direction="underconfident"):
    """Probability of a finding in a direction, by the findings of `scan_bins` themselves."""
    k = np.arange(count + 1)
    scans = [
        scan_bins(one_bin_each([count], [j], [confidence * SCALE]), alpha=0.05, level=level)
        for j in k
    ]
    found = np.array([s.findings[:1] != [] and s.findings[0].direction == direction for s in scans])
    truth = confidence + gap if direction == "underconfident" else confidence - gap
    return binom.pmf(k, count, np.clip(truth, 0.0, 1.0))[found].sum()


@pytest.mark.parametrize(
    ("power", "confidence", "level", "direction"),
    [
        (0.5, 0.62, 0.05, "underconfident"),
        (0.8, 0.5, 0.05, "underconfident"),
        (0.99, 0.8, 0.001, "underconfident"),
        (0.5, 0.95, 0.05, "overconfident"),
        (0.99, 0.62, 0.05, "overconfident"),
    ],
)
def test_at_the_detectable_gap_the_power_is_the_requested_one(
    simulated_once, power, confidence, level, direction
):
    for count in (50, 150):
        sums = one_bin_each([count], [0], [confidence * SCALE])
        scan = scan_bins(sums, alpha=0.05, level=level)
        over = direction == "overconfident"
        threshold = scan.threshold_overconfident if over else scan.threshold
        given = {"alpha": 0.05, "threshold": threshold, "power": power, "direction": direction}
        gap = float(detectable_gap(count, confidence, **given))
        if np.isnan(gap):
            assert over
            continue
        found = power_at(count, confidence, gap, level, direction)
        assert found == pytest.approx(power, abs=1e-6)
        assert required_samples(gap + 1e-9, confidence, **given) <= count
        np.testing.assert_allclose(detectable_shift([count], [confidence], **given), gap, atol=1e-9)


def test_what_is_planned_with_the_bound_is_found_at_least_as_often(simulated_once):
    threshold = planned_threshold(1)
    gap = float(detectable_gap(100, 0.6, alpha=0.05, threshold=threshold))
    assert power_at(100, 0.6, gap) >= 0.8
    assert scan_bins(one_bin_each([100], [0], [600]), alpha=0.05).threshold < threshold


def test_the_planned_threshold_grows_with_everything_that_is_tested():
    base = planned_threshold(10, level=0.05)
    assert base == pytest.approx(np.log(55 / (0.8 * 0.05)))
    assert planned_threshold(11) > base
    assert planned_threshold(10, level=0.01) == pytest.approx(base + np.log(5))
    assert planned_threshold(10, n_families=5) == pytest.approx(base + np.log(5))


def test_an_undetectable_gap_is_nan_and_even_a_perfect_accuracy_is_then_not_found():
    count = np.arange(1, 40)
    gaps = detectable_gap(count, 0.5, **POWER)
    enough = [slow_evidence(n, n, 0.55) >= POWER["threshold"] for n in count]
    np.testing.assert_array_equal(np.isnan(gaps), np.logical_not(enough))
    assert 0 < np.isnan(gaps).sum() < len(count)
    assert np.isnan(detectable_gap([0, 100, 10**6], [np.nan, 0.95, 0.99], **POWER)).all()


def test_the_detectable_gap_shrinks_to_alpha_with_more_samples():
    gaps = detectable_gap([100, 1000, 10**4, 10**6, 10**8], 0.5, **POWER)
    assert (np.diff(gaps) < 0).all()
    assert gaps[-1] == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize(
    ("gap", "confidence", "power", "threshold"),
    [(0.15, 0.5, 0.3, 2.5), (0.15, 0.7, 0.8, 7.7), (0.3, 0.7, 0.3, 2.5), (0.45, 0.5, 0.8, 7.7)],
)
def test_required_samples_are_the_first_of_a_slow_search(gap, confidence, power, threshold):
    accuracy = min(confidence + gap, 1.0)

    def reached(n):
        found = [k for k in range(n + 1) if slow_evidence(k, n, confidence + 0.05) >= threshold]
        return binom.pmf(found, n, accuracy).sum() >= power

    expected = next(n for n in range(1, 2000) if reached(n))
    ours = required_samples(gap, confidence, alpha=0.05, threshold=threshold, power=power)
    assert ours == expected


@pytest.mark.parametrize(
    ("gap", "confidence"), [(0.05, 0.5), (0.01, 0.5), (-0.2, 0.5), (0.5, 0.96), (0.0501, 0.5)]
)
def test_samples_for_what_no_number_finds_are_infinite(gap, confidence):
    assert required_samples(gap, confidence, **POWER) == np.inf
    if gap <= POWER["alpha"]:  # a false alarm is no finding, however small the power
        assert required_samples(gap, confidence, power=1e-4, **POWER) == np.inf


def test_required_samples_broadcast_count_an_accuracy_above_one_as_one_and_agree_with_gaps():
    grid = required_samples([[0.3], [0.9]], [0.5, 0.7], **POWER)
    assert grid.shape == (2, 2)
    assert grid[1].tolist() == required_samples([0.5, 0.3], [0.5, 0.7], **POWER).tolist()
    count = int(required_samples(0.25, 0.5, **POWER))
    assert detectable_gap(count, 0.5, **POWER) <= 0.25 + 1e-9
    assert not detectable_gap(count - 1, 0.5, **POWER) <= 0.25


def test_the_shift_of_all_bins_is_what_the_best_run_of_them_reveals():
    count, confidence = np.array([40, 300, 0, 500]), np.array([0.4, 0.6, np.nan, 0.8])
    found = detectable_shift(count, confidence, **POWER)
    runs = [slice(i, j) for i in range(4) for j in range(i + 1, 5)]
    gaps = [
        detectable_gap(
            count[run].sum(),
            np.nansum(count[run] * confidence[run]) / max(1, count[run].sum()),
            **POWER,
        )
        for run in runs
    ]
    assert found == pytest.approx(np.nanmin(gaps))
    assert found < np.nanmin(detectable_gap(count, confidence, **POWER))
    assert np.isnan(detectable_shift([3], [0.5], **POWER))


@pytest.mark.parametrize(
    ("count", "confidence"),
    [
        ([200, 0, 400], [0.75, np.nan, 0.95]),
        ([40, 40, 60, 100, 400], [0.55, 0.65, 0.75, 0.85, 0.97]),
    ],
)
def test_the_shift_of_all_bins_is_found_though_some_of_them_cannot_have_it(count, confidence):
    count, confidence = np.array(count), np.array(confidence)

    def best_power(gap):
        """Largest power of a run, by the distribution of its number of right predictions."""
        found = []
        for run in (slice(i, j) for i in range(len(count)) for j in range(i + 1, len(count) + 1)):
            size, claimed = count[run], np.nan_to_num(confidence[run])
            edge = (size * np.minimum(claimed + POWER["alpha"], 1)).sum() / max(1, size.sum())
            right = np.ones(1)
            for n, p in zip(size, np.minimum(claimed + gap, 1), strict=True):
                right = np.convolve(right, binom.pmf(np.arange(n + 1), n, p))
            enough = [
                slow_evidence(k, size.sum(), edge) >= POWER["threshold"] for k in range(len(right))
            ]
            found.append(right[enough].sum())
        return max(found)

    shift = detectable_shift(count, confidence, **POWER)
    assert best_power(shift) > 0.795  # the sum of unlike trials is nearly binomial
    assert best_power(shift - 0.02) < 0.8
