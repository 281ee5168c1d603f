"""Arguments that several packages read and check alike, and warnings that point at the caller."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from inspect import signature
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import infer_dtype
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.labels import codes_of

_LIBRARIES = ("skuq", "sklearn", "joblib", "torch")
#: Losses of one prediction: of labels, and two of quantities.
Loss = Literal["zero_one", "squared_error", "absolute_error"]
MOST_BINS = 10_000  # finer ones hold few predictions each, and a scan compares all runs of them
ROW_SUM_TOLERANCE = 1e-4  # a float32 softmax over thousands of classes stays well within


def columns_and_proba(
    y_true: ArrayLike, proba: ArrayLike, classes: ArrayLike | None
) -> tuple[IntArray, NDArray[Any]]:
    """Column of each true label, and the probabilities, checked."""
    labels, checked = checked_labels(y_true, "y_true"), _probabilities(proba)
    check_same_length(y_true=labels, proba=checked)
    names = np.unique(labels) if classes is None else checked_labels(classes, "classes")
    if len(names) != checked.shape[1]:
        raise ValueError(
            f"`proba` has {checked.shape[1]} columns, but "
            f"{'`y_true`' if classes is None else '`classes`'} has {len(names)} labels; pass "
            "`classes=estimator.classes_`, one label per column."
        )
    if len(np.unique(names)) != len(names):
        raise ValueError(f"`classes` must not repeat a label, got {names.tolist()}.")
    try:
        return codes_of(labels, names, "y_true"), checked
    except ValueError as error:
        raise ValueError(f"{error} Pass `classes=estimator.classes_`.") from None


def errors_and_uncertainty(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    sample_weight: ArrayLike | None = None,
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Check the inputs; return errors of the predictions, their uncertainty and weights.

    Samples of weight 0 are left out.
    """
    truth, predicted = checked_labels(y_true, "y_true"), checked_labels(y_pred, "y_pred")
    scores = finite(uncertainty, "uncertainty")
    check_same_length(y_true=truth, y_pred=predicted, uncertainty=scores)
    if (truth.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise ValueError(
            f"`y_true` has labels of dtype {truth.dtype} and `y_pred` of dtype "
            f"{predicted.dtype}; pass predictions in the same form as the true labels."
        )
    _refuse_quantities(y_true=truth, y_pred=predicted)
    return _counted(truth != predicted, scores, sample_weight)


def losses_and_uncertainty(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    loss: Loss,
) -> tuple[NDArray[Any], FloatArray, FloatArray]:
    """Check the inputs; return the loss of each prediction, its uncertainty and weight.

    Samples of weight 0 are left out.
    """
    if loss not in get_args(Loss):
        raise ValueError(f"`loss` must be one of {get_args(Loss)}, got {loss!r}.")
    if loss == "zero_one":
        return errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    truth, predicted = finite(y_true, "y_true"), finite(y_pred, "y_pred")
    scores = finite(uncertainty, "uncertainty")
    check_same_length(y_true=truth, y_pred=predicted, uncertainty=scores)
    error = np.abs(predicted - truth)
    return _counted(error**2 if loss == "squared_error" else error, scores, sample_weight)


def _counted(
    losses: NDArray[Any], scores: FloatArray, sample_weight: ArrayLike | None
) -> tuple[NDArray[Any], FloatArray, FloatArray]:
    """Losses, uncertainty and weights of the samples whose weight is not 0."""
    if sample_weight is None:
        return losses, scores, np.ones(len(scores))
    weight = weights(sample_weight, len(scores))
    counted = weight > 0
    return losses[counted], scores[counted], weight[counted]


def _refuse_quantities(**arrays: NDArray[Any]) -> None:
    """Refuse numbers with decimals, as scikit-learn does in labels: a prediction never hits one."""
    for name, values in arrays.items():
        fraction = values != np.floor(values) if values.dtype.kind == "f" else np.zeros(1, bool)
        if fraction.any():
            raise ValueError(
                f"`{name}` must hold labels, got the quantity {values[fraction][0]:g} in row "
                f"{fraction.argmax()}. The errors of quantities are measured by "
                "`area_under_risk_coverage`, `risk_coverage_curve` and `RiskCoverageDisplay` with "
                "`loss='squared_error'` or `loss='absolute_error'`, which `uncertainty_scorer` "
                "takes too."
            )


def weights(sample_weight: ArrayLike, n_samples: int) -> FloatArray:
    """Sample weights as a float64 array, checked."""
    weight = finite(sample_weight, "sample_weight")
    if len(weight) != n_samples:
        raise ValueError(
            f"`sample_weight` must have one weight per sample, got {len(weight)} weights for "
            f"{n_samples} samples."
        )
    if weight.min() < 0 or weight.max() == 0:
        raise ValueError(
            "`sample_weight` must be >= 0 and not all 0, got weights from "
            f"{weight.min():.6g} to {weight.max():.6g}."
        )
    return weight


def check_n_bins(n_bins: Any) -> None:
    """Refuse a number of bins that cannot be."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral):
        raise ValueError(f"`n_bins` must be an integer, got {n_bins!r}.")
    if not 1 <= int(n_bins) <= MOST_BINS:
        raise ValueError(f"`n_bins` must be from 1 to {MOST_BINS:,}, got {n_bins:,}.")


def check_some_samples(X: Any, owner: Any) -> None:
    """Refuse tables and lists without rows, as scikit-learn refuses arrays, for an estimator."""
    if _num_samples(X) == 0:
        raise ValueError(
            f"Found {type(X).__name__} with 0 sample(s) while a minimum of 1 is required by "
            f"{type(owner).__name__}."
        )


def sum_rounding(n_terms: int) -> float:
    """Upper bound on the relative rounding error when comparing two sums of n weights."""
    return 2 * n_terms * float(np.finfo(np.float64).eps)


def weighted_mean(values: FloatArray, sample_weight: ArrayLike | None) -> float:
    """Mean over the samples; one of weight 0 is left out, even if its value is infinite."""
    if sample_weight is None:
        return float(values.mean())
    weight = weights(sample_weight, len(values))
    counted = weight > 0
    return float(np.average(values[counted], weights=weight[counted]))


def numbers(values: ArrayLike, name: str) -> FloatArray:
    """One-dimensional float64 array that is not empty."""
    array = _floats(values, name)
    _check_one_dimensional(array, name)
    return array


def finite(values: ArrayLike, name: str) -> FloatArray:
    """One-dimensional float64 array without NaN or infinity."""
    array = numbers(values, name)
    bad = ~np.isfinite(array)
    if bad.any():
        raise ValueError(
            f"`{name}` must be finite, got {array[bad][0]} in row {bad.argmax()}; clip infinite "
            "values and drop missing ones first."
        )
    return array


def finite_columns(values: ArrayLike, name: str) -> FloatArray:
    """Two-dimensional float64 array without NaN or infinity."""
    array = _floats(values, name)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"`{name}` must have two dimensions, one row per sample and at least one column, got "
            f"shape {array.shape}."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        raise ValueError(
            f"`{name}` must be finite, got {array[bad][0]} in row {bad.any(axis=1).argmax()}; drop "
            "such rows first."
        )
    return array


def checked_labels(values: ArrayLike, name: str) -> NDArray[Any]:
    """One-dimensional array of numbers, booleans or strings."""
    array = np.asarray(values)
    _check_one_dimensional(array, name)
    # Strings of a pandas column are objects; as fixed-width text they compare faster.
    labels = np.array(array.tolist()) if array.dtype.kind in "OT" else array
    if labels.dtype.kind not in "biufU" or (array != array).any():
        raise ValueError(
            f"`{name}` must hold only numbers, booleans or strings, got missing or other values "
            f"in an array of dtype {array.dtype}; drop or encode them first."
        )
    return labels


def _probabilities(values: ArrayLike) -> NDArray[Any]:
    """Two-dimensional floating array whose rows are distributions, dtype kept."""
    proba = np.asarray(values)
    if proba.dtype.kind != "f":
        proba = _floats(proba, "proba")
    if proba.ndim != 2:
        raise ValueError(
            f"`proba` must have shape (n_samples, n_classes), got {proba.shape}; with two "
            "classes pass both columns of `predict_proba`."
        )
    if proba.size == 0:
        raise ValueError(f"`proba` must not be empty, got shape {proba.shape}.")
    total = proba.sum(axis=1, dtype=np.float64)
    if not np.isfinite(total).all():
        raise ValueError(f"`proba` must be finite, got {proba[~np.isfinite(total)][0]}.")
    if proba.min() < 0:
        raise ValueError(
            f"`proba` must be >= 0, got {proba.min():.6g}; pass probabilities, not logits."
        )
    worst = np.abs(total - 1.0).argmax()
    if abs(total[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"rows of `proba` must sum to 1 within {ROW_SUM_TOLERANCE}, got {total[worst]:.6g} "
            f"in row {worst}; divide each row by its sum."
        )
    return proba


def _floats(values: ArrayLike, name: str) -> FloatArray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:  # pandas.NA, and texts
        raise ValueError(
            f"`{name}` must be finite, got values that are not numbers; drop missing ones first "
            f"({error})."
        ) from error


def _check_one_dimensional(array: NDArray[Any], name: str) -> None:
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be one-dimensional, got shape {array.shape}.")
    if len(array) == 0:
        raise ValueError(f"`{name}` must not be empty, got no values.")


def check_same_length(**arrays: NDArray[Any]) -> None:
    lengths = [len(array) for array in arrays.values()]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in arrays)} must have one row per sample each, "
            f"got {', '.join(map(str, lengths))} rows."
        )


def column_of(X: Any, name: Any) -> Any:
    """One column of a table, by name or position, or an error that lists the columns."""
    columns = getattr(X, "columns", None)
    if isinstance(name, str) and columns is None:
        raise ValueError(f"Column {name!r} is named, but X is not a data frame; give the position.")
    table = X if columns is not None else X.tocsc() if issparse(X) else _flat(np.asarray(X))
    try:
        if issparse(table):  # sparse arrays have no one-dimensional columns before scipy 1.15
            return _safe_indexing(table, [name], axis=1).toarray().ravel()
        return _safe_indexing(table, name, axis=1)
    except (ValueError, IndexError, KeyError) as error:
        known = f"columns {list(columns)}" if columns is not None else f"shape {table.shape}"
        raise ValueError(f"There is no column {name!r}: X has {known}.") from error


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Array of which each sample is a row."""
    return array.reshape(len(array), -1) if array.ndim > 2 else array


def user_stacklevel() -> int:
    """`stacklevel`, for a warning of the caller, of the first frame outside the libraries."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    return level


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that led here."""
    warnings.warn(message, category, stacklevel=user_stacklevel())


def refuse_ineffective(estimator: Any, names: Iterable[str], context: str) -> None:
    """Refuse parameters that are not at their default although they cannot have an effect.

    `context` says why, and what would work: the end of a sentence after "has no effect".
    """
    defaults = signature(type(estimator)).parameters
    changed = [
        f"{name}={getattr(estimator, name)!r}"
        for name in names
        if not _same(getattr(estimator, name), defaults[name].default)
    ]
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        raise ValueError(f"{', '.join(changed)} {verb} no effect {context}")


def _same(value: Any, default: Any) -> bool:
    """Whether a parameter is at its default; arrays compare as their values."""
    if value is default:
        return True
    try:
        return bool(np.array_equal(value, default)) and type(value) is type(default)
    except (TypeError, ValueError):
        return False


def checked_widths(hidden_sizes: Any) -> tuple[int, ...]:
    """Widths of hidden layers; an error if one is not a positive integer."""
    widths = tuple(hidden_sizes)
    if not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise ValueError(f"`hidden_sizes` must hold positive integers, got {hidden_sizes!r}.")
    return widths


def as_pandas(X: Any) -> Any:
    """Return a table of another library, such as Polars, as a DataFrame; others as they are."""
    names = getattr(X, "column_names", None)  # of pyarrow, whose `columns` are the values
    if isinstance(X, pd.DataFrame) or not hasattr(X, "columns"):
        return X
    names = X.columns if names is None else names
    return pd.DataFrame({name: _as_column(X[name]) for name in names})


def _as_column(values: Any) -> Any:
    """A column of another library for pandas: categories stay such, and times in their zone."""
    if type(values).__module__.startswith("pyarrow"):
        return values.to_pandas()
    array, dtype = np.asarray(values), values.dtype
    if str(dtype).startswith("Enum"):
        return pd.Categorical(array, dtype.categories.to_list())
    if str(dtype).startswith("Categorical"):  # whose categories may be those of other tables too
        return pd.Categorical(array)
    zone = getattr(dtype, "time_zone", None)
    return pd.Series(array).dt.tz_localize("UTC").dt.tz_convert(zone) if zone else array


def as_table_of(X: Any, frame: pd.DataFrame) -> Any:
    """Return a DataFrame as a table of the library of X: Polars or pyarrow, else as it is.

    What is missing is null. Columns of Polars that hold no numbers keep their type.
    """
    library = type(X).__module__.partition(".")[0]
    if library == "pyarrow":
        return type(X).from_pandas(frame, preserve_index=False)
    if library != "polars":
        return frame
    values = {name: frame[name].astype(object) for name in frame}
    lists = {name: column.where(column.notna(), None).tolist() for name, column in values.items()}
    kept = {n: dtype for n, dtype in X.schema.items() if n in frame and not dtype.is_numeric()}
    return type(X)(lists, schema_overrides=kept, strict=False)


def is_texts(X: Any) -> bool:
    """Whether inputs are texts, one for each sample: a list, an array or a Series of strings."""
    if isinstance(X, list | tuple):
        return infer_dtype(X) == "string"
    return getattr(X, "ndim", 0) == 1 and not issparse(X) and infer_dtype(np.asarray(X)) == "string"


def to_dense(X: Any) -> Any:
    """Return a sparse matrix as an array, and anything else as it is."""
    return X.toarray() if issparse(X) else X
