"""Groups of samples by the values of columns, and sums of all samples and of each group.

Sums of parts of the samples add up to those of all.
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
from skuq.sample_weights import training_weights
from skuq.validation import column_of

if TYPE_CHECKING:
    import pandas as pd

MAX_GROUPS = 200  # of one column; more are not groups but names or measurements
_MOST_COUNTED = 2**33  # samples, whose confidences add up to an int64
DENSITY_BINS = 20  # of the pictures that show how confidence is distributed

SensitiveFeatures: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | pd.DataFrame"


class Grouping(NamedTuple):
    """Samples divided by the values of one column."""

    codes: IntArray  # (n_samples,), group of each sample
    names: list[str]  # such as "sex=female"


class Parts(NamedTuple):
    """Sums over the bins of the audit, and over finer ones for pictures, if there are any."""

    sums: BinSums  # of all samples
    group_sums: Mapping[Any, BinSums]
    density: BinSums | None = None
    group_density: Mapping[Any, BinSums] = {}


def sensitive_groups(columns: SensitiveFeatures | None) -> list[Grouping]:
    """Divide samples by each attribute, or not at all."""
    return [] if columns is None else named_groups(columns)


def named_groups(columns: Any) -> list[Grouping]:
    """Divide samples by the values of each column; missing values are a group of their own.

    A Series keeps its name, other arrays are called "group", and their columns "group_0" and so on.
    """
    return distinct([_grouping(str(name), values) for name, values in _by_name(columns)])


def distinct(groupings: list[Grouping]) -> list[Grouping]:
    """Return the same groupings, or an error if two groups have one name, as 1 and "1" have."""
    seen = Counter(name for grouping in groupings for name in grouping.names)
    twice = [name for name, times in seen.items() if times > 1]
    if twice:
        raise ValueError(f"Groups must differ in their names, got {twice[0]!r} twice; rename one.")
    return groupings


def groups_of_columns(
    groups: str | int | list[Any] | Callable[[Any], Any] | None, X: Any
) -> list[Grouping]:
    """Divide samples by columns of `X`: by name, by position, or as a callable makes them."""
    if groups is None:
        return []
    if callable(groups):
        return named_groups(groups(X))
    names = groups if isinstance(groups, list) else [groups]
    return named_groups({name: column_of(X, name) for name in names})


def _by_name(columns: Any) -> Iterable[tuple[Any, Any]]:
    """Attributes with their names."""
    if hasattr(columns, "items") and getattr(columns, "ndim", 2) > 1:
        return columns.items()
    # A Series has items like a mapping, but is one column.
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
    # A column of integers is one of floats in a part of the samples where values are missing.
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
    """Add up predictions, or their weights."""
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
    """Sums of all samples and of each group, over the same bins."""
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
    """Add up; what some of the parts lack is left out."""
    density = [part.density for part in parts if part.density is not None]
    return Parts(
        merged_sums([part.sums for part in parts]),
        merged_groups([part.group_sums for part in parts]),
        merged_sums(density) if len(density) == len(parts) else None,
        merged_groups([part.group_density for part in parts]),
    )


def audit_weights(sample_weight: Any, n_samples: int) -> NDArray[Any] | None:
    """Weights, checked: integers, which count samples, where all are whole numbers."""
    if sample_weight is None:
        return None
    return counted_weights(training_weights(sample_weight, n_samples))


def counted_weights(weight: FloatArray) -> NDArray[Any]:
    """Checked weights as integers where all are whole numbers, else as they are."""
    if not (weight == np.floor(weight)).all():
        return weight
    if weight.sum() > _MOST_COUNTED:
        raise ValueError(
            f"`sample_weight` counts {weight.sum():.3g} samples, and integer sums hold "
            f"{_MOST_COUNTED:.3g} at most; divide weights that are not counts by the largest."
        )
    return weight.astype(np.int64)


def merged_groups(parts: Sequence[Mapping[Any, BinSums]]) -> dict[Any, BinSums]:
    """Add up the sums of groups by their names, in the order in which these come first."""
    collected: dict[Any, list[BinSums]] = {}
    for part in parts:
        for name, sums in part.items():
            collected.setdefault(name, []).append(sums)
    return {name: merged_sums(sums) for name, sums in collected.items()}
