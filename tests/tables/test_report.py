"""The report on a table says what the model and its held-out rows say."""

import numpy as np
import pandas as pd
import pytest

from skuq.reporting import table_report
from skuq.tables import TableModel, quality_warnings
from tests.reporting.pages import Page
from tests.tables.toy import Toy, quantify

pyplot = pytest.importorskip("matplotlib.pyplot")


def report_of(train, table, target="kind"):
    result = quantify(train, table, target)
    return result, Page(table_report(result.model, result.rows, result.model.count(table)).html())


@pytest.fixture(scope="module")
def large():
    """A training table of which enough rows are held out to call a row unusual."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=200), "colour": rng.choice(["a", "b"], 200)})
    return frame.assign(kind=np.where(frame["size"] + rng.normal(size=200) > 0, "big", "small"))


def test_unusual_rows_are_counted_and_listed_first_with_their_reasons(large):
    table = large.drop(columns="kind").head(30)
    table.loc[[3, 4], "size"] = 1000.0
    table.loc[17, ["size", "colour"]] = [1234.0, "b"]
    result, page = report_of(large, table)
    p_values = result.rows["conformal_p_value"]
    unusual = (p_values <= 0.05).sum()
    assert unusual >= 3
    assert f"30 rows were predicted. {unusual} of them ({unusual / 30:.1%})" in page.text
    head, *rows = page.under["Rows to look at"]
    assert " ".join(head) == "row review prediction confidence total reasons p epistemic"
    assert rows[0][0] == "18"
    assert "size = 1234" in rows[0][head.index("reasons")]
    assert "out of range (size)" in rows[0][head.index("review")]
    listed = [int(row[0]) - 1 for row in rows]
    assert sorted(listed) == np.flatnonzero(result.rows["review"] != "").tolist()
    assert f"look at {len(rows)} of the 30 rows" in page.text
    marked = [row for row in listed if result.rows["review"][row] != "undecided"]
    assert listed[: len(marked)] == marked
    assert p_values[marked].is_monotonic_increasing


def test_the_smallest_table_that_is_said_to_be_enough_is_enough(large):
    for n_rows, enough in ((94, False), (95, True)):
        _, page = report_of(large.head(n_rows), large.head(1).assign(size=1e6))
        assert ("1 row was predicted. 1 of them (100.0%) is more unusual" in page.text) == enough
        assert ("18 held-out rows are too few" in page.text) != enough
        assert ("a training table of 95 rows" in page.text) != enough


def test_an_id_may_be_called_as_a_column_of_the_report(large):
    named = large.assign(p=[f"nr {k}" for k in range(len(large))])
    model = TableModel(Toy()).fit(named, "kind", id_column="p")
    rows = model.predict(named)
    page = table_report(model, rows, model.count(named)).html()
    rows = rows[rows["review"] != ""]
    first = rows.sort_values(["conformal_p_value", "epistemic"], ascending=[True, False])
    assert f"<td>{first['p'].iloc[0]}</td>" in page


def test_quality_is_measured_on_the_held_out_rows_and_by_true_class(large):
    before = pyplot.get_fignums()
    result, page = report_of(large, large)
    assert pyplot.get_fignums() == before
    held = result.held_out
    quality = dict(page.under["How good is the model?"][1:])
    right = held["prediction"] == held["label"]
    accuracy, measured = f"{right.mean():.1%}", result.model.measured_by_class()
    assert quality["held-out rows"] == str(len(held)) == "40"
    assert quality["right predictions"] == accuracy
    assert f"right for {accuracy} of 40 held-out rows" in page.text
    _, *rows = page.under["Which score finds wrong predictions?"]
    best = max(rows, key=lambda row: float(row[1]))[0]
    assert f"Wrong predictions among the 40 held-out rows: {(~right).sum()}." in page.text
    shown = "lowest confidence" if best == "low confidence" else f"largest {best}"
    assert f"those with the {shown} are" in page.text
    head, *rows = page.under["How good is it for each class?"]
    assert head == ["class", "held-out rows", "right predictions", "coverage"]
    for name, *told in rows:
        own = right[held["label"] == name]
        covered = f"{measured['coverage'][name]:.1%}"
        assert told == [str(len(own)), f"{own.mean():.1%}", covered]
    assert "90% holds on average over all classes, not within each class" in page.text
    overall = (measured["coverage"] * measured["rows"]).sum() / measured["rows"].sum()
    assert result.model.measured_coverage()[0] == pytest.approx(overall)


def test_classes_that_are_rarely_found_or_covered_are_warned_of():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=1000), "b": rng.normal(size=1000)})
    frame["kind"] = np.where(rng.uniform(size=1000) < 0.1, "fraud", "fair")
    frame.loc[frame["b"] > 1.2, "kind"] = "other"
    model = TableModel("logistic").fit(frame, "kind")
    measured, held = model.measured_by_class(0.9).loc["fraud"], model.held_out_["label"]
    found, covered = quality_warnings(model, 0.9)
    assert found.endswith(f": {measured['accuracy']:.0%} of {measured['rows']:.0f} fraud.")
    assert f"frequent class: {(held == 'fair').mean():.1%}), but it finds few" in found
    assert covered.endswith(f": {measured['coverage']:.0%} of {measured['rows']:.0f} fraud.")
    page = Page(table_report(model, model.predict(frame[:9]), model.count(frame[:9])).html())
    assert found in page.text
    assert covered in page.text
    # Beyond chance: the same shares of few rows do not count, nor do balanced classes.
    model.held_out_, model.held_out_proba_ = model.held_out_[:12], model.held_out_proba_[:12]
    assert quality_warnings(model, 0.5) == []
    frame["kind"] = np.where(frame["a"] + rng.normal(size=1000) > 0, "fraud", "fair")
    assert quality_warnings(TableModel("logistic").fit(frame, "kind"), 0.9) == []


def test_of_many_classes_those_are_shown_that_sets_hold_least_often():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": np.repeat(np.arange(12.0), 20) + random.normal(size=240)})
    frame["kind"] = np.repeat([f"kind {k:02}" for k in range(12)], 20)
    result, page = report_of(frame, frame)
    _, *rows = page.under["How good is it for each class?"]
    measured = result.model.measured_by_class()["coverage"]
    assert {row[0] for row in rows} == set(measured.nsmallest(10).index)
    assert "true class: of 12, the 10 with the lowest coverage." in page.text


def test_a_model_that_is_no_better_than_guessing_is_the_first_thing_that_is_said(large):
    backwards = large.assign(kind=large["kind"].map({"big": "small", "small": "big"}))
    result = quantify(large[:100], large, held_out=backwards[100:])
    report = table_report(result.model, result.rows, result.model.count(large))
    assert report.summary.startswith("The model is no better than always predicting the class")
    frame = pd.DataFrame({"a": np.repeat([0.0, 100.0], 50), "kind": np.repeat(["x", "y"], 50)})
    _, page = report_of(frame, frame)
    assert "no better than" not in page.text
    assert "All held-out predictions are right" in page.text


def test_rows_that_are_not_scored_and_what_was_misread_are_reported():
    frame = pd.DataFrame({"y": np.tile([3, 7], 60)})
    frame["a"] = frame["y"] + np.random.default_rng(0).normal(size=120)
    train = frame.astype({"a": str})
    train.loc[99, "a"] = "1 - 2"
    model = TableModel(Toy()).fit(train, "y")
    new = frame[["a"]].astype(object)
    new.loc[1, "a"] = "abc"
    rows = pd.concat([model.predict(new[:40]), model.predict(new[40:])])
    report = table_report(model, rows, model.count(new[:40]) + model.count(new[40:]))
    page = report.html()
    assert "1 row was not scored because of an unreadable cell" in page
    assert "1 not scored" in page
    assert "nan" not in page.lower().split("<h2>how good")[1].split("<h2>")[0]
    (warning,) = model.warnings_
    assert warning.startswith("1 cell in column a holds a range, such as '1 - 2' (row 99)")
    assert page.count("holds a range") == 1
