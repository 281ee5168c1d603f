"""The probe on a graph: it leaves the model alone and reads evidence for every node."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.evidential_methods import EvidentialGNN
from skuq import EvidentialProbe, ReferenceClassifier, predict_uncertainty
from skuq.evidential import (
    EvidenceLoss,
    GraphClassifier,
    as_node_graph,
    dirichlet_uncertainty,
    propagate,
)
from skuq.models import adopt
from tests.evidential.probes import new_probe

NAMES = np.array(["cat", "dog", "eel"])
SCHEMES = [None, "vacuity", "evidence", "both"]


class Rows(nn.Module):
    """A model that looks at each node alone: logits and hidden units are easily computed."""

    takes_node_graph = True

    def __init__(self, n_features=6, n_classes=3, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(n_features, n_classes)
        self.factor = factor

    def forward(self, graph):
        return self.factor * self.linear(graph.features)


@pytest.fixture(scope="module")
def probe(gcn, nodes, y):
    return new_probe(gcn).fit(nodes, y)


def test_labels_in_another_order_than_the_outputs_of_a_network_warn(data, gcn, nodes, y):
    network, codes = gcn.network_, np.array([1, 2, 0])
    message = r"worse than guessing.*sorted order of the labels.*\('cat', 'dog', 'eel'\)"
    with pytest.warns(UserWarning, match=message) as caught:
        new_probe(network, graph=data.graph).fit(nodes, NAMES[codes][y])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_probe(network, graph=data.graph).fit(nodes, NAMES[y])


def test_labels_in_another_order_warn_without_a_graph_too():
    X, y = make_blobs(60, centers=3, random_state=0)
    network = adopt(LogisticRegression().fit(X, y)).module
    with pytest.warns(UserWarning, match="worse than guessing"):
        new_probe(network).fit(X.astype(np.float32), (y + 1) % 3)


def test_concentration_is_evidence_times_probability(probe, gcn, others):
    alpha = probe.predict_dirichlet(others)
    with torch.no_grad():
        evidence = probe.head_(gcn.network_(gcn.graph_)).sum(dim=1).numpy()[others]
    np.testing.assert_allclose(
        alpha, (3 + evidence)[:, None] * gcn.predict_proba(others), rtol=1e-5
    )
    assert (alpha > 0).all()
    assert (alpha.sum(axis=1) >= 3).all()
    np.testing.assert_array_equal(alpha, probe.alpha_[others])


@pytest.mark.parametrize("scheme", [None, "vacuity"])
def test_predictions_are_the_model_s_unless_they_are_smoothed(gcn, nodes, y, others, scheme):
    probe = new_probe(gcn, propagation=scheme).fit(nodes, y)
    np.testing.assert_allclose(
        probe.predict_proba(others), gcn.predict_proba(others), rtol=1e-9, atol=1e-300
    )
    np.testing.assert_array_equal(probe.predict(others), gcn.predict(others))
    assert probe.classes_.tolist() == gcn.classes_.tolist()


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_propagation_is_applied_to_what_is_found_without(probe, gcn, nodes, y, scheme):
    smoothed = new_probe(gcn, propagation=scheme).fit(nodes, y)
    expected = propagate(gcn.graph_.adjacency, probe.alpha_, scheme)
    np.testing.assert_allclose(smoothed.alpha_, expected)
    assert np.abs(expected / probe.alpha_ - 1).max() > 0.01


@pytest.mark.parametrize("measure", ["vacuity", "information"])
def test_uncertainty_is_that_of_the_concentrations(gcn, nodes, y, others, measure):
    probe = new_probe(gcn, measure=measure).fit(nodes, y)
    expected = dirichlet_uncertainty(probe.predict_dirichlet(others), measure)
    for found in (probe.predict_uncertainty(others), predict_uncertainty(probe, others)):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(expected.total, expected.aleatoric + expected.epistemic)
    np.testing.assert_array_equal(probe.score_samples(others), -expected.epistemic)


def frozen_state(model):
    return copy.deepcopy(model.network_.state_dict()), model.proba_.copy()


def test_model_is_not_changed(gcn, nodes, y):
    network, (weights, proba) = gcn.network_, frozen_state(gcn)
    new_probe(gcn, layer=-2, propagation="both").fit(nodes, y)
    assert gcn.network_ is network
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, weights[name])
    np.testing.assert_array_equal(gcn.proba_, proba)


class Recording(EvidentialProbe):
    """Says what each of its fits was given."""

    seen = []

    def fit(self, X, y, **kwargs):
        self.seen.append((self.graph, self.estimator))
        return super().fit(X, y, **kwargs)


def test_grid_search_shares_graph_and_model(data, gcn, nodes, y):
    graph = as_node_graph(data.graph)
    Recording.seen = []
    search = GridSearchCV(
        Recording(gcn, graph=graph, loss=EvidenceLoss(), max_epochs=5, random_state=0),
        {"loss__ice_weight": [0.0, 1e-2]},
        cv=2,
        error_score="raise",
    )
    search.fit(nodes, y)
    assert len(Recording.seen) == 5
    assert all(seen == (graph, gcn) for seen in Recording.seen)
    assert search.best_estimator_.graph_ is graph
    assert predict_uncertainty(search, nodes).total.shape == (60,)


def test_clones_share_what_is_large_in_any_form(data, gcn):
    pair, module = (data.adjacency, data.features), Rows()
    for model, graph in [(module, pair), (gcn, as_node_graph(pair)), (gcn, None)]:
        twin = clone(clone(new_probe(model, graph=graph, hidden_sizes=[3])))
        assert twin.estimator is model
        assert twin.graph is graph


def test_cross_validation_scores_the_model(gcn, nodes, y):
    scores = cross_val_score(new_probe(gcn), nodes, y, cv=3, error_score="raise")
    expected = [gcn.score(part, y[part]) for _, part in StratifiedKFold(3).split(nodes, y)]
    np.testing.assert_allclose(scores, expected)


@pytest.mark.parametrize(("layer", "width"), [(-1, 3), (-2, 8), (-3, 6), ("layers.0", 8)])
def test_layer_decides_what_the_probe_reads(gcn, nodes, y, layer, width):
    probe = new_probe(gcn, layer=layer).fit(nodes, y)
    assert probe.head_.layers[0].in_features == width


@pytest.mark.parametrize(
    ("layer", "message"),
    [(-4, "evaluated only 2"), ("nope", "has no module `layer`='nope'")],
)
def test_layer_that_does_not_exist_is_refused(gcn, nodes, y, layer, message):
    with pytest.raises(ValueError, match=message):
        new_probe(gcn, layer=layer).fit(nodes, y)


def test_seed_fixes_everything(gcn, nodes, y):
    def alpha(seed):
        return new_probe(gcn, max_epochs=5, random_state=seed).fit(nodes, y).alpha_

    np.testing.assert_array_equal(alpha(1), alpha(1))
    assert np.abs(alpha(1) / alpha(2) - 1).max() > 1e-3


def test_fitted_probe_is_pickled(probe, others):
    again = pickle.loads(pickle.dumps(probe))
    np.testing.assert_array_equal(again.predict_dirichlet(others), probe.predict_dirichlet(others))
    assert again.graph_.n_nodes == probe.graph_.n_nodes


def test_nodes_and_labels_may_be_pandas(probe, gcn, nodes, y):
    again = new_probe(gcn).fit(pd.Series(nodes, index=nodes + 7), pd.Series(y))
    np.testing.assert_array_equal(again.alpha_, probe.alpha_)
    np.testing.assert_array_equal(
        again.predict(pd.DataFrame({"id": [3, 4]})), probe.predict([3, 4])
    )


def test_labels_may_be_text(data, gcn, probe, nodes, y, others):
    model = clone(gcn).fit(nodes, NAMES[y])
    again = new_probe(model).fit(nodes, NAMES[y])
    np.testing.assert_array_equal(again.predict(others), NAMES[probe.predict(others)])


def test_module_without_labels_takes_those_of_the_training(data, nodes, y):
    probe = new_probe(Rows(), graph=data.graph).fit(nodes, NAMES[y])
    assert probe.classes_.tolist() == NAMES.tolist()


def test_isolated_nodes_and_loops(data, nodes, y):
    adjacency = data.adjacency.tolil()
    adjacency[140:, :], adjacency[:, 140:] = 0, 0
    adjacency.setdiag(1)
    probes = [
        new_probe(Rows(), graph=(adjacency, data.features), propagation=scheme)
        for scheme in SCHEMES
    ]
    alphas = [probe.fit(nodes, y).alpha_ for probe in probes]
    assert np.isfinite(alphas).all()
    for alpha in alphas[1:]:
        np.testing.assert_allclose(alpha[140:], alphas[0][140:])


def test_all_nodes_may_be_labelled(data, gcn):
    everyone = np.arange(150)
    probe = new_probe(gcn).fit(everyone, data.labels)
    assert np.isfinite(probe.alpha_).all()
    one_less = new_probe(gcn).fit(everyone[:-1], data.labels[:-1])
    np.testing.assert_allclose(probe.alpha_, one_less.alpha_, rtol=0.05)


def swapped(data, a, b):
    """Features of two nodes exchanged in some columns: means and scales stay."""
    features = data.features.copy()
    features[[a, b], :3] = features[[b, a], :3]
    return data.adjacency, features


@pytest.mark.parametrize(
    ("settings", "matters"),
    [
        ({"ice_weight": 0.0, "pcl_weight": 0.0}, False),
        ({"ice_weight": 0.1, "pcl_weight": 0.0}, True),
        ({"ice_weight": 0.0, "pcl_weight": 0.1}, True),
    ],
)
def test_unlabelled_nodes_enter_the_regularisers_alone(data, nodes, y, settings, matters):
    heads = [
        new_probe(Rows(), graph=graph, layer=-2, **settings).fit(nodes, y).head_
        for graph in (data.graph, swapped(data, 100, 101))
    ]
    gap = (heads[0].layers[0].weight - heads[1].layers[0].weight).abs().max()
    assert gap > 1e-4 if matters else gap < 1e-5


def test_labelled_nodes_enter_the_first_term(data, nodes, y):
    plain = {"ice_weight": 0.0, "pcl_weight": 0.0}
    heads = [
        new_probe(Rows(), graph=data.graph, layer=-2, **plain).fit(nodes, labels)
        for labels in (y, np.roll(y, 1))
    ]
    gap = heads[0].head_.layers[0].weight - heads[1].head_.layers[0].weight
    assert gap.abs().max() > 1e-3


def test_weight_zero_is_no_label(gcn, nodes, y):
    weight = (nodes < 40).astype(float)
    weighted = new_probe(gcn).fit(nodes, y, sample_weight=weight)
    fewer = new_probe(gcn).fit(nodes[:40], y[:40])
    np.testing.assert_allclose(weighted.alpha_, fewer.alpha_, rtol=1e-5)


def test_weight_counts_as_repetition(gcn, nodes, y):
    plain = {"ice_weight": 0.0, "pcl_weight": 0.0}
    weight = np.ones(60)
    weight[:20] = 3
    weighted = new_probe(gcn, **plain).fit(nodes, y, sample_weight=weight)
    repeated = new_probe(gcn, **plain).fit(
        np.r_[nodes, nodes[:20], nodes[:20]], np.r_[y, y[:20], y[:20]]
    )
    np.testing.assert_allclose(weighted.alpha_, repeated.alpha_, rtol=1e-4)


def test_repeated_nodes_do_not_pass_for_all_nodes(gcn, nodes, y):
    ids, labels = np.resize(nodes, 150), np.resize(y, 150)  # as many as there are nodes
    repeated = new_probe(gcn).fit(ids, labels)
    fewer = new_probe(gcn).fit(ids[:149], labels[:149])
    np.testing.assert_allclose(repeated.alpha_, fewer.alpha_, rtol=0.01)


def test_best_epoch_is_kept(gcn, nodes, y, others, data):
    settings = {"learning_rate": 0.1, "patience": 5, "max_epochs": 300, "random_state": 0}
    probe = new_probe(gcn, ice_weight=0, pcl_weight=0, **settings)
    wrong = (data.labels[others] + (others % 3 == 0)) % 3  # more evidence soon does harm
    probe.fit(nodes, y, X_val=others, y_val=wrong)
    losses = np.array(probe.history_[:, "valid_loss"])
    assert len(losses) < 300
    assert losses.argmin() == len(losses) - 6
    alpha = torch.tensor(probe.alpha_[others])
    kept = torch.digamma(alpha.sum(dim=1)) - torch.digamma(alpha[range(90), wrong])
    assert kept.mean().item() == pytest.approx(losses.min(), rel=1e-3)


def test_huge_logits_give_finite_results(data, nodes, y):
    probe = new_probe(Rows(factor=1e4), graph=data.graph).fit(nodes, y)
    assert (probe.alpha_ > 0).all()
    for measure in ("vacuity", "information"):
        assert np.isfinite(dirichlet_uncertainty(probe.alpha_, measure)).all()


@pytest.mark.parametrize("activation", ["exp", "softplus"])
def test_diverging_training_is_an_error_with_advice(gcn, nodes, y, activation):
    with pytest.raises(ValueError, match=r"diverged: .* use a smaller `learning_rate` than 1e\+30"):
        new_probe(gcn, activation=activation, learning_rate=1e30).fit(nodes, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X_val": [70]}, "Pass both `X_val` and `y_val`"),
        ({"y": np.full(60, 7) - np.arange(60) % 2}, "labels that are not among the classes"),
        ({"X_val": [70], "y_val": [9]}, "`y_val` has labels that are not among the classes"),
    ],
)
def test_wrong_data_is_refused(gcn, nodes, y, change, message):
    with pytest.raises(ValueError, match=message):
        new_probe(gcn).fit(**{"X": nodes, "y": y, **change})


def test_validation_may_hold_any_class_that_the_model_knows(gcn, nodes, y, others, data):
    few = y < 2
    probe = new_probe(gcn)
    probe.fit(nodes[few], y[few], X_val=others, y_val=data.labels[others])
    assert probe.classes_.tolist() == [0, 1, 2]


def test_validation_may_hold_any_class_that_a_bare_network_knows(data, nodes, y, others):
    few, everyone = y != 1, np.arange(150) >= 60
    for X_val, y_val in ((others, data.labels[others]), (everyone, data.labels)):
        probe = new_probe(Rows(n_classes=3), graph=data.graph)
        probe.fit(nodes[few], y[few], X_val=X_val, y_val=y_val)
        assert probe.classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"`y_val` has labels .* \[1\] not in \[0, 2\]"):
        new_probe(Rows(n_classes=2), graph=data.graph).fit(
            nodes[few], y[few], X_val=others, y_val=y_val[60:]
        )


def test_prediction_for_nodes_that_are_none_is_refused(probe):
    for method in (probe.predict, probe.predict_proba, probe.predict_uncertainty):
        with pytest.raises(ValueError, match="Node ids"):
            method([150])


def test_prediction_needs_a_fit(gcn):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        new_probe(gcn, graph=gcn.graph_).predict([0])


@pytest.mark.parametrize("width", [5, 7])
def test_features_of_another_width_than_the_model_s_are_refused(data, gcn, nodes, y, width):
    graph = data.adjacency, np.ones((150, width))
    for model in (gcn, Rows()):
        with pytest.raises(ValueError, match=f"cannot be evaluated .* have {width} features"):
            new_probe(model, graph=graph).fit(nodes, y)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda x: x[:10], r"logits of shape \(150, n_classes\), got \(10, 6\)"),
        (lambda x: x[:, :1], r"got \(150, 1\)"),
        (lambda x: x[:, 0], r"got \(150,\)"),
        (lambda x: x * np.inf, "returns NaN or infinity"),
        (lambda x: x[:, :2], "2 "),
    ],
)
def test_model_that_returns_no_logits_of_the_classes_is_refused(data, nodes, y, outputs, message):
    class Odd(nn.Module):
        takes_node_graph = True

        def forward(self, graph):
            return outputs(graph.features)

    with pytest.raises(ValueError, match=message):
        new_probe(Odd(), graph=data.graph).fit(nodes, y)


def test_failed_fit_leaves_an_earlier_one_alone(gcn, probe, nodes, y, data):
    twice = new_probe(gcn).fit(nodes, y)
    twice.set_params(graph=(data.adjacency[:50, :50], data.features[:50]), head__layer="nope")
    with pytest.raises(ValueError, match="has no module"):
        twice.fit(range(50), data.labels[:50])
    np.testing.assert_array_equal(twice.predict_dirichlet([100]), probe.predict_dirichlet([100]))


def test_second_fit_forgets_the_first(gcn, probe, nodes, y, data):
    twice = new_probe(Rows(), graph=data.graph).fit(nodes, y)
    twice.set_params(estimator=gcn, graph=None).fit(nodes, y)
    np.testing.assert_array_equal(twice.alpha_, probe.alpha_)


def test_unfitted_classifier_is_trained_on_the_labelled_nodes(data, nodes, y, others):
    model = GraphClassifier(None, hidden_sizes=(8,), max_epochs=40, random_state=0)
    probe = new_probe(model, graph=data.graph).fit(nodes, y)
    assert not hasattr(model, "network_")
    assert model.graph is None
    alone = clone(model).set_params(graph=data.graph).fit(nodes, y)
    np.testing.assert_allclose(probe.predict_proba(others), alone.predict_proba(others), rtol=1e-9)


def test_unfitted_classifier_brings_its_graph(data, nodes, y):
    model = GraphClassifier(data.graph, hidden_sizes=(8,), max_epochs=10, random_state=0)
    probe = new_probe(model).fit(nodes, y)
    assert probe.predict_dirichlet(nodes).shape == (60, 3)


def test_training_that_makes_the_loss_larger_is_an_error(gcn, nodes, y):
    with pytest.raises(
        ValueError, match=r"diverged: .* use a smaller `learning_rate` than 10000000000"
    ):
        new_probe(gcn, learning_rate=1e10).fit(nodes, y)


def test_by_default_evidence_is_the_models_own_and_vacuity_is_diffused(gcn, data, nodes, y):
    probe = EvidentialProbe(gcn, random_state=0).fit(nodes, y)
    plain = EvidentialProbe(gcn, propagation=None, random_state=0).fit(nodes, y)
    logits = torch.tensor(np.log(gcn.proba_))  # up to the constant that the network has
    network_logits = gcn.network_(gcn.graph_).detach().double()
    torch.testing.assert_close(network_logits.log_softmax(1), logits)
    evidence = plain.alpha_.sum(axis=1) - 3
    scale, level = float(plain.head_.log_scale.exp()), float(plain.head_.offset)
    expected = (scale * network_logits + level).exp().sum(dim=1).numpy()
    np.testing.assert_allclose(evidence, expected, rtol=5e-3)
    np.testing.assert_allclose(
        probe.alpha_, propagate(gcn.graph_.adjacency, plain.alpha_, "diffusion")
    )
    np.testing.assert_allclose(probe.predict_proba(nodes), gcn.predict_proba(nodes), rtol=1e-12)


def test_level_of_evidence_is_near_the_asked_one(gcn, nodes, y):
    for level in (10.0, 1000.0):
        probe = EvidentialProbe(
            gcn,
            propagation=None,
            loss=EvidenceLoss(evidence_id=level, pcl_weight=1 / level**2),
            random_state=0,
        ).fit(nodes, y)
        known = probe.alpha_[nodes].sum(axis=1) - 3
        assert level / 3 < np.median(known) < 3 * level


class Shuffled(nn.Module):
    """A graph classifier's logits in another order of classes."""

    takes_node_graph = True

    def __init__(self, network, order):
        super().__init__()
        self.network, self.order = network, order

    def forward(self, graph):
        return self.network(graph)[:, self.order]


