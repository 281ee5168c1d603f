"""Reports: inert, accessible, equal for equal input, written whole; reports on tables."""

import base64
import os
import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from html import unescape
from importlib import metadata
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import sklearn
from markupsafe import Markup

from skuq.reporting import Report
from skuq.reporting._tables import _how_good, _wrong_predictions
from skuq.tables import TableModel, guessing_note, table_notes
from tests.reporting.conftest import QUOTES, SCRIPT
from tests.reporting.pages import Page

MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "</title><script>alert('a & \"b\"')</script><img src=x onerror=alert(1)>{0}{title}"
DASH = "\N{EN DASH}"


@pytest.fixture
def report():
    return Report("Title", "Summary.", created=MOMENT)


def table_of(frame):
    report = Report("t", "s", created=MOMENT)
    report.table("Heading", frame, "Caption.")
    page = Page(report.html())
    cells = [attributes for tag, attributes in page.tags if tag in {"td", "th"}]
    right = np.array([cell.get("class") == "number" for cell in cells]).reshape(len(page.rows), -1)
    assert (right == right[0]).all()
    return page.rows, right[0].tolist()


def test_the_golden_page(report, plt):
    report.text("One", "First words.")
    report.table("Two", pd.DataFrame({"a": [1, 2]}), "A table.")
    report.figure("Three", plt.figure(), "A figure.")
    html = report.html()
    page = Page(html)
    head = "head(meta meta meta meta title()style())"
    table = "figure(div(table(thead(tr(th()))tbody(tr(td())tr(td()))))figcaption())"
    sections = f"section(h2()p())section(h2(){table})section(h2()figure(img figcaption()))"
    body = f"body(header(h1()p())main({sections})footer())"
    assert page.outline == f"html({head}{body})"
    assert page.texts["title"] == page.texts["h1"] == ["Title"]
    assert page.texts["h2"] == ["One", "Two", "Three"]
    assert page.texts["p"] == ["Summary.", "First words."]
    assert page.texts["figcaption"] == ["A table.", "A figure."]
    (source,) = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    kind, _, data = source.partition(",")
    svg = base64.b64decode(data, validate=True).decode()
    assert (kind, svg.rstrip()[-6:]) == ("data:image/svg+xml;base64", "</svg>")
    assert "<dc:date>" not in svg
    assert not re.search(r"https?://|url\(|@import", html)
    (policy,) = [meta["content"] for meta in page.named("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; img-src data:; ")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (HOSTILE, HOSTILE),
        (Markup(HOSTILE), HOSTILE),  # that calls itself safe
        ("{{ 7 * 7 }} {% include 'x' %} {# y #}", "{{ 7 * 7 }} {% include 'x' %} {# y #}"),
        ("a\x00\x08\x0c\x1b[31m\x7f\x9b", r"a\x00\x08\x0c\x1b[31m\x7f\x9b"),
        ("\u200f\u061c1\u202e2\u2066<3\u2069", r"\u200f\u061c1\u202e2\u2066<3\u2069"),
        ("line\n\ttab, é, ש, 不, \u200d", "line\n\ttab, é, ש, 不, \u200d"),
    ],
)
def test_whatever_the_user_gives_is_text_and_never_markup(given, shown, plt, tmp_path):
    report, index = Report(given, given), pd.Index([given], name=given)
    report.text(given, given)
    report.table(given, pd.DataFrame({given: [given]}, index=index), given)
    report.figure(given, plt.figure(), given)
    page = Page(report.write(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not {"script", "b", "link", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert page.rows == [[shown, shown], [shown, shown]]
    texts = {t for tag in ("title", "h1", "h2", "figcaption", "p") for t in page.texts[tag]}
    assert texts == {shown}
    assert [{**image, "src": ""} for image in page.named("img")] == [{"src": "", "alt": shown}]


def test_the_footer_states_the_time_in_utc_and_the_versions(monkeypatch):
    python = ".".join(map(str, sys.version_info[:3]))
    for zone in (UTC, timezone(timedelta(hours=9)), None):
        page = Page(Report("t", "s", created=MOMENT.astimezone(zone)).html())
        footer = page.texts["footer"][0]
        assert footer.endswith(" on 2030-01-02 03:04:05 UTC.")
        assert f"scikit-learn {sklearn.__version__}" in footer
        assert f"Python {python}" in footer
        assert re.search(r"skuq \d.*torch \d", footer)
    naive = MOMENT.astimezone().replace(tzinfo=None)  # local
    assert Report("t", "s", created=naive).created == MOMENT
    clock = mock.Mock(now=MOMENT.astimezone)
    monkeypatch.setattr("skuq.reporting._report.datetime", clock)
    assert Report("t", "s").created == MOMENT
    missing = mock.Mock(side_effect=metadata.PackageNotFoundError("torch"))
    monkeypatch.setattr(metadata, "version", missing)
    assert "torch (not installed)" in Report("t", "s").html()


@pytest.mark.parametrize("name", ["report", "audit", "table"])
def test_pictures_have_words_headings_are_in_order_and_tables_scroll(reports, name):
    page = Page(reports[name].html())
    captions = {" ".join(text.split()) for text in page.texts["figcaption"]}
    alts = [image["alt"] for image in page.named("img")]
    assert len(alts) >= 2
    for alt in alts:
        assert re.search(r" by .*\d", alt)
        assert alt not in captions
    assert page.named("html") == [{"lang": "en"}]
    levels = [tag for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels == ["h1", *["h2"] * (len(levels) - 1)]
    scrollers = [a for tag, a in page.tags if a.get("class") == "wide"]
    assert len(scrollers) == len(page.named("table")) > 0
    assert all(a["aria-label"] and (a["tabindex"], a["role"]) == ("0", "region") for a in scrollers)
    assert {head.get("scope") for head in page.named("th")} == {"col"}
    assert len(page.texts["th"]) == len(page.named("th"))  # none is empty


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.5, "0.5000"), (1 / 3, "0.3333"), (np.float32(0.1), "0.1000"), (1.0, "1")),
        *((-0.000123456, "-0.0001235"), (1234.4, "1234"), (80.0, "80"), (1.5e-9, "1.500e-09")),
        *((123456.7, "1.235e+05"), (np.inf, "inf"), (1234567, "1234567"), (np.int8(-3), "-3")),
        *((v, None) for v in ("0.12x", True, np.bool_(False), Decimal("0.123456"), (1, 2))),
        *((t, t) for t in ("0.123456", "1,234", "\N{MINUS SIGN}4.6", "+0.0", "12.5%", DASH)),
    ],
)
def test_numbers_are_right_aligned_with_four_digits_and_texts_are_shown_as_they_are(value, text):
    shown = str(value) if text is None else text
    assert table_of(pd.DataFrame({"x": [value]})) == ([["x"], [shown]], [text is not None])


