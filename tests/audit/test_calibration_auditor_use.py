"""CalibrationAuditor in searches and on disk, and what it refuses."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skuq import CalibrationAuditor, predict_uncertainty
from skuq.reporting import audit_data
from tests.reporter import Reporter, assert_same_numbers, slow_ece

# Searches


def test_score_is_minus_the_calibration_error_on_new_data(model, moons, reference):
    audit = CalibrationAuditor(model, n_bins=7).fit(*reference)
    X, y = moons[0][:150], moons[1][:150]
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    assert audit.score(X, y) == pytest.approx(-slow_ece(confidence, correct, 7), abs=1e-8)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_on_the_data_of_fit_the_score_is_minus_the_error_that_was_found(model, reference, strategy):
    audit = CalibrationAuditor(model, n_bins=7, strategy=strategy).fit(*reference)
    assert audit.score(*reference) == -audit.ece_


def test_cross_validation_of_a_frozen_model_scores_each_part_of_the_data(model, reference):
    X, y = reference
    audit = CalibrationAuditor(FrozenEstimator(model))
    folds = StratifiedKFold(3)
    scores = cross_val_score(audit, X, y, cv=folds)
    slow = [
        -slow_ece(model.predict_proba(X[test]).max(axis=1), model.predict(X[test]) == y[test])
        for _, test in folds.split(X, y)
    ]
    np.testing.assert_allclose(scores, slow, atol=1e-8)


def test_grid_search_runs_over_bins_and_over_parameters_of_the_model(reference):
    X, y = reference
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    grid = {"n_bins": [5, 10], "estimator__logisticregression__C": [0.01, 1.0]}
    search = GridSearchCV(CalibrationAuditor(pipeline), grid, cv=3)
    search.fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # Shrunk weights make a model underconfident.
    assert search.best_params_["estimator__logisticregression__C"] == 1.0
    best = search.best_estimator_
    assert len(best.bins_.count) == search.best_params_["n_bins"]
    assert best.estimator_[-1].C == 1.0
    assert predict_uncertainty(search, X[:4]).total.shape == (4,)


def test_sensitive_features_are_routed_through_a_search(model, reference):
    X, y = reference
    sex = pd.Series(np.where(X[:, 0] > 0, "f", "m"), name="sex")
    with config_context(enable_metadata_routing=True):
        audit = CalibrationAuditor(FrozenEstimator(model)).set_fit_request(sensitive_features=True)
        search = GridSearchCV(audit, {"n_bins": [5, 8]}, cv=2)
        best = search.fit(X, y, sensitive_features=sex).best_estimator_
    assert list(best.group_bins_) == ["sex=f", "sex=m"]


def test_a_clone_keeps_a_frozen_model_and_forgets_the_fit_of_a_plain_one(model, reference):
    frozen = FrozenEstimator(model)
    again = clone(CalibrationAuditor(frozen).fit(*reference))
    assert not hasattr(again, "bins_")
    assert again.fit(*reference).estimator_.estimator is model
    plain = clone(CalibrationAuditor(model)).fit(*reference)
    assert plain.estimator_ is not model


# Randomness and persistence


@pytest.mark.parametrize("fitted", [True, False])
def test_the_same_data_give_the_same_audit_whatever_the_random_state(model, reference, fitted):
    estimator = FrozenEstimator(model) if fitted else LogisticRegression()
    audits = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        audits.append(CalibrationAuditor(estimator).fit(*reference))
    assert_same_numbers(*audits)


def test_the_global_random_state_is_left_alone(model, reference):
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for estimator in (model, LogisticRegression()):
        audit = CalibrationAuditor(estimator).fit(*reference)
        audit.undersample(0.5, np.ones(400, bool), random_state=0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def dumped(audit, folder):
    joblib.dump(audit, folder / "audit.joblib")
    return joblib.load(folder / "audit.joblib")


@pytest.mark.parametrize("save", [lambda a, _: pickle.loads(pickle.dumps(a)), dumped])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_stored_audit_is_the_same(model, reference, tmp_path, save, recorded):
    X, y = reference
    audit = (
        CalibrationAuditor.from_predictions(y, model.predict_proba(X))
        if recorded
        else CalibrationAuditor(model, groups=0).fit(X.round(), y)
    )
    again = save(audit, tmp_path)
    assert_same_numbers(again, audit)
    assert again.suspicious_samples().tolist() == audit.suspicious_samples().tolist()
    mask = np.arange(len(y)) % 2 == 0
    assert_same_numbers(again.undersample(1, mask), audit.undersample(1, mask))
    if not recorded:
        np.testing.assert_equal(again.predict_uncertainty(X), audit.predict_uncertainty(X))


# Refusals


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_uncertainty", "score"])
def test_an_audit_of_recorded_predictions_cannot_predict(method):
    audit = CalibrationAuditor.from_predictions([0, 1] * 10, [[0.6, 0.4]] * 20)
    with pytest.raises(ValueError, match="has no model to predict with"):
        getattr(audit, method)([[1.0]], *([[0]] if method == "score" else []))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("predict", ([[1.0]],)),
        ("predict_proba", ([[1.0]],)),
        ("predict_uncertainty", ([[1.0]],)),
        ("score", ([[1.0]], [0])),
        ("suspicious_bins", ()),
        ("suspicious_samples", ()),
        ("detectable_gaps", ()),
        ("required_samples", (0.2,)),
        ("undersample", (0.5, [True])),
    ],
)
def test_nothing_is_known_before_the_audit(method, arguments):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(CalibrationAuditor(LogisticRegression()), method)(*arguments)


@pytest.mark.parametrize("estimator", [RidgeClassifier(), None, "logistic"])
def test_what_does_not_predict_probabilities_is_no_estimator(reference, estimator):
    with pytest.raises(TypeError, match="classifier with `predict_proba`"):
        CalibrationAuditor(estimator).fit(*reference)


def test_a_module_is_audited_by_the_softmax_of_its_logits(reference):
    X, y = reference
    module = nn.Linear(2, 2)
    proba = module(torch.tensor(X, dtype=torch.float32)).softmax(-1).detach().numpy()
    audit = CalibrationAuditor(module).fit(X, y)
    assert audit.ece_ == pytest.approx(CalibrationAuditor.from_predictions(y, proba).ece_)
    np.testing.assert_allclose(audit.predict_proba(X), proba, rtol=1e-5)


class Logits(Reporter):
    def predict_proba(self, X):
        return np.column_stack([X[:, 0], X[:, 0]]) * 3


def replaced(X, value):
    X = X.copy()
    X[3, 0] = value
    return X


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda X, y: (X[:9], y[:9]), "n_samples=9, but at least 10 are needed for n_bins=10"),
        (lambda X, y: (replaced(X, np.nan), y), "NaN"),
        (lambda X, y: (replaced(X, np.inf), y), "infinity"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, 2, y)), r"not among the classes: \[2\]"),
        (lambda X, y: (X, np.array(["a", "b"])[y]), "not among the classes"),
        (lambda X, y: (X[1:], y), "inconsistent numbers of samples"),
        (lambda X, y: (X[:, :1], y), "1 features"),
        (lambda X, y: (X, X[:, 0]), "Unknown label type"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, np.nan, y)), "Input y contains NaN"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, None, y)), "`y` must hold .* got missing"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, None, "a")), "`y` must hold .* got missing"),
        (
            lambda X, y: (X, pd.Series(np.where(X[:, 0] > 1, pd.NA, "a"), dtype="string")),
            "`y` must hold .* got missing",
        ),
        (lambda X, y: (X, np.column_stack([y, y])), "1d array"),
    ],
)
def test_what_is_no_reference_set_of_the_model_is_refused(model, reference, change, match):
    with pytest.raises(ValueError, match=match):
        CalibrationAuditor(model).fit(*change(*reference))


def test_a_model_that_reports_no_probabilities_is_refused(reference):
    with pytest.raises(ValueError, match="must"):
        CalibrationAuditor(Logits().fit(None, None)).fit(*reference)


@pytest.mark.parametrize("groups", ["sex", 2, ["0"], lambda X: X, lambda X: X[:9, 0].round()])
def test_groups_that_the_inputs_lack_are_refused(model, reference, groups):
    with pytest.raises(ValueError, match=r"[Cc]olumn|different values|inconsistent numbers"):
        CalibrationAuditor(model, groups=groups).fit(*reference)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"proba": np.full((20, 2), 0.4)}, "must sum to 1"),
        ({"y": [0, 7] * 10, "classes": [0, 1]}, r"not among the classes: \[7\]"),
        ({"groups": "sex"}, "pass the columns themselves as `sensitive_features`"),
        ({"sensitive_features": {"g": [0] * 19}}, "inconsistent numbers"),
        ({"sensitive_features": {"g": np.zeros((20, 2))}}, "one-dimensional"),
        ({"sensitive_features": {"id": [f"{k}" for k in range(300)]}}, "300 different values"),
        ({"n_bins": 21}, "n_samples=20, but at least 21"),
    ],
)
def test_malformed_recorded_predictions_are_refused(changes, match):
    given = {"y": [0, 1] * 10, "proba": [[0.6, 0.4]] * 20, **changes}
    with pytest.raises(ValueError, match=match):
        CalibrationAuditor.from_predictions(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_bins", 0),
        ("n_bins", 2.5),
        ("alpha", -0.1),
        ("alpha", 1.1),
        ("alpha", np.nan),
        ("strategy", "width"),
        ("confidence_level", 0),
        ("confidence_level", 1.0),
        ("groups", 1.5),
        ("search_regions", 1.5),
        ("search_regions", "all"),
        ("search_regions", 1),  # True, or a tolerance of 1
    ],
)
def test_bad_parameters_are_refused_when_they_are_used(model, reference, name, value):
    audit = CalibrationAuditor(model).fit(*reference).set_params(**{name: value})
    match = f"The '{name}' parameter of CalibrationAuditor must be"
    with pytest.raises(ValueError, match=match):
        audit.fit(*reference)
    with pytest.raises(ValueError, match=match):
        audit.undersample(0.5, np.ones(400, bool))
    if name != "groups":
        with pytest.raises(ValueError, match=match):
            CalibrationAuditor.from_predictions([0, 1] * 9, [[0.6, 0.4]] * 18, **{name: value})


def test_the_width_of_new_inputs_must_be_that_of_the_reference_set(model, reference):
    audit = CalibrationAuditor(model).fit(*reference)
    for method in (audit.predict, audit.predict_proba, audit.predict_uncertainty):
        with pytest.raises(ValueError, match="1 features, but CalibrationAuditor is expecting 2"):
            method(reference[0][:, :1])


def test_what_was_found_is_told_with_the_settings_that_found_it():
    y = np.repeat([0, 1], [1500, 500])
    proba = np.tile([0.6, 0.4], (2000, 1))
    audit = CalibrationAuditor.from_predictions(y, proba)
    before, gaps = audit_data(audit), audit.detectable_gaps()
    audit.set_params(alpha=0.3, n_bins=3, confidence_level=0.5, strategy="quantile")
    assert audit_data(audit) == before
    assert before["parameters"]["alpha"] == 0.05
    np.testing.assert_array_equal(audit.detectable_gaps(), gaps)
    again = audit.undersample(0.0, np.zeros(2000, bool))
    assert audit_data(again) == before


def test_a_class_of_a_single_sample_cannot_be_cross_validated():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.repeat([0, 1, 2], [20, 19, 1])
    with pytest.raises(ValueError, match=r"The class .*2.* has only one sample"):
        CalibrationAuditor(LogisticRegression()).fit(X, y)


@pytest.mark.parametrize("count", [2, 4])
def test_small_classes_are_cross_validated_with_fewer_folds(count):
    y = np.repeat(["a", "b", "c"], count)
    X = np.random.default_rng(0).normal(size=(len(y), 2)) + 9 * (y == "a")[:, None]
    audit = CalibrationAuditor(LogisticRegression(), n_bins=2).fit(X, y)
    folds = StratifiedKFold(count, shuffle=True, random_state=0)
    proba = cross_val_predict(LogisticRegression(), X, y, cv=folds, method="predict_proba")
    assert audit.confidence_ == pytest.approx(proba.max(axis=1).mean())


@pytest.mark.parametrize("frame", [True, False])
def test_a_model_that_refuses_a_column_of_groups_asks_for_sensitive_features(frame):
    X, sex = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    y, wider = (X[:, 0] > 0).astype(int), np.column_stack([X, sex])
    if frame:
        X, wider = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(wider, columns=[*"ab", "sex"])
    audit = CalibrationAuditor(LogisticRegression().fit(X, y), groups=["sex" if frame else 2])
    with pytest.raises(ValueError, match=r"2 features, but X has 3.*sensitive_features=") as caught:
        audit.fit(wider, y)
    assert "feature" in str(caught.value.__cause__)  # what the model itself said


@pytest.mark.parametrize("wrap", [np.asarray, list, pd.Series])
def test_one_attribute_may_come_without_a_name(wrap):
    audit = CalibrationAuditor.from_predictions(
        [0, 1] * 10, np.full((20, 2), 0.5), sensitive_features=wrap(["a", "b"] * 10)
    )
    assert list(audit.group_bins_) == ["group=a", "group=b"]


# Parameters have an effect, or are refused


@pytest.mark.parametrize(
    "change",
    [
        {"n_bins": 7},
        {"alpha": 0.2},
        {"strategy": "quantile"},
        {"groups": 0},
        {"confidence_level": 0.5},
        {"search_regions": True},
        {"search_regions": 0.3},
        {"estimator": LogisticRegression(C=1e-4)},
    ],
)
def test_each_parameter_changes_the_findings(model, reference, change):
    X, y = reference[0].round(), reference[1]
    default = audit_data(CalibrationAuditor(model).fit(X, y))
    changed = audit_data(CalibrationAuditor(**{"estimator": model, **change}).fit(X, y))
    for data in (default, changed):
        data.pop("parameters")
    assert changed != default


def test_arguments_without_effect_are_refused(model, reference):
    X, y = reference
    proba = model.predict_proba(X)
    sums = CalibrationAuditor.from_predictions(y, proba).sums_
    message = "groups=0 has no effect without X; pass the columns themselves"
    with pytest.raises(ValueError, match=message):
        CalibrationAuditor.from_predictions(y, proba, groups=0)
    with pytest.raises(ValueError, match=message):
        CalibrationAuditor.from_sums(sums, groups=0)
    with pytest.raises(ValueError, match="`search_regions` searches"):
        CalibrationAuditor.from_predictions(y, proba, X=X)
    with pytest.raises(ValueError, match="of at most 1,000 columns, got ndarray of shape"):
        CalibrationAuditor(Logits().fit(None, None), search_regions=True).fit(
            np.zeros((20, 1001)), np.arange(20) % 2
        )
