"""Sentences of the report on a table, where numbers alone would mislead."""

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from skuq.reporting import table_report
from skuq.reporting._tables import _how_good
from skuq.tables import TableModel, guessing_note, table_notes

SCRIPT, QUOTES = "<script>alert(1)</script>", "\"quoted\" 'twice' &amp; \u202eturned\x1b"


def measured(labels, proba=None, classes=None, **outputs):
    """A model with these held-out rows."""
    model = TableModel()
    model.held_out_ = pd.DataFrame({"label": labels, **outputs})
    model.held_out_proba_, model.classes_ = proba, classes
    return model


@pytest.mark.parametrize(
    ("prediction", "first", "text"),
    [
        ([1.0, 2.0, 3.5], "", ", and explains 87.5% of the variance"),
        ([3.0, 2.0, 1.0], "The model is no better than always predicting the mean", ""),
        ([2.0, 2.0, 2.0], "The model is no better than always predicting the mean", ""),
    ],
)
def test_a_model_that_is_worse_than_the_mean_is_not_to_be_used(prediction, first, text):
    model = measured([1.0, 2.0, 3.0], prediction=prediction)
    assert _how_good(model).endswith(f"{text}.")
    assert ("explains" in _how_good(model)) == bool(text)
    assert guessing_note(model) == (f"{first}: do not use it." if first else "")


@pytest.mark.parametrize("n_rows", [1, 3])
def test_nothing_is_explained_where_targets_do_not_differ(n_rows):
    model = measured([0.1] * n_rows, prediction=[3.0] * n_rows)
    assert guessing_note(model) == ""
    assert "explains" not in _how_good(model)


@pytest.mark.parametrize(
    ("labels", "sure", "is_useless"),
    [("aabb", 0.8, False), ("aabb", 0.5, True), ("aabb", 0.3, True), ("aaaa", 0.9, False)],
)
def test_a_model_that_is_no_better_than_guessing_is_not_to_be_used(labels, sure, is_useless):
    proba = np.array([[sure, 1 - sure] if label == "a" else [1 - sure, sure] for label in labels])
    model = measured(list(labels), proba, np.array(["a", "b"]))
    assert guessing_note(model).startswith("The model is no better than always") == is_useless


def test_names_of_classes_and_columns_stay_text():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    size = rng.normal(size=400)
    table = pd.DataFrame({"size": size, QUOTES: rng.choice([SCRIPT, "b"], 400)})
    table["<i>target"] = np.where(size + rng.normal(size=400) > 0, SCRIPT, "{{ 7 * 7 }}")
    table["id"] = [f"<u>{k}" for k in range(400)]
    model = TableModel("logistic").fit(table, "<i>target", id_column="id")
    new = table.assign(size=100.0, **{QUOTES: "</td>unseen"}).head(5)
    page = table_report(model, model.predict(new), model.count(new)).html()
    assert not {"i", "u", "script"} & set(re.findall(r"<(\w+)", page))
    cells = [unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", page)]
    assert {SCRIPT, "{{ 7 * 7 }}", "<u>0"} <= set(cells)
    shown = QUOTES.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")
    assert any(shown in text for text in cells)
    assert "predictions of &lt;i&gt;target?" in page


def test_the_treatment_is_a_list_and_tables_scroll():
    pytest.importorskip("matplotlib")
    table = pd.DataFrame({"size": np.arange(100) / 8, "kind": ["a", "b"] * 50})
    table.loc[3, "size"] = np.nan
    model = TableModel("logistic").fit(table, "kind")
    assert not model.warnings_
    page = unescape(table_report(model, model.predict(table), model.count(table)).html())
    _, _, treatment = page.partition("Processing of the data</h2>")
    listed = re.findall(r"<li>(.*?)</li>", treatment, re.DOTALL)
    assert listed == [*model.notes_, *table_notes(model.count(table))]
    assert page.count("<table>") == page.count('<div class="wide" tabindex="0" role="region"') > 2


def test_captions_of_many_classes_that_were_all_predicted_right():
    pytest.importorskip("matplotlib")
    label = np.arange(360) % 12
    table = pd.DataFrame(10.0 * (label[:, None] == np.arange(12))).add_prefix("x")
    table += np.random.default_rng(0).normal(size=table.shape)
    table["label"] = [f"class {k}" for k in label]
    model = TableModel("logistic").fit(table, "label")
    page = " ".join(table_report(model, model.predict(table), model.count(table)).html().split())
    assert "true class: of 12, the 10 with the lowest coverage. The nominal" in page
    assert "All held-out predictions are right, so scores cannot be compared." in page
    assert "Rows are counted from 1." in page
