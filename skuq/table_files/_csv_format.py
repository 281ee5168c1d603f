"""How a CSV file is written: separator, decimal mark and encoding, found from its first rows.

Only what the rows leave no doubt about is assumed. Whatever else could be meant is an error that
names what to state.
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
SAMPLE = 2**20  # bytes from which a format is found
SAMPLE_ROWS = 1000
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Of single-byte encodings only the Western European one is assumed. Its letters stand among ASCII
# ones: three in a row are rather Greek, Cyrillic or an Asian script.
WESTERN = "cp1252"
# All but Icelandic letters, the euro and the pound, quotation marks, dashes, and a few signs.
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
)  # which Excel reads, and may write, above the header
DIGITS, LEADING_ZERO = re.compile(r"[0-9]+"), re.compile(r"0[0-9]+")
POINT_IN_ROW = re.compile(r"(?<=[;\n\"])[+-]?\d*\.\d+(?:\.\d{3})*(?=[;\r\n\"])")
GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}([{mark}]\d{{3}})+") for mark in ",."}


class TableFileError(ValueError):
    """The file cannot be read as a table; the message says what to change."""


class CsvFormat(NamedTuple):
    """How a CSV file is written.

    Attributes
    ----------
    sep : str or None
        One character between values.
    decimal : str or None
        Mark before the decimals of a number, ``"."`` or ``","``.
    encoding : str or None
        Encoding of the text, by a name that Python knows.

    Notes
    -----
    What is None is found from the first rows of the file.
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None


PLAIN = CsvFormat(",", ".", "utf-8")


class Sniffed(NamedTuple):
    """How a file is written, and what its first rows show."""

    format: CsvFormat  # without gaps
    mark: str  # the decimal mark, if the rows show it, or it is given; else empty
    header: list[str]
    note: str  # a remark if it is not plain
    codes: list[int]  # columns of digits of which some begin with a zero, which numbers would lose
    n_skipped: int  # lines above the header


def sniff(path: Path, stream: BinaryIO, given: CsvFormat) -> Sniffed:
    """Find the format of a file from its first rows, and check it against what is given."""
    _check_given(given)
    sample, is_cut = _sample(stream)
    if not sample.strip():
        raise TableFileError(f"{path} is empty.")
    encoding = given.encoding or _encoding(path, sample)
    if sample.startswith(codecs.BOM_UTF8) and codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # whoever says UTF-8 does not want the mark in the first name
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
            f"There is no encoding {given.encoding!r}; common ones are utf-8, cp1252 and latin-1."
        ) from error


def _sample(stream: BinaryIO) -> tuple[bytes, bool]:
    """First bytes of a file, with more than one line if there is one, and whether more follow."""
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
            f"{path} is not a text file; save the table as CSV in UTF-8, or as Parquet."
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
    """An error about text that is not what its encoding says."""
    return TableFileError(
        f"{path} is not encoded as {encoding}; state its encoding (`encoding`), such as "
        f"{WESTERN if encoding.startswith('utf-8') else 'utf-8'}, or save it as CSV in UTF-8."
    )


def _rows(text: str, sep: str, is_cut: bool) -> list[list[str]]:
    """First rows that are not blank; the last one of a sample may have been cut."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
    filled = (row for row in reader if len(row) > 1 or "".join(row).strip())
    rows = list(islice(filled, SAMPLE_ROWS + 1))
    return rows[:-1] if is_cut and 1 < len(rows) <= SAMPLE_ROWS else rows


def _header_and_rows(path: Path, text: str, sep: str, is_cut: bool) -> list[list[str]]:
    try:
        return _rows(text, sep, is_cut)
    except csv.Error as error:
        raise TableFileError(
            f"{path} cannot be read as CSV: {error}; is a quotation mark not closed? (No value may "
            f"be longer than {csv.field_size_limit():,} characters.)"
        ) from error


def _separator(path: Path, text: str, is_cut: bool) -> str:
    """The separator that divides all rows into as many values as there are names."""
    divided = {}
    for sep in SEPARATORS:
        with suppress(csv.Error):  # another separator may make sense of the quotation marks
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
            f"{path} may be divided {' or '.join(ways)}; state the separator (`sep`)."
        )
    ((sep, (header, *rows)),) = divided.items()
    others = [other for other in SEPARATORS if other != sep]
    for number, row in enumerate(rows, start=1):
        if len(row) == 1 and any(row[0].count(other) == len(header) - 1 for other in others):
            raise TableFileError(
                f"{path} mixes separators: its header is divided at {SEPARATORS[sep]}, but row "
                f"{number} is {row[0]!r}."
            )
    return sep


def _has_bars_in_text(by_comma: list[list[str]], by_bar: list[list[str]]) -> bool:
    """Whether bars stand in texts, such as ids, of rows that commas divide into more values.

    Between whole numbers, as in 1,5|2,5, commas may be decimal marks.
    """
    cells = [cell for row in by_comma[1:] for cell in row if "|" in cell]
    is_text = not all(BETWEEN_NUMBERS.fullmatch(cell) for cell in cells)
    return is_text and len(by_comma[0]) > len(by_bar[0])


def _decimal(path: Path, rows: list[list[str]], sep: str) -> str:
    """The decimal mark of the columns that hold numbers, "" if they show none."""
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
    # A point that divides thousands comes with a semicolon as separator, from the same countries.
    mark, numbers = (",", commas) if commas else (".", points if sep == ";" else [])
    if numbers and all(GROUPED[mark].fullmatch(number) for number in numbers):
        raise _undecided(path, numbers[0])
    return mark if commas or points else _decimal_in_text(rows)


def _decimal_in_text(rows: list[list[str]]) -> str:
    """The decimal mark of numbers with units or divided thousands, if all have the same one."""
    formats = [
        number_format(pd.Series(column, dtype=object), "")
        for column in _columns(rows)
        if any("," in value or "." in value for value in column)
    ]
    marks = {format.decimal for format in formats if format}
    return marks.pop() if len(marks) == 1 else ""


def _codes(rows: list[list[str]]) -> list[int]:
    """Positions of the columns that hold codes with leading zeros."""
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
        f"{path} has numbers such as {number!r}, whose mark may be a decimal one or divide "
        "thousands; state the decimal mark (`decimal`)."
    )


def _texts(sample: bytes, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """The text of a file, of which a sample is read already, in parts of lines between ends."""
    decoder, rest = codecs.getincrementaldecoder(encoding)("replace"), ""
    for block in chain([sample], iter(partial(stream.read, SAMPLE), b"")):
        lines, end, rest = (rest + decoder.decode(block)).rpartition("\n")
        yield f"\n{lines}{end}"
    yield f"\n{rest}\n"


def _check_later_points(path: Path, texts: Iterable[str]) -> None:
    """Refuse a file of which some row, however late, has a first point that divides thousands.

    Files are often sorted by size: the first rows need not have a number of four digits.
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
            f"{path} has a single column, {header[0]!r}, if it is divided at {name}; it needs "
            "another separator."
        )


def _note(path: Path, found: CsvFormat, sample: bytes, text: str) -> str:
    """A sentence on what is not plain; with an example, by which a wrong encoding shows."""
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
        parts[2] = f"the encoding {encoding}" + (f" (it holds {word!r})" if word else "")
    said = [part for part in parts if part]
    return f"{path.name} was read with {_joined(said)}." if said else ""


def _joined(parts: list[str]) -> str:
    return " and ".join(filter(None, chain([", ".join(parts[:-1])], parts[-1:])))
