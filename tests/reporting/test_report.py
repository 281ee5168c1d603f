"""Reports: inert, accessible, equal for equal input, written whole or not at all."""

import base64
import os
import re
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from importlib import metadata

import numpy as np
import pandas as pd
import pytest
import sklearn
from markupsafe import Markup

from skuq.plotting import UncertaintyHistogramDisplay
from skuq.reporting import Report
from tests.reporting.pages import Page

MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "</title><script>alert('a & \"b\"')</script><img src=x onerror=alert(1)>{0}{title}"
DASH = "\N{EN DASH}"


@pytest.fixture
def report():
    return Report("Title", "Summary.", created=MOMENT)


def table_of(frame):
    """Rows of texts, and for each column whether all its cells are right-aligned."""
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
    sources = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert len(sources) == 1
    kind, _, data = sources[0].partition(",")
    assert kind == "data:image/svg+xml;base64"
    svg = base64.b64decode(data, validate=True).decode()
    assert svg.rstrip().endswith("</svg>")
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
    report = Report(given, given)
    report.text(given, given)
    index = pd.Index([given], name=given)
    report.table(given, pd.DataFrame({given: [given]}, index=index), given)
    report.figure(given, plt.figure(), given)
    page = Page(report.write(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not {"script", "b", "link", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert page.rows == [[shown, shown], [shown, shown]]
    for tag in ("title", "h1", "h2", "figcaption", "p"):
        assert set(page.texts[tag]) == {shown}
    assert [{**image, "src": ""} for image in page.named("img")] == [{"src": "", "alt": shown}]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9)), None])
