"""``skuq quantify``: what it prints and writes, and how it refuses what it cannot use."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB

from skuq import Uncertainty, UncertaintyMixin, extras
from skuq.cli import _quantify
from skuq.cli._main import main
from skuq.plugins import Plugin
from skuq.tables import quantify_table

COLUMNS = ["prediction", "confidence", "total", "aleatoric", "epistemic", "conformal_p_value"]


@pytest.fixture
def flowers():
    """Iris with names of species, a column of text, and holes in two columns."""
    frame = load_iris(as_frame=True).frame
    frame.columns = ["sepal length", "sepal width", "petal length", "petal width", "species"]
    frame["species"] = load_iris().target_names[frame["species"]]
    frame["soil"] = np.resize(["clay", "loam", "sand", None], len(frame))
    frame["sepal width"] = frame["sepal width"].where(frame.index % 10 > 0)
    return frame


@pytest.fixture
def folder(tmp_path, monkeypatch, flowers):
    """The current folder, with tables to learn from and to predict, and quick estimators."""
    flowers.to_csv(tmp_path / "known.csv", index=False)
    flowers.drop(columns="species")[::15].to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    quick = [
        Plugin("QUAMClassifier", "skuq", "", estimator=Quick),
        Plugin("BrokenClassifier", "acme", "", error="Plugin 'BrokenClassifier': no libneeded"),
        Plugin("NeedyClassifier", "acme", "", estimator=NeedyClassifier),
        Plugin("Regression", "acme", "", estimator=Regression),
    ]
    monkeypatch.setattr(_quantify, "discover", lambda: quick)
    return tmp_path


class Quick(UncertaintyMixin, GaussianNB):
    """A classifier whose uncertainty depends on the seed, in no time."""

    def __init__(self, random_state=None, n_jobs=None, verbose=0):
        super().__init__()
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict_uncertainty(self, X):
        proba = np.sort(self.predict_proba(X), axis=1)
        return Uncertainty.from_parts(1 - proba[:, -1], proba[:, 0] / (1 + self.random_state))


class NeedyClassifier:
    def __init__(self, graph):
        self.graph = graph


class Regression(Quick):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        return tags


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def quantify(*arguments, train="known.csv", target="species", predict="new.csv", out="out.csv"):
    given = ["--train", train, "--target", target, "--predict", predict, "--out", out]
    return run("quantify", *given, *arguments)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- quantify --------------------------------------------------------------------------------


def test_results_are_those_of_the_package_one_row_each_in_order(folder):
    result = quantify()
    assert result.exit_code == 0, result.output
    written = pd.read_csv("out.csv")
    assert list(written.columns) == COLUMNS
    expected = quantify_table(
        Quick(random_state=0), pd.read_csv("known.csv"), "species", pd.read_csv("new.csv")
    )
    pd.testing.assert_frame_equal(written, expected.rows, check_dtype=False)
    for note in expected.notes:
        assert note in result.stdout
    assert "Uncertainty of 10 rows: out.csv" in result.stdout


def test_a_report_is_written_beside_the_table(folder):
    pytest.importorskip("matplotlib").use("Agg")
    result = quantify("--report", "report.html")
    assert result.exit_code == 0, result.output
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "How certain are the predictions of species?" in page
    assert "10 rows were predicted." in page
    assert "Report: report.html" in result.stdout
    assert (folder / "out.csv").exists()


def test_options_reach_estimator_and_table(folder):
    assert quantify("--seed", "3", "--drop", "soil", "--drop", "petal width").exit_code == 0
    expected = quantify_table(
        Quick(random_state=3),
        pd.read_csv("known.csv"),
        "species",
        pd.read_csv("new.csv"),
        drop=["soil", "petal width"],
        random_state=3,
    )
    pd.testing.assert_frame_equal(pd.read_csv("out.csv"), expected.rows, check_dtype=False)


@pytest.mark.parametrize("method", ["QUAM", "QUAMClassifier"])
def test_the_method_is_found_by_its_short_and_its_long_name(folder, method):
    assert quantify("--method", method).exit_code == 0


def test_quiet_prints_nothing(folder, recwarn, capfd):
    result = quantify("--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []


def test_text_that_looks_like_numbers_stays_the_same_text(folder, flowers):
    codes = np.resize(["01", "1", "x"], len(flowers))
    flowers.assign(soil=codes).to_csv("known.csv", index=False)
    new = flowers.drop(columns="species").head(1)
    outputs, results = [], []
    for code in ("01", "1", "2"):
        new.assign(soil=code).to_csv("new.csv", index=False)
        outputs.append(quantify().stdout)
        results.append(pd.read_csv("out.csv"))
    assert ["not trained on" in output for output in outputs] == [False, False, True]
    assert not results[0].equals(results[1])


# --- what is refused -------------------------------------------------------------------------


def refused(result, folder, before):
    """The message of a refusal, which is one line; nothing was written."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert files(folder) == before
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"target": "spcies"}, [], "Did you mean 'species'?"),
        ({"out": "absent/out.csv"}, [], "The folder absent does not exist; create it first."),
        ({"out": "known.csv"}, [], "known.csv would overwrite another file of this call."),
        ({"train": "bad.csv"}, [], "bad.csv has no rows"),
        ({"predict": "bad.csv"}, [], "bad.csv has no rows"),
        ({}, ["--missing", "refuse"], "missing values"),
        ({}, ["--report", "out.csv"], "out.csv would overwrite another file"),
        ({}, ["--method", "gpx"], "No estimator 'gpx'; installed: needy, quam, regression."),
        ({}, ["--method", "broken"], "'broken' cannot be used: Plugin 'BrokenClassifier': no lib"),
        ({}, ["--method", "needy"], "'needy' can only be used from Python:"),
        ({}, ["--method", "regression"], "does not predict probabilities of classes"),
        ({"out": "n" * 250}, [], "Cannot write:"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, given, options, message):
    if "--report" in options:
        pytest.importorskip("matplotlib")
    (folder / "bad.csv").write_text("a,b\n", encoding="utf-8")
    before = files(folder)
    assert message in refused(quantify("--quiet", *options, **given), folder, before)


@pytest.mark.parametrize(("command", "what"), [(["demo"], "skuq demo"), (["quantify"], "--report")])
def test_without_matplotlib_a_report_is_refused_naming_the_extra(
    folder, monkeypatch, command, what
):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras, "import_module", absent)
    before = files(folder)
    result = run("demo") if what == "skuq demo" else quantify("--report", "report.html")
    message = refused(result, folder, before)
    assert message.startswith(f"{what}: matplotlib is needed for this and is not installed")
    assert message.endswith("pip install 'skuq[plot]'")


@pytest.mark.parametrize("method", ["to_csv", "table_report"])
def test_a_failure_on_the_way_leaves_nothing_half_written(folder, monkeypatch, method):
    pytest.importorskip("matplotlib").use("Agg")

    def fail(*args, **kwargs):
        raise RuntimeError("out of luck")

    def fail_half_way(self, path, **kwargs):
        path.write_text("prediction,conf", encoding="utf-8")
        raise RuntimeError("out of luck")

    (folder / "out.csv").write_text("old", encoding="utf-8")
    before = files(folder)
    if method == "to_csv":
        monkeypatch.setattr(pd.DataFrame, "to_csv", fail_half_way)
    else:
        monkeypatch.setattr("skuq.reporting.table_report", fail)
    result = quantify("--report", "report.html")
    assert str(result.exception) == "out of luck"
    assert files(folder) == before
