"""Which column of probabilities belongs to which label, as far as its name says so.

A wrong answer would fail an honest model, so whatever is not clear is None, and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SEPARATOR = re.compile(r"(?:[\s_.:/|]|-(?!\d))+")  # a minus before a digit may be a sign
# Between a lower and an upper letter, and between a letter and a number.
BOUNDARY = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[^\W\d_])(?=-?\d)|(?<=\d)(?=[^\W\d_])")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
# Words after which, or for numbers anywhere, a name does not say what it seems to say.
NEGATIONS = {"no", "non", "not", "neg", "negative", "minus", "without"}


def match_names(names: Sequence[str], labels: Sequence[str]) -> list[str] | None:
    """Label of each column, by its name without what begins or ends all names.

    Examples
    --------
    >>> from skuq.audit._matching import match_names
    >>> match_names(["yes_prob", "no_prob"], ["No", "Yes"])
    ['Yes', 'No']
    >>> match_names(["p2", "p1"], ["ill", "well"])
    ['well', 'ill']
    >>> match_names(["p_pos", "p_neg"], ["negative", "positive"])
    """
    if len(names) != len(labels):
        return None
    cores = _cores(names)
    for simple in (str, _caseless, _plain):  # each takes more for equal than the last
        by_text = {simple(label): label for label in labels}
        if len(by_text) < len(labels):
            continue
        found = {
            tuple(by_text[text] for text in texts)
            for core in cores
            if set(texts := [simple(text) for text in core]) == set(by_text)
        }
        if found:
            return list(found.pop()) if len(found) == 1 else None
    return _by_number(cores, labels)


def match_name(name: str, labels: Sequence[str]) -> str | None:
    """Of two labels the one that a name ends with.

    Examples
    --------
    >>> from skuq.audit._matching import match_name
    >>> match_name("prob_yes", ["No", "Yes"]), match_name("p0", ["0", "1"])
    ('Yes', '0')
    >>> match_name("p_not_yes", ["No", "Yes"])
    """
    words = _words(name)
    found = []
    for label in labels:
        ending = _words(label)
        if ending and words[-len(ending) :] == ending:
            found.append((len(ending), label))
    if not found:
        return None
    size = max(found)[0]
    longest = [label for length, label in found if length == size]
    return None if len(longest) > 1 or set(words[:-size]) & NEGATIONS else longest[0]


def is_second(name: str, labels: Sequence[str]) -> bool:
    """Whether a name that ends with no label is taken for the second of two numbers."""
    words = _words(name)
    suspicious = {*NEGATIONS, "false", *_words(labels[0])}
    return (
        all(NUMBER.fullmatch(text) or text.casefold() in {"false", "true"} for text in labels)
        and not suspicious & set(words)
        and not (words and NUMBER.fullmatch(words[-1]))
    )


def _cores(names: Sequence[str]) -> list[list[str]]:
    """Names without any part of what they all begin with, and of what they all end with."""
    shortest = min(map(len, names))
    return [
        [name[first : len(name) - last] for name in names]
        for first in range(shortest)
        for last in range(shortest - first)
        if len({(name[:first], name[len(name) - last :]) for name in names}) == 1
    ]


def _by_number(cores: list[list[str]], labels: Sequence[str]) -> list[str] | None:
    """Sorted labels, if the columns are counted from 0 or 1 and no number is another's label."""
    # p10 to p19 are not 0 to 9, so the rest of a name is all of its digits.
    whole = [core for core in cores if all(text.isdecimal() for text in core)]
    if not whole:
        return None
    numbers = [int(text) for text in max(whole, key=lambda core: len(core[0]))]
    first = min(numbers)
    if first not in {0, 1} or sorted(numbers) != list(range(first, first + len(numbers))):
        return None
    order = [labels[number - first] for number in numbers]
    wrong = (str(n) in labels and str(n) != text for n, text in zip(numbers, order, strict=True))
    return None if any(wrong) else order


def _caseless(text: str) -> str:
    return text.strip().casefold()


def _plain(text: str) -> str:
    return SEPARATOR.sub(" ", text).strip().casefold()


def _words(text: str) -> list[str]:
    return _plain(BOUNDARY.sub(" ", text)).split()
