"""Held-out rows, and checks for leakage."""

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
from skuq.labels import as_text, proportional_order
from skuq.tables import _notes as notes
from skuq.tables._encoders import as_codes
from skuq.tables._validation import TableError

# Maximum number of rows held out for calibration, unless a fifth of the table is less.
MAX_HELD_OUT = 2000
# Equal rows count as duplicates only if at least this share of the rows are distinct ...
FEWEST_DIFFERENT = 0.25
# ... and pairs of equal rows are this many times more frequent than they would be if columns were
# independent.
OFTEN = 3
FEWEST_TO_SUSPECT = 100  # minimum number of held-out rows for a check for leakage
# A log loss is suspiciously low if, divided by the log loss of predicting the class frequencies, it
# is at most this number.
SURE = 0.05
MOST_TO_SUSPECT = 10_000  # maximum number of training rows for a model of a single column

# A whole number. It may end in ".0", because pandas stores integers as floats if some are missing.
WHOLE = re.compile(r"[0-9]{1,15}(\.0)?")

Hashes = NDArray[np.uint64]


class Parts(NamedTuple):
    """Clean training rows and held-out rows, with their targets."""

    X: pd.DataFrame
    y: NDArray[Any]
    X_held: pd.DataFrame
    y_held: NDArray[Any]
    notes: list[str]
    labels: pd.Index[Any]  # index of the held-out rows in their table


def hold_out_part(
    table: pd.DataFrame,
    X: pd.DataFrame,
    y: NDArray[Any],
    regression: bool,
    random_state: int,
    id_column: str | None,
) -> Parts:
    """Split a table into training and held-out rows; `X` and `y` are its clean rows and targets."""
    copies = copies_in(table)
    fit, held = hold_out(y, regression, random_state, copies)
    found = [notes.split_note(len(fit), len(held))]
    found += repetition_notes(table, copies, id_column)
    X_fit, X_held = (X.iloc[part].reset_index(drop=True) for part in (fit, held))
    return Parts(X_fit, y[fit], X_held, y[held], found, table.index[held])


def drop_overlap(
    X: pd.DataFrame,
    y: NDArray[Any],
    X_held: pd.DataFrame,
    y_held: NDArray[Any],
    ids: tuple[pd.Series, pd.Series] | None,
    labels: pd.Index[Any],
) -> Parts:
    """Drop from the held-out table the rows that are also in the training table.

    `ids` are the ids of the rows of both tables, in this order: training, held-out.
    """
    new = ~overlapping_rows(_with_target(X, y), _with_target(X_held, y_held), ids)
    found = [notes.given_note(int(new.sum()))]
    if not new.all():
        found.append(overlap_note(int((~new).sum()), len(new)))
    X_new = X_held[new].reset_index(drop=True)
    return Parts(X, y, X_new, y_held[new], found, labels[new])


def _with_target(X: pd.DataFrame, y: NDArray[Any]) -> pd.DataFrame:
    return pd.concat([X, pd.Series(y)], axis=1)


class Split(NamedTuple):
    """Positions of rows."""

    fit: NDArray[np.intp]
    held: NDArray[np.intp]


def hold_out(
    y: NDArray[Any],
    regression: bool,
    random_state: int,
    copies: Hashes | None = None,  # hashes of rows; duplicates stay on one side of the split
) -> Split:
    """Split rows into training rows, with at least one of each class, and held-out rows."""
    split = _drawn(y, regression, random_state)
    if copies is None:
        return split
    _, first, kind = np.unique(copies, return_index=True, return_inverse=True)
    held = np.isin(np.arange(len(y)), split.held)[first[kind]]
    if not regression:
        held &= np.isin(y, y[~held])  # every class keeps training rows
    if held.all() or not held.any():
        return split
    return Split(*(np.concatenate([part[held[part] == side] for part in split]) for side in (0, 1)))


