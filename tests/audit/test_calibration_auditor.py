"""Models and data that CalibrationAuditor takes, searches, and parameters."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn import config_context
from sklearn.base import ClassifierMixin, clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from skorch import NeuralNetClassifier
from torch import nn

from skuq import CalibrationAuditor, predict_uncertainty
from skuq._networks import MLP
from skuq.reporting import audit_data
from tests.reporter import assert_same_numbers, slow_ece

from_predictions = CalibrationAuditor.from_predictions


class Client:
    """Asks a model that is served elsewhere: there is nothing to train."""

    def __init__(self, served):
        self.served, self.classes_ = served, served.classes_

    def predict_proba(self, X):
        return self.served.predict_proba(X)


class MixedClient(ClassifierMixin, Client):
    """Has the tags of scikit-learn half way."""


class Handmade(Client):
    """Could be trained, but says in no way of scikit-learn's whether it was."""

    def fit(self, X, y):
        raise AssertionError("trained again")


def net():
    shape = {"module__n_features": 2, "module__n_outputs": 2, "criterion": nn.CrossEntropyLoss}
    return NeuralNetClassifier(MLP, max_epochs=2, train_split=None, verbose=0, **shape)


@pytest.mark.parametrize("n_frozen", [0, 1, 2])
@pytest.mark.parametrize("kind", [LogisticRegression, net, Client, MixedClient, Handmade])
def test_a_fitted_model_is_audited_as_it_is_and_not_altered(model, reference, kind, n_frozen):
    X, y = reference[0].astype(np.float32), reference[1]
    is_client = issubclass(kind, Client) if kind is not net else False
    mine = wrapped = kind(model) if is_client else kind().fit(X[:100], y[:100])
    proba, before = mine.predict_proba(X), pickle.dumps(mine)
    for _ in range(n_frozen):
        wrapped = FrozenEstimator(wrapped)
    audit = CalibrationAuditor(wrapped).fit(X, y)
    assert_same_numbers(audit, from_predictions(y, proba))
    np.testing.assert_array_equal(audit.predict(X), proba.argmax(axis=1))
    assert audit.estimator_ is wrapped is audit.estimator
    assert pickle.dumps(mine) == before
    assert is_classifier(audit)
    if is_client:  # has no tags
        assert get_tags(audit).input_tags == get_tags(CalibrationAuditor(None)).input_tags
    elif n_frozen == 1:  # a clone keeps a frozen model and forgets the fit of a plain one
        assert clone(audit).fit(X, y).estimator_.estimator is mine
        assert clone(CalibrationAuditor(mine)).fit(X, y).estimator_ is not mine


def test_a_module_is_audited_by_the_softmax_of_its_logits_and_a_tree_has_its_tags(reference):
    X, y = reference
    module = nn.Linear(2, 2)
    proba = module(torch.tensor(X, dtype=torch.float32)).softmax(-1).detach().numpy()
    audit = CalibrationAuditor(module).fit(X, y)
    assert audit.ece_ == pytest.approx(from_predictions(y, proba).ece_)
    np.testing.assert_allclose(audit.predict_proba(X), proba, rtol=1e-5)
    tree = HistGradientBoostingClassifier()
    assert get_tags(CalibrationAuditor(tree)).input_tags == get_tags(tree).input_tags


class Counted(LogisticRegression):
    """Counts trainings of its copies; of class 1 of three, it learns only from all 90 samples."""

    trained = 0

    def fit(self, X, y):
        Counted.trained += 1
        kept = (y != 1) | (len(y) == 90) if len(set(y)) == 3 else np.full(len(y), True)
        return super().fit(X[kept], y[kept])


def out_of_fold(model, X, y, n_folds=5):
    """Probabilities, which are 0 for a class that a fold does not know."""
    classes = np.unique(y)
    proba = np.zeros((len(y), len(classes)))
    for train, test in StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y):
        fitted = clone(model).fit(X[train], y[train])
        proba[np.ix_(test, np.isin(classes, fitted.classes_))] = fitted.predict_proba(X[test])
    return proba


