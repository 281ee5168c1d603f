"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import RFE
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skuq import (
    AnchoredQuantileRegressor,
    CalibrationAuditor,
    DeepEnsembleClassifier,
    EvidentialProbe,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    RobustGPC,
    SGMCMCClassifier,
)
from skuq.metrics import (
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from skuq.quam import PoolSearch

IRIS = load_iris(return_X_y=True)
FROZEN = FrozenEstimator(LogisticRegression(max_iter=999).fit(*IRIS))
FROZEN_NET = FrozenEstimator(
    MLPRegressor(hidden_layer_sizes=(5,), max_iter=300, random_state=0).fit(IRIS[0], IRIS[0][:, 3])
)

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


# --- sample weights and where they reach ----------------------------------------------------------


def _twice(estimator, y, **fit_params):
    """Epistemic parts with rows of weight 1, of weight 2, and with all rows twice."""
    X = IRIS[0]
    fitted = [
        clone(estimator).fit(X, y, sample_weight=np.ones(len(y)), **fit_params),
        clone(estimator).fit(X, y, sample_weight=np.full(len(y), 2.0), **fit_params),
        clone(estimator).fit(X.repeat(2, axis=0), y.repeat(2), **fit_params),
    ]
    return [each.predict_uncertainty(X[::7] + 0.3).epistemic for each in fitted]


@pytest.mark.parametrize(
    ("estimator", "counts"),
    [
        (QUAMClassifier(FROZEN, search=PoolSearch(n_steps=20, train_batch_size=999)), True),
        (QUAMRegressor(FROZEN_NET, search=PoolSearch(n_steps=20, train_batch_size=999)), True),
        (EvidentialProbe(FROZEN, max_epochs=5), False),
        (FeatureDistanceClassifier(FROZEN, n_neighbors=5), True),
        (FeatureDistanceClassifier(FROZEN, distance="mahalanobis"), True),
        (LaplaceClassifier(FROZEN, n_samples=20), True),
        (RobustGPC(max_iter=2), True),
        (AnchoredQuantileRegressor(max_epochs=5, batch_size=999), True),
    ],
    ids=lambda each: "".join(str(each).split()),
)
def test_a_weight_of_2_is_the_sample_twice(estimator, counts):
    """Weights meant proportions in some estimators, and counts in others, of one protocol."""
    quam = isinstance(estimator, QUAMClassifier | QUAMRegressor)
    y = IRIS[0][:, 3] + 0.1 * IRIS[1] if is_regressor(estimator) else IRIS[1]
    pool = {"X_pool": IRIS[0][::5] * 1.5} if quam else {}
    once, heavier, repeated = _twice(estimator.set_params(random_state=0), y, **pool)
    np.testing.assert_allclose(heavier, repeated, rtol=1e-4, atol=1e-6)
    assert np.allclose(once, heavier, rtol=1e-3) is not counts


@pytest.mark.parametrize("huge", [1e300, 1e308])
def test_weights_without_a_sum_are_refused(huge):
    """Weights that overflow gave ECE nan and Brier score 0.0."""
    y, proba = np.array([0, 1, 1]), np.array([[0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    for metric in (expected_calibration_error, brier_score, negative_log_likelihood):
        with pytest.raises(ValueError, match="sum of `sample_weight` is too large"):
            metric(y, proba, sample_weight=[huge, huge, 1.0])


def test_the_area_under_risk_and_coverage_warns_of_proportions():
    """Weights that add up to 1 make one sample, at which the coverage of this metric starts."""
    given = [0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8]
    with pytest.warns(UserWarning, match="A weight is a number of samples"):
        area_under_risk_coverage(*given, sample_weight=[0.02, 0.03, 0.02, 0.03])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        area_under_risk_coverage(*given, sample_weight=[0.1, 0.1, 0.1, 0.1])
        # What is left out does not count in the mean.
        area_under_risk_coverage(*given, sample_weight=[0, 0, 0, 1.0])


def _asked(model):
    """The model, which requests weights where metadata are routed."""
    if not sklearn.get_config()["enable_metadata_routing"]:
        return model
    return model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)


def _scaler():
    scaler, routes = StandardScaler(), sklearn.get_config()["enable_metadata_routing"]
    return scaler.set_fit_request(sample_weight=False) if routes else scaler


FORMS = {
    "bare": _asked,
    "pipeline": lambda model: make_pipeline(_scaler(), _asked(model)),
    "search": lambda model: GridSearchCV(_asked(model), {"verbose": [0]}, cv=2),
    "search of pipelines": lambda model: GridSearchCV(
        make_pipeline(_scaler(), _asked(model)), {f"{type(model).__name__.lower()}__verbose": [0]}
    ),
}
LOGISTIC, TREES = LogisticRegression(), HistGradientBoostingClassifier(max_iter=3)
SHORT = {"search": PoolSearch(n_steps=2), "random_state": 0}
WRAPPERS = {
    "QUAM, network": lambda form: QUAMClassifier(form(LOGISTIC), **SHORT),
    "QUAM, refit": lambda form: QUAMClassifier(form(TREES), random_state=0),
    "QUAM, points": lambda form: QUAMClassifier(form(LOGISTIC), search="pointwise", random_state=0),
    "QUAM, quantities": lambda form: QUAMRegressor(
        form(HistGradientBoostingRegressor(max_iter=3)),
        noise="homoscedastic",
        noise_cv=2,
        random_state=0,
    ),
    "probe": lambda form: EvidentialProbe(form(LOGISTIC), max_epochs=2, random_state=0),
    "reference": lambda form: ReferenceClassifier(form(LOGISTIC), random_state=0),
    "Laplace": lambda form: LaplaceClassifier(form(LOGISTIC), n_samples=2, random_state=0),
    "ensemble": lambda form: DeepEnsembleClassifier(form(LOGISTIC), n_members=2, random_state=0),
    "distance": lambda form: FeatureDistanceClassifier(form(LOGISTIC), random_state=0),
    "chains": lambda form: SGMCMCClassifier(
        form(LOGISTIC), n_chains=2, n_samples=1, steps_per_sample=1, random_state=0
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_reach_the_model_inside_whether_or_not_metadata_are_routed(wrapper, form):
    """A pipeline inside a meta-estimator lost its weights (scikit-learn issues 18159 and 21134)."""
    if wrapper == "chains":
        pytest.importorskip("posteriors")
    X, y = IRIS[0][::2], IRIS[1][::2]
    weight = np.where(y == 1, 5.0, 1.0)
    found = []
    for routes in (False, True):
        with sklearn.config_context(enable_metadata_routing=routes):
            model = WRAPPERS[wrapper](FORMS[form]).fit(X, y, sample_weight=weight)
        output = getattr(model, "predict_proba", model.predict)(X)
        u = model.predict_uncertainty(X[::9])
        found.append((output, u.epistemic))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    plain = WRAPPERS[wrapper](FORMS[form]).fit(X, y)
    output = getattr(plain, "predict_proba", plain.predict)(X)
    assert np.abs(output - found[0][0]).max() > 1e-3


@pytest.mark.parametrize(
    "learner",
    [
        CalibratedClassifierCV(SVC(), cv=2),
        AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=2),
        BaggingClassifier(LogisticRegression(), n_estimators=2),
        VotingClassifier([("a", LogisticRegression()), ("b", "drop")], voting="soft"),
        StackingClassifier([("a", LogisticRegression())], cv=2),
        make_pipeline(StandardScaler(), RFE(LogisticRegression(), n_features_to_select=2)),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("routes", [False, True])
def test_weights_of_the_search_need_no_request_of_the_user(learner, routes):
    """Nobody gave weights, and models inside were asked whether they take some (issue 30818)."""
    X, y = IRIS[0][::2], IRIS[1][::2]
    with sklearn.config_context(enable_metadata_routing=routes):
        quam = QUAMClassifier(learner, n_targets=2, random_state=0).fit(X, y)
    assert quam.predict_uncertainty(X[::9]).epistemic.max() > 0


@pytest.mark.parametrize(
    "learner",
    [
        VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft"),
        StackingClassifier([("a", LogisticRegression())], cv=2),
        RFE(LogisticRegression(), n_features_to_select=2),
    ],
    ids=lambda each: type(each).__name__,
)
def test_learners_that_pass_weights_on_are_given_them(learner):
    """Voting and stacking have no `sample_weight` in their signature (scikit-learn PR 27584)."""
    X, y = IRIS
    weight = np.where(y == 1, 9.0, 1.0)
    quam = QUAMClassifier(learner, random_state=0).fit(X, y, sample_weight=weight)
    expected = clone(learner).fit(X, y, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(quam.predict_proba(X), expected, atol=1e-9)


@pytest.mark.parametrize("requests", [None, False])
def test_a_model_that_does_not_request_weights_is_told_how(requests):
    """A missing request ended in an error that named internals (scikit-learn issue 30937)."""
    with sklearn.config_context(enable_metadata_routing=True):
        model = LogisticRegression()
        if requests is not None:
            model.set_fit_request(sample_weight=requests)
        quam = QUAMClassifier(make_pipeline(_scaler(), model))
        with pytest.raises(ValueError, match=r"set_fit_request") as caught:
            quam.fit(*IRIS, sample_weight=np.ones(150))
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "set_fit_request(sample_weight=True)" in told


def test_an_audit_counts_weights_as_the_metrics_do():
    """Metrics took weights and the audit of the same predictions took none."""
    X, y = IRIS
    proba, weight = FROZEN.predict_proba(X), np.random.default_rng(0).integers(0, 4, len(y))
    audit = CalibrationAuditor.from_predictions(y, proba, sample_weight=weight)
    repeated = CalibrationAuditor(FROZEN).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_array_equal(audit.bins_.p_value, repeated.bins_.p_value)
    assert audit.ece_ == pytest.approx(expected_calibration_error(y, proba, sample_weight=weight))


# --- reinforcement learning -----------------------------------------------------------------------


# --- units of features, and bounds ----------------------------------------------------------------


# --- modules of torch as people write them --------------------------------------------------------


# --- empty, odd and large inputs ------------------------------------------------------------------


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
