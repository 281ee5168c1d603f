"""Ensembles, dropout and the reference on the nodes of a graph."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.fixes import parse_version

from skuq.baselines import DeepEnsembleClassifier, MCDropoutClassifier, ReferenceClassifier
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from skuq.models import adopt
from tests.baselines.oracles import PickledJobs, assert_as_by_hand

NODES, OTHERS = np.arange(60), np.arange(60, 150)
DATA = make_node_classes(150, n_classes=3, n_features=6, random_state=0)
Y = DATA.labels[NODES]
CLASSIFIER = GraphClassifier(DATA.graph, hidden_sizes=(8,), max_epochs=15, random_state=0)


@pytest.fixture(scope="module")
def gcn():
    """A fitted classifier; nothing may change it."""
    return clone(CLASSIFIER).fit(NODES, Y)


@pytest.fixture(scope="module")
def ensemble():
    return DeepEnsembleClassifier(CLASSIFIER, n_members=3, random_state=0).fit(NODES, Y)


@pytest.fixture(scope="module")
def dropout(gcn):
    model = MCDropoutClassifier(FrozenEstimator(gcn), n_samples=20, random_state=0)
    return model.fit(NODES, Y)


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_members_are_compared_as_the_equations_say(ensemble, setting):
    members = [member.outputs(member.inputs(OTHERS)) for member in ensemble.members_]
    samples = np.stack([member.double().softmax(-1).numpy() for member in members], axis=1)
    assert abs(samples[:, 0] - samples[:, 1]).max() > 1e-3
    u = ensemble.set_params(setting=setting).predict_uncertainty(OTHERS)
    assert_as_by_hand(u, samples[:, 0], samples, setting, rtol=1e-6, atol=1e-12)
    predicted = samples[:, 0] if setting == "selected" else samples.mean(axis=1)
    np.testing.assert_allclose(ensemble.predict_proba(OTHERS), predicted)


@pytest.mark.parametrize("given", [True, False])
def test_members_take_masks_of_nodes(gcn, given):
    mask = np.isin(np.arange(150), NODES)
    ensemble = DeepEnsembleClassifier(CLASSIFIER, n_members=2, random_state=0)
    if given:
        ensemble = DeepEnsembleClassifier(members=[gcn, gcn])
    expected = ensemble.fit(NODES, Y).predict_proba(OTHERS)
    for labels in (Y, DATA.labels):
        np.testing.assert_array_equal(ensemble.fit(mask, labels).predict_proba(~mask), expected)


def test_the_reference_scores_nodes_and_masks_of_them(gcn):
    mask = np.isin(np.arange(150), OTHERS)
    reference = ReferenceClassifier(FrozenEstimator(gcn)).fit(NODES, Y)
    expected = (gcn.predict(OTHERS) == DATA.labels[OTHERS]).mean()
    others = DATA.labels[OTHERS]
    for given in ((mask, DATA.labels), (mask, others), (OTHERS, others)):
        assert reference.score(*given) == expected
    p = gcn.predict_proba(OTHERS)
    total = reference.predict_uncertainty(OTHERS).total
    np.testing.assert_allclose(total, -(p * np.log(p)).sum(axis=1), rtol=1e-6)
    assert cross_val_score(reference, NODES, Y, cv=3).shape == (3,)


def test_same_members_in_processes_on_one_graph(ensemble, monkeypatch):
    monkeypatch.setattr("skuq.baselines._deep_ensemble.Parallel", PickledJobs)
    parallel = clone(ensemble).set_params(n_jobs=2).fit(NODES, Y)
    expected = ensemble.predict_proba(OTHERS)
    np.testing.assert_allclose(parallel.predict_proba(OTHERS), expected, atol=1e-6)
    assert len({id(member.graph) for member in parallel.members_}) == 1


def test_weights_and_validation_reach_the_members():
    weight = (Y[0] == Y).astype(float) * 20 + 0.01
    ensemble = DeepEnsembleClassifier(CLASSIFIER, n_members=2, random_state=0)
    share = (ensemble.fit(NODES, Y).predict(OTHERS) == Y[0]).mean()
    leaning = clone(ensemble).fit(NODES, Y, weight).predict(OTHERS)
    assert (leaning == Y[0]).mean() > share + 0.2
    with pytest.raises(ValueError, match="Node ids"):
        clone(ensemble).fit(NODES, Y, X_val=[150], y_val=[0])


def test_nodes_share_dropout_masks_and_the_network_without_them_may_be_selected(dropout, gcn):
    whole = dropout.predict_uncertainty(OTHERS)
    assert (whole.epistemic > 0).all()
    one = dropout.predict_uncertainty(OTHERS[[7]])
    np.testing.assert_allclose(np.array(one)[0], np.array(whole)[7])
    proba = clone(dropout).set_params(setting="selected").fit(NODES, Y).predict_proba(OTHERS)
    np.testing.assert_allclose(proba, gcn.predict_proba(OTHERS), rtol=1e-6)


@pytest.mark.parametrize("name", ["ensemble", "dropout"])
def test_columns_of_ids_pickles_and_text_labels(request, name):
    model = request.getfixturevalue(name)
    expected = model.predict_uncertainty(OTHERS[:5])
    np.testing.assert_array_equal(model.predict_uncertainty(OTHERS[:5, None]), expected)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(OTHERS), model.predict_proba(OTHERS))
    with pytest.raises(ValueError, match="Node ids"):
        model.predict_uncertainty([150])
    text = np.array(["ant", "bee", "cat"])[Y]
    trained = clone(model)
    if name == "dropout":
        trained.set_params(estimator=clone(model.estimator.estimator))
    trained.fit(NODES.tolist(), text)
    assert set(trained.predict(NODES)) <= set(trained.classes_) == {"ant", "bee", "cat"}


@pytest.mark.parametrize("wrap", ["search", "frozen search", "pipeline", "pipelines"])
def test_wrappers_keep_the_graph(wrap):
    mine = GridSearchCV(CLASSIFIER, {"dropout": [0.5]}, cv=2)
    if wrap == "frozen search":
        mine = FrozenEstimator(mine.fit(NODES, Y))
    elif wrap != "search":
        mine = make_pipeline("passthrough", clone(CLASSIFIER))
        mine = make_pipeline(mine) if wrap == "pipelines" else mine
    nodes = NODES[:, None] if "pipeline" in wrap else NODES
    reference = ReferenceClassifier(mine).fit(nodes, Y)
    expected = clone(CLASSIFIER).fit(NODES, Y).predict_proba(OTHERS)
    others = OTHERS[:, None] if "pipeline" in wrap else OTHERS
    np.testing.assert_allclose(reference.predict_proba(others), expected, atol=1e-6)


def test_transformers_before_node_ids_are_refused():
    pipeline = make_pipeline(FunctionTransformer(), clone(CLASSIFIER))
    with pytest.raises(TypeError, match="transformer"):
        ReferenceClassifier(pipeline).fit(NODES[:, None], Y)


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.8"), reason="too old")
def test_temperature_scaling_keeps_the_graph(gcn):
    scaled = CalibratedClassifierCV(FrozenEstimator(gcn), method="temperature").fit(NODES, Y)
    adopted = adopt(scaled)
    found = adopted.outputs(adopted.inputs(OTHERS)).softmax(-1)
    np.testing.assert_allclose(found, scaled.predict_proba(OTHERS), atol=1e-6)
    assert abs(found.numpy() - gcn.predict_proba(OTHERS)).max() > 1e-3
