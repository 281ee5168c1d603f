"""What all benchmarks share: what is recorded, what is stale, on which code figures depend."""

import argparse
import json
import shlex
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks import all as remeasure
from benchmarks import harness
from benchmarks.code_used import ROOT, code_parts


def test_a_benchmark_with_parts_of_its_own_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "code_parts", lambda benchmark: {"gpc": "1"})
    arguments = harness.parser("Doc.")
    arguments.add_argument("--parts", nargs="+")
    args = arguments.parse_args(["--parts", "one", "two", "--record", "x"])
    harness.finish("x", args, [harness.record("m", "d", "auroc", 0.5, 1)])
    kept = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert kept["args"]["parts"] == ["one", "two"]
    assert kept["parts"] == {"gpc": "1"}
    assert json.loads(capsys.readouterr().out)["records"] == kept["records"]


def recorded(folder, *options, code, **settings):
    args = harness.parser("Doc.").parse_args(["--record", "x", *options])
    args.code = code
    harness.finish("x", args, [harness.record("m", "d", "auroc", 0.5, 1)], **settings)
    return json.loads((folder / "x.json").read_text(encoding="utf-8"))


def test_figures_that_are_summed_up_keep_their_code_and_kept_parts_their_seconds(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert recorded(tmp_path, code="1", is_new=False)["code"] == "1"  # nothing is known of earlier
    older = recorded(tmp_path, code="2")
    assert older["code"] == "2"
    kept = json.dumps({**older, "date": "2020-01-01", "seconds": 99})
    (tmp_path / "x.json").write_text(kept, encoding="utf-8")
    again = recorded(tmp_path, code="3", is_new=False)
    assert (again["code"], again["date"], again["seconds"]) == ("2", "2020-01-01", 99)
    assert recorded(tmp_path, code="3")["code"] == "3"
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["x", "--threads", "1"])
    before = recorded(tmp_path, code="1")
    (tmp_path / "x.json").write_text(json.dumps({**before, "seconds": 99}), encoding="utf-8")
    assert recorded(tmp_path, "--out", str(tmp_path / "kept"), code="2")["seconds"] == 99
    assert recorded(tmp_path, code="2")["seconds"] < 99


def test_runs_that_were_kept_are_those_of_this_code(tmp_path):
    args = harness.parser("Doc.").parse_args(["--out", str(tmp_path)])
    run = Mock(side_effect=[{"score": 1}, {"score": 2}])
    found = []
    for code in ("1", "1", "2"):
        args.code_parts = {"gpc": code}
        found.append(harness.kept_run(run, "a", args=args)["score"])
    assert found == [1, 1, 2]
    assert run.call_count == 2


def figure(value, std=0.0, metric="auroc", method="quam"):
    return {"method": method, "dataset": "adult", "metric": metric, "value": value, "std": std}


