"""The classifier of nodes: it learns, stops early, and behaves as scikit-learn's do."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from skorch.callbacks import Callback

from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, as_node_graph

QUICK = {"hidden_sizes": (8,), "max_epochs": 10, "random_state": 0}
NAMES = np.array(["cat", "dog", "eel"])


@pytest.mark.parametrize("architecture", ["gcn", "gat"])
def test_it_learns(data, nodes, others, y, architecture):
    model = GraphClassifier(
        data.graph, architecture=architecture, hidden_sizes=(16,), max_epochs=40, random_state=0
    )
    assert model.fit(nodes, y).score(others, data.labels[others]) > 0.85


@pytest.mark.slow
def test_edges_help_where_features_hardly_do():
    data = make_node_classes(300, separation=0.25, homophily=0.95, random_state=0)
    train, test = np.arange(150), np.arange(150, 300)
    alone = 0 * data.adjacency, data.features
    scores = [
        GraphClassifier(graph, max_epochs=60, random_state=0)
        .fit(train, data.labels[train])
        .score(test, data.labels[test])
        for graph in (data.graph, alone)
    ]
    assert scores[0] > scores[1] + 0.15


def test_probabilities_are_those_of_the_network(gcn, others):
    proba = gcn.predict_proba(others)
    assert proba.shape == (len(others), 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    logits = gcn.network_(gcn.graph_).double().numpy()[others]
    np.testing.assert_allclose(np.diff(np.log(proba)), np.diff(logits), atol=1e-6)
    np.testing.assert_array_equal(gcn.predict(others), proba.argmax(axis=1))


def test_ids_may_be_a_column_or_a_series(gcn):
    expected = gcn.predict_proba([5, 3, 5])
    for X in ([[5], [3], [5]], pd.Series([5, 3, 5], index=list("xyz")), np.array([5.0, 3, 5])):
        np.testing.assert_array_equal(gcn.predict_proba(X), expected)


def cross_entropy(model, ids, labels):
    proba = model.predict_proba(ids)
    codes = np.searchsorted(model.classes_, labels)
    return -np.log(proba[np.arange(len(ids)), codes]).mean()


@pytest.fixture(scope="module")
def noisy(data, others):
    """Labels that are learnt by heart: validation gets worse after a while."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(len(data.labels)) < 0.4, rng.integers(3, size=150), data.labels)


@pytest.mark.parametrize("max_epochs", [20, 150])
def test_best_epoch_is_kept(data, nodes, others, noisy, max_epochs):
    model = GraphClassifier(
        data.graph,
        learning_rate=0.05,
        patience=15,
        max_epochs=max_epochs,
        dropout=0.0,
        random_state=0,
    )
    model.fit(nodes, noisy[nodes], X_val=others, y_val=noisy[others])
    losses = np.array(model.history_[:, "valid_loss"])
    best = losses.argmin()
    assert best < len(losses) - 1
    assert len(losses) == min(best + 15 + 1, max_epochs)
    assert cross_entropy(model, others, noisy[others]) == pytest.approx(losses.min(), rel=1e-5)


def test_without_validation_all_epochs_run(data, nodes, y):
    model = GraphClassifier(data.graph, **QUICK).fit(nodes, y)
    assert len(model.history_) == 10
    assert "valid_loss" not in model.history_[-1]


def test_training_lowers_the_loss(gcn):
    losses = gcn.history_[:, "train_loss"]
    assert losses[-1] < losses[0] / 2


def test_seed_fixes_everything(data, nodes, y):
    def fit(seed):
        return GraphClassifier(data.graph, **{**QUICK, "random_state": seed}).fit(nodes, y)

    np.testing.assert_array_equal(fit(3).proba_, fit(3).proba_)
    np.testing.assert_array_equal(
        fit(np.random.RandomState(3)).proba_, fit(np.random.RandomState(3)).proba_
    )
    assert np.abs(fit(3).proba_ - fit(4).proba_).max() > 1e-3


