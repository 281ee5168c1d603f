"""The protocol: the walk to the estimator inside, the method form, and the result type."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import pipeline as sklearn_pipeline
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.validation import check_is_fitted, validate_data

import skuq
from skuq import Uncertainty, UncertaintyMixin, predict_uncertainty
from skuq.base import with_index_of


class Centroids(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Softmax of distances to class means; out-of-distribution inputs are far from all of them."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.classes_ = np.unique(y)
        self.means_ = np.array([X[y == label].mean(axis=0) for label in self.classes_])
        self.feature_importances_ = self.means_.var(axis=0)
        return self

    def _distances(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        return self.scale * ((X[:, None] - self.means_) ** 2).sum(axis=-1)

    def predict_proba(self, X):
        weights = np.exp(-self._distances(X))
        return (weights + 1e-9) / (weights + 1e-9).sum(axis=1, keepdims=True)

    def predict(self, X):
        nearest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[nearest]

    def predict_uncertainty(self, X):
        aleatoric = 1 - self.predict_proba(X).max(axis=1)
        parts = aleatoric, self._distances(X).min(axis=1)
        return with_index_of(X, Uncertainty.from_parts(*parts))


GRID = {"scale": [0.5, 1.0]}


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(60, 5, n_informative=3, class_sep=2, random_state=0)
    return 3 * X + 1, y


@pytest.fixture(scope="module")
def X(data):
    return data[0]


@pytest.fixture(scope="module")
def fitted(data):
    return Centroids().fit(*data)


def assert_same(actual, expected):
    assert isinstance(actual, Uncertainty)
    for part, wanted in zip(actual.parts, expected.parts, strict=True):
        np.testing.assert_array_equal(part, wanted)


def scaled(*steps):
    return sklearn_pipeline.make_pipeline(StandardScaler(), *steps)


def of_last_step(pipe, X):
    *before, last = (step for _, step in pipe.steps if step != "passthrough")
    for step in before:
        X = step.transform(X)
    return last.predict_uncertainty(X)


def of_attribute(name):
    return lambda wrapper, X: getattr(wrapper, name).predict_uncertainty(X)


#: Wrappers by what they must give: that of the estimator inside, on the columns that it gets.
WRAPPERS = {
    "pipeline": (scaled(MinMaxScaler(), Centroids()), of_last_step),
    "passthrough": (
        sklearn_pipeline.Pipeline(
            [("no", "passthrough"), ("scaler", StandardScaler()), ("last", Centroids())]
        ),
        of_last_step,
    ),
    "nested": (
        scaled(sklearn_pipeline.make_pipeline(MinMaxScaler(), Centroids())),
        lambda pipe, X: of_last_step(pipe[-1], pipe[0].transform(X)),
    ),
    "grid": (GridSearchCV(Centroids(), GRID, cv=2), of_attribute("best_estimator_")),
    "random": (
        RandomizedSearchCV(Centroids(), GRID, n_iter=2, cv=2, random_state=0),
        of_attribute("best_estimator_"),
    ),
    "halving": (
        HalvingGridSearchCV(Centroids(), GRID, cv=2, random_state=0),
        of_attribute("best_estimator_"),
    ),
    "search of pipelines": (
        GridSearchCV(scaled(Centroids()), {"centroids__scale": [0.5, 1.0]}, cv=2),
        lambda search, X: of_last_step(search.best_estimator_, X),
    ),
    "fixed": (FixedThresholdClassifier(Centroids(), threshold=0.3), of_attribute("estimator_")),
    "tuned": (TunedThresholdClassifierCV(Centroids(), cv=2), of_attribute("estimator_")),
    "elimination": (
        RFE(Centroids(), n_features_to_select=2),
        lambda rfe, X: rfe.estimator_.predict_uncertainty(X[:, rfe.support_]),
    ),
    "elimination in folds": (
        RFECV(Centroids(), cv=2),
        lambda rfe, X: rfe.estimator_.predict_uncertainty(X[:, rfe.support_]),
    ),
    "calibrated": (
        CalibratedClassifierCV(Centroids(), ensemble=False, cv=2),
        lambda wrapper, X: wrapper.calibrated_classifiers_[0].estimator.predict_uncertainty(X),
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_the_estimator_inside_and_frozen_too(data, X, name):
    wrapper, by_hand = WRAPPERS[name]
    wrapper = clone(wrapper).fit(*data)
    assert_same(predict_uncertainty(wrapper, X), by_hand(wrapper, X))
    assert_same(predict_uncertainty(FrozenEstimator(wrapper), X), by_hand(wrapper, X))


def test_wrappers_of_a_fitted_model_ask_that_model(data, fitted, X):
    other = Centroids(scale=0.25).fit(*data)
    calibrated = CalibratedClassifierCV(FrozenEstimator(other)).fit(*data)
    assert_same(predict_uncertainty(calibrated, X), other.predict_uncertainty(X))
    fixed = FixedThresholdClassifier(fitted)  # which needs no fit
    assert fixed.predict(X).shape == (len(X),)
    for wrapper in (fixed, FrozenEstimator(fitted), fitted):
        assert_same(predict_uncertainty(wrapper, X), fitted.predict_uncertainty(X))


def test_self_training_asks_the_model_trained_on_pseudo_labels(data, X, fitted):
    y = np.where(np.arange(len(X)) % 3 == 0, -1, data[1])
    trained = SelfTrainingClassifier(Centroids(), threshold=0.6).fit(X, y)
    result = predict_uncertainty(trained, X)
    assert_same(result, trained.estimator_.predict_uncertainty(X))
    assert not np.array_equal(result.epistemic, fitted.predict_uncertainty(X).epistemic)


def test_column_names_reach_the_final_step_under_set_output(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcde"))
    pipe = scaled(Centroids()).set_output(transform="pandas").fit(frame, y)
    assert list(pipe[-1].feature_names_in_) == list("abcde")
    assert_same(predict_uncertainty(pipe, frame), of_last_step(pipe, frame))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LogisticRegression(), "^LogisticRegression: Log"),
        (BaggingClassifier(Centroids(), n_estimators=2), "^BaggingClassifier: Bag"),
        (VotingClassifier([("a", Centroids()), ("b", Centroids())]), "^VotingClassifier: Vot"),
        (
            GridSearchCV(scaled(BaggingClassifier(Centroids(), n_estimators=2)), {}, cv=2),
            "^GridSearchCV -> Pipeline -> BaggingClassifier: Bag",
        ),
        (CalibratedClassifierCV(Centroids(), ensemble=True, cv=3), "3 models.*ensemble=False"),
        (GridSearchCV(Centroids(), GRID, cv=2, refit=False), "refit=True"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_estimators_without_one_uncertainty_inside_are_refused_by_path(data, estimator, message):
    with pytest.raises(TypeError, match=message):
        predict_uncertainty(clone(estimator).fit(*data), data[0])


def test_neither_a_class_nor_a_classifier_with_its_own_refit_is_taken_for_a_fitted_one(X):
    with pytest.raises(TypeError, match="class Centroids"):
        predict_uncertainty(Centroids, X)
    with pytest.raises(TypeError, match="LogisticRegressionCV has no method"):
        predict_uncertainty(LogisticRegressionCV(cv=2, refit=False), X)


@pytest.mark.parametrize(
    "estimator",
    [
        *(Centroids(), scaled(Centroids()), skuq.make_pipeline(StandardScaler(), Centroids())),
        *(GridSearchCV(Centroids(), GRID), GridSearchCV(Centroids(), GRID, refit=False)),
        *(FixedThresholdClassifier(Centroids()), TunedThresholdClassifierCV(Centroids())),
        *(SelfTrainingClassifier(Centroids()), RFE(Centroids())),
        *(CalibratedClassifierCV(Centroids()), FrozenEstimator(scaled(Centroids()))),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_what_is_not_fitted_says_so(estimator, X):
    with pytest.raises(NotFittedError):
        predict_uncertainty(estimator, X)


LEADING = [
    *(Centroids(), GridSearchCV(Centroids(), GRID), RFE(Centroids())),
    sklearn_pipeline.make_pipeline(MinMaxScaler(), Centroids()),
    CalibratedClassifierCV(Centroids(), ensemble=False),
    FrozenEstimator(scaled(Centroids())),
]
NOT_LEADING = [
    *(LogisticRegression(), GridSearchCV(LogisticRegression(), {}), CalibratedClassifierCV()),
    *(BaggingClassifier(Centroids()), SelectFromModel(Centroids()), "passthrough"),
]


def test_the_pipeline_has_the_method_if_its_final_step_leads_to_it():
    for final in LEADING + NOT_LEADING:
        pipe = skuq.make_pipeline(StandardScaler(), final)
        assert hasattr(pipe, "predict_uncertainty") == (final in LEADING), final


def test_the_pipeline_method_gives_what_the_function_gives(data, X):
    pipe = skuq.make_pipeline(StandardScaler(), Centroids(scale=0.5)).fit(*data)
    by_hand = of_last_step(pipe, X)
    restored = pickle.loads(pickle.dumps(pipe))
    for found in (pipe.predict_uncertainty(X), restored.predict_uncertainty(X)):
        assert_same(found, by_hand)
    assert_same(predict_uncertainty(pipe, X), by_hand)
    np.testing.assert_array_equal(scaled(pipe[-1]).fit(*data).score_samples(X), -by_hand.epistemic)
    copy = clone(pipe)
    assert isinstance(copy, skuq.Pipeline)
    assert copy[-1].scale == 0.5
    with pytest.raises(NotFittedError):
        copy.predict_uncertainty(X)


def test_the_method_works_with_a_search_as_final_step_and_inside_one(data, X):
    search = GridSearchCV(Centroids(), GRID, cv=2)
    pipe = skuq.make_pipeline(StandardScaler(), search).fit(*data)
    best = pipe[-1].best_estimator_
    assert_same(pipe.predict_uncertainty(X), best.predict_uncertainty(pipe[0].transform(X)))
    around = GridSearchCV(pipe, {"gridsearchcv__cv": [2, 3]}, cv=2).fit(*data)
    assert isinstance(around.best_estimator_, skuq.Pipeline)
    assert_same(predict_uncertainty(around, X), around.best_estimator_.predict_uncertainty(X))


def test_make_pipeline_names_steps_and_passes_options_on():
    pipe = skuq.make_pipeline(StandardScaler(), Centroids(), memory="folder", verbose=True)
    assert isinstance(pipe, skuq.Pipeline)
    assert list(pipe.named_steps) == ["standardscaler", "centroids"]
    assert (pipe.memory, pipe.verbose) == ("folder", True)


PARTS = arrays(np.float64, (2, 5), elements=st.floats(-1e300, 1e300))


@given(PARTS)
def test_parts_given_add_up_to_the_total(parts):
    u = Uncertainty.from_parts(*parts)
    np.testing.assert_array_equal(u.aleatoric, parts[0])
    np.testing.assert_array_equal(u.epistemic, parts[1])
    np.testing.assert_array_equal(u.total, parts[0] + parts[1])


@given(arrays(np.float32, (2, 5), elements=st.floats(0, 1e6, width=32)))
def test_parts_in_single_precision_are_added_in_double_precision(parts):
    u = Uncertainty.from_parts(*parts)
    assert {part.dtype for part in u.parts} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(u.total, parts.astype(np.float64).sum(axis=0))


def test_a_data_frame_of_the_result_has_its_fields_as_columns(fitted, X):
    u = fitted.predict_uncertainty(X[:3])
    frame = u.to_frame(index=["a", "b", "c"])
    assert list(frame.columns) == ["total", "aleatoric", "epistemic"]
    assert list(frame.index) == ["a", "b", "c"]
    assert list(u.to_frame().index) == [0, 1, 2]
    for name in frame:
        np.testing.assert_array_equal(frame[name], getattr(u, name))


def test_rows_are_taken_of_all_parts_and_of_the_index(fitted, X):
    frame = pd.DataFrame(X[:6], index=list("uvwxyz"))
    u = fitted.predict_uncertainty(frame)
    assert len(u) == 6
    mask = np.arange(6) % 2 == 0
    for rows in (slice(1, 4), [3, 0, 3], mask, pd.Series([True] * 2 + [False] * 4)):
        chosen = frame.to_numpy()[rows]
        assert_same(u[rows], fitted.predict_uncertainty(chosen))
        assert len(u[rows]) == len(chosen)
        np.testing.assert_array_equal(u[rows].index, frame.index[rows])
    for rows in (9, -7, "total", (0, 1), [[0, 1]]):
        with pytest.raises(IndexError):
            u[rows]


def test_length_iteration_and_numbers_agree_on_the_rows(fitted, X):
    u = fitted.predict_uncertainty(pd.DataFrame(X[:6], index=list("uvwxyz")))
    rows = list(u)
    assert [u[i] for i in range(len(u))] == rows == [*reversed(u)][::-1]
    assert u[-1] == u[np.int64(5)] == rows[5]
    for i, row in enumerate(rows):
        assert row._asdict() == {name: getattr(u, name)[i] for name in row._fields}
        assert {type(value) for value in row} == {float}
    for part, column in zip(u.parts, zip(*rows, strict=True), strict=True):
        np.testing.assert_array_equal(part, column)
    np.testing.assert_array_equal(np.asarray(u), u.to_frame())


def test_pandas_takes_the_rows_with_the_names_of_their_parts(fitted, X):
    u = fitted.predict_uncertainty(X[:5])
    pd.testing.assert_frame_equal(pd.DataFrame(u), u.to_frame())
    assert pd.Series(u).tolist() == list(u)


def test_notebooks_show_the_first_rows_and_escape_their_labels(fitted, X):
    frame = pd.DataFrame(X[:25], index=[f"<i>{i}</i>" for i in range(25)])
    shown = fitted.predict_uncertainty(frame)._repr_html_()
    assert "25 rows" in shown
    assert "&lt;i&gt;9&lt;/i&gt;" in shown
    assert "<i>" not in shown
    assert "10&lt;" not in shown
    assert all(f"<th>{name}</th>" in shown for name in ("total", "aleatoric", "epistemic"))
    of_actions = Uncertainty.from_parts(np.zeros((3, 2)), np.zeros((3, 2)))
    assert of_actions._repr_html_() is None


def test_results_are_equal_if_their_parts_are_and_survive_pickling(fitted, X):
    u = fitted.predict_uncertainty(pd.DataFrame(X))
    copy = pickle.loads(pickle.dumps(u))
    assert copy == u
    assert copy.index.equals(u.index)
    assert u != u[:3]
    assert u != tuple(u)
    assert repr(u[:1]).startswith("Uncertainty(total=array(")


def test_the_index_of_the_inputs_is_kept_by_function_and_methods(data):
    X, y = data
    frame = pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))])
    pipe = skuq.make_pipeline(StandardScaler(), Centroids()).fit(frame, y)
    results = [predict_uncertainty(pipe, frame), pipe.predict_uncertainty(frame)]
    results.append(predict_uncertainty(Centroids().fit(frame, y), frame))
    for u in results:
        pd.testing.assert_index_equal(u.to_frame().index, frame.index)
    assert predict_uncertainty(pipe, X).index is None


def test_parts_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="shapes"):
        Uncertainty.from_parts([0.5, 0.25], [0.0])


class Pickled(UncertaintyMixin):
    """An estimator with a state, or without any."""

    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(np.zeros(len(X)), np.zeros(len(X)))


@pytest.mark.parametrize("state", [{}, {"coef_": 1.0}])
def test_pickles_hold_a_version_that_is_no_attribute(state):
    made = Pickled()
    vars(made).update(state)
    for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert vars(twin) == state


@pytest.mark.parametrize("version", ["0.0.9", "0.10.0", "1.1.0", None])
def test_pickles_of_another_version_are_refused(monkeypatch, version):
    if version is None:  # one without a stamp
        monkeypatch.setattr(Pickled, "__getstate__", lambda self: {"coef_": 1.0})
    else:
        monkeypatch.setattr("skuq.base.__version__", version)
    content = pickle.dumps(Pickled())
    monkeypatch.setattr("skuq.base.__version__", "0.1.0")
    with pytest.raises(ValueError, match="pickled by"):
        pickle.loads(content)


def test_pickles_of_another_patch_are_taken(monkeypatch):
    monkeypatch.setattr("skuq.base.__version__", "0.1.7")
    made = Pickled()
    made.coef_ = 1.0
    content = pickle.dumps(made)
    monkeypatch.setattr("skuq.base.__version__", "0.1.0")
    assert vars(pickle.loads(content)) == {"coef_": 1.0}
