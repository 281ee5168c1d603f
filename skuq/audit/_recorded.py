"""Recorded predictions in a table: which column is which class, and whether all is well-formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.audit._matching import is_second, match_name, match_names
from skuq.base import FloatArray
from skuq.calibration._validation import ROW_SUM_TOLERANCE
from skuq.labels import as_text

if TYPE_CHECKING:
    import pandas as pd


class Recorded(NamedTuple):
    """Recorded predictions, ready for `skuq.CalibrationAuditor.from_predictions`.

    Attributes
    ----------
    y : ndarray of shape (n_samples,), str
        True labels.
    proba : ndarray of shape (n_samples, n_classes), float64
        Reported probabilities.
    classes : list of str
        Labels in column order.
    note : str
        Which column is the probability of which label.
    """

    y: NDArray[Any]
    proba: FloatArray
    classes: list[str]
    note: str


def recorded_predictions(
    table: pd.DataFrame, label: str, proba: Sequence[str], classes: Sequence[str] | None = None
) -> Recorded:
    """Take labels and probabilities out of a table.

    Parameters
    ----------
    table : DataFrame of shape (n_samples, n_columns)
        One prediction per row.
    label : str
        Column with the true label.
    proba : sequence of str
        Columns with the reported probabilities, one per class. With two classes one column
        is enough: the probability of the second, or of the one that its name ends with.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`; with one column, the class that it is not
        the probability of comes first. Default: the names of the columns without what they
        begin or end with in common, if these are the labels but for case and separators;
        else the sorted labels, if the columns are counted from 0 or 1. A single column whose
        name does not tell is the probability of the second label if labels are numbers.

    Returns
    -------
    Recorded

    Raises
    ------
    ValueError
        If a label is missing or unknown, the columns cannot be assigned to labels, or they
        do not hold probabilities.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.audit._recorded import recorded_predictions
    >>> table = pd.DataFrame({"y": ["no", "yes"], "p_yes": [0.1, 0.7], "p_no": [0.9, 0.3]})
    >>> recorded_predictions(table, "y", ["p_yes", "p_no"]).note
    'p_yes -> yes, p_no -> no'
    """
    if len(proba) == 0:
        raise ValueError("At least one column of probabilities must be named, got none.")
    names = [label, *proba]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"Column {twice[0]!r} is named twice; name each column once.")
    codes, known = _labels(table[label])
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"The classes must differ, got {', '.join(classes)}.")
    if len(proba) == 1:
        order = _two_classes(proba[0], known, classes)
        second = _probabilities(table, proba)
        values = np.hstack([1 - second, second])
        note = f"{proba[0]} -> {order[1]}, the rest to 1 -> {order[0]}"
    else:
        order = _order(proba, known, classes)
        values = _probabilities(table, proba)
        _check_sums(values)
        note = ", ".join(f"{name} -> {text}" for name, text in zip(proba, order, strict=True))
    unknown = ~np.isin(known, order)
    if unknown.any():
        row = int(unknown[codes].argmax())
        raise ValueError(
            f"Label {known[codes[row]]!r} in {_row(row)} of column {label!r} is none of the "
            f"classes {', '.join(order)}; every label needs a column of probabilities."
        )
    return Recorded(np.array(known)[codes], values, order, note)


def _labels(column: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """Code of the label in each row, and the texts of all labels, sorted by value."""
    import pandas as pd

    missing = column.isna().to_numpy()
    if missing.any():
        rows = "1 row" if missing.sum() == 1 else f"{missing.sum()} rows"
        raise ValueError(
            f"Column {column.name!r} has no label in {rows}, first in "
            f"{_row(int(missing.argmax()))}; fill them in or remove the rows."
        )
    codes, values = pd.factorize(column, sort=True)
    return codes, [as_text(value) for value in values]


def _two_classes(name: str, known: list[str], classes: Sequence[str] | None) -> list[str]:
    """Both labels, second the one whose probability a single column holds."""
    order = known if classes is None else list(classes)
    if len(order) != 2:
        raise ValueError(
            f"One column of probabilities ({name!r}) serves two classes, but there are "
            f"{len(order)}: {_some(order)}; name one column per class, or both classes."
        )
    named = match_name(name, order)
    if named is not None:
        if classes is not None and named != order[1]:
            raise ValueError(
                f"Column {name!r} is named after {named!r}, but of the classes "
                f"{', '.join(order)} it must be that of the last; turn them round."
            )
        return [text for text in order if text != named] + [named]
    if classes is None and not is_second(name, order):
        raise ValueError(
            f"It is not clear whether column {name!r} is the probability of {order[0]!r} or of "
            f"{order[1]!r}; name the classes, that of the column last (--classes)."
        )
    return order


def _order(proba: Sequence[str], known: list[str], classes: Sequence[str] | None) -> list[str]:
    """Label of each column."""
    if classes is not None:
        if len(classes) != len(proba):
            raise ValueError(
                f"There are {len(proba)} columns of probabilities and {len(classes)} classes; "
                "name one class per column."
            )
        return list(classes)
    order = match_names(proba, known)
    if order is None:
        raise ValueError(
            f"The classes of the columns {_some(proba)} are not clear, since the table has the "
            f"labels {_some(known)}; name the class of each column, in their order (--classes)."
        )
    return order


def _probabilities(table: pd.DataFrame, names: Sequence[str]) -> FloatArray:
    """Numbers in [0, 1], shape (n_samples, n_columns)."""
    import pandas as pd

    numbers = [pd.to_numeric(table[name], errors="coerce") for name in names]
    values = np.column_stack([n.to_numpy(np.float64, na_value=np.nan) for n in numbers])
    if len(names) > 1 and len(values) and (np.abs(values.sum(axis=1) - 100) < 1).all():
        raise ValueError(
            f"The columns {_some(names)} hold percentages, since all rows sum to about 100; "
            "divide them by 100."
        )
    wrong = ~((values >= 0) & (values <= 1 + ROW_SUM_TOLERANCE))
    if wrong.any():
        column = int(wrong.any(axis=0).argmax())
        row = int(wrong[:, column].argmax())
        cell = table[names[column]].iloc[row]
        found = "nothing" if pd.isna(cell) else repr(str(cell))
        raise ValueError(
            f"Column {names[column]!r} must hold probabilities in [0, 1], got {found} in "
            f"{_row(row)}."
        )
    return np.minimum(values, 1.0) if len(names) == 1 else values


def _check_sums(values: FloatArray) -> None:
    total = values.sum(axis=1)
    wrong = np.abs(total - 1) > ROW_SUM_TOLERANCE
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"The probabilities in {_row(row)} sum to {total[row]:.6g}, not to 1 within "
            f"{ROW_SUM_TOLERANCE:g}; name the columns of all classes, and write enough digits."
        )


def _row(position: int) -> str:
    return f"row {position + 1} (the header not counted)"


def _some(texts: Sequence[str], most: int = 5) -> str:
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
