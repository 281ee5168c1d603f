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
from tests.cli.runner import absent, files, refused, run

N = 1500


def table_of(*, faked=False):
    """Labels drawn from probabilities; for a lie every third confidence is 0.55."""
    rng = np.random.default_rng(0)
    second = rng.random(N)
    y = (rng.random(N) < second).astype(int)
    if faked:
        second[::3] = np.where(second[::3] > 0.5, 0.55, 0.45)
    sex = np.where(rng.random(N) < 0.5, "f", "m")
    return pd.DataFrame({"y": y, "p0": 1 - second, "p1": second, "sex": sex})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table_of().to_csv("honest.csv", index=False)
    table_of(faked=True).to_csv("faked.csv", index=False)
    return tmp_path


def audit(*options, predictions="honest.csv", label="y", proba="p0,p1"):
    given = ["--predictions", predictions, "--label", label, "--proba", proba]
    return run("audit", *given, *options)


def passes(*options, **given):
    result = audit(*options, **given)
    assert result.exit_code == 0, result.output
    return result.stdout


def read(name):
    return json.loads(Path(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "code", "word"), [("honest", 0, "Passed"), ("faked", 10, "Failed")]
)
def test_the_verdict_is_printed_and_is_the_exit_code(folder, name, code, word, recwarn, capfd):
    result = audit("--groups", "sex", predictions=f"{name}.csv")
    assert result.exit_code == code
    table = pd.read_csv(f"{name}.csv")
    given = {"sensitive_features": table[["sex"]]}
    auditor = CalibrationAuditor.from_predictions(table["y"], table[["p0", "p1"]], **given)
    expected = audit_data(auditor)
    headline = expected["verdict"]["headline"]
    assert headline.startswith(f"{word}: ")
    for sentence in (as_options(headline), *expected["verdict"]["sentences"]):
        assert sentence in result.stdout
    assert "Columns of probabilities: p0 -> 0, p1 -> 1." in result.stdout
    filled = [row for row in expected["bins"] if row["count"]]
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")][1:]
    assert [line[3] for line in lines] == [f"{row['count']:,}" for row in filled]
    words = {True: "none", False: "not significant"}
    found = ["too low" if r["significant"] else words[r["within_tolerance"]] for r in filled]
    assert [" ".join(line[7:]) for line in lines] == found
    result = audit("--quiet", "--json", "f.json", predictions=f"{name}.csv")
    assert (result.exit_code, result.output) == (code, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
    assert Path("f.json").exists()


def test_options_reach_the_audit_and_the_figures_are_written(folder):
    options = ["--tolerance", "0.1", "--bins", "7", "--confidence-level", "0.9", "--groups", "sex"]
    assert "Figures: figures.json" in passes(*options, "--json", "figures.json")
    table = table_of()
    settings = {"tolerance": 0.1, "n_bins": 7, "confidence_level": 0.9}
    settings |= {"sensitive_features": table[["sex"]]}
    y, proba = table["y"].astype(str), table[["p0", "p1"]]
    expected = CalibrationAuditor.from_predictions(y, proba, **settings)
    data = audit_data(expected, ["Columns of probabilities: p0 -> 0, p1 -> 1."])
    data["verdict"]["headline"] = as_options(data["verdict"]["headline"])
    assert read("figures.json") == data


def test_a_report_comes_with_its_figures_and_states_the_columns(folder, recwarn):
    pytest.importorskip("matplotlib")
    # A name in a script that the font of the plots lacks.
    table_of(faked=True).assign(sex="\u5973").to_csv("odd.csv", index=False)
    result = audit("--groups", "sex", "--report", "audit.html", predictions="odd.csv")
    assert result.exit_code == FAILED
    assert "Report: audit.html\nFigures: audit.json" in result.stdout
    assert [str(warning.message) for warning in recwarn] == []
    page, figures = Path("audit.html").read_text(encoding="utf-8"), read("audit.json")
    assert figures["verdict"]["headline"] in page
    assert "sex=\u5973" in page
    assert "Columns of probabilities: p0 -&gt; 0, p1 -&gt; 1." in page
    before = set(files(folder))
    passes("--report", "b.html", "--json", "c.json")
    assert {path.name for path in set(files(folder)) - before} == {"b.html", "c.json"}
    page = Path("b.html").read_text(encoding="utf-8")
    assert "--features" in page
    assert "sensitive_features" not in page


@pytest.mark.parametrize(
    ("name", "charset", "shown"),
    [("\x1b]0;owned\x07", "utf-8", "\\x1b]0;owned\\x07"), ("\u5973", "ascii", "sex=\\u5973")],
)
def test_names_from_the_table_cannot_command_the_terminal(folder, name, charset, shown):
    table_of(faked=True).assign(sex=name).to_csv("odd.csv", index=False)
    given = ["--predictions", "odd.csv", "--label", "y", "--proba", "p0,p1", "--groups", "sex"]
    result = CliRunner(charset=charset).invoke(main, ["audit", *given])
    assert result.exit_code == FAILED
    assert shown in result.stdout
    assert not {"\x1b", "\x07", "\u5973"} & set(result.stdout)


@pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
def test_parts_are_audited_together(folder, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for k, part in enumerate(np.array_split(np.arange(N), 3)):
        write_table(f"part-{k}.{ending}", [table_of().iloc[part]])
    passes("--json", "whole.json", "--groups", "sex")
    given = ["--groups", "sex", "--json"]
    passes(*given, "parts.json", predictions=f"part-*.{ending}")
    more = ["--predictions", f"part-1.{ending}", "--predictions", f"part-2.{ending}"]
    passes(*given, "again.json", *more, predictions=f"part-0.{ending}")
    assert read("again.json") == read("parts.json") == read("whole.json")


def test_how_files_were_read_is_said(folder):
    table_of().to_csv("euro.csv", index=False, sep=";", decimal=",")
    note = "euro.csv was read with a semicolon as separator and a decimal comma."
    assert note in passes("--json", "euro.json", predictions="euro.csv")
    assert note in read("euro.json")["notes"]
    stated = ["--sep", ";", "--decimal", ",", "--encoding", "utf-8"]
    assert "was read with" not in passes(*stated, predictions="euro.csv")
    table_of().to_csv("tabs.csv", index=False, sep="\t")
    passes("--sep", "tab", predictions="tabs.csv")


def test_one_column_or_two_in_any_order_give_the_same_verdict(folder):
    passes("--json", "both.json")
    passes("--json", "turned.json", "--classes", "1,0", proba="p1,p0")
    assert read("turned.json")["bins"] == read("both.json")["bins"]
    for options in ([], ["--classes", "0,1"]):
        told = passes("--json", "single.json", *options, proba="p1")
        assert "Columns of probabilities: p1 -> 1, the rest to 1 -> 0." in told
        for one, two in zip(read("single.json")["bins"], read("both.json")["bins"], strict=True):
            assert (one["count"], one["correct"]) == (two["count"], two["correct"])
            # The columns of the table are rounded one by one.
            assert one["confidence_sum"] == pytest.approx(two["confidence_sum"], abs=two["count"])
    assert "p0 -> 0, the rest to 1 -> 1." in passes("--classes", "1,0", proba="p0")
    table = table_of()
    table = table.assign(y=np.where(table["y"] == 1, "NA", "A"))  # a word for missing values
    table.set_axis(["y", " p_A", "p_NA ", "sex"], axis=1).to_csv("words.csv", index=False)
    assert "p_A -> A, p_NA -> NA." in passes(predictions="words.csv", proba="p_A,p_NA")


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ([], {"predictions": "absent.csv"}, "--predictions: cannot find absent.csv."),
        ([], {"predictions": "part-*.csv"}, "--predictions: no file matches part-*.csv."),
        (["--predictions", "honest.csv"], {"predictions": "h*.csv"}, "honest.csv is named twice."),
        ([], {"predictions": "."}, "--predictions: . is not a file"),
        ([], {"predictions": ""}, "--predictions: cannot find ''."),
        ([], {"predictions": "bad.csv"}, "'p0' must hold probabilities in [0, 1], got nothing"),
        ([], {"predictions": "words.csv"}, "no label in 1 row, first in row 4"),
        (["--sep", ";"], {}, "honest.csv has no column 'y'. It has a single column, 'y,p0,p1,sex'"),
        (["--encoding", "utf-9"], {}, "Unknown encoding 'utf-9'"),
        (["--groups", "p0"], {}, "--groups: 'p0' is the label or a probability"),
        (["--groups", "sex,sex"], {}, "--groups: 'sex' is named twice"),
        (["--features", "p0"], {}, "--features: 'p0' is the label or a probability"),
        (["--features", "nobody"], {}, "nobody"),
        (["--region-tolerance", "0.1"], {}, "--region-tolerance requires --features"),
        (["--json", "honest.csv"], {}, "honest.csv is already an input or output"),
        (["--json", "n" * 300], {}, "Cannot write:"),
        (["--jobs", "0"], {}, "--jobs"),
        (["--tolerance", "nan"], {}, "--tolerance"),
        (["--tolerance", "2"], {}, "--tolerance"),
        (["--confidence-level", "nan"], {}, "--confidence-level"),
        (["--bins", "2000"], {}, "2000"),
        (["--classes", "0"], {}, "columns p0, p1 and 1 label (0)"),
        (["--classes", "0,2"], {}, "Label '1' in row "),
        ([], {"proba": "p1,p0"}, "Column 'p1' is assumed to be the probability of '0'"),
        ([], {"proba": "p0,p1,y"}, "Column 'y' is named twice"),
        ([], {"proba": "sex"}, "Column 'sex' must hold probabilities in [0, 1], got "),
        ([], {"label": "sex", "proba": ","}, "do not match: name one column per label"),
        ([], {"label": "p0"}, "Column 'p0' is named twice"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(folder, options, given, words):
    table = table_of().astype(str)
    texts = np.where(table_of()["y"] == 1, "NA", "A")
    for name, column, row, cell in (
        ("bad", table["p0"], 2, ""),
        ("words", pd.Series(texts, name="y"), 3, ""),
    ):
        odd = table.assign(**{column.name: column.where(table.index != row, cell)})
        odd.to_csv(f"{name}.csv", index=False)
    before = files(folder)
    assert words in refused(audit(*options, **given), folder, before)


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs streams that can be closed")
def test_no_way_to_print_turns_a_verdict_round(folder):
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes = map(int, done.stdout.splitlines()[-1].split())
    for code, verdict in zip(codes, [0, *4 * [FAILED]], strict=True):
        assert code in {verdict, 1, 2, 120}


def test_without_matplotlib_only_the_page_is_refused(folder, monkeypatch):
    monkeypatch.setattr(imports, "import_module", absent)
    before = files(folder)
    assert refused(audit("--report", "r.html"), folder, before).startswith("--report: matplotlib")
    passes("--json", "f.json")


def test_regions_are_searched_in_the_named_columns(folder):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.integers(18, 80, N), "job": rng.choice(["cook", "nurse"], N)})
    p0 = rng.uniform(0.8, 1, N).round(6)
    y = (rng.random(N) > p0).astype(int)
    p0[(X["age"] < 30) & (X["job"] == "nurse")] = 0.57
    proba = np.column_stack([p0, 1 - p0])
    table = X.assign(y=y, p0=proba[:, 0], p1=proba[:, 1])
    table[:700].to_csv("a.csv", index=False)
    table[700:].to_csv("b.csv", index=False)
    options = ["--features", "age,job", "--region-tolerance", "0.2", "--json", "a.json"]
    result = audit(*options, predictions="[ab].csv")
    assert result.exit_code == 10
    expected = CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=0.2)
    assert read("a.json")["regions"] == json.loads(json.dumps(audit_data(expected)))["regions"]
    assert "Region " in result.stdout
