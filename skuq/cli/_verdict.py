"""Verdicts as exit codes.

No crash produces the code of "failed": a Python interpreter exits with 1 on an exception, on a
failed import and on an interrupt, with 120 if its output cannot be flushed, with 128 or more if it
is killed; click exits with 2 on wrong usage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import click

PASSED, NO_VERDICT, FAILED = 0, 2, 10


def exit_with_verdict(ctx: click.Context, passes: Callable[[], bool]) -> NoReturn:
    """End a command with the code of what `passes` returns."""
    try:
        passed = passes()
    except SystemExit as error:  # with any code: whoever raised it did not decide
        raise RuntimeError(f"The command ended before its verdict, with {error.code!r}.") from error
    ctx.exit(PASSED if passed else FAILED)
