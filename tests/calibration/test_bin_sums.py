"""Integer sums per confidence bin: exact, additive, and equal to what other libraries say."""

import numpy as np
import pytest

from skuq import calibration
from skuq.calibration import BinSums, bin_edges, bin_sums, merged_sums, top_label_predictions
from skuq.calibration import _bin_sums as sums
from tests.metrics.problems import random_problem

SCALE = 10**9
ADDITIVE = ("count", "correct", "confidence")


def decimal_problem(n_bins, n=300):
    """Confidences that are whole billionths, many of them on, or next to, an edge of a bin."""
    rng = np.random.default_rng(n_bins)
    edges = SCALE * rng.integers(n_bins // 2 + 1, n_bins + 1, size=n) // n_bins
    near, other = edges + rng.integers(-1, 2, size=n), rng.integers(SCALE // 2 + 1, SCALE, size=n)
    units = np.where(rng.random(n) < 0.5, near, other).clip(SCALE // 2 + 1, SCALE)
    predicted = rng.integers(2, size=n)
    proba = np.column_stack([units, SCALE - units]) / SCALE
    proba[predicted == 1] = proba[predicted == 1, ::-1]
    return np.where(rng.random(n) < 0.8, predicted, 1 - predicted), proba, units


def sums_of(y, proba, n_bins=10, strategy="uniform", classes=None):
    predictions = top_label_predictions(y, proba, classes=classes)
    return bin_sums(predictions, bin_edges(predictions.confidence, n_bins, strategy))


@pytest.mark.parametrize("n_bins", [1, 2, 7, 10, 13, 15, 100])
def test_sums_are_those_of_algorithm_1_in_exact_arithmetic(n_bins):
    y, proba, units = decimal_problem(n_bins)
    ours = sums_of(y, proba, n_bins)
    inside = np.minimum(units * n_bins // SCALE, n_bins - 1) == np.arange(n_bins)[:, None]
    size, correct = inside.sum(axis=1), (inside & (proba.argmax(axis=1) == y)).sum(axis=1)
    confidence = (inside * units).sum(axis=1)
    for name, slow in zip(ADDITIVE, (size, correct, confidence), strict=True):
        np.testing.assert_array_equal(getattr(ours, name), slow)
    distance = np.abs(correct * SCALE - confidence)
    np.testing.assert_array_equal(np.abs(ours.deviation), distance)
    assert ours.expected_calibration_error == distance.sum() / (len(y) * SCALE)  # Eq. 6
    largest = (distance / np.maximum(1, size)).max() / SCALE
    assert ours.maximum_calibration_error == pytest.approx(largest, rel=1e-9)
    edges, inner = ours.edges, np.arange(1, n_bins)
    assert (edges[0], edges[-1]) == (0, SCALE)
    # The least units of their bins
    np.testing.assert_array_equal(edges[1:-1] * n_bins // SCALE, inner)
    np.testing.assert_array_equal((edges[1:-1] - 1) * n_bins // SCALE, inner - 1)


def test_quantile_bins_have_equal_counts_up_to_one_but_equal_confidences_stay_together():
    for n, n_bins in ((401, 10), (403, 7), (30, 30)):
        count = sums_of(*random_problem(0, n=n), n_bins, "quantile").count
        assert set(count) <= {n // n_bins, -(-n // n_bins)}
    few = sums_of(*random_problem(0, n=5), 8, "quantile", classes=range(3))
    assert sorted(few.count) == [0, 0, 0, 1, 1, 1, 1, 1]
    proba = np.repeat([[0.6, 0.4], [0.9, 0.1]], [9, 3], axis=0)
    assert sums_of([0, 1] * 6, proba, 4, "quantile").count.tolist() == [0, 0, 9, 3]


def test_empty_bins_do_not_count_full_confidence_is_in_the_last_bin_and_no_sum_overflows():
    ours = sums_of([0, 1, 1], [[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]], 4)
    assert ours.count.tolist() == [0, 0, 1, 2]
    for means in (ours.accuracy, ours.mean_confidence, ours.gap):
        assert np.isnan(means).tolist() == [True, True, False, False]
    assert ours.expected_calibration_error == pytest.approx((0.5 + 2 * 0.25) / 3)
    assert ours.maximum_calibration_error == 0.5
    for n_bins in (7, 10, 15):  # even if it was rounded up
        ours = sums_of([0, 1, 1], [[1.0, 0.0], [0.0, 1.00005], [0.0, 1.0]], n_bins)
        assert ours.count.tolist() == [0] * (n_bins - 1) + [3]
        assert (ours.mean_confidence[-1], ours.expected_calibration_error) == (1.0, 0.0)
    huge = BinSums(np.array([0, SCALE]), *np.array([[4 * 10**9], [3 * 10**9], [2 * 10**18]]))
    assert huge.deviation.tolist() == [10**18]
    assert huge.expected_calibration_error == 0.25


@pytest.mark.parametrize(
    ("chunk", "dtype", "n_groups"), [(7, "i1", 120), (99, "u1", 3), (400, "i8", 1), (401, "i8", 2)]
)
def test_groups_and_chunks_are_summed_as_if_alone_and_add_up(monkeypatch, chunk, dtype, n_groups):
    y, proba = random_problem(0)
    predictions = top_label_predictions(y, proba)
    several = [bin_edges(predictions.confidence, 9, name) for name in ("uniform", "quantile")]
    groups = np.random.default_rng(0).integers(n_groups, size=len(y)).astype(dtype)
    other = (np.arange(len(y)) % 2, 2)
    monkeypatch.setattr(sums, "CHUNK", chunk)
    np.testing.assert_equal(top_label_predictions(y, proba), predictions)
    found = calibration.group_sums(predictions, several, [other, (groups, n_groups + 1)])
    for edges, (whole, even, odd, *parts) in zip(several, found, strict=True):
        alone = [bin_sums(predictions.at(groups == g), edges) for g in range(n_groups + 1)]
        np.testing.assert_equal(parts, alone)
        assert parts[-1].count.sum() == 0  # a group without samples
        np.testing.assert_equal(whole, bin_sums(predictions, edges))
        np.testing.assert_equal([merged_sums(parts), merged_sums([even, odd])], [whole, whole])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_top_label_predictions_are_a_loop_over_the_rows(dtype):
    y, proba = random_problem(0)
    proba = proba.astype(dtype)
    confidence, correct = found = top_label_predictions(y, proba)
    assert confidence.dtype == np.int32
    assert confidence.tolist() == [round(float(max(row)) * SCALE) for row in proba]
    pairs = zip(proba, y, strict=True)
    assert correct.tolist() == [row.tolist().index(max(row)) == k for row, k in pairs]
    tie = top_label_predictions([0, 1], [[0.5, 0.5]] * 2)  # the first class counts as predicted
    assert tie.correct.tolist() == [True, False]
    names, order = np.array(["ant", "bee", "cat"]), [2, 0, 1]
    ours = top_label_predictions(names[y], proba[:, order], classes=names[order])
    np.testing.assert_equal(ours, found)


@pytest.mark.parametrize(("n_bins", "strategy"), [(3, "quantile"), (10, "uniform")])
def test_bins_of_samples_count_to_the_sums(n_bins, strategy):
    confidence = top_label_predictions(*random_problem(0)).confidence
    found = sums_of(*random_problem(0), n_bins, strategy)
    index = found.bin_of(confidence)
    np.testing.assert_array_equal(found.bin_of(confidence / SCALE), index)
    np.testing.assert_array_equal(np.bincount(index, minlength=n_bins), found.count)
    low, high, last = found.edges[index], found.edges[index + 1], confidence == found.edges[-1]
    assert ((low <= confidence) & ((confidence < high) | last)).all()


@pytest.mark.parametrize("chunk", [7, 1000])
def test_weights_count_as_copies_and_parts_merge_to_the_whole(monkeypatch, chunk):
    monkeypatch.setattr(sums, "CHUNK", chunk)
    predictions = top_label_predictions(*random_problem(0, n=60))
    weight = np.random.default_rng(1).integers(0, 4, 60)
    edges = bin_edges(predictions.confidence, 5, "uniform")
    weighted = bin_sums(predictions, edges, weight=weight.astype(float))
    exact = bin_sums(predictions, edges, weight=weight)
    copies = predictions.at(np.repeat(np.arange(60), weight))
    whole = bin_sums(copies, edges)
    parts = np.split(np.arange(weight.sum()), [11, 40])
    merged = merged_sums([bin_sums(copies.at(part), edges) for part in parts])
    for name in ADDITIVE:
        np.testing.assert_allclose(getattr(weighted, name), getattr(whole, name), rtol=1e-12)
        np.testing.assert_array_equal(getattr(exact, name), getattr(whole, name))
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert (weighted.count.dtype, exact.count.dtype) == (float, np.int64)
    for other in (whole._replace(scale=7), whole._replace(edges=edges + 1)):
        with pytest.raises(ValueError, match="same bins"):
            merged_sums([whole, other])


def test_equal_weights_count_as_all_samples_and_weighted_quantiles_are_those_of_copies():
    for n in range(1, 60):
        answers = calibration.TopLabelPredictions(np.full(n, 6 * 10**8, np.int32), np.ones(n, bool))
        for unit in (0.1, 0.3, 0.7, 1.1):
            found = bin_sums(answers, np.array([0, SCALE]), weight=np.full(n, unit))
            assert found.effective_count.tolist() == [n]
            assert found.n_effective == pytest.approx(n)
    rng = np.random.default_rng(0)
    for n_bins in (2, 3, 7):
        confidence, weight = rng.integers(0, SCALE, 20).astype(np.int32), rng.integers(1, 9, 20)
        repeated = bin_edges(np.repeat(confidence, weight), n_bins, "quantile")
        weighted = bin_edges(confidence, n_bins, "quantile", weight=weight.astype(float))
        np.testing.assert_array_equal(weighted, repeated)
        assert weighted.dtype == repeated.dtype == np.int64
