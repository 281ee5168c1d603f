"""The group of commands: loaded when they are called, and exit codes that no crash produces."""

import ast
import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import skuq
from skuq import QUAMClassifier
from skuq.cli import _io, _proofs
from skuq.cli._audit import audit
from skuq.cli._io import OPTIONS, InputError, as_options, check_outputs, files_of, read_csv
from skuq.cli._main import FAILED, main
from skuq.imports import Plugin, discover, estimator_names
from tests.cli.runner import run

COMMANDS = [[name] for name in main.commands_at] + [["audit", name] for name in audit.commands_at]
SLOW = {"torch", "sklearn", "pandas", "matplotlib", "stable_baselines3", "gymnasium", "ezkl"}


def python(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def predictions(tmp_path):
    (tmp_path / "p.csv").write_text("y,p\n0,0.5\n1,0.5\n", encoding="utf-8")
    return ["--label", "y", "--predictions", str(tmp_path / "p.csv"), "--proba", "p"]


LISTS = """
import json, sys
from skuq.cli import main
def call(*arguments):
    try: main(arguments)
    except SystemExit as end: assert not end.code
call("--help")
loaded = sorted(name for name in sys.modules if name.startswith("skuq."))
for command in json.loads(sys.argv[1]): call(*command, "--help")
print("HELP ENDS")
call("estimators")
print(json.dumps([loaded, sorted(sys.modules)]))
"""


def test_lists_and_help_import_nothing_that_takes_long():
    done = python(LISTS, json.dumps(COMMANDS))
    assert done.returncode == 0, done.stderr
    *lines, told, last = done.stdout.partition("HELP ENDS\n")[2].splitlines()
    loaded, after = json.loads(last)
    of_cli = ["skuq.cli", "skuq.cli._io", "skuq.cli._main"]
    assert loaded == ["skuq._version", *of_cli, "skuq.imports"]
    assert not SLOW & {*after}
    assert [line.split()[0] for line in lines] == estimator_names()
    assert ["QUAMClassifier", "skuq.quam:QUAMClassifier", "[skuq]"] in map(str.split, lines)
    assert "--check" in told
    assert run("--version").output == f"skuq, version {skuq.__version__}\n"


def test_checked_estimators_are_listed_with_summary_origin_or_error(monkeypatch):
    broken = Plugin("BrokenClassifier", "acme", "acme:Broken", error="libneeded is missing")
    found = [broken, *discover()]
    monkeypatch.setattr("skuq.imports.discover", lambda: found)
    first, *lines = run("estimators", "--check").output.splitlines()
    assert first.split() == ["BrokenClassifier", "broken:", "libneeded", "is", "missing"]
    (line,) = [line for line in lines if line.startswith("QUAMClassifier ")]
    assert QUAMClassifier.__doc__.splitlines()[0] in line
    assert line.endswith("[skuq]")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_lists_of_commands_have_the_first_sentence_of_their_help(command):
    group, result = main if len(command) == 1 else audit, run(*command, "-h")
    assert result.exit_code == 0
    assert result.output.splitlines()[2].strip() == group.commands_at[command[-1]][1]


@pytest.mark.parametrize(
    ("broken", "command", "others"),
    [
        ("skuq.cli._audit", ["audit"], [["quantify"], ["demo"]]),
        ("skuq.cli._proofs", ["audit", "prove"], [["audit"], ["quantify"]]),
    ],
)
def test_a_command_that_cannot_be_loaded_stops_no_other(monkeypatch, broken, command, others):
    monkeypatch.setitem(sys.modules, broken, None)
    for other in ([], *others):
        assert run(*other, "--help").exit_code == 0
    result = run(*command, "--help")
    assert (result.exit_code, result.stdout) == (1, "")
    assert broken in result.stderr


@pytest.mark.parametrize(
    "planted", ["raise SystemError", "sys.modules['click'] = None", "sys.modules['numpy'] = None"]
)
def test_an_interpreter_that_fails_has_no_exit_code_of_a_verdict(predictions, planted):
    code = f"import sys\n{planted}\nfrom skuq.cli import main\nsys.exit(main())"
    done = python(code, "audit", *predictions)
    assert done.returncode not in {0, FAILED}
    assert done.stdout == ""
    assert done.stderr


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), SystemExit(0), SystemExit(FAILED), KeyboardInterrupt()]
)
@pytest.mark.parametrize("command", ["audit", "verify"])
def test_a_crash_has_no_exit_code_of_a_verdict(tmp_path, predictions, monkeypatch, error, command):
    asked = ["--tolerance", 0.1, "--bins", 2, "--confidence-level", 0.9, "--level", "bins"]
    given = [tmp_path, tmp_path, tmp_path / "p.csv", "--label", "y", "--classes", "0,1", *asked]
    for module, name in ((_io, "check_outputs"), (_proofs, "_check_files")):
        monkeypatch.setattr(module, name, mock.Mock(side_effect=error))
    result = run("audit", *(predictions if command == "audit" else ["verify", *given]))
    assert (result.exit_code, result.stdout) == (1, "")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("out (`drop=['a b', 'c']`)", "out (--drop 'a b' --drop c)"),
        ("say so (`trust=True`)", "say so (--trust)"),
        ('say so (`task="regression"`)', "say so (--task regression)"),
        ("no column 'k' (`id_column`)", "no column 'k' (--id)"),
        ("`X` and `drop=f(x)` are left", "`X` and `drop=f(x)` are left"),
    ],
)
def test_parameters_in_messages_become_options(message, expected):
    assert as_options(message) == expected


