"""Names of classes and columns, none of which can be mistaken for another on a screen.

Two classes of one look would let a model be right or wrong as its provider likes, and be as sure of
each as the provider likes. The rules are those of the page on the format, word for word, so that
every verifier refuses the same names. They cannot find all twins ("O" and "0"): `check_present`
refuses a class that none of the auditor's labels has, whatever it looks like.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import IntArray
from skuq.zk._files import MAX_MESSAGE, VerificationError, printable

MAX_NAME = 200  # characters
# Code points that are not drawn: Default_Ignorable_Code_Point of the Unicode Character Database
# (DerivedCoreProperties.txt, unchanged since version 6), which the standard library does not have.
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
# Others that have no ink, although the property does not list them: blanks of Braille, musical
# notation, Egyptian hieroglyphs and the Khitan script.
BLANK = (
    (0x2800, 0x2800),
    (0x1D159, 0x1D159),
    (0x13441, 0x13446),
    (0x16FE4, 0x16FE4),
)
# First words of the names of characters that one text may mix.
EAST_ASIAN = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "KATAKANA-HIRAGANA",
    "IDEOGRAPHIC",
    "HANGUL",
    "BOPOMOFO",
)
UNITS = "\u03bc\u03a9"  # micro and ohm, which units have beside letters of other scripts
# Letters that lose their dot under a mark, so that a dot above gives it back (Soft_Dotted of
# PropList.txt, in the form NFKC), and those without a dot, which a dot above turns into them.
DOT, DOTTED = "\u0307", "ij\u0249\u0268\u029d\u03f3\u0456\u0458\u1d96\U0001df1a\u0131\u0237"
# What is drawn as an ASCII character: dashes and minus, quotes, a click, the script g.
ALIKE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u02bc", "'"),
    "\u01c3": "!",
    "\u0261": "g",
}
# Latin letters, and those of the Greek and the Cyrillic script that are drawn as they are.
LETTERS = str.maketrans(
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396\u03bf\u03bd"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
    "\u0430\u0441\u0435\u0456\u0458\u043e\u0440\u0455\u0445\u0443",
    "ABEHIKMNOPTXYZovABCEHIJKMOPSTXYaceijopsxy",
)


def check_classes(labels: Sequence[Any]) -> NDArray[Any]:
    """Check that classes are of one type and cannot be mistaken for each other; return them."""
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
        raise ValueError("the classes must all be texts, or all integers, floats or booleans")
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ValueError("the classes must be different texts or numbers of 64 bits")
    classes = np.array(labels)
    if len(set(classes.tolist())) < len(labels):
        raise ValueError("the classes must be different texts or numbers")
    if kinds == {str}:
        check_texts(labels, "classes")
    return classes


def check_columns(names: Sequence[Any], width: int) -> tuple[str, ...]:
    """Check names of input columns, and return them."""
    if len(names) != width or not all(isinstance(name, str) for name in names):
        raise ValueError(f"there must be the names of {width} columns")
    check_texts(names, "columns")
    return tuple(names)


def columns_of(X: ArrayLike) -> tuple[str, ...] | None:
    """Names of the columns of a data frame, without spaces around them; None for an array."""
    names = getattr(X, "columns", None)
    return None if names is None else tuple(str(name).strip() for name in names)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Check that all of each text is seen, and that no two are alike but for case or spaces."""
    seen: dict[tuple[int, str], str] = {}
    for text in texts:
        if not 0 < len(text) <= MAX_NAME:
            raise ValueError(f"the names of {what} must neither be empty nor long")
        found = _hidden(text) or _loose_mark(text) or _mixture(text)
        if found:
            raise ValueError(
                f"the names of {what} must be of visible characters of one script: {found}"
            )
        forms = {*enumerate(_folded(text))}
        others = [seen[form] for form in forms if form in seen]
        if others or (0, "") in forms:
            raise ValueError(
                f"the names of {what} must differ by more than case, spaces or characters that "
                f"look alike: {(*others, text)[0]!a}, {text!a}"
            )
        seen |= dict.fromkeys(forms, text)


