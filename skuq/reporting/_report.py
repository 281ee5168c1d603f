"""Reports: text, figures and tables of a run in one HTML file that stands alone."""

from __future__ import annotations

import base64
import io
import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from skuq.extras import import_optional
from skuq.files import write_atomically

__all__ = ["Report"]

MISSING = "\N{EN DASH}"
LONGEST_WHOLE = 1e9  # a whole number up to which all digits are shown
NUMBER = ' class="number"'
NUMERAL = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]+(\.\d+)?%?")

STYLE = """
:root { --ink: #1c2126; --dim: #59636e; --line: #d5dbe1; --page: #ffffff; --shade: #f4f6f8; }
* { box-sizing: border-box; }
body { max-width: 48rem; margin: 0 auto; padding: 2rem 1rem; color: var(--ink);
  background: var(--page); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 0.5rem; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 0 0 0.6rem; font-size: 1.2rem; line-height: 1.3; break-after: avoid; }
p, figure { margin: 0; }
header, section { padding-bottom: 1.8rem; }
section, footer { padding-top: 1.6rem; border-top: 1px solid var(--line); }
figcaption { margin-top: 0.6rem; color: var(--dim); font-size: 0.9rem; }
img { display: block; max-width: 100%; height: auto; padding: 0.5rem; background: #ffffff;
  border-radius: 4px; break-inside: avoid; }
.wide { overflow-x: auto; }
tr { break-inside: avoid; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: normal; }
thead th { border-bottom: 2px solid var(--dim); vertical-align: bottom; }
tbody tr:nth-child(even) { background: var(--shade); }
.number { text-align: right; white-space: nowrap; }
thead .number { white-space: normal; }
td:first-child { min-width: 7rem; }
footer { color: var(--dim); font-size: 0.8rem; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e3e7eb; --dim: #9ba6b1; --line: #3a434c; --page: #16191d; --shade: #1f2429; }
}
@media (max-width: 40rem) { table { font-size: 0.8rem; } th, td { padding: 0.25rem 0.3rem; } }
@media print { body { max-width: none; padding: 0; } .wide { overflow: visible; } }
"""

