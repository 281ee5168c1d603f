"""Calibration errors and proper scores against slow loops, netcal, scikit-learn and identities."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from skuq.metrics import (
    CalibrationTable,
    brier_score,
    calibration_table,
    expected_calibration_error,
    negative_log_likelihood,
)
from tests.metrics.problems import SEEDS, random_problem

# Calibration errors

CALIBRATION = [calibration_table, expected_calibration_error]


def slow_calibration_table(y_true, proba, lower, upper):
    tops = [round(float(max(row)), 9) for row in proba]  # as confidences are kept
    rows = []
    for k, (low, high) in enumerate(zip(lower, upper, strict=True)):
        inside = [
            i
            for i, top in enumerate(tops)
            if low <= top < high or (k == len(upper) - 1 and top == high)
        ]
        confidence = np.mean([tops[i] for i in inside]) if inside else np.nan
        accuracy = np.mean([np.argmax(proba[i]) == y_true[i] for i in inside]) if inside else np.nan
        rows.append((low, high, len(inside), confidence, accuracy, accuracy - confidence))
    return pd.DataFrame(rows, columns=CalibrationTable._fields)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_calibration_table_equals_a_slow_loop_over_its_bins(seed, strategy, n_bins):
    y_true, proba = random_problem(seed)
    table = calibration_table(y_true, proba, n_bins=n_bins, strategy=strategy)
    slow = slow_calibration_table(y_true, proba, table.lower, table.upper)
    pd.testing.assert_frame_equal(table.to_frame(), slow, rtol=1e-12)
    assert table.count.sum() == len(y_true)


def test_uniform_bins_partition_the_unit_interval_and_include_their_lower_edge():
    proba = [[1.0, 0.0], [0.75, 0.25], [0.5, 0.5]]
    table = calibration_table([0, 1, 0], proba, n_bins=4)
    np.testing.assert_array_equal(table.lower, [0.0, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(table.upper, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_array_equal(table.count, [0, 0, 1, 2])


@pytest.mark.parametrize("n_bins", [10, 20, 100])
def test_a_confidence_written_as_a_decimal_starts_its_bin(n_bins):
    half = n_bins // 2
    confidence = np.array([float(f"{k / n_bins:.2f}") for k in range(half, n_bins)])
    proba = np.column_stack([confidence, 1 - confidence])
    table = calibration_table(np.zeros(half), proba, n_bins=n_bins, classes=[0, 1])
    np.testing.assert_array_equal(table.count, np.repeat([0, 1], half))


def test_empty_bins_have_nan_means():
    table = calibration_table([0, 1], [[1.0, 0.0], [0.0, 1.0]], n_bins=3)
    np.testing.assert_array_equal(table.count, [0, 0, 2])
    for means in (table.confidence, table.accuracy, table.gap):
        np.testing.assert_array_equal(np.isnan(means), [True, True, False])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n", "n_bins"), [(400, 10), (401, 10), (403, 7), (30, 30)])
def test_quantile_bins_have_equal_counts_up_to_one(seed, n, n_bins):
    y_true, proba = random_problem(seed, n=n)
    count = calibration_table(y_true, proba, n_bins=n_bins, strategy="quantile").count
    assert set(count) <= {n // n_bins, -(-n // n_bins)}


def test_quantile_bins_keep_equal_confidences_together():
    proba = np.repeat([[0.6, 0.4], [0.9, 0.1]], [9, 3], axis=0)
    table = calibration_table([0, 1] * 6, proba, n_bins=4, strategy="quantile")
    np.testing.assert_array_equal(table.count, [0, 0, 9, 3])


def test_more_quantile_bins_than_samples_leave_bins_empty():
    y_true, proba = random_problem(0, n=5)
    table = calibration_table(y_true, proba, n_bins=8, strategy="quantile", classes=range(3))
    assert sorted(table.count) == [0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_calibration_errors_of_a_perfect_predictor_are_zero(strategy):
    y_true = np.arange(30) % 3
    assert expected_calibration_error(y_true, np.eye(3)[y_true], strategy=strategy) == 0.0


def test_calibration_errors_of_a_certain_and_always_wrong_predictor_are_one():
    y_true = np.arange(30) % 3
    wrong = np.eye(3)[(y_true + 1) % 3]
    assert expected_calibration_error(y_true, wrong) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_with_one_bin_the_calibration_error_is_confidence_minus_accuracy(seed):
    y_true, proba = random_problem(seed)
    expected = abs(proba.max(axis=1).mean() - np.mean(proba.argmax(axis=1) == y_true))
    assert expected_calibration_error(y_true, proba, n_bins=1) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_bins", [5, 10, 15])
def test_calibration_errors_equal_netcal(seed, n_bins):
    netcal = pytest.importorskip("netcal.metrics")
    y_true, proba = random_problem(seed, n=1000)
    ours = expected_calibration_error(y_true, proba, n_bins=n_bins)
    assert ours == pytest.approx(netcal.ECE(n_bins).measure(proba, y_true))


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_mass_calibration_error_equals_netcal(seed):
    netcal = pytest.importorskip("netcal.metrics")
    y_true, proba = random_problem(seed, n=996)
    # With 996 = 4 * 249 the edges that netcal interpolates separate the same samples as ours.
    ours = expected_calibration_error(y_true, proba, n_bins=4, strategy="quantile")
    theirs = netcal.ECE(4, equal_intervals=False).measure(proba, y_true)
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("metric", CALIBRATION)
def test_classes_give_the_column_order(metric):
    y_true, proba = random_problem(0)
    names, order = np.array(["ant", "bee", "cat"]), [2, 0, 1]
    permuted = metric(names[y_true], proba[:, order], classes=names[order])
    np.testing.assert_array_equal(permuted, metric(y_true, proba))


@pytest.mark.parametrize("metric", CALIBRATION)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_bins": 0}, "`n_bins` must be from 1 to 10,000, got 0."),
        ({"n_bins": 2.5}, "`n_bins` must be an integer, got 2.5."),
        ({"strategy": "equal"}, "`strategy` must be one of"),
        ({"classes": [0, 1, 2]}, "`proba` has 2 columns, but `classes` has 3 labels"),
    ],
)
def test_wrong_settings_are_named(metric, settings, message):
    with pytest.raises(ValueError, match=message):
        metric([0, 1], [[0.5, 0.5], [0.2, 0.8]], **settings)


# Proper scores

SCORES = [brier_score, negative_log_likelihood]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_negative_log_likelihood_equals_sklearn_log_loss(seed, dtype):
    y_true, proba = random_problem(seed)
    proba = proba.astype(dtype)
    assert negative_log_likelihood(y_true, proba) == pytest.approx(
        log_loss(y_true, proba), rel=1e-6
    )


def test_negative_log_likelihood_of_an_excluded_label_is_finite_as_in_sklearn():
    y_true, proba = [0, 1], np.array([[0.0, 1.0], [0.5, 0.5]])
    assert negative_log_likelihood(y_true, proba) == pytest.approx(log_loss(y_true, proba))


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_score_equals_a_loop_over_samples_and_classes(seed):
    y_true, proba = random_problem(seed)
    slow = sum(
        (p - (k == label)) ** 2
        for row, label in zip(proba, y_true, strict=True)
        for k, p in enumerate(row)
    )
    assert brier_score(y_true, proba) == pytest.approx(slow / len(y_true))


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_score_with_two_classes_is_twice_that_of_sklearn(seed):
    y_true, proba = random_problem(seed, n_classes=2)
    assert brier_score(y_true, proba) == pytest.approx(2 * brier_score_loss(y_true, proba[:, 1]))


def test_proper_scores_of_a_perfect_predictor_are_zero():
    y_true = np.arange(12) % 3
    assert brier_score(y_true, np.eye(3)[y_true]) == 0.0
    assert negative_log_likelihood(y_true, np.eye(3)[y_true]) == 0.0


@pytest.mark.parametrize("score", SCORES)
def test_classes_give_the_column_order_of_some_or_all_labels(score):
    y_true, proba = random_problem(0)
    some = y_true != 1
    reordered = score(y_true[some], proba[some][:, ::-1], classes=[2, 1, 0])
    expected = score(y_true[some], proba[some], classes=[0, 1, 2])
    np.testing.assert_allclose(reordered, expected, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_inputs_are_left_alone_and_nothing_is_warned_of(score):
    y_true, proba = random_problem(0)
    before = proba.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(y_true, proba)
        score(y_true, proba.round(5) / proba.round(5).sum(axis=1, keepdims=True) * 1.00005)
    np.testing.assert_array_equal(proba, before)


@pytest.mark.parametrize("score", SCORES)
def test_wrong_probabilities_are_named(score):
    with pytest.raises(ValueError, match="must sum to 1"):
        score([0, 1], [[0.5, 0.4], [0.2, 0.8]])
