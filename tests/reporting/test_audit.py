"""Reports on audits: complete, inert, with a twin that programs can check."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import Markup
from sklearn.linear_model import LogisticRegression

from skuq import CalibrationAuditor
from skuq.reporting import AuditReport, audit_data, audit_report, bin_range
from tests.reporter import drawn_audit

HOSTILE = "</td><script>alert('a & \"b\"')</script>$\\frac{$"
BROWSER = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)
MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def plt():
    pytest.importorskip("matplotlib").use("Agg")
    return pytest.importorskip("matplotlib.pyplot")


class Page(HTMLParser):
    """Tags with attributes, cells of tables, and texts of list items and headings."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.cells, self.texts, self.current = [], [], {}, None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.current = tag

    def handle_data(self, data):
        self.texts.setdefault(self.current, []).append(data)

    def handle_endtag(self, tag):
        self.current = None


# --- figures as data -------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, "third"])
def test_the_data_are_the_numbers_of_the_auditor(shift):
    audit = drawn_audit(shift)
    data = audit_data(audit)
    assert data["verdict"]["passed"] is audit.passed_
    assert data["verdict"]["within_alpha"] is audit.within_alpha_
    for name in ("n_samples", "accuracy", "confidence", "ece", "ece_chance", "mce", "n_families"):
        assert data[name] == getattr(audit, f"{name}_")
    assert tuple(data["ece_interval"]) == audit.ece_interval_
    audited = {None: audit.bins_, **audit.group_bins_}
    rows = {None: data["bins"], **{group["name"]: group["bins"] for group in data["groups"]}}
    assert rows.keys() == audited.keys()
    for name, bins in audited.items():
        fields = bins._asdict()
        for one in ("threshold", "threshold_overconfident", *SHIFTS):
            fields.pop(one)
        for field, values in fields.items():
            column = [row[field] for row in rows[name]]
            if values.dtype.kind == "f":
                column = np.array(column, float)  # None is NaN
            np.testing.assert_array_equal(column, values)
    for part, bins in zip((data, *data["groups"]), audited.values(), strict=True):
        assert [part[name] for name in SHIFTS] == [getattr(bins, name) for name in SHIFTS]
    for direction in ("underconfident", "overconfident"):
        gaps = [row[f"detectable_{direction[:-1]}ce"] for row in data["bins"]]
        np.testing.assert_array_equal(
            np.array(gaps, float), audit.detectable_gaps(direction=direction)
        )


SHIFTS = ("detectable_underconfident_shift", "detectable_overconfident_shift")


def test_overconfidence_that_was_found_is_said_to_be_detectable():
    """At a confidence of 0.95, accuracy cannot exceed it by more than the tolerance."""
    proba = np.tile([0.05, 0.95], (1500, 1))
    audit = CalibrationAuditor.from_predictions(np.arange(1500) >= 210, proba, classes=[0, 1])
    report = AuditReport("Title", audit_data(audit))
    found = json.loads(report.json())["bins"][-1]
    assert (found["count"], found["direction"]) == (1500, "overconfident")
    assert found["detectable_underconfidence"] is None
    assert 0.05 < found["detectable_overconfidence"] < 0.09
    points = f"{100 * found['detectable_overconfidence']:.1f}"
    (told,) = [text for text in report.data["verdict"]["sentences"] if "falls short" in text][:1]
    assert f"falls short of its confidence by at least {points} percentage points" in told
    assert f"\N{MINUS SIGN}{points}</td>" in report.html()


def test_the_integer_sums_reproduce_the_figures_exactly(faked):
    data = json.loads(audit_report_without_pictures(faked).json())
    for part in (data, *data["groups"]):
        deviation = [
            Fraction(row["correct"] * data["scale"] - row["confidence_sum"], data["scale"])
            for row in part["bins"]
        ]
        total = sum(row["count"] for row in part["bins"])
        assert total == part["n_samples"]
        assert float(sum(map(abs, deviation)) / total) == part["ece"]
        assert sum(row["correct"] for row in part["bins"]) / total == part["accuracy"]
    edges = [edge / data["scale"] for edge in data["edges"]]
    assert edges[:-1] == [row["lower"] for row in data["bins"]]


def audit_report_without_pictures(auditor):
    return AuditReport("Title", audit_data(auditor), created=MOMENT)


def test_json_is_plain_strict_and_stable(faked):
    data = audit_data(faked, ["a note"])
    text = audit_report_without_pictures(faked).json()
    assert text == audit_report_without_pictures(faked).json()
    parsed = json.loads(text, parse_constant=pytest.fail)
    assert parsed == audit_data(faked)
    assert (parsed["format"], parsed["version"]) == ("skuq-audit", 2)
    assert set(parsed["parameters"]) == {
        "alpha",
        "confidence_level",
        "n_bins",
        "region_alpha",
        "strategy",
    }
    assert parsed["bins"][0]["accuracy"] is None
    assert data["notes"] == ["a note"]
    assert data["classes"] == [0, 1]
    assert data["model"] is None


def test_a_fitted_model_is_named(plt):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = np.where(X[:, 0] + rng.normal(size=400) > 0, "yes", "no")
    audit = CalibrationAuditor(LogisticRegression()).fit(X, y)
    data = audit_report(audit, "Loans").data
    assert data["model"] == "LogisticRegression"
    assert data["classes"] == ["no", "yes"]


def test_data_need_no_matplotlib(monkeypatch):
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    audit = CalibrationAuditor.from_predictions([0] * 40, [[0.55, 0.45]] * 40, classes=[0, 1])
    assert AuditReport("t", audit_data(audit)).json()


