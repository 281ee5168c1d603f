"""Power of an audit against the findings of the scan and slow searches."""

import numpy as np
import pytest
from scipy.stats import binom
from skuq.calibration._power import detectable_shift

from skuq.calibration import detectable_gap, planned_threshold, required_samples, scan_bins
from tests.reporter import one_bin_each, slow_evidence

SCALE = 1000
POWER = {"alpha": 0.05, "threshold": planned_threshold()}


def power_at(count, confidence, gap, level=0.05):
    """Probability of an underconfidence finding, by the findings of `scan_bins` themselves."""
    k = np.arange(count + 1)
    scans = [
        scan_bins(one_bin_each([count], [j], [confidence * SCALE]), alpha=0.05, level=level)
        for j in k
    ]
    found = np.array([s.findings[:1] != [] and s.findings[0].direction[0] == "u" for s in scans])
    return binom.pmf(k, count, min(confidence + gap, 1.0))[found].sum()


@pytest.mark.parametrize("power", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("confidence", [0.5, 0.62, 0.8])
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_at_the_detectable_gap_the_power_is_the_requested_one(
    simulated_once, power, confidence, level
):
    for count in (50, 150):
        sums = one_bin_each([count], [0], [confidence * SCALE])
        threshold = scan_bins(sums, alpha=0.05, level=level).threshold
        gap = float(detectable_gap(count, confidence, alpha=0.05, threshold=threshold, power=power))
        assert power_at(count, confidence, gap, level) == pytest.approx(power, abs=1e-6)


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


@pytest.mark.parametrize("gap", [0.15, 0.3, 0.45])
@pytest.mark.parametrize("confidence", [0.5, 0.7])
@pytest.mark.parametrize(("power", "threshold"), [(0.8, 7.7), (0.3, 2.5)])
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


def test_required_samples_broadcast_and_count_an_accuracy_above_one_as_one():
    grid = required_samples([[0.3], [0.9]], [0.5, 0.7], **POWER)
    assert grid.shape == (2, 2)
    assert grid[1].tolist() == required_samples([0.5, 0.3], [0.5, 0.7], **POWER).tolist()


def test_detectable_gap_and_required_samples_agree():
    count = int(required_samples(0.25, 0.5, **POWER))
    assert detectable_gap(count, 0.5, **POWER) <= 0.25 + 1e-9
    assert not detectable_gap(count - 1, 0.5, **POWER) <= 0.25


@pytest.mark.parametrize("power", [0, 1, -0.5, 2, np.nan])
def test_a_power_that_is_no_probability_between_is_refused(power):
    for function in (detectable_gap, required_samples):
        with pytest.raises(ValueError, match=r"`power` must be in \(0, 1\), got "):
            function(0.3, 0.5, **POWER, power=power)


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
        ([120] * 5, [0.55, 0.65, 0.75, 0.85, 0.95]),
        ([40, 40, 60, 100, 400], [0.55, 0.65, 0.75, 0.85, 0.97]),
        ([150] * 4, [0.55, 0.65, 0.75, 0.85]),
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
