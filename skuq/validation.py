"""Validation of arguments for all packages, and warnings that point at the user's code."""

import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import signature
from numbers import Integral
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import infer_dtype
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing, column_or_1d
from sklearn.utils import validation as sklearn_validation
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _num_samples

from skuq.base import FloatArray
from skuq.imports import shown
from skuq.wrappers import is_instance_of

# Warnings point at the first caller outside of these packages.
_LIBRARIES = {
    "skuq",
    "sklearn",
    "joblib",
    "torch",
    "contextlib",
    "stable_baselines3",
    "sb3_contrib",
}
#: Losses of a single prediction: "zero_one" for classification, "squared_error" and
#: "absolute_error" for regression.
Loss = Literal["zero_one", "squared_error", "absolute_error"]
# Maximum number of bins. The time of a scan grows with the number of ranges of neighbouring bins.
MOST_BINS = 10_000


def check_n_bins(n_bins: Any) -> None:
    is_integer = isinstance(n_bins, Integral) and not isinstance(n_bins, bool)
    if not is_integer or not 1 <= int(n_bins) <= MOST_BINS:
        raise ValueError(f"`n_bins` must be an integer from 1 to {MOST_BINS:,}, got {n_bins!r}.")


def validate_data(owner: Any, X: Any, *labels: Any, **options: Any) -> Any:
    """Reject repeated columns, dates and missing labels; then call sklearn's `validate_data`."""
    columns = [] if isinstance(X, np.ndarray) else list(getattr(X, "columns", ()))
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"`X` has more than one column named {twice[0]!r}; rename or drop one.")
    if not options.get("skip_check_array") and kind_of(X) in ("m", "M"):
        raise ValueError("`X` has dates or times; convert them to numbers, such as days.")
    if labels and np.asarray(labels[0]).ndim > 1:
        one_target(labels[0])
    if labels and kind_of(labels[0]) == "O":
        checked_labels(labels[0], "y")
    try:
        return sklearn_validation.validate_data(owner, X, *labels, **options)
    except ValueError as error:
        if str(error).startswith("could not convert"):
            raise ValueError(
                f"`X` must hold numbers; encode texts as numbers ({error})."
            ) from error
        raise


def one_target(y: Any) -> NDArray[Any]:
    """Return labels or targets, (n_samples,); reject several labels or targets per input."""
    shape = np.asarray(y).shape
    if len(shape) > 2 or shape[1:] not in ((), (1,)):
        raise ValueError(
            f"`y` must hold one label or target for each input, got shape {shape}. If it is "
            "one-hot, pass y.argmax(axis=1). For several labels, targets or pixels, train one "
            "model for each; OODDetector() needs no model: pass embeddings as X, without y."
        )
    return column_or_1d(y, warn=True)


def kind_of(values: Any) -> str:
    return str(getattr(getattr(values, "dtype", None), "kind", ""))


def like_fitted(owner: Any, X: Any) -> Any:
    """Convert rows to the form that `fit` received: a table of named columns, or an array."""
    names, is_table = getattr(owner, "feature_names_in_", None), isinstance(X, pd.DataFrame)
    if is_table and names is not None and {*X.columns} == {*names}:
        return X
    if issparse(X) and names is not None:
        X = X.toarray()
    elif is_table or kind_of(X) == "b":
        with suppress(TypeError, ValueError):  # raised for text
            X = X.to_numpy(np.float64, na_value=np.nan) if is_table else X.astype(np.float64)
    return with_names(owner, X) if kind_of(X) in ("i", "u", "f") else X


def check_some_samples(X: Any, owner: Any) -> None:
    """Reject tables and lists with 0 rows, as scikit-learn does for arrays."""
    if _num_samples(X) == 0:
        name = type(owner).__name__
        raise ValueError(f"Found {type(X).__name__} with 0 samples; {name} needs at least 1.")


def refuse_several_inputs(X: Any, name: str = "X") -> None:
    """Reject data loaders, datasets, and several inputs for each sample; arrays are expected."""
    kind = type(X).__name__
    if any(is_instance_of(X, "torch.utils.data", each) for each in ("DataLoader", "Dataset")):
        raise TypeError(
            f"`{name}` is a {kind}; pass an array or a tensor of shape (n_samples, ...) instead, "
            "such as torch.stack([x for x, _ in dataset]), and labels separately."
        )
    several = isinstance(X, tuple) and all(getattr(each, "ndim", 0) > 1 for each in X)
    is_mapping = isinstance(X, Mapping) and not issparse(X)  # a dok_matrix is a dictionary
    if is_mapping or (several and len(X) > 0):
        raise TypeError(
            f"`{name}` is a {kind} of {len(X)} inputs, but each sample must be one array: networks "
            "with several inputs are not supported, except models of the transformers library. "
            "Join the inputs, for instance np.concatenate([a, b], axis=1), and split them in the "
            "network's forward pass."
        )


