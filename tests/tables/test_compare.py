"""Two models on the same labelled rows: which is better, where, and beyond chance."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from skuq.metrics import interval_score
from skuq.tables import TableError, TableModel, compare_models


@pytest.fixture(scope="module")
def rows():
    """900 rows: a class and a quantity, which column b decides where the colour is red."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(900, 2)), columns=["a", "b"])
    frame["colour"] = rng.choice(["red", "blue"], 900)
    signal = frame["a"] + 2 * (frame["colour"] == "red") * frame["b"]
    frame["paid"] = np.where(signal + 0.5 * rng.normal(size=900) > 0, "yes", "no")
    frame["price"] = np.exp(signal / 3) + 0.1 * rng.normal(size=900)
    return frame


@pytest.fixture(scope="module")
def models(rows):
    """For each target, one model with column b and one without it."""
    known = {"paid": "price", "price": "paid"}
    return {
        target: [
            TableModel("hgb").fit(rows[:500], target, drop=[other]),
            TableModel("hgb").fit(rows[:500], target, drop=[other, "b"]),
        ]
        for target, other in known.items()
    }


@pytest.mark.parametrize("target", ["paid", "price"])
def test_the_better_model_is_named_and_where_it_is_better(rows, models, target):
    a, b = models[target]
    found = compare_models(a, b, rows[500:], groups=["colour"])
    assert found.n_rows == 400
    first = found.measures.iloc[0]
    assert first["better"] == "A"
    assert first["low"] < first["difference"] == first["a"] - first["b"] < first["high"] < 0
    colours = found.parts[found.parts["by"] == "colour"].set_index("part")
    assert colours["better"]["red"] == "A"
    assert colours["better"]["blue"] != "A"
    assert colours["rows"].sum() == 400
    assert found.sentences[0].startswith(f"A is better on 400 rows: {found.measures.index[0]}")
    assert "colour red" in found.sentences[1]
    turned = compare_models(b, a, rows[500:], groups=["colour"])
    assert turned.measures["better"].iloc[0] == "B"
    assert turned.measures["p_value"].tolist() == pytest.approx(found.measures["p_value"].tolist())


def test_measures_of_classes_are_those_of_the_field(rows, models):
    a, b = models["paid"]
    found = compare_models(a, b, rows[500:])
    label = rows["paid"][500:].to_numpy()
    losses, right = [], []
    for model in (a, b):
        out = model.predict(rows[500:], n_explained=0)
        losses.append(-np.log(np.where(label == "yes", out["p(yes)"], out["p(no)"])))
        right.append(out["prediction"].to_numpy() == label)
    test = stats.ttest_rel(*losses)
    loss, accuracy = found.measures.loc["log loss"], found.measures.loc["accuracy"]
    assert loss["p_value"] == pytest.approx(test.pvalue)
    assert [loss["low"], loss["high"]] == pytest.approx(list(test.confidence_interval()))
    differ = [(right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum()]
    assert accuracy["p_value"] == pytest.approx(stats.binomtest(differ[0], sum(differ)).pvalue)
    assert list(accuracy[["a", "b"]]) == [each.mean() for each in right]


def test_measures_of_quantities_are_those_of_the_field(rows, models):
    a, b = models["price"]
    found = compare_models(a, b, rows[500:], coverage=0.8).measures["a"]
    out, y = a.predict(rows[500:], coverage=0.8), rows["price"][500:].to_numpy()
    low, high = out["lower"].to_numpy(), out["upper"].to_numpy()
    assert found["mean squared error"] == pytest.approx(((out["prediction"] - y) ** 2).mean())
    assert found["interval score"] == pytest.approx(interval_score(y, low, high, coverage=0.8))
    assert found["coverage"] == ((low <= y) & (y <= high)).mean()


@pytest.mark.parametrize("target", ["paid", "price"])
def test_a_model_is_not_better_than_itself(rows, models, target):
    a = models[target][0]
    found = compare_models(a, a, rows[500:])
    assert set(found.measures["better"]) | set(found.parts["better"]) == {""}
    assert (found.measures["difference"] == 0).all()
    assert found.sentences[0].startswith("Neither is significantly better")


def test_rows_without_the_target_are_left_out_and_said(rows, models):
    a, b = models["paid"]
    labelled = rows[500:].assign(paid=rows["paid"].where(rows.index % 4 > 0))
    found = compare_models(a, b, labelled)
    assert found.n_rows == 300
    assert len(found.notes) == 1
    assert found.notes[0].startswith("100 rows of the labelled table without a target were dropped")


def test_tables_of_other_libraries_are_compared(rows, models):
    polars = pytest.importorskip("polars")
    a, b = models["paid"]
    found = compare_models(a, b, polars.DataFrame(rows[500:].to_dict("list")), groups=["colour"])
    pd.testing.assert_frame_equal(
        found.measures, compare_models(a, b, rows[500:], groups=["colour"]).measures
    )


def test_what_cannot_be_compared_is_refused(rows, models):
    a, b = models["paid"]
    with pytest.raises(TableError, match=r"different targets, 'paid' .* and 'price'"):
        compare_models(a, models["price"][0], rows)
    with pytest.raises(TableError, match="no column 'paid'"):
        compare_models(a, b, rows.drop(columns="paid"))
    with pytest.raises(TableError, match="no column 'size'"):
        compare_models(a, b, rows, groups=["size"])
    with pytest.raises(
        TableError, match="has 5 rows with a value of 'paid'; at least 10 are needed"
    ):
        compare_models(a, b, rows[:5])
    with pytest.raises(TableError, match="has the class 'maybe'"):
        compare_models(a, b, rows[500:].assign(paid="maybe"))
