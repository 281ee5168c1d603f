"""Extract recorded predictions from a table, with errors that name the row and the column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.audit._groups import counted_weights
from skuq.base import FloatArray
from skuq.labels import (
    ROW_SUM_TOLERANCE,
    as_text,
    classes_of_columns,
    counted,
    decimals_of,
    label_in_name,
    labels_of_columns,
    rounded_sum_tolerance,
)
from skuq.validation import LARGEST_SUM

if TYPE_CHECKING:
    import pandas as pd


class RecordedPredictions(NamedTuple):
    """Recorded predictions, ready for `skuq.CalibrationAuditor.from_predictions`."""

    y: NDArray[Any]  # (n_samples,), true labels as text
    proba: FloatArray  # (n_samples, n_classes), reported probabilities
    classes: list[str]  # labels in column order
    # For readers of the audit: label of each probability column, and a remark if rounded
    # probabilities do not sum to 1.
    note: str
    sample_weight: NDArray[Any] | None = None


def recorded_predictions(
    table: pd.DataFrame,
    label: str,
    proba: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    weight: str | None = None,
) -> RecordedPredictions:
    """Extract labels and probabilities from a table.

    Parameters
    ----------
    table : DataFrame of shape (n_samples, n_columns)
        One prediction per row.
    label : str
        Column with the true label.
    proba : sequence of str, optional
        Columns with the reported probabilities, one per class. With two classes one column
        is enough: the probability of the second class. Default: columns named like those of
        `skuq.tables.TableModel.predict`, such as ``p(yes)`` for the probability of ``yes``.
        Rows must sum to 1. If the probabilities are recorded with two or more decimals, rounding
        may change the sum by half a unit of the last decimal for each class. Probabilities are
        never rescaled.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`. With one column: both labels, with the label of
        this column last. Default: the labels in the column names, such as ``yes`` or ``p(yes)``. If
        the column names contain no labels, the default is the sorted labels of the table.
    weight : str, optional
        Column with the sample weights, as in `skuq.CalibrationAuditor.fit`.

    Returns
    -------
    named tuple
        ``y``, ``proba``, ``classes`` (text, in column order), ``note`` for readers of the audit,
        and ``sample_weight`` (None without `weight`).

    Raises
    ------
    ValueError
        If a label is missing or unknown, the columns do not match the labels, or the columns do
        not hold probabilities.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.audit import recorded_predictions
    >>> table = pd.DataFrame({"y": ["no", "yes"], "p_no": [0.9, 0.3], "p_yes": [0.1, 0.7]})
    >>> recorded_predictions(table, "y", ["p_no", "p_yes"]).note
    'p_no -> no, p_yes -> yes'
    """
    if proba is None:
        proba, classes = named_columns(table.columns, classes)
    check_columns(label, proba)
    codes, known = _labels(table[label])
    order = order_of_columns(proba, known, classes)
    values = probabilities_of(table, proba)
    on_sums = note_on_sums(values)
    unknown = ~np.isin(known, order)
    if unknown.any():
        row = int(unknown[codes].argmax())
        raise unknown_label(known[codes[row]], row, label, order)
    note = "; ".join(filter(None, [note_on_columns(proba, order), on_sums]))
    given = None if weight is None else weights_of(table[weight])
    return RecordedPredictions(np.array(known)[codes], values, order, note, given)


def named_columns(
    names: Iterable[str], classes: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Find the probability columns by their names; return the columns and their labels."""
    found = classes_of_columns(map(str, names))
    if len(found) < 2 or classes is not None:
        raise ValueError(
            "Without `proba`, every label needs a column named p(LABEL), as `skuq quantify` names "
            f"probabilities, and `classes` has no effect; found {_brief(list(found)) or 'none'}. "
            "Specify the columns of probabilities (`proba`)."
        )
    return list(found), list(found.values())


def check_columns(label: str, proba: Sequence[str]) -> None:
    """Raise an error if a column is named twice."""
    names = [label, *proba]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"Column {twice[0]!r} is named twice; name each column once.")


def note_on_columns(proba: Sequence[str], order: Sequence[str]) -> str:
    """Describe the label of each column."""
    if len(proba) == 1:
        return f"{proba[0]} -> {order[1]}, the rest to 1 -> {order[0]}"
    return ", ".join(f"{name} -> {text}" for name, text in zip(proba, order, strict=True))


def unknown_label(text: str, row: int, label: str, order: Sequence[str]) -> ValueError:
    """Create the error for a label without a probability column."""
    return ValueError(
        f"Label {text!r} in {_row(row)} of column {label!r} is none of the classes "
        f"{', '.join(order)}; every label needs a probability column."
    )


def check_labels_known(column: pd.Series, start: int = 0) -> None:
    """Raise an error if a label is missing; `start` is the file position of the first row."""
    missing = column.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"Column {column.name!r} has no label in {counted(missing.sum(), 'row')}, first in "
            f"{_row(start + int(missing.argmax()))}; fill in the labels or remove the rows."
        )


def _labels(column: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """Integer code of each row's label, and the texts of all labels, sorted by value."""
    import pandas as pd

    check_labels_known(column)
    # `factorize` sorts a categorical column in the order of its categories, not by value.
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    codes, values = pd.factorize(column, sort=True)
    return codes, [as_text(value) for value in values]


def order_of_columns(
    proba: Sequence[str], known: list[str], classes: Sequence[str] | None
) -> list[str]:
    """Labels in column order; for a single column, both labels, with the column's label last."""
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"The classes must differ, got {', '.join(classes)}.")
    order = _order(proba, known, classes) if len(proba) else []
    if len(order) != max(2, len(proba)):
        raise ValueError(
            f"The columns {_brief(proba)} and {counted(len(order), 'label')} ({_brief(order)}) do "
            "not match: name one column per label or, if there are only two labels, one column for "
            "the second label. Without `classes`, columns that are not named after labels are "
            "assumed to be in the order of the sorted labels of the table."
        )
    return order


def _order(proba: Sequence[str], known: list[str], classes: Sequence[str] | None) -> list[str]:
    """Labels from the column names; if the names have no labels, `classes` or the sorted labels."""
    stated = known if classes is None else list(classes)
    named = labels_of_columns(proba, np.array(stated, str)) if len(proba) > 1 else None
    if named is None:
        if classes is None and len(known) == max(2, len(proba)):
            _check_names(proba, known)
        return stated
    for name, own, text in zip(proba, named.tolist(), stated, strict=False):
        if classes is not None and own != text:
            raise ValueError(
                f"Column {str(name)!r} is named after label {own!r}, but `classes` has {text!r} "
                "at its position; omit `classes`, or pass both in the same order."
            )
    return named.tolist()


def _check_names(proba: Sequence[str], order: list[str]) -> None:
    """Raise an error if a column name ends with a label other than the label assumed for it."""
    for name, own in zip(proba, order[-len(proba) :], strict=True):
        named = label_in_name(name, own, order)
        if named not in (own, ""):
            raise ValueError(
                f"Column {name!r} is assumed to be the probability of {own!r}, since columns are "
                f"assumed to be in the order of the sorted labels ({_brief(order)}), but its name "
                f"contains the label {named!r}; state the order of the columns (`classes`)."
            )


def probabilities_of(table: pd.DataFrame, names: Sequence[str], start: int = 0) -> FloatArray:
    """Probabilities of all classes, shape (n_samples, n_classes).

    `start` is the file position of the first row, used in error messages.
    """
    meant = "probabilities in [0, 1]"
    values = np.column_stack(
        [_numbers(table[name], 1 + ROW_SUM_TOLERANCE, meant, start) for name in names]
    )
    if len(names) > 1:
        return values
    second = np.minimum(values, 1.0)
    return np.hstack([1 - second, second])


def weights_of(column: pd.Series, start: int = 0) -> NDArray[Any]:
    """Row weights, as integers if all are whole numbers; `start` as in `probabilities_of`."""
    meant = f"weights (numbers of samples, from 0 to {LARGEST_SUM:.3g})"
    return counted_weights(_numbers(column, LARGEST_SUM, meant, start))


def _numbers(column: pd.Series, largest: float, meant: str, start: int) -> FloatArray:
    """Values of a column; raise an error that names the first row outside [0, largest]."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = ~((values >= 0) & (values <= largest))
    if wrong.any():
        row = int(wrong.argmax())
        cell = column.iloc[row]
        found = "nothing" if pd.isna(cell) else repr(str(cell))
        raise ValueError(
            f"Column {column.name!r} must hold {meant}, got {found} in {_row(start + row)}."
        )
    return values


def note_on_sums(values: FloatArray, start: int = 0) -> str:
    """Remark on row sums that differ from 1; raise an error if rounding cannot explain one.

    `start` is the file position of the first row.
    """
    decimals = decimals_of(values)
    tolerance = rounded_sum_tolerance(values.shape[1], decimals)
    totals = values.sum(axis=1)
    deviations = np.abs(totals - 1)
    if (deviations > tolerance).any():
        first = int((deviations > tolerance).argmax())
        raise ValueError(
            f"The probabilities in {_row(start + first)} sum to {totals[first]:.6g}, but must "
            f"sum to 1 within {tolerance:.4g}; name the columns of all classes, and write enough "
            "digits."
        )
    worst = int(deviations.argmax())
    if deviations[worst] <= ROW_SUM_TOLERANCE:
        return ""
    return (
        f"The probabilities are recorded with {decimals} decimals, so that rows do not sum to "
        f"exactly 1 (row {start + worst + 1}: {totals[worst]:.6g}). Confidences are the recorded "
        "values, not rescaled."
    )


def _row(position: int) -> str:
    return f"row {position + 1} (the header not counted)"


def _brief(texts: Sequence[str], most: int = 5) -> str:
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
