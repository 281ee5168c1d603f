"""Summaries of the benchmarks of the evidential probe."""

import pytest

from benchmarks import evidential
from benchmarks.harness import record


def test_means_are_over_the_left_out_classes_of_each_graph():
    records = [
        record("epn", "coraml OS-1", "auroc", 0.8, 1),
        record("epn", "coraml OS-2", "auroc", 0.9, 1),
        record("epn", "coauthor_cs OS-1", "auroc", 0.7, 1),
        record("epn", "coraml OS-1", "aupr", 0.1, 1),
    ]
    found = {row["dataset"]: row for row in evidential.means(records, "auroc")}
    assert found.keys() == {"coraml", "coauthor_cs"}
    assert found["coraml"]["value"] == pytest.approx(0.85)
    assert found["coraml"]["n"] == 2
    assert found["coraml"]["metric"] == "mean_auroc"
