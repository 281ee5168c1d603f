"""Detection against scikit-learn, a slow search for the threshold and identities."""

import numpy as np
import pytest
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import average_precision_score, roc_auc_score

from skuq.metrics import detection_metrics, misclassification_auroc, misclassification_detection
from tests.metrics.problems import SEEDS, random_selection


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


@pytest.mark.parametrize("metric", [misclassification_detection, misclassification_auroc])
def test_wrong_inputs_are_named(metric):
    with pytest.raises(ValueError, match="got 2, 1, 2 rows"):
        metric([0, 1], [0], [0.1, 0.2])
