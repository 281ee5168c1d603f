"""The scan against slow loops and simulated models at the edge of the tolerance; its power."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from skuq.calibration import _scan, detectable_gap, planned_threshold, required_samples, scan_bins
from skuq.calibration._scan import N_SIMULATIONS, detectable_shift, p_values, run_evidence
from tests.reporter import one_bin_each, slow_evidence

SCALE = 1000
UNDER, OVER = "underconfident", "overconfident"
SIGN, SPLIT = {UNDER: 1, OVER: -1}, {UNDER: 0.8, OVER: 0.2}  # of the level
CONFIDENCE = np.array([550, 650, 750, 850, 950])


@pytest.fixture
def simulated_once(monkeypatch):
    """Simulations, whose seed is fixed, are kept for further audits of the same sizes."""
    kept, simulate = {}, _scan.simulated_evidence

    def simulated_evidence(count, edge, sign, rng):
        key = count.tobytes(), edge.tobytes(), sign
        if key not in kept:
            kept[key] = simulate(count, edge, sign, rng)
        return kept[key]

    monkeypatch.setattr(_scan, "simulated_evidence", simulated_evidence)


def slow_runs(count, correct, confidence, tolerance, direction):
    """Evidence of each run (first, last), by loops; confidences in units of ``1 / SCALE``."""
    edge = np.clip(confidence / SCALE + SIGN[direction] * tolerance, 0, 1)
    runs = {}
    for first, last in combinations_with_replacement(range(len(count)), 2):
        k, n, e = (x[first : last + 1].sum() for x in (correct, count, count * edge))
        runs[first, last] = slow_evidence(k, n, e / max(n, 1), SIGN[direction])
    return runs


def slow_p_values(count, correct, confidence, tolerance, direction, seed, repeats=800):
    """Corrected share of simulated models at the edge with evidence as large as that of a run."""
    rng = np.random.default_rng(seed)
    edge = np.clip(confidence / SCALE + SIGN[direction] * tolerance, 0, 1)
    drawn = rng.binomial(count, edge, size=(repeats, len(count)))
    slow = [slow_runs(count, each, confidence, tolerance, direction) for each in drawn]
    largest = np.array([max(runs.values()) for runs in slow])
    runs = slow_runs(count, correct, confidence, tolerance, direction)
    p = {run: np.mean(largest >= e - 1e-9) if e else 1 for run, e in runs.items()}
    return {run: min(1, share / SPLIT[direction]) for run, share in p.items()}


def error_of(p, direction):
    """Five standard errors of a p-value, in two simulations."""
    share = max(p * SPLIT[direction], 0.001)
    return 5 * np.sqrt(share * (1 / 800 + 1 / N_SIMULATIONS)) / SPLIT[direction]


@pytest.mark.parametrize(
    ("count", "correct", "tolerance"),
    [
        ([40, 0, 25], [30, 0, 23], 0.05),
        ([5, 3, 4], [5, 3, 4], 0.0),
        ([200, 100, 300], [125, 60, 215], 0.02),
    ],
)
def test_evidence_and_p_values_are_those_of_slow_loops(count, correct, tolerance):
    data = np.array(count), np.array(correct), CONFIDENCE[:3]
    sums = one_bin_each(*data)
    scan = scan_bins(sums, tolerance=tolerance, level=0.999999)  # whatever deviates is told
    runs = {of: slow_runs(*data, tolerance, of) for of in SIGN}
    chance = {of: slow_p_values(*data, tolerance, of, seed=SIGN[of] + 2) for of in SIGN}
    for first, last, direction, evidence, p_value in scan.findings:
        assert evidence == pytest.approx(runs[direction][first, last], rel=1e-9)
        p = chance[direction][first, last]
        assert p_value == pytest.approx(p, abs=error_of(p, direction))
        np.testing.assert_array_equal(scan.p_value[first : last + 1], p_value)
    best = scan.findings[0]
    assert best.evidence == pytest.approx(max(runs[best.direction].values()))
    assert best.p_value == min(found.p_value for found in scan.findings)
    alone = scan_bins(sums, tolerance=tolerance, level=1e-9)
    assert alone.findings == []
    for b in range(3):
        p = min(chance[of][b, b] for of in SIGN)
        assert alone.p_value[b] == pytest.approx(p, abs=error_of(p, OVER))


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
@example(rows=[(39, 22, 45), (188, 18, 393)], tolerance=0.0, level=0.3)
@settings(max_examples=15)
@given(
    rows=st.lists(rows, min_size=1, max_size=7),
    tolerance=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    level=st.sampled_from([0.3, 0.05, 0.002, 1e-5]),
)
def test_findings_are_disjoint_and_the_threshold_decides_on_them(rows, tolerance, level):
    count, correct, confidence = np.array(rows).T
    confidence = np.where(count > 0, confidence, 0)
    scan = scan_bins(one_bin_each(count, correct, confidence), tolerance=tolerance, level=level)
    taken = [b for found in scan.findings for b in range(found.first, found.last + 1)]
    assert len(taken) == len(set(taken))
    found_p = [found.p_value for found in scan.findings]
    assert found_p == sorted(found_p)
    assert all(0 <= p < level for p in found_p)
    assert ((scan.p_value >= 0) & (scan.p_value <= 1)).all()
    slow = {of: slow_runs(count, correct, confidence, tolerance, of) for of in SIGN}
    for direction, runs in slow.items():
        mine = [found for found in scan.findings if found.direction == direction]
        assert (np.diff([found.evidence for found in mine]) <= 1e-8).all()
        for first, last, _, evidence, _ in mine:
            equal = [
                run[1] - run[0]
                for run, value in runs.items()
                if abs(value - evidence) < 1e-10 and first <= run[0] and run[1] <= last
            ]
            assert min(equal) == last - first  # no shorter part has as much
    best, found = max(slow[UNDER].values()), {each.direction for each in scan.findings}
    if abs(best - scan.threshold) > 1e-7 * (1 + best) and best > 2e-5:
        striking = best >= scan.threshold  # but what is overconfident may be more striking still
        assert (UNDER in found) == striking or (striking and OVER in found)


def share_with_findings(count, draw, tolerance, level=0.05, repeats=300):
    """Share of drawn numbers of right predictions with findings, and the most it may be."""
    rng = np.random.default_rng(0)
    sums = (one_bin_each(count, draw(rng), CONFIDENCE) for _ in range(repeats))
    found = [bool(scan_bins(each, tolerance=tolerance, level=level).findings) for each in sums]
    return np.mean(found), level + 3 * np.sqrt(level * (1 - level) / repeats)


@pytest.mark.parametrize(
    ("count", "tolerance", "side", "level"),
    [
        *(([3] * 5, 0.0, 0, 0.05), ([60] * 5, 0.05, 1, 0.05), ([60] * 5, 0.05, -1, 0.05)),
        *(([100_000] * 5, 0.05, 1, 0.05), ([1, 0, 0, 0, 0], 0.05, -1, 0.05)),
        *(([500, 0, 2, 3, 40], 0.05, 0, 0.05), ([0, 0, 25, 0, 0], 0.0, 0, 0.05)),
        *(([200] * 5, 0.04, 1, 0.2), ([200] * 5, 0.04, 1, 0.01)),
    ],
)
def test_a_model_that_keeps_to_alpha_is_failed_as_rarely_as_asked_for(
    simulated_once, count, tolerance, side, level
):
    accuracy, repeats = CONFIDENCE / SCALE + side * tolerance, 300 if level == 0.05 else 800
    share, most = share_with_findings(
        count, lambda rng: rng.binomial(count, accuracy.clip(max=1)), tolerance, level, repeats
    )
    # Nor is it needlessly strict.
    assert share <= most if level == 0.05 else level / 10 <= share <= most


@pytest.mark.parametrize(
    ("kind", "side", "n"),
    [("split", 1, 4), ("split", -1, 80), ("spread", 1, 80), ("sure", 1, 80), ("sure", -1, 4)],
)
def test_unequal_predictions_within_a_bin_give_no_more_findings(simulated_once, kind, side, n):
    mean = CONFIDENCE[:, None] / SCALE + side * 0.05
    if kind == "sure":  # as many certain ones as there can be
        p = np.clip(mean * n - np.arange(n), 0, 1)
    else:
        offset = np.linspace(-1, 1, n) if kind == "spread" else np.where(np.arange(n) % 2, 1, -1)
        p = mean + np.minimum(mean, 1 - mean) * offset
    np.testing.assert_allclose(p.mean(axis=1, keepdims=True), mean)
    share, most = share_with_findings([n] * 5, lambda rng: (rng.random(p.shape) < p).sum(1), 0.05)
    assert share <= most


@pytest.mark.parametrize(
    ("count", "correct", "confidence", "tolerance", "expected"),
    [
        # The most striking one is told first; of runs with equal evidence, the shortest.
        ([9, 300, 0, 200], [9, 195, 0, 100], [1, 650, 0, 850], 0.05, [(3, 3, OVER), (0, 0, UNDER)]),
        ([0, 0, 80, 0, 0], [0, 0, 78, 0, 0], [0, 0, 700, 0, 0], 0, [(2, 2, UNDER)]),
        ([0, 10**9, 0], [0, 10**9, 0], [0, 500, 0], 0.05, [(1, 1, UNDER)]),
        ([40], [39], [600], 0.05, [(0, 0, UNDER)]),
        ([40], [5], [600], 0.05, [(0, 0, OVER)]),
        # Two bins are found together, neither by itself.
        ([60, 0], [48, 0], [650, 750], 0.05, []),
        ([0, 60], [0, 53], [650, 750], 0.05, []),
        ([60, 60], [48, 53], [650, 750], 0.05, [(0, 1, UNDER)]),
        # There are no samples, or certainty is tolerated.
        ([0, 0], [0, 0], [0, 0], 0.05, []),
        ([10**6], [10**6], [960], 0.05, []),
        ([10**6], [10**6], [960], 1.0, []),
    ],
)
def test_what_is_found(count, correct, confidence, tolerance, expected):
    scan = scan_bins(one_bin_each(count, correct, confidence), tolerance=tolerance)
    assert [found[:3] for found in scan.findings] == expected
    for first, last, _, _, p_value in scan.findings:
        np.testing.assert_array_equal(scan.p_value[first : last + 1], p_value)
    if confidence[0] in (0, 960):  # an empty bin, or one within the tolerance
        assert scan.p_value[0] == 1.0


def test_p_values_count_the_model_itself_among_the_simulated_ones():
    found = p_values(np.array([3.0, 3.0, 0.0]), np.array([4, 99, 4]), 99, 10, 1)
    np.testing.assert_allclose(found, [5 / 100 / 0.8, 1, 1])
    # Where no simulated model gets that far, Chernoff's bound for all runs may be smaller.
    found = p_values(np.array([3.0, 20.0]), np.array([0, 0]), 99, 10, -1)
    np.testing.assert_allclose(found, [1 / 100 / 0.2, 10 * np.exp(-20) / 0.2])
    sums = one_bin_each([50, 50], [20, 50], [400, 400])
    for level in (0.05, 1e-12):
        (found,) = scan_bins(sums, tolerance=0.0, level=level).findings
        assert found.p_value == pytest.approx(3 / 0.8 * np.exp(-found.evidence))
        assert found.p_value < 1e-15


def test_hundreds_of_bins_take_runs_of_ten_and_bounded_time():
    rng = np.random.default_rng(0)
    count, confidence = np.full(100, 40), np.linspace(510, 990, 100).astype(int)
    accuracy = confidence / 1000 + np.where(abs(np.arange(100) - 35) < 8, 0.2, 0.0)
    sums = one_bin_each(count, rng.binomial(count, accuracy.clip(max=1)), confidence)
    (found,) = scan_bins(sums, tolerance=0.05).findings[:1]
    assert 25 <= found.first <= found.last <= 45
    assert found.last - found.first < 10
    assert found.direction == UNDER


# Power

POWER = {"tolerance": 0.05, "threshold": planned_threshold()}


def power_at(count, confidence, gap, level, direction):
    """Probability of a finding in a direction, by the findings of `scan_bins` themselves."""
    found = []
    for k in range(count + 1):
        sums = one_bin_each([count], [k], [confidence * SCALE])
        first = scan_bins(sums, tolerance=0.05, level=level).findings[:1]
        found.append(first != [] and first[0].direction == direction)
    truth = np.clip(confidence + SIGN[direction] * gap, 0.0, 1.0)
    return binom.pmf(np.arange(count + 1), count, truth)[found].sum()


@pytest.mark.parametrize(
    ("power", "confidence", "level", "direction"),
    [
        *((0.5, 0.62, 0.05, UNDER), (0.8, 0.5, 0.05, UNDER), (0.99, 0.8, 0.001, UNDER)),
        *((0.5, 0.95, 0.05, OVER), (0.99, 0.62, 0.05, OVER)),
    ],
)
def test_the_detectable_gap_has_the_power(simulated_once, power, confidence, level, direction):
    for count in (50, 150):
        sums = one_bin_each([count], [0], [confidence * SCALE])
        scan = scan_bins(sums, tolerance=0.05, level=level)
        threshold = scan.threshold_overconfident if direction == OVER else scan.threshold
        share = 0.2 if direction == OVER else 0.8
        assert threshold < np.log(1 / (share * level)) + 1e-9
        given = {"tolerance": 0.05, "threshold": threshold, "power": power, "direction": direction}
        gap = float(detectable_gap(count, confidence, **given))
        found = power_at(count, confidence, gap, level, direction)
        assert found == pytest.approx(power, abs=1e-6)
        assert required_samples(gap + 1e-9, confidence, **given) <= count
        np.testing.assert_allclose(detectable_shift([count], [confidence], **given), gap, atol=1e-9)


def test_the_planned_threshold_is_that_of_ten_bins_and_an_undetectable_gap_is_nan():
    assert planned_threshold() == pytest.approx(np.log(55 / (0.8 * 0.5 * 0.05)))
    assert planned_threshold(OVER) == pytest.approx(np.log(55 / (0.2 * 0.5 * 0.05)))
    count = np.arange(1, 40)
    enough = [slow_evidence(n, n, 0.55) >= POWER["threshold"] for n in count]
    np.testing.assert_array_equal(np.isfinite(detectable_gap(count, 0.5, **POWER)), enough)
    assert 0 < np.sum(enough) < len(count)
    assert np.isnan(detectable_gap([0, 100, 10**6], [np.nan, 0.95, 0.99], **POWER)).all()
    assert detectable_gap(10**8, 0.5, **POWER) == pytest.approx(0.05, abs=1e-3)  # tolerance
    gaps, confidence = [0.05, 0.01, -0.2, 0.5, 0.0501], [0.5, 0.5, 0.5, 0.96, 0.5]
    assert (required_samples(gaps, confidence, **POWER) == np.inf).all()
    # A false alarm is no finding, however small the power.
    assert (required_samples(gaps[:3], 0.5, power=1e-4, **POWER) == np.inf).all()
    grid = required_samples([[0.3], [0.9]], [0.5, 0.7], **POWER)
    assert grid.shape == (2, 2)  # and an accuracy above one counts as one
    assert grid[1].tolist() == required_samples([0.5, 0.3], [0.5, 0.7], **POWER).tolist()
    count = int(required_samples(0.25, 0.5, **POWER))
    assert detectable_gap(count, 0.5, **POWER) <= 0.25 + 1e-9
    assert not detectable_gap(count - 1, 0.5, **POWER) <= 0.25


@pytest.mark.parametrize(
    ("gap", "confidence", "power", "threshold"),
    [(0.15, 0.5, 0.3, 2.5), (0.15, 0.7, 0.8, 7.7), (0.3, 0.7, 0.3, 2.5), (0.45, 0.5, 0.8, 7.7)],
)
def test_required_samples_are_the_first_of_a_slow_search(gap, confidence, power, threshold):
    def reached(n):
        found = [k for k in range(n + 1) if slow_evidence(k, n, confidence + 0.05) >= threshold]
        return binom.pmf(found, n, min(confidence + gap, 1.0)).sum() >= power

    ours = required_samples(gap, confidence, tolerance=0.05, threshold=threshold, power=power)
    assert ours == next(n for n in range(1, 2000) if reached(n))


@pytest.mark.parametrize(
    ("count", "confidence"),
    [
        ([40, 300, 0, 500], [0.4, 0.6, np.nan, 0.8]),
        ([200, 0, 400], [0.75, np.nan, 0.95]),  # some bins cannot have the whole shift
        ([40, 40, 60, 100, 400], [0.55, 0.65, 0.75, 0.85, 0.97]),
    ],
)
def test_the_shift_of_all_bins_is_what_the_best_run_of_them_reveals(count, confidence):
    count, confidence = np.array(count), np.nan_to_num(confidence)
    shift, powers = detectable_shift(count, confidence, **POWER), []
    for i, j in combinations_with_replacement(range(len(count)), 2):
        size, claimed = count[i : j + 1], confidence[i : j + 1]
        gaps, n = np.array([[POWER["tolerance"]], [shift]]), size.sum()
        edge, truth = (size * np.minimum(claimed + gaps, 1)).sum(axis=1) / max(1, n)
        found = [k for k in range(n + 1) if slow_evidence(k, n, edge) >= POWER["threshold"]]
        powers.append(binom.pmf(found, n, truth).sum())
    assert max(powers) == pytest.approx(0.8)
    assert np.isnan(detectable_shift([3], [0.5], **POWER))
