"""The protocol of all methods of the comparison; scores of logits against closed forms."""

import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import nn

from benchmarks.evidential_methods import LogitUncertainty, comparison_methods
from benchmarks.evidential_methods.logits import logit_score
from skuq.evidential import EvidenceLoss, EvidentialProbe, NetworkHead

# Without parts.
ONE_SCORE = ["entropy", "max-score", "energy", "gnnsafe", "energy-diffused", "energy-similar"]
NAMES = [
    *ONE_SCORE,
    *("gpn", "gkde", "egnn", "egnn-vacuity", "egnn-evidence", "egnn-both"),
    *("epn", "epn-ice", "epn-reg", "epn-similar", "epn-free"),
]


def methods(data, gcn, **settings):
    return comparison_methods(data.graph, gcn, max_epochs=4, random_state=0, **settings)


@pytest.fixture(scope="module")
def fitted(data, gcn, nodes, y):
    return {name: method.fit(nodes, y) for name, method in methods(data, gcn).items()}


def test_no_method_needs_dgl_or_pyg(monkeypatch, data, nodes, y, others):
    for library in ("dgl", "torch_geometric"):
        monkeypatch.setitem(sys.modules, library, None)  # importing it raises
    settings = {"architecture": "gat", "max_epochs": 2, "device": "cpu", "random_state": 0}
    made = comparison_methods(data.graph, **settings)
    assert list(made) == NAMES
    for method in made.values():
        assert len(method.fit(nodes, y).predict_uncertainty(others)) == len(others)


