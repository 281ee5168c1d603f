"""What the probe does by default, and models whose classes or settings are out of the usual."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from skuq import EvidentialProbe
from skuq.evidential import EvidentialGNN, GraphClassifier
from skuq.evidential._propagation import diffuse_vacuity
from tests.evidential.probes import new_probe

pytestmark = pytest.mark.usefixtures("dgl")


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
    np.testing.assert_allclose(probe.alpha_, diffuse_vacuity(gcn.graph_.adjacency, plain.alpha_))
    np.testing.assert_allclose(probe.predict_proba(nodes), gcn.predict_proba(nodes), rtol=1e-12)


def test_level_of_evidence_is_near_the_asked_one(gcn, nodes, y):
    for level in (10.0, 1000.0):
        probe = EvidentialProbe(
            gcn,
            propagation=None,
            evidence_id=level,
            lambda_pcl=1 / level**2,
            random_state=0,
        ).fit(nodes, y)
        known = probe.alpha_[nodes].sum(axis=1) - 3
        assert level / 3 < np.median(known) < 3 * level


@pytest.mark.parametrize("settings", [{"hidden_sizes": (8,)}, {"layer": -2}])
def test_layers_need_the_other_head(gcn, nodes, y, settings):
    with pytest.raises(ValueError, match="settings of head='network'"):
        EvidentialProbe(gcn, **settings).fit(nodes, y)


@pytest.mark.parametrize("hidden_sizes", [(0,), (-3,), ("a",), (2.5,)])
def test_widths_that_are_none_are_refused(gcn, nodes, y, hidden_sizes):
    with pytest.raises(ValueError, match="`hidden_sizes` must hold positive integers"):
        EvidentialProbe(gcn, head="network", hidden_sizes=hidden_sizes).fit(nodes, y)


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


def test_settings_of_an_untrained_model_can_be_searched():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    probe = EvidentialProbe(LogisticRegression(), max_epochs=2, random_state=0)
    search = GridSearchCV(probe, {"estimator__C": [1.0, 1e-9]}, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_ == {"estimator__C": 1.0}
    assert probe.estimator.C == 1.0
    assert clone(probe).estimator is not probe.estimator


@pytest.mark.slow
def test_search_over_graph_classifiers_can_be_probed(data, nodes, y):
    classifier = GraphClassifier(data.graph, max_epochs=10, random_state=0)
    search = GridSearchCV(classifier, {"hidden_sizes": [(4,), (8,)]}, cv=2).fit(nodes, y)
    probe = EvidentialProbe(search, random_state=0).fit(nodes, y)
    np.testing.assert_array_equal(probe.predict(nodes), search.predict(nodes))
