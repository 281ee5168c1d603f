"""What all benchmarks share."""

import json
from unittest.mock import Mock

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
    """What `finish` records under the name x for a run of some code."""
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
