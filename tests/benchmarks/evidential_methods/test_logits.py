"""Scores of a pre-trained model, on tables and on graphs, and against closed forms."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import nn

from benchmarks.evidential_methods import LogitUncertainty
from benchmarks.evidential_methods.logits import logit_score


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def regression(iris):
    return LogisticRegression(max_iter=1000).fit(*iris)


def test_scores_and_predictions_of_a_table(iris, regression):
    X, y = iris
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


def test_propagation_needs_a_graph(iris, regression):
    with pytest.raises(ValueError, match="propagation='smoothing' has no effect without a graph"):
        LogitUncertainty(regression, propagation="smoothing").fit(*iris)


def test_energy_of_log_probabilities_is_that_of_centred_logits(iris):
    X, y = iris
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)).double()
    with torch.no_grad():
        logits = net(torch.tensor(X)).numpy()
    logits -= logits.mean(axis=1, keepdims=True)
    u = LogitUncertainty(net, method="energy").fit(X, y).predict_uncertainty(X)
    np.testing.assert_allclose(u.total, -np.log(np.exp(logits).sum(axis=1)))


def test_energy_does_not_depend_on_which_of_two_classes_comes_first(iris):
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
