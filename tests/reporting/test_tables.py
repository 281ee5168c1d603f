"""Report on a table, where numbers alone would mislead."""

import re
from html import unescape
from types import SimpleNamespace

import numpy as np
import pandas as pd

from skuq.reporting._tables import _how_good, _wrong_predictions
from skuq.tables import TableModel, guessing_note, table_notes
from tests.reporting.conftest import QUOTES, SCRIPT
from tests.reporting.pages import Page

FOLDS = {"losses": {}, "guessing": 1.0, "n_rows": 60}


def measured(labels, proba=None, classes=None, folds=FOLDS, **outputs):
    model = TableModel()
    model.held_out_ = pd.DataFrame({"label": labels, **outputs})
    model.held_out_proba_, model.classes_ = proba, classes
    model.name_, model.comparison_ = "logistic", SimpleNamespace(**FOLDS | folds)
    return model


def test_a_model_that_is_no_better_than_guessing_is_not_to_be_used():
    three = [1.0, 2.0, 3.0]
    for labels, prediction, explained, useless in (
        (three, [1.0, 2.0, 3.5], "87.5%", False),
        (three, [3.0, 2.0, 1.0], None, True),
        (three, [2.0, 2.0, 2.0], None, True),
        ([0.1], [3.0], None, False),  # nothing is explained where targets do not differ
        ([0.1] * 3, [3.0] * 3, None, False),
    ):
        model = measured(labels, prediction=prediction)
        told, note = _how_good(model), guessing_note(model)
        assert (f"explains {explained}" if explained else "mean absolute error") in told
        assert ("explains" in told) == bool(explained)
        assert ("no better than always predicting the mean" in note) == useless
        assert told.startswith(note)
    # Folds and held-out rows count together.
    for loss, useless in ((1.1, True), (0.9, False)):
        model = measured(three, prediction=[1.0, 2.0, 3.1], folds={"losses": {"logistic": loss}})
        assert bool(guessing_note(model)) == useless
    for sure, labels, useless in ((0.8, "ab", 0), (0.5, "ab", 1), (0.3, "ab", 1), (0.9, "aa", 0)):
        proba = [[sure, 1 - sure] if label == "a" else [1 - sure, sure] for label in labels]
        model = measured([*labels], np.array(proba), np.array(["a", "b"]))
        assert guessing_note(model).startswith("The model is no better than always") == useless
    proba, classes = np.eye(3)[[0, 0, 1, 1]], np.array([*"abc"])
    told = _how_good(measured([*"aabc"], proba, classes, prediction=[*"aabb"]))
    assert "is right for 75.0%" in told
    assert "would be right for 50.0%" in told


def test_wrong_predictions_are_counted_and_ranked_by_the_score_that_detects_them_best(plt):
    scores = {"confidence": [0.9, 0.8, 0.9, 0.6], "total": [0.1, 0.4, 0.1, 0.2]}
    model = measured([*"aabb"], prediction=[*"aaba"], **scores, epistemic=[0.3, 0.2, 0.1, 0.0])
    found = _wrong_predictions(model)
    assert (found["n_wrong"], found["held_out"]) == (1, "4 held-out rows")
    assert found["refused"] == "lowest confidence"
    assert [row[1] for row in found["scores"]["rows"]] == ["1.000", "0.667", "0.000"]


def test_names_of_classes_and_columns_stay_text_and_the_treatment_is_a_list(table):
    model, counts, report = table
    html = report.html()
    page = Page(html)
    assert not {"i", "u", "b", "script"} & {tag for tag, _ in page.tags}
    cells = page.texts["td"]
    assert {SCRIPT, "{{ 7 * 7 }}", "<u>0"} <= set(cells)
    shown = QUOTES.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")
    assert any(shown in text for text in cells)
    assert page.texts["h1"] == ["How certain are the predictions of <i>target?"]
    treatment = unescape(html).partition("Processing of the data</h2>")[2]
    notes = [*model.notes_[len(model.warnings_) :], *table_notes(counts)]
    assert len(re.findall("<li>", treatment)) == len(notes) > 0
