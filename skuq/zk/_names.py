"""Checks of the names of classes and columns, and of classes without labels.

A provider could commit to two classes whose names look alike. The model could then predict either
of them, and divide the probability between them, to choose whether an answer counts as correct and
how confident it is. No rule for names detects all lookalikes ("O" and "0"). Therefore
`check_present` also rejects every class without a label in the auditor's data.
"""

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import IntArray
from skuq.imports import shown
from skuq.zk._files import MAX_MESSAGE, VerificationError

MAX_NAME = 200  # maximum number of characters in the name of a class or column
# Characters that `str.isprintable` accepts although they are invisible: those with the property
# Default_Ignorable_Code_Point of Unicode, and the blank of Braille.
INVISIBLE = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
INVISIBLE |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
# A script is identified by the first word of the Unicode names of its characters. A name may mix
# East Asian scripts with each other, and any script with the letters of the units micro and ohm.
EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "HANGUL", "BOPOMOFO"}
EAST_ASIAN |= {"KATAKANA-HIRAGANA"}
UNITS = "\u03bc\u03a9"


def check_classes(labels: Sequence[Any]) -> NDArray[Any]:
    """Check that class labels have a single type and differ; return them as an array."""
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
        raise ValueError("the classes must be strings, integers, floats or booleans of one type")
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ValueError("integer classes must be different and fit into 64 bits")
    classes = np.array(labels)
    if len(set(classes.tolist())) < len(labels):
        raise ValueError("the classes must be different strings or numbers")
    if kinds == {str}:
        check_texts(labels, "classes")
    return classes


def check_columns(names: Sequence[Any], width: int) -> tuple[str, ...]:
    if len(names) != width or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the names of {width} columns are needed")
    check_texts(names, "columns")
    return tuple(names)


def columns_of(X: ArrayLike) -> tuple[str, ...] | None:
    """Return column names of a data frame, without surrounding spaces; None for an array."""
    names = getattr(X, "columns", None)
    return None if names is None else tuple(str(name).strip() for name in names)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Raise if a name is invisible, mixes scripts, or equals another up to case and spaces."""
    seen: dict[str, str] = {}
    for text in texts:
        fault = _fault(text)
        if fault:
            raise ValueError(f"{what} need visible names of a single script, but {text!a} {fault}")
        folded = " ".join(unicodedata.normalize("NFKC", text.casefold()).split())
        if folded in seen:
            raise ValueError(
                f"{what} must differ by more than case and spaces: {seen[folded]!a}, {text!a}"
            )
        seen[folded] = text


def _fault(text: str) -> str:
    if not text.strip() or len(text) > MAX_NAME:
        return f"does not have 1 to {MAX_NAME} characters"
    before = ""
    for c in text:
        kind = unicodedata.category(c)[0]
        if not c.isprintable() or ord(c) in INVISIBLE:
            return f"has {_code(c)}, which is invisible"
        if kind == "M" and before not in ("L", "M"):
            return f"has the mark {_code(c)} without a letter"
        before = kind
    normal = unicodedata.normalize("NFKC", text)
    if text != normal:
        return f"is not in the normal form NFKC, which is {normal!a}"
    first = {_script(c): c for c in reversed(text) if _script(c)}
    if len(first) > 1:
        return f"mixes the scripts of {' and '.join(map(_code, first.values()))}"
    return ""


def _script(c: str) -> str:
    """Return the script of a letter or mark; "" for a character that fits with any script."""
    if unicodedata.category(c)[0] not in "LM" or c in UNITS:
        return ""
    word = unicodedata.name(c, "UNKNOWN").split()[0]
    return "" if word == "COMBINING" else "EAST ASIAN" if word in EAST_ASIAN else word


def _code(c: str) -> str:
    return f"U+{ord(c):04X} ({unicodedata.name(c, 'without a name')})"


def check_present(codes: IntArray, classes: NDArray[Any], absent: Collection[Any]) -> list[Any]:
    """Raise if a class that is not in `absent` has no label; return the absent classes in order."""
    missing = np.delete(classes, np.unique(codes)).tolist()
    expected = [label for label in missing if label in absent]
    if len(expected) != len(absent):
        raise ValueError(
            "`absent_classes` must be distinct classes of the commitment without labels, which are "
            f"{shown_classes(missing) or 'none'}; got {shown_classes(list(absent))}."
        )
    unexpected = [label for label in missing if label not in expected]
    if unexpected:
        raise VerificationError(
            f"None of your {len(codes)} labels belongs to these committed classes: "
            f"{shown_classes(unexpected)}. With a class that never occurs, a model could divide "
            "the probability of one answer between two classes, and report half the confidence. If "
            "your data lack these classes for a good reason, name them (`absent_classes`)."
        )
    return expected


def shown_classes(classes: Sequence[Any]) -> str:
    """List classes in one line; names that are not ASCII are followed by their escape codes."""
    parts = [repr(c) if repr(c).isascii() else f"{c!r} ({c!a})" for c in classes]
    return shown(", ".join(parts), MAX_MESSAGE)