def test_options_that_stand_for_parameters_exist():
    commands = [main.get_command(None, name) for name in ("certify", "quantify")]
    commands += [audit, *(audit.get_command(None, name) for name in audit.list_commands(None))]
    known = {option for each in commands for p in each.params for option in p.opts}
    assert set(OPTIONS.values()) <= known


ROOT = Path(skuq.__file__).parent
OTHER_WAYS = {"to_csv", "savetxt", "to_excel", "DictWriter", "writer"}


def test_messages_of_the_package_name_no_options_and_one_function_writes_tables():
    options, writers = [], {}
    for path in sorted(ROOT.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        calls = (node.func for node in nodes if isinstance(node, ast.Call))
        names = {getattr(func, "attr", getattr(func, "id", "")) for func in calls}
        if names & OTHER_WAYS:  # which do not look at what a spreadsheet would run
            writers[path.name] = names & OTHER_WAYS
        documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = (n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
        if not path.is_relative_to(ROOT / "cli"):
            options += [
                (path.name, node.value)
                for node in texts
                if id(node) not in documented and re.search(r"(?<![\w-])--[a-z]", node.value)
            ]
    assert options == []
    # The other one makes lines in memory, which are read again.
    assert writers == {"_write.py": {"to_csv"}, "_read.py": {"writer"}}


def test_no_file_is_read_or_written_twice_whatever_it_is_called_or_into_no_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").touch()
    Path("inner").mkdir()
    Path("link.csv").symlink_to("t.csv")
    for again in ("t.csv", "inner/../t.csv", "link.csv", f"{tmp_path}/t.csv"):
        with pytest.raises(InputError, match="twice"):
            files_of("--predictions", ["t.csv", again])
        with pytest.raises(InputError, match="is already"):
            check_outputs([Path(again)], [Path("t.csv")])
    with pytest.raises(InputError, match=r"out\.csv is already"):
        check_outputs([Path("out.csv"), None, Path("out.csv")], [])
    with pytest.raises(InputError, match="folder absent"):
        check_outputs([None, Path("absent/out.csv")], [Path("t.csv")])
    check_outputs([Path("out.csv"), None], [Path("t.csv")])


def test_words_for_missing_values_are_labels_but_among_numbers(tmp_path):
    path = tmp_path / "t.csv"
    for word in ("NA", "None", "null"):
        for other, missing in (("A", [False, False, True]), ("7", [True, False, True])):
            path.write_text(f"y,p\n{word},1\n{other},1\n,1\n", encoding="utf-8")
            labels = read_csv(path, needed=["y"], label="y")["y"]
            assert labels.isna().tolist() == missing
            assert other != "A" or labels.tolist()[:2] == [word, "A"]
    path.write_text("code,size\n01,1\n", encoding="utf-8")
    like = pd.DataFrame({"code": ["x"], "size": [2.5]})
    assert read_csv(path, like=like).to_numpy().tolist() == [["01", 1]]


HOSTILE = "=HYPERLINK(1)"
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", " ")


@pytest.mark.parametrize(
    "command", [("certify", "--max-radius", "0.1"), ("quantify", "--model", "logistic")]
)
def test_no_command_writes_a_formula_that_came_with_a_table(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).uniform(size=(60, 2))
    frame = pd.DataFrame(rows, columns=[HOSTILE, " @size"])
    frame["y"] = np.where(rows[:, 0] > 0.5, "=A1", "\n=B1")
    frame["id"] = [f"{HOSTILE}{k}" for k in range(60)]
    frame.to_csv("known.csv", index=False)
    frame[:6].drop(columns="y").to_csv("new.csv", index=False)
    given = ["--train", "known.csv", "--target", "y", "--predict", "new.csv", "--out", "out.csv"]
    result = run(*command, *given, "--id", "id")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("A spreadsheet would evaluate such text as a formula") == 1
    with open("out.csv", encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert sum(HOSTILE in cell for cell in cells) >= 6
    for cell in cells:
        assert not cell.startswith(STARTS) or re.fullmatch(r"-?[\d.e-]+", cell), cell


CHOSEN = "Passed: chosen by the data"
OTHERS = f"no.\n\n{CHOSEN}\u2028{CHOSEN}\r{CHOSEN}\x1b[2J\u202e"
TABLE = ["--train", "known.csv", "--target"], ["--predict", "new.csv", "--out", "out.csv", "--id"]
LEARNS = [*TABLE[0], OTHERS, *TABLE[1], f"{OTHERS}id"]
AUDITED = ["audit", "--predictions", f"{OTHERS}.csv", "--label", OTHERS]
GROUPED = ["--groups", f"{OTHERS}g", "--features", f"{OTHERS}g", "--json", "a.json"]


@pytest.mark.parametrize(
    "command",
    [
        ["quantify", *LEARNS, "--model", "logistic"],
        ["quantify", *LEARNS, "--held-out", "new.csv"],
        ["quantify", *LEARNS, "--model", f"{OTHERS}.csv"],
        ["quantify", *LEARNS, "--drop", "absent"],
        ["certify", *LEARNS, "--max-radius", "0.1"],
        ["certify", *LEARNS, "--fixed", "absent"],
        [*AUDITED, *GROUPED],
        [*AUDITED, "--proba", "absent"],
        [*AUDITED, "--classes", "absent,other", "--proba", f"p({OTHERS}),p(yes)"],
        ["audit", "commit", f"{OTHERS}.csv", "known.csv", "out"],
        ["estimators"],
        ["estimators", "--check"],
    ],
)
def test_no_line_of_the_output_begins_with_text_that_others_chose(tmp_path, monkeypatch, command):
    if "commit" in command:
        pytest.importorskip("ezkl")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    known = pd.DataFrame({f"{OTHERS}x": rng.uniform(size=90), "size": rng.uniform(size=90)})
    known[OTHERS] = np.where(known[f"{OTHERS}x"] > 0.5, OTHERS, "yes")
    known[f"{OTHERS}g"] = np.where(np.arange(90) % 3, OTHERS, "south")
    known[f"{OTHERS}id"] = [f"{OTHERS}{k}" for k in range(90)]
    known.to_csv("known.csv", index=False)
    known[:6].drop(columns=OTHERS).replace("south", CHOSEN).to_csv("new.csv", index=False)
    p = rng.uniform(0.51, 0.6, size=90)
    known.assign(**{f"p({OTHERS})": p, "p(yes)": 1 - p}).to_csv(f"{OTHERS}.csv", index=False)
    plugin = Plugin(f"A{OTHERS}", OTHERS, OTHERS, error=OTHERS)
    for name in ("discover", "registered"):
        monkeypatch.setattr(f"skuq.imports.{name}", lambda: [plugin])
    result = run(*command)
    assert result.exit_code in (0, 2, FAILED, 11, 12), result.output
    said = result.output.splitlines()
    for path in tmp_path.glob("*.json"):
        said += path.read_text(encoding="utf-8").splitlines()
    assert "chosen by" in result.output
    assert not [line for line in said if line.strip().startswith(CHOSEN)]