@pytest.mark.parametrize("head", ["logits", "network"])
def test_classes_in_any_order_keep_their_names(gcn, data, nodes, y, head):
    order = [1, 2, 0]
    net = NeuralNetClassifier(
        Shuffled(gcn.network_, order), criterion=nn.CrossEntropyLoss, classes=gcn.classes_[order]
    ).initialize()
    probe = EvidentialProbe(net, graph=data.graph, head=head, random_state=0).fit(nodes, y)
    np.testing.assert_array_equal(probe.classes_, gcn.classes_)
    np.testing.assert_array_equal(probe.predict(nodes), gcn.predict(nodes))
    straight = EvidentialProbe(gcn, head=head, random_state=0).fit(nodes, y)
    np.testing.assert_allclose(
        probe.alpha_, straight.alpha_, rtol=0.2 if head == "network" else 1e-5
    )


def test_labels_of_another_kind_are_refused(gcn, nodes, y):
    with pytest.raises(ValueError, match="`y` has labels that are not among the classes"):
        EvidentialProbe(gcn).fit(nodes, np.where(y == 0, "ant", "bee"))


def test_network_of_concentrations_is_no_classifier_of_logits(data, nodes, y):
    egnn = EvidentialGNN(GraphClassifier(data.graph, max_epochs=3, random_state=0)).fit(nodes, y)
    with pytest.raises(TypeError, match="Cannot adopt EvidentialGNN"):
        EvidentialProbe(egnn).fit(nodes, y)


