"""Reports on audits: complete, inert, with a twin that programs can check."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from skuq import CalibrationAuditor
from skuq.plotting import CalibrationAuditDisplay, OODDisplay
from skuq.reporting import AuditReport, audit_data, audit_report, bin_finding, bin_range
from tests.reporter import drawn_audit
from tests.reporting.pages import Page

HOSTILE = "</td><script>alert('a & \"b\"')</script>$\\frac{$ {{ 7 * 7 }}{% raise %}\x1b[31m\u202e"
SHOWN = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
BROWSERS = map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])
BROWSER = next(filter(None, BROWSERS), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-quic", "--disable-component-update", "--disable-sync", "--no-first-run"),
    "--virtual-time-budget=5000",
]
MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
SHIFTS = ("detectable_underconfident_shift", "detectable_overconfident_shift")


def without_pictures(auditor):
    return AuditReport("Title", audit_data(auditor), created=MOMENT)


@pytest.mark.parametrize("shift", [0.0, "third"])
def test_the_data_are_the_numbers_of_the_auditor(shift):
    audit = drawn_audit(shift)
    data = audit_data(audit)
    assert data["verdict"]["passed"] is audit.passed_
    assert data["verdict"]["within_tolerance"] is audit.within_tolerance_
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
        found = getattr(audit.bins_, f"detectable_{direction[:-1]}ce")
        np.testing.assert_array_equal(np.array(gaps, float), found)


def test_overconfidence_that_was_found_is_said_to_be_detectable():
    """At a confidence of 0.95, accuracy cannot exceed it by more than the tolerance."""
    report = without_pictures(recorded([(0.95, 1500, 1290)]))
    found = json.loads(report.json())["bins"][-1]
    assert (found["count"], found["direction"]) == (1500, "overconfident")
    assert found["detectable_underconfidence"] is None
    assert 0.05 < found["detectable_overconfidence"] < 0.09
    points = f"{100 * found['detectable_overconfidence']:.1f}"
    told = [text for text in report.data["verdict"]["sentences"] if "falls short" in text]
    assert f"at least {points} percentage points" in told[0]
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
    assert (parsed["format"], parsed["version"]) == ("skuq-audit", 3)
    parameters = {"tolerance", "confidence_level", "n_bins", "region_tolerance", "strategy"}
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


@pytest.mark.parametrize("name", [HOSTILE, Markup(HOSTILE)])
def test_hostile_names_stay_text(name, plt, tmp_path):
    audit = drawn_audit("third", groups={name: np.where(np.arange(1500) % 2, "x", name)})
    report = audit_report(audit, name, notes=[name])
    page = Page(report.html())
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.texts["h1"] == page.texts["title"] == [SHOWN]
    assert f"{SHOWN}={SHOWN}" in page.texts["td"]
    assert SHOWN in page.texts["li"]
    assert any(text.startswith(f"Group {SHOWN}={SHOWN}, ") for text in page.texts["li"])
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
    page, names = report.html(), ("audit.json", "figures.json")
    data = json.loads(report.json()) | {"report_sha256": sha256(page.encode()).hexdigest()}
    assert [json.loads(texts.pop(name)) for name in names] == [data] * 2
    assert texts == dict.fromkeys(["audit.html", "other.html"], page)


def test_a_write_that_fails_half_way_changes_neither_file(faked, tmp_path, monkeypatch):
    paths = [tmp_path / "audit.html", tmp_path / "audit.json"]
    for path in paths:
        path.write_text(f"old {path.name}", encoding="utf-8")
    replace, done = os.replace, []

    def fail_second(source, target):
        done.append(target)
        if len(done) == 2:
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="disk full"):
        without_pictures(faked).write(paths[0])
    assert sorted(tmp_path.iterdir()) == paths
    assert all(path.read_text(encoding="utf-8") == f"old {path.name}" for path in paths)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_the_report_with_visible_pictures_and_runs_no_script(faked, plt, tmp_path):
    def browse(*arguments):
        given = [f"--user-data-dir={tmp_path / 'profile'}", *arguments, path.as_uri()]
        return subprocess.run([BROWSER, *FLAGS, *given], capture_output=True, text=True, check=True)

    report = audit_report(faked)
    path, source = report.write(tmp_path / "audit.html"), report.html()
    browse("--window-size=900,3000", f"--screenshot={tmp_path / 'page.png'}")
    pixels = (255 * plt.imread(tmp_path / "page.png")[..., :3]).round().astype(int)
    for colour in ("#0072B2", "#D55E00"):  # of plain and of significant bins
        wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        assert (pixels == wanted).all(axis=2).sum() > 100
    # A script that the page would run replaces its content: the policy must not let it.
    attack = "<script>document.body.innerHTML = 'attacked'</script></body>"
    path.write_text(source.replace("</body>", attack), encoding="utf-8")
    page = browse("--dump-dom").stdout
    assert "<h1>Calibration audit</h1>" in page
    assert page.count("<img ") == source.count("<img ") > 0
    assert page.count("<li>") == source.count("<li>")


from_predictions = CalibrationAuditor.from_predictions


def verdict(audit):
    return audit_data(audit)["verdict"]


def of_confidence(y, confidence, **options):
    return from_predictions(y, np.column_stack([confidence, 1 - confidence]), **options)


def told(audit):
    return "\n".join(verdict(audit)["sentences"])


def recorded(bins, **options):
    """Audit of bins given as confidence, number of predictions and number of right ones."""
    confidence = np.concatenate([np.full(n, c) for c, n, _ in bins])
    wrong = np.concatenate([np.arange(n) >= right for _, n, right in bins])
    return of_confidence(wrong.astype(int), confidence, classes=[0, 1], **options)


def calibrated(n, seed=0, low=0.5):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(low, 1, n)
    return (rng.random(n) > confidence).astype(int), confidence, rng


def test_a_failed_audit_says_where_how_much_and_how_improbable(faked, plt):
    bins, sums, worst = faked.bins_, faked.sums_, faked.suspicious_bins()[0]
    found, sentences = verdict(faked), told(faked)
    where = f"{bins.significant.sum()} of {(bins.count > 0).sum()} confidence bins and "
    assert found["headline"].startswith(f"Failed: in {where}")
    first = found["findings"][0]
    assert first.startswith(f"50% to 60%: of {sums.count[worst]} predictions with a mean")
    assert f"{100 * bins.confidence[worst]:.1f}%, {sums.correct[worst]} " in first
    assert f"({100 * bins.accuracy[worst]:.1f}%) were right (p < 0.0001)." in first
    assert "not proof of intent" in sentences
    over = told(drawn_audit(-0.2, groups={}))
    low, high = (f"Where the reported confidence is too {way}" for way in ("low", "high"))
    assert [low in sentences, high in sentences, low in over, high in over] == [1, 0, 0, 1]
    page = AuditReport("Audit", audit_data(faked)).html()
    assert all(text.split(" (")[0].replace("<", "&lt;") in page for text in found["findings"])
    text = CalibrationAuditDisplay.from_estimator(faked).description()
    part = text.partition("Significant deviation: ")[2]
    assert f"{bins.accuracy[worst]:.3g} at {bins.confidence[worst]:.3g}" in part
    flagged = OODDisplay({"in": np.linspace(0.01, 1, 100), "out": [0.01]}).description()
    assert flagged.endswith("flagged at 0.05: in: 5.0%; out: 100.0%.")


def test_groups_are_named_when_they_have_findings_only():
    y, confidence, rng = calibrated(4000)
    member = rng.random(4000) < 0.1
    confidence[member] = 0.55
    towns = {"town": np.where(member, "north\nside", "south")}
    audit = of_confidence(y, confidence, sensitive_features=towns)
    assert not audit.bins_.significant.any()
    assert verdict(audit)["headline"].startswith("Failed: in 1 of ")
    (line,) = [text for text in verdict(audit)["findings"] if "Group" in text]
    assert line.startswith(f"Group town=north\\nside, 50% to 60%: of {member.sum()} predictions ")
    assert "south" not in " ".join(verdict(audit)["findings"])
    towns, y = {"town": np.repeat(np.arange(8), 300)}, np.tile(np.arange(300) >= 270, 8)
    audit = of_confidence(y.astype(int), np.full(2400, 0.55), sensitive_features=towns)
    found = verdict(audit)["findings"]
    assert sum(text.startswith("Group town=") for text in found) == 5
    (others,) = [text for text in found if text.startswith("The reported confidence is also wrong")]
    assert others.count("Group town=") == 3
    assert "50% to 60% (too low)" in others


def test_bins_that_are_one_finding_are_told_together():
    audit = recorded([(0.65, 40, 33), (0.75, 60, 55), (0.85, 400, 340)])
    assert audit.bins_.finding[6:8].tolist() == [1, 1]
    assert verdict(audit)["findings"][0].startswith("60% to 80%: of 100 predictions with a mean")
    assert "71.0%, 88 (88.0%) were right" in verdict(audit)["findings"][0]
    # A bin amid a finding need not deviate as its neighbours do.
    audit = recorded([(0.55, 48, 37), (0.65, 5, 1), (0.75, 44, 41), (0.85, 7, 6)])
    assert audit.bins_.finding[5:8].tolist() == [1, 1, 1]
    assert bin_finding(audit_data(audit)["bins"][6]) == "with neighbours"
    assert "Failed: in 2 of 4 " in verdict(audit)["headline"]


def test_what_is_within_the_tolerance_or_may_be_chance_is_passed_and_told_with_its_samples():
    audit = drawn_audit(n=60_000, groups={})
    assert audit.within_tolerance_
    found = verdict(audit)
    assert not [text for text in found["findings"] if "larger than" in text]
    assert found["headline"].startswith("Passed: in 5 confidence bins with samples ")
    assert "at most the tolerated 5 percentage points" in found["headline"]
    audit = drawn_audit(n=150, groups={})
    beyond, found = np.flatnonzero(~audit.bins_.within_tolerance), verdict(audit)
    assert found["headline"].startswith("Inconclusive: the test is weak: no significant ")
    found_by = (
        "too low by 19.1 or too high by 21.3 percentage points in every bin; to find 10 points"
    )
    assert f"{found_by}, about 1,500 samples are needed." in found["headline"]
    assert f"In {len(beyond)} of 5 confidence bins" in found["headline"]
    line, algorithm = found["findings"]
    assert algorithm.startswith("Algorithm 1")
    assert all(f"({audit.bins_.count[b]} predictions, " in line for b in beyond)
    (line,) = verdict(recorded([(0.75, 40_000, 31_200)]))["findings"]
    assert "within the tolerated 5 percentage points: 70% to 80% (" in line
    assert "75.0% reported, 78.0% right)." in line
    one = verdict(recorded([(0.75, 400, 300)], tolerance=0.01))["headline"]
    assert "tolerated 1 percentage point " in one


def test_power_names_the_gaps_and_the_bins_and_groups_that_are_too_small():
    audit = recorded([(0.55, 400, 220), (0.75, 300, 225), (0.95, 3, 3)])
    gaps = 100 * audit.bins_.detectable_underconfidence[[5, 7]]
    text = told(audit)
    assert f"exceeds its confidence by at least {min(gaps):.1f} to {max(gaps):.1f} perc" in text
    assert "too low by more than the tolerance can be detected: 90% to 100% (3)." in text
    assert "Regions of the inputs were not searched" in text
    towns = {"town": np.where(np.arange(2000) < 4, "few", "many")}
    audit = of_confidence(*calibrated(2000)[:2], sensitive_features=towns)
    (line,) = [text for text in verdict(audit)["sentences"] if "too few samples for any" in text]
    assert "any finding: town=few. 2 groups share half of the error probability; the other" in line


def test_a_region_is_told_in_words_with_its_numbers(plt, monkeypatch):
    y, confidence, rng = calibrated(900, low=0.8)
    ages, jobs = rng.integers(18, 80, 900), rng.choice(["cook", "nurse"], 900)
    confidence[(ages < 30) & (jobs == "nurse")] = 0.57
    X = pd.DataFrame({"age": ages, "job": jobs})
    audit = of_confidence(y, confidence, X=X, search_regions=0.2, tolerance=0.5)
    data = json.loads(json.dumps(audit_data(audit), allow_nan=False))
    (region, *_) = data["regions"]["found"]
    assert data["verdict"]["headline"].startswith("Failed: in 1 region of the inputs the reported ")
    assert "more than the tolerated 20 percentage points" in data["verdict"]["headline"]
    line = next(text for text in data["verdict"]["findings"] if text.startswith("Region "))
    assert line.startswith(f"Region {region['rule']}: of {region['count']} predictions")
    assert f"{region['correct']} ({100 * region['accuracy']:.1f}%) were right" in line
    searched = data["regions"]["n_searched"]
    assert f"{searched:,} regions of the inputs, of at most two conditions, and " in told(audit)
    assert audit_report(audit).html().count(region["rule"].replace("<", "&lt;")) == 2
    monkeypatch.setattr("skuq.calibration._conditions.MAX_SAMPLES", 100)
    proba, X = [[0.6, 0.4], [0.4, 0.6]] * 100, np.arange(400).reshape(-1, 2) % 7
    audit = from_predictions([0, 1] * 100, proba, X=X, search_regions=0.3)
    assert "were compared in 100 of the 200 samples, drawn at random." in told(audit)
    points = "in a region of the inputs by more than 30 percentage points"
    assert points in told(audit) or not audit.passed_


def test_empty_bins_are_told_where_predictions_could_have_been():
    assert "confidence of 80% to 100%; nothing" in told(drawn_audit(0.25, n=3000, groups={}))
    sums = recorded([(0.55, 40, 20), (0.75, 40, 30)]).sums_
    unknown = told(CalibrationAuditor.from_sums(sums))  # how many classes there are
    assert "confidence of 0% to 50%, 60% to 70%, 80% to 100%;" in unknown
    equal = recorded([(0.75, 400, 300)], strategy="quantile", n_bins=5)
    assert "nothing is known" not in told(equal)
    for lower, upper, text in (
        (0.99999, 1.0, "99.999% to 100%"),
        (0.999999998, 0.999999999, "99.9999998% to 99.9999999%"),
        (0.6, 0.6, "60% to 60%"),
        (1 / 3, 2 / 3, "33.33% to 66.67%"),
    ):
        assert bin_range({"lower": lower, "upper": upper}) == text


@pytest.mark.parametrize(("right", "word"), [(300, "Passed: "), (399, "Failed: ")])
def test_first_sentence_says_what_was_not_looked_at_and_the_last_how_to(right, word):
    X = pd.DataFrame({"town": np.arange(400) % 2, "constant": 0.0})
    y, confidence = (np.arange(400) >= right).astype(int), np.full(400, 0.75)
    model = DummyClassifier(strategy="prior").fit(np.zeros((4, 2)), [0, 0, 0, 1])
    bins = "(bins only: groups and regions were not "
    groups = "(all samples and named groups only: reg"
    for audit, scope, advice in (
        (CalibrationAuditor(model).fit(X.to_numpy(), y), bins, "inputs (`search_regions`)."),
        (of_confidence(y, confidence), bins, "name the groups that matter (`sensitive_feat"),
        (of_confidence(y, confidence, sensitive_features=X["town"]), groups, "An underconfident"),
    ):
        headline = verdict(audit)["headline"]
        assert headline.startswith(word)
        first, *others = headline.split(". ")
        assert scope in first
        assert advice in others[-1]
    headline = verdict(of_confidence(y, confidence, X=X[["town"]], search_regions=True))["headline"]
    assert headline.startswith(word)
    assert "not tested" not in headline
    assert "offset" not in headline
