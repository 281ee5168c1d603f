"""``skuq audit``: its verdict, its exit codes, its files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from skuq import CalibrationAuditor, imports
from skuq._table_files import write_table
from skuq.cli._io import as_options
from skuq.cli._main import FAILED, main
from skuq.reporting import audit_data


def table_of(faked, n=1500):
    """Labels drawn from probabilities; for a lie every third confidence is 0.55."""
    rng = np.random.default_rng(0)
    second = rng.random(n)
    y = (rng.random(n) < second).astype(int)
    if faked:
        second[::3] = np.where(second[::3] > 0.5, 0.55, 0.45)
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    return pd.DataFrame({"y": y, "p0": 1 - second, "p1": second, "sex": sex})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with predictions of an honest and of a lying model."""
    table_of(faked=False).to_csv(tmp_path / "honest.csv", index=False)
    table_of(faked=True).to_csv(tmp_path / "faked.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audit(*arguments, predictions="honest.csv", label="y", proba="p0,p1"):
    given = ["--predictions", predictions, "--label", label, "--proba", proba, *arguments]
    return CliRunner().invoke(main, ["audit", *map(str, given)])


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- verdicts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "word"), [("honest", 0, "Passed"), ("faked", 10, "Failed")]
)
def test_the_verdict_is_printed_and_is_the_exit_code(folder, name, code, word):
    result = audit("--groups", "sex", predictions=f"{name}.csv")
    assert result.exit_code == code
    table = pd.read_csv(f"{name}.csv")
    expected = audit_data(
        CalibrationAuditor.from_predictions(
            table["y"], table[["p0", "p1"]], sensitive_features=table[["sex"]]
        )
    )
    assert expected["verdict"]["headline"].startswith(f"{word}: ")
    for sentence in (
        as_options(expected["verdict"]["headline"]),
        *expected["verdict"]["sentences"],
    ):
        assert sentence in result.stdout
    assert "Columns of probabilities: p0 -> 0, p1 -> 1." in result.stdout
    filled = [row for row in expected["bins"] if row["count"]]
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")][1:]
    assert [line[3] for line in lines] == [f"{row['count']:,}" for row in filled]
    found = [
        "too low" if row["significant"] else "none" if row["within_alpha"] else "chance"
        for row in filled
    ]
    assert [" ".join(line[7:]) for line in lines] == found


def test_its_help_says_that_commands_need_no_predictions():
    help_text = " ".join(CliRunner().invoke(main, ["audit", "--help"]).stdout.split())
    assert help_text.count("[required unless a command follows]") == 2


def test_options_reach_the_audit_and_the_figures_are_written(folder):
    options = ["--alpha", "0.1", "--bins", "7", "--confidence-level", "0.9", "--groups", "sex"]
    result = audit(*options, "--json", "figures.json")
    assert result.exit_code == 0, result.output
    assert "Figures: figures.json" in result.stdout
    table = table_of(faked=False)
    expected = CalibrationAuditor.from_predictions(
        table["y"].astype(str),
        table[["p0", "p1"]],
        sensitive_features=table[["sex"]],
        alpha=0.1,
        n_bins=7,
        confidence_level=0.9,
    )
    note = "Columns of probabilities: p0 -> 0, p1 -> 1."
    data = audit_data(expected, [note])
    data["verdict"]["headline"] = as_options(data["verdict"]["headline"])
    assert json.loads(Path("figures.json").read_text(encoding="utf-8")) == data


def test_a_report_comes_with_its_figures_and_states_the_columns(folder):
    pytest.importorskip("matplotlib").use("Agg")
    result = audit("--report", "audit.html", predictions="faked.csv")
    assert result.exit_code == FAILED
    assert "Report: audit.html\nFigures: audit.json" in result.stdout
    page = Path("audit.html").read_text(encoding="utf-8")
    figures = json.loads(Path("audit.json").read_text(encoding="utf-8"))
    assert figures["verdict"]["headline"] in page
    assert (
        "that matter (--groups), or search in columns recorded with the predictions (--features)"
        in page
    )
    assert "sensitive_features" not in page + json.dumps(figures)
    assert "Columns of probabilities: p0 -&gt; 0, p1 -&gt; 1." in page
    before = set(files(folder))
    assert audit("--report", "b.html", "--json", "c.json").exit_code == 0
    assert set(files(folder)) - before == {"b.html", "c.json"}


