"""Measures of predictions against slow loops, scikit-learn, other libraries and identities."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn import metrics as sk
from sklearn.exceptions import UndefinedMetricWarning

from skuq import metrics
from tests.metrics import problems
from tests.metrics.problems import SEEDS, random_quantities, random_selection


def slow_calibration_table(y_true, proba, lower, upper):
    top, right, rows = proba.max(axis=1).round(9), proba.argmax(axis=1) == y_true, []
    for low, high in zip(lower, upper, strict=True):
        inside = (low <= top) & ((top < high) | (top == high) & (high == upper[-1]))
        confidence, accuracy = (x[inside].mean() if inside.any() else np.nan for x in (top, right))
        rows.append((low, high, inside.sum(), confidence, accuracy, accuracy - confidence))
    return pd.DataFrame(rows, columns=metrics.CalibrationTable._fields)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize(("n_bins", "seed"), [(1, 0), (7, 1), (15, 2)])
def test_calibration_table_equals_a_slow_loop_over_its_bins(seed, strategy, n_bins):
    y_true, proba = problems.random_problem(seed)
    bins = {"n_bins": n_bins, "strategy": strategy}
    table = metrics.calibration_table(y_true, proba, **bins)
    slow = slow_calibration_table(y_true, proba, table.lower, table.upper)
    pd.testing.assert_frame_equal(table.to_frame(), slow, rtol=1e-12)
    assert table.count.sum() == len(y_true)
    names, order = np.array(["ant", "bee", "cat"]), [2, 0, 1]  # the classes give the column order
    bins["classes"] = names[order]
    permuted = metrics.calibration_table(names[y_true], proba[:, order], **bins)
    np.testing.assert_array_equal(permuted, table)
    perfect = names[y_true], np.eye(3)[y_true][:, order]
    assert metrics.expected_calibration_error(*perfect, **bins) == 0.0


@pytest.mark.parametrize(
    ("n_bins", "strategy"), [(5, "uniform"), (10, "uniform"), (15, "uniform"), (4, "quantile")]
)
def test_calibration_errors_equal_netcal(n_bins, strategy):
    netcal = pytest.importorskip("netcal.metrics")
    # With 996 = 4 * 249 the edges that netcal interpolates separate the same samples as ours.
    y_true, proba = problems.random_problem(0, n=996)
    ours = metrics.expected_calibration_error(y_true, proba, n_bins=n_bins, strategy=strategy)
    theirs = netcal.ECE(n_bins, equal_intervals=strategy == "uniform").measure(proba, y_true)
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_proper_scores_equal_sklearn_and_the_definition(dtype):
    y_true, proba = problems.random_problem(0)
    proba = proba.astype(dtype)
    expected = sk.log_loss(y_true, proba)
    assert metrics.negative_log_likelihood(y_true, proba) == pytest.approx(expected, rel=1e-6)
    excluded = [0, 1], np.array([[0.0, 1.0], [0.5, 0.5]])
    assert metrics.negative_log_likelihood(*excluded) == pytest.approx(sk.log_loss(*excluded))
    squares = ((proba.astype(np.float64) - np.eye(3)[y_true]) ** 2).sum(axis=1)
    assert metrics.brier_score(y_true, proba) == pytest.approx(squares.mean())
    y_true, proba = problems.random_problem(0, n_classes=2)
    weight = {"sample_weight": np.random.default_rng(0).exponential(size=len(y_true))}
    for given in ({}, weight):
        twice = 2 * sk.brier_score_loss(y_true, proba[:, 1], **given)
        assert metrics.brier_score(y_true, proba, **given) == pytest.approx(twice)
        expected = sk.log_loss(y_true, proba, **given)
        assert metrics.negative_log_likelihood(y_true, proba, **given) == pytest.approx(expected)


@pytest.mark.parametrize("score", [metrics.brier_score, metrics.negative_log_likelihood])
def test_proper_scores_are_best_at_0_take_columns_in_any_order_and_leave_inputs_alone(score):
    y_true, proba = problems.random_problem(0)
    assert score(y_true, np.eye(3)[y_true]) == 0.0
    before, some, rounded = proba.copy(), y_true != 1, proba.round(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(y_true, proba)
        score(y_true, rounded / rounded.sum(axis=1, keepdims=True) * 1.00005)
    np.testing.assert_array_equal(proba, before)
    reordered = score(y_true[some], proba[some][:, ::-1], classes=[2, 1, 0])
    expected = score(y_true[some], proba[some], classes=[0, 1, 2])
    np.testing.assert_allclose(reordered, expected, rtol=1e-12)


@pytest.mark.parametrize(("coverage", "seed"), [(0.5, 0), (0.9, 1), (0.99, 2)])
def test_interval_measures_equal_slow_loops_and_the_pinball_loss_of_both_limits(seed, coverage):
    y_true, lower, upper = problems.random_intervals(seed)
    score, held = 0.0, 0
    for value, low, high in zip(y_true, lower, upper, strict=True):
        score += high - low + 2 / (1 - coverage) * max(low - value, value - high, 0)
        held += low <= value <= high
    found = metrics.interval_score(y_true, lower, upper, coverage=coverage)
    assert found == pytest.approx(score / 60)
    assert metrics.interval_coverage(y_true, lower, upper) == held / 60
    assert 0 < held < 60
    levels = [(1 - coverage) / 2, (1 + coverage) / 2]
    both = metrics.pinball_loss(y_true, np.stack([lower, upper], axis=1), levels)
    assert found == pytest.approx(4 / (1 - coverage) * both)
    # Limits belong to the interval, and may be open or equal.
    y_true, lower, upper = [1.0, 2.0, 5.0, 3.0], [1.0, 0.0, -np.inf, 3.0], [2.0, 2.0, 4.0, 3.0]
    assert metrics.interval_coverage(y_true, lower, upper) == 0.75
    assert metrics.interval_coverage(y_true, [-np.inf] * 4, [np.inf] * 4) == 1
    assert metrics.interval_score(y_true, lower, upper) == np.inf
    assert metrics.interval_score(y_true, lower, upper, sample_weight=[1, 1, 0, 1]) == 1


def test_pinball_loss_is_the_mean_over_levels_of_that_of_sklearn():
    y_true, mean, std = problems.random_quantities(0)
    levels = np.array([0.95, 0.1, 0.5])  # in any order
    quantiles = mean[:, None] + std[:, None] * norm.ppf(levels)
    frame = pd.DataFrame(quantiles, columns=levels.astype(str))
    for given in ({}, {"sample_weight": np.random.default_rng(0).exponential(size=60)}):
        columns = zip(quantiles.T, levels, strict=True)
        each = [sk.mean_pinball_loss(y_true, column, alpha=p, **given) for column, p in columns]
        for truth, predicted in ((y_true, quantiles), (pd.Series(y_true), frame)):
            found = metrics.pinball_loss(truth, predicted, levels, **given)
            assert found == pytest.approx(np.mean(each))


def of_quantiles(y_true, mean, std, **kwargs):
    columns = np.stack([mean - std, mean, mean + std], axis=1)
    return metrics.pinball_loss(y_true, columns, [0.16, 0.5, 0.84], **kwargs)


SQUARED, IN_QUANTILES = {"loss": "squared_error"}, {"strategy": "quantile", "n_bins": 4}
METRICS = {  # name: metric, its settings, and its data
    "table": (metrics.calibration_table, {}, problems.random_problem),
    "table of quantiles": (metrics.calibration_table, IN_QUANTILES, problems.random_problem),
    "ECE": (metrics.expected_calibration_error, {}, problems.random_problem),
    "ECE of quantiles": (metrics.expected_calibration_error, IN_QUANTILES, problems.random_problem),
    "Brier": (metrics.brier_score, {}, problems.random_problem),
    "NLL": (metrics.negative_log_likelihood, {}, problems.random_problem),
    "curve": (metrics.risk_coverage_curve, {}, problems.random_selection),
    "AURC": (metrics.area_under_risk_coverage, {}, problems.random_selection),
    "AUROC": (metrics.misclassification_auroc, {}, problems.random_selection),
    "AURC of squares": (metrics.area_under_risk_coverage, SQUARED, problems.random_quantities),
    "curve of squares": (metrics.risk_coverage_curve, SQUARED, problems.random_quantities),
    "pinball": (of_quantiles, {}, problems.random_quantities),
    "interval score": (metrics.interval_score, {}, problems.random_intervals),
    "coverage": (metrics.interval_coverage, {}, problems.random_intervals),
}


@pytest.mark.parametrize("name", METRICS)
def test_whole_weights_are_repeated_rows_and_wrong_ones_are_refused(name):
    metric, settings, problem = METRICS[name]
    for seed in problems.SEEDS:
        data = problem(seed, n=60)
        weight = np.random.default_rng(seed).integers(4, size=60)
        repeated = metric(*(np.repeat(values, weight, axis=0) for values in data), **settings)
        weighted = metric(*data, sample_weight=weight, **settings)
        for one, other in zip(np.atleast_1d(weighted), np.atleast_1d(repeated), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
    for wrong in ([1.0] * 3, [-1.0] * 60, [0.0] * 60, [np.nan] * 60):
        with pytest.raises(ValueError, match="`sample_weight`"):
            metric(*data, sample_weight=wrong, **settings)


@pytest.mark.parametrize("unit", [0.1, 0.7, 1 / 3])
def test_the_unit_of_weights_does_not_matter(unit):
    y_true, proba = problems.random_problem(0, n=60)
    weight = np.random.default_rng(0).integers(1, 4, size=60)
    for n_bins in (2, 3, 4, 6, 12):
        given = {"n_bins": n_bins, "strategy": "quantile"}
        for whole in (weight, np.ones(60)):
            one = metrics.calibration_table(y_true, proba, sample_weight=whole, **given)
            other = metrics.calibration_table(y_true, proba, sample_weight=whole * unit, **given)
            np.testing.assert_array_equal(one.lower, other.lower)


LOSSES = {
    "zero_one": np.not_equal,
    "squared_error": lambda truth, predicted: (truth - predicted) ** 2,
    "absolute_error": lambda truth, predicted: np.abs(truth - predicted),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ties", [False, True])
def test_risk_is_the_mean_loss_of_those_answered(loss, ties):
    if loss == "zero_one":
        y_true, y_pred, score = random_selection(1, n_levels=7 if ties else 10**6)
        y_true = y_true.astype(float if ties else int)  # labels all the same
    else:
        y_true, y_pred, score = random_quantities(0)
        score = score.round(-2 if ties else 6)
    lost = LOSSES[loss](y_true, y_pred)
    curve = metrics.risk_coverage_curve(y_true, y_pred, score, loss=loss)
    slow = [(np.mean(score <= most), lost[score <= most].mean(), most) for most in np.unique(score)]
    np.testing.assert_allclose(np.transpose(curve), slow)
    area = metrics.area_under_risk_coverage(y_true, y_pred, score, loss=loss)
    mean_of_ties = np.array([lost[score == each].mean() for each in np.sort(score)])
    assert area == pytest.approx(np.mean(np.cumsum(mean_of_ties) / np.arange(1, 61)))
    assert area == metrics.area_under_risk_coverage(y_true, y_pred, score**2, loss=loss)


def test_area_under_risk_coverage_is_the_mean_over_random_orders_of_ties():
    y_true, y_pred, uncertainty = random_selection(0, n=40, n_levels=4)
    rng = np.random.default_rng(0)
    order = np.array([np.lexsort((rng.random(40), uncertainty)) for _ in range(2000)])
    areas = (np.cumsum((y_true != y_pred)[order], axis=1) / np.arange(1, 41)).mean(axis=1)
    area = metrics.area_under_risk_coverage(y_true, y_pred, uncertainty)
    assert area == pytest.approx(areas.mean(), abs=5 * areas.std() / np.sqrt(len(areas)))


def slow_false_positive_rate(negative, positive):
    for threshold in sorted({*negative, *positive}, reverse=True):
        if np.mean(positive >= threshold) >= 0.95:
            return np.mean(negative >= threshold)
    raise AssertionError("the lowest threshold finds every positive")


@pytest.mark.parametrize("decimals", [1, 12])
def test_detection_equals_sklearn_a_slow_search_for_the_threshold_and_repeated_rows(decimals):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        negative = rng.normal(size=100).round(decimals)
        positive = rng.normal(1.0, size=40).round(decimals)
        target, scores = np.repeat([0, 1], [100, 40]), np.concatenate([negative, positive])
        found = metrics.detection_metrics(negative, positive)
        assert found.auroc == pytest.approx(sk.roc_auc_score(target, scores))
        assert found.aupr == pytest.approx(sk.average_precision_score(target, scores))
        assert found.fpr95 == slow_false_positive_rate(negative, positive)
    assert metrics.detection_metrics([0.0, 0.1], [0.2, 0.3]) == (1.0, 1.0, 0.0)


def test_misclassification_auroc_splits_by_correctness_and_needs_right_and_wrong_ones():
    y_true, y_pred, uncertainty = random_selection(0)
    wrong = y_true != y_pred
    expected = metrics.detection_metrics(uncertainty[~wrong], uncertainty[wrong])
    found = metrics.misclassification_auroc(y_true, y_pred, uncertainty)
    assert found == pytest.approx(expected.auroc)
    for predicted, which in (([0, 1], "right"), ([1, 0], "wrong")):
        with pytest.warns(UndefinedMetricWarning, match=f"only {which}"):
            assert np.isnan(metrics.misclassification_auroc([0, 1], predicted, [0.1, 0.2]))
