"""Class labels as text and as integer codes, and validation of class probabilities."""

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import IntArray
from skuq.imports import shown
from skuq.validation import as_array, check_same_length, checked_labels, floats, one_target


def as_text(value: Any) -> str:
    """Convert to text; 2.0 becomes "2", since integers may be stored as floats (with NaN)."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar, which is shown in messages without its type."""
    is_number = isinstance(value, np.generic) and value.dtype.kind not in "mM"
    return value.item() if is_number else value


def probability_columns(classes: NDArray[Any]) -> list[str]:
    """Make column names for probabilities, such as ``p(yes)``."""
    # `tolist` would convert dates to integers.
    labels = list(classes) if classes.dtype.kind == "M" else classes.tolist()
    return [f"p({as_text(label)})" for label in labels]


def true_name(target: str) -> str:
    """Name the column of true values in results so that it differs from other columns."""
    return f"{target} (true)"


def classes_of_columns(names: Iterable[str]) -> dict[str, str]:
    """Map names of probability columns to the labels that they contain; skip other columns."""
    return {name: name[2:-1] for name in names if name.startswith("p(") and name.endswith(")")}


def column_names(table: Any) -> list[Any] | None:
    """Return the column names of a table or array; None for 0, 1, ... or Polars' column_0, ..."""
    if isinstance(table, np.ndarray):
        names = table.dtype.names
    else:  # look at the class, because an attribute of the object may be a column
        attribute = "column_names" if hasattr(type(table), "column_names") else "columns"
        names = getattr(table, attribute, None)
    if names is None:
        return None
    names = list(names)
    positions = range(len(names))
    is_default = names in (list(positions), [f"column_{k}" for k in positions])
    return None if is_default else names


def labels_of_columns(names: Sequence[Any], known: NDArray[Any]) -> NDArray[Any] | None:
    """Find labels, (n_columns,), of columns named ``yes`` or ``p(yes)``; None if there are none.

    Each of the `known` labels must have a column, and each name must be convertible to the type of
    the labels; otherwise, None.
    """
    texts = list(map(as_text, names))
    of_text = {str(label): label for label in known.tolist()}
    of_text |= {as_text(label): label for label in known.tolist()}
    if known.dtype.kind == "b":
        of_text |= {"False": False, "True": True}
    required = set(map(as_text, known.tolist()))
    in_brackets = classes_of_columns(texts)
    for candidates in (texts, [in_brackets.get(text, "") for text in texts]):
        labels = [of_text.get(text, text) for text in candidates]
        if required <= set(map(as_text, labels)):
            try:  # names of further columns are converted to the type of the known labels
                return np.array(labels).astype(known.dtype if known.dtype.kind != "U" else str)
            except ValueError:
                return None
    return None


def label_in_name(name: Any, own: str, labels: Sequence[str]) -> str:
    """Find the longest label at the end of a column's name, or ""; in a tie, `own` wins."""
    endings = [text for text in labels if _spaced(as_text(name)).endswith(_spaced(text))]
    return max(endings, key=lambda text: (len(text), text == own), default="")


def check_one_order(texts: Sequence[str]) -> None:
    """Raise ValueError if labels, such as g2 and g10, sort differently as text and by number."""

    def as_numbers(text: str) -> list[tuple[float, str]]:
        parts = re.split(r"(-?\d+(?:\.\d+)?)", text)
        return [(float(p), "") if k % 2 else (-np.inf, p) for k, p in enumerate(parts)]

    natural = sorted(texts, key=as_numbers)
    if natural != [*texts]:
        raise ValueError(
            f"The columns may be in the order {', '.join(texts)} of their labels, or in the order "
            f"{', '.join(natural)}: pass `classes`, or name each column after its label."
        )


def _spaced(text: str) -> str:
    return text.replace("_", " ").casefold()


def counted(number: float, noun: str) -> str:
    """Format a number with a noun, such as "1 row" or "2 rows"."""
    return f"{amount(number)} {noun}{'' if number == 1 else 's'}"


def amount(number: float) -> str:
    """Format a number: integers as they are, other numbers (sums of weights) with one decimal."""
    return f"{number:,}" if isinstance(number, Integral) else f"{number:,.1f}"


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Find positions of labels among classes; unknown labels raise a ValueError about `name`."""
    codes = positions_of(labels, classes)
    unknown = labels[codes < 0]
    if len(unknown):
        distinct = list(dict.fromkeys(unknown.tolist()))
        raise ValueError(
            f"`{name}` has labels that are not among the classes: {distinct[:5]} not in "
            f"{classes[:5].tolist()}{' ...' if len(classes) > 5 else ''}."
        )
    return codes


def proportional_order(
    labels: NDArray[Any], order: NDArray[np.int64], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Reorder rows so that the first k rows are stratified by class, for every k.

    The number of rows of each class among the first k is rounded at random, so that these sometimes
    include a rare class. `order` is a random permutation.
    """
    codes = np.unique(labels, return_inverse=True)[1][order]
    place = np.empty(len(order))
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        place[own] = (np.arange(len(own)) + random.uniform()) / len(own)
    return order[np.argsort(place, kind="stable")]


