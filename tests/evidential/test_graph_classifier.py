"""The classifier of nodes: it learns, stops early, and behaves as scikit-learn's do."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from skorch.callbacks import Callback

from skuq.evidential import GraphClassifier

QUICK = {"hidden_sizes": (8,), "max_epochs": 8, "random_state": 0}
NAMES = np.array(["cat", "dog", "eel"])


@pytest.fixture
def fit(data, nodes, y):
    def fit(X=nodes, labels=y, sample_weight=None, **settings):
        model = GraphClassifier(data.graph, **{**QUICK, **settings})
        return model.fit(X, labels, sample_weight)

    return fit


@pytest.mark.parametrize("architecture", ["gcn", "gat"])
def test_it_learns(fit, data, others, architecture):
    model = fit(architecture=architecture, hidden_sizes=(16,), max_epochs=40)
    assert model.score(others, data.labels[others]) > 0.85
    losses = model.history_[:, "train_loss"]
    assert losses[-1] < losses[0] / 2
    assert len(losses) == 40


def test_probabilities_are_those_of_the_network(gcn, nodes, y, others):
    proba = gcn.predict_proba(others)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    logits = gcn.network_(gcn.graph_).double().numpy()[others]
    np.testing.assert_allclose(np.diff(np.log(proba)), np.diff(logits), atol=1e-6)
    np.testing.assert_array_equal(gcn.predict(others), proba.argmax(axis=1))
    named = clone(gcn).fit(nodes, NAMES[y])
    assert named.classes_.tolist() == ["cat", "dog", "eel"]
    np.testing.assert_array_equal(named.predict([80, 70, 80]), NAMES[gcn.predict([80, 70, 80])])


def test_best_epoch_is_kept(data, nodes, others):
    """Labels that are learnt by heart: validation gets worse after a while."""
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(150) < 0.4, rng.integers(3, size=150), data.labels)
    settings = {"learning_rate": 0.05, "patience": 15, "dropout": 0.0, "random_state": 0}
    model = GraphClassifier(data.graph, max_epochs=150, **settings)
    model.fit(nodes, noisy[nodes], X_val=others, y_val=noisy[others])
    losses = np.array(model.history_[:, "valid_loss"])
    assert len(losses) == losses.argmin() + 16 < 150
    of_class = model.predict_proba(others)[range(90), noisy[others]]
    assert -np.log(of_class).mean() == pytest.approx(losses.min(), rel=1e-5)


def test_seed_fixes_everything_and_global_random_state_is_left_alone(fit):
    before = torch.get_rng_state()
    seeds = 3, 3, np.random.RandomState(3), np.random.RandomState(3), 4
    one, again, *drawn, other = (fit(random_state=seed).proba_ for seed in seeds)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(*drawn)
    assert np.abs(one - other).max() > 1e-3


def test_weight_counts_as_repetition_and_weight_zero_as_absence(fit, nodes, y):
    twice = fit(sample_weight=1.0 + (nodes < 10)).proba_
    repeated = fit(np.append(nodes, nodes[:10]), np.append(y, y[:10])).proba_
    np.testing.assert_allclose(twice, repeated, atol=1e-4)
    assert np.abs(twice - fit().proba_).max() > 1e-3
    fewer = fit(sample_weight=(nodes < 40).astype(float)).proba_
    np.testing.assert_allclose(fewer, fit(nodes[:40], y[:40]).proba_, atol=1e-4)


def test_fitted_model_is_pickled_and_an_unfitted_one_says_so(gcn, others):
    again = pickle.loads(pickle.dumps(gcn))
    np.testing.assert_array_equal(again.predict_proba(others), gcn.predict_proba(others))
    np.testing.assert_array_equal(*(model.network_(model.graph_) for model in (again, gcn)))
    for method in (clone(gcn).predict, clone(gcn).predict_proba):
        with pytest.raises(NotFittedError):
            method([0])


def test_searches_split_nodes_and_share_the_graph(data, nodes, y):
    model = GraphClassifier(data.graph, **{**QUICK, "learning_rate": 0.05, "max_epochs": 12})
    assert cross_val_score(model, nodes, NAMES[y], cv=2).min() > 0.75
    search = GridSearchCV(model, {"learning_rate": [1e-7, 0.05]}, cv=2)
    search.fit(nodes.reshape(-1, 1), y)
    assert search.best_params_ == {"learning_rate": 0.05}
    for ours, theirs in zip(search.best_estimator_.graph, data.graph, strict=True):
        assert ours is theirs


class Interrupt(Callback):
    def on_epoch_begin(self, net, **kwargs):
        if len(net.history) > 6:
            raise KeyboardInterrupt


def test_callbacks_run_and_an_interrupted_training_keeps_what_was_learnt(fit):
    model = fit(callbacks=[Interrupt()])
    np.testing.assert_array_equal(model.proba_, fit(max_epochs=6).proba_)
