"""CPU seconds and memory of the search on a pool, for many rows of a table.

    python -m benchmarks.quam_rows --data-dir DIR --n 50000 --memory 100000 1000000 --dask

Rows of Adult, resampled for larger sizes. Each size is scored in a separate process, whose peak
memory above that of the search and the rows is recorded. ``--dask`` also scores the rows on a
cluster of two workers, and records the largest difference.
"""

import argparse
import resource
import sys
import time
from multiprocessing import get_context

import joblib
import numpy as np
import pandas as pd
from sklearn.frozen import FrozenEstimator

from benchmarks.data_files import load_table
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.quam_tables import LEARNERS
from skuq.imports import import_optional
from skuq.quam import QUAMClassifier

MIB = 2**20


def peak_memory() -> float:
    """Return the peak resident memory of this process in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def drawn(X: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    return X.sample(n, replace=n > len(X), random_state=seed).reset_index(drop=True)


def searched(learner: str, args: argparse.Namespace) -> tuple[QUAMClassifier, float, float]:
    """Run a search; return the estimator, and the CPU seconds of the base fit and the search."""
    set_threads(args)
    X, y = load_table("adult_train", args.data_dir)
    start = time.process_time()
    model = LEARNERS[learner]().fit(X[: args.n_train], y[: args.n_train])
    fitted = time.process_time()
    quam = QUAMClassifier(FrozenEstimator(model), random_state=args.seed)
    quam.fit(X[: args.n_train], y[: args.n_train])
    return quam, fitted - start, time.process_time() - fitted


def memory(learner: str, n: int, args: argparse.Namespace) -> tuple[float, float]:
    """Measure peak memory in MiB and CPU seconds of scoring, in a separate process."""
    quam, _, _ = searched(learner, args)
    rows = drawn(load_table("adult_train", args.data_dir)[0], n, args.seed)
    before, start = peak_memory(), time.process_time()
    quam.set_params(verbose=1).predict_uncertainty(rows)
    return peak_memory() - before, time.process_time() - start


def difference_on_dask(quam: QUAMClassifier, rows: pd.DataFrame, expected: np.ndarray) -> float:
    distributed = import_optional("distributed", "distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        found = quam.set_params(n_jobs=2).predict_uncertainty(rows).epistemic
    quam.set_params(n_jobs=None)
    return float(np.abs(found - expected).max())


def run(learner: str, args: argparse.Namespace) -> list[dict]:
    quam, fit, search = searched(learner, args)
    rows = drawn(load_table("adult_train", args.data_dir)[0], args.n, args.seed)
    start = time.process_time()
    u = quam.predict_uncertainty(rows)
    scores = time.process_time() - start
    records = [
        record(learner, "adult", "cpu_seconds_of_fit", fit, args.n_train),
        record(learner, "adult", "cpu_seconds_of_search", search, args.n_train),
        record(learner, "adult", "cpu_seconds_of_scores", scores, args.n),
        record(learner, "adult", "cpu_seconds_of_search_and_scores", search + scores, args.n),
    ]
    if args.dask:
        difference = difference_on_dask(quam, rows, u.epistemic)
        records.append(record(learner, "adult", "difference_on_dask", difference, args.n))
    for each in records:
        show(each)
    for n in args.memory:
        with get_context("spawn").Pool(1) as pool:
            mib, seconds = pool.apply(memory, (learner, n, args))
        records += [
            record(learner, "adult", "peak_mib", mib, n),
            record(learner, "adult", "cpu_seconds_of_scores", seconds, n),
        ]
        show(records[-2])
        show(records[-1])
    return records


def show(each: dict) -> None:
    columns = f"{each['method']:10} {each['n']:>9} rows  {each['metric']:34}"
    print(f"{columns} {each['value']:.4g}", flush=True)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--learners", nargs="+", default=["hgb", "network"], choices=LEARNERS)
    arguments.add_argument("--n", type=int, default=50_000, help="rows that are scored")
    arguments.add_argument("--n-train", type=int, default=30_000)
    arguments.add_argument("--memory", nargs="*", type=int, default=[], help="numbers of rows")
    arguments.add_argument("--dask", action="store_true")
    args = arguments.parse_args()
    set_threads(args)
    records = [each for learner in args.learners for each in run(learner, args)]
    finish("quam_rows", args, records)


if __name__ == "__main__":
    main()
