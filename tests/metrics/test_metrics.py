"""Metrics against slow loops, other libraries and identities; scorers inside searches."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import Uncertainty, metrics, predict_uncertainty
from skuq.metrics import (
    area_under_risk_coverage,
    brier_score,
    calibration_table,
    detection_metrics,
    expected_calibration_error,
    maximum_calibration_error,
    misclassification_auroc,
    misclassification_detection,
    negative_log_likelihood,
    risk_coverage_curve,
    uncertainty_scorer,
)

SEEDS = range(3)
PROBABILITY_METRICS = [
    calibration_table,
    expected_calibration_error,
    maximum_calibration_error,
    brier_score,
    negative_log_likelihood,
]
SELECTIVE_METRICS = [
    risk_coverage_curve,
    area_under_risk_coverage,
    misclassification_detection,
    misclassification_auroc,
]
SCORERS = {
    name: getattr(metrics, name)
    for name in metrics.__all__
    if name.endswith("_scorer") and name != "uncertainty_scorer"
}


class EntropicLogisticRegression(LogisticRegression):
    """Toy plugin: the entropy of the prediction, a quarter of it called epistemic."""

    def predict_uncertainty(self, X):
        proba = self.predict_proba(X)
        entropy = -(proba * np.log(np.clip(proba, 1e-300, 1.0))).sum(axis=1)
        return Uncertainty.from_parts(0.75 * entropy, 0.25 * entropy)


def random_problem(seed, n=400, n_classes=3):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(n_classes), size=n)
    drawn = (proba.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.where(rng.random(n) < 0.7, drawn, rng.integers(n_classes, size=n)), proba


def random_selection(seed, n=60, n_levels=7):
    rng = np.random.default_rng(seed)
    y_true, y_pred = rng.integers(3, size=(2, n))
    return y_true, y_pred, rng.integers(n_levels, size=n) / n_levels


def slow_calibration_table(y_true, proba, lower, upper):
    rows = []
    for k, (low, high) in enumerate(zip(lower, upper, strict=True)):
        inside = [
            i
            for i, row in enumerate(proba)
            if low <= max(row) < high or (k == len(upper) - 1 and max(row) == high)
        ]
        confidence = np.mean([max(proba[i]) for i in inside]) if inside else np.nan
        accuracy = np.mean([np.argmax(proba[i]) == y_true[i] for i in inside]) if inside else np.nan
        rows.append((low, high, len(inside), confidence, accuracy, accuracy - confidence))
    return pd.DataFrame(rows, columns=metrics.CalibrationTable._fields)


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
    for error in (expected_calibration_error, maximum_calibration_error):
        assert error(y_true, np.eye(3)[y_true], strategy=strategy) == 0.0


def test_calibration_errors_of_a_certain_and_always_wrong_predictor_are_one():
    y_true = np.arange(30) % 3
    wrong = np.eye(3)[(y_true + 1) % 3]
    assert expected_calibration_error(y_true, wrong) == 1.0
    assert maximum_calibration_error(y_true, wrong) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_with_one_bin_both_calibration_errors_are_confidence_minus_accuracy(seed):
    y_true, proba = random_problem(seed)
    expected = abs(proba.max(axis=1).mean() - np.mean(proba.argmax(axis=1) == y_true))
    assert expected_calibration_error(y_true, proba, n_bins=1) == pytest.approx(expected)
    assert maximum_calibration_error(y_true, proba, n_bins=1) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_bins", [5, 10, 15])
def test_calibration_errors_equal_netcal(seed, n_bins):
    netcal = pytest.importorskip("netcal.metrics")
    y_true, proba = random_problem(seed, n=1000)
    ours = expected_calibration_error(y_true, proba, n_bins=n_bins)
    assert ours == pytest.approx(netcal.ECE(n_bins).measure(proba, y_true))
    ours = maximum_calibration_error(y_true, proba, n_bins=n_bins)
    assert ours == pytest.approx(netcal.MCE(n_bins).measure(proba, y_true))


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_mass_calibration_error_equals_netcal(seed):
    netcal = pytest.importorskip("netcal.metrics")
    y_true, proba = random_problem(seed, n=996)
    # With 996 = 4 * 249 the edges that netcal interpolates separate the same samples as ours.
    ours = expected_calibration_error(y_true, proba, n_bins=4, strategy="quantile")
    theirs = netcal.ECE(4, equal_intervals=False).measure(proba, y_true)
    assert ours == pytest.approx(theirs)


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


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
@pytest.mark.parametrize(
    "spell",
    [
        lambda y: np.array(["ant", "bee", "cat"])[y],
        lambda y: np.array(["ant", "bee", "cat"], dtype=object)[y],
        lambda y: pd.Series(["ant", "bee", "cat"])[y],
        lambda y: pd.Categorical.from_codes(y, ["ant", "bee", "cat"]),
        lambda y: y + 0.5,
        lambda y: y.tolist(),
    ],
    ids=["str", "object", "Series", "Categorical", "float", "list"],
)
def test_the_type_of_the_labels_does_not_matter(metric, spell):
    y_true, proba = random_problem(0)
    np.testing.assert_array_equal(metric(spell(y_true), proba), metric(y_true, proba))


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
def test_classes_give_the_column_order(metric):
    y_true, proba = random_problem(0)
    names = np.array(["ant", "bee", "cat"])
    order = [2, 0, 1]
    permuted = metric(names[y_true], proba[:, order], classes=names[order])
    np.testing.assert_allclose(permuted, metric(y_true, proba), rtol=1e-12)


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
def test_classes_allow_samples_of_some_classes_only(metric):
    y_true, proba = random_problem(0)
    some = y_true != 1
    reordered = metric(y_true[some], proba[some][:, ::-1], classes=[2, 1, 0])
    expected = metric(y_true[some], proba[some], classes=[0, 1, 2])
    np.testing.assert_allclose(reordered, expected, rtol=1e-12)


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
def test_a_float32_softmax_over_many_classes_is_accepted(metric):
    logits = np.random.default_rng(0).normal(size=(50, 5000)).astype(np.float32)
    odds = np.exp(logits)
    y_true = np.arange(50)
    single = odds / odds.sum(axis=1, keepdims=True)
    double = odds / odds.sum(axis=1, keepdims=True, dtype=np.float64)
    expected = metric(y_true, double, classes=range(5000))
    np.testing.assert_allclose(metric(y_true, single, classes=range(5000)), expected, rtol=1e-4)


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
def test_probability_metrics_leave_their_inputs_alone(metric):
    y_true, proba = random_problem(0)
    before = y_true.copy(), proba.copy()
    metric(y_true, proba)
    np.testing.assert_array_equal(y_true, before[0])
    np.testing.assert_array_equal(proba, before[1])


def slow_risk_coverage(y_true, y_pred, uncertainty):
    points = []
    for threshold in sorted(set(uncertainty)):
        answered = [i for i, u in enumerate(uncertainty) if u <= threshold]
        errors = sum(y_true[i] != y_pred[i] for i in answered)
        points.append((len(answered) / len(uncertainty), errors / len(answered), threshold))
    return zip(*points, strict=True)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_levels", [1, 7, 10**6])
def test_risk_coverage_curve_equals_a_slow_loop_over_thresholds(seed, n_levels):
    problem = random_selection(seed, n_levels=n_levels)
    for fast, slow in zip(risk_coverage_curve(*problem), slow_risk_coverage(*problem), strict=True):
        np.testing.assert_allclose(fast, slow)


@pytest.mark.parametrize("seed", SEEDS)
def test_area_under_risk_coverage_is_the_mean_over_random_orders_of_ties(seed):
    y_true, y_pred, uncertainty = random_selection(seed, n=40, n_levels=4)
    rng = np.random.default_rng(seed)
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(40), uncertainty))
        wrong = (y_true != y_pred)[order]
        areas.append(np.mean([wrong[:k].mean() for k in range(1, 41)]))
    error_of_the_mean = np.std(areas) / np.sqrt(len(areas))
    area = area_under_risk_coverage(y_true, y_pred, uncertainty)
    assert abs(area - np.mean(areas)) < 5 * error_of_the_mean


@pytest.mark.parametrize("seed", SEEDS)
def test_area_under_risk_coverage_without_ties_is_the_mean_of_the_curve(seed):
    y_true, y_pred, _ = random_selection(seed)
    uncertainty = np.random.default_rng(seed).permutation(len(y_true))
    area = area_under_risk_coverage(y_true, y_pred, uncertainty)
    assert area == pytest.approx(risk_coverage_curve(y_true, y_pred, uncertainty).risk.mean())


def test_area_under_risk_coverage_of_constant_uncertainty_is_the_error_rate():
    y_true, y_pred, _ = random_selection(0)
    area = area_under_risk_coverage(y_true, y_pred, np.zeros(len(y_true)))
    assert area == pytest.approx(np.mean(y_true != y_pred))


@given(
    rows=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(-3, 3)), min_size=1, max_size=30
    ),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_selective_prediction_does_not_depend_on_the_order_of_the_rows(rows, random):
    shuffled = random.sample(rows, len(rows))
    area = area_under_risk_coverage(*zip(*rows, strict=True))
    assert area == area_under_risk_coverage(*zip(*shuffled, strict=True))
    curve = risk_coverage_curve(*zip(*rows, strict=True))
    for one, other in zip(curve, risk_coverage_curve(*zip(*shuffled, strict=True)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert 0.0 <= area <= 1.0
    assert curve.coverage[-1] == 1.0
    assert curve.risk[-1] == pytest.approx(np.mean([true != pred for true, pred, _ in rows]))


@pytest.mark.parametrize("seed", SEEDS)
def test_ranking_errors_last_gives_the_smallest_area_and_first_the_largest(seed):
    y_true, y_pred, uncertainty = random_selection(seed)
    wrong = (y_true != y_pred).astype(float)
    best = area_under_risk_coverage(y_true, y_pred, wrong)
    worst = area_under_risk_coverage(y_true, y_pred, -wrong)
    assert best < area_under_risk_coverage(y_true, y_pred, uncertainty) < worst


def slow_false_positive_rate(negative, positive):
    for threshold in sorted({*negative, *positive}, reverse=True):
        if np.mean(positive >= threshold) >= 0.95:
            return np.mean(negative >= threshold)
    raise AssertionError("the lowest threshold finds every positive")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("decimals", [1, 12])
def test_detection_equals_sklearn_and_a_slow_search_for_the_threshold(seed, decimals):
    rng = np.random.default_rng(seed)
    negative = rng.normal(size=100).round(decimals)
    positive = rng.normal(1.0, size=40).round(decimals)
    target = np.repeat([0, 1], [100, 40])
    scores = np.concatenate([negative, positive])
    found = detection_metrics(negative, positive)
    assert found.auroc == pytest.approx(roc_auc_score(target, scores))
    assert found.aupr == pytest.approx(average_precision_score(target, scores))
    assert found.fpr95 == slow_false_positive_rate(negative, positive)


def test_detection_of_separated_groups_is_perfect_and_of_swapped_groups_hopeless():
    assert detection_metrics([0.0, 0.1], [0.2, 0.3]) == (1.0, 1.0, 0.0)
    swapped = detection_metrics([0.2, 0.3], [0.0, 0.1])
    assert (swapped.auroc, swapped.fpr95) == (0.0, 1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_misclassification_detection_splits_by_correctness(seed):
    y_true, y_pred, uncertainty = random_selection(seed)
    wrong = y_true != y_pred
    expected = detection_metrics(uncertainty[~wrong], uncertainty[wrong])
    assert misclassification_detection(y_true, y_pred, uncertainty) == expected
    assert misclassification_auroc(y_true, y_pred, uncertainty) == pytest.approx(expected.auroc)


@pytest.mark.parametrize(("y_pred", "which"), [([0, 1], "right"), ([1, 0], "wrong")])
def test_detection_of_misclassified_samples_needs_right_and_wrong_ones(y_pred, which):
    with pytest.raises(ValueError, match=f"needs both .* 2 samples that are all {which}"):
        misclassification_detection([0, 1], y_pred, [0.1, 0.2])
    with pytest.warns(UndefinedMetricWarning, match=f"all {which}.* The result is NaN"):
        assert np.isnan(misclassification_auroc([0, 1], y_pred, [0.1, 0.2]))


GOOD = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize("metric", PROBABILITY_METRICS)
@pytest.mark.parametrize(
    ("y_true", "proba", "classes", "message"),
    [
        ([0, 1], [[0.5, np.nan], [0.2, 0.8]], None, r"`proba` must be finite, got \[0.5 nan\]"),
        ([0, 1], [[0.5, np.inf], [0.2, 0.8]], None, "`proba` must be finite"),
        ([0, 1], [[1.5, -0.5], [0.2, 0.8]], None, "`proba` must be >= 0, got -0.5; pass prob"),
        ([0, 1], [[0.5, 0.5], [0.2, 0.7]], None, "sum to 1 within 0.0001, got 0.9 in row 1"),
        ([0, 1], [0.5, 0.8], None, r"must have shape \(n_samples, n_classes\), got \(2,\)"),
        ([0, 1, 1], GOOD, None, "`y_true`, `proba` must have one row per sample each, got 3, 2"),
        ([], np.empty((0, 2)), None, "`y_true` must not be empty"),
        ([0, 1], np.empty((0, 2)), None, r"`proba` must not be empty, got shape \(0, 2\)"),
        ([0, 0], GOOD, None, "`proba` has 2 columns, but `y_true` has 1 labels; pass `classes="),
        ([0, 1], GOOD, [0, 1, 2], "`proba` has 2 columns, but `classes` has 3 labels"),
        ([0, 1], GOOD, [1, 1], r"`classes` must not repeat a label, got \[1, 1\]"),
        ([0, 7], GOOD, [0, 1], r"labels that are not in `classes`: \[7\] not in \[0, 1\]"),
        ([0, 1], GOOD, ["a", "b"], r"labels that are not in `classes`: \[0, 1\]"),
        (["a", "b"], GOOD, [0, 1], r"labels that are not in `classes`: \['a', 'b'\]"),
        ([[0], [1]], GOOD, None, r"`y_true` must be one-dimensional, got shape \(2, 1\)"),
        ([0, np.nan], GOOD, [0, 1], "`y_true` must hold only numbers, booleans or strings"),
        (["a", None], GOOD, ["a", "b"], "`y_true` must hold only .* got missing or other"),
        (
            np.array(["a", np.nan], dtype=object),
            GOOD,
            ["a", "b"],
            "`y_true` must hold only .* got missing or other",
        ),
        (np.array(["a", pd.NA], dtype=object), GOOD, ["a", "b"], "`y_true` must hold only"),
    ],
)
def test_wrong_probability_inputs_are_named(metric, y_true, proba, classes, message):
    with pytest.raises(ValueError, match=message):
        metric(y_true, proba, classes=classes)


@pytest.mark.parametrize("metric", PROBABILITY_METRICS[:3])
@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"n_bins": 0}, "`n_bins` must be >= 1, got 0."),
        ({"n_bins": 2.5}, "`n_bins` must be an integer, got 2.5."),
        ({"strategy": "equal"}, "`strategy` must be 'uniform' or 'quantile', got 'equal'."),
    ],
)
def test_wrong_bin_settings_are_named(metric, settings_, message):
    with pytest.raises(ValueError, match=message):
        metric([0, 1], GOOD, **settings_)


@pytest.mark.parametrize("metric", SELECTIVE_METRICS)
@pytest.mark.parametrize(
    ("y_true", "y_pred", "uncertainty", "message"),
    [
        ([0, 1], [0, 0], [0.1, np.nan], "`uncertainty` must be finite, got nan in row 1"),
        ([0, 1], [0, 0], [-np.inf, 1], "`uncertainty` must be finite, got -inf in row 0"),
        ([0, 1], [0, 0], [[0.1], [0.2]], r"`uncertainty` must be one-dimensional, got .*\(2, 1\)"),
        ([0, 1], [0, 0], [0.1], "`y_true`, `y_pred`, `uncertainty` must .* got 2, 2, 1 rows"),
        ([0, 1], [0], [0.1, 0.2], "got 2, 1, 2 rows"),
        ([], [], [], "`y_true` must not be empty"),
        ([0, 1], [0, np.nan], [0.1, 0.2], "`y_pred` must hold only numbers, booleans or strings"),
        (["a", "b"], [0, 1], [0.1, 0.2], "`y_true` has labels of dtype <U1 .* in the same form"),
    ],
)
def test_wrong_selective_inputs_are_named(metric, y_true, y_pred, uncertainty, message):
    with pytest.raises(ValueError, match=message):
        metric(y_true, y_pred, uncertainty)


@pytest.mark.parametrize(
    ("negative", "positive", "message"),
    [
        ([], [0.1], "`uncertainty_negative` must not be empty"),
        ([0.1], [], "`uncertainty_positive` must not be empty"),
        ([0.1, np.nan], [0.1], "`uncertainty_negative` must be finite, got nan in row 1"),
        ([0.1], [[0.1]], "`uncertainty_positive` must be one-dimensional"),
    ],
)
def test_wrong_detection_inputs_are_named(negative, positive, message):
    with pytest.raises(ValueError, match=message):
        detection_metrics(negative, positive)


def noisy_problem():
    return make_classification(150, n_features=4, n_classes=3, n_informative=3, n_redundant=0,
                               flip_y=0.2, random_state=0)  # fmt: skip


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("in_pipeline", [False, True])
def test_scorers_choose_parameters_in_a_grid_search(name, in_pipeline):
    X, codes = noisy_problem()
    y = np.array(["low", "mid", "high"])[codes]
    model, grid = EntropicLogisticRegression(), {"C": [1e-3, 1.0]}
    if in_pipeline:
        model = make_pipeline(StandardScaler(), model)
        grid = {f"entropiclogisticregression__{key}": value for key, value in grid.items()}
    search = GridSearchCV(model, grid, scoring=SCORERS[name], cv=3, error_score="raise").fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_score_ == scores.max()
    assert SCORERS[name](search, X, y) == SCORERS[name](search.best_estimator_, X, y)


def test_scorers_equal_the_metrics_they_are_named_after():
    X, y = noisy_problem()
    model = EntropicLogisticRegression().fit(X, y)
    proba, y_pred = model.predict_proba(X), model.predict(X)
    total = predict_uncertainty(model, X).total
    expected = {
        "neg_expected_calibration_error_scorer": -expected_calibration_error(y, proba),
        "neg_log_likelihood_scorer": -negative_log_likelihood(y, proba),
        "neg_area_under_risk_coverage_scorer": -area_under_risk_coverage(y, y_pred, total),
        "misclassification_auroc_scorer": misclassification_auroc(y, y_pred, total),
    }
    assert {name: scorer(model, X, y) for name, scorer in SCORERS.items()} == expected


def test_scorers_work_on_folds_that_lack_a_class():
    X, y = noisy_problem()
    model = EntropicLogisticRegression().fit(X, y)
    for scorer in SCORERS.values():
        assert np.isfinite(scorer(model, X[y != 1], y[y != 1]))


def mean_uncertainty(y_true, y_pred, uncertainty):
    return float(np.mean(uncertainty))


@pytest.mark.parametrize("part", Uncertainty._fields)
def test_uncertainty_scorer_hands_the_chosen_part_to_the_metric(part):
    X, y = noisy_problem()
    model = EntropicLogisticRegression().fit(X, y)
    expected = getattr(model.predict_uncertainty(X), part).mean()
    assert uncertainty_scorer(mean_uncertainty, part=part)(model, X, y) == expected
    loss = uncertainty_scorer(mean_uncertainty, part=part, greater_is_better=False)
    assert loss(model, X, y) == -expected


def test_uncertainty_scorer_refuses_an_unknown_part():
    with pytest.raises(ValueError, match=r"`part` must be one of .*'epistemic'.*, got 'count'"):
        uncertainty_scorer(mean_uncertainty, part="count")


@pytest.mark.parametrize(
    "scorer", [*SCORERS.values(), uncertainty_scorer(mean_uncertainty, part="epistemic")]
)
def test_scorers_survive_pickling(scorer):
    X, y = noisy_problem()
    model = EntropicLogisticRegression().fit(X, y)
    copy = pickle.loads(pickle.dumps(scorer))
    assert copy == scorer
    assert copy(model, X, y) == scorer(model, X, y)


def test_a_fold_without_errors_scores_nan_with_a_warning_and_the_search_goes_on():
    X, y = load_iris(return_X_y=True)
    easy = y < 2  # linearly separable
    with pytest.warns(UndefinedMetricWarning, match="all right"):
        result = cross_validate(
            EntropicLogisticRegression(),
            X[easy],
            y[easy],
            scoring=metrics.misclassification_auroc_scorer,
            error_score="raise",
        )
    assert np.isnan(result["test_score"]).all()


def test_metrics_raise_no_warnings_on_good_input():
    y_true, proba = random_problem(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in PROBABILITY_METRICS:
            metric(y_true, proba.astype(np.float32), classes=[0, 1, 2])
        for metric in SELECTIVE_METRICS:
            metric(*random_selection(0))
