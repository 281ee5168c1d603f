"""Arguments that metrics refuse, with a word of the message."""

from functools import partial

import numpy as np
import pytest

from skuq import metrics
from tests.metrics.problems import GaussianRidge

HALVES = [[0.5, 0.5], [0.2, 0.8]]
LABELS = [1, 2, 3], [0.1, 0.2, 0.3]
SELECTION = ("risk_coverage_curve", "area_under_risk_coverage", "misclassification_auroc")


def rows():
    inf, nan = np.inf, np.nan
    for metric in (metrics.calibration_table, metrics.expected_calibration_error):
        yield partial(metric, [0, 1], HALVES, n_bins=0), "n_bins"
        yield partial(metric, [0, 1], HALVES, strategy="equal"), "strategy"
        yield partial(metric, [0, 1], HALVES, classes=[0, 1, 2]), "columns"
    for metric in (metrics.brier_score, metrics.negative_log_likelihood):
        yield partial(metric, [0, 1], [[0.5, 0.4], [0.2, 0.8]]), "sum to 1"
    for metric in (metrics.interval_score, metrics.interval_coverage):
        for y_true, lower, upper, word in (
            ([1, nan], [0, 0], [2, 2], "y_true"),
            ([1, 1], [0, nan], [2, 2], "lower"),
            ([1, 1], [0, 0], [2, -inf], "upper"),
            ([1, 1], [inf, 0], [inf, 2], "lower"),
            ([1, 1], [0, 3], [2, 2], "row 1"),
            ([1, 1], [0], [2, 2], "1, 2"),
            ([1, 1], [[0], [0]], [2, 2], "one-dimensional"),
            ([1, 1], ["a", "b"], [2, 2], "numbers"),
        ):
            yield partial(metric, y_true, lower, upper), word
    for coverage in (0, 1, nan):
        yield partial(metrics.interval_score, [1.0], [0.0], [2.0], coverage=coverage), "coverage"
    yield partial(metrics.interval_scorer, 90), "coverage"
    yield partial(metrics.quantile_scorer, [0.5, 95]), "levels"
    for quantiles, levels, word in (
        ([1.0, 2.0], [0.5], "two dimensions"),
        (np.empty((2, 0)), [0.5], "one column"),
        ([[1.0], [nan]], [0.5], "row 1"),
        ([[1.0], [2.0]], [0.1, 0.9], "2 levels"),
        ([[1.0], [2.0]], 0.5, "one-dimensional"),
        ([[1.0], [2.0]], [1.0], "levels"),
        ([[1.0]], [0.5], "2, 1"),
    ):
        yield partial(metrics.pinball_loss, [1.0, 2.0], quantiles, levels), word
    for name in SELECTION:
        metric = getattr(metrics, name)
        yield partial(metric, [0, 1], [0, 0], [0.1, nan]), "uncertainty"
        yield partial(metric, [1.0, 2.5, 3.0], *LABELS), "y_true.*squared_error"
        yield partial(metric, LABELS[0], [1.0, 2.0, 3.25], LABELS[1]), "y_pred.* 3.25"
        yield partial(metric, ["a", "b"], [0, 1], [0.1, 0.2]), "dtype"
    area, rest = metrics.area_under_risk_coverage, ([1.0, 2.0], [0.1, 0.2])
    yield partial(area, [1.0, 2.0], *rest, loss="mse"), "loss"
    yield partial(area, ["low", "high"], *rest, loss="squared_error"), "y_true"
    yield partial(metrics.detection_metrics, [], [0.1]), "empty"
    yield partial(metrics.detection_metrics, [0.1], [[0.1]]), "one-dimensional"
    yield partial(metrics.misclassification_auroc, [0, 1], [0], [0.1, 0.2]), "2, 1, 2"
    yield partial(metrics.uncertainty_scorer, max, part="count"), "part"
    scorer = metrics.uncertainty_scorer(metrics.area_under_risk_coverage)
    data = np.arange(9.0)[:, None], np.sin(np.arange(9.0))
    yield partial(scorer, GaussianRidge().fit(*data), *data), "uncertainty_scorer"


def test_wrong_arguments_are_refused_with_their_names():
    for call, word in rows():
        with pytest.raises(ValueError, match=word):
            call()
