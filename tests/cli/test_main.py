"""The group of commands: loaded when they are called, and exit codes that no crash produces."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import skuq
from skuq import QUAMClassifier
from skuq.cli._audit import audit
from skuq.cli._io import OPTIONS, as_options
from skuq.cli._main import FAILED, main
from skuq.imports import Plugin, discover, estimator_names


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


# --- what is installed -----------------------------------------------------------------------


def test_the_version_is_that_of_the_package():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"skuq, version {skuq.__version__}\n"


def test_estimators_are_listed_without_importing_them():
    code = (
        "import sys\nfrom skuq.cli import main\n"
        "try: main(['estimators'])\n"
        f"except SystemExit as end: assert not end.code and not {SLOW!r} & {{*sys.modules}}\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == estimator_names()
    assert ["QUAMClassifier", "skuq.quam:QUAMClassifier", "[skuq]"] in map(str.split, lines)
    assert "These estimators were not imported; --check" in last


def test_checked_estimators_are_listed_with_summary_and_origin():
    result = run("estimators", "--check")
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if line.startswith("QUAMClassifier ")]
    assert QUAMClassifier.__doc__.splitlines()[0] in line
    assert line.endswith("[skuq]")


def test_a_broken_plugin_is_listed_by_name_and_stops_nothing(monkeypatch):
    broken = Plugin("BrokenClassifier", "acme", "acme:Broken", error="libneeded is missing")
    found = [broken, *discover()]
    monkeypatch.setattr("skuq.imports.discover", lambda: found)
    result = run("estimators", "--check")
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
    assert set(ast.literal_eval(imported)) == {
        *("skuq._version", "skuq.cli", "skuq.cli._io", "skuq.cli._main", "skuq.imports")
    }


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
    assert "cannot be loaded" in result.stderr
    assert broken in result.stderr


SCRIPT = "import sys\n{}\nfrom skuq.cli import main\nsys.exit(main())"
CRASHES = {
    "no interpreter": "raise SystemError('no interpreter')",
    "no click": "sys.modules['click'] = None",
    "no numpy": "sys.modules['numpy'] = None",
    "broken command": "sys.modules['skuq.cli._audit'] = None",
    "broken subcommand": "sys.modules['skuq.cli._proofs_verify'] = None",
    "defect": "import skuq.cli._io as f\nf.check_outputs = lambda *a: 1 / 0",
    "defect in proofs": "import skuq.cli._proof_options as o\no.require_zk = lambda: 1 / 0",
    "exit": "import skuq.cli._io as f\nf.check_outputs = lambda *a: sys.exit(10)",
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


# --- messages of the package, which speak Python -------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("leave it out (`drop`).", "leave it out (--drop)."),
        ("out (`drop=['a b', 'c']`)", "out (--drop 'a b' --drop c)"),
        ("say so (`trust=True`)", "say so (--trust)"),
        ('say so (`task="regression"`)', "say so (--task regression)"),
        ("no column 'k' (`id_column`)", "no column 'k' (--id)"),
        ("saved (`TableModel.save`)", "saved (--save)"),
        ("string (`allow_test_string=True`)", "string (--test-string)"),
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


def test_messages_of_the_package_name_no_options():
    """Texts of all modules but the command's, without those that document them."""
    root = Path(skuq.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if path.is_relative_to(root / "cli"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            (path.name, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in documented and re.search(r"(?<![\w-])--[a-z]", node.value)
        ]
    assert found == []
