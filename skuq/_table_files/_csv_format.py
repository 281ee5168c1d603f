"""Detection of a CSV file's separator, decimal mark and encoding from its first rows.

A format is assumed only if the rows are unambiguous. An ambiguous file raises an error that names
the option to set.
"""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas as pd

from skuq.imports import shown
from skuq.written_numbers import MISSING_WORDS, common_mark

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
SAMPLE, SAMPLE_ROWS = 2**20, 1000  # bytes and rows read to detect the format
MOST_ABOVE = 100  # number of first lines in which the header is searched for
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Of single-byte encodings, only the Western European one is detected, by its letters and marks.
# Three successive non-ASCII letters suggest Greek, Cyrillic or an Asian script.
WESTERN = "cp1252"
MARKS = {*"€£“”«»…§°²³\u2018\u2019\u2013\u2014"}
NOT_WESTERN = {*"ªºƒˆÐÞðþ"}
OTHER_SCRIPT = re.compile(rb"[\x80-\xff]{3}")
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)  # first line of files for Excel
NUMBERS = {mark: re.compile(rf"[+-]?(\d*[{mark}])?\d+([eE][+-]?\d+)?") for mark in ",."}
GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}([{mark}]\d{{3}})+") for mark in ",."}


class TableFileError(ValueError):
    """A file cannot be read or written as a table; the message says what to change."""

    def __init__(self, message: object):
        super().__init__(shown(message, None))


class CsvFormat(NamedTuple):
    """Format of a CSV file; attributes that are None are detected from the first rows."""

    sep: str | None = None
    decimal: str | None = None  # "." or ","
    encoding: str | None = None  # Python's name of the encoding
    skip: int | None = None  # number of lines above the header


class Sniffed(NamedTuple):
    """Detected format and structure of a CSV file."""

    format: CsvFormat  # with every attribute set
    mark: str  # decimal mark; empty if it was neither passed nor detected
    header: list[str]
    note: str  # sentence on an unusual format, or empty
    codes: list[int]  # positions of the columns with values such as 007, which may be codes
    n_skipped: int  # number of lines above the header


def sniff(path: Path, stream: BinaryIO, given: CsvFormat) -> Sniffed:
    """Detect the format of a file from its first rows; `given` overrides detected attributes."""
    if given.sep is not None and (len(given.sep) != 1 or given.sep == given.decimal):
        raise TableFileError(
            f"The separator must be one character other than the decimal mark, got {given.sep!r}."
        )
    if given.decimal not in (None, ".", ","):
        raise TableFileError(f"The decimal mark must be '.' or ',', got {given.decimal!r}.")
    sample = stream.read(SAMPLE)
    is_cut = len(sample) == SAMPLE
    if not sample.strip():
        raise TableFileError(f"{path} is empty.")
    encoding = given.encoding or _encoding(path, sample)
    if sample.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"  # keep the byte order mark out of the first column name
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=not is_cut)
    except LookupError as error:
        raise TableFileError(
            f"Unknown encoding {encoding!r}; state that of {path} (`encoding`), such as utf-8."
        ) from error
    except UnicodeDecodeError as error:
        raise not_encoded(path, encoding) from error
    named = SEPARATOR_LINE.match(text)
    if named is not None:
        text = text[named.end() :]
    stated = given.sep or (named[1] if named else None)
    seps = [*SEPARATORS] if stated is None else [stated]
    n_above = _lines_above(text, seps) if given.skip is None else given.skip
    text = "".join(islice(io.StringIO(text, newline=""), n_above, None))
    if given.sep == " ":  # lines may begin with blanks, as in columns of fixed width
        text = "\n".join(map(str.strip, text.splitlines()))
    sep = stated or _separator(path, text, is_cut)
    try:
        header, *rows = _rows(text, sep, is_cut) or [[]]
    except csv.Error as error:
        raise TableFileError(
            f"{path} cannot be read as CSV: {error}; check for unclosed quotation marks."
        ) from error
    if not rows and not is_cut:
        raise TableFileError(f"{path} has no rows.")
    n_above += int(named is not None)
    if rows and all(len(row) == len(header) + 1 and not row[-1].strip() for row in rows):
        header.append("")  # every row ends with a separator
    elif any(len(row) > len(header) for row in rows):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
        wide = next(row for row in reader if len(row) > len(header))
        raise uneven(path, n_above + reader.line_num, len(wide), len(header))
    mark = given.decimal or _decimal(path, rows, sep)
    # With semicolons, assume a decimal comma. If a later row has a number with a point, such as
    # 1.234, its column is read as text, and other values show if the point separates thousands.
    usual = "," if sep == ";" else "."
    found = CsvFormat(sep, given.decimal or (usual if sep == "," else mark or usual), encoding)
    note = _note(path, found, mark, text) if found[:3] != given[:3] else ""
    if given.skip is None and n_above > int(named is not None):
        note += f"{' ' if note else ''}The header of {path.name} was read from line {n_above + 1}."
    return Sniffed(found, mark, header, note, _codes(rows), n_above)


def _lines_above(text: str, seps: Sequence[str]) -> int:
    """Count the lines with a title or comments above the header; return 0 in case of doubt."""
    lines = [*islice(io.StringIO(text, newline=""), MOST_ABOVE)]
    found = []
    for sep in seps:
        rows = [[*map(str.strip, line.split(sep))] for line in lines]
        for k, row in enumerate(rows):
            n_filled, is_comment = len([*filter(None, row)]), row[0].startswith("# ")
            is_names = n_filled > 1 and not any(map(NUMBERS["."].fullmatch, row))
            if is_names and not is_comment:
                below = [each for each in rows[k + 1 :] if any(each)]
                has_numbers = any(NUMBERS["."].match(v) for each in below for v in each)
                if has_numbers and all(len(each) >= len(row) for each in below):
                    found.append(k)
                break
            # Spreadsheets may write separators after a title.
            if not is_comment and n_filled and not (row[0] and n_filled == 1 and len(row) != 2):
                break
    return min(found, default=0)


