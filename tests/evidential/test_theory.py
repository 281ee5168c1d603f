"""The paper's theorems, in its setting of two Gaussian classes (Section 5)."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from skuq._networks import linear_layer
from skuq.evidential import dirichlet_uncertainty
from skuq.evidential._evidence import NetworkEvidence, uce_loss
from tests.evidential.probes import new_probe

FAR, NEAR = np.array([5.0, 2.0]), np.array([1.0, 0.5])


def drawn(mu):
    """Representations of two known classes around -mu and mu, and OOD ones around 0."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 150)
    known = np.where(y[:, None] == 1, mu, -mu) + rng.normal(size=(300, 2))
    return known, y, rng.normal(size=(300, 2))


def bayes(mu):
    """The classifier that knows the densities: log odds are 2 mu z."""
    return linear_layer(torch.tensor(np.stack([-mu, mu])), torch.zeros(2).double())


@pytest.mark.parametrize(("ice_weight", "pcl_weight"), [(1.0, 0.0), (100.0, 0.0), (1e-2, 1e-2)])
def test_intra_class_evidence_ranks_the_origin_as_most_uncertain(ice_weight, pcl_weight):
    known, y, ood = drawn(FAR)
    settings = {"learning_rate": 0.1, "max_epochs": 80, "layer": -2}
    probe = new_probe(bayes(FAR), ice_weight=ice_weight, pcl_weight=pcl_weight, **settings)
    vacuity = probe.fit(known, y).predict_uncertainty(np.vstack([known, ood])).epistemic
    assert roc_auc_score(np.repeat([0, 1], 300), vacuity) > 0.9
    if not pcl_weight:
        vacuity = probe.predict_uncertainty(np.array([0 * FAR, FAR, -FAR])).epistemic
        assert vacuity[0] > vacuity[1:].max() + 0.1


def constant_head(n):
    """The parameters of Eq. 19."""
    head = NetworkEvidence(torch.zeros(2), torch.ones(2), 2).double().requires_grad_(False)
    (layer,) = head.layers
    layer.weight.zero_()
    layer.bias.copy_(n * torch.tensor([1.0, -1.0]))
    return head


def test_plain_loss_has_its_infimum_at_an_evidence_that_says_nothing():
    known, y, ood = map(torch.as_tensor, drawn(NEAR))
    proba, losses = bayes(NEAR)(known).detach().softmax(dim=1), []
    for n in range(15):
        total = constant_head(n)(known).sum(dim=1, keepdim=True)
        losses.append(uce_loss((2 + total) * proba, y).mean().item())
        evidence = constant_head(n)(torch.cat([known, ood]))
        vacuity = dirichlet_uncertainty(evidence.numpy() + 1).epistemic
        assert np.unique(vacuity).size == 1
    infimum = nn.functional.nll_loss(proba.log(), y).item()  # of the loss at any evidence
    assert (np.diff(losses) < 0).all()
    assert min(losses) > infimum
    assert losses[-1] == pytest.approx(infimum, abs=1e-3 * losses[0])
