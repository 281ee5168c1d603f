"""Reports: text, plots and tables of a run in one self-contained HTML file."""

from __future__ import annotations

import base64
import io
import os
import platform
import re
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from skuq.files import write_atomically
from skuq.imports import import_optional, shown

if TYPE_CHECKING:
    from jinja2 import Template

MISSING = "\N{EN DASH}"
LONGEST_WHOLE = 1e9  # largest whole number that is shown with all its digits
NUMERAL = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]+(\.\d+)?%?")

# Control characters, surrogates, and characters that change the direction of text.
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Report:
    """HTML page of text, figures and tables, in the order they are added.

    The page needs no other file and no network. All content is shown as text and never interpreted
    as markup; control characters, and characters that change the direction of writing, are shown as
    escape sequences such as ``\\x1b``.

    Parameters
    ----------
    title, summary : str
        Headline, and introductory paragraph.
    created : datetime, optional
        Time of the run, shown in UTC; a time without time zone is local. Default: now.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.reporting import Report
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
        self._sections: list[dict[str, Any]] = []

    def text(self, heading: str, paragraph: str) -> None:
        """Add a paragraph of text."""
        self._sections.append({"heading": str(heading), "paragraph": str(paragraph)})

    def figure(self, heading: str, figure: Any, caption: str, *, alt: str = "") -> None:
        """Add a plot; needs matplotlib (extra ``plot``).

        Parameters
        ----------
        heading, caption : str
            Heading of the section, and caption of the plot.
        figure : Display or matplotlib Figure
            A Display that was not drawn before is drawn, and its figure is closed afterwards.
        alt : str, optional
            Alternative text for readers who cannot see the plot. Default: the description of the
            Display, or the caption for a matplotlib Figure.
        """
        drawn = picture(figure, str(alt))
        self._sections.append({"heading": str(heading), "picture": drawn, "caption": str(caption)})

    def table(self, heading: str, frame: pd.DataFrame, caption: str) -> None:
        """Add a table: integers in full, other numbers with 4 significant digits.

        The index is shown unless it is unnamed and counts the rows from 0.
        """
        made = cells(frame)
        self._sections.append({"heading": str(heading), "cells": made, "caption": str(caption)})

    def html(self) -> str:
        """Return the page as a string."""
        return self._rendered("report.html")

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file in an existing folder atomically, and return its path."""
        return write_atomically(path, self.html())

    def _rendered(self, name: str, **figures: Any) -> str:
        """Render ``report.html`` or a template that extends it."""
        versions = [f"{name} {_version(name)}" for name in ("skuq", "scikit-learn", "torch")]
        made = f"Made with {', '.join(versions)}, Python {platform.python_version()}"
        # Convert to plain strings, since the template would not escape Markup objects.
        return template(name).render(
            title=str(self.title),
            summary=str(self.summary),
            sections=self._sections,
            footer=f"{made} on {self.created:%Y-%m-%d %H:%M:%S} UTC.",
            **figures,
        )


@cache
def template(name: str) -> Template:
    """Load an HTML template, which escapes values, or a text template, which does not."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    is_page = name.endswith(".html")
    return Environment(
        loader=PackageLoader("skuq.reporting"),
        autoescape=is_page,
        # Each line of a plain text is a sentence, so a name must not contain a line break.
        finalize=_visible
        if is_page
        else lambda value: " ".join(shown(line, None) for line in str(value).splitlines()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)


def _visible(value: Any) -> Any:
    """Escape invisible and directional characters; the output of macros is already escaped."""
    if hasattr(value, "__html__"):
        return value
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def picture(figure: Any, alt: str = "") -> dict[str, str]:
    """Render a matplotlib Figure or a Display; return its data URL and its alternative text."""
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    if hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        with pyplot.rc_context({"svg.hashsalt": "skuq", "svg.fonttype": "path"}):  # reproducible
            figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
        encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
        return {"source": f"data:image/svg+xml;base64,{encoded}", "alt": alt}
    alt = alt or (figure.description() if hasattr(figure, "description") else "")
    if hasattr(figure, "figure_"):
        return picture(figure.figure_, alt)
    drawn = figure.plot().figure_
    try:
        return picture(drawn, alt)
    finally:
        pyplot.close(drawn)


def cells(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Format a table: texts of ``head`` and ``rows``, and whether each column is ``numeric``."""
    # Show the index as columns, unless it has no name and only numbers the rows from 0.
    if frame.index.name is not None or not frame.index.equals(pd.RangeIndex(len(frame))):
        names = ["" if name is None else name for name in frame.index.names]
        frame = frame.reset_index(names=names, allow_duplicates=True)
    dtypes = frame.infer_objects().dtypes
    return {
        "head": [  # the levels of a MultiIndex are joined
            " / ".join(filter(None, map(str, label))) if isinstance(label, tuple) else str(label)
            for label in frame.columns
        ],
        "rows": [list(map(_formatted, row)) for row in frame.itertuples(False, None)],
        "numeric": [_is_numeric(frame.iloc[:, k], dtype) for k, dtype in enumerate(dtypes)],
    }


def _is_numeric(column: pd.Series, dtype: Any) -> bool:
    if is_numeric_dtype(dtype) and not is_bool_dtype(dtype):
        return True
    return len(column) > 0 and all(
        isinstance(text, str) and (text == MISSING or NUMERAL.fullmatch(text)) for text in column
    )


def _formatted(value: Any) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return MISSING
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        if number.is_integer() and abs(number) < LONGEST_WHOLE:
            return f"{number:.0f}"
        return f"{number:#.4g}".removesuffix(".")  # 0.5000, but 1234 without a final point
    return str(value)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
