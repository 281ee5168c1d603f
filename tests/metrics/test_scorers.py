"""Scorers inside searches and cross-validation."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_classification, make_moons
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC, Uncertainty, metrics, predict_uncertainty
from skuq.metrics import (
    area_under_risk_coverage,
    certified_accuracy,
    expected_calibration_error,
    misclassification_auroc,
    negative_log_likelihood,
    uncertainty_scorer,
)

SCORERS = {
    "auroc": uncertainty_scorer(misclassification_auroc),
    "risk": uncertainty_scorer(area_under_risk_coverage, greater_is_better=False),
    "calibration": metrics.neg_expected_calibration_error_scorer,
    "likelihood": metrics.neg_log_likelihood_scorer,
}


class EntropicLogisticRegression(LogisticRegression):
    """Toy plugin: the entropy of the prediction, a quarter of it called epistemic."""

    def predict_uncertainty(self, X):
        proba = self.predict_proba(X)
        entropy = -(proba * np.log(np.clip(proba, 1e-300, 1.0))).sum(axis=1)
        return Uncertainty.from_parts(0.75 * entropy, 0.25 * entropy)


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
        "calibration": -expected_calibration_error(y, proba),
        "likelihood": -negative_log_likelihood(y, proba),
        "risk": -area_under_risk_coverage(y, y_pred, total),
        "auroc": misclassification_auroc(y, y_pred, total),
    }
    assert {name: scorer(model, X, y) for name, scorer in SCORERS.items()} == expected


def test_scorers_work_on_folds_that_lack_a_class():
    X, y = noisy_problem()
    model = EntropicLogisticRegression().fit(X, y)
    for scorer in SCORERS.values():
        assert np.isfinite(scorer(model, X[y != 1], y[y != 1]))


def mean_uncertainty(y_true, y_pred, uncertainty):
    return float(np.mean(uncertainty))


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
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
    assert copy(model, X, y) == scorer(model, X, y)


def test_a_fold_without_errors_scores_nan_with_a_warning_and_the_search_goes_on():
    X, y = load_iris(return_X_y=True)
    easy = y < 2  # linearly separable
    with pytest.warns(UndefinedMetricWarning, match="only right predictions"):
        result = cross_validate(
            EntropicLogisticRegression(),
            X[easy],
            y[easy],
            scoring=SCORERS["auroc"],
            error_score="raise",
        )
    assert np.isnan(result["test_score"]).all()


def test_certified_accuracy_is_the_share_of_safe_samples_also_in_pipelines_and_searches():
    X, y = make_moons(50, noise=0.2, random_state=0)
    pipe = make_pipeline(StandardScaler(), RobustGPC(random_state=0, device="cpu"))
    pipe.fit(X, y)
    safe = pipe[-1].certify(pipe[:-1].transform(X), y=y, radius=0.1).status == "safe"
    scorer = certified_accuracy(0.1)
    assert scorer(pipe, X, y) == pytest.approx(safe.mean())
    assert scorer(make_pipeline(pipe[-1]), pipe[:-1].transform(X), y) == scorer(pipe, X, y)
    weight = np.arange(50.0)
    assert scorer(pipe, X, y, sample_weight=weight) == pytest.approx(
        np.average(safe, weights=weight)
    )
    assert pickle.loads(pickle.dumps(scorer))(pipe, X, y) == scorer(pipe, X, y)
    kernels = [RBF(0.01), RBF(1.0)]
    grid = {"robustgpc__kernel": kernels, "robustgpc__optimizer": [None]}
    pipe.set_params(robustgpc__max_iter=100)  # the default: without an optimizer it has no effect
    search = GridSearchCV(pipe, grid, scoring=scorer, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["robustgpc__kernel"] == RBF(1.0)
    assert scorer(search, X, y) == scorer(search.best_estimator_, X, y)
    with pytest.raises(TypeError, match=r"certify.*LogisticRegression has none"):
        scorer(LogisticRegression().fit(X, y), X, y)