def test_the_footer_states_the_time_in_utc_and_the_versions(zone, monkeypatch):
    created = MOMENT.astimezone(zone)
    footer = Page(Report("t", "s", created=created).html()).texts["footer"][0]
    assert footer.endswith(" on 2030-01-02 03:04:05 UTC.")
    python = ".".join(map(str, sys.version_info[:3]))
    for name, version in (("scikit-learn", sklearn.__version__), ("Python", python)):
        assert f"{name} {version}" in footer
    assert re.search(r"skuq \d.*torch \d", footer)
    naive = MOMENT.astimezone().replace(tzinfo=None)  # local
    assert Report("t", "s", created=naive).created == MOMENT

    def fail(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", fail)
    assert "torch (not installed)" in Report("t", "s").html()


def test_the_time_of_a_report_is_by_default_that_of_its_making(monkeypatch):
    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return MOMENT.astimezone(tz)

    monkeypatch.setattr("skuq.reporting._report.datetime", Frozen)
    assert Report("t", "s").created == MOMENT


@pytest.mark.parametrize("name", ["report", "audit", "table"])
def test_pictures_have_words_headings_are_in_order_and_tables_scroll(reports, name):
    page = Page(reports[name].html())
    captions = {" ".join(text.split()) for text in page.texts["figcaption"]}
    alts = [image["alt"] for image in page.named("img")]
    assert len(alts) >= 2
    for alt in alts:
        assert " by " in alt
        assert re.search(r"\d", alt)
        assert alt not in captions
    assert page.named("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}
    scrollers = [a for tag, a in page.tags if a.get("class") == "wide"]
    assert len(scrollers) == len(page.named("table")) > 0
    for each in scrollers:
        assert each["tabindex"] == "0"
        assert each["role"] == "region"
        assert each["aria-label"]
    assert {head.get("scope") for head in page.named("th")} == {"col"}
    assert len(page.texts["th"]) == len(page.named("th"))  # none is empty


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    low, high = sorted(luminance(colour) + 0.05 for colour in (one, other))
    return high / low


def test_texts_and_the_mark_of_the_focus_have_contrast_in_light_and_dark():
    css = Report("t", "s").html()
    light, _, dark = css.partition("prefers-color-scheme: dark")
    for part in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
        stripe = [
            round(0.08 * int(colours["dim"][k : k + 2], 16) + 0.92 * int(c, 16))
            for k, c in ((k, colours["page"][k : k + 2]) for k in (1, 3, 5))
        ]
        for page in (colours["page"], "#" + "".join(f"{c:02x}" for c in stripe)):
            assert contrast(colours["ink"], page) >= 7
            assert contrast(colours["dim"], page) >= 4.5
        assert contrast(colours["mark"], colours["page"]) >= 3
    assert ".wide:focus-visible" in css


def test_numbers_are_right_aligned_with_four_digits_and_texts_are_shown_as_they_are():
    for value, text in (
        (0.5, "0.5000"),
        (1 / 3, "0.3333"),
        (np.float32(0.1), "0.1000"),
        (-0.000123456, "-0.0001235"),
        (1234.4, "1234"),
        (1.0, "1"),
        (80.0, "80"),
        (1.5e-9, "1.500e-09"),
        (123456.7, "1.235e+05"),
        (np.inf, "inf"),
        (1234567, "1234567"),
        (np.int8(-3), "-3"),
    ):
        assert table_of(pd.DataFrame({"x": [value]})) == ([["x"], [text]], [True])
    for value in ("0.12x", True, np.bool_(False), Decimal("0.123456"), (1, 2)):
        assert table_of(pd.DataFrame({"x": [value]})) == ([["x"], [str(value)]], [False])
    for text in ("0.123456", "1,234", "\N{MINUS SIGN}4.6", "+0.0", "12.5%", DASH):
        rows = [["x"], [text], [DASH]]
        assert table_of(pd.DataFrame({"x": [text, DASH]})) == (rows, [True])
    assert table_of(pd.DataFrame({"x": ["word " * 200]}))[0][1] == ["word " * 200]


def test_missing_values_are_dashes_and_keep_the_alignment_of_their_column():
    for missing in (None, np.nan, pd.NA, pd.NaT):
        objects = pd.Series([0.25, missing], dtype=object)
        frame = pd.DataFrame({"number": [1.0, np.nan], "object": objects, "text": ["a", None]})
        rows, right = table_of(frame)
        assert rows[1:] == [["1", "0.2500", "a"], [DASH] * 3]
        assert right[0]
        assert not right[2]


def test_columns_indices_and_levels_are_shown_unless_an_index_counts_rows():
    frame = pd.DataFrame([["quam", 0.5, 3], ["softmax", 0.25, 12]], columns=["m", "x", "x"])
    rows = [["m", "x", "x"], ["quam", "0.5000", "3"], ["softmax", "0.2500", "12"]]
    assert table_of(frame) == (rows, [False, True, True])
    for index, shown in (
        (pd.Index(["first", "second"]), [["", "x"], ["first", "1"], ["second", "2"]]),
        (pd.RangeIndex(2020, 2022, name="year"), [["year", "x"], ["2020", "1"], ["2021", "2"]]),
        (pd.RangeIndex(10, 30, 10), [["", "x"], ["10", "1"], ["20", "2"]]),
        (pd.RangeIndex(2, name="run"), [["run", "x"], ["0", "1"], ["1", "2"]]),
        (pd.Index([0, 1]), [["x"], ["1"], ["2"]]),
        (pd.Index(["a", "b"], name="x"), [["x", "x"], ["a", "1"], ["b", "2"]]),
    ):
        frame = pd.DataFrame({"x": [1, 2]}, index=index)
        assert table_of(frame)[0] == shown
        assert frame.index.equals(index)
    frame = pd.DataFrame({"model": ["a", "b"], "seed": [0, 1], "auroc": [0.5, 0.75]})
    grouped = frame.groupby(["model", "seed"]).agg({"auroc": ["mean", "size"]})
    assert table_of(grouped)[0] == [
        ["model", "seed", "auroc / mean", "auroc / size"],
        ["a", "0", "0.5000", "1"],
        ["b", "1", "0.7500", "1"],
    ]
    assert table_of(pd.DataFrame(columns=["a", "b"]))[0] == [["a", "b"]]


def test_a_long_word_may_break_but_short_ones_do_not(report):
    frame = pd.DataFrame({"a_very_long_column_name_": [1], "counterexample radius": [2]})
    report.table("Table", frame, "Caption.")
    heads = Page(report.html()).named("th")
    assert [head["class"] for head in heads] == ["number long", "number"]


def test_displays_and_figures_are_embedded_with_their_words_and_nothing_else_changes(
    report, plt, displays
):
    from sklearn.metrics import ConfusionMatrixDisplay

    mine, before = plt.figure(), dict(plt.rcParams)
    drawn = plt.get_fignums()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for picture in [*displays, ConfusionMatrixDisplay(np.eye(2)), mine]:
            report.figure("Heading", picture, "Caption.")
        report.figure("Heading", mine, "Caption.", alt='A "cat" <b>')
    alts = [image["alt"] for image in Page(report.html()).named("img")]
    words = [display.description() for display in displays]
    assert alts == [*words, "Caption.", "Caption.", 'A "cat" <b>']
    assert plt.get_fignums() == drawn  # only figures that the report drew are closed
    assert dict(plt.rcParams) == before


def test_without_matplotlib_only_figures_fail(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"skuq\[plot\]"):
        report.figure("Heading", UncertaintyHistogramDisplay({"a": [1.0, 2.0]}), "Caption.")
    report.table("Heading", pd.DataFrame({"a": [1]}), "Caption.")
    assert Page(report.html()).named("img") == []


def test_time_is_all_that_tells_two_runs_apart(displays):
    def page(moment):
        report = Report("t", "s", created=moment)
        for display in displays:
            report.figure("Heading", display, "Caption.")
        report.table("Heading", pd.DataFrame({"a": [0.5]}), "Caption.")
        assert report.html() == report.html()
        return report.html()

    one, two = page(MOMENT), page(MOMENT + timedelta(seconds=1))
    assert one == page(MOMENT) != two
    assert one.replace("03:04:05", "03:04:06") == two


def test_the_file_holds_the_page_in_utf8_and_nothing_else_is_left(report, tmp_path, monkeypatch):
    report.text("Größe", "ε ≤ 0.1, 不確実性, cut\ud800")
    assert r"cut\ud800" in report.html()
    path = report.write(tmp_path / "run.html")
    assert path == tmp_path / "run.html"
    assert path.read_bytes() == report.html().encode("utf-8")
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.unlink()
    monkeypatch.chdir(tmp_path)  # a relative name is written to the current folder
    assert report.write("run.html").resolve() == tmp_path / "run.html"


@pytest.mark.parametrize("failing", ["replace", "html"])
@pytest.mark.parametrize("problem", [OSError("disk full"), KeyboardInterrupt("stopped")])
def test_an_interrupted_write_keeps_the_old_file_and_leaves_no_other(
    report, tmp_path, monkeypatch, failing, problem
):
    def fail(*args):
        raise problem

    (tmp_path / "run.html").write_text("old", encoding="utf-8")
    monkeypatch.setattr(*((os, "replace") if failing == "replace" else (report, "html")), fail)
    with pytest.raises(type(problem), match=str(problem)):
        report.write(tmp_path / "run.html")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [
        ("run.html", "old")
    ]
