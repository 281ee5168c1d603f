"""Pools of texts, generated from the words or tokens of training texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype

from skuq.base import BoolArray
from skuq.validation import is_texts

PASS_A_POOL = (
    "Pass your own inputs as `X_pool` to `fit`, or a function that generates them as `pool` of the "
    "search."
)
Random = np.random.RandomState
_N_SOURCES = 3  # number of other texts whose words are mixed into a text
_SHARE_DIFFERENT = 0.9  # smallest fraction of distinct values in a text column
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "אבגדהוזחטיכלמנסעפצקרשת",
)


def is_text_column(column: pd.Series) -> bool:
    """Whether a column contains texts: nearly all values differ, and most have several words."""
    if isinstance(column.dtype, pd.CategoricalDtype) or infer_dtype(column) != "string":
        return False
    values = column.dropna()
    if values.nunique() < _SHARE_DIFFERENT * len(values):
        return False
    n_words = [sum(map(_has_letters, text.split())) for text in values]
    return float(np.median(n_words)) >= 2


def known_texts(X: Any) -> NDArray[Any]:
    """Select the texts that contain words; raise ValueError if there are none."""
    texts = [text for text in X if isinstance(text, str) and text.strip()] if is_texts(X) else []
    if not texts:
        raise ValueError(
            "X has one axis but contains no texts with words, so no pool can be generated. "
            f"{PASS_A_POOL}"
        )
    return np.array(texts, dtype=object)


def _mixed_words(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    made = []
    for text in own:
        sources = [text, *known[random.randint(len(known), size=_N_SOURCES)]]
        words = np.concatenate([np.array(each.split(), dtype=object) for each in sources])
        made.append(" ".join(random.choice(words, size=len(text.split()))))
    return made


def _shuffled_words(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    return [" ".join(random.permutation(np.array(text.split(), dtype=object))) for text in own]


def _truncated(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    """Keep at most the first half of the words, or of the letters of a single word."""
    made = []
    for text in own:
        words, gap = (text.split(), " ") if len(text.split()) > 1 else (list(text.strip()), "")
        made.append(gap.join(words[: random.randint(1, max(2, len(words) // 2 + 1))]))
    return made


def _other_script(own: NDArray[Any], known: NDArray[Any], random: Random) -> list[str]:
    """Replace each letter by a letter of an alphabet that does not occur in the text."""
    made = []
    for text in own:
        others = [each for each in _ALPHABETS if not set(each) & set(text.lower())]
        alphabet, shift = others[random.randint(len(others))], random.randint(100)
        letters = {c: alphabet[(ord(c.lower()) + shift) % len(alphabet)] for c in text}
        made.append("".join(letters[c] if c.isalpha() else c for c in text))
    return made


def _has_letters(word: str) -> bool:
    return any(map(str.isalpha, word))


TextMaker = Callable[[NDArray[Any], NDArray[Any], Random], list[str]]
KINDS: dict[str, TextMaker] = {
    "mixed_words": _mixed_words,
    "shuffled_words": _shuffled_words,
    "truncated": _truncated,
    "other_script": _other_script,
}


# --- tokens ------------------------------------------------------------------------------------


def _crossed_tokens(X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    """Draw each token from one of two texts."""
    made, others = (X[random.randint(len(X), size=n)] for _ in range(2))
    chosen = _free_tokens(made) & _free_tokens(others)
    chosen &= random.uniform(size=chosen.shape) < 0.5
    made[:, 0] = np.where(chosen, others[:, 0], made[:, 0])
    return made


def _moved_tokens(X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    """Shuffle the tokens of a text."""
    made = X[random.randint(len(X), size=n)]
    free = _free_tokens(made)
    place = np.arange(free.shape[1], dtype=float)
    # `places` and `sources` both begin with the positions of the free tokens: `places` in
    # increasing order, `sources` in random order.
    places = np.argsort(np.where(free, place, 2 * free.shape[1] + place), axis=1)
    keys = random.uniform(size=free.shape)
    sources = np.argsort(np.where(free, keys, 2 * free.shape[1] + place), axis=1)
    moved = np.take_along_axis(made[:, 0], sources, axis=1)
    np.put_along_axis(made[:, 0], places, moved, axis=1)
    return made


def _drawn_tokens(X: NDArray[Any], n: int, random: Random) -> NDArray[Any]:
    """Replace half of the tokens by tokens drawn from all texts."""
    made, known = X[random.randint(len(X), size=n)], X[:, 0][_free_tokens(X)]
    free = _free_tokens(made)
    if len(known):
        chosen = free & (random.uniform(size=free.shape) < 0.5)
        made[:, 0] = np.where(chosen, random.choice(known, size=free.shape), made[:, 0])
    return made


def _free_tokens(X: NDArray[Any]) -> BoolArray:
    """Mask of the tokens that may change: all but the first token and the padding, (n, length)."""
    free = X[:, 1] != 0 if X.shape[1] > 1 else np.ones(X[:, 0].shape, dtype=bool)
    return free & (np.cumsum(free, axis=1) > 1)


TOKEN_KINDS = {"crossed": _crossed_tokens, "moved": _moved_tokens, "drawn": _drawn_tokens}
