"""Ensembles: their members, and uncertainty from them by hand."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skuq import EvidentialProbe
from skuq._networks import MLP
from skuq.baselines import DeepEnsembleClassifier
from tests.baselines.oracles import PickledJobs, assert_as_by_hand

SKORCH = {"criterion": nn.CrossEntropyLoss, "max_epochs": 3, "verbose": 0}


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_members_given_are_compared_as_the_equations_say(iris, setting):
    members = [LogisticRegression(C=c).fit(*iris) for c in (0.01, 1.0, 100.0)]
    samples = np.stack([member.predict_proba(iris[0]) for member in members], axis=1)
    ensemble = DeepEnsembleClassifier(members=members, setting=setting).fit(*iris)
    u = ensemble.predict_uncertainty(iris[0])
    assert_as_by_hand(u, samples[:, 0], samples, setting, rtol=1e-6, atol=1e-12)
    predicted = samples[:, 0] if setting == "selected" else samples.mean(1)
    np.testing.assert_allclose(ensemble.predict_proba(iris[0]), predicted, atol=1e-8)


def test_every_seed_inside_an_estimator_is_replaced(iris):
    scaler = FrozenEstimator(StandardScaler().fit(iris[0]))  # which all may share
    mine = make_pipeline(scaler, MLPClassifier((5,), max_iter=20, tol=0, random_state=3))
    with pytest.warns(match="Maximum iterations"):
        ensemble = DeepEnsembleClassifier(mine, n_members=2, random_state=0).fit(*iris)
    first, second = (dict(m.module.named_parameters())["0.weight"] for m in ensemble.members_)
    assert not torch.allclose(first, second)


def test_frozen_model_is_the_first_member_and_its_clones_are_trained(iris):
    net = NeuralNetClassifier(MLP, module__n_features=4, module__n_outputs=3, **SKORCH)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net.fit(iris[0].astype(np.float32), iris[1])
    ensemble = DeepEnsembleClassifier(FrozenEstimator(net), n_members=3, random_state=0)
    ensemble.fit(*iris)
    first = [dict(m.module.named_parameters())["0.weight"] for m in ensemble.members_]
    assert torch.equal(first[0], net.module_[0].weight)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))


@pytest.mark.parametrize("frozen", [True, False])
def test_members_that_start_from_equal_weights_are_a_warning(iris, frozen):
    net = NeuralNetClassifier(MLP(4, 3), train_split=None, **SKORCH)
    if frozen:
        net = FrozenEstimator(net.fit(iris[0].astype(np.float32), iris[1]))
    with pytest.warns(UserWarning, match="weights"):
        DeepEnsembleClassifier(net, n_members=2).fit(*iris)


FROZEN = FrozenEstimator(LogisticRegression().fit([[0.0, 0, 0, 0], [1, 1, 1, 1]], [0, 1]))


@pytest.mark.parametrize(
    ("mine", "state"),
    [
        (make_pipeline(StandardScaler(), FROZEN), "unfitted"),
        (make_pipeline(make_pipeline(StandardScaler(), FROZEN)), "frozen"),
        (CalibratedClassifierCV(FROZEN, method="sigmoid"), "fitted"),
        (GridSearchCV(Pipeline([("frozen", FROZEN)]), {}, cv=2), "frozen"),
        (EvidentialProbe(FROZEN), "unfitted"),
        (EvidentialProbe(FROZEN, max_epochs=1), "fitted"),
    ],
)
def test_model_that_holds_a_frozen_network_cannot_be_trained_again(iris, mine, state):
    X, y = iris[0][iris[1] < 2], iris[1][iris[1] < 2]
    mine = mine if state == "unfitted" else mine.fit(X, y)
    mine = FrozenEstimator(mine) if state == "frozen" else mine
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none may say that a clone is trained
        with pytest.raises(TypeError, match=r"FrozenEstimator in a \w+"):
            DeepEnsembleClassifier(mine, n_members=2).fit(X, y)


@pytest.mark.parametrize(
    ("learner", "setting"),
    [
        (KNeighborsClassifier(), "selected"),
        (LogisticRegression(max_iter=500), "expected"),
        (HistGradientBoostingClassifier(max_iter=2), "max-score"),
        (make_pipeline(StandardScaler(), GaussianNB()), "expected"),
    ],
    ids=str,
)
def test_members_without_randomness_see_resamples_of_the_rows(iris, learner, setting, monkeypatch):
    ensemble = DeepEnsembleClassifier(learner, n_members=3, setting=setting, random_state=0)
    members = ensemble.fit(*iris).members_
    samples = [np.exp(np.asarray(m.log_proba(m.inputs(iris[0])))) for m in members]
    samples = np.stack(samples, axis=1)
    given = clone(learner).fit(*iris).predict_proba(iris[0])
    np.testing.assert_allclose(samples[:, 0], given, atol=1e-9)
    for one, other in itertools.combinations(range(3), 2):
        assert np.abs(samples[:, one] - samples[:, other]).max() > 1e-3
    u = ensemble.predict_uncertainty(iris[0])
    assert_as_by_hand(u, samples[:, 0], samples, setting, rtol=1e-6, atol=1e-9)
    monkeypatch.setattr("skuq.baselines._deep_ensemble.Parallel", PickledJobs)
    again = clone(ensemble).set_params(n_jobs=2).fit(*iris)
    np.testing.assert_array_equal(again.predict_uncertainty(iris[0]), u)


def test_members_with_randomness_see_all_rows_and_equal_ones_are_a_warning(iris):
    forest = RandomForestClassifier(5, bootstrap=False, max_features=1, min_samples_leaf=5)
    ensemble = DeepEnsembleClassifier(forest, n_members=2, random_state=0).fit(*iris)
    for member in ensemble.members_:
        assert all(tree.tree_.n_node_samples[0] == 150 for tree in member.estimator)
    assert ensemble.predict_uncertainty(iris[0]).epistemic.max() > 1e-3
    with pytest.warns(UserWarning, match="2 of 3"):
        DeepEnsembleClassifier(DummyClassifier(), n_members=3).fit(*iris)


def test_networks_and_learners_may_be_members_together(iris, dropped):
    members = [KNeighborsClassifier().fit(*iris), dropped, LogisticRegression().fit(*iris)]
    ensemble = DeepEnsembleClassifier(members=members, setting="selected").fit(*iris)
    given = members[0].predict_proba(iris[0])
    np.testing.assert_allclose(ensemble.predict_proba(iris[0]), given, atol=1e-9)
    assert ensemble.predict_uncertainty(iris[0]).epistemic.max() > 0