@pytest.mark.parametrize(("name", "code"), [("honest", 0), ("faked", 10)])
def test_quiet_prints_nothing_but_decides(folder, name, code, recwarn, capfd):
    result = audit("--quiet", "--json", "f.json", predictions=f"{name}.csv")
    assert (result.exit_code, result.output) == (code, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
    assert Path("f.json").exists()


def test_names_from_the_table_cannot_command_the_terminal(folder):
    table = table_of(faked=True)
    table["sex"] = "\x1b]0;owned\x07"
    table.to_csv("odd.csv", index=False)
    result = audit("--groups", "sex", predictions="odd.csv")
    assert result.exit_code == FAILED
    assert "\\x1b]0;owned\\x07" in result.stdout
    assert not {"\x1b", "\x07"} & set(result.stdout)


def test_a_name_in_a_foreign_script_disturbs_nothing(folder, recwarn):
    pytest.importorskip("matplotlib").use("Agg")
    table_of(faked=True).assign(sex="\u5973").to_csv("odd.csv", index=False)
    result = audit("--groups", "sex", "--report", "r.html", "--quiet", predictions="odd.csv")
    assert (result.exit_code, result.output) == (FAILED, "")
    assert [str(warning.message) for warning in recwarn] == []
    assert "sex=\u5973" in Path("r.html").read_text(encoding="utf-8")


def test_a_terminal_that_lacks_a_character_shows_its_code(folder):
    table_of(faked=True).assign(sex="\u5973").to_csv("odd.csv", index=False)
    runner = CliRunner(charset="ascii")
    given = ["--predictions", "odd.csv", "--label", "y", "--proba", "p0,p1", "--groups", "sex"]
    result = runner.invoke(main, ["audit", *given])
    assert result.exit_code == FAILED
    assert "sex=\\u5973" in result.stdout


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_parts_are_audited_together(folder, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for k, part in enumerate(np.array_split(np.arange(1500), 3)):
        write_table(f"part-{k}.{ending}", [table_of(faked=False).iloc[part]])
    assert audit("--json", "whole.json", "--groups", "sex").exit_code == 0
    given = ["--groups", "sex", "--json", "parts.json"]
    assert audit(*given, predictions=f"part-*.{ending}").exit_code == 0
    whole, parts = (
        json.loads(Path(f"{name}.json").read_text(encoding="utf-8")) for name in ("whole", "parts")
    )
    assert parts == whole
    more = ["--predictions", f"part-0.{ending}", "--predictions", f"part-1.{ending}"]
    assert audit(*more, predictions=f"part-2.{ending}").exit_code == 0


def test_how_files_were_read_is_said(folder):
    table_of(faked=False).to_csv("euro.csv", index=False, sep=";", decimal=",")
    result = audit("--json", "euro.json", predictions="euro.csv")
    assert result.exit_code == 0, result.output
    note = "euro.csv was read with a semicolon as separator and a decimal comma."
    assert note in result.stdout
    assert note in json.loads(Path("euro.json").read_text(encoding="utf-8"))["notes"]
    stated = audit("--sep", ";", "--decimal", ",", "--encoding", "utf-8", predictions="euro.csv")
    assert stated.exit_code == 0
    assert "was read with" not in stated.stdout
    table_of(faked=False).to_csv("tabs.csv", index=False, sep="\t")
    assert audit("--sep", "tab", predictions="tabs.csv").exit_code == 0


@pytest.mark.parametrize(
    ("predictions", "options", "message"),
    [
        ("absent.csv", [], "--predictions: cannot find absent.csv."),
        ("part-*.csv", [], "--predictions: no file matches part-*.csv."),
        ("*.csv", ["--predictions", "honest.csv"], "--predictions: honest.csv is named twice."),
        (".", [], "--predictions: . is not a file"),
        ("", [], "--predictions: cannot find ''."),
        ("honest.csv", ["--sep", ";"], "honest.csv has no column 'y'"),
        ("honest.csv", ["--encoding", "utf-9"], "honest.csv is not encoded as utf-9"),
    ],
)
def test_files_that_cannot_be_audited_are_named(folder, predictions, options, message):
    before = files(folder)
    assert message in refused(audit(*options, predictions=predictions), folder, before)


# --- which column is which label -------------------------------------------------------------


def test_the_order_of_columns_does_not_change_the_verdict(folder):
    for proba, classes in (("p0,p1", "0,1"), ("p1,p0", "1,0")):
        options = ["--classes", classes, "--json", f"{proba}.json"]
        assert audit(*options, proba=proba).exit_code == 0
    one, two = (
        json.loads(Path(f"{name}.json").read_text(encoding="utf-8")) for name in ("p0,p1", "p1,p0")
    )
    assert one["bins"] == two["bins"]


@pytest.mark.parametrize("options", [[], ["--classes", "0,1"]])
def test_a_single_column_is_the_probability_of_the_second_label(folder, options):
    result = audit("--json", "single.json", *options, proba="p1")
    assert result.exit_code == 0
    assert "Columns of probabilities: p1 -> 1, the rest to 1 -> 0." in result.stdout
    audit("--json", "both.json")
    single, both = (
        json.loads(Path(f"{name}.json").read_text(encoding="utf-8")) for name in ("single", "both")
    )
    for one, two in zip(single["bins"], both["bins"], strict=True):
        assert (one["count"], one["correct"]) == (two["count"], two["correct"])
        # The columns of the table are rounded one by one.
        assert one["confidence_sum"] == pytest.approx(two["confidence_sum"], abs=two["count"])
    turned = audit("--classes", "1,0", proba="p0")
    assert turned.exit_code == 0
    assert "p0 -> 0, the rest to 1 -> 1." in turned.stdout


# --- what is no verdict ----------------------------------------------------------------------


def refused(result, folder, before):
    """The message of a refusal, which is one line; nothing was written."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert files(folder) == before
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ([], {"label": "Y"}, "honest.csv has no column 'Y'. It has y, p0, p1, sex."),
        (["--groups", "p0"], {}, "--groups: 'p0' is the label or a probability"),
        (["--groups", "sex,sex"], {}, "--groups: 'sex' is named twice"),
        (["--json", "-"], {}, "Results cannot be written to '-'"),
        (["--jobs", "0"], {}, "--jobs must be a number of processes"),
        (["--alpha", "nan"], {}, "--alpha must be a finite number"),
        (["--confidence-level", "nan"], {}, "--confidence-level must be a finite number"),
        (["--classes", "0"], {}, "columns p0, p1 and 1 label (0)"),
        ([], {"proba": "p1,p0"}, "Column 'p1' is assumed to be the probability of '0'"),
        (["--classes", "0,2"], {}, "Label '1' in row "),
        (["--alpha", "nan"], {}, "alpha"),
        (["--bins", "2000"], {}, "n_samples=1500, but at least 2000 are needed"),
        ([], {"proba": "p0,p1,y"}, "Column 'y' is named twice"),
        ([], {"label": "sex", "proba": ","}, "do not match: name one column per label"),
        ([], {"proba": "sex"}, "Column 'sex' must hold probabilities in [0, 1], got "),
        ([], {"label": "p0"}, "Column 'p0' is named twice"),
        (["--json", "honest.csv"], {}, "honest.csv is already an input or output of this command"),
        (["--json", "n" * 300], {}, "Cannot write:"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(folder, options, given, message):
    before = files(folder)
    assert message in refused(audit(*options, **given), folder, before)


def test_the_row_of_a_bad_value_is_named(folder):
    table = pd.read_csv("honest.csv", dtype=str)
    table.loc[2, "p0"] = ""
    table.to_csv("bad.csv", index=False)
    before = files(folder)
    message = "Column 'p0' must hold probabilities in [0, 1], got nothing in row 3 "
    assert message in refused(audit(predictions="bad.csv"), folder, before)


def test_words_for_missing_values_are_labels(folder):
    word = "NA"
    table = table_of(faked=False)
    table = table.assign(y=np.where(table["y"] == 1, word, "A"))
    table.columns = ["y", " p_A", f"p_{word} ", "sex"]
    table.to_csv("words.csv", index=False)
    result = audit(predictions="words.csv", proba=f"p_A,p_{word}")
    assert result.exit_code == 0, result.output
    assert f"p_A -> A, p_{word} -> {word}." in result.stdout
    table.loc[3, "y"] = ""
    table.to_csv("words.csv", index=False)
    refusal = audit(predictions="words.csv", proba=f"p_A,p_{word}")
    assert "no label in 1 row, first in row 4" in refusal.stderr


def test_a_missing_number_is_a_missing_label(folder):
    table = table_of(faked=False).astype({"y": str})
    table.loc[0, "y"] = "NA"
    table.to_csv("holes.csv", index=False)
    assert "no label in 1 row, first in row 1" in audit(predictions="holes.csv").stderr


@pytest.mark.parametrize("arguments", [["--alpha", "2"], ["--nonsense"]])
def test_wrong_usage_is_no_verdict(folder, arguments):
    assert audit(*arguments).exit_code == 2
    assert CliRunner().invoke(main, ["audit"]).exit_code == 2
    assert audit(predictions="absent.csv").exit_code == 2


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), MemoryError(), SystemExit(10)])
def test_a_crash_is_no_verdict(folder, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("skuq.audit._prediction_audit.audit_sums", fail)
    result = audit(predictions="faked.csv")
    assert result.exit_code == 1
    assert "Failed" not in result.output


def test_an_interrupt_is_no_verdict(folder, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("skuq.audit._prediction_audit.audit_sums", interrupt)
    result = audit(predictions="faked.csv")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Aborted!" in result.stderr


# One process imports the command; it forks one child for each way to lose what is printed, which
# ends as any interpreter does, by flushing.
CLOSED = """
import os, sys
from skuq.cli import main
def full(fd): os.dup2(os.open("/dev/full", os.O_WRONLY), fd)
def unread(fd):
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, fd)
def closed(fd):
    os.close(fd)
    setattr(sys, "stdout" if fd == 1 else "stderr", None)  # as an interpreter starts without it
def audit(name): main(["audit", "--predictions", f"{name}.csv", "--label", "y", "--proba", "p0,p1"])
try: audit("honest")  # what a command imports when it is called, children have
except SystemExit: pass
WAYS = [("honest", full, 1), ("faked", unread, 1), ("faked", closed, 1), ("faked", full, 1),
        ("faked", closed, 2)]
codes = []
for name, way, fd in WAYS:
    child = os.fork()
    if not child:
        way(fd)
        audit(name)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print()
print(*codes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs streams that can be closed")
def test_no_way_to_print_turns_a_verdict_round(folder):
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes = map(int, done.stdout.splitlines()[-1].split())
    for code, verdict in zip(codes, [0, *4 * [FAILED]], strict=True):
        assert code in {verdict, 1, 2, 120}


def test_without_matplotlib_only_the_page_is_refused(folder, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(imports, "import_module", absent)
    before = files(folder)
    message = refused(audit("--report", "r.html"), folder, before)
    assert message.startswith("--report: matplotlib is needed for this and is not installed")
    assert audit("--json", "f.json").exit_code == 0


def test_regions_are_searched_in_the_named_columns(folder):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": rng.integers(18, 80, 1500), "job": rng.choice(["cook", "nurse"], 1500)}
    )
    p0 = rng.uniform(0.8, 1, 1500).round(6)
    y = (rng.random(1500) > p0).astype(int)
    p0[(X["age"] < 30) & (X["job"] == "nurse")] = 0.57
    proba = np.column_stack([p0, 1 - p0])
    table = X.assign(y=y, p0=proba[:, 0], p1=proba[:, 1])
    table[:700].to_csv("a.csv", index=False)
    table[700:].to_csv("b.csv", index=False)
    result = audit(
        "--features", "age,job", "--region-alpha", "0.2", "--json", "a.json", predictions="[ab].csv"
    )
    assert result.exit_code == 10
    expected = CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=0.2)
    data = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert data["regions"] == json.loads(json.dumps(audit_data(expected)))["regions"]
    assert "Region " in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--features", "p0"], "--features: 'p0' is the label or a probability"),
        (["--region-alpha", "0.1"], "--region-alpha requires --features"),
        (["--features", "nobody"], "nobody"),
    ],
)
def test_columns_that_cannot_be_searched_are_refused(folder, options, words):
    result = audit(*options, predictions="honest.csv")
    assert result.exit_code == 2
    assert words in result.stderr
