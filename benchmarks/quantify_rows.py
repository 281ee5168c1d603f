"""Time and memory of ``skuq quantify`` for a million new rows, and the time of a single row.

    python -m benchmarks.quantify_rows --data-dir DIR --n 1000000 --formats csv parquet

A model is trained on rows of Adult and saved, as with `--save`. For each file, a separate process
loads it, scores rows that are drawn from Adult with replacement, and writes the results. The peak
memory, which includes all imports, and the memory before the first row is read are recorded.
Single rows, with reasons and without, are predicted in tables of random numbers.
"""

import argparse
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.data_files import load_table
from benchmarks.harness import finish, parser, peak_gib, record, set_threads
from skuq._table_files import write_table
from skuq.cli import main as skuq
from skuq.tables import TableModel

BLOCK = 50_000  # rows drawn in one call
TABLES = (("hgb", 20), ("logistic", 50), ("logistic", 500))  # learners, and numbers of columns


def train(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Train and save the model; called in a fresh process."""
    set_threads(args)
    X, y = load_table("adult_train", args.data_dir)
    start = time.process_time()
    table = X.assign(target=y)[: args.n_train]
    TableModel(args.model, random_state=args.seed).fit(table, "target").save(folder)
    return {"cpu_seconds_of_training": time.process_time() - start}


def drawn(X: pd.DataFrame, args: argparse.Namespace) -> Iterator[pd.DataFrame]:
    for start in range(0, args.n, BLOCK):
        n = min(BLOCK, args.n - start)
        yield X.sample(n, replace=True, random_state=args.seed + start)


def score(model: Path, new: Path, out: Path, args: argparse.Namespace) -> dict[str, float]:
    """Run the command; called in a fresh process."""
    set_threads(args)
    TableModel.load(model)
    before, start, clock = peak_gib(), time.process_time(), time.perf_counter()
    options = {"--load": model, "--predict": new, "--out": out}
    words = [str(word) for option in options.items() for word in option]
    skuq(["quantify", *words, "--quiet"], standalone_mode=False)
    return {
        "cpu_seconds": time.process_time() - start,
        "seconds": time.perf_counter() - clock,
        "peak_mib": 1024 * peak_gib(),
        "peak_mib_before": 1024 * before,
    }


def of_single_rows(args: argparse.Namespace) -> Iterator[dict]:
    for learner, n_columns in TABLES:
        random = np.random.default_rng(args.seed)
        table = pd.DataFrame(random.normal(size=(600, n_columns))).add_prefix("x")
        table["target"] = table["x0"] + random.normal(size=600) > 0
        model = TableModel(learner, random_state=args.seed).fit(table, "target")
        for metric, n_explained in {"cpu_ms": 0, "cpu_ms_with_reasons": 1}.items():
            start = time.process_time()
            for row in range(10):
                model.predict(table[row : row + 1], n_explained=n_explained)
            value = 100 * (time.process_time() - start)
            yield record(learner, f"{n_columns} columns", metric, value, 10)


def in_a_process(function, *given) -> dict[str, float]:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def run(args: argparse.Namespace) -> list[dict]:
    X = load_table("adult_train", args.data_dir)[0]
    records = [*of_single_rows(args)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        values = in_a_process(train, folder / "model", args)
        print(values, flush=True)
        records += [record(args.model, "adult", *item, args.n_train) for item in values.items()]
        for ending in args.formats:
            new, out = folder / f"new.{ending}", folder / f"out.{ending}"
            write_table(new, drawn(X, args))
            values = in_a_process(score, folder / "model", new, out, args)
            print(f"{ending}: {values}", flush=True)
            records += [record(args.model, ending, *item, args.n) for item in values.items()]
            new.unlink()
            out.unlink()
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=1_000_000, help="rows that are scored")
    arguments.add_argument("--n-train", type=int, default=30_000)
    arguments.add_argument("--model", default="hgb", help="learner, as --model of skuq quantify")
    arguments.add_argument(
        "--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "parquet"]
    )
    args = arguments.parse_args()
    set_threads(args)
    finish("quantify_rows", args, run(args), ["pandas", "pyarrow"])


if __name__ == "__main__":
    main()