def test_global_random_state_is_left_alone(data, nodes, y):
    before = torch.get_rng_state()
    GraphClassifier(data.graph, **QUICK).fit(nodes, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_weight_counts_as_repetition(data, nodes, y):
    weight = np.ones(len(nodes))
    weight[:10] = 2
    weighted = GraphClassifier(data.graph, **QUICK).fit(nodes, y, sample_weight=weight)
    repeated = GraphClassifier(data.graph, **QUICK).fit(
        np.concatenate([nodes, nodes[:10]]), np.concatenate([y, y[:10]])
    )
    np.testing.assert_allclose(weighted.proba_, repeated.proba_, atol=1e-4)
    plain = GraphClassifier(data.graph, **QUICK).fit(nodes, y)
    assert np.abs(weighted.proba_ - plain.proba_).max() > 1e-3


def test_weight_zero_counts_as_absence(data, nodes, y):
    weight = (nodes < 40).astype(float)
    weighted = GraphClassifier(data.graph, **QUICK).fit(nodes, y, sample_weight=weight)
    fewer = GraphClassifier(data.graph, **QUICK).fit(nodes[:40], y[:40])
    np.testing.assert_allclose(weighted.proba_, fewer.proba_, atol=1e-4)


def test_labels_may_be_text(data, nodes, y, gcn, others):
    model = clone(gcn).fit(nodes, NAMES[y])
    assert model.classes_.tolist() == ["cat", "dog", "eel"]
    np.testing.assert_array_equal(model.predict(others), NAMES[gcn.predict(others)])


def test_graph_is_shared_and_unchanged(data, nodes, y):
    graph = as_node_graph(data.graph)
    before = graph.adjacency.copy(), graph.features.clone()
    model = GraphClassifier(graph, **QUICK).fit(nodes, y)
    assert model.graph_ is graph
    assert clone(model).graph is graph
    assert not hasattr(clone(model), "proba_")
    assert (graph.adjacency != before[0]).nnz == 0
    assert graph.features.equal(before[1])


def test_fitted_model_is_pickled(gcn, others):
    again = pickle.loads(pickle.dumps(gcn))
    np.testing.assert_array_equal(again.predict_proba(others), gcn.predict_proba(others))
    np.testing.assert_array_equal(
        again.network_(again.graph_).numpy(), gcn.network_(gcn.graph_).numpy()
    )


def test_cross_validation_splits_nodes(data, nodes, y):
    model = GraphClassifier(data.graph, hidden_sizes=(16,), max_epochs=25, random_state=0)
    scores = cross_val_score(model, nodes, NAMES[y], cv=2)
    assert scores.min() > 0.75


def test_grid_search_finds_the_better_setting(data, nodes, y):
    search = GridSearchCV(
        GraphClassifier(data.graph, **QUICK), {"learning_rate": [1e-7, 0.05]}, cv=2
    )
    search.fit(nodes.reshape(-1, 1), y)
    assert search.best_params_ == {"learning_rate": 0.05}
    for ours, theirs in zip(search.best_estimator_.graph, data.graph, strict=True):
        assert ours is theirs


def test_callbacks_of_the_user_run(data, nodes, y):
    class Count(Callback):
        def on_epoch_end(self, net, **kwargs):
            epochs.append(len(net.history))

    epochs = []
    GraphClassifier(data.graph, callbacks=[Count()], **QUICK).fit(nodes, y)
    assert epochs == list(range(1, 11))


class Interrupt(Callback):
    def __init__(self, after):
        self.after = after

    def on_epoch_begin(self, net, **kwargs):
        if len(net.history) > self.after:
            raise KeyboardInterrupt


def test_interrupted_training_keeps_what_was_learnt(data, nodes, y):
    model = GraphClassifier(data.graph, callbacks=[Interrupt(6)], **QUICK).fit(nodes, y)
    assert np.isfinite(model.predict_proba(nodes)).all()
    shorter = GraphClassifier(data.graph, **{**QUICK, "max_epochs": 6}).fit(nodes, y)
    np.testing.assert_array_equal(model.proba_, shorter.proba_)


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_prediction_needs_a_fit(data, method):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(GraphClassifier(data.graph), method)([0])


def test_wrong_data_is_refused(data, nodes, y):
    with pytest.raises(ValueError, match="Pass both `X_val` and `y_val`"):
        GraphClassifier(data.graph, **QUICK).fit(nodes, y, X_val=[70])


def test_features_with_nan_are_refused(data, nodes, y):
    features = data.features.copy()
    features[140, 2] = np.nan
    with pytest.raises(ValueError, match="Node features contain NaN"):
        GraphClassifier((data.adjacency, features), **QUICK).fit(nodes, y)


def test_settings_of_the_network_arrive(data, nodes, y):
    model = GraphClassifier(
        data.graph, **{**QUICK, "hidden_sizes": [6, 5]}, batch_norm=True, dropout=0.1
    ).fit(nodes, y)
    assert [norm.num_features for norm in model.network_.norms] == [6, 5]
    assert model.network_.dropout.p == 0.1