def check_present(codes: IntArray, classes: NDArray[Any], absent: Collection[Any]) -> list[Any]:
    """Fail if a class occurs in no label, unless it was expected; return those that were.

    A class that only the model knows might be the twin of another: with it the model can split one
    answer into two, each of half the confidence.
    """
    committed, expected = classes.tolist(), list(absent)
    unknown = [label for label in expected if label not in committed]
    if unknown or len(set(expected)) < len(expected):
        raise ValueError(
            "`absent_classes` must be different classes of the commitment, which are "
            f"{shown_classes(committed)}; got {shown_classes(expected)}."
        )
    present = np.unique(codes)
    missing = [label for code, label in enumerate(committed) if code not in present]
    wrong = [label for label in expected if label not in missing]
    if wrong:
        raise ValueError(
            "`absent_classes` must be classes that no label has, but there are labels "
            f"{shown_classes(wrong)}."
        )
    surprising = [label for label in missing if label not in expected]
    if surprising:
        raise VerificationError(
            f"None of your {len(codes)} labels is of the committed classes "
            f"{shown_classes(surprising)}. With a class that only the model knows, it could split "
            "one answer into two of half the confidence. If your data have a good reason to lack "
            "it, name it (`absent_classes`)."
        )
    return [label for label in committed if label in expected]


def shown_classes(classes: Sequence[Any]) -> str:
    r"""List classes as text that nobody can mistake for other classes.

    Parameters
    ----------
    classes : sequence
        Classes of a `VerifiedAudit` or an `Attestation`.

    Returns
    -------
    str
        One line of at most 500 characters. Names with letters beyond ASCII, of which some look
        alike, are followed by their codes.

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
    """Name the first character that is not seen; empty if there is none."""
    for c in text:
        ranges = (*IGNORABLE, *BLANK)
        if not c.isprintable() or any(first <= ord(c) <= last for first, last in ranges):
            return f"{text!a} has {_code(c)}, which is not seen"
    return ""


def _loose_mark(text: str) -> str:
    """Name the first combining mark that is on no letter, or is not seen on its letter."""
    letter = before = ""
    for c in unicodedata.normalize("NFD", text):
        mark = unicodedata.category(c)[0] == "M"
        if mark and not letter:
            return f"{text!a} has the mark {_code(c)} on no letter"
        if mark and before == c:
            return f"{text!a} has the mark {_code(c)} twice on one letter"
        if c == DOT and unicodedata.normalize("NFKC", letter) in DOTTED:
            return f"{text!a} has the mark {_code(c)} on {_code(letter)}, where it is not seen"
        if not mark:
            letter = c if unicodedata.category(c)[0] == "L" else ""
        before = c
    return ""


def _mixture(text: str) -> str:
    """Name the first character of another script than those before it."""
    first, script = "", ""
    for c in unicodedata.normalize("NFKC", text):
        found = _script(c)
        if found and script and found != script:
            return f"{text!a} mixes the scripts of {_code(first)} and {_code(c)}"
        first, script = (c, found) if found and not script else (first, script)
    return ""


def _script(c: str) -> str:
    """Script of a letter or mark: the first word of its name; empty where it has none."""
    if unicodedata.category(c)[0] not in "LM" or c in UNITS:
        return ""
    word = unicodedata.name(c, "UNKNOWN").split()[0]
    if word == "COMBINING":
        return ""
    return "EAST ASIAN" if word in EAST_ASIAN else word


def _code(c: str) -> str:
    return f"U+{ord(c):04X} ({unicodedata.name(c, 'without a name')})"


def _folded(text: str) -> list[str]:
    """Forms by which a name is compared: in its own script, and with Latin letters where alike."""
    plain, forms = unicodedata.normalize("NFKD", text), []
    for written in (plain, plain.translate(LETTERS)):
        once = unicodedata.normalize("NFKC", written.casefold())
        forms.append(" ".join("".join(map(_alike, once)).split()))
    return forms


def _alike(c: str) -> str:
    """The ASCII character that is drawn so, or of this digit; the character itself elsewhere."""
    digit = unicodedata.decimal(c, None)
    return ALIKE.get(c, c) if digit is None else str(digit)
