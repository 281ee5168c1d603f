"""Outputs that are no logits are warned of, where the user called."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from skuq import EvidentialProbe, MirageFineTuner, QUAMClassifier, ReferenceClassifier
from skuq._networks import MLP
from skuq.models import classes_of_logits

MAKERS = {
    "QUAMClassifier": lambda net: QUAMClassifier(net, search="pointwise"),
    "ReferenceClassifier": ReferenceClassifier,
    "MirageFineTuner": lambda net: MirageFineTuner(
        net, region=lambda X: X[:, 0] > 0, epsilon=0.1, max_epochs=1
    ),
    "EvidentialProbe": lambda net: EvidentialProbe(net, max_epochs=1),
    "EvidentialProbe of nodes": lambda net: EvidentialProbe(
        net, graph=(np.zeros((30, 30)), np.eye(30) + 0.1), max_epochs=1
    ),
}


def fit(name, net):
    """Warnings of a fit that are about probabilities."""
    X = np.arange(30) if "nodes" in name else np.eye(30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MAKERS[name](net).fit(X, np.arange(30) % 3)
    return [warning for warning in caught if "softmax" in str(warning.message)]


class OfNodes(nn.Sequential):
    takes_node_graph = True

    def forward(self, graph):
        return super().forward(graph.features)


@pytest.mark.parametrize("name", MAKERS)
def test_a_final_softmax_is_warned_of_once_at_the_line_of_fit(name):
    torch.manual_seed(0)
    layers = [MLP(30, 3), nn.Softmax(dim=-1)]
    [warning] = fit(name, (OfNodes if "nodes" in name else nn.Sequential)(*layers))
    assert warning.filename == __file__


def test_logits_and_log_probabilities_are_not_warned_of():
    torch.manual_seed(0)
    assert not fit("ReferenceClassifier", MLP(30, 3))
    assert not fit("ReferenceClassifier", nn.Sequential(MLP(30, 3), nn.LogSoftmax(dim=-1)))
    assert not fit("ReferenceClassifier", LogisticRegression())


def test_labels_that_are_no_codes_are_named_and_not_those_that_are():
    with pytest.raises(ValueError, match=r"5 logits, .* 7 different labels. Labels \[5, 6\] are"):
        classes_of_logits(torch.zeros(1, 5), np.arange(7))
    with pytest.raises(ValueError, match=r"'e'\] and others are not among the codes 0 to 2"):
        classes_of_logits(torch.zeros(1, 3), np.array(list("abcdefg")))
    np.testing.assert_array_equal(
        classes_of_logits(torch.zeros(1, 5), np.array([0, 3])), np.arange(5)
    )
