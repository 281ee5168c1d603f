"""Progress bars."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress(
    iterable: Iterable[Any] | None = None, *, verbose: object = True, **options: Any
) -> tqdm[Any]:
    """Return a tqdm bar, shown if `verbose`; in a log, it is updated once a minute."""
    watched = getattr(sys.stderr, "isatty", bool)() or "ipykernel" in sys.modules
    options |= {} if watched else {"mininterval": 60, "maxinterval": 60}
    return tqdm(iterable, disable=not verbose, **options)
