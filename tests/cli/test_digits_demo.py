"""The demonstration: it shows what it claims, and its files are complete and stand alone."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from skuq import predict_uncertainty
from skuq.cli import _digits_demo as demo
from skuq.cli._main import main

pytest.importorskip("matplotlib").use("Agg")

N_TEST, N_OOD = 20, 6
KINDS = ["rotated", "inverted", "noise", "photographs"]
BROWSER = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)


pytestmark = pytest.mark.slow  # all of them run the demo once


@pytest.fixture(scope="module")
def result():
    return demo.run_demo(n_test=N_TEST, n_ood=N_OOD, n_jobs=1)


@pytest.fixture(scope="module")
def written(result, tmp_path_factory):
    """Paths of the report and the table."""
    return demo.write_demo(result, tmp_path_factory.mktemp("demo"))


def test_quam_tells_ood_inputs_from_digits_better_than_the_entropy_does(result):
    overall = result.detection.loc["all OOD"]
    assert overall["QUAM"] > overall["entropy"]


def test_detection_is_the_area_under_the_roc_curve(result):
    ood = {name: result.uncertainty[name] for name in KINDS}
    everything = [np.concatenate(parts) for parts in zip(*ood.values(), strict=True)]
    ood["all OOD"] = type(result.uncertainty["test"])(*everything)
    assert list(result.detection.index) == list(ood)
    for name, u in ood.items():
        known = result.uncertainty["test"]
        is_ood = np.repeat([0, 1], [len(known.total), len(u.total)])
        for column, part in (("QUAM", "epistemic"), ("entropy", "aleatoric")):
            scores = np.concatenate([getattr(known, part), getattr(u, part)])
            expected = roc_auc_score(is_ood, scores)
            assert result.detection.loc[name, column] == pytest.approx(expected)


def test_each_group_has_its_own_uncertainty(result):
    for name, row in (("inverted", 0), ("photographs", -1)):
        u = predict_uncertainty(result.classifier, result.data.ood[name][[row]])
        np.testing.assert_allclose(result.uncertainty[name].epistemic[[row]], u.epistemic)
        np.testing.assert_allclose(result.uncertainty[name].aleatoric[[row]], u.aleatoric)


def test_the_table_has_every_input_once_and_its_parts_add_up(result, written):
    table = pd.read_csv(written[1])
    sizes = {"test": N_TEST, **dict.fromkeys(KINDS, N_OOD)}
    assert table["group"].value_counts(sort=False).to_dict() == sizes
    np.testing.assert_allclose(table["total"], table["aleatoric"] + table["epistemic"], rtol=1e-8)
    for name, u in result.uncertainty.items():
        np.testing.assert_allclose(table.loc[table["group"] == name, "epistemic"], u.epistemic)


def test_only_digits_have_a_label_and_the_accuracy_is_theirs(result, written):
    table = pd.read_csv(written[1])
    digits = table[table["group"] == "test"]
    np.testing.assert_array_equal(digits["label"], result.data.y_test)
    assert table.loc[table["group"] != "test", "label"].isna().all()
    assert result.accuracy == pytest.approx((digits["prediction"] == digits["label"]).mean())


def test_the_report_states_the_results_and_needs_no_other_file(result, written):
    page = written[0].read_text(encoding="utf-8")
    for value in result.detection.loc["all OOD"]:
        assert f"{value:.3f}" in page
    assert f"{result.accuracy:.1%} of {N_TEST} test digits" in page
    fetched = re.findall(r'(?:src|href|srcset)="([^"]{0,5})', page) + re.findall(r"url\(", page)
    assert fetched
    assert set(fetched) == {"data:"}
    assert "<script" not in page


def test_writing_leaves_no_figure_open(result, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    demo.write_demo(result, tmp_path)
    assert pyplot.get_fignums() == before


def test_the_command_writes_both_files_into_a_new_folder(result, tmp_path, monkeypatch):
    asked = []

    def small(**options):
        asked.append(options)
        return result

    monkeypatch.setattr(demo, "run_demo", small)
    out = tmp_path / "new" / "folder"
    done = CliRunner().invoke(main, ["demo", "--out", str(out), "--seed", "5", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert asked == [{"n_jobs": 1, "random_state": 5, "verbose": 1}]
    assert {path.name for path in out.iterdir()} == {"report.html", "uncertainty.csv"}
    assert f"Accuracy on test digits: {result.accuracy:.3f}" in done.output
    assert str(out / "report.html") in done.output
    for kind in [*KINDS, "all OOD"]:
        assert kind in done.output


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_the_report_with_all_its_pictures(written, tmp_path):
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking "
        "--disable-component-update --disable-sync --no-first-run --virtual-time-budget=5000"
    )
    done = subprocess.run(
        [BROWSER, *flags.split(), f"--user-data-dir={tmp_path}", "--dump-dom", written[0].as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    source = written[0].read_text(encoding="utf-8")
    assert "<h1>Out-of-distribution inputs" in done.stdout
    assert done.stdout.count("<img ") == source.count("<img ") > 0
    assert done.stdout.count("<h2>") == source.count("<h2>")
    assert "Content Security Policy" not in done.stderr
