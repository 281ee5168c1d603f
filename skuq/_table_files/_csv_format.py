"""Detection of a CSV file's separator, decimal mark and encoding from its first rows.

A format is assumed only if the rows are unambiguous. An ambiguous file raises an error that names
the option to set.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pandas as pd

from skuq.written_numbers import MISSING_WORDS, number_format

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
BETWEEN_NUMBERS = re.compile(r"\s*\d+\s*\|\s*[-+]?\d+\s*")
SAMPLE = 2**20  # bytes read to detect the format
SAMPLE_ROWS = 1000
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Of all single-byte encodings, only the Western European one is detected. In Western European
# texts, non-ASCII letters rarely follow each other; three successive ones suggest Greek, Cyrillic
# or an Asian script.
WESTERN = "cp1252"
# Currency signs, quotation marks, dashes, a few symbols, and all letters except the Icelandic ones.
WESTERN_CHARACTERS = set(
    (
        bytes(set(range(0xC0, 0x100)) - set(b"\xd0\xd7\xde\xf0\xf7\xfe"))
        + bytes.fromhex("8a8c8e9a9c9e9f 80a3 91929394abbb 9697 85a7b0b2b3b5")
    ).decode(WESTERN)
)
OTHER_SCRIPT = re.compile(rb"[\x80-\xff]{3}")

COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
WHOLE_NUMBER = re.compile(r"[+-]?\d+([eE][+-]?\d+)?")
SEPARATOR_LINE = re.compile(
    r'"?sep=(.)"?\r?\n', re.IGNORECASE
)  # line above the header, in which Excel states the separator
DIGITS, LEADING_ZERO = re.compile(r"[0-9]+"), re.compile(r"0[0-9]+")
POINT_IN_ROW = re.compile(r"(?<=[;\n\"])[+-]?\d*\.\d+(?:\.\d{3})*(?=[;\r\n\"])")
GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}([{mark}]\d{{3}})+") for mark in ",."}


class TableFileError(ValueError):
    """A file cannot be read or written as a table; the message says what to change."""


class CsvFormat(NamedTuple):
    """Format of a CSV file.

    Attributes
    ----------
    sep : str or None
        Separator of values, one character.
    decimal : str or None
        Decimal mark, ``"."`` or ``","``.
    encoding : str or None
        Encoding of the text, by its name in Python.

    Notes
    -----
    Attributes that are None are detected from the first rows of the file.
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None


PLAIN = CsvFormat(",", ".", "utf-8")


class Sniffed(NamedTuple):
    """Detected format and structure of a CSV file."""

    format: CsvFormat  # with every attribute set
    mark: str  # decimal mark; empty if it was neither passed nor detected
    header: list[str]
    note: str  # sentence about an unusual format; empty if the format is usual
    codes: list[int]  # positions of the columns with values such as 007, which may be codes
    n_skipped: int  # number of lines above the header


def sniff(path: Path, stream: BinaryIO, given: CsvFormat) -> Sniffed:
    """Detect the format of a file from its first rows; `given` overrides detected attributes."""
    _check_given(given)
    sample, is_cut = _sample(stream)
    if not sample.strip():
        raise TableFileError(f"{path} is empty.")
    encoding = given.encoding or _encoding(path, sample)
    if sample.startswith(codecs.BOM_UTF8) and codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # keep the byte order mark out of the first column name
    text = _decoded(path, sample, encoding, is_cut)
    named = SEPARATOR_LINE.match(text)
    if named is not None:
        text = text[named.end() :]
    sep = given.sep or (named[1] if named else _separator(path, text, is_cut))
    header, *rows = _header_and_rows(path, text, sep, is_cut)
    mark = given.decimal or _decimal(path, rows, sep)
    decimal = mark or "."
    if given.decimal is None and sep == ";" and decimal == ".":
        _check_later_points(path, _texts(sample, stream, encoding))
    _check_width(path, header, sep)
    if not rows and not is_cut:
        raise TableFileError(f"{path} has no rows.")
    found = CsvFormat(sep, decimal, encoding)
    note = "" if found == given else _note(path, found, sample, text)
    return Sniffed(found, mark, header, note, _codes(rows), int(named is not None))


def _check_given(given: CsvFormat) -> None:
    if given.sep is not None and len(given.sep) != 1:
        raise TableFileError(f"The separator must be one character, got {given.sep!r}.")
    if given.decimal not in (None, ".", ","):
        raise TableFileError(f"The decimal mark must be '.' or ',', got {given.decimal!r}.")
    if given.decimal is not None and given.decimal == given.sep:
        raise TableFileError(f"Separator and decimal mark must differ, got {given.sep!r} as both.")
    try:
        codecs.lookup(given.encoding or "utf-8")
    except LookupError as error:
        raise TableFileError(
            f"Unknown encoding {given.encoding!r}; common encodings are utf-8, cp1252 and latin-1."
        ) from error