def test_missing_values_are_dashes_and_keep_the_alignment_of_their_column():
    for missing in (None, np.nan, pd.NA, pd.NaT):
        objects = pd.Series([0.25, missing], dtype=object)
        frame = pd.DataFrame({"number": [1.0, np.nan], "object": objects, "text": ["a", None]})
        rows, right = table_of(frame)
        assert rows[1:] == [["1", "0.2500", "a"], [DASH] * 3]
        assert right[::2] == [True, False]
    assert table_of(pd.DataFrame({"x": ["12.5%", DASH]}))[1] == [True]


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        (pd.Index(["first", "second"]), [["", "x"], ["first", "1"], ["second", "2"]]),
        (pd.RangeIndex(2020, 2022, name="year"), [["year", "x"], ["2020", "1"], ["2021", "2"]]),
        (pd.RangeIndex(10, 30, 10), [["", "x"], ["10", "1"], ["20", "2"]]),
        (pd.RangeIndex(2, name="run"), [["run", "x"], ["0", "1"], ["1", "2"]]),
        (pd.Index([0, 1]), [["x"], ["1"], ["2"]]),
        (pd.Index(["a", "b"], name="x"), [["x", "x"], ["a", "1"], ["b", "2"]]),
    ],
)
def test_an_index_is_shown_unless_it_counts_rows(index, shown):
    frame = pd.DataFrame({"x": [1, 2]}, index=index)
    assert table_of(frame)[0] == shown
    assert frame.index.equals(index)


