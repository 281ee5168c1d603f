"""Selective prediction and detection against slow loops, scikit-learn and identities."""

import numpy as np
import pytest
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import average_precision_score, roc_auc_score

from skuq import metrics
from tests.metrics.problems import SEEDS, random_quantities, random_selection

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
        assert found.auroc == pytest.approx(roc_auc_score(target, scores))
        assert found.aupr == pytest.approx(average_precision_score(target, scores))
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
