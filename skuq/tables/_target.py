"""The target of a table: classes or quantities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_integer_dtype

from skuq.base import FloatArray
from skuq.labels import as_text
from skuq.tables._columns import is_number
from skuq.tables._dates_and_units import UnitColumn, unit_column
from skuq.tables._validation import TableError

MAX_CLASSES = 20  # values of whole numbers that are taken for classes unasked


def is_regression(train: pd.DataFrame, target: str, task: str) -> bool:
    """Decide whether a target is a quantity; refuse to guess where it may be either."""
    if task != "auto":
        return task == "regression"
    column = train[target].dropna().infer_objects()
    if is_bool_dtype(column) or not is_number(column):
        return False
    values = column.to_numpy(dtype=float)
    if not (values == np.round(values)).all():
        return True
    n_values = len(np.unique(values))
    if n_values > MAX_CLASSES:
        raise TableError(
            f"The target {target!r} holds whole numbers of {n_values} values, which may be classes "
            "or quantities; say which (--task classification or --task regression)."
        )
    return False


def target_unit(column: pd.Series, task: str) -> UnitColumn | None:
    """How the text of a target stands for quantities; None if it does not, or is a class."""
    unit = None if task == "classification" else unit_column(column)
    if unit is None or task == "regression":
        return unit
    numbers = pd.DataFrame({column.name: unit.numbers(column)})
    return unit if is_regression(numbers, str(column.name), task) else None


def target_values(
    frame: pd.DataFrame,
    target: str,
    regression: bool,
    which: str,
    *,
    known: NDArray[Any] | None = None,  # training targets, whose classes are all there are
) -> NDArray[Any]:
    """The target of every row, checked: floats; or booleans, numbers or text."""
    if target not in frame.columns:
        raise TableError(f"The {which} has no column {target!r}.")
    column = frame[target]
    if column.isna().any():
        raise TableError(
            f"The target {target!r} is missing in {int(column.isna().sum())} rows of the {which}; "
            "fill them in or remove them. (Words such as None and NA count as missing: rename a "
            "class of such a name.)"
        )
    column = column.infer_objects()
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
            "write plain numbers in one unit, or predict classes (--task classification)."
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
            "classes first, or predict the numbers (--task regression)."
        )
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise TableError(f"The target {target!r} must hold at least 2 classes, got {len(classes)}.")
    if counts.min() < 2:
        raise TableError(
            f"{(counts < 2).sum()} of the {len(classes)} classes of the target {target!r} have "
            f"a single row, such as {as_text(classes[counts.argmin()])!r}; at least 2 are "
            "needed. Merge or remove rare classes; a name is not a class, and a quantity needs "
            "--task regression."
        )


def _plain_labels(column: pd.Series) -> NDArray[Any]:
    if is_bool_dtype(column):
        return column.to_numpy(dtype=bool)
    if is_integer_dtype(column):
        return column.to_numpy(dtype=np.int64)
    if is_number(column):
        return column.to_numpy(dtype=float)
    return np.array([as_text(value) for value in column])