def test_all_columns_and_levels_are_shown_and_a_long_word_may_break(report):
    frame = pd.DataFrame([["quam", 0.5, 3], ["softmax", 0.25, 12]], columns=["m", "x", "x"])
    rows = [["m", "x", "x"], ["quam", "0.5000", "3"], ["softmax", "0.2500", "12"]]
    assert table_of(frame) == (rows, [False, True, True])
    frame = pd.DataFrame({"model": ["a", "b"], "seed": [0, 1], "auroc": [0.5, 0.75]})
    grouped = frame.groupby(["model", "seed"]).agg({"auroc": ["mean", "size"]})
    head = ["model", "seed", "auroc / mean", "auroc / size"]
    rows = [head, ["a", "0", "0.5000", "1"], ["b", "1", "0.7500", "1"]]
    assert table_of(grouped)[0] == rows
    assert table_of(pd.DataFrame(columns=["a", "b"]))[0] == [["a", "b"]]
    frame = pd.DataFrame({"a_very_long_column_name_": [1], "counterexample radius": [2]})
    report.table("Table", frame, "Caption.")
    heads = Page(report.html()).named("th")
    assert [head["class"] for head in heads] == ["number long", "number"]


@pytest.mark.filterwarnings("error")
def test_displays_and_figures_are_embedded_with_their_words_and_nothing_else_changes(
    report, plt, displays, monkeypatch
):
    from sklearn.metrics import ConfusionMatrixDisplay

    mine, before = plt.figure(), dict(plt.rcParams)
    drawn = plt.get_fignums()
    for picture in [*displays, ConfusionMatrixDisplay(np.eye(2)), mine]:
        report.figure("Heading", picture, "Caption.")
    report.figure("Heading", mine, "Caption.", alt='A "cat" <b>')
    alts = [image["alt"] for image in Page(report.html()).named("img")]
    words = [display.description() for display in displays]
    assert alts == [*words, "Caption.", "Caption.", 'A "cat" <b>']
    assert plt.get_fignums() == drawn  # only figures that the report drew are closed
    assert dict(plt.rcParams) == before
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # without it only figures fail
    with pytest.raises(ImportError, match=r"skuq\[plot\]"):
        report.figure("Heading", displays[0], "Caption.")
    report.table("Heading", pd.DataFrame({"a": [1]}), "Caption.")
    assert len(Page(report.html()).named("img")) == 5


def test_time_is_all_that_tells_two_runs_apart(displays):
    def page(moment):
        report = Report("t", "s", created=moment)
        for display in displays:
            report.figure("Heading", display, "Caption.")
        return report.html()

    one, two = page(MOMENT), page(MOMENT + timedelta(seconds=1))
    assert one == page(MOMENT) != two
    assert one.replace("03:04:05", "03:04:06") == two


def test_the_file_holds_the_page_in_utf8_or_what_it_held_and_nothing_else_is_left(
    report, tmp_path, monkeypatch
):
    report.text("Größe", "ε ≤ 0.1, 不確実性, cut\ud800")
    assert r"cut\ud800" in report.html()
    path, page = report.write(tmp_path / "run.html"), report.html().encode("utf-8")
    assert path == tmp_path / "run.html"
    assert path.read_bytes() == page
    monkeypatch.chdir(tmp_path)  # a relative name is written to the current folder
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", mock.Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            report.write("run.html")
    assert [(each, each.read_bytes()) for each in tmp_path.iterdir()] == [(path, page)]
    path.unlink()
    assert report.write("run.html").resolve() == path


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
