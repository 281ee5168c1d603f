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
from skuq.tables._validation import TableError, place, separator_hint
from skuq.written_numbers import OTHER, NumberFormat, number_format, read_column

MAX_CLASSES = 20  # maximum number of distinct integers for which task="auto" means classification
# If the number of rows, divided by the number of distinct integers, is at least this number, it is
# doubtful whether the task is a regression.
OFTEN = 10


def is_regression(train: pd.DataFrame, target: str, task: str) -> bool:
    """Whether the task is regression; "auto" decides so for fractions or many distinct values."""
    if task != "auto":
        return task == "regression"
    column = train[target].dropna().infer_objects()
    if is_bool_dtype(column) or not is_number(column):
        return False
    values = column.to_numpy(dtype=float)
    return not (values == np.round(values)).all() or len(np.unique(values)) > MAX_CLASSES


def quantity_notes(y: FloatArray, target: str) -> tuple[list[str], list[str]]:
    """Notes and warnings on integer targets that task="auto" treats as quantities."""
    n_values = len(np.unique(y))
    if not (y == np.round(y)).all():
        return [], []
    note = (
        f"The target {target} has {n_values} distinct whole numbers, which were treated as "
        'quantities; if they are classes, pass `task="classification"`.'
    )
    return ([], [note]) if len(y) >= OFTEN * n_values else ([note], [])


def target_format(column: pd.Series, task: str, decimal: str | None) -> NumberFormat | None:
    """Number format of a quantity stored as text; None if the target is numeric or a class."""
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
    """Return the rows with a target, and warnings about the other rows.

    A target stored as text is parsed with `format`, which was detected in a file with the decimal
    mark `decimal`.
    """
    if target not in table.columns:
        raise TableError(f"The {which} has no column {target!r}.{separator_hint(table)}")
    warned = []
    column = table[target]
    if format is not None and not is_number(column):
        format = format.in_file(table.attrs.get("decimal"), decimal)
        values, kinds = read_column(column, format)
        table = table.assign(**{target: values})
        bad = np.flatnonzero(kinds == OTHER)
        if len(bad):
            warned.append(
                f"The target {target} is not a {format.form()} in "
                f"{counted(len(bad), 'row')} of the {which}, such as "
                f"{as_text(column.iloc[bad[0]])!r} ({place(table, int(bad[0]))})."
            )
    missing = table[target].isna().to_numpy()
    n_missing = int(missing.sum())
    if n_missing == 0:
        return table, warned
    if n_missing == len(table):
        raise TableError(
            f"The target {target!r} is missing in all rows of the {which}. Words such as None and "
            f"NA in a file count as missing: if they are classes, read the table with "
            f"`text_columns=[{target!r}]`."
        )
    warned.append(
        f"{counted(n_missing, 'row')} of the {which} without a target "
        f"{'was' if n_missing == 1 else 'were'} dropped; the first is "
        f"{place(table, int(missing.argmax()))}."
    )
    return table[~missing], warned


def target_values(
    frame: pd.DataFrame,
    target: str,
    regression: bool,
    which: str,
    *,
    known: NDArray[Any] | None = None,  # training targets; classes not among them are refused
) -> NDArray[Any]:
    """Return the checked target of each row: floats for regression, else class labels."""
    column = frame[target].infer_objects()
    if regression:
        return _quantities(column, target, which)
    labels = _plain_labels(column)
    if known is None:
        _check_classes(labels, target)
        return labels
    # Match labels as text: integers in one table may be floats or text in the other.
    meaning = {as_text(label): label for label in np.unique(known)}
    # If a text matches no class, compare it without leading zeros (007 equals 7) and, for booleans,
    # without case. Use this second match only if it is unique.
    forms = [_form(text) for text in meaning]
    alike = {_form(text): label for text, label in meaning.items()}
    texts = [as_text(label) for label in labels]
    for text in {*texts} - {*meaning}:
        if forms.count(_form(text)) == 1:
            meaning[text] = alike[_form(text)]
    unknown = next((text for text in texts if text not in meaning), None)
    if unknown is not None:
        raise TableError(
            f"The target {target!r} of the {which} has the class {unknown!r}, which is not in the "
            "training table; remove its rows, or train with this class."
        )
    return np.array([meaning[text] for text in texts], dtype=known.dtype)


def _form(text: str) -> str:
    """Normalise a class label: strip leading zeros, and write booleans in lower case."""
    if text.isdigit():
        return text.lstrip("0") or "0"
    return text.lower() if text.lower() in ("true", "false") else text


def _quantities(column: pd.Series, target: str, which: str) -> FloatArray:
    if not is_number(column) or is_bool_dtype(column):
        value = next((value for value in column if not isinstance(value, float)), column.iloc[0])
        raise TableError(
            f"The target {target!r} must be numeric, got values such as {str(value)!r}; "
            'write plain numbers in one unit, or predict classes (`task="classification"`).'
        )
    values: FloatArray = column.to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise TableError(
            f"The target {target!r} of the {which} has infinite values; correct or remove them."
        )
    if values.min() == values.max():
        raise TableError(
            f"The target {target!r} of the {which} must vary, got {values[0]:g} in every row."
        )
    return values


def _check_classes(labels: NDArray[Any], target: str) -> None:
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == labels.round())).all():
        raise TableError(
            f"The target {target!r} has continuous numbers, not classes; bin them into "
            'classes, or predict the numbers (`task="regression"`).'
        )
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise TableError(f"The target {target!r} must have at least 2 classes, got {len(classes)}.")
    if counts.min() < 2:
        raise TableError(
            f"{(counts < 2).sum()} of the {len(classes)} classes of the target {target!r} have "
            f"a single row, such as {as_text(classes[counts.argmin()])!r}; at least 2 are "
            "needed. Merge or remove rare classes, or predict a quantity "
            '(`task="regression"`).'
        )


def classes_as_given(values: NDArray[Any], column: pd.Series) -> NDArray[Any]:
    """Convert predicted classes back to the type of the training column, such as text to dates."""
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
