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
