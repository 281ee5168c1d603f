"""An ensemble is the average of its members, whatever trains them."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from skuq.evidential import GraphClassifier, GraphEnsemble

pytest.importorskip("dgl")


@pytest.fixture(scope="module")
def classifier(data):
    return GraphClassifier(data.graph, hidden_sizes=(8,), max_epochs=15, random_state=0)


@pytest.fixture(scope="module")
def fitted(classifier, nodes, y):
    return GraphEnsemble(classifier, n_members=3, random_state=0).fit(nodes, y)


def test_average_of_members(fitted, others):
    members = [member.predict_proba(others) for member in fitted.members_]
    assert abs(members[0] - members[1]).max() > 1e-3
    np.testing.assert_allclose(fitted.predict_proba(others), sum(members) / 3)


def test_score(fitted, others):
    u = fitted.predict_uncertainty(others)
    np.testing.assert_allclose(u.total, 1 - fitted.predict_proba(others).max(axis=1))
    np.testing.assert_array_equal(u.aleatoric, u.epistemic)
    np.testing.assert_array_equal(u.total, u.aleatoric + u.epistemic)


def test_information_is_zero_for_one_member_only(fitted, classifier, nodes, y, others):
    one = GraphEnsemble(classifier, n_members=1, measure="information", random_state=0)
    alone = one.fit(nodes, y).predict_uncertainty(others)
    np.testing.assert_allclose(alone.epistemic, 0, atol=1e-12)
    several = clone(fitted).set_params(measure="information").fit(nodes, y)
    assert (several.predict_uncertainty(others).epistemic > 0).any()


def test_same_members_in_processes(fitted, nodes, y, others):
    parallel = clone(fitted).set_params(n_jobs=2).fit(nodes, y)
    np.testing.assert_allclose(
        parallel.predict_proba(others), fitted.predict_proba(others), atol=1e-6
    )
    assert all(member.graph_ is parallel.graph_ for member in parallel.members_)


def test_weights_and_validation_reach_the_members(classifier, data, nodes, y, others):
    weight = (y == y[0]).astype(float) * 20 + 0.01
    ensemble = GraphEnsemble(classifier, n_members=2, random_state=0)
    share = (ensemble.fit(nodes, y).predict(others) == y[0]).mean()
    leaning = ensemble.fit(nodes, y, weight, X_val=others, y_val=data.labels[others])
    assert (leaning.predict(others) == y[0]).mean() > share + 0.3
    assert "valid_loss" in leaning.members_[0].history_[-1]


def test_the_classifier_is_not_changed(gcn, nodes, y, others):
    before = gcn.predict_proba(others)
    GraphEnsemble(gcn, n_members=1, random_state=1).fit(nodes, y)
    np.testing.assert_array_equal(gcn.predict_proba(others), before)


def test_default_classifier_and_clone(data, nodes, y):
    ensemble = GraphEnsemble(graph=data.graph, n_members=1, random_state=0)
    assert clone(ensemble).graph is ensemble.graph
    assert ensemble.fit(nodes, y).members_[0].hidden_sizes == (64,)


def test_pickle(fitted, others):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(others), fitted.predict_proba(others))


def test_without_a_graph(nodes, y):
    with pytest.raises(ValueError, match="needs a graph"):
        GraphEnsemble().fit(nodes, y)