@pytest.mark.parametrize("names", [[0, 1], ["z", "a"], [True, False], [1, 2], [0, 1, 2]])
def test_an_unfitted_model_is_audited_by_folds_and_then_trained_on_everything(reference, names):
    X, y = reference
    n_classes = len(names)
    X, y = (X, y) if n_classes == 2 else (X[:90], np.arange(90) % 3)
    y, mine = np.array(names)[y], Counted(C=0.3, class_weight={names[0]: 9})
    trained, proba = Counted.trained, out_of_fold(mine, X, y)
    assert (proba == 0).any() == (n_classes == 3)
    audit = CalibrationAuditor(mine).fit(X, y)
    assert Counted.trained == trained + 5 + 6
    assert not hasattr(mine, "coef_")
    assert_same_numbers(audit, from_predictions(y, proba))
    whole = clone(mine).fit(X, y)
    np.testing.assert_array_equal(audit.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(audit.predict(X), whole.predict(X))
    assert audit.classes_.tolist() == sorted(names)


@pytest.mark.parametrize("count", [2, 4])
def test_small_classes_are_cross_validated_with_fewer_folds(count):
    y = np.repeat(["a", "b", "c"], count)
    X = np.random.default_rng(0).normal(size=(len(y), 2)) + 9 * (y == "a")[:, None]
    audit = CalibrationAuditor(LogisticRegression(), n_bins=2).fit(X, y)
    proba = out_of_fold(LogisticRegression(), X, y, count)
    assert audit.confidence_ == pytest.approx(proba.max(axis=1).mean())


@pytest.mark.parametrize(("strategy", "groups"), [("uniform", 0), ("quantile", None)])
def test_recorded_predictions_give_the_numbers_of_the_model(model, reference, strategy, groups):
    X, y = np.column_stack([reference[0][:, 0].round(), reference[0][:, 1]]), reference[1]
    params = {"n_bins": 7, "tolerance": 0.02, "strategy": strategy}
    fitted = CalibrationAuditor(model, sensitive_columns=groups, **params).fit(X, y)
    params["sensitive_features"] = None if groups is None else pd.DataFrame({"0": X[:, 0]})
    proba, names = model.predict_proba(X), np.array(["b", "a"])
    recorded = from_predictions(y, proba, **params)
    named = from_predictions(names[y], proba, classes=names, **params)
    for audit, classes in ((recorded, [0, 1]), (named, ["b", "a"])):
        assert_same_numbers(audit, fitted)
        assert audit.classes_.tolist() == classes
    assert (groups is None) == (recorded.group_bins_ == {})


def test_figures_and_scores_are_those_of_the_predictions(model, reference):
    X, y = reference
    audit = CalibrationAuditor(model).fit(X, y)
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    assert (audit.n_samples_, audit.accuracy_) == (len(y), correct.mean())
    assert audit.confidence_ == pytest.approx(confidence.mean(), abs=1e-9)
    assert audit.ece_ == pytest.approx(slow_ece(confidence, correct), abs=1e-8)
    assert audit.mce_ == pytest.approx(np.nanmax(np.abs(audit.bins_.gap)))
    assert audit.ece_interval_[0] < audit.ece_ < audit.ece_interval_[1]
    slow = slow_ece(confidence[:150], correct[:150])
    assert audit.score(X[:150], y[:150]) == pytest.approx(-slow, abs=1e-8)
    one = CalibrationAuditor(model).fit(X[y == 1], y[y == 1])  # one class is enough
    assert (one.accuracy_, one.classes_.tolist()) == (correct[y == 1].mean(), [0, 1])


@pytest.mark.parametrize("fitted", [True, False])
def test_a_pipeline_takes_text_columns_and_labels_and_groups_it_does_not_use(fitted):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=120)}, index=rng.permutation(120))
    frame["colour"] = rng.choice(["red", "blue"], size=120)
    frame["sex"] = rng.choice(["f", "m", None], size=120)
    y = pd.Series(np.where(frame["size"] > 0, "yes", "no"), index=frame.index)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipeline = make_pipeline(table, LogisticRegression())
    if fitted:
        pipeline.fit(frame, y)
    audit = CalibrationAuditor(pipeline, sensitive_columns="sex").fit(frame, y)
    assert audit.feature_names_in_.tolist() == ["size", "colour", "sex"]
    assert set(audit.group_bins_) == {"sex=f", "sex=m", "sex=missing"}
    assert set(audit.predict(frame)) == {"yes", "no"}


@pytest.mark.parametrize("make", [csr_matrix, csr_array, coo_array])
def test_groups_are_columns_of_a_sparse_matrix_too(reference, make):
    X, y = reference[0].round(), reference[1]
    model = LogisticRegression().fit(X[:100], y[:100])
    ours = CalibrationAuditor(model, sensitive_columns=[0, -1]).fit(make(X), y)
    assert_same_numbers(ours, CalibrationAuditor(model, sensitive_columns=[0, -1]).fit(X, y))
    with pytest.raises(ValueError, match="no column 2"):
        CalibrationAuditor(model, sensitive_columns=2).fit(make(X), y)


def test_searches_score_each_part_of_the_data_and_choose_parameters(model, reference):
    X, y = reference
    audit, folds = CalibrationAuditor(FrozenEstimator(model)), StratifiedKFold(3)
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    slow = [-slow_ece(confidence[test], correct[test]) for _, test in folds.split(X, y)]
    np.testing.assert_allclose(cross_val_score(audit, X, y, cv=folds), slow, atol=1e-8)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    grid = {"n_bins": [5, 10], "estimator__logisticregression__C": [0.01, 1.0]}
    search = GridSearchCV(CalibrationAuditor(pipeline), grid, cv=2).fit(X, y)
    # Shrunk weights make a model underconfident.
    best = search.best_estimator_
    assert search.best_params_["estimator__logisticregression__C"] == best.estimator_[-1].C == 1.0
    assert len(best.bins_.count) == search.best_params_["n_bins"]
    assert predict_uncertainty(search, X[:4]).total.shape == (4,)
    sex = pd.Series(np.where(X[:, 0] > 0, "f", "m"), name="sex")
    with config_context(enable_metadata_routing=True):
        asked = clone(audit).set_fit_request(sensitive_features=True)
        search = GridSearchCV(asked, {"n_bins": [5, 8]}, cv=2)
        best = search.fit(X, y, sensitive_features=sex).best_estimator_
    assert list(best.group_bins_) == ["sex=f", "sex=m"]


def test_what_was_found_is_told_with_the_settings_that_found_it():
    y, proba = np.repeat([0, 1], [1500, 500]), np.tile([0.6, 0.4], (2000, 1))
    audit = from_predictions(y, proba)
    before = audit_data(audit)
    audit.set_params(tolerance=0.3, n_bins=3, confidence_level=0.5, strategy="quantile")
    assert audit_data(audit) == before
    assert before["parameters"]["tolerance"] == 0.05
    stored = pickle.loads(pickle.dumps(audit))
    assert audit_data(stored.undersample(0.0, np.zeros(2000, bool))) == before
