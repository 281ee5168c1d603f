"""The probe on rows and on a graph: it leaves the model alone and reads evidence for each."""

import pickle
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from skorch import NeuralNetClassifier
from torch import nn

from skuq import EvidentialProbe, predict_uncertainty
from skuq._networks import LeNet, linear_layer
from skuq.evidential import EvidenceLoss, as_node_graph, dirichlet_uncertainty, propagate
from tests.evidential.probes import new_probe

X, Y = load_iris(return_X_y=True)
X = scale(X)


@pytest.fixture
def logistic():
    return LogisticRegression().fit(X, Y)


def test_predictions_are_the_model_s_and_need_no_dgl(logistic, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    for settings in ({}, {"head": "network"}):
        probe = EvidentialProbe(logistic, max_epochs=30, random_state=0, **settings).fit(X, Y)
        np.testing.assert_allclose(probe.predict_proba(X), logistic.predict_proba(X), atol=1e-6)
        np.testing.assert_array_equal(probe.predict(X), logistic.predict(X))
        alpha = probe.predict_dirichlet(X)
        assert (alpha > 0).all()
        assert (alpha.sum(axis=1) >= 3).all()
        assert np.unique(probe.predict_uncertainty(X).epistemic).size > 100


def test_uncertainty_does_not_depend_on_which_of_two_classes_comes_first():
    rows, codes = X[Y < 2], Y[Y < 2]
    probe = EvidentialProbe(LogisticRegression(), max_epochs=30, random_state=0)
    found = (probe.fit(rows, y).predict_uncertainty(rows).epistemic for y in (codes, 1 - codes))
    np.testing.assert_allclose(*found, rtol=0.01)


def test_class_weights_are_the_user_s_wish():
    weighted = LogisticRegression(class_weight={0: 1e-9, 1: 1, 2: 1e-9}).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_probe(weighted).fit(X, Y)


def test_images_and_constant_representations_are_taken():
    torch.manual_seed(0)
    module = LeNet(3, (1, 16, 16)).eval()
    images = np.random.default_rng(0).normal(size=(40, 1, 16, 16)).astype(np.float32)
    probe = new_probe(FrozenEstimator(module), layer=-2).fit(images, np.arange(40) % 3)
    with torch.no_grad():
        expected = module(torch.tensor(images)).softmax(dim=1).numpy()
    np.testing.assert_allclose(probe.predict_proba(images), expected, atol=1e-5)
    assert probe.head_.layers[0].in_features == 84
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    nn.init.zeros_(model[0].weight)
    probe = new_probe(model, layer=-2).fit(X, Y)
    assert np.unique(probe.predict_uncertainty(X).epistemic).size == 1


def test_grid_search_shares_a_fitted_model_and_trains_one_that_is_not(logistic):
    probe = new_probe(logistic, max_epochs=2, pcl_weight=0.0)
    search = GridSearchCV(probe, {"loss__pcl_weight": [0.0, 1e-2]}, cv=2, error_score="raise")
    assert search.fit(X, Y).best_estimator_.estimator is logistic
    assert predict_uncertainty(search, X).total.shape == (150,)
    probe = new_probe(LogisticRegression(), max_epochs=2)
    search = GridSearchCV(probe, {"estimator__C": [1.0, 1e-9]}, cv=2, scoring="neg_log_loss")
    assert search.fit(X, Y).best_params_ == {"estimator__C": 1.0}
    assert not hasattr(probe.estimator, "coef_")
    assert clone(probe).estimator is not probe.estimator


def test_validation_data_do_not_train(logistic):
    plain = new_probe(logistic).fit(X, Y)
    validated = new_probe(logistic).fit(X, Y, X_val=X[:9] + 3, y_val=Y[:9])
    assert plain.history_[0, "train_loss"] == validated.history_[0, "train_loss"]
    best = int(np.argmin(validated.history_[:, "valid_loss"])) + 1
    shorter = new_probe(logistic, max_epochs=best).fit(X, Y)
    found, expected = (each.predict_dirichlet(X) for each in (validated, shorter))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("measure", ["vacuity", "information"])
def test_huge_logits_give_finite_results(logistic, measure):
    logistic.coef_ *= 1e4
    probe = new_probe(logistic, measure=measure).fit(X, Y)
    far = np.vstack([X, 1e6 * X])
    assert (probe.predict_dirichlet(far) > 0).all()
    assert np.isfinite(probe.predict_uncertainty(far)).all()


@pytest.mark.parametrize(("ice_weight", "pcl_weight"), [(1.0, 0.0), (100.0, 0.0), (1e-2, 1e-2)])
def test_intra_class_evidence_ranks_the_origin_as_most_uncertain(ice_weight, pcl_weight):
    """Section 5 of the paper: known classes around -mu and mu, and others around 0."""
    rng, y, mu = np.random.default_rng(0), np.repeat([0, 1], 150), np.array([5.0, 2.0])
    known = np.where(y[:, None] == 1, mu, -mu) + rng.normal(size=(300, 2))
    # The classifier that knows the densities: log odds are 2 mu z.
    bayes = linear_layer(torch.tensor(np.stack([-mu, mu])), torch.zeros(2).double())
    settings = {"learning_rate": 0.1, "max_epochs": 80, "layer": -2}
    probe = new_probe(bayes, ice_weight=ice_weight, pcl_weight=pcl_weight, **settings).fit(known, y)
    everyone = np.vstack([known, rng.normal(size=(300, 2))])
    vacuity = probe.predict_uncertainty(everyone).epistemic
    assert roc_auc_score(np.repeat([0, 1], 300), vacuity) > 0.9
    if not pcl_weight:
        vacuity = probe.predict_uncertainty(np.array([0 * mu, mu, -mu])).epistemic
        assert vacuity[0] > vacuity[1:].max() + 0.1


NAMES = np.array(["cat", "dog", "eel"])
PLAIN = {"ice_weight": 0.0, "pcl_weight": 0.0}
EVERYONE = np.arange(150)


class Rows(nn.Module):
    """A model that looks at each node alone: logits and hidden units are easily computed."""

    takes_node_graph = True

    def __init__(self, n_classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, n_classes)

    def forward(self, graph):
        return self.linear(graph.features)


def test_labels_in_another_order_than_the_outputs_of_a_network_warn(data, gcn, nodes, y):
    probe = new_probe(gcn.network_, graph=data.graph)
    with pytest.warns(UserWarning, match=r"order.*\('cat', 'dog', 'eel'\)"):
        probe.fit(nodes, NAMES[[1, 2, 0]][y])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe.fit(nodes, NAMES[y]).classes_.tolist() == NAMES.tolist()


def test_concentration_is_evidence_times_probability(probe, gcn, others):
    alpha = probe.predict_dirichlet(others)
    with torch.no_grad():
        evidence = probe.head_(gcn.network_(gcn.graph_)).sum(dim=1).numpy()[others]
    expected = (3 + evidence)[:, None] * gcn.predict_proba(others)
    np.testing.assert_allclose(alpha, expected, rtol=1e-5)
    np.testing.assert_array_equal(alpha, probe.alpha_[others])
    assert probe.classes_.tolist() == gcn.classes_.tolist()


@pytest.mark.parametrize("scheme", [None, "vacuity", "evidence", "both"])
def test_propagation_is_applied_to_what_is_found_without(probe, gcn, nodes, y, others, scheme):
    found = new_probe(gcn, propagation=scheme).fit(nodes, y)
    expected = propagate(gcn.graph_.adjacency, probe.alpha_, scheme)
    np.testing.assert_allclose(found.alpha_, expected)
    assert (np.abs(expected / probe.alpha_ - 1).max() > 0.01) == (scheme is not None)
    if scheme in (None, "vacuity"):  # predictions are the model's
        theirs = gcn.predict_proba(others)
        np.testing.assert_allclose(found.predict_proba(others), theirs, rtol=1e-9, atol=1e-300)
        np.testing.assert_array_equal(found.predict(others), gcn.predict(others))


@pytest.mark.parametrize("measure", ["vacuity", "information"])
def test_uncertainty_is_that_of_the_concentrations(gcn, nodes, y, others, measure):
    probe = new_probe(gcn, measure=measure).fit(nodes, y)
    expected = dirichlet_uncertainty(probe.predict_dirichlet(others), measure)
    for found in (probe.predict_uncertainty(others), predict_uncertainty(probe, others)):
        np.testing.assert_array_equal(found, expected)


def test_clones_and_searches_share_graph_and_model(data, gcn, nodes, y):
    graph, pair, module = as_node_graph(data.graph), (data.adjacency, data.features), Rows()
    for model, given in [(module, pair), (gcn, graph), (gcn, None)]:
        twin = clone(clone(new_probe(model, graph=given, hidden_sizes=[3])))
        assert twin.estimator is model
        assert twin.graph is given
    probe = new_probe(gcn, graph=graph, max_epochs=2)
    search = GridSearchCV(probe, {"loss__ice_weight": [0.0, 1e-2]}, cv=2, error_score="raise")
    best = search.fit(nodes, y).best_estimator_
    assert (best.graph_, best.estimator) == (graph, gcn)
    assert predict_uncertainty(search, nodes).total.shape == (60,)


def test_seed_fixes_everything_and_a_second_fit_forgets_the_first(gcn, probe, nodes, y, data):
    other = new_probe(gcn, random_state=2).fit(nodes, y)
    assert np.abs(other.alpha_ / probe.alpha_ - 1).max() > 1e-3
    twice = new_probe(Rows(), graph=data.graph).fit(nodes, y)
    twice.set_params(estimator=gcn, graph=None).fit(nodes, y)
    np.testing.assert_array_equal(twice.alpha_, probe.alpha_)
    # A failed fit leaves an earlier one alone.
    twice.set_params(graph=(data.adjacency[:50, :50], data.features[:50]), head__layer="nope")
    with pytest.raises(ValueError, match="`layer`='nope'"):
        twice.fit(range(50), data.labels[:50])
    again = pickle.loads(pickle.dumps(twice))
    np.testing.assert_array_equal(again.predict_dirichlet([100]), probe.predict_dirichlet([100]))


def test_masks_of_nodes_are_taken_and_scored(gcn, probe, data, nodes, y, others):
    mask, weight = np.isin(EVERYONE, nodes), np.arange(len(others))
    expected = probe.predict_uncertainty(others)
    for X, labels in ((mask, y), (mask, data.labels), (torch.tensor(mask), data.labels)):
        assert new_probe(gcn).fit(X, labels).predict_uncertainty(~mask) == expected
    for model in (gcn, probe):
        expected = model.score(others, data.labels[others])
        for labels in (data.labels[others], data.labels, torch.tensor(data.labels)):
            assert model.score(~mask, labels) == expected
        expected = model.score(others, data.labels[others], weight)
        assert model.score(~mask, data.labels, weight) == expected


@pytest.mark.parametrize(("ice_weight", "pcl_weight"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)])
def test_unlabelled_nodes_enter_the_regularisers_alone(data, nodes, y, ice_weight, pcl_weight):
    swapped = data.features.copy()  # in some columns: means and scales stay
    swapped[[100, 101], :3] = swapped[[101, 100], :3]
    settings = {"layer": -2, "ice_weight": ice_weight, "pcl_weight": pcl_weight}
    ours, theirs = (
        new_probe(Rows(), graph=(data.adjacency, features), **settings).fit(nodes, y).head_
        for features in (data.features, swapped)
    )
    gap = (ours.layers[0].weight - theirs.layers[0].weight).abs().max()
    assert gap > 1e-4 if ice_weight or pcl_weight else gap < 1e-5