@pytest.mark.slow
def test_search_over_graph_classifiers_can_be_probed(data, nodes, y):
    classifier = GraphClassifier(data.graph, max_epochs=10, random_state=0)
    search = GridSearchCV(classifier, {"hidden_sizes": [(4,), (8,)]}, cv=2).fit(nodes, y)
    probe = EvidentialProbe(search, random_state=0).fit(nodes, y)
    np.testing.assert_array_equal(probe.predict(nodes), search.predict(nodes))


def test_masks_of_nodes_are_their_ids_and_labels_may_be_of_all_nodes(gcn, data, nodes, y, others):
    mask = np.isin(np.arange(len(data.labels)), nodes)
    expected = new_probe(gcn).fit(nodes, y).predict_uncertainty(others)
    for X, labels in ((mask, y), (mask, data.labels), (torch.tensor(mask), data.labels)):
        probe = new_probe(gcn).fit(X, labels, X_val=~mask, y_val=data.labels)
        assert len(probe.predict_uncertainty(~mask)) == len(others)
        assert new_probe(gcn).fit(X, labels).predict_uncertainty(~mask) == expected
    reference = ReferenceClassifier(FrozenEstimator(gcn)).fit(mask, data.labels)
    np.testing.assert_allclose(reference.predict_proba(mask), gcn.predict_proba(nodes), rtol=1e-5)


