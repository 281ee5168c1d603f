"""What all benchmarks share: what is recorded, what is stale, and which figures moved."""

import argparse
import json
import shlex
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks import all as remeasure
from benchmarks import harness


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


def test_figures_that_are_only_summed_up_keep_the_code_they_had(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert recorded(tmp_path, code="1", is_new=False)["code"] == "1"  # nothing is known of earlier
    older = recorded(tmp_path, code="2")
    assert older["code"] == "2"
    kept = json.dumps({**older, "date": "2020-01-01", "seconds": 99})
    (tmp_path / "x.json").write_text(kept, encoding="utf-8")
    again = recorded(tmp_path, code="3", is_new=False)
    assert (again["code"], again["date"], again["seconds"]) == ("2", "2020-01-01", 99)
    assert recorded(tmp_path, code="3")["code"] == "3"


def test_the_length_of_a_run_whose_parts_were_kept_is_that_of_all(tmp_path, monkeypatch):
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