def test_weights_of_labels_and_repeated_labels(gcn, data, nodes, y):
    def alpha(X=nodes, labels=y, weight=None, **settings):
        return new_probe(gcn, **settings).fit(X, labels, sample_weight=weight).alpha_

    assert np.abs(alpha(labels=np.roll(y, 1), **PLAIN) / alpha(**PLAIN) - 1).max() > 1e-3
    fewer = alpha(weight=(nodes < 40).astype(float))
    np.testing.assert_allclose(fewer, alpha(nodes[:40], y[:40]), rtol=1e-5)
    thrice = np.r_[nodes, nodes[:20], nodes[:20]], np.r_[y, y[:20], y[:20]]
    weighted = alpha(weight=1.0 + 2 * (nodes < 20), **PLAIN)
    np.testing.assert_allclose(weighted, alpha(*thrice, **PLAIN), rtol=1e-4)
    # As many labels as there are nodes, of some nodes and of all.
    ids, labels = np.resize(nodes, 150), np.resize(y, 150)
    np.testing.assert_allclose(alpha(ids, labels), alpha(ids[:149], labels[:149]), rtol=0.01)
    one_less = alpha(EVERYONE[:-1], data.labels[:-1])
    np.testing.assert_allclose(alpha(EVERYONE, data.labels), one_less, rtol=0.05)


