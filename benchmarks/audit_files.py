"""Time of audits of recorded predictions in files, compared with reading the files in pandas.

    python -m benchmarks.audit_files --n 10000000 --formats csv parquet

Files with labels, probabilities of two classes and one attribute are written to a temporary folder:
200,000 rows, repeated. pandas reads each file in one process, and a separate process audits it.
"""

import argparse
import resource
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.harness import finish, parser, record, set_threads
from skuq._table_files import write_table
from skuq.audit import audit_files

BLOCK = 200_000  # distinct rows
MIB = 2**10  # in KiB, the unit of ru_maxrss


def write(path: Path, n: int) -> None:
    """Write n rows of calibrated predictions with a group."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.6, 0.6, size=BLOCK).round(6)
    y = (rng.random(BLOCK) < p).astype(int)
    group = rng.choice(["north", "south"], size=BLOCK)
    block = pd.DataFrame({"y": y, "p0": 1 - p, "p1": p, "region": group}).round(6)
    if path.suffix != ".csv":
        write_table(path, (block for _ in range(n // BLOCK)))
        return
    header, _, body = block.to_csv(index=False).partition("\n")
    with path.open("w", encoding="utf-8") as file:
        file.write(header + "\n")
        for _ in range(n // BLOCK):
            file.write(body)


def read(path: Path) -> int:
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return len(frame)


def audit(path: Path) -> int:
    return audit_files([path], "y", ["p0", "p1"], groups=["region"]).audit.n_samples_


TASKS: dict[str, Callable[[Path], int]] = {"pandas": read, "skuq": audit}


def measure(task: str, path: Path) -> dict[str, float]:
    """Measure CPU seconds, seconds and peak memory; called in a fresh process."""
    run = TASKS[task]
    small = path.with_stem("small")
    write(small, BLOCK)
    run(small)  # imports and first calls
    start, clock = time.process_time(), time.perf_counter()
    run(path)
    return {
        "cpu_seconds": time.process_time() - start,
        "seconds": time.perf_counter() - clock,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB,
    }


def run(args: argparse.Namespace) -> list[dict]:
    records = []
    with TemporaryDirectory() as folder:
        for ending in args.formats:
            path = Path(folder, f"predictions.{ending}")
            write(path, args.n)
            found = {}
            for task in TASKS:
                with get_context("spawn").Pool(1) as pool:
                    found[task] = pool.apply(measure, (task, path))
                print(f"{ending}: {task}: {found[task]}", flush=True)
                records += [record(task, ending, *item, args.n) for item in found[task].items()]
            ratio = found["skuq"]["cpu_seconds"] / found["pandas"]["cpu_seconds"]
            records.append(record("skuq", ending, "ratio_to_reading", ratio, args.n))
            path.unlink()
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=10_000_000, help="rows, in steps of 200,000")
    arguments.add_argument(
        "--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "parquet"]
    )
    args = arguments.parse_args()
    set_threads(args)
    finish("audit_files", args, run(args), ["pandas", "pyarrow"])


if __name__ == "__main__":
    main()
