"""Cost of a search before it is paid: memory from sizes, time from its first part."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from numbers import Real
from time import perf_counter
from typing import Any, TypeVar

from sklearn.utils._param_validation import Interval, StrOptions
from tqdm.auto import tqdm

from skuq.memory import available_memory
from skuq.validation import warn_user

T = TypeVar("T")

# Constraint of the parameter `max_memory` of searches on a pool.
MAX_MEMORY: list[Any] = [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
LONG = 300.0  # seconds from which a search that nobody watches is announced
_SHARE = 0.5  # of the free memory, for "auto"


def searches_in_memory(
    n_searches: int, n_kept: int, model_bytes: int, max_memory: float | str, *, working: int = 0
) -> int:
    """How many searches can keep their models in memory; an error if not even two of them can.

    Each search keeps `n_kept` models of `model_bytes`; all together need `working` bytes more.
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
        f"{', half of what is free' if max_memory == 'auto' else ''})"
    )
    if n_fit < min(2, n_searches):
        raise MemoryError(
            f"The {sizes}. Not even {min(2, n_searches)} of them fit. Let fewer weights move "
            "(search__parameters='last' or 'bias'), keep fewer models (search__n_steps, "
            "search__shares), or take a smaller model."
        )
    warn_user(
        f"The {sizes}. Only the {n_fit} most probable classes are searched, as with "
        f"n_targets={n_fit}. Set n_targets, or let each search keep less "
        "(search__parameters='last', search__n_steps, search__shares)."
    )
    return n_fit


def _size(n_bytes: float) -> str:
    unit, name = (1e9, "GB") if n_bytes >= 1e9 else (1e6, "MB") if n_bytes >= 1e6 else (1e3, "kB")
    return f"{n_bytes / unit:.1f} {name}"


class _Counter:
    """A file that counts what is written and keeps nothing."""

    n_bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.n_bytes += size
        return size


def pickled_size(model: Any) -> int:
    """Bytes of a model's pickle, which is about what it takes in memory; 0 if it has none."""
    counter = _Counter()
    try:
        pickle.Pickler(counter, protocol=5).dump(model)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a function without a name
        return 0
    return counter.n_bytes


def tell_time(seconds: float, work: str, advice: str) -> None:
    """Warn of work that takes long."""
    if seconds > LONG:
        warn_user(
            f"The search on the pool takes about {seconds / 60:.0f} minutes: {work}. To shorten "
            f"it, set {advice}; verbose=1 shows how far it is."
        )


def watched(
    steps: Iterable[T], n_steps: int, *, verbose: int, unit: str, advice: str = "", times: int = 0
) -> Iterator[T]:
    """Take the steps of a search, with a progress bar if `verbose`.

    After two steps, the time that all of them take is known; `times` says how often so many steps
    are taken, and 0 that this was told before.
    """
    start = perf_counter()
    with tqdm(total=n_steps, desc="QUAM search", unit=unit, disable=not verbose) as bar:
        for done, step in enumerate(steps, 1):
            if done == 1:  # it sets things up, too
                start = perf_counter()
            if done == 2:
                seconds = perf_counter() - start
                work = f"{n_steps * times:,} steps of {seconds:.2g} seconds"
                tell_time(seconds * n_steps * times, work, advice)
            bar.update()
            yield step
