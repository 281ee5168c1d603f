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


def slow_risk_coverage(y_true, y_pred, uncertainty):
    points = []
    for threshold in sorted(set(uncertainty)):
        answered = [i for i, u in enumerate(uncertainty) if u <= threshold]
        errors = sum(y_true[i] != y_pred[i] for i in answered)
        points.append((len(answered) / len(uncertainty), errors / len(answered), threshold))
    return zip(*points, strict=True)


@pytest.mark.parametrize(("n_levels", "seed"), [(1, 0), (7, 1), (10**6, 2)])
def test_risk_coverage_curve_equals_a_slow_loop_over_thresholds(seed, n_levels):
    problem = random_selection(seed, n_levels=n_levels)
    for fast, slow in zip(risk_coverage_curve(*problem), slow_risk_coverage(*problem), strict=True):
        np.testing.assert_allclose(fast, slow)


def test_area_under_risk_coverage_is_the_mean_over_random_orders_of_ties():
    y_true, y_pred, uncertainty = random_selection(0, n=40, n_levels=4)
    rng = np.random.default_rng(0)
    order = np.array([np.lexsort((rng.random(40), uncertainty)) for _ in range(2000)])
    areas = (np.cumsum((y_true != y_pred)[order], axis=1) / np.arange(1, 41)).mean(axis=1)
    error_of_the_mean = np.std(areas) / np.sqrt(len(areas))
    area = area_under_risk_coverage(y_true, y_pred, uncertainty)
    assert abs(area - np.mean(areas)) < 5 * error_of_the_mean


def test_area_with_weights_has_the_value_computed_by_hand():
    """A block of weight n and mean loss r after weight N and loss E: (E + j r) / (N + j)."""
    weight = [2, 1, 3]
    # Losses 0, 1, 1 in blocks of uncertainty 0.1 (weight 2) and 0.2 (weight 4, all wrong).
    by_hand = (0 + 0 + 1 / 3 + 2 / 4 + 3 / 5 + 4 / 6) / 6
    found = area_under_risk_coverage([0, 0, 0], [0, 1, 1], [0.1, 0.2, 0.2], sample_weight=weight)
    assert found == pytest.approx(by_hand, rel=1e-12)
    # Loss 1 of weight 3 and loss 0 of weight 1 share their uncertainty: mean loss 3 / 4.
    found = area_under_risk_coverage([0, 0, 0], [0, 1, 0], [0.1, 0.2, 0.2], sample_weight=[2, 3, 1])
    by_hand = (0 + 0 + sum(0.75 * j / (2 + j) for j in (1, 2, 3, 4))) / 6
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_area_without_ties_is_the_mean_of_the_curve_and_of_a_constant_the_error_rate():
    y_true, y_pred, _ = random_selection(0)
    uncertainty = np.random.default_rng(0).permutation(len(y_true))
    area = area_under_risk_coverage(y_true, y_pred, uncertainty)
    assert area == pytest.approx(risk_coverage_curve(y_true, y_pred, uncertainty).risk.mean())
    constant = area_under_risk_coverage(y_true, y_pred, np.zeros(len(y_true)))
    assert constant == pytest.approx(np.mean(y_true != y_pred))


@given(
    rows=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(-3, 3)), min_size=1, max_size=30
    ),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=40)
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


def test_ranking_errors_last_gives_the_smallest_area_and_first_the_largest():
    y_true, y_pred, uncertainty = random_selection(0)
    wrong = (y_true != y_pred).astype(float)
    best = area_under_risk_coverage(y_true, y_pred, wrong)
    worst = area_under_risk_coverage(y_true, y_pred, -wrong)
    assert best < area_under_risk_coverage(y_true, y_pred, uncertainty) < worst


LOSSES = {"squared_error": lambda error: error**2, "absolute_error": np.abs}


@pytest.mark.parametrize(("loss", "power"), [("squared_error", 2), ("absolute_error", 1)])
@pytest.mark.parametrize("decimals", [-2, 6])  # with ties, and without
def test_risk_of_quantities_is_the_mean_loss_of_those_answered(loss, power, decimals):
    y_true, y_pred, std = random_quantities(0)
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
    assert area == area_under_risk_coverage(y_true, y_pred, std**2, loss=loss)
    in_thousandths = area_under_risk_coverage(1000 * y_true, 1000 * y_pred, std, loss=loss)
    assert in_thousandths == pytest.approx(1000**power * area)


def test_labels_that_are_stored_as_floats_are_labels():
    y_true, y_pred, uncertainty = random_selection(0)
    for metric in (risk_coverage_curve, area_under_risk_coverage, misclassification_auroc):
        expected = metric(y_true, y_pred, uncertainty)
        found = metric(y_true.astype(float), y_pred.astype(float), uncertainty)
        np.testing.assert_equal(found, expected)


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
        found = detection_metrics(negative, positive)
        assert found.auroc == pytest.approx(roc_auc_score(target, scores))
        assert found.aupr == pytest.approx(average_precision_score(target, scores))
        assert found.fpr95 == slow_false_positive_rate(negative, positive)
    one, two = rng.integers(1, 4, size=100), rng.integers(1, 4, size=40)
    both = detection_metrics(negative, positive, weight_negative=one, weight_positive=two)
    repeated = np.repeat(negative, one), np.repeat(positive, two)
    assert both == pytest.approx(detection_metrics(*repeated))
    alone = detection_metrics(negative, positive, weight_negative=one)
    assert alone == pytest.approx(detection_metrics(repeated[0], positive))


def test_detection_of_separated_groups_is_perfect_and_of_swapped_groups_hopeless():
    assert detection_metrics([0.0, 0.1], [0.2, 0.3]) == (1.0, 1.0, 0.0)
    swapped = detection_metrics([0.2, 0.3], [0.0, 0.1])
    assert (swapped.auroc, swapped.fpr95) == (0.0, 1.0)


def test_misclassification_auroc_splits_by_correctness_and_needs_right_and_wrong_ones():
    y_true, y_pred, uncertainty = random_selection(0)
    wrong = y_true != y_pred
    expected = detection_metrics(uncertainty[~wrong], uncertainty[wrong])
    assert misclassification_auroc(y_true, y_pred, uncertainty) == pytest.approx(expected.auroc)
    for predicted, which in (([0, 1], "right"), ([1, 0], "wrong")):
        with pytest.warns(UndefinedMetricWarning, match=f"only {which}"):
            assert np.isnan(misclassification_auroc([0, 1], predicted, [0.1, 0.2]))
