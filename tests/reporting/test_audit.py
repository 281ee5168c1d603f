"""Reports on audits: complete, inert, with a twin that programs can check."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np
import pytest
from markupsafe import Markup
from sklearn.linear_model import LogisticRegression

from skuq import CalibrationAuditor
from skuq.reporting import AuditReport, audit_data, audit_report, bin_range
from tests.reporter import drawn_audit
from tests.reporting.pages import Page

HOSTILE = "</td><script>alert('a & \"b\"')</script>$\\frac{$"
BROWSERS = map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])
BROWSER = next(filter(None, BROWSERS), None)
MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
SHIFTS = ("detectable_underconfident_shift", "detectable_overconfident_shift")


def without_pictures(auditor):
    return AuditReport("Title", audit_data(auditor), created=MOMENT)


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
    parts = {None: data, **{group["name"]: group for group in data["groups"]}}
    assert parts.keys() == audited.keys()
    for name, bins in audited.items():
        left_out = ("threshold", "threshold_overconfident", *SHIFTS)
        for field, values in bins._asdict().items():
            if field not in left_out:
                column = [row[field] for row in parts[name]["bins"]]
                if values.dtype.kind == "f":
                    column = np.array(column, float)  # None is NaN
                np.testing.assert_array_equal(column, values)
        assert [parts[name][shift] for shift in SHIFTS] == [getattr(bins, each) for each in SHIFTS]
    for direction in ("underconfident", "overconfident"):
        gaps = [row[f"detectable_{direction[:-1]}ce"] for row in data["bins"]]
        found = audit.detectable_gaps(direction=direction)
        np.testing.assert_array_equal(np.array(gaps, float), found)


def test_overconfidence_that_was_found_is_said_to_be_detectable():
    """At a confidence of 0.95, accuracy cannot exceed it by more than the tolerance."""
    proba = np.tile([0.05, 0.95], (1500, 1))
    audit = CalibrationAuditor.from_predictions(np.arange(1500) >= 210, proba, classes=[0, 1])
    report = without_pictures(audit)
    found = json.loads(report.json())["bins"][-1]
    assert (found["count"], found["direction"]) == (1500, "overconfident")
    assert found["detectable_underconfidence"] is None
    assert 0.05 < found["detectable_overconfidence"] < 0.09
    points = f"{100 * found['detectable_overconfidence']:.1f}"
    (told,) = [text for text in report.data["verdict"]["sentences"] if "falls short" in text][:1]
    assert f"at least {points} percentage points" in told
    assert f"\N{MINUS SIGN}{points}</td>" in report.html()


def test_the_integer_sums_reproduce_the_figures_exactly(faked):
    data = json.loads(without_pictures(faked).json())
    scale = data["scale"]
    for part in (data, *data["groups"]):
        rows = part["bins"]
        total = sum(row["count"] for row in rows)
        gaps = [Fraction(row["correct"] * scale - row["confidence_sum"], scale) for row in rows]
        assert total == part["n_samples"]
        assert float(sum(map(abs, gaps)) / total) == part["ece"]
        assert sum(row["correct"] for row in rows) / total == part["accuracy"]
    assert [edge / scale for edge in data["edges"][:-1]] == [row["lower"] for row in data["bins"]]


def test_json_is_plain_strict_stable_and_needs_no_matplotlib(faked, monkeypatch):
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    data = audit_data(faked, ["a note"])
    text = without_pictures(faked).json()
    assert text == without_pictures(faked).json()
    parsed = json.loads(text, parse_constant=pytest.fail)
    assert parsed == audit_data(faked)
    assert (parsed["format"], parsed["version"]) == ("skuq-audit", 2)
    parameters = {"alpha", "confidence_level", "n_bins", "region_alpha", "strategy"}
    assert set(parsed["parameters"]) == parameters
    assert parsed["bins"][0]["accuracy"] is None
    assert (data["notes"], data["classes"], data["model"]) == (["a note"], [0, 1], None)
    X = np.random.default_rng(0).normal(size=(100, 2))
    audit = CalibrationAuditor(LogisticRegression()).fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    data = audit_data(audit)
    assert (data["model"], data["classes"]) == ("LogisticRegression", ["no", "yes"])


def test_the_page_tells_all_and_is_the_same_again_also_without_pictures(faked, plt):
    before = plt.get_fignums()
    report, again = (audit_report(faked, "Loans", notes=["p0 -> 0"]) for _ in range(2))
    report.created = again.created = MOMENT
    html = report.html()
    assert html == again.html()
    page, data = Page(html), report.data
    assert page.texts["title"] == page.texts["h1"] == ["Loans"]
    assert data["verdict"]["headline"] in page.texts["p"]
    assert {*data["verdict"]["sentences"], "p0 -> 0"} <= {*page.texts["li"]}
    assert plt.get_fignums() == before
    images = [image["src"] for image in page.named("img")]
    assert len(images) >= 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not {"script", "link", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|@import", html)
    for row in data["bins"]:
        cell = bin_range(row).replace(" ", "\N{NO-BREAK SPACE}")
        assert (cell in page.texts["td"]) == (row["count"] > 0)
    assert {group["name"] for group in data["groups"]} <= {*page.texts["td"]}
    plain = AuditReport("Loans", audit_data(faked, ["p0 -> 0"]))
    plain.text("Further", "More.")  # sections that are added come last
    without = Page(plain.html())
    assert without.named("img") == []
    assert all(without.texts[tag] == page.texts[tag] for tag in ("li", "td", "th"))
    assert without.texts["h2"][-1] == "Further"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (HOSTILE, HOSTILE),
        (Markup("<script>alert(1)</script>"), "<script>alert(1)</script>"),
        ("{{ 7 * 7 }}{% raise %}", "{{ 7 * 7 }}{% raise %}"),
        ("a\x00\x1b[31m\u202egnp\u2066.exe", r"a\x00\x1b[31m\u202egnp\u2066.exe"),
    ],
)
def test_hostile_names_stay_text(name, shown, plt, tmp_path):
    audit = drawn_audit("third", groups={name: np.where(np.arange(1500) % 2, name, "x")})
    plain = AuditReport(name, audit_data(audit, [name]))
    report = audit_report(audit, name, notes=[name]) if shown == HOSTILE else plain
    page = Page(report.html())
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.texts["h1"] == page.texts["title"] == [shown]
    assert f"{shown}={shown}" in page.texts["td"]
    assert shown in page.texts["li"]
    assert any(text.startswith(f"Group {shown}={shown}, ") for text in page.texts["li"])
    assert json.loads(report.json())["groups"][0]["name"] in audit.group_bins_
    report.write(tmp_path / "audit.html")


def test_page_and_twin_are_written_together(faked, tmp_path):
    report = without_pictures(faked)
    assert report.write(tmp_path / "audit.html") == tmp_path / "audit.html"
    report.write(tmp_path / "other.html", tmp_path / "figures.json")
    with pytest.raises(FileNotFoundError, match="absent"):
        report.write(tmp_path / "absent" / "audit.html")
    with pytest.raises(ValueError, match="path"):
        report.write(tmp_path / "audit.json")
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert texts == dict.fromkeys(["audit.html", "other.html"], report.html()) | dict.fromkeys(
        ["audit.json", "figures.json"], report.json()
    )


@pytest.mark.parametrize(("old", "failing"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_a_write_that_fails_half_way_changes_neither_file(
    faked, tmp_path, monkeypatch, old, failing
):
    for name in ("audit.html", "audit.json") if old else ():
        (tmp_path / name).write_text(f"old {name}", encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    replace, calls = os.replace, []

    def fail_once(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises(OSError, match="disk full"):
        without_pictures(faked).write(tmp_path / "audit.html")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_the_report_with_visible_pictures_and_runs_no_script(faked, plt, tmp_path):
    report = audit_report(faked)
    path, source = report.write(tmp_path / "audit.html"), report.html()
    browse(path, tmp_path, "--window-size=900,3000", f"--screenshot={tmp_path / 'page.png'}")
    pixels = (255 * plt.imread(tmp_path / "page.png")[..., :3]).round().astype(int)
    for colour in ("#0072B2", "#D55E00"):  # of plain and of significant bins
        wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        assert (pixels == wanted).all(axis=2).sum() > 100
    # A script that the page would run replaces its content: the policy must not let it.
    attack = "<script>document.body.innerHTML = 'attacked'</script></body>"
    path.write_text(source.replace("</body>", attack), encoding="utf-8")
    page = browse(path, tmp_path, "--dump-dom").stdout
    assert "<h1>Calibration audit</h1>" in page
    assert page.count("<img ") == source.count("<img ") > 0
    assert page.count("<li>") == source.count("<li>")


def browse(path, folder, *arguments):
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-quic "
        "--disable-component-update --disable-sync --no-first-run --virtual-time-budget=5000"
    )
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *flags.split(), profile, *arguments, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True)