def with_names(estimator: Any, X: Any) -> Any:
    """Turn rows into a DataFrame if the estimator was fitted on a table of named columns."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not isinstance(X, np.ndarray) or X.shape[1:] != names.shape:
        return X
    return pd.DataFrame(X, columns=names)


def numbers(values: ArrayLike, name: str) -> FloatArray:
    """Convert to a non-empty one-dimensional float64 array."""
    array = floats(values, name)
    _check_one_dimensional(array, name)
    return array


def finite(values: ArrayLike, name: str) -> FloatArray:
    """Convert to a one-dimensional float64 array; NaN and infinity are rejected."""
    array = numbers(values, name)
    _check_finite(array, name)
    return array


def finite_columns(values: ArrayLike, name: str) -> FloatArray:
    """Convert to a two-dimensional float64 array; NaN and infinity are rejected."""
    array = floats(values, name)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"`{name}` must have two dimensions, one row per sample and at least one column, got "
            f"shape {array.shape}."
        )
    _check_finite(array, name)
    return array


def _check_finite(array: FloatArray, name: str) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise ValueError(
            f"`{name}` must be finite, got {array[tuple(bad[0])]} in row {bad[0, 0]}; clip "
            "infinite values and drop missing values first."
        )


def checked_labels(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert to a one-dimensional array of numbers, booleans or strings."""
    array = as_array(values)
    _check_one_dimensional(array, name)
    # Convert objects to strings of a fixed width, because these are compared faster.
    labels = np.array(array.tolist()) if array.dtype.kind in "OT" else array
    mixed = array.dtype.kind == "O" and len({isinstance(each, str) for each in array}) > 1
    if mixed or labels.dtype.kind not in "biufU" or (array != array).any():
        raise ValueError(
            f"`{name}` must hold only numbers, booleans or strings, got mixed or missing values "
            f"in an array of dtype {array.dtype}; drop or encode them first."
        )
    return labels


def check_targets_are_classes(y: NDArray[Any]) -> None:
    """Raise ValueError for missing labels, and for targets that are not classes."""
    # Check this first: scikit-learn's check would also warn of a cast, and its error omits "y".
    if pd.isna(y).any():
        raise ValueError("Input y contains NaN. Drop the rows without a label.")
    check_classification_targets(y)


def as_array(values: Any) -> NDArray[Any]:
    """Convert array-likes to arrays, including tensors on any device or with gradients."""
    if is_instance_of(values, "torch", "Tensor"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no such dtype
            values = values.float()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def floats(values: ArrayLike, name: str) -> FloatArray:
    try:
        return np.asarray(as_array(values), np.float64)
    except (TypeError, ValueError) as error:  # the values contain pandas.NA or text
        raise ValueError(
            f"`{name}` must be finite, got values that are not numbers; drop missing values first "
            f"({error})."
        ) from error


def _check_one_dimensional(array: NDArray[Any], name: str) -> None:
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(
            f"`{name}` must be one-dimensional and not empty, got shape {array.shape}."
        )


def check_same_length(**arrays: NDArray[Any]) -> None:
    lengths = [len(array) for array in arrays.values()]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in arrays)} must each have one row per sample, "
            f"got {', '.join(map(str, lengths))} rows."
        )


def column_of(X: Any, name: Any) -> Any:
    """Return one column of a table, by name or position."""
    columns = getattr(X, "columns", None)
    if isinstance(name, str) and columns is None:
        raise ValueError(
            f"Column {name!r} is a name, but X has no column names; pass the position instead."
        )
    if columns is not None:
        table = X
    elif issparse(X):
        table = X.tocsc()
    else:
        table = np.asarray(X)
        table = table.reshape(len(table), -1) if table.ndim > 2 else table
    try:
        if issparse(table):  # before SciPy 1.15, columns of sparse arrays are two-dimensional
            return _safe_indexing(table, [name], axis=1).toarray().ravel()
        return _safe_indexing(table, name, axis=1)
    except (ValueError, IndexError, KeyError) as error:
        known = f"columns {list(columns)}" if columns is not None else f"shape {table.shape}"
        raise ValueError(f"X has no column {name!r}; it has {known}.") from error


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the line in the user's code."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(message, None), category, stacklevel=level)