@pytest.mark.parametrize("X", [np.arange(6), [True] * 6, pd.Series(range(6)), torch.arange(6)])
def test_ids_without_a_graph_are_named(X):
    with pytest.raises(ValueError, match=r"6 integers or booleans.*passed. Pass `graph`"):
        EvidentialProbe(Rows()).fit(X, np.arange(6) % 3)


class OfData(Rows):
    takes_node_graph = False

    def forward(self, data):
        return self.linear(data.x)


class OfFeaturesAndEdges(Rows):
    takes_node_graph = False

    def forward(self, x, edge_index, edge_weight=None):
        return self.linear(x)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_network_may_take_a_whole_pyg_object(data, nodes, y, wrapped):
    edges = torch.tensor(np.stack(data.adjacency.nonzero()))
    graph = SimpleNamespace(x=torch.tensor(data.features).float(), edge_index=edges)
    found = []
    for network in (OfData(), OfFeaturesAndEdges()):
        if wrapped:
            network = fitted_net(network)
        found.append(new_probe(network, graph=graph).fit(nodes, y).predict_dirichlet(nodes))
    np.testing.assert_array_equal(*found)


def fitted_net(network):
    net = NeuralNetClassifier(network, verbose=0, criterion=nn.CrossEntropyLoss)
    net.initialize()
    net.classes_inferred_ = np.array([2, 0, 1])  # to be sorted
    return net