@pytest.mark.parametrize("name", NAMES)
def test_protocol(fitted, others, name):
    method = fitted[name]
    u = method.predict_uncertainty(others)
    assert {(part.shape, part.dtype) for part in u.parts} == {((len(others),), np.dtype(float))}
    assert np.isfinite(u.total).all()
    if name in ONE_SCORE:
        assert np.isnan([u.aleatoric, u.epistemic]).all()
    else:
        np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-8)
    epistemic = u.part_or_total("epistemic")
    assert np.ptp(epistemic) > 0
    proba = method.predict_proba(others)
    assert proba.shape == (len(others), 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(method.predict(others), proba.argmax(axis=1))
    np.testing.assert_array_equal(method.score_samples(others), -epistemic)


def test_without_a_model_all_train_the_same_one_with_the_settings_given(data, nodes, y, others):
    found = methods(data, None)
    first, second = (found[name].fit(nodes, y) for name in ("entropy", "energy"))
    np.testing.assert_array_equal(first.predict_proba(others), second.predict_proba(others))
    found = methods(data, None, architecture="gat", learning_rate=0.03)
    settings = [found[name].estimator for name in ("egnn", "gkde", "entropy")]
    assert {(each.architecture, each.learning_rate) for each in settings} == {("gat", 0.03)}
    gpn = found["gpn"].estimator
    assert (gpn.learning_rate, gpn.max_epochs, settings[1].hidden_sizes) == (3e-3, 4, (16,))
    assert found["epn-reg"].learning_rate == EvidentialProbe().learning_rate


def test_gnnsafe_and_the_probes_are_what_their_names_say(data, gcn):
    found = methods(data, gcn)
    assert found["gnnsafe"].method == "energy"
    assert found["gnnsafe"].propagation
    default = found["epn-reg"]
    names = ("estimator", "graph", "device", "random_state")
    given = {name: getattr(default, name) for name in names}
    assert default.get_params() == EvidentialProbe(**given).get_params()
    full = EvidenceLoss()
    assert min(full.ice_weight, full.pcl_weight) > 0
    losses = [found[name].loss for name in ("epn", "epn-ice")]
    weights = [(loss.ice_weight, loss.pcl_weight) for loss in losses]
    assert weights == [(0, 0), (full.ice_weight, 0)]
    assert isinstance(found["epn-free"].head, NetworkHead)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def test_scores_and_predictions_of_a_table(iris):
    X, y = iris
    regression = LogisticRegression(max_iter=1000).fit(X, y)
    proba = regression.predict_proba(X)
    expected = {
        "entropy": -(proba * np.log(proba)).sum(axis=1),
        "max-score": 1 - proba.max(axis=1),
        "energy": -np.log(np.exp(regression.decision_function(X)).sum(axis=1)),
    }
    for method, values in expected.items():
        scored = LogitUncertainty(regression, method=method).fit(X, y)
        u = scored.predict_uncertainty(X)
        np.testing.assert_allclose(u.total, values, rtol=1e-6, atol=1e-7)
        assert np.isnan([u.aleatoric, u.epistemic]).all()
    np.testing.assert_allclose(scored.predict_proba(X), proba, atol=1e-7)
    np.testing.assert_array_equal(scored.predict(X), regression.predict(X))
    np.testing.assert_array_equal(-scored.score_samples(X), u.total)
    with pytest.raises(ValueError, match="propagation='smoothing' has no effect without a graph"):
        LogitUncertainty(regression, propagation="smoothing").fit(X, y)


@pytest.mark.parametrize("keep", [0.5, 0.2])
def test_smoothing_on_a_graph_against_dense_matrices(gcn, data, nodes, y, others, keep):
    adjacency = data.adjacency.toarray()
    degree = adjacency.sum(axis=1, keepdims=True)
    mean = np.where(degree > 0, adjacency / np.maximum(degree, 1), np.eye(len(degree)))
    plain = LogitUncertainty(gcn, method="energy").fit(nodes, y)
    share = {"propagation": "smoothing"} | ({} if keep == 0.5 else {"keep": keep})
    smoothed = LogitUncertainty(gcn, method="energy", **share).fit(nodes, y)
    everyone = range(len(adjacency))
    step = keep * np.eye(len(mean)) + (1 - keep) * mean
    expected = step @ step @ plain.predict_uncertainty(everyone).total
    np.testing.assert_allclose(smoothed.predict_uncertainty(everyone).total, expected)
    np.testing.assert_array_equal(smoothed.predict_proba(others), gcn.predict_proba(others))


def test_an_unfitted_model_is_trained(data, nodes, y, gcn):
    weights = {name: value.clone() for name, value in gcn.network_.state_dict().items()}
    fresh = clone(gcn)
    scored = LogitUncertainty(fresh, graph=data.graph).fit(nodes, y)
    np.testing.assert_allclose(scored.predict_proba(nodes), gcn.predict_proba(nodes), atol=1e-6)
    assert not hasattr(fresh, "network_")
    assert all(torch.equal(value, weights[n]) for n, value in gcn.network_.state_dict().items())


def test_energy_is_of_centred_logits_and_no_matter_which_of_two_classes_comes_first(iris):
    X, y = iris
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)).double()
    with torch.no_grad():
        logits = net(torch.tensor(X)).numpy()
    logits -= logits.mean(axis=1, keepdims=True)
    u = LogitUncertainty(net, method="energy").fit(X, y).predict_uncertainty(X)
    np.testing.assert_allclose(u.total, -np.log(np.exp(logits).sum(axis=1)))
    X, y = (part[:100] for part in iris)
    scores = []
    for labels in (y, 1 - y):
        model = LogisticRegression().fit(X, labels)
        scored = LogitUncertainty(model, method="energy").fit(X, labels)
        scores.append(scored.predict_uncertainty(X).total)
    np.testing.assert_allclose(*scores, rtol=1e-3)


LOGITS = torch.tensor([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0], [np.log(3.0), 0.0, -1e4, -1e4]])


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("entropy", [np.log(4), 0, -0.75 * np.log(0.75) - 0.25 * np.log(0.25)]),
        ("max-score", [0.75, 0, 0.25]),
        ("energy", [-np.log(4), -50, -np.log(4)]),
    ],
)
def test_scores_by_hand_and_beyond_the_range_of_the_exponential(score, expected):
    np.testing.assert_allclose(logit_score(LOGITS, score), expected, rtol=1e-6, atol=1e-7)
    shifted = logit_score(LOGITS + 2, score) + (2 if score == "energy" else 0)
    np.testing.assert_allclose(shifted, logit_score(LOGITS, score), atol=1e-7)
    assert np.isfinite(logit_score(torch.tensor([[1e4, -1e4], [-1e4, -1e4]]), score)).all()