def warn_if_worse_than_guessing(
    loss: float, codes: NDArray[np.int64], classes: NDArray[Any], weight: FloatArray | None = None
) -> None:
    """Warn of a model that fits the data so badly that it was probably not trained on them.

    `loss` is the model's mean cross-entropy on the samples, in nats. The warning is issued if the
    loss exceeds the entropy of the class frequencies by more than 5 %.
    """
    count = np.bincount(codes, weights=weight)
    share = count / count.sum()
    guessing = float(-(share * np.log(np.maximum(share, 1e-300))).sum())
    if loss > 1.05 * guessing:
        shown = ", ".join(map(repr, classes[:5].tolist())) + ", ..." * (len(classes) > 5)
        warn_user(
            f"The model's loss on the training data is {loss:.3g} nats, worse than guessing by "
            f"the class frequencies ({guessing:.3g} nats), so the uncertainties of this model are "
            "hardly meaningful. Likely causes: the inputs are not scaled as they were for its "
            "training, or its outputs are not in the sorted order of the labels, which was assumed "
            f"({shown})."
        )


def refuse_ineffective(estimator: Any, names: Iterable[str], context: str) -> None:
    """Reject parameters that were changed from their defaults but cannot have an effect.

    `context` completes the sentence "... has no effect": it gives the reason and a remedy.
    """
    defaults = signature(type(estimator)).parameters
    values = {name: getattr(estimator, name) for name in names}
    changed = [f"{n}={v!r}" for n, v in values.items() if not _same(v, defaults[n].default)]
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        raise ValueError(f"{', '.join(changed)} {verb} no effect {context}")


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    try:
        return bool(np.array_equal(value, default)) and type(value) is type(default)
    except (TypeError, ValueError):
        return False


def checked_widths(hidden_sizes: Any, name: str = "hidden_sizes") -> tuple[int, ...]:
    """Validate the widths of hidden layers, which are positive integers."""
    widths = tuple(hidden_sizes)
    if not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise ValueError(f"`{name}` must hold positive integers, got {hidden_sizes!r}.")
    return widths


def as_pandas(X: Any) -> Any:
    """Convert tables of other libraries, such as Polars, to DataFrames; keep other inputs."""
    # pyarrow has names in `column_names`; its attribute `columns` contains the values.
    names = getattr(X, "column_names", None)
    if isinstance(X, pd.DataFrame) or not hasattr(X, "columns"):
        return X
    names = X.columns if names is None else names
    return pd.DataFrame({name: _as_column(X[name]) for name in names})


def _as_column(values: Any) -> Any:
    if type(values).__module__.startswith("pyarrow"):
        return values.to_pandas()
    array, dtype = np.asarray(values), values.dtype
    if str(dtype).startswith("Enum"):
        return pd.Categorical(array, dtype.categories.to_list())
    # Polars may list categories of other tables, too, so pandas infers the categories.
    if str(dtype).startswith("Categorical"):
        return pd.Categorical(array)
    zone = getattr(dtype, "time_zone", None)
    return pd.Series(array).dt.tz_localize("UTC").dt.tz_convert(zone) if zone else array


def as_table_of(X: Any, frame: pd.DataFrame) -> Any:
    """Convert a DataFrame to the library of `X` if this library is Polars or pyarrow.

    Missing values become null. Non-numeric columns of Polars keep the dtype that they have in X.
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
    """Return whether inputs are a list, an array or a Series with one string per sample."""
    if isinstance(X, list | tuple):
        return infer_dtype(X) == "string"
    return getattr(X, "ndim", 0) == 1 and not issparse(X) and infer_dtype(np.asarray(X)) == "string"


_MOST_DENSE = 4096  # sparse matrices with more columns are not converted to arrays


def is_wide(X: Any) -> bool:
    """Return whether X is a sparse matrix with too many columns to be converted to an array."""
    return issparse(X) and X.shape[-1] > _MOST_DENSE


def to_dense(X: Any) -> Any:
    """Convert a sparse matrix to an array; return other inputs unchanged."""
    return X.toarray() if issparse(X) else X


# A weight of w means that the sample counts w times. If the mean weight is outside this range, the
# weights are probably meant as proportions.
FEWEST_SAMPLES, MOST_SAMPLES = 0.1, 10.0
LARGEST_SUM = 2.0**53  # up to this sum of weights, float64 represents all integers exactly


def weights(sample_weight: ArrayLike, n_samples: int) -> FloatArray:
    """Validate sample weights and convert them to float64."""
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
    _check_sum(weight)
    return weight


def training_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Validate the weights of `fit` like `unwarned_weights`; warn if their mean is implausible."""
    weight = unwarned_weights(sample_weight, n_samples)
    warn_of_relative_weights(weight)
    return weight


