"""Scorers inside pipelines, searches and cross-validation."""

import pickle

import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC, metrics
from tests.metrics.problems import EntropicLogisticRegression, GaussianRidge, noisy_problem

LEVELS, RISK = [0.1, 0.5, 0.9], metrics.area_under_risk_coverage
LABELS = {
    "auroc": metrics.uncertainty_scorer(metrics.misclassification_auroc),
    "risk": metrics.uncertainty_scorer(RISK, greater_is_better=False),
    "calibration": metrics.neg_expected_calibration_error_scorer,
    "likelihood": metrics.neg_log_likelihood_scorer,
}
QUANTITIES = {
    "interval": metrics.interval_scorer(0.8),
    "quantile": metrics.quantile_scorer(LEVELS),
    "squares": metrics.uncertainty_scorer(RISK, greater_is_better=False, loss="squared_error"),
}
SCORERS = LABELS | QUANTITIES
LABELLED, NUMBERS = noisy_problem(), np.random.default_rng(0).normal(size=(90, 4))
MEASURED = NUMBERS[:, :3], NUMBERS @ [3, 1, 0, 1]


def expected_scores(model, X, y, **weight):
    if isinstance(model, GaussianRidge):
        gaussian, limits = model.predict(X, return_std=True), model.predict_interval(X, 0.8)
        quantiles, squared = model.predict_quantiles(X, LEVELS), {"loss": "squared_error", **weight}
        return {
            "interval": -metrics.interval_score(y, *limits, coverage=0.8, **weight),
            "quantile": -metrics.pinball_loss(y, quantiles, LEVELS, **weight),
            "squares": -RISK(y, *gaussian, **squared),
        }
    proba, y_pred = model.predict_proba(X), model.predict(X)
    total = model.predict_uncertainty(X).total
    return {
        "calibration": -metrics.expected_calibration_error(y, proba, **weight),
        "likelihood": -metrics.negative_log_likelihood(y, proba, **weight),
        "risk": -RISK(y, y_pred, total, **weight),
        "auroc": metrics.misclassification_auroc(y, y_pred, total, **weight),
    }


@pytest.mark.parametrize("name", SCORERS)
def test_scorers_equal_their_metrics_also_pickled_routed_and_in_searches(name):
    (X, y), scorer = (LABELLED if name in LABELS else MEASURED), SCORERS[name]
    model = EntropicLogisticRegression() if name in LABELS else GaussianRidge()
    fitted, half = model.fit(X, y), len(y) // 2
    assert scorer(fitted, X, y) == expected_scores(fitted, X, y)[name]
    assert pickle.loads(pickle.dumps(scorer))(fitted, X, y) == scorer(fitted, X, y)
    if name in LABELS:  # a fold may lack a class
        assert np.isfinite(scorer(fitted, X[y != 1], y[y != 1]))
    # In a search over pipelines
    grid = {"C": [1e-3, 1.0]} if name in LABELS else {"lambda_init": [1e6, None], "max_iter": [1]}
    grid = {f"{type(model).__name__.lower()}__{key}": value for key, value in grid.items()}
    named = np.array(["low", "mid", "high"])[y] if name in LABELS else y
    asked = {"scoring": scorer, "cv": 2, "error_score": "raise"}
    search = GridSearchCV(make_pipeline(StandardScaler(), model), grid, **asked).fit(X, named)
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
    best = search.best_estimator_
    expected = expected_scores(best[-1], best[0].transform(X), named)[name]
    assert scorer(search, X, named) == scorer(best, X, named) == expected
    # Weights are routed by a cross-validation and a search
    weight = np.random.default_rng(0).integers(1, 5, size=len(y)).astype(float)
    with config_context(enable_metadata_routing=True):
        asked = scorer.set_score_request(sample_weight=True)
        routed = type(model)().set_fit_request(sample_weight=False)
        given = {"scoring": asked, "cv": [(np.arange(half), np.arange(half, len(y)))]}
        scored = cross_validate(routed, X, y, params={"sample_weight": weight}, **given)
        search = GridSearchCV(routed, {}, refit=False, **given).fit(X, y, sample_weight=weight)
    (scored,) = scored["test_score"]
    fitted = type(model)().fit(X[:half], y[:half])
    rest = X[half:], y[half:]
    assert scored == expected_scores(fitted, *rest, sample_weight=weight[half:])[name]
    assert search.cv_results_["mean_test_score"][0] == scored != scorer(fitted, *rest)


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_uncertainty_scorer_hands_the_chosen_part_to_the_metric(part):
    model = EntropicLogisticRegression().fit(*LABELLED)
    expected = getattr(model.predict_uncertainty(LABELLED[0]), part).mean()
    for sign in (1, -1):
        scorer = metrics.uncertainty_scorer(
            lambda y_true, y_pred, given: given.mean(), part=part, greater_is_better=sign > 0
        )
        assert scorer(model, *LABELLED) == sign * expected


def test_a_request_is_made_of_a_copy_and_only_where_it_has_an_effect():
    scorer = metrics.neg_log_likelihood_scorer
    with pytest.raises(RuntimeError, match="enable_metadata_routing"):
        scorer.set_score_request(sample_weight=True)
    with config_context(enable_metadata_routing=True):
        assert scorer.set_score_request(sample_weight="importance") != scorer
    assert scorer.request is None


def test_certified_accuracy_is_the_share_of_safe_samples_also_in_pipelines_and_searches():
    X, y = make_moons(20, noise=0.2, random_state=0)
    pipe = make_pipeline(StandardScaler(), RobustGPC(RBF(1.0), optimizer=None, device="cpu"))
    pipe.fit(X, y)
    inside, scorer = pipe[:-1].transform(X), metrics.certified_accuracy(0.1, max_regions=5)
    safe = pipe[-1].certify(inside, y=y, radius=0.1, max_regions=5).status == "safe"
    assert 0 < safe.mean() < 1
    assert scorer(pipe, X, y) == pytest.approx(safe.mean())
    assert scorer(make_pipeline(pipe[-1]), inside, y) == scorer(pipe, X, y)
    weighted = scorer(pipe, X, y, sample_weight=np.arange(20.0))
    assert weighted == pytest.approx(np.average(safe, weights=np.arange(20)))
    assert pickle.loads(pickle.dumps(scorer))(pipe, X, y) == scorer(pipe, X, y)
    grid = {"robustgpc__kernel": [RBF(0.01), RBF(1.0)]}
    search = GridSearchCV(pipe, grid, scoring=scorer, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["robustgpc__kernel"] == RBF(1.0)
    assert scorer(search, X, y) == scorer(search.best_estimator_, X, y)


def test_an_estimator_without_the_method_is_named():
    ridge = make_pipeline(StandardScaler(), Ridge()).fit(*MEASURED)
    for scorer, method in (
        (metrics.interval_scorer(), "predict_interval"),
        (metrics.quantile_scorer([0.5]), "predict_quantiles"),
        (metrics.certified_accuracy(0.1), "certify"),
    ):
        with pytest.raises(TypeError, match=method):
            scorer(ridge, *MEASURED)
