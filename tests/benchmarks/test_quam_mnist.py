"""The QUAM paper's tasks on MNIST and Adult, around small networks."""

from argparse import Namespace

import numpy as np
import pytest
import torch

from benchmarks import quam_mnist, quam_selective

METHODS = ["entropy", "ensemble"]


@pytest.fixture
def task():
    """Two linear networks, and rows that the first calls wrongly where it is least sure."""
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.Linear(1, 2)) for _ in range(2)]
    with torch.no_grad():
        for net, slope in zip(nets, (1.0, 3.0), strict=True):
            net[0].weight[:] = torch.tensor([[-slope], [slope]])
            net[0].bias[:] = 0
    X = np.concatenate([np.linspace(-2, -0.1, 20), np.linspace(0.1, 2, 20)])
    y = (X > 0).astype(np.int64)
    y[[19, 20]] = 1 - y[[19, 20]]
    X = X[:, None].astype(np.float32)
    return nets, X, y, X, y


def test_wrong_predictions_are_found_by_each_part_that_a_method_measures(task, monkeypatch):
    monkeypatch.setitem(quam_selective.LOADERS, "adult", lambda seed, args: task)
    found = quam_selective.measure("adult", 0, args=Namespace(methods=METHODS))["rows"]
    figures = {(row["method"], row["metric"]): row["value"] for row in found}
    assert figures["given", "accuracy"] == 0.95
    assert figures["confidence", "auroc_total"] == figures["entropy", "auroc_total"] == 1
    assert figures["entropy", "ahead_total"] == 0
    # The 38 right ones first: a risk of 0 until the two last predictions.
    area = 1 - (1 / 39 + 2 / 40) / 40
    assert figures["confidence", "accuracy_area_total"] == pytest.approx(area)
    assert ("entropy", "auroc_epistemic") not in figures
    assert ("ensemble", "auroc_epistemic") in figures


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_uncertainty_around_the_given_model_is_measured_in_batches_that_are_half_ood(task, share):
    nets, X, y, *_ = task
    model = quam_mnist.make("ensemble", nets, 0).fit(X, y)
    is_ood = np.abs(X[:, 0]) < 0.5
    batch = quam_mnist.Batch("near", share, 0, X, is_ood)
    found = quam_mnist.detect(model, batch, Namespace(protocol="inductive"))
    parts = ["", "_epistemic", *(["_selected"] if share == 0.5 else [])]
    wanted = {f"{metric}{part}" for metric in ("auroc", "aupr", "fpr95") for part in parts}
    assert set(found) == wanted | {"seconds_per_image"}
    assert found["auroc"] == 1
    assert model.setting == "expected"
