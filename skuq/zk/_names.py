"""Validation of class and column names: no two may look alike on a screen.

With two classes that look alike, a provider could split one answer into two and so choose whether
the model is right and how confident it is. The documentation of the format states the same rules,
so every verifier rejects the same names. The rules cannot detect all lookalikes ("O" and "0").
Therefore `check_present` rejects every class without a label in the auditor's data.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import IntArray
from skuq.zk._files import MAX_MESSAGE, VerificationError, printable

MAX_NAME = 200  # maximum number of characters
# Invisible code points: those with the property Default_Ignorable_Code_Point in the Unicode
# Character Database (DerivedCoreProperties.txt, unchanged since version 6). The standard library
# does not contain this property.
IGNORABLE = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
# Further invisible code points, without the property Default_Ignorable_Code_Point: the blanks of
# Braille, of musical notation, of Egyptian hieroglyphs and of the Khitan script.
BLANK = (
    (0x2800, 0x2800),
    (0x1D159, 0x1D159),
    (0x13441, 0x13446),
    (0x16FE4, 0x16FE4),
)
# Characters of these scripts may be mixed in one text. A script is identified by the first word of
# the Unicode names of its characters.
EAST_ASIAN = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "KATAKANA-HIRAGANA",
    "IDEOGRAPHIC",
    "HANGUL",
    "BOPOMOFO",
)
UNITS = "\u03bc\u03a9"  # micro and ohm, which occur in units next to other scripts
# DOTTED contains two kinds of letters. The first kind loses its dot under a combining mark, and
# DOT, a combining dot above, restores it (Soft_Dotted of PropList.txt, in NFKC). The second kind
# has no dot, and DOT turns it into a letter with a dot.
DOT, DOTTED = "\u0307", "ij\u0249\u0268\u029d\u03f3\u0456\u0458\u1d96\U0001df1a\u0131\u0237"
# Characters that look like an ASCII character: dashes and minus, quotes, a click letter, script g.
ALIKE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u02bc", "'"),
    "\u01c3": "!",
    "\u0261": "g",
}
# Greek and Cyrillic letters that look like Latin letters.
LETTERS = str.maketrans(
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396\u03bf\u03bd"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
    "\u0430\u0441\u0435\u0456\u0458\u043e\u0440\u0455\u0445\u0443",
    "ABEHIKMNOPTXYZovABCEHIJKMOPSTXYaceijopsxy",
)


def check_classes(labels: Sequence[Any]) -> NDArray[Any]:
    """Check that classes have one type and cannot be mistaken for each other; return them."""
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
        raise ValueError(
            "the classes must all be strings, all integers, all floats or all booleans"
        )
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ValueError("integer classes must be different and fit into 64 bits")
    classes = np.array(labels)
    if len(set(classes.tolist())) < len(labels):
        raise ValueError("the classes must be different strings or numbers")
    if kinds == {str}:
        check_texts(labels, "classes")
    return classes


def check_columns(names: Sequence[Any], width: int) -> tuple[str, ...]:
    """Check the names of input columns, and return them."""
    if len(names) != width or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the names of {width} columns are needed")
    check_texts(names, "columns")
    return tuple(names)


def columns_of(X: ArrayLike) -> tuple[str, ...] | None:
    """Column names of a data frame, stripped of surrounding spaces; None for an array."""
    names = getattr(X, "columns", None)
    return None if names is None else tuple(str(name).strip() for name in names)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Check that all characters are visible and that texts differ by more than case and spaces."""
    seen: dict[tuple[int, str], str] = {}
    for text in texts:
        if not 0 < len(text) <= MAX_NAME:
            raise ValueError(f"the names of {what} must have 1 to {MAX_NAME} characters")
        found = _hidden(text) or _loose_mark(text) or _mixture(text)
        if found:
            raise ValueError(
                f"the names of {what} must have visible characters of a single script, but {found}"
            )
        forms = {*enumerate(_folded(text))}
        others = [seen[form] for form in forms if form in seen]
        if others or (0, "") in forms:
            raise ValueError(
                f"the names of {what} must differ by more than case, spaces or lookalike "
                f"characters: {(*others, text)[0]!a}, {text!a}"
            )
        seen |= dict.fromkeys(forms, text)


