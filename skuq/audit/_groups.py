"""Groups of samples by the values of columns, with sums over all samples and over each group.

Adding the sums over parts of the samples gives the sums over all samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray, IntArray
from skuq.calibration import (
    BinSums,
    Strategy,
    TopLabelPredictions,
    bin_edges,
    bin_sums,
    merged_sums,
)
from skuq.labels import as_text
from skuq.validation import column_of, training_weights

if TYPE_CHECKING:
    import pandas as pd

MAX_GROUPS = 200  # maximum per column; a column with more values holds names or measurements
_MOST_COUNTED = 2**33  # the sum of this number of confidences fits into an int64
DENSITY_BINS = 20  # bins in plots of the distribution of confidence

SensitiveFeatures: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | pd.DataFrame"


class Grouping(NamedTuple):
    """Samples divided by the values of one column."""

    codes: IntArray  # (n_samples,), group of each sample
    names: list[str]  # such as "sex=female"


class Parts(NamedTuple):
    """Sums over the bins of the audit, and optionally over finer bins for plots."""

    sums: BinSums  # sums over all samples
    group_sums: Mapping[Any, BinSums]
    density: BinSums | None = None
    group_density: Mapping[Any, BinSums] = {}


def sensitive_groups(columns: SensitiveFeatures | None) -> list[Grouping]:
    return [] if columns is None else named_groups(columns)


def named_groups(columns: Any) -> list[Grouping]:
    """Divide samples by the values of each column; missing values form a separate group.

    A Series keeps its name. An array is called "group", and columns of a two-dimensional array are
    called "group_0", "group_1" and so on.
    """
    return distinct([_grouping(str(name), values) for name, values in _by_name(columns)])


def distinct(groupings: list[Grouping]) -> list[Grouping]:
    """Return the groupings; raise a ValueError if two groups have the same name.

    Names are strings, so the values 1 and "1" have the same name.
    """
    seen = Counter(name for grouping in groupings for name in grouping.names)
    twice = [name for name, times in seen.items() if times > 1]
    if twice:
        raise ValueError(f"Group names must differ, got {twice[0]!r} twice; rename one.")
    return groupings


def groups_of_columns(
    groups: str | int | list[Any] | Callable[[Any], Any] | None, X: Any
) -> list[Grouping]:
    """Divide samples by columns of `X`, given by name, by position or by a callable."""
    if groups is None:
        return []
    if callable(groups):
        return named_groups(groups(X))
    names = groups if isinstance(groups, list) else [groups]
    return named_groups({name: column_of(X, name) for name in names})


def _by_name(columns: Any) -> Iterable[tuple[Any, Any]]:
    """Pairs (name, values), one for each attribute."""
    if hasattr(columns, "items") and getattr(columns, "ndim", 2) > 1:
        return columns.items()
    # A Series also has `items`, but is a single column.
    name = getattr(columns, "name", None)
    array = np.asarray(columns)
    if array.ndim == 2:
        return ((f"group_{k}", column) for k, column in enumerate(array.T))
    return [("group" if name is None else name, columns)]


def _grouping(name: str, values: ArrayLike) -> Grouping:
    import pandas as pd

    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"Group {name!r} must be one-dimensional, got shape {array.shape}.")
    codes, found = pd.factorize(array, sort=True)
    if len(found) > MAX_GROUPS:
        raise ValueError(
            f"Group {name!r} has {len(found)} different values, more than {MAX_GROUPS}; divide "
            "it into ranges first, such as age groups."
        )
    # Integers with missing values are read as floats; `as_text` gives 1.0 the same name as 1.
    names = [f"{name}={as_text(value)}" for value in found]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(names), codes)
        names.append(f"{name}=missing")
    return Grouping(codes.astype(np.int64), names)


def parts_of(
    predictions: TopLabelPredictions,
    grouping: list[Grouping],
    *,
    n_bins: int,
    strategy: Strategy = "uniform",
    weight: NDArray[Any] | None = None,
) -> Parts:
    return Parts(
        *_sums(predictions, grouping, n_bins, strategy, weight),
        *_sums(predictions, grouping, DENSITY_BINS, "uniform", weight),
    )


def _sums(
    predictions: TopLabelPredictions,
    grouping: list[Grouping],
    n_bins: int,
    strategy: Strategy,
    weight: NDArray[Any] | None,
) -> tuple[BinSums, dict[str, BinSums]]:
    """Sums over all samples and over each group, with the same bins."""
    if weight is None:
        edges = bin_edges(predictions.confidence, n_bins, strategy)
    else:
        counted, given = predictions.confidence[weight > 0], weight[weight > 0].astype(float)
        edges = bin_edges(counted, n_bins, strategy, weight=given)
    group_sums: dict[str, BinSums] = {}
    for group in grouping:
        parts = bin_sums(
            predictions, edges, groups=group.codes, n_groups=len(group.names), weight=weight
        )
        group_sums.update(zip(group.names, parts, strict=True))
    return bin_sums(predictions, edges, weight=weight)[0], group_sums


def merged_parts(parts: Sequence[Parts]) -> Parts:
    """Add up parts; `density` is kept only if every part has it."""
    density = [part.density for part in parts if part.density is not None]
    return Parts(
        merged_sums([part.sums for part in parts]),
        merged_groups([part.group_sums for part in parts]),
        merged_sums(density) if len(density) == len(parts) else None,
        merged_groups([part.group_density for part in parts]),
    )


def audit_weights(sample_weight: Any, n_samples: int) -> NDArray[Any] | None:
    """Check weights; return integers, which count samples, if all weights are whole numbers."""
    if sample_weight is None:
        return None
    return counted_weights(training_weights(sample_weight, n_samples))


def counted_weights(weight: FloatArray) -> NDArray[Any]:
    """Convert checked weights to integers if all are whole numbers; else return them unchanged."""
    if not (weight == np.floor(weight)).all():
        return weight
    if weight.sum() > _MOST_COUNTED:
        raise ValueError(
            f"`sample_weight` adds up to {weight.sum():.3g} samples, but integer sums can hold at "
            f"most {_MOST_COUNTED:.3g}; if the weights are not counts, divide them by the largest."
        )
    return weight.astype(np.int64)


def merged_groups(parts: Sequence[Mapping[Any, BinSums]]) -> dict[Any, BinSums]:
    """Add up the sums of groups by name, in the order in which the names first appear."""
    collected: dict[Any, list[BinSums]] = {}
    for part in parts:
        for name, sums in part.items():
            collected.setdefault(name, []).append(sums)
    return {name: merged_sums(sums) for name, sums in collected.items()}
