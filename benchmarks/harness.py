"""Arguments, threads and JSON output shared by all benchmarks."""

import argparse
import hashlib
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

from benchmarks.code_used import code_parts
from skuq.files import write_atomically

PACKAGES = ("skuq", "torch", "scikit-learn", "numpy", "skorch")
RESULTS = Path(__file__).parent / "results"  # records shown in the documentation
AGENT_PACKAGES = ("stable-baselines3", "sb3-contrib", "gymnasium", "MinAtar")


def parser(description: str) -> argparse.ArgumentParser:
    """Build a parser with the arguments that all benchmarks have."""
    arguments = argparse.ArgumentParser(description=description.splitlines()[0])
    arguments.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--out", type=Path, help="folder for a copy of the JSON line")
    arguments.add_argument(
        "--record", metavar="NAME", help="keep the figures as benchmarks/results/NAME.json"
    )
    # Digest of the code at the start, since it may change during a long run.
    arguments.set_defaults(
        code=_code(), code_parts=code_parts(_running_module()), began=time.monotonic()
    )
    return arguments


def record(method: str, dataset: str, metric: str, value: float, n: int, std: float = 0.0) -> dict:
    """Build the record of one figure."""
    return {
        "method": method,
        "dataset": dataset,
        "metric": metric,
        "value": float(value),
        "std": float(std),
        "n": int(n),
    }


def peak_gib() -> float:
    """Return the peak memory of this process in GiB (on Linux, which reports KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def kept_run(run: Callable[..., dict], *task: str | int, args: argparse.Namespace) -> dict:
    """Load a run's result from ``--out`` if it is of the current code; else run and store it."""
    if args.out is None:
        return run(*task, args=args)
    code = hashlib.sha256(json.dumps(args.code_parts).encode()).hexdigest()[:7]
    path = args.out / "runs" / code / ("-".join(map(str, task)) + ".json")
    if not path.exists():
        done = run(*task, args=args)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(done) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))


def finish(
    name: str,
    args: argparse.Namespace,
    records: list[dict[str, Any]],
    packages: Sequence[str] = (),
    *,
    is_new: bool = True,
) -> None:
    """Print the JSON line, without NaN figures, and write it to the requested files.

    If the figures only summarise earlier records, the code and the date of these records are kept.
    """
    records = [each for each in records if math.isfinite(each["value"])]
    left_out = ("out", "data_dir", "record", "code", "code_parts", "began")
    result = {
        "benchmark": name,
        "args": {key: value for key, value in vars(args).items() if key not in left_out},
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
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
        origin = _provenance(name, args)
        _keep(args.record, {**origin, **_earlier_origin(origin, args, is_new), **result})
    print(line)


def _provenance(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Describe this run: command without private folders, code, date and duration."""
    words = re.sub(r" --(data-dir|out|record)[ =]\S+", "", f" {shlex.join(sys.argv[1:])}")
    return {
        "command": f"python -m benchmarks.{name}{words}".strip(),
        "code": args.code,
        "parts": args.code_parts,
        "date": date.today().isoformat(),
        "seconds": round(time.monotonic() - args.began),
    }


def _earlier_origin(
    origin: dict[str, Any], args: argparse.Namespace, is_new: bool
) -> dict[str, Any]:
    """Provenance of the existing result of this name that still applies to the figures."""
    path = RESULTS / f"{args.record}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not is_new:
        names = ("code", "parts", "date", "seconds")
        return {name: before[name] for name in names if name in before}
    if args.out is not None and before.get("command") == origin["command"]:
        # The duration of stored runs is that of earlier calls.
        return {"seconds": max(before.get("seconds", 0), origin["seconds"])}
    return {}


def _code() -> str:
    """Git's tree hash of the package, which survives a rebase; "+" marks uncommitted changes.

    Seven digits, however many git needs to tell all objects apart.
    """
    changed = _git("status", "--porcelain", "--", "../skuq")
    return _git("rev-parse", "HEAD:skuq")[:7] + ("+" if changed else "")


def _running_module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec is not None else ""


def changed_parts(result: dict[str, Any]) -> list[str]:
    """List parts of skuq, or the benchmarks, whose code has changed since a result was recorded."""
    recorded = result.get("parts", {"skuq": "unknown"})
    now = code_parts(f"benchmarks.{result['benchmark']}")
    return sorted(part for part in recorded | now if recorded.get(part) != now.get(part))


def _git(*words: str) -> str:
    run = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(run, capture_output=True, text=True).stdout.strip()  # empty without git


def _keep(name: str, result: dict[str, Any]) -> None:
    """Write a result for the documentation, with one figure per line."""
    RESULTS.mkdir(exist_ok=True)
    head = json.dumps({**result, "records": []}, indent=1).removesuffix("[]\n}")
    rounded = (
        {key: float(f"{x:.6g}") if isinstance(x, float) else x for key, x in each.items()}
        for each in result["records"]
    )
    figures = ",\n".join(f"  {json.dumps(each)}" for each in rounded)
    write_atomically(RESULTS / f"{name}.json", f"{head}[\n{figures}\n ]\n}}\n")


def set_threads(args: argparse.Namespace) -> None:
    """Set the same number of threads for all methods."""
    torch.set_num_threads(args.threads)
