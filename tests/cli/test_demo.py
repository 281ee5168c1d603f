"""The demonstration: it shows what it claims, and its files are complete and stand alone."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import roc_auc_score

from skuq import OODDetector, predict_uncertainty
from skuq.cli import _demo as demo
from tests.cli.runner import run

pyplot = pytest.importorskip("matplotlib.pyplot")

N_TEST, N_OOD = 20, 6
KINDS = ["rotated", "inverted", "noise", "photographs"]


@pytest.fixture(scope="module")
def result():
    return demo.run_digits_demo(n_test=N_TEST, n_ood=N_OOD, n_jobs=1)


@pytest.fixture(scope="module")
def command(result, tmp_path_factory):
    """The command, with these results: files, output, what it asked for, and figures left open."""
    out, asked = tmp_path_factory.mktemp("demo") / "new" / "folder", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_digits_demo", lambda **given: asked.append(given) or result)
        before = pyplot.get_fignums()
        done = run("demo", "--out", out, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert pyplot.get_fignums() == before
    assert asked == [{"n_jobs": 1, "random_state": 0, "verbose": 1}]
    page = (out / "report.html").read_text(encoding="utf-8")
    return SimpleNamespace(out=out, output=done.output, page=page)


def test_detection_is_the_area_under_the_roc_curve_and_better_than_by_the_entropy(result):
    def scores(X):
        return {
            "QUAM": predict_uncertainty(result.classifier, X).epistemic,
            "entropy": scipy_entropy(result.classifier.predict_proba(X), axis=1),
            "distance": result.detector.single_scores(X)["neighbors"],
            "detector": -result.detector.score_samples(X),
        }

    groups = {"test": result.data.X_test, **result.data.ood}
    found = {name: scores(X) for name, X in groups.items()}
    known, ood = found["test"], {name: found[name] for name in KINDS}
    columns = {m: np.concatenate([each[m] for each in ood.values()]) for m in known}
    assert list(result.detection.index) == [*KINDS, "all OOD"]
    assert list(result.detection) == list(known)
    for name, values in {**ood, "all OOD": columns}.items():
        for method in known:
            is_ood = np.repeat([0, 1], [N_TEST, len(values[method])])
            expected = roc_auc_score(is_ood, np.concatenate([known[method], values[method]]))
            assert result.detection.loc[name, method] == pytest.approx(expected)
            assert method == "entropy" or expected > result.detection.loc[name, "entropy"]
    for name, each in found.items():  # each group has its own uncertainty
        np.testing.assert_allclose(result.uncertainty[name].epistemic, each["QUAM"])


def test_the_detector_was_calibrated_with_digits_that_trained_nothing(result):
    detector, data = result.detector, result.data
    assert detector.n_held_out_ == 300
    assert detector.estimator.estimator is result.classifier
    n = len(data.X_train) - detector.n_held_out_
    own = OODDetector(detector.estimator, scores=["neighbors"], random_state=0)
    own.fit(data.X_train[-n:], data.y_train[-n:], X_held_out=data.X_train[:-n])
    some = data.X_train[:50]
    expected = own.single_scores(some)["neighbors"]
    np.testing.assert_allclose(detector.single_scores(some)["neighbors"], expected)


def test_the_table_has_every_input_once_and_its_parts_add_up(result, command):
    table = pd.read_csv(command.out / "uncertainty.csv")
    sizes = {"test": N_TEST, **dict.fromkeys(KINDS, N_OOD)}
    assert table["group"].value_counts(sort=False).to_dict() == sizes
    np.testing.assert_allclose(table["total"], table["aleatoric"] + table["epistemic"], rtol=1e-8)
    for name, u in result.uncertainty.items():
        np.testing.assert_allclose(table.loc[table["group"] == name, "epistemic"], u.epistemic)
    digits = table[table["group"] == "test"]
    np.testing.assert_array_equal(digits["label"], result.data.y_test)
    assert table.loc[table["group"] != "test", "label"].isna().all()
    assert result.accuracy == pytest.approx((digits["prediction"] == digits["label"]).mean())


def test_the_report_states_the_results_and_needs_no_other_file(result, command):
    page = command.page
    share = (result.detector.predict(result.data.X_test) == -1).mean()
    told = f"{result.accuracy:.1%} of {N_TEST} test digits", f"flags {share:.1%} of the test digits"
    for text in (*told, *(f"{value:.3f}" for value in result.detection.loc["all OOD"])):
        assert text in page
    fetched = re.findall(r'(?:src|href|srcset)="([^"]{0,5})', page) + re.findall(r"url\(", page)
    assert set(fetched) == {"data:"}
    assert "<script" not in page
    assert {path.name for path in command.out.iterdir()} == {"report.html", "uncertainty.csv"}
    for text in (f": {result.accuracy:.3f}", command.out / "report.html", *KINDS, "all OOD"):
        assert str(text) in command.output
