"""Chance in calibration errors, against simulated labels and resampled rows."""

import numpy as np
import pytest
from skuq.calibration._chance import ece_bootstrap, ece_under_calibration

from skuq.calibration import BinSums
from tests.reporter import one_bin_each

SEEDS = range(3)
SCALE = 1000


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