# --- page ------------------------------------------------------------------------------------


def test_the_page_tells_all_and_needs_no_other_file(faked, plt):
    report = audit_report(faked, "Loans", notes=["p0 -> 0"])
    html = report.html()
    page = Page(html)
    assert page.texts["title"] == page.texts["h1"] == ["Loans"]
    assert report.data["verdict"]["headline"] in page.texts["p"]
    assert set(report.data["verdict"]["sentences"]) <= set(page.texts["li"])
    assert "p0 -> 0" in page.texts["li"]
    assert plt.get_fignums() == []
    images = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(images) >= 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not {"script", "link", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|@import", html)
    for row in report.data["bins"]:
        cell = bin_range(row).replace(" ", "\N{NO-BREAK SPACE}")
        assert (cell in page.texts["td"]) == (row["count"] > 0)
    for group in report.data["groups"]:
        assert group["name"] in page.texts["td"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (HOSTILE, HOSTILE),
        (Markup("<script>alert(1)</script>"), "<script>alert(1)</script>"),
        ("{{ 7 * 7 }}{% raise %}", "{{ 7 * 7 }}{% raise %}"),
        ("a\x00\x1b[31m", r"a\x00\x1b[31m"),
        ("\u202egnp\u2066.exe", r"\u202egnp\u2066.exe"),
    ],
)
def test_hostile_names_stay_text(name, shown, plt, tmp_path):
    n = 1500
    audit = drawn_audit("third", n, groups={name: np.where(np.arange(n) % 2, name, "x")})
    report = audit_report(audit, name, notes=[name])
    page = Page(report.html())
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.texts["h1"] == page.texts["title"] == [shown]
    assert f"{shown}={shown}" in page.texts["td"]
    assert shown in page.texts["li"]
    assert any(text.startswith(f"Group {shown}={shown}, ") for text in page.texts["li"])
    assert json.loads(report.json())["groups"][0]["name"] in audit.group_bins_
    report.write(tmp_path / "audit.html")


def test_a_page_of_the_figures_alone_has_all_but_the_pictures(faked, plt):
    with_pictures, plain = audit_report(faked), audit_report_without_pictures(faked)
    page = Page(plain.html())
    assert "img" not in {tag for tag, _ in page.tags}
    for tag in ("li", "td", "th"):
        assert page.texts[tag] == Page(with_pictures.html()).texts[tag]


def test_sections_that_are_added_come_last(faked):
    report = audit_report_without_pictures(faked)
    report.text("Further", "More.")
    assert Page(report.html()).texts["h2"][-2:] == ["All samples", "Further"]


def test_the_same_audit_gives_the_same_page(faked, plt):
    pages = [audit_report(faked) for _ in range(2)]
    for page in pages:
        page.created = MOMENT
    assert pages[0].html() == pages[1].html()


def test_page_and_twin_are_written_together(faked, tmp_path):
    report = audit_report_without_pictures(faked)
    path = report.write(tmp_path / "audit.html")
    assert path == tmp_path / "audit.html"
    assert path.read_text(encoding="utf-8") == report.html()
    assert (tmp_path / "audit.json").read_text(encoding="utf-8") == report.json()
    report.write(tmp_path / "other.html", tmp_path / "figures.json")
    assert (tmp_path / "figures.json").read_text(encoding="utf-8") == report.json()
    names = {"audit.html", "audit.json", "other.html", "figures.json"}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_write_that_fails_half_way_changes_neither_file(
    faked, tmp_path, monkeypatch, old, failing
):
    if old:
        (tmp_path / "audit.html").write_text("old page", encoding="utf-8")
        (tmp_path / "audit.json").write_text("old figures", encoding="utf-8")
    before = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    replace, calls = os.replace, []

    def fail_once(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises(OSError, match="disk full"):
        audit_report_without_pictures(faked).write(tmp_path / "audit.html")
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("absent/audit.html", FileNotFoundError, "existing folder, got .*absent; create it"),
        ("audit.json", ValueError, "`path` must differ from the path of the JSON"),
    ],
)
def test_names_that_cannot_be_written_are_refused(faked, tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        audit_report_without_pictures(faked).write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_the_report_with_all_its_pictures(faked, plt, tmp_path):
    # A script that the page would run replaces its content: the policy must not let it.
    report = audit_report(faked)
    path = report.write(tmp_path / "audit.html")
    attack = "<script>document.body.innerHTML = 'attacked'</script></body>"
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", attack), encoding="utf-8")
    page = browse(path, tmp_path, "--dump-dom").stdout
    source = report.html()
    assert "<h1>Calibration audit</h1>" in page
    assert page.count("<img ") == source.count("<img ") > 0
    assert page.count("<li>") == source.count("<li>")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_pictures_are_visible_in_a_browser(faked, plt, tmp_path):
    path = audit_report(faked).write(tmp_path / "audit.html")
    browse(path, tmp_path, "--window-size=900,3000", f"--screenshot={tmp_path / 'page.png'}")
    pixels = (255 * plt.imread(tmp_path / "page.png")[..., :3]).round().astype(int)
    for colour in ("#0072B2", "#D55E00"):  # of plain and of significant bins
        wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        assert (pixels == wanted).all(axis=2).sum() > 100


def browse(path, folder, *arguments):
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-quic "
        "--disable-component-update --disable-sync --no-first-run --virtual-time-budget=5000"
    )
    profile = f"--user-data-dir={folder / 'profile'}"
    return subprocess.run(
        [BROWSER, *flags.split(), profile, *arguments, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