def test_validation_may_hold_any_class_that_the_model_knows(gcn, data, nodes, y, others):
    few, mask = y != 1, EVERYONE >= 60
    for model, X_val, y_val in [
        (gcn, mask, data.labels),
        (Rows(), others, data.labels[others]),
        (Rows(), mask, data.labels),
    ]:
        probe = new_probe(model, graph=data.graph, max_epochs=2)
        probe.fit(nodes[few], y[few], X_val=X_val, y_val=y_val)
        assert probe.classes_.tolist() == [0, 1, 2]
    probe = new_probe(Rows(n_classes=2), graph=data.graph)
    with pytest.raises(ValueError, match=r"`y_val` .*\[1\] not in \[0, 2\]"):
        probe.fit(nodes[few], y[few], X_val=others, y_val=data.labels[others])


def test_prediction_needs_a_fit_and_nodes_of_the_graph(gcn, probe):
    with pytest.raises(NotFittedError):
        clone(probe).predict([0])
    for method in (probe.predict, probe.predict_proba, probe.predict_uncertainty):
        with pytest.raises(ValueError, match="Node ids"):
            method([150])


def test_by_default_evidence_is_the_models_at_the_level_asked_and_vacuity_is_diffused(
    gcn, nodes, y
):
    probe, plain = (
        EvidentialProbe(gcn, propagation=scheme, max_epochs=20, random_state=0).fit(nodes, y)
        for scheme in ("auto", None)
    )
    logits = gcn.network_(gcn.graph_).detach().double()
    scale, level = float(plain.head_.log_scale.exp()), float(plain.head_.offset)
    expected = (scale * logits + level).exp().sum(dim=1).numpy()
    np.testing.assert_allclose(plain.alpha_.sum(axis=1) - 3, expected, rtol=5e-3)
    diffused = propagate(gcn.graph_.adjacency, plain.alpha_, "diffusion")
    np.testing.assert_allclose(probe.alpha_, diffused)
    np.testing.assert_allclose(probe.predict_proba(nodes), gcn.predict_proba(nodes), rtol=1e-12)
    loss = EvidenceLoss(evidence_id=10.0)
    probe = EvidentialProbe(gcn, propagation=None, loss=loss, max_epochs=1, learning_rate=1e-9)
    evidence = probe.fit(nodes, y).alpha_[nodes].sum(axis=1) - 3
    assert np.log(evidence).mean() == pytest.approx(np.log(10), rel=1e-3)


