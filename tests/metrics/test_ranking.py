"""Selective prediction and detection against slow loops, scikit-learn and identities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import average_precision_score, roc_auc_score

from skuq.metrics import (
    area_under_risk_coverage,
    detection_metrics,
    misclassification_auroc,
    risk_coverage_curve,
)
from tests.metrics.problems import SEEDS, random_quantities, random_selection

# Risk and coverage


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
        areas.append(np.mean(np.cumsum(wrong) / np.arange(1, 41)))
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
@settings(max_examples=100)
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


@pytest.mark.parametrize("metric", [risk_coverage_curve, area_under_risk_coverage])
def test_wrong_uncertainty_is_named(metric):
    with pytest.raises(ValueError, match="`uncertainty` must be finite, got nan in row 1"):
        metric([0, 1], [0, 0], [0.1, np.nan])


# Risk and coverage of quantities

LOSSES = {"squared_error": lambda error: error**2, "absolute_error": np.abs}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("decimals", [-2, 6])  # with ties, and without
def test_risk_of_quantities_is_the_mean_loss_of_those_answered(seed, loss, decimals):
    y_true, y_pred, std = random_quantities(seed)
    std = std.round(decimals)
    lost = LOSSES[loss](y_pred - y_true)
    curve = risk_coverage_curve(y_true, y_pred, std, loss=loss)
    slow = [(np.mean(std <= limit), lost[std <= limit].mean(), limit) for limit in np.unique(std)]
    np.testing.assert_allclose(np.transpose(curve), slow)
    area = area_under_risk_coverage(y_true, y_pred, std, loss=loss)
    mean_of_ties = np.array([lost[std == each].mean() for each in np.sort(std)])
    assert area == pytest.approx(np.mean(np.cumsum(mean_of_ties) / np.arange(1, 61)))
    constant = area_under_risk_coverage(y_true, y_pred, np.zeros(60), loss=loss)
    assert constant == pytest.approx(lost.mean())
    assert area < constant  # errors grow with the deviation


@pytest.mark.parametrize(("loss", "power"), [("squared_error", 2), ("absolute_error", 1)])
def test_risk_of_quantities_has_the_unit_that_the_page_says(loss, power):
    y_true, y_pred, std = random_quantities(0)
    area = area_under_risk_coverage(y_true, y_pred, std, loss=loss)
    in_thousandths = area_under_risk_coverage(1000 * y_true, 1000 * y_pred, std, loss=loss)
    assert in_thousandths == pytest.approx(1000**power * area)
    assert area == area_under_risk_coverage(y_true, y_pred, std**2, loss=loss)


OF_LABELS = [
    risk_coverage_curve,
    area_under_risk_coverage,
    misclassification_auroc,
]


@pytest.mark.parametrize("metric", OF_LABELS)
@pytest.mark.parametrize(
    ("y_true", "y_pred", "where"),
    [
        ([1.0, 2.5, 3.0], [1.0, 2.0, 3.0], "`y_true` .* 2.5 in row 1"),
        ([1, 2, 3], [1.0, 2.0, 3.25], "`y_pred` .* 3.25 in row 2"),
    ],
)
def test_quantities_are_no_labels(metric, y_true, y_pred, where):
    with pytest.raises(ValueError, match=f"{where}.*loss='squared_error'"):
        metric(y_true, y_pred, [0.1, 0.2, 0.3])


def test_labels_that_are_stored_as_floats_are_labels():
    y_true, y_pred, uncertainty = random_selection(0)
    for metric in OF_LABELS:
        expected = metric(y_true, y_pred, uncertainty)
        found = metric(y_true.astype(float), y_pred.astype(float), uncertainty)
        np.testing.assert_equal(found, expected)


@pytest.mark.parametrize(
    ("y_true", "loss", "message"),
    [
        ([1.0, 2.0], "mse", r"`loss` must be one of \('zero_one', .*got 'mse'"),
        ([1.0, np.nan], "squared_error", "`y_true` must be finite, got nan in row 1"),
        (["low", "high"], "squared_error", "`y_true` must be finite, got values that are not num"),
    ],
)
def test_wrong_losses_and_quantities_are_named(y_true, loss, message):
    with pytest.raises(ValueError, match=message):
        area_under_risk_coverage(y_true, [1.0, 2.0], [0.1, 0.2], loss=loss)


# Detection


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
def test_misclassification_auroc_splits_by_correctness(seed):
    y_true, y_pred, uncertainty = random_selection(seed)
    wrong = y_true != y_pred
    expected = detection_metrics(uncertainty[~wrong], uncertainty[wrong])
    assert misclassification_auroc(y_true, y_pred, uncertainty) == pytest.approx(expected.auroc)


@pytest.mark.parametrize(("y_pred", "which"), [([0, 1], "right"), ([1, 0], "wrong")])
def test_detection_of_misclassified_samples_needs_right_and_wrong_ones(y_pred, which):
    with pytest.warns(UndefinedMetricWarning, match=f"only {which} .* The result is NaN"):
        assert np.isnan(misclassification_auroc([0, 1], y_pred, [0.1, 0.2]))


@pytest.mark.parametrize(
    ("negative", "positive", "message"),
    [
        ([], [0.1], "`uncertainty_negative` must not be empty"),
        ([0.1], [[0.1]], "`uncertainty_positive` must be one-dimensional"),
    ],
)
def test_wrong_scores_are_named(negative, positive, message):
    with pytest.raises(ValueError, match=message):
        detection_metrics(negative, positive)


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match="got 2, 1, 2 rows"):
        misclassification_auroc([0, 1], [0], [0.1, 0.2])