def _sample(stream: BinaryIO) -> tuple[bytes, bool]:
    """First bytes of a file, at least two lines if possible; and whether the file continues."""
    sample = stream.read(SAMPLE)
    while len(sample) % SAMPLE == 0 and sample.count(b"\n") + sample.count(b"\r") < 2:
        more = stream.read(SAMPLE)
        if not more:
            return sample, False
        sample += more
    return sample, len(sample) % SAMPLE == 0 and len(sample) > 0


def _encoding(path: Path, sample: bytes) -> str:
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if sample.startswith(mark):
            return encoding
    if b"\0" in sample:
        raise TableFileError(
            f"{path} is not a text file; save the table as CSV in UTF-8 or as Parquet."
        )
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
        return "utf-8"
    except UnicodeDecodeError:
        pass
    text = sample.decode(WESTERN, errors="replace")
    beyond = {character for character in text if ord(character) > 127}
    if beyond <= WESTERN_CHARACTERS and not OTHER_SCRIPT.search(sample):
        return WESTERN
    raise TableFileError(
        f"{path} is not encoded as UTF-8; state its encoding (`encoding`), or save it as CSV in "
        "UTF-8."
    )


def _decoded(path: Path, sample: bytes, encoding: str, is_cut: bool) -> str:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample, final=not is_cut)
    except UnicodeDecodeError as error:
        raise not_encoded(path, encoding) from error


def not_encoded(path: Path, encoding: str) -> TableFileError:
    """Return the error for a file that cannot be decoded with an encoding."""
    return TableFileError(
        f"{path} is not encoded as {encoding}; state its encoding (`encoding`), such as "
        f"{WESTERN if encoding.startswith('utf-8') else 'utf-8'}, or save it as CSV in UTF-8."
    )


def _rows(text: str, sep: str, is_cut: bool) -> list[list[str]]:
    """First rows that are not blank, without the last row of a sample, which may be cut off."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
    filled = (row for row in reader if len(row) > 1 or "".join(row).strip())
    rows = list(islice(filled, SAMPLE_ROWS + 1))
    return rows[:-1] if is_cut and 1 < len(rows) <= SAMPLE_ROWS else rows


def _header_and_rows(path: Path, text: str, sep: str, is_cut: bool) -> list[list[str]]:
    try:
        return _rows(text, sep, is_cut)
    except csv.Error as error:
        raise TableFileError(
            f"{path} cannot be read as CSV: {error}; check for unclosed quotation marks. (Values "
            f"may have up to {csv.field_size_limit():,} characters.)"
        ) from error


def _separator(path: Path, text: str, is_cut: bool) -> str:
    """Detect the separator that splits every row into as many values as the header has names."""
    divided = {}
    for sep in SEPARATORS:
        with suppress(csv.Error):  # raised if quotation marks are invalid with this separator
            rows = _rows(text, sep, is_cut)
            if len(rows[0]) > 1:
                divided[sep] = rows
    fitting = [
        sep
        for sep, (header, *rows) in divided.items()
        if all(len(row) == len(header) for row in rows)
    ]
    if len(fitting) == 1 or not divided:
        return next(iter(fitting), ",")
    if fitting == [",", "|"] and _has_bars_in_text(divided[","], divided["|"]):
        return ","
    if len(divided) > 1:
        ways = [
            f"at {SEPARATORS[sep]} into {len(divided[sep][0])} columns"
            for sep in fitting or divided
        ]
        raise TableFileError(
            f"{path} can be split {' or '.join(ways)}; state the separator (`sep`)."
        )
    ((sep, (header, *rows)),) = divided.items()
    others = [other for other in SEPARATORS if other != sep]
    for number, row in enumerate(rows, start=1):
        if len(row) == 1 and any(row[0].count(other) == len(header) - 1 for other in others):
            raise TableFileError(
                f"{path} mixes separators: its header is split at {SEPARATORS[sep]}, but row "
                f"{number} is {row[0]!r}; use one separator in all rows."
            )
    return sep


def _has_bars_in_text(by_comma: list[list[str]], by_bar: list[list[str]]) -> bool:
    """Whether vertical bars are part of text values, such as ids, and commas separate the values.

    False if all bars are between integers: in 1,5|2,5 the commas may be decimal marks.
    """
    cells = [cell for row in by_comma[1:] for cell in row if "|" in cell]
    is_text = not all(BETWEEN_NUMBERS.fullmatch(cell) for cell in cells)
    return is_text and len(by_comma[0]) > len(by_bar[0])


def _decimal(path: Path, rows: list[list[str]], sep: str) -> str:
    """Decimal mark of the numeric columns; "" if no number has decimals."""
    if sep == ",":
        return "."
    marked: dict[str, list[str]] = {",": [], ".": []}
    for column in _columns(rows):
        values = [value.strip() for value in column if value.strip()]
        forms = {",": COMMA_NUMBER, ".": POINT_NUMBER}
        for mark, form in forms.items():
            found = [value for value in values if form.fullmatch(value)]
            if found and all(form.fullmatch(v) or WHOLE_NUMBER.fullmatch(v) for v in values):
                marked[mark] += found
    commas, points = marked[","], marked["."]
    if commas and points:
        raise TableFileError(
            f"{path} has numbers with a comma, such as {commas[0]!r}, and with a point, such as "
            f"{points[0]!r}; state the decimal mark (`decimal`)."
        )
    # A point may separate thousands only if values are separated by semicolons, as in CSV files
    # from countries with this thousands separator.
    mark, numbers = (",", commas) if commas else (".", points if sep == ";" else [])
    if numbers and all(GROUPED[mark].fullmatch(number) for number in numbers):
        raise _undecided(path, numbers[0])
    return mark if commas or points else _decimal_in_text(rows)


def _decimal_in_text(rows: list[list[str]]) -> str:
    """Decimal mark of numbers with units or thousands separators; "" unless all agree."""
    formats = [
        number_format(pd.Series(column, dtype=object), "")
        for column in _columns(rows)
        if any("," in value or "." in value for value in column)
    ]
    marks = {format.decimal for format in formats if format}
    return marks.pop() if len(marks) == 1 else ""


def _codes(rows: list[list[str]]) -> list[int]:
    """Positions of the columns of codes with leading zeros."""
    found = []
    for position, column in enumerate(_columns(rows)):
        values = [value.strip() for value in column if value.strip() not in MISSING_WORDS]
        if all(DIGITS.fullmatch(v) for v in values) and any(
            LEADING_ZERO.fullmatch(v) for v in values
        ):
            found.append(position)
    return found


def _undecided(path: Path, number: str) -> TableFileError:
    return TableFileError(
        f"{path} has numbers such as {number!r}, whose comma or point may be a decimal mark or a "
        "thousands separator; state the decimal mark (`decimal`)."
    )


def _texts(sample: bytes, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield the text of a file in blocks of whole lines; `sample` has already been read."""
    decoder, rest = codecs.getincrementaldecoder(encoding)("replace"), ""
    for block in chain([sample], iter(partial(stream.read, SAMPLE), b"")):
        lines, end, rest = (rest + decoder.decode(block)).rpartition("\n")
        yield f"\n{lines}{end}"
    yield f"\n{rest}\n"


