"""Printing of text whose parts may come from data or from others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click


def one_line(error: BaseException) -> str:
    """Message of an error without line breaks."""
    return " ".join(str(error).split())


def visible(text: str) -> str:
    """Replace characters that could command the terminal by their escape sequences."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def say(text: str, *, err: bool = False, **style: Any) -> None:
    """Print text, also where the terminal lacks a character of it."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = visible(text).encode(encoding, "backslashreplace").decode(encoding)
    click.secho(shown, err=err, **style)


def say_bins(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of confidence bins, without the empty ones."""
    from skuq.reporting import bin_finding, bin_range

    say(f"  {'confidence':<16}{'samples':>9}{'claimed':>9}{'right':>8}{'difference':>12}  finding")
    for row in rows:
        if row["count"]:
            say(
                f"  {bin_range(row):<16}{row['count']:>9,}{row['confidence']:>9.1%}"
                f"{row['accuracy']:>8.1%}{100 * row['gap']:>+z12.1f}  {bin_finding(row)}"
            )
