"""The protocol: the walk to the estimator inside, methods, results, and those of other folds."""

import copy
import pickle
from time import sleep

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from joblib import parallel_config
from sklearn import config_context
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
    LeaveOneGroupOut,
    RandomizedSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
)
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

import skuq
from skuq import (
    Uncertainty,
    UncertaintyMixin,
    cross_val_predict_uncertainty,
    predict_uncertainty,
)
from skuq._progress import progress
from skuq.base import with_index_of
from skuq.wrappers import unwrap
from tests.metrics.problems import EntropicLogisticRegression, noisy_problem


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
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_uncertainty(self, X):
        aleatoric = 1 - self.predict_proba(X).max(axis=1)
        u = Uncertainty.from_parts(aleatoric, self._distances(X).min(axis=1))
        return with_index_of(X, u)


GRID = {"scale": [0.5, 1.0]}
X, Y = make_classification(60, 5, n_informative=3, class_sep=2, random_state=0)
X = 3 * X + 1
FITTED = Centroids().fit(X, Y)
FRAME = pd.DataFrame(X, index=[f"<i>{i}</i>" for i in range(60)])


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


def of_kept_columns(rfe, X):
    return rfe.estimator_.predict_uncertainty(X[:, rfe.support_])


#: Wrappers by what they must give: that of the estimator inside, on the columns that it gets.
BEST, INSIDE = of_attribute("best_estimator_"), of_attribute("estimator_")
WRAPPERS = {
    "pipeline": (scaled(MinMaxScaler(), Centroids()), of_last_step),
    "passthrough": (scaled("passthrough", Centroids()), of_last_step),
    "only step": (sklearn_pipeline.make_pipeline(Centroids()), of_last_step),
    "nested": (
        scaled(sklearn_pipeline.make_pipeline(MinMaxScaler(), Centroids())),
        lambda pipe, X: of_last_step(pipe[-1], pipe[0].transform(X)),
    ),
    "no attributes": (scaled(FunctionTransformer(np.square), Centroids()), of_last_step),
    "grid": (GridSearchCV(Centroids(), GRID, cv=2), BEST),
    "random": (RandomizedSearchCV(Centroids(), GRID, n_iter=2, cv=2, random_state=0), BEST),
    "halving": (HalvingGridSearchCV(Centroids(), GRID, cv=2, random_state=0), BEST),
    "search of pipelines": (
        GridSearchCV(scaled(Centroids()), {"centroids__scale": [0.5, 1.0]}, cv=2),
        lambda search, X: of_last_step(search.best_estimator_, X),
    ),
    "fixed": (FixedThresholdClassifier(Centroids(), threshold=0.3), INSIDE),
    "tuned": (TunedThresholdClassifierCV(Centroids(), cv=2), INSIDE),
    "elimination": (RFE(Centroids(), n_features_to_select=2), of_kept_columns),
    "elimination in folds": (RFECV(Centroids(), cv=2), of_kept_columns),
    "calibrated": (
        CalibratedClassifierCV(Centroids(), ensemble=False, cv=2),
        lambda wrapper, X: wrapper.calibrated_classifiers_[0].estimator.predict_uncertainty(X),
    ),
    "self-training": (SelfTrainingClassifier(Centroids(), threshold=0.6), INSIDE),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_the_estimator_inside_and_frozen_too(name):
    wrapper, by_hand = WRAPPERS[name]
    wrapper = clone(wrapper)
    while (inside := unwrap(wrapper, fitted=False)) is not None:  # the one that was given
        wrapper = inside.estimator
    assert wrapper.get_params() == Centroids().get_params()
    pseudo = np.where(np.arange(60) % 3 == 0, -1, Y) if name == "self-training" else Y
    wrapper = clone(WRAPPERS[name][0]).fit(X, pseudo)
    assert unwrap(wrapper, fitted=False).transform is None
    transformed = pickle.loads(pickle.dumps(unwrap(wrapper)))
    given = X if transformed.transform is None else transformed.transform(X)
    for found in (wrapper, FrozenEstimator(wrapper)):
        assert_same(predict_uncertainty(found, X), by_hand(wrapper, X))
    assert_same(predict_uncertainty(transformed.estimator, given), by_hand(wrapper, X))
    if name == "self-training":
        assert predict_uncertainty(wrapper, X) != FITTED.predict_uncertainty(X)


def test_some_wrappers_need_no_fit_or_ask_a_fitted_model_and_other_things_are_none():
    others = [FITTED, LogisticRegressionCV(), BaggingClassifier(FITTED), nn.Linear(2, 2), None]
    for fitted in (True, False):
        for wrap in (FrozenEstimator, FixedThresholdClassifier):
            assert unwrap(wrap(FITTED), fitted=fitted) == (FITTED, None)
        for other in [*others, "passthrough"]:
            assert unwrap(other, fitted=fitted) is None
    other = Centroids(scale=0.25).fit(X, Y)
    calibrated = CalibratedClassifierCV(FrozenEstimator(other)).fit(X, Y)
    assert_same(predict_uncertainty(calibrated, X), other.predict_uncertainty(X))
    for wrapper in (FixedThresholdClassifier(FITTED), FrozenEstimator(FITTED), FITTED):
        assert_same(predict_uncertainty(wrapper, X), FITTED.predict_uncertainty(X))


def test_column_names_reach_the_final_step_under_set_output():
    frame = FRAME.set_axis(list("abcde"), axis=1)
    pipe = scaled(Centroids()).set_output(transform="pandas").fit(frame, Y)
    assert list(pipe[-1].feature_names_in_) == list("abcde")
    assert_same(predict_uncertainty(pipe, frame), of_last_step(pipe, frame))


BAGGING = BaggingClassifier(Centroids(), n_estimators=2)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LogisticRegression().fit(X, Y), "^LogisticRegression: Log"),
        (clone(BAGGING).fit(X, Y), "^BaggingClassifier: Bag"),
        (VotingClassifier([("a", Centroids())]).fit(X, Y), "^VotingClassifier: Vot"),
        (
            GridSearchCV(scaled(BAGGING), {}, cv=2).fit(X, Y),
            "^GridSearchCV -> Pipeline -> BaggingClassifier: Bag",
        ),
        (CalibratedClassifierCV(Centroids(), cv=3).fit(X, Y), "3 models.*ensemble=False"),
        (GridSearchCV(Centroids(), GRID, cv=2, refit=False).fit(X, Y), "refit=True"),
        (Centroids, "class Centroids"),
        (LogisticRegressionCV(cv=2, refit=False), "LogisticRegressionCV has no method"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_estimators_without_one_uncertainty_inside_are_refused_by_path(estimator, message):
    with pytest.raises(TypeError, match=message):
        predict_uncertainty(estimator, X)


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
def test_what_is_not_fitted_says_so(estimator):
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


def test_the_pipeline_has_the_method_if_its_final_step_leads_to_it_as_the_function_gives():
    for final in LEADING + NOT_LEADING:
        pipe = skuq.make_pipeline(StandardScaler(), final)
        assert hasattr(pipe, "predict_uncertainty") == (final in LEADING), final
    pipe = skuq.make_pipeline(StandardScaler(), Centroids(scale=0.5)).fit(X, Y)
    by_hand = of_last_step(pipe, X)
    for found in (pipe, pickle.loads(pickle.dumps(pipe))):
        assert_same(found.predict_uncertainty(X), by_hand)
    assert_same(predict_uncertainty(pipe, X), by_hand)
    np.testing.assert_array_equal(scaled(pipe[-1]).fit(X, Y).score_samples(X), -by_hand.epistemic)
    copy = clone(skuq.make_pipeline(pipe[0], pipe[-1], memory="folder", verbose=True))
    assert isinstance(copy, skuq.Pipeline)
    assert (copy[-1].scale, copy.memory, copy.verbose) == (0.5, "folder", True)
    with pytest.raises(NotFittedError):
        copy.predict_uncertainty(X)


def test_the_method_works_with_a_search_as_final_step_and_inside_one():
    pipe = skuq.make_pipeline(StandardScaler(), GridSearchCV(Centroids(), GRID, cv=2)).fit(X, Y)
    best = pipe[-1].best_estimator_
    assert_same(pipe.predict_uncertainty(X), best.predict_uncertainty(pipe[0].transform(X)))
    around = GridSearchCV(pipe, {"gridsearchcv__cv": [2, 3]}, cv=2).fit(X, Y)
    assert isinstance(around.best_estimator_, skuq.Pipeline)
    assert_same(predict_uncertainty(around, X), around.best_estimator_.predict_uncertainty(X))


SINGLE = arrays(np.float32, (2, 5), elements=st.floats(0, 1e6, width=32))


@given(arrays(np.float64, (2, 5), elements=st.floats(-1e300, 1e300)) | SINGLE)
def test_parts_add_up_to_the_total_in_double_precision(parts):
    u, parts = Uncertainty.from_parts(*parts), parts.astype(np.float64)
    assert {part.dtype for part in u.parts} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(u.parts, [parts[0] + parts[1], *parts])


def test_rows_are_taken_of_all_parts_and_of_the_index():
    u = FITTED.predict_uncertainty(FRAME[:6])
    mask = np.arange(6) % 2 == 0
    for rows in (slice(1, 4), [3, 0, 3], mask, pd.Series([True] * 2 + [False] * 4)):
        assert_same(u[rows], FITTED.predict_uncertainty(X[:6][rows]))
        np.testing.assert_array_equal(u[rows].index, FRAME.index[:6][rows])
        assert len(u[rows]) == len(X[:6][rows])
    for rows in (9, -7, "total", (0, 1), [[0, 1]]):
        with pytest.raises(IndexError):
            u[rows]


def test_length_iteration_numbers_and_frames_agree_on_the_rows():
    u = FITTED.predict_uncertainty(FRAME[:6])
    rows = list(u)
    assert [u[i] for i in range(len(u))] == rows == [*reversed(u)][::-1]
    assert u[-1] == u[np.int64(5)] == rows[5]
    assert {type(value) for row in rows for value in row} == {float}
    np.testing.assert_array_equal(np.transpose(rows), u.parts)
    expected = pd.DataFrame({n: getattr(u, n) for n in ("total", "aleatoric", "epistemic")})
    pd.testing.assert_frame_equal(pd.DataFrame(map(type(rows[0])._asdict, rows)), expected)
    pd.testing.assert_frame_equal(pd.DataFrame(u), expected)
    pd.testing.assert_frame_equal(u.to_frame(), expected.set_axis(FRAME.index[:6]))
    pd.testing.assert_frame_equal(u.to_frame(index=range(6)), expected)
    np.testing.assert_array_equal(np.asarray(u), expected)
    assert pd.Series(u).tolist() == rows


def test_notebooks_show_the_first_rows_and_escape_their_labels():
    shown = FITTED.predict_uncertainty(FRAME[:25])._repr_html_()
    assert "25 rows" in shown
    assert "&lt;i&gt;9&lt;/i&gt;" in shown
    assert "<i>" not in shown
    assert "10&lt;" not in shown
    assert all(f"<th>{name}</th>" in shown for name in ("total", "aleatoric", "epistemic"))
    assert Uncertainty.from_parts(np.zeros((3, 2)), np.zeros((3, 2)))._repr_html_() is None


def test_results_keep_the_index_are_equal_if_their_parts_are_and_survive_pickling():
    pipe = skuq.make_pipeline(StandardScaler(), Centroids()).fit(FRAME, Y)
    results = [predict_uncertainty(pipe, FRAME), pipe.predict_uncertainty(FRAME)]
    for u in [*results, predict_uncertainty(Centroids().fit(FRAME, Y), FRAME)]:
        pd.testing.assert_index_equal(u.to_frame().index, FRAME.index)
    assert list(FITTED.predict_uncertainty(X[:3]).to_frame().index) == [0, 1, 2]
    u = FITTED.predict_uncertainty(FRAME)
    copy = pickle.loads(pickle.dumps(u))
    assert copy == u
    assert copy.index.equals(u.index)
    assert u != u[:3]
    assert u != tuple(u)
    with pytest.raises(ValueError, match="shapes"):
        Uncertainty.from_parts([0.5, 0.25], [0.0])


class Pickled(UncertaintyMixin):
    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(np.zeros(len(X)), np.zeros(len(X)))


@pytest.mark.parametrize("state", [{}, {"coef_": 1.0}])
@pytest.mark.parametrize("version", ["0.1.0", "0.1.7"])
def test_pickles_of_the_same_minor_version_are_taken_and_keep_no_attribute_of_it(
    monkeypatch, version, state
):
    monkeypatch.setattr("skuq.base.__version__", version)
    made = Pickled()
    vars(made).update(state)
    assert vars(copy.deepcopy(made)) == state
    content = pickle.dumps(made)
    monkeypatch.setattr("skuq.base.__version__", "0.1.0")
    assert vars(pickle.loads(content)) == state


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


def slow_loop(X, y, splits, **params):
    parts = np.full((3, len(X)), np.nan)
    for train, test in splits:
        fold = {key: value[train] for key, value in params.items()}
        model = scaled(EntropicLogisticRegression()).fit(X[train], y[train], **fold)
        parts[:, test] = predict_uncertainty(model, X[test]).parts
    return Uncertainty(*parts)


def test_each_row_is_asked_of_a_model_that_was_not_trained_on_it():
    X, y = noisy_problem()
    model, splits = scaled(EntropicLogisticRegression()), StratifiedKFold(3)
    expected = slow_loop(X, y, splits.split(X, y))  # the default of a classifier
    frame = pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))])
    for n_jobs in (None, 2):
        with parallel_config("threading"):
            u = cross_val_predict_uncertainty(model, frame, y, cv=3, n_jobs=n_jobs)
        # Frames lie otherwise in memory.
        np.testing.assert_allclose(list(u), list(expected), rtol=1e-9)
        pd.testing.assert_index_equal(u.index, frame.index)
    search = GridSearchCV(model, {"entropiclogisticregression__C": [1.0]}, cv=2)
    assert cross_val_predict_uncertainty(search, X, y, cv=splits) == expected
    with pytest.raises(TypeError, match="StandardScaler"):
        cross_val_predict_uncertainty(StandardScaler(), X, y)


def test_groups_and_fit_parameters_are_split_as_the_rows_are():
    (X, y), model = noisy_problem(), scaled(EntropicLogisticRegression())
    groups, weight = np.arange(len(y)) % 3, np.random.default_rng(0).exponential(size=len(y))
    params, cv = {"entropiclogisticregression__sample_weight": weight}, LeaveOneGroupOut()
    expected = slow_loop(X, y, cv.split(X, y, groups), **params)
    u = cross_val_predict_uncertainty(model, X, y, groups=groups, params=params, cv=cv)
    assert u == expected
    with config_context(enable_metadata_routing=True):
        model[0].set_fit_request(sample_weight=False)
        model[-1].set_fit_request(sample_weight=True)
        routed = {"sample_weight": weight, "groups": groups}
        assert cross_val_predict_uncertainty(model, X, y, params=routed, cv=cv) == expected


def test_a_bar_in_a_log_is_one_line(capsys):
    for _ in progress(range(200), desc="search"):
        sleep(0.003)
    assert [*progress(range(3), verbose=0)] == [0, 1, 2]
    written = capsys.readouterr().err
    assert "search: 100%" in written
    assert (written.count("\r") <= 3, written.count("\n")) == (True, 1)
