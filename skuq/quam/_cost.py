"""Estimates of a search's memory (from model sizes) and of its time (from its first steps)."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from numbers import Real
from time import perf_counter
from typing import Any, TypeVar

from sklearn.utils._param_validation import Interval, StrOptions
from tqdm.auto import tqdm

from skuq.devices import available_memory
from skuq.validation import warn_user

T = TypeVar("T")

# Constraint on the parameter `max_memory` of searches on a pool.
MAX_MEMORY: list[Any] = [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
LONG = 300.0  # duration, in seconds, above which a search raises a warning
_SHARE = 0.5  # fraction of the free memory that max_memory="auto" allows


def searches_in_memory(
    n_searches: int, n_kept: int, model_bytes: int, max_memory: float | str, *, working: int = 0
) -> int:
    """Number of searches whose models fit into memory; raise MemoryError if fewer than two fit.

    Each search keeps `n_kept` models of `model_bytes`; `working` bytes are needed in addition.
    """
    limit = available_memory() * _SHARE if max_memory == "auto" else float(max_memory)
    of_each = max(1, n_kept * model_bytes)
    n_fit = int(max(0, limit - working) // of_each)
    if n_fit >= n_searches:
        return n_searches
    sizes = (
        f"{n_searches} searches would keep {n_searches * n_kept:,} models of "
        f"{_size(model_bytes)}, which takes {_size(n_searches * of_each + working)} of memory; "
        f"the limit is {_size(limit)} (search__max_memory"
        f"{', half of the free memory' if max_memory == 'auto' else ''})"
    )
    if n_fit < min(2, n_searches):
        raise MemoryError(
            f"The {sizes}. At least {min(2, n_searches)} of the searches must fit. Search fewer "
            "weights (search__parameters='last' or 'bias'), keep fewer models (search__n_steps, "
            "search__shares), or use a smaller model."
        )
    warn_user(
        f"The {sizes}. Only the {n_fit} most probable classes are searched, as with "
        f"n_targets={n_fit}. Set n_targets, or reduce the memory of each search "
        "(search__parameters='last', search__n_steps, search__shares)."
    )
    return n_fit


def _size(n_bytes: float) -> str:
    unit, name = (1e9, "GB") if n_bytes >= 1e9 else (1e6, "MB") if n_bytes >= 1e6 else (1e3, "kB")
    return f"{n_bytes / unit:.1f} {name}"


class _Counter:
    """File object that counts the bytes written and discards them."""

    n_bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.n_bytes += size
        return size


def pickled_size(model: Any) -> int:
    """Size of a model's pickle, an estimate of its memory, in bytes; 0 if pickling fails."""
    counter = _Counter()
    try:
        pickle.Pickler(counter, protocol=5).dump(model)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda
        return 0
    return counter.n_bytes


def duration(seconds: float) -> str:
    """Write a time in words; in minutes if it is at least two minutes."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"


def warn_if_slow(seconds: float, work: str, advice: str) -> None:
    """Warn if the search takes more than `LONG` seconds."""
    if seconds > LONG:
        warn_user(
            f"The search on the pool takes about {seconds / 60:.0f} minutes: {work}. To shorten "
            f"it, set {advice}; verbose=1 shows its progress."
        )


def with_progress(
    steps: Iterable[T], n_steps: int, *, verbose: int, unit: str, advice: str = "", times: int = 0
) -> Iterator[T]:
    """Iterate over the steps of a search, with a progress bar if `verbose`.

    After two steps, warn if all steps together will take long. `times` is the number of searches
    that run one after the other, with `n_steps` steps each; 0 suppresses the warning.
    """
    start = perf_counter()
    with tqdm(total=n_steps, desc="QUAM search", unit=unit, disable=not verbose) as bar:
        for done, step in enumerate(steps, 1):
            if done == 1:  # not timed, because it includes the set-up
                start = perf_counter()
            if done == 2:
                seconds = perf_counter() - start
                work = f"{n_steps * times:,} steps of {duration(seconds)}"
                warn_if_slow(seconds * n_steps * times, work, advice)
            bar.update()
            yield step
