"""Repeat stale measurements of `benchmarks/results` within a budget of time.

    python -m benchmarks.all --budget 60m --data-dir DIR
    python -m benchmarks.all --list

A result is stale if code that its benchmark uses has changed. Stale results are repeated first,
then the oldest. Each is repeated with its recorded command and replaced. Significant changes are
printed: figures that differ by more than twice the larger standard deviation and half a percent,
and times that differ by more than half. ``--all`` also repeats results that are not stale.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import RESULTS, changed_parts

# Older results do not contain the duration of the run.
UNKNOWN_SECONDS = 600


class Result(NamedTuple):
    """A recorded result, and the parts of the code that have changed since."""

    name: str
    content: dict[str, Any]
    changed: list[str]

    @property
    def seconds(self) -> int:
        """Duration of the recorded run."""
        return self.content.get("seconds", UNKNOWN_SECONDS)


def results(folder: Path) -> list[Result]:
    """List all results of a folder, stale ones first."""
    found = []
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        found.append(Result(path.stem, content, changed_parts(content)))
    return sorted(found, key=lambda r: (not r.changed, r.content["date"], r.name))


def seconds_of(text: str) -> float:
    """Convert a duration, such as 90s, 60m or 2h, to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time such as 90s, 60m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def moved(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield lines about figures that changed significantly, are new, or are missing."""
    old, new = (
        {(r["method"], r["dataset"], r["metric"]): r for r in each["records"]}
        for each in (before, after)
    )
    for key in old | new:
        name = ", ".join(key)
        if key not in new:
            yield f"{name}: was {old[key]['value']:g}, is missing"
        elif key not in old:
            yield f"{name}: {new[key]['value']:g} is new"
        elif abs(new[key]["value"] - old[key]["value"]) > _spread(key[2], old[key], new[key]):
            yield f"{name}: {old[key]['value']:g} to {new[key]['value']:g}"


def _spread(metric: str, old: dict[str, Any], new: dict[str, Any]) -> float:
    share = 0.5 if "second" in metric else 0.005
    return max(2 * old["std"], 2 * new["std"], share * abs(old["value"]))


def measure(result: Result, data_dir: Path) -> bool:
    """Repeat the command of a result and record its output; return whether it succeeded."""
    words = shlex.split(result.content["command"])[1:]  # without "python"
    options = ["--data-dir", str(data_dir), "--record", result.name]
    return subprocess.run([sys.executable, *words, *options]).returncode == 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--budget", type=seconds_of, default="60m", help="such as 90s, 60m, 2h")
    arguments.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--list", action="store_true", help="show what is stale, run nothing")
    arguments.add_argument("--all", action="store_true", help="those that are not stale, too")
    args = arguments.parse_args()
    report: dict[str, list[str]] = {}
    end = time.monotonic() + args.budget
    for result in results(RESULTS):
        state = f"changed since: {', '.join(result.changed)}" if result.changed else "up to date"
        print(f"{result.name}: {result.content['date']}, {result.seconds} s, {state}", flush=True)
        if args.list or not (result.changed or args.all):
            continue
        if time.monotonic() + result.seconds > end:
            print("  left out: does not fit into what is left of the budget")
            continue
        if not measure(result, args.data_dir):
            report[result.name] = ["did not run to its end"]
            continue
        after = json.loads((RESULTS / f"{result.name}.json").read_text(encoding="utf-8"))
        report[result.name] = list(moved(result.content, after))
    for name, lines in report.items():
        print(f"{name}: {'nothing moved' if not lines else ''}", *lines, sep="\n  ")
    print(json.dumps({"benchmark": "all", "moved": report}))


if __name__ == "__main__":
    main()
