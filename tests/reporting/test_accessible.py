"""Reports for everybody: pictures in words, headings in order, tables that a keyboard scrolls."""

import re

import numpy as np
import pandas as pd
import pytest

from skuq.plotting import CalibrationAuditDisplay, OODDisplay
from skuq.reporting import Report, audit_report, table_report
from skuq.tables import TableModel
from tests.reporter import drawn_audit
from tests.reporting.test_report import Page, one_display_of_each_kind

ARABIC = "مدينة القاهرة"
LONG = "a_very_long_column_name_" + "x" * 40


@pytest.fixture(scope="module", autouse=True)
def plt():
    pytest.importorskip("matplotlib").use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


@pytest.fixture(scope="module")
def pages():
    """One report of each template."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({LONG: rng.normal(size=150), ARABIC: ["القاهرة", "<b>Ulm</b>"] * 75})
    rows["paid"] = np.where(rows[LONG] + rng.normal(size=150) > 0, "yes", "no")
    model = TableModel("logistic").fit(rows[:100], "paid")
    plain = Report("Run", "Summary.")
    for display in one_display_of_each_kind():
        plain.figure("Picture", display, "Caption.")
    plain.table("Table", pd.DataFrame({"x": [1]}, index=["first"]), "Caption.")
    table = table_report(model, model.predict(rows[100:]), model.count(rows[100:]))
    return {
        "report": Page(plain.html()),
        "audit": Page(audit_report(drawn_audit("third")).html()),
        "table": Page(table.html()),
    }


@pytest.mark.parametrize("name", ["report", "audit", "table"])
def test_every_picture_has_an_alternative_text_with_its_numbers(pages, name):
    captions = {" ".join(text.split()) for text in pages[name].texts["figcaption"]}
    alts = [image["alt"] for image in pages[name].named("img")]
    assert len(alts) >= 2
    for alt in alts:
        assert " by " in alt or "map of values" in alt
        assert re.search(r"\d", alt)
        assert alt not in captions


@pytest.mark.parametrize("name", ["report", "audit", "table"])
def test_pages_have_a_language_and_headings_in_order(pages, name):
    page = pages[name]
    assert page.named("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


@pytest.mark.parametrize("name", ["report", "audit", "table"])
def test_tables_scroll_with_the_keyboard_and_their_headings_have_a_scope(pages, name):
    page = pages[name]
    scrollers = [a for tag, a in page.tags if a.get("class") == "wide"]
    assert len(scrollers) == len(page.named("table")) > 0
    for each in scrollers:
        assert each["tabindex"] == "0"
        assert each["role"] == "region"
        assert each["aria-label"]
    assert {head.get("scope") for head in page.named("th")} == {"col"}
    texts = page.texts["th"]
    assert len(texts) == len(page.named("th"))  # none is empty


def _colours(css):
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", css))


def _luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def _contrast(one, other):
    low, high = sorted(_luminance(colour) + 0.05 for colour in (one, other))
    return high / low


def test_texts_and_the_mark_of_the_focus_have_contrast_in_light_and_dark():
    css = Report("t", "s").html()
    light, _, rest = css.partition("prefers-color-scheme: dark")
    for colours in (_colours(light), _colours(rest)):
        stripe = [
            round(0.08 * int(colours["dim"][k : k + 2], 16) + 0.92 * int(c, 16))
            for k, c in ((k, colours["page"][k : k + 2]) for k in (1, 3, 5))
        ]
        for page in (colours["page"], "#" + "".join(f"{c:02x}" for c in stripe)):
            assert _contrast(colours["ink"], page) >= 7
            assert _contrast(colours["dim"], page) >= 4.5
        assert _contrast(colours["mark"], colours["page"]) >= 3
    assert ".wide:focus-visible" in css


def test_a_long_word_may_break_but_short_ones_do_not():
    report = Report("t", "s")
    report.table("Table", pd.DataFrame({LONG: [1], "counterexample radius": [2]}), "Caption.")
    heads = Page(report.html()).named("th")
    assert [head["class"] for head in heads] == ["number long", "number"]


def test_a_given_alternative_text_is_used_as_it_is(plt):
    report = Report("t", "s")
    report.figure("Heading", plt.figure(), "Caption.", alt='A "cat" <b>')
    report.figure("Heading", plt.figure(), "Caption.")
    assert [image["alt"] for image in Page(report.html()).named("img")] == [
        'A "cat" <b>',
        "Caption.",
    ]


# --- descriptions ------------------------------------------------------------------------------


def test_bins_and_findings_are_described():
    audit = drawn_audit("third")
    text = CalibrationAuditDisplay.from_estimator(audit).description()
    assert text.startswith("Accuracy by reported confidence: ")
    (found, *_) = np.flatnonzero(audit.bins_.significant)
    part = text.partition("Significant deviation: ")[2]
    assert f"{audit.bins_.accuracy[found]:.3g} at {audit.bins_.confidence[found]:.3g}" in part


def test_flagged_shares_are_described():
    groups = {"in": np.linspace(0.01, 1, 100), "out": [0.01]}
    text = OODDisplay(groups, false_alarm_rate=0.05).description()
    assert text == "Groups by conformal p-value; flagged at 0.05: in: 5.0%; out: 100.0%."


def test_legends_stay_inside_of_their_picture():
    from skuq.plotting import ConfidenceDensityDisplay

    names = [f"place of the long name={town}" for town in ("Innsbruck", "Ulm an der", "Linz")]
    display = ConfidenceDensityDisplay({name: [0.6, 0.9] for name in names}).plot()
    display.figure_.canvas.draw()
    legend = display.ax_.get_legend().get_window_extent()
    assert legend.x1 <= display.figure_.bbox.x1
