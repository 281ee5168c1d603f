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

MAX_HELD_OUT = 2000  # training rows that calibrate, a fifth of them at most
# Equal rows count as duplicates only if at least this share of the rows are distinct, and if equal
# pairs exceed this many times their number under independent columns.
FEWEST_DIFFERENT = 0.25
OFTEN = 3
FEWEST_TO_SUSPECT = 100  # held-out rows on which a model may be too good to be true
SURE = 0.05  # of the log loss of guessing
MOST_TO_SUSPECT = 10_000  # training rows from which a column is learnt alone

WHOLE = re.compile(r"[0-9]{1,15}(\.0)?")  # as ids are written beside missing ones, too

Hashes = NDArray[np.uint64]


class Parts(NamedTuple):
    """Clean rows with their targets: those that train, and those that are held out."""

    X: pd.DataFrame
    y: NDArray[Any]
    X_held: pd.DataFrame
    y_held: NDArray[Any]
    notes: list[str]  # what was done
    labels: pd.Index[Any]  # of the held-out rows in their table


def hold_out_part(
    table: pd.DataFrame,
    X: pd.DataFrame,
    y: NDArray[Any],
    regression: bool,
    random_state: int,
    id_column: str | None,
) -> Parts:
    """Hold out a part of the rows of a table, `X` and `y` when clean."""
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
    """Leave out of given held-out rows those that train; `ids` name the rows of both."""
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
    copies: Hashes | None = None,  # equal for equal rows; a copy goes where its first one goes
) -> Split:
    """Rows to train on, with at least one of each class, and rows to hold out."""
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
    if regression:
        return Split(
            *train_test_split(np.arange(len(y)), test_size=n_held, random_state=random_state)
        )
    # At most half of the rows of any class come first, since classes have two rows at least.
    random = np.random.RandomState(random_state)
    order = proportional_order(y, random.permutation(len(y)), random)
    return Split(order[n_held:], order[:n_held])


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


def overlapping_rows(
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    ids: tuple[pd.Series, pd.Series] | None = None,  # of the rows of both
) -> BoolArray:  # (n_held_out,)
    """Mark held-out rows that are in the training table too; refuse them if all are."""
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
            "`held_out` away: a fifth of the training table is then held out."
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


def overlap_note(n_known: int, n_rows: int) -> str:
    """State how many rows of a held-out table were left out."""
    were = "row is" if n_known == 1 else "rows are"
    return (
        f"{n_known} of the {n_rows} {were} in the training table too (with equal values or equal "
        "ids), and neither calibrate nor measure."
    )


def leakage_warnings(
    train: tuple[pd.DataFrame, NDArray[Any]],
    held_out: tuple[pd.DataFrame, NDArray[Any]],
    scores: FloatArray,  # one minus the probability of the class, (n_held_out,)
    right: BoolArray,  # whether the model predicts it, (n_held_out,)
    numbers: Sequence[str],
) -> list[str]:
    """Name columns that alone predict the class, if the model is too good to be true."""
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
        "known before the outcome? If not, leave it out (`drop`): of new rows it will not be known."
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
