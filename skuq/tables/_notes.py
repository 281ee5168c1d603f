"""Notes on how a table was treated, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from skuq.labels import counted
from skuq.tables._columns import Cells
from skuq.tables._dates import is_date_in_digits
from skuq.tables._training import LEARNERS, Comparison
from skuq.tables._validation import TableError, place
from skuq.unusual_rows import SEPARATOR

if TYPE_CHECKING:
    from skuq.tables._model import TableModel

HELD_OUT_MAY_HAVE_TRAINED = (
    "If the given model was trained on the held-out rows, they flatter it: accuracy, calibration "
    "and coverage would be worse on others. Calibrate on rows that it has not seen (`held_out`)."
)


def missing_notes(frame: pd.DataFrame, which: str, missing: str) -> list[str]:
    """Count missing values by column, or refuse them."""
    counts = frame.isna().sum()
    if missing == "refuse" and counts.any():
        raise TableError(
            f"The {which} has missing values: {_listed(counts)}. Fill them in, or let them be "
            'imputed (`missing="impute"`).'
        )
    return _missing(counts, which)


def table_notes(counts: pd.DataFrame) -> list[str]:
    """Say what is special about a table that was predicted.

    Parameters
    ----------
    counts : DataFrame
        What `TableModel.count` returns, or a sum of such counts.

    Returns
    -------
    list of str
        Sentences; empty if there is nothing to say.
    """
    notes = []
    if counts["unread"].any():
        notes.append(
            "Rows were not scored because of cells that cannot be read; their reasons say which: "
            f"{_listed(counts['unread'])}."
        )
    notes += _missing(counts["missing"], "table to predict")
    if counts["ranges"].any():
        notes.append(f"Ranges that are read as their middle: {_listed(counts['ranges'])}.")
    if counts["unseen"].any():
        notes.append(
            "Rows with values that the model was not trained on (unseen categories, or missing "
            f"numbers in columns that had none missing): {_listed(counts['unseen'])}."
        )
    if counts["out_of_range"].any():
        notes.append(
            "Rows with numbers outside the range of the rows that trained the model: "
            f"{_listed(counts['out_of_range'])}. There the model extrapolates, and low uncertainty "
            "only means that other models extrapolate alike."
        )
    return notes


def _missing(counts: pd.Series, which: str) -> list[str]:
    return [f"Missing values in the {which}: {_listed(counts)}."] if counts.any() else []


def _listed(counts: pd.Series) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts[counts > 0].items())


def cell_notes(cells: Sequence[Cells], table: pd.DataFrame) -> list[str]:
    """Say which cells of a table do not hold what their columns do, and what became of them."""
    notes = []
    for each in cells:
        n_cells = len(each.rows)
        hold, count, are = ("holds", "counts", "is") if n_cells == 1 else ("hold", "count", "are")
        became = f"{are} read as its middle" if each.read else f"{count} as missing"
        held = each.held.replace("not ", "other than ")
        held = held if each.read else f"something {held}"
        notes.append(
            f"{counted(n_cells, 'cell')} in column {each.column} {hold} {held}, such as "
            f"{each.texts[0]!r} ({place(table, int(each.rows[0]))}), and {became}."
        )
    return notes


def unread_notes(unread: Mapping[int, str], which: str) -> list[str]:
    """Say how many rows were left out because a cell cannot be read."""
    if not unread:
        return []
    return [
        f"{counted(len(unread), 'row')} of the {which} {'was' if len(unread) == 1 else 'were'} "
        "left out, because a cell cannot be read, the first one in "
        f"{next(iter(unread.values()))}."
    ]


def guessing_note(model: TableModel) -> str:
    """Say so if a model is no better than guessing, on the held-out rows.

    Parameters
    ----------
    model : TableModel
        The fitted model.

    Returns
    -------
    str
        A sentence; empty if the model is better.
    """
    loss, guessing = model.measured_loss()
    # Where all targets are equal, as that of a single row, guessing is always right.
    if loss < guessing or model.held_out_["label"].nunique() == 1:
        return ""
    if model.classes_ is None:
        return "The model is no better than always predicting the mean: do not use it."
    return (
        "The model is no better than guessing the classes by their frequency: do not use it "
        f"(log loss {loss:.3f}, and {guessing:.3f} by guessing)."
    )


def date_notes(train: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    """Name columns of numbers that may be dates in digits."""
    return [
        f"Column {name} may hold dates such as {values.iloc[0]:.0f}, and counts as numbers; write "
        "them as 2020-12-31 to have them count as dates."
        for name in train.columns
        if name in numbers and is_date_in_digits(values := train[name].dropna())
    ]


def split_note(n_fit: int, n_held: int) -> str:
    """State how many rows trained the model and how many were held out."""
    were = "row was" if n_held == 1 else "rows were"
    return (
        f"{n_fit} rows trained the model; {n_held} {were} held out to calibrate and to measure. "
        f"The smallest possible p-value is {1 / (1 + n_held):.2g}."
    )


def given_note(n_held: int) -> str:
    """State how many rows of another table calibrate."""
    return (
        f"{n_held} rows of another table calibrate and measure. The smallest possible p-value is "
        f"{1 / (1 + n_held):.2g}."
    )


def unsupported_notes(unsupported: pd.DataFrame) -> list[str]:
    """Name the columns whose values are new in most of the held-out rows."""
    n_rows = int(unsupported.any(axis=1).sum())
    if 2 * n_rows <= len(unsupported):
        return []
    return [
        f"{n_rows} of the {len(unsupported)} held-out rows hold values absent from the training "
        f"rows: {_listed(unsupported.sum())}. P-values therefore do not count rows with such "
        "values as unusual; leave out columns whose values are nearly always new (`drop`)."
    ]


def coverage_notes(n_held: int, coverage: float) -> list[str]:
    """Say so if the held-out rows are too few for prediction sets or intervals to exclude anything.

    Parameters
    ----------
    n_held : int
        Held-out rows.
    coverage : float
        Probability that sets or intervals hold the true value.
    """
    needed = fewest_held_out(coverage)
    if n_held >= needed:
        return []
    return [
        f"Nothing can be excluded with a coverage of {coverage:.4g} on {n_held} held-out rows, so "
        f"prediction sets hold all classes, and intervals all numbers. That takes {needed} rows."
    ]


def fewest_held_out(coverage: float) -> int:
    """Held-out rows from which on conformal limits of a coverage are finite."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def class_notes(classes: Any) -> list[str]:
    """Warn of classes whose names cannot be told apart in a prediction set."""
    names = [] if classes is None else [str(c) for c in classes if SEPARATOR in str(c)]
    if not names:
        return []
    return [
        f"Prediction sets divide classes by {SEPARATOR!r}, which the name of a class holds, "
        f"{names[0]!r}; rename it to have them told apart."
    ]


def choice_notes(comparison: Comparison, name: str, regression: bool) -> list[str]:
    """Say which model predicts, and why."""
    if not comparison.losses:
        label = LEARNERS[name].label if name in LEARNERS else name
        return [f"The model is {label}."]
    ranked = sorted(comparison.losses.items(), key=lambda item: item[1])
    listed = ", ".join(f"{LEARNERS[other].label} {loss:.3f}" for other, loss in ranked)
    measure = "mean squared error, relative to guessing," if regression else "log loss"
    guessing = "" if regression else f"; guessing costs {comparison.guessing:.3f}"
    return [
        f"The model is {LEARNERS[name].label}, which had the smallest {measure} in "
        f"{comparison.n_folds}-fold cross-validation on {comparison.n_rows} rows: "
        f"{listed}{guessing}."
    ]
