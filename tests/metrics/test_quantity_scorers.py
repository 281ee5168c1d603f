"""Scorers of quantities inside pipelines, searches and cross-validation."""

import pickle

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import config_context
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import AnchoredQuantileRegressor, Uncertainty, metrics
from skuq.metrics import (
    area_under_risk_coverage,
    interval_scorer,
    quantile_scorer,
    uncertainty_scorer,
)

LEVELS = [0.1, 0.5, 0.9]


class GaussianRidge(BayesianRidge):
    """Regressor with all methods that the scorers ask for, each from its Gaussian."""

    def predict_quantiles(self, X, levels):
        mean, std = self.predict(X, return_std=True)
        return mean[:, None] + std[:, None] * norm.ppf(levels)

    def predict_interval(self, X, coverage=0.9):
        return tuple(self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2]).T)

    def predict_uncertainty(self, X):
        _, std = self.predict(X, return_std=True)
        return Uncertainty.from_parts(std**2, np.zeros(len(X)))


def expected_scores(model, X, y, **weight):
    """Each scorer and the value that the metrics give."""
    gaussian, interval = model.predict(X, return_std=True), model.predict_interval(X, 0.8)
    quantiles, squared = model.predict_quantiles(X, LEVELS), {"loss": "squared_error", **weight}
    return {
        interval_scorer(0.8): -metrics.interval_score(y, *interval, coverage=0.8, **weight),
        quantile_scorer(LEVELS): -metrics.pinball_loss(y, quantiles, LEVELS, **weight),
        uncertainty_scorer(
            area_under_risk_coverage, greater_is_better=False, loss="squared_error"
        ): -area_under_risk_coverage(y, *gaussian, **squared),
    }


def noisy_problem():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    return X, X @ [3, 1, 0] + rng.normal(size=90)


def test_scorers_equal_the_metrics_they_are_named_after_also_when_pickled():
    X, y = noisy_problem()
    model = GaussianRidge().fit(X, y)
    for scorer, expected in expected_scores(model, X, y).items():
        assert scorer(model, X, y) == expected
        copy = pickle.loads(pickle.dumps(scorer))
        assert copy(model, X, y) == expected


def test_scorers_choose_parameters_in_a_search_over_pipelines():
    X, y = noisy_problem()
    pipe = make_pipeline(StandardScaler(), GaussianRidge())
    grid = {"gaussianridge__lambda_init": [1e6, None], "gaussianridge__max_iter": [1]}
    scorers = [*expected_scores(GaussianRidge().fit(X, y), X, y)]
    for k, scorer in enumerate(scorers):
        search = GridSearchCV(pipe, grid, scoring=scorer, cv=3, error_score="raise").fit(X, y)
        scores = search.cv_results_["mean_test_score"]
        assert search.best_score_ == scores.max()
        best = search.best_estimator_
        expected = expected_scores(best[-1], best[0].transform(X), y)
        assert scorer(search, X, y) == scorer(best, X, y) == [*expected.values()][k]


def test_a_cross_validation_hands_weights_to_scorers():
    X, y = noisy_problem()
    weight = np.random.default_rng(0).integers(0, 4, size=90).astype(float)
    split = [(np.arange(45), np.arange(45, 90))]
    model = GaussianRidge().fit(X[:45], y[:45])
    with config_context(enable_metadata_routing=True):
        routed = GaussianRidge().set_fit_request(sample_weight=False)
        expected = expected_scores(model, X[45:], y[45:], sample_weight=weight[45:])
        for scorer, value in expected.items():
            asked = scorer.set_score_request(sample_weight=True)
            given = {"params": {"sample_weight": weight}}
            scored = cross_validate(routed, X, y, scoring={"one": asked}, cv=split, **given)
            assert scored["test_one"][0] == value


def test_the_quantile_scorer_takes_anchored_quantile_regressors():
    X, y = noisy_problem()
    settings = {"hidden_sizes": (4,), "max_epochs": 2, "random_state": 0, "device": "cpu"}
    pipe = make_pipeline(StandardScaler(), AnchoredQuantileRegressor(**settings)).fit(X, y)
    expected = pipe[-1].predict_quantiles(pipe[0].transform(X), LEVELS)
    assert quantile_scorer(LEVELS)(pipe, X, y) == -metrics.pinball_loss(y, expected, LEVELS)


@pytest.mark.parametrize(
    ("scorer", "method"),
    [
        (interval_scorer(), "predict_interval"),
        (quantile_scorer([0.5]), "predict_quantiles"),
    ],
)
def test_a_regressor_without_the_method_is_named(scorer, method):
    X, y = noisy_problem()
    pipe = make_pipeline(StandardScaler(), Ridge()).fit(X, y)
    with pytest.raises(TypeError, match=f"^Pipeline -> Ridge: Ridge has no `{method}`"):
        scorer(pipe, X, y)


def test_wrong_settings_are_refused_when_a_scorer_is_made():
    with pytest.raises(ValueError, match="`coverage` must lie strictly between 0 and 1, got 90"):
        interval_scorer(90)
    with pytest.raises(ValueError, match="`levels` must lie strictly between 0 and 1"):
        quantile_scorer([0.5, 95])


def test_the_scorer_of_labels_refuses_quantities_and_names_the_parameter():
    X, y = noisy_problem()
    with pytest.raises(ValueError, match=r"loss='squared_error'.*`uncertainty_scorer`"):
        uncertainty_scorer(area_under_risk_coverage)(GaussianRidge().fit(X, y), X, y)
