"""Figures of benchmarks: of the probe, and of the QUAM paper's tasks around small networks."""

from argparse import Namespace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

from benchmarks import evidential, quam_mnist, quam_selective


def row(method, dataset, split, init, auroc):
    names = ("method", "dataset", "split", "init", "auroc", "aupr")
    return dict(zip(names, (method, dataset, split, init, auroc, 0.1), strict=True))


def test_means_are_over_the_left_out_classes_of_each_graph_and_their_spread_between_splits():
    rows = [
        row("epn", "coraml OS-1", 0, 0, 0.8),
        row("epn", "coraml OS-2", 0, 0, 0.9),
        row("epn", "coraml OS-1", 1, 0, 0.6),
        row("epn", "coraml OS-2", 1, 0, 0.7),
        row("epn", "coauthor_cs OS-1", 0, 0, 0.7),
    ]
    found = {each["dataset"]: each for each in evidential.means(rows, "auroc")}
    assert found.keys() == {"coraml", "coauthor_cs"}
    assert found["coraml"]["value"] == pytest.approx(0.75)
    assert found["coraml"]["std"] == pytest.approx(np.std([0.85, 0.65], ddof=1))
    assert found["coraml"]["n"] == 4
    assert found["coraml"]["metric"] == "mean_auroc"
    assert found["coauthor_cs"]["std"] == 0


def test_differences_are_paired_and_their_intervals_count_splits():
    rng = np.random.default_rng(0)
    gains = rng.normal(0.02, 0.01, (2, 4, 2))  # graphs, splits, starts
    rows = []
    cells = product(("coraml", "citeseer_full"), range(4), range(2), ("OS-1", "OS-2"))
    for k, (graph, split, init, setting) in enumerate(cells):
        level, cell = rng.uniform(0.5, 0.9), (f"{graph} {setting}", split, init)
        rows.append(row("energy", *cell, level))  # a common level tells nothing
        rows.append(row("epn", *cell, level + gains.flat[k // 2]))
    differences = evidential.differences(rows, "auroc", "energy")
    found = {(each["dataset"], each["metric"]): each["value"] for each in differences}
    for name, values in (("coraml", gains[0]), ("all", gains.mean(axis=0))):
        splits = values.mean(axis=1)
        low, high = ttest_1samp(splits, 0).confidence_interval()
        assert found[name, "auroc_over_energy"] == pytest.approx(splits.mean())
        assert found[name, "auroc_over_energy_95_low"] == pytest.approx(low)
        assert found[name, "auroc_over_energy_95_high"] == pytest.approx(high)


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
    args = Namespace(methods=["entropy", "ensemble"])
    found = quam_selective.measure("adult", 0, args=args)["rows"]
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
