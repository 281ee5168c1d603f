"""Notes on how a table was treated, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from shlex import quote
from typing import Any

import pandas as pd

from skuq.table_files import UNNAMED
from skuq.tables._dates_and_units import is_date_in_digits
from skuq.tables._training import LEARNERS, Comparison
from skuq.tables._validation import TableError, word_among_numbers
from skuq.unusual_rows import ALL_DIFFERENT, SEPARATOR

HELD_OUT_MAY_HAVE_TRAINED = (
    "If the given model was trained on the held-out rows, they flatter it: accuracy, calibration "
    "and coverage would be worse on others. Calibrate on rows that it has not seen (--held-out)."
)


def missing_notes(frame: pd.DataFrame, which: str, missing: str) -> list[str]:
    """Count missing values by column, or refuse them."""
    counts = frame.isna().sum()
    if missing == "refuse" and counts.any():
        raise TableError(
            f"The {which} has missing values: {_listed(counts)}. Fill them in, or let them be "
            "imputed (--missing impute)."
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
    notes = _missing(counts["missing"], "table to predict")
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


def suspicion_notes(train: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    """Name columns that may have been misread."""
    notes = []
    for name in train.columns:
        values = train[name].dropna()
        if name in numbers:
            # Of an index that was stored without a name, a part may be here.
            count = values.max() - values.min() + 1 == len(values) or name.startswith(UNNAMED)
            counted = values.is_unique and len(values) > ALL_DIFFERENT and (values % 1 == 0).all()
            if count and counted:
                notes.append(
                    f"Column {name} seems to number the rows; if it does, leave it out "
                    f"(--drop {quote(name)}): new rows have new numbers, which look "
                    "out-of-distribution."
                )
            elif is_date_in_digits(values):
                notes.append(
                    f"Column {name} may hold dates such as {values.iloc[0]:.0f}, and counts as "
                    "numbers; write them as 2020-12-31 to have them count as dates."
                )
        elif (word := word_among_numbers(values)) is not None:
            notes.append(
                f"Column {name} holds numbers, but counts as text because of values such as "
                f"{word!r}; if they stand for missing ones, leave them empty."
            )
    return notes


def without_nameless(train: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Columns but those without a name and values, which a separator at the end of lines makes."""
    names = [str(name) for name in train]
    empty = [name for name in names if name.startswith(UNNAMED) and train[name].isna().all()]
    told = [f"A column without name and values was left out ({', '.join(empty)})."] if empty else []
    return [name for name in names if name not in empty], told


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
        "values as unusual; leave out columns whose values are nearly always new (--drop)."
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
