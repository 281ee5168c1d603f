"""Reports: inert, complete in one file, equal for equal input, written whole or not at all."""

import base64
import os
import re
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from html.parser import HTMLParser
from importlib import metadata

import numpy as np
import pandas as pd
import pytest
import sklearn
from markupsafe import Markup

from skuq.plotting import (
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
    UncertaintyMapDisplay,
)
from skuq.reporting import Report

MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "</title><script>alert('a & \"b\"')</script><img src=x onerror=alert(1)>{0}{title}"


@pytest.fixture
def report():
    return Report("Title", "Summary.", created=MOMENT)


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


class Page(HTMLParser):
    """Tags with their attributes, the text inside each tag, and the rows of tables."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.texts, self.rows, self.begun = [], [], {}, [], False
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "bdi":  # part of the text that it is in
            return
        self.begun = True
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert tag == "bdi" or self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            texts = self.texts.setdefault(self.open[-1], [])
            if self.begun or not texts:
                texts.append(data)
                self.begun = False
            else:  # after a part that is isolated
                texts[-1] += data
            if self.open[-1] in {"td", "th"}:
                self.rows[-1][-1] += data

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def table_of(report, frame):
    """Rows of texts, and for each column whether all its cells are right-aligned."""
    report.table("Heading", frame, "Caption.")
    page = Page(report.html())
    cells = [attributes for tag, attributes in page.tags if tag in {"td", "th"}]
    right = np.array([cell.get("class") == "number" for cell in cells]).reshape(len(page.rows), -1)
    assert (right == right[0]).all()
    return page.rows, right[0].tolist()


def one_display_of_each_kind():
    grid = np.meshgrid(np.arange(4.0), np.arange(3.0))
    proba = [[0.9, 0.1], [0.3, 0.7], [0.4, 0.6]]
    return [
        UncertaintyHistogramDisplay({"known": [0.1, 0.2], "ood": [0.6, 0.9]}),
        RiskCoverageDisplay.from_predictions([0, 1, 1], [0, 1, 0], [0.1, 0.3, 0.2]),
        ReliabilityDisplay.from_predictions([0, 1, 0], proba),
        UncertaintyMapDisplay(*grid, grid[0] + grid[1]),
    ]


def images(report):
    return Page(report.html()).named("img")


def svg_of(image):
    kind, _, data = image["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(data, validate=True).decode()


# --- page --------------------------------------------------------------------------------


def test_sections_come_in_the_order_they_were_added(report):
    report.text("One", "First words.")
    report.table("Two", pd.DataFrame({"a": [1]}), "A table.")
    report.text("Three", "Last words.")
    page = Page(report.html())
    assert page.texts["title"] == page.texts["h1"] == ["Title"]
    assert page.texts["h2"] == ["One", "Two", "Three"]
    assert page.texts["p"] == ["Summary.", "First words.", "Last words."]
    assert page.texts["figcaption"] == ["A table."]


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
def test_whatever_the_user_gives_is_text_and_never_markup(given, shown):
    report = Report(given, given)
    report.text(given, given)
    index = pd.Index([given], name=given)
    report.table(given, pd.DataFrame({given: [given]}, index=index), given)
    page = Page(report.html())
    assert not {"script", "img", "b"} & {tag for tag, _ in page.tags}
    assert page.rows == [[shown, shown], [shown, shown]]
    for tag in ("title", "h1", "h2", "figcaption", "p"):
        assert set(page.texts[tag]) == {shown}


def test_text_that_utf8_cannot_hold_is_written_all_the_same(report, tmp_path):
    report.text("Name", "cut\ud800")
    page = report.write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert r"<p>cut\ud800</p>" in page


def test_a_hostile_caption_cannot_leave_the_attribute_of_its_picture(report, plt):
    report.figure(HOSTILE, plt.figure(), HOSTILE)
    page = Page(report.html())
    assert [set(image) for image in page.named("img")] == [{"src", "alt"}]
    assert images(report)[0]["alt"] == HOSTILE
    assert page.named("script") == []


def test_the_page_requests_nothing_and_may_load_nothing(report, plt):
    report.figure("Figure", plt.figure(), "Nothing.")
    report.table("Table", pd.DataFrame({"a": [1]}), "One.")
    html = report.html()
    page = Page(html)
    assert not {"script", "link", "iframe", "a"} & {tag for tag, _ in page.tags}
    sources = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/svg+xml;base64,")
    assert not re.search(r"https?://|url\(|@import", html)
    policies = [meta["content"] for meta in page.named("meta") if "http-equiv" in meta]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; img-src data:; ")


@pytest.mark.parametrize(
    "created", [MOMENT, MOMENT.astimezone(timezone(timedelta(hours=9))), MOMENT.astimezone(None)]
)
def test_the_footer_states_the_time_in_utc_and_the_versions(created):
    footer = Page(Report("t", "s", created=created).html()).texts["footer"][0]
    assert footer.endswith(" on 2030-01-02 03:04:05 UTC.")
    python = ".".join(map(str, sys.version_info[:3]))
    for name, version in (("scikit-learn", sklearn.__version__), ("Python", python)):
        assert f"{name} {version}" in footer
    assert re.search(r"skuq \d", footer)
    assert re.search(r"torch \d", footer)


def test_a_time_without_zone_is_local_and_the_default_is_now():
    naive = MOMENT.astimezone().replace(tzinfo=None)
    assert Report("t", "s", created=naive).created == MOMENT
    before = datetime.now(UTC)
    assert before <= Report("t", "s").created <= datetime.now(UTC)


def test_a_package_without_version_does_not_cost_the_report(report, monkeypatch):
    def fail(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", fail)
    assert "torch (not installed)" in report.html()


@pytest.mark.slow
def test_the_module_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys; from skuq.reporting import Report; Report('t', 's').html();"
        "sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- tables ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
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
    ],
)
def test_numbers_are_right_aligned_with_four_digits_and_integers_are_in_full(report, value, text):
    assert table_of(report, pd.DataFrame({"x": [value]})) == ([["x"], [text]], [True])


@pytest.mark.parametrize("value", ["0.12x", True, np.bool_(False), Decimal("0.123456"), (1, 2)])
def test_what_is_not_a_number_is_shown_as_it_is(report, value):
    assert table_of(report, pd.DataFrame({"x": [value]})) == ([["x"], [str(value)]], [False])


@pytest.mark.parametrize(
    "text", ["0.123456", "1,234", "\N{MINUS SIGN}4.6", "+0.0", "12.5%", "\N{EN DASH}"]
)
def test_a_number_that_was_written_as_text_is_right_aligned_as_it_is(report, text):
    assert table_of(report, pd.DataFrame({"x": [text, "\N{EN DASH}"]})) == (
        [["x"], [text], ["\N{EN DASH}"]],
        [True],
    )


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_missing_values_are_dashes_and_keep_the_alignment_of_their_column(report, missing):
    frame = pd.DataFrame(
        {"number": [1.0, np.nan], "object": pd.Series([0.25, missing], dtype=object), "text": "a"}
    )
    frame.loc[1, "text"] = None
    rows, right = table_of(report, frame)
    assert rows[1:] == [["1", "0.2500", "a"], ["\N{EN DASH}"] * 3]
    assert right[0]
    assert not right[2]


def test_columns_are_aligned_on_their_own_and_may_share_a_name(report):
    frame = pd.DataFrame([["quam", 0.5, 3], ["softmax", 0.25, 12]], columns=["m", "x", "x"])
    rows, right = table_of(report, frame)
    assert rows == [["m", "x", "x"], ["quam", "0.5000", "3"], ["softmax", "0.2500", "12"]]
    assert right == [False, True, True]


def test_an_index_that_says_something_comes_first_and_row_numbers_do_not_come(report):
    frame = pd.DataFrame({"x": [1, 2]}, index=["first", "second"])
    assert table_of(report, frame)[0] == [["", "x"], ["first", "1"], ["second", "2"]]
    assert frame.index.tolist() == ["first", "second"]
    plain = Report("t", "s")
    assert table_of(plain, frame.reset_index(drop=True))[0] == [["x"], ["1"], ["2"]]


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        (pd.RangeIndex(2020, 2022, name="year"), [["year", "x"], ["2020", "1"], ["2021", "2"]]),
        (pd.RangeIndex(10, 30, 10), [["", "x"], ["10", "1"], ["20", "2"]]),
        (pd.RangeIndex(2, name="run"), [["run", "x"], ["0", "1"], ["1", "2"]]),
        (pd.Index([0, 1]), [["x"], ["1"], ["2"]]),
    ],
)
def test_an_index_of_equally_spaced_numbers_is_shown_unless_it_counts_rows(report, index, shown):
    assert table_of(report, pd.DataFrame({"x": [1, 2]}, index=index))[0] == shown


def test_an_index_may_have_the_name_of_a_column(report):
    frame = pd.DataFrame({"x": [1]}, index=pd.Index(["a"], name="x"))
    assert table_of(report, frame)[0] == [["x", "x"], ["a", "1"]]


def test_levels_of_rows_and_columns_are_shown(report):
    frame = pd.DataFrame({"model": ["a", "b"], "seed": [0, 1], "auroc": [0.5, 0.75]})
    grouped = frame.groupby(["model", "seed"]).agg({"auroc": ["mean", "size"]})
    assert table_of(report, grouped)[0] == [
        ["model", "seed", "auroc / mean", "auroc / size"],
        ["a", "0", "0.5000", "1"],
        ["b", "1", "0.7500", "1"],
    ]


def test_a_table_without_rows_keeps_its_head(report):
    assert table_of(report, pd.DataFrame(columns=["a", "b"]))[0] == [["a", "b"]]


def test_long_texts_are_not_cut(report):
    assert table_of(report, pd.DataFrame({"x": ["word " * 200]}))[0][1] == ["word " * 200]


# --- figures -----------------------------------------------------------------------------


def test_displays_and_figures_are_embedded_as_svg_with_their_caption(report, plt):
    pictures = [*one_display_of_each_kind(), plt.figure()]
    for k, picture in enumerate(pictures):
        report.figure("Heading", picture, f"Caption {k}.")
    alts = [image["alt"] for image in images(report)]
    assert alts == [*(each.description() for each in pictures[:-1]), "Caption 4."]
    assert Page(report.html()).texts["figcaption"] == [f"Caption {k}." for k in range(5)]
    for image in images(report):
        svg = svg_of(image)
        assert svg.rstrip().endswith("</svg>")
        assert "<dc:date>" not in svg


def test_only_figures_that_the_report_drew_are_closed(report, plt):
    displays = one_display_of_each_kind()
    before = plt.get_fignums()
    assert len(before) == 2  # those that were drawn already
    for display in displays:
        report.figure("Heading", display, "Caption.")
    assert plt.get_fignums() == before


def test_displays_of_sklearn_can_be_embedded(report, plt):
    from sklearn.metrics import ConfusionMatrixDisplay

    report.figure("Heading", ConfusionMatrixDisplay(np.eye(2)), "Caption.")
    assert len(images(report)) == 1
    assert plt.get_fignums() == []


def test_embedding_leaves_the_settings_of_matplotlib_alone_and_warns_of_nothing(report, plt):
    before = dict(plt.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for display in one_display_of_each_kind():
            report.figure("Heading", display, "Caption.")
    assert dict(plt.rcParams) == before


def test_without_matplotlib_only_figures_fail(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib is needed .* 'skuq\[plot\]'"):
        report.figure("Heading", UncertaintyHistogramDisplay({"a": [1.0, 2.0]}), "Caption.")
    report.table("Heading", pd.DataFrame({"a": [1]}), "Caption.")
    assert images(report) == []


# --- determinism and files ---------------------------------------------------------------


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(plt):
    pages = []
    for _ in range(2):
        report = Report("t", "s", created=MOMENT)
        for display in one_display_of_each_kind():
            report.figure("Heading", display, "Caption.")
        report.table("Heading", pd.DataFrame({"a": [0.5]}), "Caption.")
        pages += [report.html(), report.html()]
    assert len(set(pages)) == 1


def test_time_is_all_that_tells_two_runs_apart():
    later = MOMENT + timedelta(seconds=1)
    one, two = (Report("t", "s", created=moment).html() for moment in (MOMENT, later))
    assert one != two
    assert one.replace("03:04:05", "03:04:06") == two


def test_the_file_holds_the_page_in_utf8_and_nothing_else_is_left(report, tmp_path):
    report.text("Größe", "ε ≤ 0.1, 不確実性")
    path = report.write(tmp_path / "run.html")
    assert path == tmp_path / "run.html"
    assert path.read_bytes() == report.html().encode("utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_relative_name_is_written_to_the_current_folder(report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.write("run.html").resolve() == tmp_path / "run.html"
    assert (tmp_path / "run.html").exists()


def test_the_file_has_the_permissions_of_any_new_file(report, tmp_path):
    (tmp_path / "plain").touch()
    path = report.write(tmp_path / "run.html")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


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


def test_a_missing_folder_is_named(report, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"existing folder, got .*absent; create it first"):
        report.write(tmp_path / "absent" / "run.html")
    assert list(tmp_path.iterdir()) == []