def _check_later_points(path: Path, texts: Iterable[str]) -> None:
    """Refuse a file if points in any of its rows may be thousands separators.

    The whole file is searched until a number shows that points are decimal marks. The first rows
    are not enough: in a file sorted by size they may contain no numbers of four digits.
    """
    grouped = ""
    for text in texts:
        for match in POINT_IN_ROW.finditer(text):
            if not GROUPED["."].fullmatch(match[0]):
                return
            grouped = grouped or match[0]
    if grouped:
        raise _undecided(path, grouped)


def _columns(rows: list[list[str]]) -> Iterable[tuple[str, ...]]:
    if not rows:
        return []
    width = min(map(len, rows))
    return zip(*(row[:width] for row in rows), strict=True)


def _check_width(path: Path, header: list[str], sep: str) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in SEPARATORS):
        name = SEPARATORS.get(sep, repr(sep))
        raise TableFileError(
            f"{path} has a single column, {header[0]!r}, if it is split at {name}; state a "
            "different separator (`sep`)."
        )


def _note(path: Path, found: CsvFormat, sample: bytes, text: str) -> str:
    """Sentence on an unusual format, with an example word that would reveal a wrong encoding."""
    sep, decimal, encoding = found
    parts = [
        f"{SEPARATORS.get(str(sep), repr(sep))} as separator" if sep != "," else "",
        "a decimal comma" if decimal == "," else "",
        "",
    ]
    if encoding == "utf-8-sig":
        parts[2] = "a byte-order mark, as Excel writes it"
    elif encoding != "utf-8":
        word = next((w for w in re.findall(r"\w+", text) if not w.isascii()), "")
        parts[2] = f"the encoding {encoding}" + (f" (it contains {word!r})" if word else "")
    said = [part for part in parts if part]
    return f"{path.name} was read with {_joined(said)}." if said else ""


def _joined(parts: list[str]) -> str:
    return " and ".join(filter(None, chain([", ".join(parts[:-1])], parts[-1:])))
