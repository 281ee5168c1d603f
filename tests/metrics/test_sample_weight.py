"""Sample weights: whole numbers are repeated rows, and scorers are given them."""

from itertools import product

import numpy as np
import pytest
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, make_scorer
from sklearn.model_selection import GridSearchCV, cross_validate

from skuq import metrics
from tests.metrics.problems import (
    SEEDS,
    random_intervals,
    random_problem,
    random_quantities,
    random_selection,
)
from tests.metrics.test_scorers import SCORERS, EntropicLogisticRegression, noisy_problem


def quantile(metric):
    return lambda *args, **kwargs: metric(*args, strategy="quantile", n_bins=4, **kwargs)


OF_PROBABILITIES = {
    "table": metrics.calibration_table,
    "table of quantiles": quantile(metrics.calibration_table),
    "ECE": metrics.expected_calibration_error,
    "ECE of quantiles": quantile(metrics.expected_calibration_error),
    "Brier": metrics.brier_score,
    "NLL": metrics.negative_log_likelihood,
}
OF_SELECTION = {
    "curve": metrics.risk_coverage_curve,
    "AURC": metrics.area_under_risk_coverage,
    "AUROC": metrics.misclassification_auroc,
}


def squared(metric):
    return lambda *args, **kwargs: metric(*args, loss="squared_error", **kwargs)


def of_rows(metric, *levels):
    """Metric of quantiles or samples: those of a Gaussian with the given mean and deviation."""

    def measured(y_true, mean, std, **kwargs):
        columns = np.stack([mean - std, mean, mean + std], axis=1)
        return metric(y_true, columns, *levels, **kwargs)

    return measured


OF_GAUSSIANS = {
    "AURC of squares": squared(metrics.area_under_risk_coverage),
    "curve of squares": squared(metrics.risk_coverage_curve),
    "pinball": of_rows(metrics.pinball_loss, [0.16, 0.5, 0.84]),
}
OF_INTERVALS = {
    "interval score": metrics.interval_score,
    "coverage": metrics.interval_coverage,
}
KINDS = (
    (OF_PROBABILITIES, random_problem),
    (OF_SELECTION, random_selection),
    (OF_GAUSSIANS, random_quantities),
    (OF_INTERVALS, random_intervals),
)
ALL = [(metric, problem) for kind, problem in KINDS for metric in kind.values()]
NAMES = [name for kind, _ in KINDS for name in kind]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("metric", "problem"), ALL, ids=NAMES)
def test_whole_weights_are_repeated_rows(metric, problem, seed):
    data = problem(seed, n=60)
    weight = np.random.default_rng(seed).integers(4, size=60)
    repeated = metric(*(np.repeat(values, weight, axis=0) for values in data))
    weighted = metric(*data, sample_weight=weight)
    for one, other in zip(np.atleast_1d(weighted), np.atleast_1d(repeated), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(("metric", "problem"), ALL, ids=NAMES)
@pytest.mark.parametrize(
    ("weight", "message"),
    [([1.0] * 3, "3 weights for 60"), ([-1.0] * 60, ">= 0"), ([0.0] * 60, "not all 0"),
     ([np.nan] * 60, "finite")],
)  # fmt: skip
def test_wrong_weights_are_named(metric, problem, weight, message):
    with pytest.raises(ValueError, match=f"`sample_weight` must .*{message}"):
        metric(*problem(0, n=60), sample_weight=weight)


def test_weights_of_any_size_are_those_of_sklearn():
    y_true, proba = random_problem(0, n_classes=2)
    weight = np.random.default_rng(0).exponential(size=len(y_true))
    weighted = {"sample_weight": weight}
    assert metrics.negative_log_likelihood(y_true, proba, **weighted) == pytest.approx(
        log_loss(y_true, proba, **weighted)
    )
    assert metrics.brier_score(y_true, proba, **weighted) == pytest.approx(
        2 * brier_score_loss(y_true, proba[:, 1], **weighted)
    )


@pytest.mark.parametrize("unit", [0.1, 0.3, 0.7, 1 / 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_unit_of_weights_does_not_matter(unit, seed):
    y_true, proba = random_problem(seed, n=60)
    weight = np.random.default_rng(seed).integers(1, 4, size=60)
    for n_bins, whole in product((2, 3, 4, 6, 12), (weight, np.ones(60))):
        one, other = (
            metrics.calibration_table(
                y_true, proba, n_bins=n_bins, strategy="quantile", sample_weight=weights
            )
            for weights in (whole, whole * unit)
        )
        np.testing.assert_array_equal(one.lower, other.lower)
    score = np.arange(60)
    found = metrics.detection_metrics(
        score, score + 0.5, weight_negative=np.full(60, unit), weight_positive=np.full(60, unit)
    )
    assert found == pytest.approx(metrics.detection_metrics(score, score + 0.5))


def test_detection_weighs_both_groups():
    rng = np.random.default_rng(0)
    negative, positive = rng.normal(size=30).round(1), rng.normal(1, size=20).round(1)
    weights = rng.integers(1, 4, size=30), rng.integers(1, 4, size=20)
    weighted = metrics.detection_metrics(
        negative, positive, weight_negative=weights[0], weight_positive=weights[1]
    )
    repeated = map(np.repeat, (negative, positive), weights)
    assert weighted == pytest.approx(metrics.detection_metrics(*repeated))
    one = metrics.detection_metrics(negative, positive, weight_negative=weights[0])
    assert one == pytest.approx(
        metrics.detection_metrics(np.repeat(negative, weights[0]), positive)
    )


@pytest.mark.parametrize("name", SCORERS)
def test_a_search_and_a_cross_validation_hand_weights_to_scorers(name):
    X, y = noisy_problem()
    weight = np.random.default_rng(0).integers(1, 5, size=len(y)).astype(float)
    model = EntropicLogisticRegression()
    split = [(np.arange(75), np.arange(75, 150))]
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(sample_weight=False)
        scorer = SCORERS[name].set_score_request(sample_weight=True)
        scored = cross_validate(
            model, X, y, scoring={"one": scorer}, cv=split, params={"sample_weight": weight}
        )["test_one"][0]
        search = GridSearchCV(model, {}, scoring=scorer, cv=split, refit=False)
        search.fit(X, y, sample_weight=weight)
    expected = SCORERS[name](model.fit(X[:75], y[:75]), X[75:], y[75:], sample_weight=weight[75:])
    assert scored == expected
    assert search.cv_results_["mean_test_score"][0] == expected
    assert scored != SCORERS[name](model, X[75:], y[75:])


def test_a_request_is_made_of_a_copy_and_only_where_it_has_an_effect():
    scorer = metrics.neg_log_likelihood_scorer
    with pytest.raises(RuntimeError, match="enable_metadata_routing"):
        scorer.set_score_request(sample_weight=True)
    with config_context(enable_metadata_routing=True):
        assert scorer.set_score_request(sample_weight="importance") != scorer
    assert scorer.request is None


def test_scorers_stand_beside_those_of_sklearn():
    X, y = noisy_problem()
    both = {"ours": metrics.neg_log_likelihood_scorer,
            "theirs": make_scorer(log_loss, greater_is_better=False,
                                  response_method="predict_proba")}  # fmt: skip
    scores = cross_validate(LogisticRegression(), X, y, scoring=both, cv=3)
    np.testing.assert_allclose(scores["test_ours"], scores["test_theirs"])
