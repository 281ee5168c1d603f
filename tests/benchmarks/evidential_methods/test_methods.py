"""The protocol of all methods of the comparison."""

import sys

import numpy as np
import pytest

from benchmarks.evidential_methods import comparison_methods
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


def test_without_a_model_all_train_the_same_one(data, nodes, y, others):
    found = methods(data, None)
    first, second = (found[name].fit(nodes, y) for name in ("entropy", "energy"))
    np.testing.assert_array_equal(first.predict_proba(others), second.predict_proba(others))


def test_settings_of_networks_trained_here(data):
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
