"""Parallel proofs: number of proofs, threads per proof, and handling of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from joblib import cpu_count, effective_n_jobs

from skuq.devices import available_memory

Result = TypeVar("Result")


def simultaneous_proofs(n_jobs: int | None, memory: float) -> int:
    """Number of parallel proofs: `n_jobs`, or as many as fit into the free memory.

    `memory` is the peak memory of a single proof, in GiB.
    """
    if n_jobs == 0:
        raise ValueError("`n_jobs` must be a number of processes, or -1 for all cores; got 0.")
    wanted = int(effective_n_jobs(n_jobs))
    if wanted == 1:
        return 1
    free = available_memory() / 2**30
    return max(1, min(wanted, int(free / memory)))


def threads_of_each(n_jobs: int) -> int | None:
    """Number of threads per proof; None means that the proof system decides."""
    return None if n_jobs == 1 else max(1, cpu_count() // n_jobs)


def results_of(
    calls: Sequence[Callable[[], Result]], n_threads: int, bar: Callable[[Iterable[Any]], Any]
) -> list[Result]:
    """Results of the calls, in order; after an error, no further calls are started.

    Running calls are completed, because their proofs are recorded in the ledger and can be reused
    when the audit is repeated.
    """
    if n_threads == 1:
        return [call() for call in bar(calls)]
    with ThreadPoolExecutor(n_threads) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            for future in bar(as_completed(futures)):
                future.result()
        finally:
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]
