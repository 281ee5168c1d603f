"""The demonstration on a table: it shows what it claims, and its files are complete."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from skuq import predict_uncertainty
from skuq.cli import _table_demo as demo

pytest.importorskip("matplotlib").use("Agg")

pytestmark = pytest.mark.slow  # all of them run the demo once


@pytest.fixture(scope="module")
def result():
    return demo.run_table_demo(n_train=2000, n_test=200)


@pytest.fixture(scope="module")
def written(result, tmp_path_factory):
    """Paths of the report and the table."""
    return demo.write_table_demo(result, tmp_path_factory.mktemp("demo"))


def test_quam_tells_unusual_rows_from_others_better_than_the_entropy_does(result):
    assert (result.detection["QUAM"] > result.detection["entropy"]).all()
    one_column = ["income in cents", "unseen job", "longer in job than alive"]
    assert (result.detection.loc[one_column, "QUAM"] > 0.9).all()


def test_detection_is_the_area_under_the_roc_curve(result):
    known = result.uncertainty["test"].epistemic
    for name, row in result.detection.iterrows():
        epistemic = predict_uncertainty(result.classifier, result.rows[name]).epistemic
        is_ood = np.repeat([0, 1], [len(known), len(epistemic)])
        expected = roc_auc_score(is_ood, np.concatenate([known, epistemic]))
        assert row["QUAM"] == pytest.approx(expected)


def test_neither_the_training_nor_the_test_has_rows_of_the_group_left_out(result):
    group = result.rows["group left out"]
    assert ((group["age"] > 60) & (group["home"] == "shared")).all()
    test = result.rows["test"]
    assert not ((test["age"] > 60) & (test["home"] == "shared")).any()


def test_the_contradiction_is_found_in_the_two_columns_that_contradict(result):
    assert set(result.explanation.most_unusual(2)[0]) == {"age", "years in job"}


def test_the_table_has_every_row_once_and_its_parts_add_up(result, written):
    table = pd.read_csv(written[1])
    sizes = {name: len(rows) for name, rows in result.rows.items()}
    assert table["group"].value_counts(sort=False).to_dict() == sizes
    np.testing.assert_allclose(table["total"], table["aleatoric"] + table["epistemic"], rtol=1e-8)
    for name, u in result.uncertainty.items():
        np.testing.assert_allclose(table.loc[table["group"] == name, "epistemic"], u.epistemic)


def test_the_report_states_the_results_and_needs_no_other_file(result, written):
    page = written[0].read_text(encoding="utf-8")
    assert f"{result.accuracy:.1%}" in page
    for kind in result.detection.index:
        assert kind in page
    fetched = re.findall(r'(?:src|href|srcset)="([^"]{0,5})', page) + re.findall(r"url\(", page)
    assert set(fetched) == {"data:"}


def test_writing_leaves_no_figure_open(result, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    demo.write_table_demo(result, tmp_path)
    assert pyplot.get_fignums() == before
