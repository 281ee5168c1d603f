"""Detection among nodes of a graph: the rate of false alarms, and nodes that are refused."""

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator

from benchmarks.evidential_methods import LogitUncertainty
from skuq import EvidentialProbe, OODDetector
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from tests.evidential.probes import new_probe

HELD_OUT, NEW = np.arange(60, 105), np.arange(105, 150)


def detector_of(probe, nodes, y, held_out=HELD_OUT, **options):
    detector = OODDetector(FrozenEstimator(probe), **options)
    return detector.fit(nodes, y, X_held_out=held_out)


@pytest.mark.parametrize("propagation", ["diffusion", "similarity"])
def test_scores_are_the_parts_of_the_probe_and_the_energy_that_is_averaged_alike(
    gcn, nodes, y, propagation
):
    probe = new_probe(gcn, propagation=propagation).fit(nodes, y)
    detector = detector_of(probe, nodes, y)
    scores, u = detector.single_scores(NEW), probe.predict_uncertainty(NEW)
    diffused = LogitUncertainty(probe, method="energy", propagation=propagation).fit(nodes, y)
    np.testing.assert_array_equal(scores["epistemic"], u.epistemic)
    np.testing.assert_array_equal(scores["energy"], diffused.predict_uncertainty(NEW).total)
    assert detector.scores_ == ["entropy", "energy", "total", "epistemic"]
    assert "columns" not in detector.explain(NEW)


def test_false_alarms_keep_their_rate_on_a_graph():
    data = make_node_classes(1500, homophily=0.6, separation=0.5, random_state=0)
    labels, part = data.labels, data.splits[0]
    train, others = np.flatnonzero(part == 0), np.flatnonzero(part > 0)
    network = GraphClassifier(data.graph, max_epochs=40, random_state=0).fit(train, labels[train])
    random, rates = np.random.default_rng(0), []
    for _ in range(40):
        held_out, new = np.split(random.permutation(others), [199])
        detector = detector_of(network, train, labels[train], held_out, false_alarm_rate=0.1)
        rates.append((detector.predict(new) < 0).mean())
    assert 0.08 < np.mean(rates) < 0.112


def test_masks_of_nodes_are_taken_as_their_ids(probe, data, nodes, y):
    known, mask = (np.isin(np.arange(150), each) for each in (nodes, HELD_OUT))
    by_mask, by_ids = detector_of(probe, known, data.labels, mask), detector_of(probe, nodes, y)
    np.testing.assert_array_equal(by_mask.p_values(NEW), by_ids.p_values(NEW))


def test_a_probe_that_is_not_frozen_is_trained_on_the_rest(data, nodes, y):
    probe = EvidentialProbe(graph=data.graph, max_epochs=2, random_state=0)
    detector = OODDetector(probe, random_state=0).fit(nodes, y)
    assert detector.n_held_out_ == 20  # more than a fifth, which would be too few
    assert len(detector.estimator_.labelled_nodes_) == len(nodes) - detector.n_held_out_
    assert detector.p_values(NEW).shape == NEW.shape


@pytest.mark.parametrize("seen_by", ["probe", "network"])
def test_nodes_that_trained_or_stopped_the_training_are_refused(data, nodes, y, seen_by):
    validation = {"X_val": HELD_OUT[:5], "y_val": data.labels[HELD_OUT[:5]]}
    of_network, of_probe = (validation if who == seen_by else {} for who in ("network", "probe"))
    network = GraphClassifier(data.graph, max_epochs=2, random_state=0).fit(nodes, y, **of_network)
    probe = new_probe(network, max_epochs=2).fit(nodes, y, **of_probe)
    with pytest.raises(ValueError, match=f"5 of the held-out nodes.*node {HELD_OUT[0]}"):
        detector_of(probe, nodes, y)
    detector_of(probe, nodes, y, HELD_OUT[5:])


def test_held_out_nodes_are_given_once_and_none_that_trained_on_an_equal_graph(
    probe, data, nodes, y, gcn
):
    with pytest.raises(ValueError, match=f"{HELD_OUT[3]}.*once"):
        detector_of(probe, nodes, y, np.append(HELD_OUT, HELD_OUT[[7, 3]]))
    with pytest.raises(ValueError, match="`X_held_out`"):
        OODDetector(FrozenEstimator(probe)).fit(nodes, y)
    held_out = HELD_OUT[data.labels[HELD_OUT] < 2]
    detector = OODDetector(FrozenEstimator(probe), by_class=True)
    with pytest.raises(ValueError, match="class 2"):
        detector.fit(nodes, y, X_held_out=held_out, y_held_out=data.labels[held_out])
    same = data.adjacency.copy(), np.asarray(data.features).copy()
    elsewhere = data.adjacency, np.asarray(data.features) + 1
    for graph in (data.graph, same):
        with pytest.raises(ValueError, match="60 of the held-out nodes"):
            detector_of(probe.with_graph(graph), nodes, y, nodes)
    assert probe.with_graph(elsewhere).labelled_nodes_ is None
    few = new_probe(gcn, graph=data.graph).fit(nodes[:30], y[:30])
    with pytest.raises(ValueError, match="30 of the held-out nodes"):
        detector_of(few, nodes[:30], y[:30], nodes[30:])
    few = new_probe(gcn, graph=elsewhere).fit(nodes[:30], y[:30])
    assert detector_of(few, nodes[:30], y[:30], nodes[30:]).n_held_out_ == 30
