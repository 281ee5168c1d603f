"""Models and data that CalibrationAuditor takes."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn.base import ClassifierMixin, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from skorch import NeuralNetClassifier
from torch import nn

from skuq import CalibrationAuditor
from skuq._networks import MLP
from tests.reporter import Reporter, assert_same_numbers, slow_ece


class CountedLogisticRegression(LogisticRegression):
    """Counts trainings of any of its copies."""

    trained = 0

    def fit(self, X, y):
        CountedLogisticRegression.trained += 1
        return super().fit(X, y)


# What is audited


@pytest.mark.parametrize(
    "wrap", [lambda m: m, FrozenEstimator, lambda m: FrozenEstimator(FrozenEstimator(m))]
)
def test_a_fitted_model_is_audited_as_it_is_and_not_altered(moons, reference, wrap):
    mine = CountedLogisticRegression().fit(*moons)
    before, trained = pickle.dumps(mine), CountedLogisticRegression.trained
    wrapped = wrap(mine)
    audit = CalibrationAuditor(wrapped).fit(*reference)
    audit.predict_uncertainty(reference[0])
    assert audit.estimator_ is wrapped
    assert audit.estimator is wrapped
    assert CountedLogisticRegression.trained == trained
    assert pickle.dumps(mine) == before


@pytest.mark.parametrize("names", [[0, 1], ["z", "a"], [True, False]])
def test_an_unfitted_model_is_audited_by_folds_and_then_trained_on_everything(reference, names):
    X, y = reference[0], np.array(names)[reference[1]]
    mine = CountedLogisticRegression(C=0.3)
    trained = CountedLogisticRegression.trained
    audit = CalibrationAuditor(mine).fit(X, y)
    assert CountedLogisticRegression.trained == trained + 6
    assert not hasattr(mine, "coef_")
    proba = np.empty((len(y), 2))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        proba[test] = LogisticRegression(C=0.3).fit(X[train], y[train]).predict_proba(X[test])
    by_hand = CalibrationAuditor.from_predictions(y, proba)
    assert_same_numbers(audit, by_hand)
    whole = LogisticRegression(C=0.3).fit(X, y)
    np.testing.assert_array_equal(audit.estimator_.coef_, whole.coef_)
    np.testing.assert_array_equal(audit.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(audit.predict(X), whole.predict(X))
    assert audit.classes_.tolist() == sorted(names)


@pytest.mark.parametrize("names", [[0, 1], [1, 2], [1, 0], ["a", "b"], [False, True]])
def test_class_weights_of_an_unfitted_model_are_those_of_its_labels(reference, names):
    X, y = reference[0], np.array(names)[reference[1]]
    weighted = CalibrationAuditor(LogisticRegression(class_weight={names[0]: 9, names[1]: 1}))
    proba = np.empty((len(y), 2))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        model = LogisticRegression(class_weight={names[0]: 9, names[1]: 1})
        proba[test] = model.fit(X[train], y[train]).predict_proba(X[test])
    by_hand = CalibrationAuditor.from_predictions(y, proba)
    assert_same_numbers(weighted.fit(X, y), by_hand)


class ForgetsAClass(LogisticRegression):
    """Model that learns of class 1 only from all 90 samples."""

    def fit(self, X, y):
        kept = (y != 1) | (len(y) == 90)
        return super().fit(X[kept], y[kept])


def test_a_class_that_a_fold_does_not_know_has_probability_0_there():
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    proba = np.zeros((90, 3))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        model = ForgetsAClass().fit(X[train], y[train])
        proba[np.ix_(test, [0, 2])] = model.predict_proba(X[test])
    audit = CalibrationAuditor(ForgetsAClass()).fit(X, y)
    assert_same_numbers(audit, CalibrationAuditor.from_predictions(y, proba))


def test_an_unfitted_model_is_not_judged_on_what_it_has_seen():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    audit = CalibrationAuditor(KNeighborsClassifier(1)).fit(X, y)
    assert audit.confidence_ == 1.0
    assert audit.accuracy_ < 0.7
    assert audit.bins_.direction[-1] == "overconfident"


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("groups", [None, 0])
def test_recorded_predictions_give_the_numbers_of_the_model(model, reference, strategy, groups):
    X, y = reference
    X = np.column_stack([X[:, 0].round(), X[:, 1]])
    params = {"n_bins": 7, "alpha": 0.02, "strategy": strategy}
    fitted = CalibrationAuditor(model, groups=groups, **params).fit(X, y)
    recorded = CalibrationAuditor.from_predictions(
        y,
        model.predict_proba(X),
        sensitive_features=None if groups is None else pd.DataFrame({"0": X[:, 0]}),
        **params,
    )
    assert_same_numbers(recorded, fitted)
    assert recorded.classes_.tolist() == [0, 1]
    assert (groups is None) == (recorded.group_bins_ == {})


SEX = np.arange(400) // 2 % 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (SEX, "group"),
        (SEX.tolist(), "group"),
        (pd.Series(SEX, name="sex"), "sex"),
        (pd.DataFrame({"sex": SEX}, index=SEX), "sex"),
        ({"sex": SEX}, "sex"),
    ],
)
def test_groups_may_be_attributes_that_the_model_never_saw(model, reference, given, name):
    X, y = reference
    audit = CalibrationAuditor(model).fit(X, y, sensitive_features=given)
    assert audit.n_features_in_ == 2
    assert audit.n_families_ == 3
    for value in (0, 1):
        inside = value == SEX
        alone = CalibrationAuditor(model).fit(X[inside], y[inside])
        np.testing.assert_equal(audit.group_sums_[f"{name}={value}"], alone.sums_)


def test_columns_and_attributes_give_groups_together(model, reference):
    X, y = reference
    X = X.round()
    audit = CalibrationAuditor(model, groups=0).fit(X, y, sensitive_features={"sex": SEX})
    assert list(audit.group_bins_)[-3:] == ["0=3", "sex=0", "sex=1"]
    with pytest.raises(ValueError, match="'0=-2' twice; rename"):
        CalibrationAuditor(model, groups=0).fit(X, y, sensitive_features={"0": X[:, 0]})


def test_classes_give_the_column_order_of_recorded_predictions(model, reference):
    X, y = reference
    proba = model.predict_proba(X)
    names = np.array(["b", "a"])
    ours = CalibrationAuditor.from_predictions(names[y], proba, classes=names)
    assert_same_numbers(ours, CalibrationAuditor.from_predictions(y, proba))
    assert ours.classes_.tolist() == ["b", "a"]


def test_figures_are_those_of_the_predictions(model, reference):
    X, y = reference
    audit = CalibrationAuditor(model).fit(X, y)
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    assert audit.n_samples_ == len(y)
    assert audit.accuracy_ == correct.mean()
    assert audit.confidence_ == pytest.approx(confidence.mean(), abs=1e-9)
    assert audit.ece_ == pytest.approx(slow_ece(confidence, correct), abs=1e-8)
    assert audit.mce_ == pytest.approx(np.nanmax(np.abs(audit.bins_.gap)))
    low, high = audit.ece_interval_
    assert low < audit.ece_ < high


def test_the_noise_floor_is_what_a_calibrated_model_shows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1, size=(300, 1))
    y = (rng.random(300) > X[:, 0]).astype(int)
    model = Reporter().fit(X, y)
    floor = CalibrationAuditor(model).fit(X, y).ece_chance_
    correct = rng.random((400, 300)) < X[:, 0]
    simulated = [slow_ece(X[:, 0].tolist(), row.tolist()) for row in correct]
    assert floor == pytest.approx(np.quantile(simulated, 0.95), rel=0.12)


# Kinds of input


@pytest.mark.parametrize("fitted", [True, False])
def test_a_pipeline_takes_text_columns_and_labels_and_groups_it_does_not_use(fitted):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=120),
            "colour": rng.choice(["red", "blue"], size=120),
            "sex": rng.choice(["f", "m", None], size=120),
        },
        index=rng.permutation(120),
    )
    y = pd.Series(np.where(frame["size"] > 0, "yes", "no"), index=frame.index)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipeline = make_pipeline(table, LogisticRegression())
    if fitted:
        pipeline.fit(frame, y)
    audit = CalibrationAuditor(pipeline, groups="sex").fit(frame, y)
    assert audit.feature_names_in_.tolist() == ["size", "colour", "sex"]
    assert audit.n_features_in_ == 3
    assert set(audit.group_bins_) == {"sex=f", "sex=m", "sex=missing"}
    assert set(audit.predict(frame)) == {"yes", "no"}
    assert audit.predict_uncertainty(frame[:3]).total.shape == (3,)
    with pytest.raises(ValueError, match="feature names"):
        audit.predict(frame.rename(columns={"size": "weight"}))


@pytest.mark.parametrize("convert", [np.float32, pd.DataFrame, lambda X: X.tolist()])
def test_the_container_of_the_inputs_does_not_matter(reference, convert):
    X, y = reference[0].astype(np.float32).astype(float), reference[1]
    model = KNeighborsClassifier(25).fit(X[:100], y[:100])
    if convert is pd.DataFrame:
        model.fit(convert(X[:100]), y[:100])
    ours = CalibrationAuditor(model).fit(convert(X), y.tolist())
    plain = CalibrationAuditor(KNeighborsClassifier(25).fit(X[:100], y[:100]))
    assert_same_numbers(ours, plain.fit(X, y))
    np.testing.assert_array_equal(ours.predict(convert(X)), plain.predict(X))


def net(**params):
    return NeuralNetClassifier(
        MLP,
        module__n_features=2,
        module__n_outputs=2,
        criterion=nn.CrossEntropyLoss,
        max_epochs=2,
        train_split=None,
        verbose=0,
        **params,
    )


@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator])
def test_a_fitted_skorch_net_is_audited_as_it_is(reference, wrap):
    X, y = reference[0].astype(np.float32), reference[1]
    torch.manual_seed(0)
    mine = net().fit(X[:100], y[:100])
    before = {name: value.clone() for name, value in mine.module_.state_dict().items()}
    audit = CalibrationAuditor(wrap(mine)).fit(X, y)
    recorded = CalibrationAuditor.from_predictions(y, mine.predict_proba(X))
    assert_same_numbers(audit, recorded)
    assert all(torch.equal(before[k], v) for k, v in mine.module_.state_dict().items())
    assert len(mine.history) == 2


def test_an_unfitted_skorch_net_is_trained_in_copies(reference):
    X, y = reference[0].astype(np.float32), reference[1]
    mine = net()
    audit = CalibrationAuditor(mine).fit(X, y)
    assert not mine.initialized_
    assert audit.classes_.tolist() == [0, 1]
    expected = audit.estimator_.predict_proba(X).max(axis=1)
    np.testing.assert_allclose(audit.predict_uncertainty(X).total, 1 - expected, atol=1e-7)


def test_a_reference_set_of_one_class_is_enough_for_a_fitted_model(model, reference):
    X, y = reference
    audit = CalibrationAuditor(model).fit(X[y == 1], y[y == 1])
    assert audit.accuracy_ == (model.predict(X[y == 1]) == 1).mean()
    assert audit.classes_.tolist() == [0, 1]


# Models that are no scikit-learn estimators


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


@pytest.mark.parametrize("wrap", [lambda client: client, FrozenEstimator])
@pytest.mark.parametrize("kind", [Client, MixedClient, Handmade])
def test_a_client_of_a_served_model_is_audited_as_it_is(model, reference, kind, wrap):
    client = wrap(kind(model))
    audit = CalibrationAuditor(client).fit(*reference)
    assert audit.estimator_ is client
    assert_same_numbers(audit, CalibrationAuditor(model).fit(*reference))
    np.testing.assert_array_equal(audit.predict(reference[0]), model.predict(reference[0]))
    assert get_tags(audit).input_tags == get_tags(CalibrationAuditor(None)).input_tags
    assert is_classifier(audit)


def test_the_tags_of_an_estimator_are_those_of_its_audit():
    tree = HistGradientBoostingClassifier()
    assert get_tags(CalibrationAuditor(tree)).input_tags == get_tags(tree).input_tags
    assert get_tags(CalibrationAuditor(tree)).input_tags.allow_nan


@pytest.mark.parametrize("make", [csr_matrix, csr_array, coo_array])
def test_groups_are_columns_of_a_sparse_matrix_too(reference, make):
    X, y = reference[0].round(), reference[1]
    model = LogisticRegression().fit(X[:100], y[:100])
    ours = CalibrationAuditor(model, groups=[0, -1]).fit(make(X), y)
    assert_same_numbers(ours, CalibrationAuditor(model, groups=[0, -1]).fit(X, y))
    with pytest.raises(ValueError, match=r"X has no column 2; it has shape \(400, 2\)"):
        CalibrationAuditor(model, groups=2).fit(make(X), y)


def test_results_before_a_fit_say_what_to_call():
    with pytest.raises(AttributeError, match="call `fit`"):
        _ = CalibrationAuditor(LogisticRegression()).passed_
