"""The command line: what it prints and writes, and how it refuses what it cannot use."""

import ast
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_iris

import skuq
from skuq import QUAMClassifier, extras
from skuq.cli import _estimators, _quantify
from skuq.cli._audit import audit
from skuq.cli._main import main
from skuq.cli._verdict import FAILED
from skuq.plugins import Plugin, discover
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
    """The current folder, with tables to learn from and to predict, and short searches."""
    flowers.to_csv(tmp_path / "known.csv", index=False)
    flowers.drop(columns="species")[::15].to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    quick = [
        Plugin("QUAMClassifier", "skuq", "", estimator=QuickQUAM),
        Plugin("BrokenClassifier", "acme", "", error="Plugin 'BrokenClassifier': no libneeded"),
        Plugin("NeedyClassifier", "acme", "", estimator=NeedyClassifier),
        Plugin("Regression", "acme", "", estimator=Regression),
    ]
    monkeypatch.setattr(_quantify, "discover", lambda: quick)
    return tmp_path


class QuickQUAM(QUAMClassifier):
    """QUAM with the number of steps that a test can wait for."""

    def __init__(self, n_steps=2, n_jobs=None, random_state=None, verbose=0):
        super().__init__(n_steps=n_steps, n_jobs=n_jobs, random_state=random_state, verbose=verbose)


class NeedyClassifier:
    def __init__(self, graph):
        self.graph = graph


class Regression(QuickQUAM):
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


# --- what is installed -----------------------------------------------------------------------


def test_the_version_is_that_of_the_package():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"skuq, version {skuq.__version__}\n"


def test_estimators_are_listed_with_summary_and_origin():
    result = run("estimators")
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if line.startswith("QUAMClassifier ")]
    assert QUAMClassifier.__doc__.splitlines()[0] in line
    assert line.endswith("[skuq]")


def test_a_broken_plugin_is_listed_by_name_and_stops_nothing(monkeypatch):
    broken = Plugin("BrokenClassifier", "acme", "acme:Broken", error="libneeded is missing")
    monkeypatch.setattr(_estimators, "discover", lambda: [broken, *discover()])
    result = run("estimators")
    assert result.exit_code == 0
    words = result.output.splitlines()[0].split()
    assert words == ["BrokenClassifier", "broken:", "libneeded", "is", "missing"]
    assert "QUAMClassifier" in result.output


# --- commands are loaded when they are called --------------------------------------------------

COMMANDS = [[], *([name] for name in main.commands_at)]
COMMANDS += [["audit", name] for name in audit.commands_at]
SLOW = {"torch", "sklearn", "pandas", "matplotlib", "stable_baselines3", "gymnasium", "ezkl"}


