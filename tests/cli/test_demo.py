"""The demonstrations: they show what they claim, and their files are complete and stand alone."""

import re
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import roc_auc_score

from skuq import OODDetector, predict_uncertainty
from skuq.cli import _demo as demo
from skuq.cli._main import main

pytest.importorskip("matplotlib").use("Agg")

N_TEST, N_OOD = 20, 6
KINDS = ["rotated", "inverted", "noise", "photographs"]
BROWSER = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)


pytestmark = pytest.mark.slow  # all of them run a demo once


@pytest.fixture(scope="module")
def result():
    return demo.run_digits_demo(n_test=N_TEST, n_ood=N_OOD, n_jobs=1)


@pytest.fixture(scope="module")
def command(result, tmp_path_factory):
    """The command, with these results: folder, output, what it asked for, and figures left open."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    out, asked = tmp_path_factory.mktemp("demo") / "new" / "folder", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_digits_demo", lambda **given: asked.append(given) or result)
        before = pyplot.get_fignums()
        given = ["demo", "--out", str(out), "--seed", "5", "--jobs", "1"]
        done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    opened = set(pyplot.get_fignums()) - set(before)
    return SimpleNamespace(out=out, output=done.output, asked=asked, opened=opened)


@pytest.fixture(scope="module")
def written(command):
    """Paths of the report and the table."""
    return command.out / "report.html", command.out / "uncertainty.csv"


@pytest.mark.parametrize("method", ["QUAM", "distance", "detector"])
def test_ood_inputs_are_told_from_digits_better_than_by_the_entropy(result, method):
    assert (result.detection[method] > result.detection["entropy"]).all()


def test_detection_is_the_area_under_the_roc_curve(result):
    def scores(X):
        proba = result.classifier.predict_proba(X)
        epistemic = predict_uncertainty(result.classifier, X).epistemic
        return {
            "QUAM": epistemic,
            "entropy": scipy_entropy(proba, axis=1),
            "distance": result.detector.single_scores(X)["neighbors"],
            "detector": -result.detector.score_samples(X),
        }

    ood = {**result.data.ood, "all OOD": np.concatenate([result.data.ood[k] for k in KINDS])}
    assert list(result.detection.index) == list(ood)
    assert list(result.detection) == list(scores(result.data.X_test))
    known = scores(result.data.X_test)
    for name, X in ood.items():
        is_ood = np.repeat([0, 1], [N_TEST, len(X)])
        for column, values in scores(X).items():
            expected = roc_auc_score(is_ood, np.concatenate([known[column], values]))
            assert result.detection.loc[name, column] == pytest.approx(expected)


def test_the_detector_was_calibrated_with_digits_that_trained_nothing(result):
    detector = result.detector
    assert detector.n_held_out_ == 300
    given = detector.estimator.estimator
    assert given is result.classifier
    trained = len(result.data.X_train) - detector.n_held_out_
    neighbors = detector.single_scores(result.data.X_train)["neighbors"]
    own = OODDetector(detector.estimator, scores=["neighbors"], random_state=0).fit(
        result.data.X_train[-trained:],
        result.data.y_train[-trained:],
        X_held_out=result.data.X_train[:-trained],
    )
    np.testing.assert_allclose(own.single_scores(result.data.X_train)["neighbors"], neighbors)


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
    share = (result.detector.predict(result.data.X_test) == -1).mean()
    assert f"flags {share:.1%} of the test digits" in page
    fetched = re.findall(r'(?:src|href|srcset)="([^"]{0,5})', page) + re.findall(r"url\(", page)
    assert fetched
    assert set(fetched) == {"data:"}
    assert "<script" not in page


def test_writing_leaves_no_figure_open(command):
    assert not command.opened


def test_the_command_writes_all_files_into_a_new_folder(result, command):
    assert command.asked == [{"n_jobs": 1, "random_state": 5, "verbose": 1}]
    assert {path.name for path in command.out.iterdir()} == {"report.html", "uncertainty.csv"}
    assert f"Accuracy on test digits: {result.accuracy:.3f}" in command.output
    assert str(command.out / "report.html") in command.output
    for kind in [*KINDS, "all OOD"]:
        assert kind in command.output


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