def check_present(codes: IntArray, classes: NDArray[Any], absent: Collection[Any]) -> list[Any]:
    """Raise if a class that is not in `absent` has no label; return the absent classes in order.

    A class that only the model knows might be a lookalike of another class: the model could split
    one answer into two, each with half the confidence.
    """
    committed, expected = classes.tolist(), list(absent)
    unknown = [label for label in expected if label not in committed]
    if unknown or len(set(expected)) < len(expected):
        raise ValueError(
            "`absent_classes` must be distinct classes of the commitment, which has "
            f"{shown_classes(committed)}; got {shown_classes(expected)}."
        )
    present = np.unique(codes)
    missing = [label for code, label in enumerate(committed) if code not in present]
    wrong = [label for label in expected if label not in missing]
    if wrong:
        raise ValueError(
            "`absent_classes` must be classes without labels, but there are labels of "
            f"{shown_classes(wrong)}."
        )
    unexpected = [label for label in missing if label not in expected]
    if unexpected:
        raise VerificationError(
            f"None of your {len(codes)} labels belongs to these committed classes: "
            f"{shown_classes(unexpected)}. With a class that never occurs, a model could divide "
            "the probability of one answer between two classes, and report half the confidence. If "
            "your data lack these classes for a good reason, name them (`absent_classes`)."
        )
    return [label for label in committed if label in expected]


def shown_classes(classes: Sequence[Any]) -> str:
    r"""List classes as unambiguous text.

    Parameters
    ----------
    classes : sequence
        Classes of a `VerifiedAudit` or an `Attestation`.

    Returns
    -------
    str
        One line of at most 500 characters. Names with non-ASCII letters, which may look like
        other letters, are followed by their escape codes.

    Examples
    --------
    >>> from skuq.zk import shown_classes
    >>> print(shown_classes(["tea", "café"]))
    'tea', 'café' ('caf\xe9')
    """
    parts = [
        repr(label) if repr(label).isascii() else f"{label!r} ({label!a})" for label in classes
    ]
    return printable(", ".join(parts), MAX_MESSAGE)


def _hidden(text: str) -> str:
    """Describe the first invisible character; empty if there is none."""
    for c in text:
        ranges = (*IGNORABLE, *BLANK)
        if not c.isprintable() or any(first <= ord(c) <= last for first, last in ranges):
            return f"{text!a} has {_code(c)}, which is invisible"
    return ""


def _loose_mark(text: str) -> str:
    """Describe the first combining mark that has no letter, or is invisible on its letter."""
    letter = before = ""
    for c in unicodedata.normalize("NFD", text):
        mark = unicodedata.category(c)[0] == "M"
        if mark and not letter:
            return f"{text!a} has the mark {_code(c)} without a letter"
        if mark and before == c:
            return f"{text!a} has the mark {_code(c)} twice on one letter"
        if c == DOT and unicodedata.normalize("NFKC", letter) in DOTTED:
            return f"{text!a} has the mark {_code(c)} on {_code(letter)}, where it is invisible"
        if not mark:
            letter = c if unicodedata.category(c)[0] == "L" else ""
        before = c
    return ""


def _mixture(text: str) -> str:
    """Describe the first character whose script differs from that of the preceding letters."""
    first, script = "", ""
    for c in unicodedata.normalize("NFKC", text):
        found = _script(c)
        if found and script and found != script:
            return f"{text!a} mixes the scripts of {_code(first)} and {_code(c)}"
        first, script = (c, found) if found and not script else (first, script)
    return ""


def _script(c: str) -> str:
    """Script of a letter or mark: the first word of its name; empty for other characters."""
    if unicodedata.category(c)[0] not in "LM" or c in UNITS:
        return ""
    word = unicodedata.name(c, "UNKNOWN").split()[0]
    if word == "COMBINING":
        return ""
    return "EAST ASIAN" if word in EAST_ASIAN else word


def _code(c: str) -> str:
    return f"U+{ord(c):04X} ({unicodedata.name(c, 'without a name')})"


def _folded(text: str) -> list[str]:
    """Normalised forms for comparing names: with original letters, and with Latin lookalikes."""
    plain, forms = unicodedata.normalize("NFKD", text), []
    for written in (plain, plain.translate(LETTERS)):
        once = unicodedata.normalize("NFKC", written.casefold())
        forms.append(" ".join("".join(map(_lookalike, once)).split()))
    return forms


def _lookalike(c: str) -> str:
    """ASCII character that looks like `c` or has the same digit value; else `c` itself."""
    digit = unicodedata.decimal(c, None)
    return ALIKE.get(c, c) if digit is None else str(digit)
