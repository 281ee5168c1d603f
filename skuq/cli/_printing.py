"""Printing of text from data, from other parties, or from errors of the package."""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any

import click

# Command-line option for each parameter. Messages of the package write a parameter in backticks,
# with or without its value.
OPTIONS = {
    "absent_classes": "--absent-classes",
    "TableModel.save": "--save",
    "allow_test_string": "--test-string",
    "challenge": "--challenge",
    "classes": "--classes",
    "decimal": "--decimal",
    "drop": "--drop",
    "encoding": "--encoding",
    "held_out": "--held-out",
    "id_column": "--id",
    "keys": "--keys",
    "n_attestations": "--attestations",
    "n_proofs": "--proofs",
    "out": "--out",
    "proba": "--proba",
    "regions": "--regions",
    "search_regions": "--features",
    "sensitive_features": "--groups",
    "sep": "--sep",
    "srs": "--srs",
    "strict": "--strict",
    "task": "--task",
    "trust": "--trust",
    "verdict_samples": "--verdict-samples",
}
PARAMETER = re.compile(rf"`({'|'.join(map(re.escape, OPTIONS))})(?:=([^`]+))?`")


def one_line(error: BaseException) -> str:
    """Error message in one line, with command-line options in place of Python parameters."""
    return as_options(" ".join(str(error).split()))


def as_options(message: str) -> str:
    """Replace Python parameters in a message by command-line options.

    For example, `` `drop=['x']` `` becomes `--drop x`; a parameter that is True becomes a flag.
    """

    def option(match: re.Match[str]) -> str:
        name, value = OPTIONS[match[1]], match[2]
        if value is None:
            return name
        try:
            given = literal_eval(value)
        except (SyntaxError, ValueError):
            return match[0]
        if given is True:
            return name
        values = given if isinstance(given, list) else [given]
        return " ".join(f"{name} {quote(str(each))}" for each in values)

    return PARAMETER.sub(option, message)


def visible(text: str) -> str:
    """Escape control characters, which the terminal could interpret."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def say(text: str, *, err: bool = False, **style: Any) -> None:
    """Print text; characters that the terminal cannot encode are escaped."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = visible(text).encode(encoding, "backslashreplace").decode(encoding)
    click.secho(shown, err=err, **style)


def say_bins(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of the non-empty confidence bins."""
    from skuq.labels import amount
    from skuq.reporting import bin_finding, bin_range

    say(f"  {'confidence':<16}{'samples':>9}{'claimed':>9}{'right':>8}{'difference':>12}  finding")
    for row in rows:
        if row["count"]:
            say(
                f"  {bin_range(row):<16}{amount(row['count']):>9}"
                f"{row['confidence']:>9.1%}{row['accuracy']:>8.1%}{100 * row['gap']:>+z12.1f}"
                f"  {bin_finding(row)}"
            )
