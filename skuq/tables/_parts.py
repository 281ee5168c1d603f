"""The rows of a table that train a model, and those that calibrate and measure it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from numpy.typing import NDArray

from skuq.tables import _notes as notes
from skuq.tables._held_out import copies_in, hold_out, known_note, known_rows, repetition_notes


class Parts(NamedTuple):
    """Clean rows with their targets: those that train, and those that are held out.

    Attributes
    ----------
    X, X_held : DataFrame
        Clean rows.
    y, y_held : ndarray
        Their targets.
    notes : list of str
        What was done, in sentences.
    """

    X: pd.DataFrame
    y: NDArray[Any]
    X_held: pd.DataFrame
    y_held: NDArray[Any]
    notes: list[str]


def divided(
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
    return Parts(X_fit, y[fit], X_held, y[held], found)


def without_known(
    X: pd.DataFrame,
    y: NDArray[Any],
    X_held: pd.DataFrame,
    y_held: NDArray[Any],
    ids: tuple[pd.Series, pd.Series] | None,
) -> Parts:
    """Leave out of given held-out rows those that train; `ids` name the rows of both."""
    new = ~known_rows(_with_target(X, y), _with_target(X_held, y_held), ids)
    found = [notes.given_note(int(new.sum()))]
    if not new.all():
        found.append(known_note(int((~new).sum()), len(new)))
    return Parts(X, y, X_held[new].reset_index(drop=True), y_held[new], found)


def _with_target(X: pd.DataFrame, y: NDArray[Any]) -> pd.DataFrame:
    return pd.concat([X, pd.Series(y)], axis=1)
