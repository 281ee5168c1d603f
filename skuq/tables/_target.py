"""The target of a table: classes or quantities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_datetime64_dtype, is_integer_dtype

from skuq.base import FloatArray
from skuq.labels import as_text, counted
from skuq.tables._column_kinds import is_number
from skuq.tables._validation import TableError, place
from skuq.written_numbers import OTHER, NumberFormat, number_format, read_column

MAX_CLASSES = 20  # values of whole numbers that are taken for classes unasked
OFTEN = 10  # rows of each of more values from which on these may be classes after all


def is_regression(train: pd.DataFrame, target: str, task: str) -> bool:
    """Decide whether a target is a quantity: numbers with fractions, or of many values."""
    if task != "auto":
        return task == "regression"
    column = train[target].dropna().infer_objects()
    if is_bool_dtype(column) or not is_number(column):
        return False
    values = column.to_numpy(dtype=float)
    return not (values == np.round(values)).all() or len(np.unique(values)) > MAX_CLASSES


def quantity_notes(y: FloatArray, target: str) -> tuple[list[str], list[str]]:
    """Notes and warnings on whole numbers that were taken for quantities unasked."""
    n_values = len(np.unique(y))
    if not (y == np.round(y)).all():
        return [], []
    note = (
        f"The target {target} holds whole numbers of {n_values} values, which were taken for "
        'quantities; if they are classes, say so (`task="classification"`).'
    )
    return ([], [note]) if len(y) >= OFTEN * n_values else ([note], [])


def target_format(column: pd.Series, task: str, decimal: str | None) -> NumberFormat | None:
    """How the text of a target writes quantities; None if it does not, or is a class."""
    if task == "classification" or is_number(column):
        return None
    format = number_format(column, decimal)
    if format is None or task == "regression":
        return format
    numbers = pd.DataFrame({column.name: read_column(column, format)[0]})
    return format if is_regression(numbers, str(column.name), task) else None


def rows_with_target(
    table: pd.DataFrame, target: str, format: NumberFormat | None, which: str, decimal: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """The rows whose target is known, and warnings of the others.

    A target in text is read by its `format`, which is that in a file with the mark `decimal`.
    """
    if target not in table.columns:
        raise TableError(f"The {which} has no column {target!r}.")
    warned = []
    column = table[target]
    if format is not None and not is_number(column):
        format = format.in_file(table.attrs.get("decimal"), decimal)
        values, kinds = read_column(column, format)
        table = table.assign(**{target: values})
        bad = np.flatnonzero(kinds == OTHER)
        if len(bad):
            warned.append(
                f"The target {target} holds something other than a {format.form()} in "
                f"{counted(len(bad), 'row')} of the {which}, such as "
                f"{as_text(column.iloc[bad[0]])!r} ({place(table, int(bad[0]))})."
            )
    missing = table[target].isna().to_numpy()
    n_missing = int(missing.sum())
    if n_missing == 0:
        return table, warned
    if n_missing == len(table):
        raise TableError(
            f"The target {target!r} is missing in all rows of the {which}. (Words such as None and "
            "NA count as missing: rename a class of such a name.)"
        )
    warned.append(
        f"{counted(n_missing, 'row')} of the {which} without a target "
        f"{'was' if n_missing == 1 else 'were'} left out, the first one "
        f"{place(table, int(missing.argmax()))}."
    )
    return table[~missing], warned


def target_values(
    frame: pd.DataFrame,
    target: str,
    regression: bool,
    which: str,
    *,
    known: NDArray[Any] | None = None,  # training targets, whose classes are all there are
) -> NDArray[Any]:
    """The target of every row, checked: floats; or booleans, numbers or text."""
    column = frame[target].infer_objects()
    if regression:
        return _quantities(column, target, which)
    labels = _plain_labels(column)
    if known is None:
        _check_classes(labels, target)
        return labels
    # By their text: what one table stores as whole numbers may be floats or text in the other.
    meaning = {as_text(label): label for label in np.unique(known)}
    # Then by what two files may write differently, as 007 and 7, where one class alone has it.
    forms = [_form(text) for text in meaning]
    alike = {_form(text): label for text, label in meaning.items()}
    texts = [as_text(label) for label in labels]
    for text in {*texts} - {*meaning}:
        if forms.count(_form(text)) == 1:
            meaning[text] = alike[_form(text)]
    unknown = next((text for text in texts if text not in meaning), None)
    if unknown is not None:
        raise TableError(
            f"The target {target!r} of the {which} has the class {unknown!r}, which the training "
            "table lacks."
        )
    return np.array([meaning[text] for text in texts], dtype=known.dtype)


def _form(text: str) -> str:
    """A class without leading zeros, and yes and no in small letters."""
    if text.isdigit():
        return text.lstrip("0") or "0"
    return text.lower() if text.lower() in ("true", "false") else text


def _quantities(column: pd.Series, target: str, which: str) -> FloatArray:
    if not is_number(column) or is_bool_dtype(column):
        value = next((value for value in column if not isinstance(value, float)), column.iloc[0])
        raise TableError(
            f"The target {target!r} does not hold numbers, but values such as {str(value)!r}; "
            'write plain numbers in one unit, or predict classes (`task="classification"`).'
        )
    values: FloatArray = column.to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise TableError(f"The target {target!r} of the {which} holds infinite numbers.")
    if values.min() == values.max():
        raise TableError(
            f"The target {target!r} of the {which} is {values[0]:g} in every row; there is nothing "
            "to predict."
        )
    return values


def _check_classes(labels: NDArray[Any], target: str) -> None:
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == labels.round())).all():
        raise TableError(
            f"The target {target!r} holds continuous numbers, not classes; group it into "
            'classes first, or predict the numbers (`task="regression"`).'
        )
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise TableError(f"The target {target!r} must hold at least 2 classes, got {len(classes)}.")
    if counts.min() < 2:
        raise TableError(
            f"{(counts < 2).sum()} of the {len(classes)} classes of the target {target!r} have "
            f"a single row, such as {as_text(classes[counts.argmin()])!r}; at least 2 are "
            "needed. Merge or remove rare classes; a name is not a class, and a quantity needs "
            '`task="regression"`.'
        )


def classes_as_given(values: NDArray[Any], column: pd.Series) -> NDArray[Any]:
    """Classes, dates among them, which learners take as text, as the training table has them."""
    dates = is_datetime64_dtype(column) or infer_dtype(column, skipna=True) == "date"
    return values.astype("datetime64[ns]") if dates else values


def _plain_labels(column: pd.Series) -> NDArray[Any]:
    if is_bool_dtype(column):
        return column.to_numpy(dtype=bool)
    if is_integer_dtype(column):
        return column.to_numpy(dtype=np.int64)
    if is_number(column):
        return column.to_numpy(dtype=float)
    return np.array([as_text(value) for value in column])
