"""Decisions about out-of-distribution samples: their rate of false alarms, and what is refused."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from skuq.calibration import conformal_p_values
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from tests.evidential.probes import new_probe


@pytest.fixture
def probe(gcn, nodes, y):
    return new_probe(gcn).fit(nodes, y)


@pytest.fixture
def held_out(others):
    return others[:45]


@pytest.fixture
def new(others):
    return others[45:]


def test_p_values_rank_the_uncertainty_among_held_out_nodes(probe, data, held_out, new):
    score = probe.predict_uncertainty(new).epistemic
    held = probe.predict_uncertainty(held_out).epistemic
    found = probe.calibrate(held_out).conformal_p_values(new)
    np.testing.assert_array_equal(found, conformal_p_values(score, held))
    labels = data.labels[held_out]
    by_class = conformal_p_values(score, held, y_held_out=labels)
    found = probe.calibrate(held_out, labels).conformal_p_values(new)
    np.testing.assert_array_equal(found, by_class)
    flagged = probe.predict_out_of_distribution(new, false_alarm_rate=0.25)
    np.testing.assert_array_equal(flagged, by_class <= 0.25)


def test_false_alarms_keep_their_rate_on_a_graph_but_not_at_a_quantile_of_training_nodes():
    data = make_node_classes(1500, homophily=0.6, separation=0.5, random_state=0)
    labels, part = data.labels, data.splits[0]
    train, others = np.flatnonzero(part == 0), np.flatnonzero(part > 0)
    network = GraphClassifier(data.graph, max_epochs=100, random_state=0).fit(train, labels[train])
    probe = new_probe(network, head="logits").fit(train, labels[train])
    score = probe.predict_uncertainty(range(1500)).epistemic
    random, rates = np.random.default_rng(0), []
    for _ in range(200):
        held_out, new = np.split(random.permutation(others), [99])
        rates.append((conformal_p_values(score[new], score[held_out]) <= 0.1).mean())
    assert 0.09 < np.mean(rates) < 0.105
    assert (score[others] > np.quantile(score[train], 0.9)).mean() > 0.15


def test_rows_of_a_table_are_decided_alike():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(300, 2)), np.arange(300) % 2
    X[:, 0] += 3 * y
    model = LogisticRegression().fit(X[:100], y[:100])
    probe = new_probe(FrozenEstimator(model)).fit(X[:100], y[:100]).calibrate(X[100:200])
    p_values = probe.conformal_p_values(X[200:])
    assert (p_values > 0).all()
    flagged = probe.predict_out_of_distribution(X[200:], false_alarm_rate=0.1)
    np.testing.assert_array_equal(flagged, p_values <= 0.1)


def test_masks_of_nodes_calibrate_as_their_ids(probe, data, held_out, new):
    mask = np.isin(np.arange(len(data.labels)), held_out)
    by_mask = probe.calibrate(mask, data.labels).conformal_p_values(new)
    by_ids = probe.calibrate(held_out, data.labels[held_out]).conformal_p_values(new)
    np.testing.assert_array_equal(by_mask, by_ids)


def test_decisions_need_held_out_samples(probe, data, gcn, nodes, y, held_out):
    with pytest.raises(NotFittedError, match="`calibrate`"):
        probe.predict_out_of_distribution(held_out)
    for other in (probe.calibrate(held_out).with_graph(data.graph), probe.fit(nodes, y)):
        with pytest.raises(NotFittedError, match="`calibrate`"):
            other.conformal_p_values(held_out)


@pytest.mark.parametrize("seen_by", ["probe", "network"])
def test_nodes_that_trained_or_stopped_the_training_are_refused(data, nodes, y, held_out, seen_by):
    validation = {"X_val": held_out[:5], "y_val": data.labels[held_out[:5]]}
    of_network = validation if seen_by == "network" else {}
    of_probe = validation if seen_by == "probe" else {}
    network = GraphClassifier(data.graph, max_epochs=2, random_state=0).fit(nodes, y, **of_network)
    probe = new_probe(network).fit(nodes, y, **of_probe)
    with pytest.raises(ValueError, match=f"5 of the nodes.*first is {held_out[0]}"):
        probe.calibrate(held_out)
    probe.calibrate(held_out[5:])


def test_too_few_samples_for_a_rate_are_refused(probe, data, held_out, new):
    probe.calibrate(held_out[:18])
    with pytest.raises(ValueError, match=r"0\.0526.*At least 19"):
        probe.predict_out_of_distribution(new)
    assert probe.predict_out_of_distribution(new, false_alarm_rate=1 / 19).shape == new.shape
    probe.calibrate(held_out, data.labels[held_out])
    with pytest.raises(ValueError, match="19 are needed of each class"):
        probe.predict_out_of_distribution(new)


@pytest.mark.parametrize("rate", [0, 1, -0.1, "0.05"])
def test_a_rate_lies_between_0_and_1(probe, held_out, new, rate):
    with pytest.raises(ValueError, match="'false_alarm_rate'"):
        probe.calibrate(held_out).predict_out_of_distribution(new, false_alarm_rate=rate)


def test_classes_of_held_out_samples_are_all_the_known_ones(probe, data, held_out):
    labels = data.labels[held_out]
    with pytest.raises(ValueError, match="no sample of class 2"):
        probe.calibrate(held_out[labels < 2], labels[labels < 2])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        probe.calibrate(held_out, labels[1:])


def test_nodes_that_trained_the_network_are_refused_on_an_equal_graph(gcn, data, nodes, y):
    probe = new_probe(gcn, graph=data.graph).fit(nodes[:30], y[:30])
    with pytest.raises(ValueError, match="30 of the nodes to calibrate with were used"):
        probe.calibrate(nodes[30:])
    elsewhere = data.adjacency, np.asarray(data.features) + 1
    probe = new_probe(gcn, graph=elsewhere).fit(nodes[:30], y[:30])
    assert len(probe.calibrate(nodes[30:]).calibration_scores_) == 30


def test_a_copy_for_the_same_graph_still_refuses_the_nodes_that_trained(probe, data, nodes):
    same = data.adjacency.copy(), np.asarray(data.features).copy()
    for graph in (data.graph, same):
        again = probe.with_graph(graph)
        with pytest.raises(ValueError, match="60 of the nodes to calibrate with were used"):
            again.calibrate(nodes)
    other = probe.with_graph((data.adjacency, np.asarray(data.features) + 1))
    assert other.labelled_nodes_ is None
    assert len(other.calibrate(nodes).calibration_scores_) == len(nodes)


def test_a_node_is_one_sample_to_calibrate_with(probe, held_out):
    repeated = np.append(held_out, held_out[[7, 3]])
    with pytest.raises(ValueError, match=f"first is {held_out[3]}.*each node once"):
        probe.calibrate(repeated)
    assert not hasattr(probe, "calibration_scores_")


def test_rows_of_a_table_may_be_equal():
    X, y = np.repeat(np.eye(2), 20, axis=0), np.repeat([0, 1], 20)
    probe = new_probe(FrozenEstimator(LogisticRegression().fit(X, y))).fit(X, y)
    assert len(probe.calibrate(X).calibration_scores_) == 40
