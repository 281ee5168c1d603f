"""What all benchmarks share: arguments, threads, and the JSON line."""

import argparse
import functools
import json
import math
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from skuq.files import write_atomically

PACKAGES = ("skuq", "torch", "scikit-learn", "numpy", "skorch")
RESULTS = Path(__file__).parent / "results"  # what the documentation shows
AGENT_PACKAGES = ("stable-baselines3", "sb3-contrib", "gymnasium", "MinAtar")
WITHOUT_FIGURES = {"files"}  # how files are written changes nothing that is measured


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    arguments = argparse.ArgumentParser(description=description.splitlines()[0])
    arguments.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--out", type=Path, help="folder for a copy of the JSON line")
    arguments.add_argument(
        "--record", metavar="NAME", help="keep the figures as benchmarks/results/NAME.json"
    )
    # As the code is now, not when a long run ends.
    arguments.set_defaults(code=_code(), code_parts=code_parts(), began=time.monotonic())
    return arguments


def record(method: str, dataset: str, metric: str, value: float, n: int, std: float = 0.0) -> dict:
    """One figure."""
    return {
        "method": method,
        "dataset": dataset,
        "metric": metric,
        "value": float(value),
        "std": float(std),
        "n": int(n),
    }


def peak_gib() -> float:
    """Peak memory of this process, in GiB; on Linux, where the system counts KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def kept_run(run: Callable[..., dict], *task: str | int, args: argparse.Namespace) -> dict:
    """One of many long runs: taken from ``--out`` if this code finished it before, else kept."""
    if args.out is None:
        return run(*task, args=args)
    path = args.out / "runs" / args.code / ("-".join(map(str, task)) + ".json")
    if not path.exists():
        done = run(*task, args=args)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(done) + "\n")
    return json.loads(path.read_text())


def finish(
    name: str,
    args: argparse.Namespace,
    records: list[dict[str, Any]],
    packages: Sequence[str] = (),
    *,
    starts_processes: bool = False,
    is_new: bool = True,
) -> None:
    """Print the JSON line without figures that are none; write it where it was asked for.

    Figures are out of date once a part of skuq changes that the run has loaded, or any part if
    what it measures ran in processes that it started. Those of a run that is not new, as it only
    sums up what was recorded before, keep the code and the date that were recorded with them.
    """
    records = [each for each in records if math.isfinite(each["value"])]
    left_out = ("out", "data_dir", "record", "code", "code_parts", "began")
    result = {
        "benchmark": name,
        "args": {key: value for key, value in vars(args).items() if key not in left_out},
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": args.threads,
            "versions": {package: version(package) for package in (*PACKAGES, *packages)},
        },
        "records": records,
    }
    line = json.dumps(result)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out / f"{name}.json", line + "\n")
    if args.record is not None:
        origin = _provenance(name, args, starts_processes)
        _keep(args.record, {**origin, **_earlier_origin(origin, args, is_new), **result})
    print(line)


def _provenance(name: str, args: argparse.Namespace, starts_processes: bool) -> dict[str, Any]:
    """Command, code, date and length of this run; its folders are nobody else's business."""
    words = re.sub(r" --(data-dir|out|record)[ =]\S+", "", f" {shlex.join(sys.argv[1:])}")
    loaded = {module.split(".")[1] for module in sys.modules if module.startswith("skuq.")}
    return {
        "command": f"python -m benchmarks.{name}{words}".strip(),
        "code": args.code,
        "parts": {
            p: code for p, code in args.code_parts.items() if starts_processes or p in loaded
        },
        "date": date.today().isoformat(),
        "seconds": round(time.monotonic() - args.began),
    }


def _earlier_origin(
    origin: dict[str, Any], args: argparse.Namespace, is_new: bool
) -> dict[str, Any]:
    """What holds of the result of this name that is there, and not of this run."""
    path = RESULTS / f"{args.record}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if not is_new:
        names = ("code", "parts", "date", "seconds")
        return {name: before[name] for name in names if name in before}
    if args.out is not None and before.get("command") == origin["command"]:
        # Runs that were kept took their time earlier.
        return {"seconds": max(before.get("seconds", 0), origin["seconds"])}
    return {}


def _code() -> str:
    """Git's hash of the package, which survives a rebase; with a plus if files differ from it."""
    changed = _git("status", "--porcelain", "--", "../skuq")
    return _git("rev-parse", "--short", "HEAD:skuq") + ("+" if changed else "")


@functools.cache
def code_parts() -> dict[str, str]:
    """Git's hash of each package and module of skuq, as last committed."""
    lines = _git("ls-tree", "--abbrev=7", "HEAD", "../skuq/").splitlines()
    entries = (re.split(r"\s", line, maxsplit=3) for line in lines)
    return {Path(path).stem: code for _, _, code, path in entries if Path(path).suffix != ".typed"}


def changed_parts(result: dict[str, Any], parts: dict[str, str]) -> list[str]:
    """Parts of skuq that changed since a result was recorded, and may change it."""
    recorded = result.get("parts", {"skuq": "unknown"})
    return [
        name
        for name, code in recorded.items()
        if name not in WITHOUT_FIGURES and parts.get(name) != code
    ]


def _git(*words: str) -> str:
    run = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(run, capture_output=True, text=True).stdout.strip()  # no git: nothing


def _keep(name: str, result: dict[str, Any]) -> None:
    """Write a result that the documentation renders, one figure a line."""
    RESULTS.mkdir(exist_ok=True)
    head = json.dumps({**result, "records": []}, indent=1).removesuffix("[]\n}")
    rounded = (
        {key: float(f"{x:.6g}") if isinstance(x, float) else x for key, x in each.items()}
        for each in result["records"]
    )
    figures = ",\n".join(f"  {json.dumps(each)}" for each in rounded)
    write_atomically(RESULTS / f"{name}.json", f"{head}[\n{figures}\n ]\n}}\n")


def set_threads(args: argparse.Namespace) -> None:
    """Give every method of the run the same number of threads."""
    torch.set_num_threads(args.threads)