# The policy lets the page load nothing, so that it stays inert whatever it is given.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1>
<p>{summary}</p></header>
<main>
{sections}
</main>
<footer>{footer}</footer>
</body></html>
"""


class Report:
    """One HTML page of text, figures and tables, in the order they are added.

    The page needs no other file and no network. Everything given to it is text,
    never markup.

    Parameters
    ----------
    title, summary : str
        Headline, and what the reader should know first.
    created : datetime, optional
        Time of the run, shown in UTC; without a time zone it is local. Default: now.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.reporting._report import Report
    >>> report = Report("Run 7", "Calibration improved.")
    >>> errors = pd.DataFrame({"model": ["<plain>"], "error": [0.123456]})
    >>> report.table("Calibration", errors, caption="Expected calibration error.")
    >>> "<td>&lt;plain&gt;</td>" in report.html()
    True
    """

    def __init__(self, title: str, summary: str, *, created: datetime | None = None) -> None:
        self.title = title
        self.summary = summary
        self.created = datetime.now(UTC) if created is None else created.astimezone(UTC)
        self._sections: list[str] = []

    def text(self, heading: str, paragraph: str) -> None:
        """Add a paragraph of text."""
        self._add(heading, f"<p>{escape(paragraph)}</p>")

    def figure(self, heading: str, figure: Any, caption: str) -> None:
        """Add a picture; needs matplotlib (extra ``plot``).

        Parameters
        ----------
        heading : str
            Heading of the section.
        figure : Display or matplotlib Figure
            A Display that was not drawn yet is drawn, and its figure closed again.
        caption : str
            What the picture shows; it also stands in where pictures cannot be seen.
        """
        data = base64.b64encode(_svg(figure)).decode("ascii")
        picture = f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(caption)}">'
        self._add(heading, _captioned(picture, caption))

    def table(self, heading: str, frame: pd.DataFrame, caption: str) -> None:
        """Add a table.

        Parameters
        ----------
        heading : str
            Heading of the section.
        frame : DataFrame
            Numbers are shown with 4 significant digits, whole ones in full. Like them, texts that
            hold nothing but a number are aligned to the right. The index is shown unless it only
            counts the rows from 0 and has no name.
        caption : str
            What the table shows.
        """
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"`frame` must be a pandas DataFrame, got {type(frame).__name__}.")
        self._add(heading, _captioned(f'<div class="wide">{_table(frame)}</div>', caption))

    def html(self) -> str:
        """Return the page as a string."""
        return PAGE.format(
            title=escape(self.title),
            summary=escape(self.summary),
            style=STYLE,
            sections="\n".join(self._sections),
            footer=escape(_footer(self.created)),
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, completely or not at all, and return its path.

        Parameters
        ----------
        path : path-like
            File in an existing folder; a file of that name is replaced.
        """
        return write_atomically(path, self.html())

    def _add(self, heading: str, content: str) -> None:
        self._sections.append(f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>")


def _captioned(content: str, caption: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _svg(figure: Any) -> bytes:
    """Picture of a matplotlib Figure or a Display; the same input gives the same bytes."""
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    if hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        with pyplot.rc_context({"svg.hashsalt": "skuq", "svg.fonttype": "path"}):
            figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
        return buffer.getvalue()
    if hasattr(figure, "figure_"):
        return _svg(figure.figure_)
    if not hasattr(figure, "from_estimator"):
        raise TypeError(
            f"`figure` must be a Display or a matplotlib Figure, got {type(figure).__name__}."
        )
    drawn = figure.plot().figure_
    try:
        return _svg(drawn)
    finally:
        pyplot.close(drawn)


def _table(frame: pd.DataFrame) -> str:
    # Equally spaced integers of any meaning are a RangeIndex too.
    if frame.index.name is not None or not frame.index.equals(pd.RangeIndex(len(frame))):
        names = ["" if name is None else name for name in frame.index.names]
        frame = frame.reset_index(names=names, allow_duplicates=True)
    dtypes = frame.infer_objects().dtypes
    numeric = [
        (is_numeric_dtype(dtype) and not is_bool_dtype(dtype)) or _all_numerals(frame.iloc[:, k])
        for k, dtype in enumerate(dtypes)
    ]
    head = _row("th", map(_label, frame.columns), numeric)
    body = "\n".join(
        _row("td", map(_formatted, row), numeric) for row in frame.itertuples(False, None)
    )
    return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _all_numerals(column: pd.Series) -> bool:
    """Whether a column holds numbers that were written as texts, with or without a unit."""
    return len(column) > 0 and all(
        isinstance(text, str) and (text == MISSING or NUMERAL.fullmatch(text)) for text in column
    )


def _row(tag: str, texts: Iterable[str], numeric: list[bool]) -> str:
    cells = (
        f"<{tag}{NUMBER if right else ''}>{escape(text)}</{tag}>"
        for text, right in zip(texts, numeric, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _label(label: Any) -> str:
    """Name of a column; the levels of a MultiIndex come as a tuple."""
    return " / ".join(filter(None, map(str, label))) if isinstance(label, tuple) else str(label)


def _formatted(value: Any) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return MISSING
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        if number.is_integer() and abs(number) < LONGEST_WHOLE:
            return f"{number:.0f}"
        return f"{number:#.4g}".removesuffix(".")  # 0.5000, but 1234 and not 1234.
    return str(value)


def _footer(created: datetime) -> str:
    versions = [f"{name} {_version(name)}" for name in ("skuq", "scikit-learn", "torch")]
    versions.append(f"Python {platform.python_version()}")
    return f"Made with {', '.join(versions)} on {created:%Y-%m-%d %H:%M:%S} UTC."


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
