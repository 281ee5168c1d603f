"""Summaries of the benchmarks of the evidential probe."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks import evidential


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