def unwarned_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Validate the sample weights of `fit`; None means 1, and a scalar applies to all samples."""
    weight: FloatArray = _check_sample_weight(
        sample_weight, np.empty((n_samples, 0)), dtype=np.float64, ensure_non_negative=True
    )
    if not weight.any():  # older versions of scikit-learn accept zeros
        raise ValueError("`sample_weight` must have at least one non-zero number, got only zeros.")
    _check_sum(weight)
    return weight


def warn_of_relative_weights(weight: FloatArray) -> None:
    """Warn if the mean weight is implausible for numbers of samples."""
    warn_of_mean_weight(float(weight.sum()), int(np.count_nonzero(weight)), len(weight))


def warn_of_mean_weight(total: float, n_counted: int, n_samples: int | None = None) -> None:
    """Warn like `warn_of_relative_weights`, given the sum and the number of non-zero weights."""
    mean = total / n_counted
    low, high = FEWEST_SAMPLES * (1 - 1e-9), MOST_SAMPLES * (1 + 1e-9)  # tolerance for rounding
    if not low <= mean <= high:
        name = "w" if n_counted == n_samples else "w[w > 0]"
        warn_user(
            f"The mean of `sample_weight` is {mean:.3g}. A weight is a number of samples, so these "
            f"{n_counted} samples count as {total:.3g}; uncertainty depends on the number of "
            "samples. If only the proportions of the weights matter, divide them by their mean: "
            f"w / {name}.mean()."
        )


def group_codes(groups: Any, n_samples: int) -> NDArray[np.int64]:
    """Number the groups from 0, (n_samples,); a sample without a group is a group of its own."""
    values = np.asarray(groups, dtype=object)
    codes = pd.factorize(values.ravel())[0].astype(np.int64)
    codes[codes < 0] = len(codes) + np.flatnonzero(codes < 0)
    codes = np.unique(codes, return_inverse=True)[1]
    if values.shape != (n_samples,) or codes.max() < 1:
        raise ValueError(
            f"`groups` must hold a group for each of the {n_samples} samples, and at least 2 "
            f"groups, got {codes.max(initial=-1) + 1} in an array of shape {values.shape}."
        )
    return codes


def whole_groups(chosen: NDArray[np.bool_], codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of all samples of the groups whose first sample is chosen."""
    _, first, code = np.unique(codes, return_index=True, return_inverse=True)
    return chosen[first[code]]


def independent_counts(
    weight: FloatArray | None, codes: NDArray[np.int64] | None = None
) -> FloatArray:
    """Compute the number of independent samples that each sample counts as, (n_samples,).

    Samples of a group count together as one sample with their mean weight. All counts add up to the
    effective number of groups, ``sum(w)**2 / sum(w**2)`` (Kish).
    """
    assert weight is not None or codes is not None
    weight = np.ones(len(codes)) if weight is None else weight  # type: ignore[arg-type]
    codes = np.arange(len(weight)) if codes is None else codes
    count = weight / np.maximum(np.bincount(codes, weights=weight > 0), 1)[codes]
    total = np.bincount(codes, weights=count)
    return count * (total.sum() / (total**2).sum())


def repeated_rows(n_repeated: int, of: str = "") -> str:
    """Write a note that some rows occur more than once."""
    return (
        f"{n_repeated} rows{of} occur more than once. If they are copies, remove them; if they "
        "belong together, state their groups. Each counts as an independent case, so results look "
        "more certain than they are."
    )


def _check_sum(weight: FloatArray) -> None:
    largest = float(weight.max())
    if largest > LARGEST_SUM / len(weight):
        raise ValueError(
            f"The sum of `sample_weight` is too large: it must be at most {LARGEST_SUM:.3g}, and "
            f"the largest of {len(weight)} weights is {largest:.3g}. If only the proportions of "
            "the weights matter, divide them by the largest."
        )


def sum_rounding(n_terms: int) -> float:
    """Bound the relative rounding error of a comparison of two sums of n weights."""
    return 2 * n_terms * float(np.finfo(np.float64).eps)


def weighted_mean(values: FloatArray, sample_weight: ArrayLike | None) -> float:
    """Average values; leave out samples of weight 0, even if their value is infinite."""
    if sample_weight is None:
        return float(values.mean())
    weight = weights(sample_weight, len(values))
    counted = weight > 0
    return float(np.average(values[counted], weights=weight[counted]))