def python(code, *arguments):
    """Run code in an interpreter of its own, as the console script runs `main`."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_list_of_commands_has_the_first_sentence_of_their_help(command):
    result = run(*command, "--help")
    assert run(*command, "-h").output == result.output
    assert result.exit_code == 0
    assert result.output.startswith("Usage: main")
    if command:
        group = main if len(command) == 1 else audit
        summary = group.commands_at[command[-1]][1]
        assert result.output.splitlines()[2].strip() == summary


def test_help_imports_nothing_that_takes_long():
    code = (
        "import json, sys\nfrom skuq.cli import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    try: main([*command, '--help'])\n"
        "    except SystemExit as end: assert not end.code\n"
        f"    assert not {SLOW!r} & set(sys.modules), command\n"
    )
    done = python(code, json.dumps(COMMANDS))
    assert done.returncode == 0, done.stderr


def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys\nfrom skuq.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print([name for name in sys.modules if name.startswith('skuq.')])\n"
    )
    imported = python(code).stdout.splitlines()[-1]
    assert set(ast.literal_eval(imported)) == {"skuq.cli", "skuq.cli._main", "skuq.cli._lazy"}


@pytest.mark.parametrize(
    ("broken", "command", "others"),
    [
        ("skuq.cli._audit", ["audit"], [["quantify"], ["demo"]]),
        ("skuq.cli._audit_prove", ["audit", "prove"], [["audit"], ["audit", "verify"]]),
    ],
)
def test_a_command_that_cannot_be_loaded_stops_no_other(monkeypatch, broken, command, others):
    monkeypatch.setitem(sys.modules, broken, None)
    for other in ([], *others):
        assert run(*other, "--help").exit_code == 0
    result = run(*command, "--help")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be loaded" in result.stderr
    assert broken in result.stderr


SCRIPT = "import sys\n{}\nfrom skuq.cli import main\nsys.exit(main())"
CRASHES = {
    "no interpreter": "raise SystemError('no interpreter')",
    "no click": "sys.modules['click'] = None",
    "no numpy": "sys.modules['numpy'] = None",
    "broken command": "sys.modules['skuq.cli._audit'] = None",
    "broken subcommand": "sys.modules['skuq.cli._audit_verify'] = None",
    "defect": "import skuq.cli._files as f\nf.check_outputs = lambda *a: 1 / 0",
    "defect in proofs": "import skuq.cli._proof_options as o\no.require_zk = lambda: 1 / 0",
    "exit": "import skuq.cli._files as f\nf.check_outputs = lambda *a: sys.exit(10)",
    "exit in proofs": "import skuq.cli._proof_options as o\no.require_zk = lambda: sys.exit(10)",
}


@pytest.mark.parametrize("planted", CRASHES)
def test_a_crash_has_no_exit_code_of_a_verdict(tmp_path, planted):
    path, folder = str(tmp_path / "p.csv"), str(tmp_path)
    (tmp_path / "p.csv").write_text("y,p\n0,0.5\n1,0.5\n", encoding="utf-8")
    arguments = ["--label", "y", "--predictions", path, "--proba", "p", "--quiet"]
    if planted in {"broken subcommand", "defect in proofs", "exit in proofs"}:
        arguments = ["verify", "--audit", folder, "--commitment", folder]
        arguments += ["--data", path, "--label", "y"]
    done = python(SCRIPT.format(CRASHES[planted]), "audit", *arguments)
    assert done.returncode not in {0, FAILED}, done.stderr
    assert done.stdout == ""
    assert done.stderr


# --- quantify --------------------------------------------------------------------------------


def test_results_are_those_of_the_package_one_row_each_in_order(folder):
    result = quantify()
    assert result.exit_code == 0, result.output
    written = pd.read_csv("out.csv")
    assert list(written.columns) == COLUMNS
    expected = quantify_table(
        QuickQUAM(random_state=0), pd.read_csv("known.csv"), "species", pd.read_csv("new.csv")
    )
    pd.testing.assert_frame_equal(written, expected.rows, check_dtype=False)
    for note in expected.notes:
        assert note in result.stdout
    assert "Uncertainty of 10 rows: out.csv" in result.stdout


def test_the_order_of_input_rows_is_kept(folder, flowers):
    quantify()
    pd.read_csv("new.csv")[::-1].to_csv("reversed.csv", index=False)
    quantify(predict="reversed.csv", out="reversed_out.csv")
    given, reversed_ = (pd.read_csv(name) for name in ("out.csv", "reversed_out.csv"))
    pd.testing.assert_frame_equal(reversed_[::-1].reset_index(drop=True), given)


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
        QuickQUAM(random_state=3),
        pd.read_csv("known.csv"),
        "species",
        pd.read_csv("new.csv"),
        drop=["soil", "petal width"],
        random_state=3,
    )
    pd.testing.assert_frame_equal(pd.read_csv("out.csv"), expected.rows, check_dtype=False)


@pytest.mark.parametrize("method", ["quam", "QUAM", "QUAMClassifier"])
def test_the_method_is_found_by_its_short_and_its_long_name(folder, method):
    assert quantify("--method", method).exit_code == 0


def test_quiet_prints_nothing(folder, recwarn, capfd):
    result = quantify("--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []


def test_an_old_result_is_replaced(folder):
    (folder / "out.csv").write_text("old", encoding="utf-8")
    assert quantify().exit_code == 0
    assert list(pd.read_csv("out.csv").columns) == COLUMNS


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
        ({"target": "petal length"}, [], "holds continuous numbers, not classes"),
        ({"out": "absent/out.csv"}, [], "The folder absent does not exist; create it first."),
        ({}, ["--report", "absent/r.html"], "The folder absent does not exist"),
        ({"out": "known.csv"}, [], "known.csv would overwrite another file of this call."),
        ({"out": "./new.csv"}, [], "new.csv would overwrite another file"),
        ({}, ["--report", "out.csv"], "out.csv would overwrite another file"),
        ({}, ["--method", "gpx"], "No estimator 'gpx'; installed: needy, quam, regression."),
        ({}, ["--method", "broken"], "'broken' cannot be used: Plugin 'BrokenClassifier': no lib"),
        ({}, ["--method", "needy"], "'needy' can only be used from Python:"),
        ({}, ["--method", "regression"], "does not predict probabilities of classes"),
        ({}, ["--missing", "refuse"], "The training table has missing values: sepal width (15)"),
        ({}, ["--drop", "Soil"], "no column 'Soil'; it has sepal length"),
        ({"out": "n" * 250}, [], "Cannot write:"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, given, options, message):
    if "--report" in options:
        pytest.importorskip("matplotlib")
    before = files(folder)
    assert message in refused(quantify("--quiet", *options, **given), folder, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.csv cannot be read as CSV: No columns to parse"),
        (b"\n\n", "bad.csv cannot be read as CSV: No columns to parse"),
        (b"a,b\n", "bad.csv has no rows."),
        (b"a,b\n1,2\n1,2,3\n", "bad.csv cannot be read as CSV: Error tokenizing data"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "bad.csv cannot be read as CSV: 'utf-8' codec"),
        (b"a,b\n1,2,3\n4,5,6\n", "bad.csv has rows with more values than column names"),
        (b"a,b,a\n1,2,3\n4,5,6\n", "bad.csv has more than one column 'a'"),
    ],
)
@pytest.mark.parametrize("which", ["train", "predict"])
def test_a_file_that_is_no_table_is_refused_in_one_line(folder, content, message, which):
    (folder / "bad.csv").write_bytes(content)
    before = files(folder)
    assert message in refused(quantify(**{which: "bad.csv"}), folder, before)


@pytest.mark.parametrize("given", [{"train": "absent.csv"}, {"predict": "."}])
def test_a_file_that_is_not_there_is_refused_by_name(folder, given):
    before = files(folder)
    result = quantify(**given)
    assert result.exit_code == 2
    assert f"'{next(iter(given.values()))}'" in result.stderr
    assert files(folder) == before


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