@pytest.mark.parametrize("scheme", ["auto", None])
def test_another_graph_is_answered_by_the_same_head(gcn, data, nodes, y, scheme):
    probe = new_probe(gcn, propagation=scheme).fit(nodes, y)
    order = np.random.default_rng(0).permutation(len(data.labels))
    adjacency = data.adjacency.toarray()[np.ix_(order, order)]
    other = probe.with_graph((adjacency, np.asarray(data.features)[order]))
    everyone = np.arange(len(order))
    np.testing.assert_allclose(
        other.predict_dirichlet(everyone), probe.predict_dirichlet(order), rtol=1e-4
    )
    assert probe.graph_.n_nodes == len(order)
    smaller = probe.with_graph((adjacency[:9, :9], np.asarray(data.features)[order[:9]]))
    assert len(smaller.predict_uncertainty(np.ones(9, bool))) == 9
    with pytest.raises(ValueError, match="between 0 and 8"):
        smaller.predict_uncertainty([9])


def test_another_graph_needs_one_to_begin_with_and_the_same_features(probe):
    with pytest.raises(ValueError, match="cannot be evaluated on this graph"):
        probe.with_graph((np.zeros((4, 4)), np.ones((4, 2))))
    rows = EvidentialProbe(nn.Linear(2, 2), max_epochs=1).fit(np.eye(2), [0, 1])
    with pytest.raises(ValueError, match="fitted on feature rows"):
        rows.with_graph((np.zeros((4, 4)), np.ones((4, 2))))


def test_a_mask_and_labels_of_all_nodes_are_scored(gcn, data, nodes, y, others):
    mask = np.isin(np.arange(150), others)
    for model in (gcn, new_probe(gcn).fit(nodes, y)):
        expected = model.score(others, data.labels[others])
        for labels in (data.labels[others], data.labels, torch.tensor(data.labels)):
            assert model.score(mask, labels) == expected
        weight = np.arange(len(others))
        assert model.score(mask, data.labels, weight) == model.score(
            others, data.labels[others], weight
        )


def test_a_probe_of_a_graph_classifier_takes_ids_with_other_estimators_too(probe, nodes, y):
    reference = ReferenceClassifier(FrozenEstimator(probe)).fit(nodes, y)
    np.testing.assert_allclose(
        reference.predict_proba(nodes), probe.predict_proba(nodes), rtol=1e-5
    )