def confidence_at(codes: IntArray, proba: NDArray[Any]) -> NDArray[Any]:
    """Select the probability of each predicted class; 0 for rejected rows (with code -1)."""
    own = np.take_along_axis(proba, codes.clip(0)[:, None], axis=1)[:, 0]
    return np.where(codes < 0, own.dtype.type(0), own)


def decided_codes(estimator: Any, X: Any, proba: NDArray[Any], classes: NDArray[Any]) -> IntArray:
    """Predict classes, as positions among `classes`; see `positions_of`."""
    if not hasattr(estimator, "predict"):  # a client of a served model
        return proba.argmax(axis=1)
    return positions_of(np.ravel(estimator.predict(X)), classes)


def positions_of(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Find the position of each label among the classes; -1 for unknown labels."""
    if _can_be_ordered(labels.dtype, classes.dtype):
        order = np.argsort(classes)
        place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
        codes = order[place].astype(np.int64, copy=False)
        codes[classes[codes] != labels] = -1
        return codes
    # Python objects of mixed types can be tested for equality, but not sorted.
    known = {label: code for code, label in enumerate(classes.tolist())}
    return np.array([known.get(label, -1) for label in labels.tolist()], np.int64)


def _can_be_ordered(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether NumPy compares values of these two dtypes exactly."""
    kinds = {one.kind, other.kind}
    if kinds == {"i", "u"}:  # int64 and uint64 are compared as floats, with 53 bits
        return np.promote_types(one, other).kind != "f"
    return kinds == {"U"} or kinds <= set("biuf")  # numbers cannot be compared with strings


def labels_in_mask(X: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Select the labels of the nodes `X`; if `X` is a mask, `y` may contain labels of all nodes."""
    mask = np.asarray(X)
    y = one_target(y)
    return y[mask] if mask.dtype == bool and mask.shape == y.shape else y


# Tolerated deviation of row sums from 1, far above that of a float32 softmax over 1000s of classes.
ROW_SUM_TOLERANCE = 1e-4
# Largest rounding error of a row sum, in units of the spacing of floats below 1: 1/2 for rounding
# the probabilities, 1/2 for rounding their sum, and 1 for a softmax computed in the same precision.
_ROUNDING_OF_ROWS = 2
_MOST_DECIMALS = 6  # the effect of rounding to more decimals is within ROW_SUM_TOLERANCE
_LARGEST_ROUNDING = 0.05  # maximum tolerance of row sums; beyond it, a class may be missing


class LabelledProbabilities(NamedTuple):
    """Validated probabilities with the label of each column."""

    column: IntArray  # column of each sample's true label
    proba: NDArray[Any]
    classes: NDArray[Any]  # labels in the order of the columns


def columns_and_proba(
    y_true: ArrayLike, proba: ArrayLike, classes: ArrayLike | None
) -> LabelledProbabilities:
    """Validate probabilities and find the column of each true label.

    Columns that are named after labels are matched by name and returned in the order of `classes`.
    """
    labels = checked_labels(y_true, "y_true")
    values, named = _read_by_name(proba, _known_labels(labels, classes), stated=classes is not None)
    checked = checked_proba(values)
    check_same_length(y_true=labels, proba=checked)
    if len(named) != checked.shape[1]:
        raise ValueError(
            f"`proba` has {checked.shape[1]} columns, but "
            f"{'`y_true`' if classes is None else '`classes`'} has {len(named)} labels; pass "
            "`classes=estimator.classes_`, one label per column."
        )
    try:
        return LabelledProbabilities(codes_of(labels, named, "y_true"), checked, named)
    except ValueError as error:
        raise ValueError(f"{error} Pass `classes=estimator.classes_`.") from None


def labels_of_proba(y_true: ArrayLike, proba: ArrayLike, classes: ArrayLike | None) -> NDArray[Any]:
    """Return the column labels as `columns_and_proba` does, without validating the values."""
    known = _known_labels(checked_labels(y_true, "y_true"), classes)
    return _order_by_name(column_names(proba), known, stated=classes is not None)[0]


def _known_labels(labels: NDArray[Any], classes: ArrayLike | None) -> NDArray[Any]:
    """Return the labels in `classes` or, if it is None, in the data."""
    known = np.unique(labels) if classes is None else checked_labels(classes, "classes")
    if len(np.unique(known)) != len(known):
        raise ValueError(f"`classes` must not repeat a label, got {known.tolist()}.")
    return known


def proba_of_classes(proba: Any, classes: NDArray[Any]) -> NDArray[Any]:
    """Convert probabilities to an array; match a table's columns with the classes by name."""
    return np.asarray(_read_by_name(proba, classes, stated=True)[0])


def _read_by_name(proba: Any, known: NDArray[Any], *, stated: bool) -> tuple[Any, NDArray[Any]]:
    """Return values and column labels; `stated` says whether the user passed the `known` labels."""
    names = column_names(proba)
    order, columns = _order_by_name(names, known, stated=stated)
    if names is None:
        return proba, order
    if isinstance(proba, np.ndarray):  # a structured array
        values = np.column_stack([proba[name] for name in names])
    else:
        values = np.asarray(proba)
    return (values if columns is None else values[:, columns]), order


def _order_by_name(
    names: list[Any] | None, known: NDArray[Any], *, stated: bool
) -> tuple[NDArray[Any], IntArray | None]:
    """Find the order of labels for the output, and the columns to select (None: as they are)."""
    if names is None:
        return known, None
    if len(set(names)) != len(names):
        raise ValueError(f"The columns of `proba` must have different names, got {names}.")
    named = labels_of_columns(names, known)
    if named is None or (stated and len(named) != len(known)):
        if len(names) == len(known):
            _check_names(names, known, stated=stated)
        return known, None
    order = known if len(named) == len(known) else np.unique(named)
    columns = codes_of(order, named, "proba")
    return order, None if (columns == np.arange(len(columns))).all() else columns


def _check_names(names: list[Any], known: NDArray[Any], *, stated: bool) -> None:
    texts = list(map(as_text, known.tolist()))
    if not stated and known.dtype.kind in "OU":
        check_one_order(texts)
    for name, own in zip(names, texts, strict=True):
        if stated:  # names that are not labels do not contradict the order of `classes`
            found = as_text(name) if as_text(name) in texts else own
        else:
            found = label_in_name(name, own, texts)
        if found != own:
            raise ValueError(
                f"The columns of `proba` are named {', '.join(map(shown, names[:5]))}, and the "
                f"labels are {', '.join(map(shown, texts[:5]))}. Read by position, column {name!r} "
                f"would contain the probability of {own!r}. Name each column after its label, or "
                "pass `classes`, the labels in the order of the columns."
            )


def decimals_of(proba: NDArray[Any]) -> int | None:
    """Find the number of decimals to which probabilities are rounded; None if more than 6."""
    precision = float(np.finfo(proba.dtype).eps)
    for decimals in range(1, _MOST_DECIMALS + 1):
        scaled = proba * proba.dtype.type(10**decimals)
        # Test 100 values first: if one of them has more decimals, the others need no test.
        if all(
            bool((np.abs(part - np.round(part)) <= precision * 10**decimals).all())
            for part in (scaled[:100], scaled)
        ):
            return decimals
    return None


def rounded_sum_tolerance(n_classes: int, decimals: int | None) -> float:
    """Compute a tolerance for row sums of probabilities that are each rounded to `decimals`."""
    if decimals is None or decimals < 2:  # with one decimal, wrong sums differ from 1 by >= 0.1
        return ROW_SUM_TOLERANCE
    rounding = min(n_classes * 0.5 * 10.0**-decimals, _LARGEST_ROUNDING)
    # The factor 1 + 1e-6 covers the rounding error of the sum itself.
    return max(ROW_SUM_TOLERANCE, rounding * (1 + 1e-6))


def _row_sum_tolerance(values: Any, proba: NDArray[Any]) -> float:
    """Compute a tolerance for row sums, from the input `values` and their floats `proba`."""
    name = str(getattr(values, "dtype", "")).removeprefix("torch.")
    spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(name, 0.0)
    tolerance = max(ROW_SUM_TOLERANCE, _ROUNDING_OF_ROWS * spacing)
    return max(tolerance, rounded_sum_tolerance(proba.shape[1], decimals_of(proba)))


def checked_proba(values: ArrayLike) -> NDArray[Any]:
    """Validate probabilities, (n_samples, n_classes); returns float32 or higher precision."""
    proba = as_array(values)
    if proba.dtype.kind != "f":
        proba = floats(proba, "proba")
    if proba.dtype.itemsize < 4:
        # Scores clip probabilities at the epsilon of the dtype, which is too large for float16.
        proba = proba.astype(np.float32)
    if proba.ndim != 2 or proba.size == 0:
        raise ValueError(
            "`proba` must have shape (n_samples, n_classes) and not be empty, got "
            f"{proba.shape}; with two classes, pass both columns of `predict_proba`."
        )
    total = proba.sum(axis=1, dtype=np.float64)
    if not np.isfinite(total).all():
        raise ValueError(f"`proba` must be finite, got {proba[~np.isfinite(total)][0]}.")
    if proba.min() < 0:
        raise ValueError(
            f"`proba` must be >= 0, got {proba.min():.6g}; pass probabilities, not logits."
        )
    worst = np.abs(total - 1.0).argmax()
    deviation = abs(total[worst] - 1.0)
    if deviation > ROW_SUM_TOLERANCE and deviation > (
        tolerance := _row_sum_tolerance(values, proba)
    ):
        cure = "convert to float64 and divide each row by its sum"
        raise ValueError(
            f"rows of `proba` must sum to 1 within {tolerance:.6g}, got {total[worst]:.6g} in row "
            f"{worst}; {cure if proba.shape[1] > 1 else 'with two classes, pass both columns'}."
        )
    return proba