class Shuffled(nn.Module):
    takes_node_graph = True

    def __init__(self, network, order):
        super().__init__()
        self.network, self.order = network, order

    def forward(self, graph):
        return self.network(graph)[:, self.order]


@pytest.mark.parametrize(("head", "rtol"), [("logits", 1e-5), ("network", 0.2)])
def test_classes_in_any_order_keep_their_names(gcn, data, nodes, y, head, rtol):
    order = [1, 2, 0]
    module, classes = Shuffled(gcn.network_, order), gcn.classes_[order]
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, classes=classes).initialize()
    settings = {"graph": data.graph, "head": head, "max_epochs": 40, "random_state": 0}
    probe, straight = (EvidentialProbe(model, **settings).fit(nodes, y) for model in (net, gcn))
    np.testing.assert_array_equal(probe.classes_, gcn.classes_)
    np.testing.assert_array_equal(probe.predict(nodes), gcn.predict(nodes))
    np.testing.assert_allclose(probe.alpha_, straight.alpha_, rtol=rtol)


@pytest.mark.parametrize("scheme", ["auto", None])
def test_another_graph_is_answered_by_the_same_head(gcn, data, nodes, y, scheme):
    probe = new_probe(gcn, propagation=scheme).fit(nodes, y)
    order = np.random.default_rng(0).permutation(150)
    adjacency, features = data.adjacency.toarray()[np.ix_(order, order)], data.features[order]
    other = probe.with_graph((adjacency, features))
    found, expected = other.predict_dirichlet(EVERYONE), probe.predict_dirichlet(order)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    smaller = probe.with_graph((adjacency[:9, :9], features[:9]))
    assert probe.graph_.n_nodes == 150
    assert len(smaller.predict_uncertainty(np.ones(9, bool))) == 9
    with pytest.raises(ValueError, match="between 0 and 8"):
        smaller.predict_uncertainty([9])