def _drawn(y: NDArray[Any], regression: bool, random_state: int) -> Split:
    n_held = min(MAX_HELD_OUT, max(1, len(y) // 5))
    if regression:
        return Split(
            *train_test_split(np.arange(len(y)), test_size=n_held, random_state=random_state)
        )
    # The first n_held rows of `order` contain at most half of the rows of each class that has two
    # or more rows. Thus, training rows of each of these classes remain.
    random = np.random.RandomState(random_state)
    order = proportional_order(y, random.permutation(len(y)), random)
    return Split(order[n_held:], order[:n_held])


def copies_in(frame: pd.DataFrame) -> Hashes | None:
    """Return a hash of each row, equal for duplicates; None without duplicates."""
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
    """Probability that two distinct rows would be equal if the columns were independent."""
    different = frame[~pd.Series(rows).duplicated().to_numpy()]
    n_pairs, probability = max(1, len(different) * (len(different) - 1)), 1.0
    for name in different.columns:
        counts = np.unique(_hashes(different[name]), return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum() / n_pairs)
    return probability


def repetition_notes(frame: pd.DataFrame, copies: Hashes | None, ids: str | None) -> list[str]:
    """Notes on rows and ids that occur more than once."""
    notes = []
    if copies is not None:
        n_copied = int(pd.Series(copies).duplicated(keep=False).sum())
        notes.append(
            f"{n_copied} rows of the training table occur more than once. Equal rows were kept "
            "on one side of the split, so that no held-out row has a copy among the training rows."
        )
    elif (n_different := len(np.unique(_hashes(frame)))) < len(frame):
        notes.append(
            f"Only {n_different} of the {len(frame)} rows of the training table are distinct. If "
            "equal rows are copies, remove them: they make the measured quality too good. If they "
            "are different cases with equal values, nothing needs to be done."
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
                " If the rows of an id belong together, for example to one person, some of them "
                "may train the model while others measure it, and the measured quality is too good."
            )
        notes.append(note)
    return notes


def overlapping_rows(
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    ids: tuple[pd.Series, pd.Series] | None = None,  # training, held-out
) -> BoolArray:  # (n_held_out,)
    """Mask of held-out rows that are also in the training table; raise an error if all are."""
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
            "All rows of the held-out table are also in the training table (with equal values or "
            "equal ids), so the model cannot be evaluated on them; pass rows that were not used to "
            "train it, or omit `held_out` to hold out a fifth of the training table."
        )
    return known


def _named_alike(first: pd.Series, second: pd.Series) -> BoolArray:
    """Mask of rows of the second table whose id occurs in the first; missing ids never match."""
    # Compare as text: pandas reads a whole column as text if one id is not a number.
    names = [[None if pd.isna(v) else as_text(v) for v in each] for each in (first, second)]
    if all(name is None or WHOLE.fullmatch(name) for each in names for name in each):
        names = [[name and str(int(float(name))) for name in each] for each in names]
    taken = set(names[0]) - {None}
    return np.array([name in taken for name in names[1]], dtype=bool)


def overlap_note(n_known: int, n_rows: int) -> str:
    """Note how many rows were dropped from a held-out table."""
    were = "row is" if n_known == 1 else "rows are"
    return (
        f"{n_known} of the {n_rows} held-out {were} also in the training table (with equal values "
        f"or equal ids); {'it is' if n_known == 1 else 'they are'} not used to calibrate or to "
        "measure."
    )


def leaking_columns(
    train: tuple[pd.DataFrame, NDArray[Any]],
    held_out: tuple[pd.DataFrame, NDArray[Any]],
    scores: FloatArray,  # one minus the probability of the true class, (n_held_out,)
    right: BoolArray,  # whether the prediction is correct, (n_held_out,)
    numbers: Sequence[str],
) -> list[str]:
    """Columns that predict the class on their own; none unless the log loss is suspiciously low."""
    share = np.unique(held_out[1], return_counts=True)[1] / len(right)
    loss = -np.log(np.maximum(1 - scores, 1e-12)).mean()
    if len(right) < FEWEST_TO_SUSPECT or loss > SURE * -(share * np.log(share)).sum():
        return []
    return [
        name
        for name in train[0].columns
        if _accuracy_alone(name, train, held_out, numbers) >= right.mean()
    ]


def _accuracy_alone(
    name: str,
    train: tuple[pd.DataFrame, NDArray[Any]],
    held_out: tuple[pd.DataFrame, NDArray[Any]],
    numbers: Sequence[str],
) -> float:
    """Accuracy, on held-out rows, of a small tree that was trained on one column."""
    some = np.random.default_rng(0).permutation(len(train[1]))[:MOST_TO_SUSPECT]
    X, y = train[0][[name]].iloc[some], train[1][some]
    encoder = as_codes(X, [name] if name in numbers else []).fit(X)
    # A leaked column determines the class by a simple rule, so a small tree is enough.
    tree = DecisionTreeClassifier(max_leaf_nodes=2 * len(np.unique(y)), random_state=0)
    codes, new = (encoder.transform(part[[name]]) for part in (X, held_out[0]))
    return float((tree.fit(codes, y).predict(new) == held_out[1]).mean())
