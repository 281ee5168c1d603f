"""Rows that calibrate and measure a model, and what would make them flatter it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from skuq.base import BoolArray, FloatArray
from skuq.labels import as_text
from skuq.tables._encoding import as_codes
from skuq.tables._errors import TableError

MAX_HELD_OUT = 2000  # training rows that calibrate, a fifth of them at most
# Equal rows are what columns of few values give, and not copies, if fewer rows than this share are
# different, or if there are at most this many times as many as independent columns would give.
FEWEST_DIFFERENT = 0.25
OFTEN = 3
FEWEST_TO_SUSPECT = 100  # held-out rows on which a model may be too good to be true
SURE = 0.05  # of the log loss of guessing
MOST_TO_SUSPECT = 10_000  # training rows from which a column is learnt alone

WHOLE = re.compile(r"[0-9]{1,15}(\.0)?")  # as ids are written beside missing ones, too

Hashes = NDArray[np.uint64]


class Split(NamedTuple):
    """Positions of rows."""

    fit: NDArray[np.intp]
    held: NDArray[np.intp]


def hold_out(
    y: NDArray[Any], regression: bool, random_state: int, copies: Hashes | None = None
) -> Split:
    """Rows to train on, with at least one of each class, and rows to hold out.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        Labels or targets.
    regression : bool
        Whether `y` are targets.
    random_state : int
        Choice of rows.
    copies : ndarray of shape (n_rows,), uint64, default=None
        Equal for equal rows, see `copies_in`. A copy goes where the first of its kind goes.

    Returns
    -------
    Split
    """
    split = _drawn(y, regression, random_state)
    if copies is None:
        return split
    _, first, kind = np.unique(copies, return_index=True, return_inverse=True)
    held = np.isin(np.arange(len(y)), split.held)[first[kind]]
    if not regression:
        held &= np.isin(y, y[~held])  # every class trains
    if held.all() or not held.any():
        return split
    return Split(*(np.concatenate([part[held[part] == side] for part in split]) for side in (0, 1)))


def _drawn(y: NDArray[Any], regression: bool, random_state: int) -> Split:
    n_held = min(MAX_HELD_OUT, max(1, len(y) // 5))
    rows = np.arange(len(y))
    if regression or n_held >= len(np.unique(y)):
        stratify = None if regression else y
        return Split(
            *train_test_split(rows, test_size=n_held, stratify=stratify, random_state=random_state)
        )
    # A row of each class cannot be held out, but one of each must train.
    shuffled = np.random.default_rng(random_state).permutation(rows)
    _, first = np.unique(y[shuffled], return_index=True)
    held = np.delete(shuffled, first)[:n_held]
    return Split(np.setdiff1d(rows, held), held)


def copies_in(frame: pd.DataFrame) -> Hashes | None:
    """Return a number for each row, the same one for copies of it; None if there are no copies."""
    rows = _hashes(frame)
    counts = np.unique(rows, return_counts=True)[1]
    if len(counts) == len(rows) or len(counts) < FEWEST_DIFFERENT * len(rows):
        return None
    n_pairs, n_all = (counts * (counts - 1)).sum(), len(rows) * (len(rows) - 1)
    return rows if n_pairs > OFTEN * n_all * _coincidence(frame, rows) else None


def _hashes(frame: pd.DataFrame | pd.Series) -> Hashes:
    hashes: Any = pd.util.hash_pandas_object(frame, index=False)
    return np.asarray(hashes, dtype=np.uint64)


def _coincidence(frame: pd.DataFrame, rows: Hashes) -> float:
    """Probability that two different rows of a table were equal if its columns were independent."""
    different = frame[~pd.Series(rows).duplicated().to_numpy()]
    n_pairs, probability = max(1, len(different) * (len(different) - 1)), 1.0
    for name in different.columns:
        counts = np.unique(_hashes(different[name]), return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum() / n_pairs)
    return probability


def repetition_notes(frame: pd.DataFrame, copies: Hashes | None, ids: str | None) -> list[str]:
    """Say how many rows, and values of the id column, occur more than once."""
    notes = []
    if copies is not None:
        n_copied = int(pd.Series(copies).duplicated(keep=False).sum())
        notes.append(
            f"{n_copied} rows of the training table occur more than once. Equal rows were kept "
            "together, so that no row is measured whose copy trained the model."
        )
    elif (n_different := len(np.unique(_hashes(frame)))) < len(frame):
        notes.append(
            f"Only {n_different} of the {len(frame)} rows of the training table are different. If "
            "rows were copied, remove the copies, since they make the held-out rows flatter the "
            "model; if equal rows stand for different cases, all is well."
        )
    if ids is None:
        return notes
    twice = frame.loc[frame[ids].notna() & frame[ids].duplicated(), ids]
    if len(twice):
        note = (
            f"{twice.nunique()} values of the id column {ids} occur more than once, such as "
            f"{twice.iloc[0]}."
        )
        different = frame.loc[~pd.Series(_hashes(frame)).duplicated().to_numpy(), ids].dropna()
        if different.duplicated().any():
            note += (
                " If different rows of one id belong together, some of them may train the model "
                "and others measure it, and the figures flatter it."
            )
        notes.append(note)
    return notes


def known_rows(
    train: pd.DataFrame, held_out: pd.DataFrame, ids: tuple[pd.Series, pd.Series] | None = None
) -> BoolArray:
    """Mark held-out rows that are in the training table too; refuse them if all are.

    Parameters
    ----------
    train, held_out : DataFrame
        Clean columns and targets.
    ids : tuple of (Series, Series) or None
        Names of the rows of both.

    Returns
    -------
    ndarray of shape (n_held_out,), bool
    """
    rows = _hashes(train)
    known = np.isin(_hashes(held_out), rows)
    n_different = len(np.unique(rows))
    few_values = n_different < FEWEST_DIFFERENT * len(rows)
    if few_values or known.mean() <= OFTEN * n_different * _coincidence(train, rows):
        known[:] = False
    if ids is not None:
        known |= _named_alike(*ids)
    if known.all():
        raise TableError(
            "All rows of the held-out table are in the training table too (with equal values or "
            "equal ids), so they measure nothing; give rows that did not train the model, or leave "
            "--held-out away: a fifth of the training table is then held out."
        )
    return known


def _named_alike(first: pd.Series, second: pd.Series) -> BoolArray:
    """Which rows of the second table have an id of the first; missing ones are none."""
    # As text: one id that is no number makes text of all of its file.
    names = [[None if pd.isna(v) else as_text(v) for v in each] for each in (first, second)]
    if all(name is None or WHOLE.fullmatch(name) for each in names for name in each):
        names = [[name and str(int(float(name))) for name in each] for each in names]
    taken = set(names[0]) - {None}
    return np.array([name in taken for name in names[1]], dtype=bool)


def known_note(n_known: int, n_rows: int) -> str:
    """State how many rows of a held-out table were left out."""
    were = "row is" if n_known == 1 else "rows are"
    return (
        f"{n_known} of the {n_rows} {were} in the training table too (with equal values or equal "
        "ids), and neither calibrate nor measure."
    )


def telling_notes(
    train: tuple[pd.DataFrame, NDArray[Any]],
    held_out: tuple[pd.DataFrame, NDArray[Any]],
    scores: FloatArray,
    right: BoolArray,
    numbers: Sequence[str],
) -> list[str]:
    """Ask about columns that alone predict the class, if the model is too good to be true.

    Parameters
    ----------
    train, held_out : tuple of (DataFrame, ndarray)
        Clean columns, and labels.
    scores : ndarray of shape (n_held_out,)
        One minus the probability of the class of each held-out row.
    right : ndarray of shape (n_held_out,), bool
        Whether the model predicts it.
    numbers : sequence of str
        Columns that hold numbers.
    """
    share = np.unique(held_out[1], return_counts=True)[1] / len(right)
    loss = -np.log(np.maximum(1 - scores, 1e-12)).mean()
    if len(right) < FEWEST_TO_SUSPECT or loss > SURE * -(share * np.log(share)).sum():
        return []
    names = [
        name
        for name in train[0].columns
        if _accuracy_alone(name, train, held_out, numbers) >= right.mean()
    ]
    if not names:
        return []
    return [
        f"One column alone predicts the target as well as the model: {' or '.join(names)}. Is it "
        "known before the outcome? If not, leave it out (--drop): of new rows it will not be known."
    ]


def _accuracy_alone(
    name: str,
    train: tuple[pd.DataFrame, NDArray[Any]],
    held_out: tuple[pd.DataFrame, NDArray[Any]],
    numbers: Sequence[str],
) -> float:
    """Accuracy of a small tree on one column, on held-out rows."""
    some = np.random.default_rng(0).permutation(len(train[1]))[:MOST_TO_SUSPECT]
    X, y = train[0][[name]].iloc[some], train[1][some]
    encoder = as_codes(X, [name] if name in numbers else []).fit(X)
    # As simple as a column is that was written down after the outcome.
    tree = DecisionTreeClassifier(max_leaf_nodes=2 * len(np.unique(y)), random_state=0)
    codes, new = (encoder.transform(part[[name]]) for part in (X, held_out[0]))
    return float((tree.fit(codes, y).predict(new) == held_out[1]).mean())