def result(*figures, **entries):
    about = {"benchmark": "x", "command": "python -m benchmarks.x", "date": "2026-01-02"}
    return about | {"records": [*figures]} | entries


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Write results; what their benchmarks use today is quam in version 1."""
    monkeypatch.setattr(harness, "code_parts", lambda benchmark: {"quam": "1"})

    def write(**results):
        for name, content in results.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return remeasure.results(tmp_path)

    return write


def test_results_whose_code_changed_come_first_and_of_these_the_oldest(kept):
    found = kept(
        current=result(parts={"quam": "1"}, date="2025-01-01"),
        younger=result(parts={"quam": "0"}, date="2026-02-01"),
        older=result(parts={"quam": "1", "gpc": "0"}, date="2026-01-01"),
        silent=result(date="2025-12-01"),  # does not say what it used
    )
    assert [each.name for each in found] == ["silent", "older", "younger", "current"]
    assert [each.changed for each in found[1:]] == [["gpc"], ["quam"], []]
    assert found[0].changed
    assert found[0].seconds == remeasure.UNKNOWN_SECONDS


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (figure(0.9), figure(0.904), False),  # within half a percent
        (figure(0.9), figure(0.89), True),
        (figure(0.9, std=0.01), figure(0.89), False),
        (figure(0.9), figure(0.89, std=0.01), False),
        (figure(0.9, std=0.01), figure(0.87), True),
        (figure(4.0, metric="seconds_fit"), figure(5.0, metric="seconds_fit"), False),
        (figure(4.0, metric="seconds_fit"), figure(7.0, metric="seconds_fit"), True),
    ],
)
def test_figures_move_when_they_leave_their_spread(before, after, says):
    assert bool(list(remeasure.moved(result(before), result(after)))) == says


def test_figures_that_came_or_went_are_named():
    lines = remeasure.moved(result(figure(0.9)), result(figure(0.9, method="entropy")))
    expected = ["entropy, adult, auroc: 0.9 is new", "quam, adult, auroc: was 0.9, is missing"]
    assert sorted(lines) == expected


def test_budgets_are_lengths_of_time():
    assert [remeasure.seconds_of(text) for text in ("90s", "1.5m", "2h")] == [90, 90, 7200]
    for text in ("60", "m", "-3m", "1d"):
        with pytest.raises(argparse.ArgumentTypeError, match="60m"):
            remeasure.seconds_of(text)


def test_a_result_is_measured_with_its_own_command(monkeypatch, tmp_path):
    run = Mock(return_value=SimpleNamespace(returncode=0))
    monkeypatch.setattr(remeasure.subprocess, "run", run)
    words = ["-m", "benchmarks.quam_mnist", "--share", ".5", ".1", "--ood", "two words"]
    content = result(command=shlex.join(["python", *words]))
    assert remeasure.measure(remeasure.Result("mixed", content, []), tmp_path)
    assert run.call_args[0][0][1:] == [*words, "--data-dir", str(tmp_path), "--record", "mixed"]


FILES = {
    "benchmarks/__init__.py": "",
    "benchmarks/x.py": "from benchmarks import parts\nfrom skuq import Model\n",
    "benchmarks/parts.py": "from benchmarks.harness import finish\n",
    "benchmarks/harness.py": "def finish(): ...\n",
    "skuq/__init__.py": "if TYPE_CHECKING:\n    from skuq.method import Model\n",
    "skuq/base.py": "from skuq.files import write\n",
    "skuq/files.py": "def write(): ...\n",
    "skuq/method/__init__.py": "from skuq.method._model import Model\n"
    "from skuq.method._other import Other\n",
    "skuq/method/_model.py": '"""Not skuq.method._other."""\n'
    "from skuq.base import Mixin\n"
    "class Model(Mixin):\n"
    "    def fit(self):\n"
    "        from skuq.shared import helper\n"
    '        import_module("_lazy")\n',
    "skuq/method/_lazy.py": "",
    "skuq/method/_other.py": "class Other: ...\n",
    "skuq/shared/__init__.py": "from skuq.shared._helpers import helper\n",
    "skuq/shared/_helpers.py": "def helper(): ...\n",
    "skuq/shared/_unused.py": "",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def changed_by(tree, name, benchmark="x"):
    """Parts whose digest differs once a file has another line."""
    before = code_parts(f"benchmarks.{benchmark}", tree)
    with (tree / name).open("a", encoding="utf-8") as file:
        file.write("more = 1\n")
    after = code_parts(f"benchmarks.{benchmark}", tree)
    return {part for part in before | after if before.get(part) != after.get(part)}


def test_what_a_benchmark_uses_makes_its_figures_stale(tree):
    used = {
        "benchmarks/x.py": {"benchmarks"},
        "benchmarks/parts.py": {"benchmarks"},
        "skuq/method/_model.py": {"method"},
        "skuq/base.py": {"base"},
        "skuq/method/_lazy.py": {"method"},  # named in a string
        "skuq/shared/_helpers.py": {"shared"},  # imported within a function
        "skuq/method/_other.py": set(),  # in a docstring, and beside the name that is used
        "skuq/shared/_unused.py": set(),
        "skuq/files.py": set(),
        "benchmarks/harness.py": set(),
    }
    assert {name: changed_by(tree, name) for name in used} == used


@pytest.mark.parametrize(
    "text",
    [
        "import skuq.shared\n",
        "from skuq import shared\n",
        "from skuq.shared import unknown\n",
        'subprocess.run(["python", "-c", "from skuq.shared import helper"])\n',
    ],
)
def test_a_package_of_which_it_is_not_known_what_is_used_counts_whole(tree, text):
    (tree / "benchmarks/y.py").write_text(text, encoding="utf-8")
    assert changed_by(tree, "skuq/shared/_unused.py", "y") == {"shared"}


def test_strings_that_are_used_and_places_of_definitions_are_code_but_not_comments(tree):
    before = code_parts("benchmarks.x", tree)
    model = tree / "skuq/method/_model.py"
    for old, new in (
        ('"""Not skuq.method._other."""\n', '"""A model.\n\nOf several lines.\n"""\n\n'),
        ("class Model(Mixin):\n", "class Model(Mixin):  # why\n    # it is one\n"),
        ("    def fit(self):\n", '    def fit(self):\n        """Fit."""\n'),
    ):
        text = model.read_text(encoding="utf-8")
        assert old in text
        model.write_text(text.replace(old, new), encoding="utf-8")
        assert code_parts("benchmarks.x", tree) == before
    changes = [
        ("skuq/base.py", 'MESSAGE = "one"\n'),
        ("skuq/base.py", 'MESSAGE = "# two"\n'),
        ("skuq/shared/_tools.py", FILES["skuq/shared/_helpers.py"]),
        ("skuq/shared/__init__.py", "from skuq.shared._tools import helper\n"),
    ]
    found = [code_parts("benchmarks.x", tree)]
    for name, text in changes:
        (tree / name).write_text(text, encoding="utf-8")
        found.append(code_parts("benchmarks.x", tree))
    assert len({parts["base"] for parts in found}) == 3
    assert found[0]["shared"] == found[3]["shared"] != found[4]["shared"]


def test_every_benchmark_uses_parts_of_the_package():
    alone = {"__init__", "all", "code_used", "data_files", "gpc_pictures", "harness", "hmc"}
    alone |= {"import_time", "messy_tables"}
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - alone
    shared = {"benchmarks", "extras", "files"}
    assert [name for name in names if not set(code_parts(f"benchmarks.{name}")) - shared] == []
    assert {"base", "baselines", "models", "quam"} <= set(code_parts("benchmarks.quam_two_moons"))
    assert "evidential" in code_parts("benchmarks.evidential_ood")
    assert code_parts("benchmarks.no_such_benchmark") == {}
