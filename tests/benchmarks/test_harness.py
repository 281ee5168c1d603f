"""What all benchmarks share."""

import json

from benchmarks import harness


def test_a_benchmark_with_parts_of_its_own_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "code_parts", lambda: {"gpc": "1"})
    arguments = harness.parser("Doc.")
    arguments.add_argument("--parts", nargs="+")
    args = arguments.parse_args(["--parts", "one", "two", "--record", "x"])
    harness.finish("x", args, [harness.record("m", "d", "auroc", 0.5, 1)], starts_processes=True)
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["args"]["parts"] == ["one", "two"]
    assert kept["parts"] == {"gpc": "1"}
    assert json.loads(capsys.readouterr().out)["records"] == kept["records"]


def test_runs_that_were_kept_are_those_of_this_code(tmp_path):
    done = []

    def run(task, args):
        done.append((task, args.code))
        return {"score": len(done)}

    args = harness.parser("Doc.").parse_args(["--out", str(tmp_path)])
    args.code = "1"
    assert [harness.kept_run(run, "a", args=args)["score"] for _ in range(2)] == [1, 1]
    args.code = "2"
    assert harness.kept_run(run, "a", args=args)["score"] == 2
    assert done == [("a", "1"), ("a", "2")]