def uneven(path: Path, line: int, n_values: int, n_names: int) -> TableFileError:
    return TableFileError(
        f"{path} has {n_values} values in line {line}, but {n_names} names. Check separators "
        f"and quotation marks; if line {line} has the names, pass `skip={line - 1}`."
    )


def _encoding(path: Path, sample: bytes) -> str:
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if sample.startswith(mark):
            return encoding
    if b"\0" in sample:
        raise TableFileError(
            f"{path} is not a text file; save the table as CSV in UTF-8 or as Parquet."
        )
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(sample)
        return "utf-8"
    beyond = {letter for letter in sample.decode(WESTERN, errors="replace") if ord(letter) > 127}
    letters = {*filter(str.isalpha, beyond)} - NOT_WESTERN
    if beyond <= letters | MARKS and not OTHER_SCRIPT.search(sample):
        return WESTERN
    raise not_encoded(path, "UTF-8")


def not_encoded(path: Path, encoding: str) -> TableFileError:
    return TableFileError(
        f"{path} is not encoded as {encoding}; state its encoding (`encoding`), such as "
        f"{WESTERN if encoding.lower().startswith('utf-8') else 'utf-8'}, or save it as CSV in "
        "UTF-8."
    )


def _rows(text: str, sep: str, is_cut: bool) -> list[list[str]]:
    """Parse the first rows that are not blank, except a last row that the sample may have cut."""
    options: Any = {"delimiter": sep, "skipinitialspace": sep == " "}
    reader = csv.reader(io.StringIO(text, newline=""), **options)
    filled = (row for row in reader if len(row) > 1 or "".join(row).strip())
    rows = list(islice(filled, SAMPLE_ROWS + 1))
    return rows[:-1] if is_cut and 1 < len(rows) <= SAMPLE_ROWS else rows


def _separator(path: Path, text: str, is_cut: bool) -> str:
    widths = {}
    for sep in SEPARATORS:
        with suppress(csv.Error):  # raised if quotation marks are invalid with this separator
            widths[sep] = [*map(len, _rows(text, sep, is_cut))]
    dividing = [sep for sep, width in widths.items() if width and width[0] > 1]
    fitting = [sep for sep in dividing if len({*widths[sep]}) == 1]
    if len(fitting) == 1 or len(dividing) < 2:
        return [*fitting, *dividing, ","][0]
    ways = [f"at {SEPARATORS[sep]} into {widths[sep][0]} columns" for sep in fitting or dividing]
    raise TableFileError(f"{path} can be split {' or '.join(ways)}; state the separator (`sep`).")


def _decimal(path: Path, rows: list[list[str]], sep: str) -> str:
    """Detect the decimal mark of the numeric columns; return "" if no number has decimals."""
    if sep == ",":
        quoted = [column for column in _columns(rows) if any("," in value for value in column)]
        for column in _columns(rows) if quoted else []:
            values = [*filter(None, column)]
            if any("." in v for v in values) and all(map(NUMBERS["."].fullmatch, values)):
                return ""  # some column has decimal points, so commas are not decimal marks
        return common_mark(pd.Series(each, dtype=object) for each in quoted)
    marked: dict[str, list[str]] = {",": [], ".": []}
    for column in _columns(rows):
        values = [value for value in column if value]
        for mark, form in NUMBERS.items():
            if all(map(form.fullmatch, values)):
                marked[mark] += [value for value in values if mark in value]
    commas, points = marked[","], marked["."]
    if commas and points:
        raise TableFileError(
            f"{path} has numbers with a comma, such as {commas[0]!r}, and with a point, such as "
            f"{points[0]!r}; state the decimal mark (`decimal`)."
        )
    # A point may separate thousands only in countries whose CSV files have semicolons.
    mark, numbers = (",", commas) if commas else (".", points if sep == ";" else [])
    if numbers and all(map(GROUPED[mark].fullmatch, numbers)):
        raise TableFileError(
            f"{path} has numbers such as {numbers[0]!r}, whose comma or point may be a decimal "
            "mark or a thousands separator; state the decimal mark (`decimal`)."
        )
    if commas or points:
        return mark
    # Otherwise infer the mark from numbers with units or thousands separators, if columns agree.
    return common_mark(pd.Series(column, dtype=object) for column in _columns(rows))


def _codes(rows: list[list[str]]) -> list[int]:
    found = []
    for position, column in enumerate(_columns(rows)):
        values = {*column} - MISSING_WORDS
        if all(map(str.isdecimal, values)) and any(len(v) > 1 and v[0] == "0" for v in values):
            found.append(position)
    return found


def _columns(rows: list[list[str]]) -> list[tuple[str, ...]]:
    return list(zip(*(map(str.strip, row) for row in rows), strict=False))


def _note(path: Path, found: CsvFormat, mark: str, text: str) -> str:
    """Describe an unusual format, with an example word that would reveal a wrong encoding."""
    sep, _, encoding, _ = found
    said = [f"{SEPARATORS.get(str(sep), repr(sep))} as separator"] if sep != "," else []
    said += ["a decimal comma"] if mark == "," else []
    if encoding == "utf-8-sig":
        said.append("a byte-order mark, as Excel writes it")
    elif encoding != "utf-8":
        word = next((w for w in re.findall(r"\w+", text) if not w.isascii()), "")
        said.append(f"the encoding {encoding}" + (f" (it contains {word!r})" if word else ""))
    joined = " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))
    return f"{path.name} was read with {joined}." if said else ""
