"""Groups of held-out rows, and coverage and size of prediction sets per group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from skuq.base import FloatArray

MOST_GROUPS = 20
N_TENTHS = 10
PREDICTION = "prediction"


def groups_in(X: pd.DataFrame, numbers: Sequence[str]) -> pd.DataFrame:
    """Return the text columns with 2 to 20 categories, each of which can define groups of rows."""
    names = [n for n in X if n not in numbers and 1 < X[n].nunique(dropna=False) <= MOST_GROUPS]
    return X[names].fillna("(missing)").reset_index(drop=True)


def by_group(
    held_out: pd.DataFrame,
    groups: pd.DataFrame,
    covered: FloatArray,
    size: FloatArray,
    by: str,
    regression: bool,
) -> pd.DataFrame:
    """Coverage and size of prediction sets or intervals in each group of held-out rows."""
    if by not in (PREDICTION, *groups.columns):
        names = ", ".join(map(repr, (PREDICTION, *groups.columns)))
        raise ValueError(
            f"`by` must be one of {names}, got {by!r}. (Only text columns with up to {MOST_GROUPS} "
            "categories define groups.)"
        )
    predicted = held_out[PREDICTION].to_numpy()
    labels = groups[by].to_numpy() if by != PREDICTION else predicted
    name = by
    if regression and by == PREDICTION:
        labels, name = np.empty(len(predicted), dtype=np.int64), "tenth"
        for tenth, rows in enumerate(
            np.array_split(np.argsort(predicted, kind="stable"), N_TENTHS)
        ):
            labels[rows] = tenth + 1
    frame = pd.DataFrame({"coverage": covered, "size": size, "prediction": predicted})
    grouped = frame.groupby(labels)
    found = grouped.agg(
        rows=("coverage", "size"),
        coverage=("coverage", "mean"),
        size=("size", "median" if regression else "mean"),
    ).rename_axis(name)
    if regression:
        found["lowest"], found["highest"] = grouped["prediction"].min(), grouped["prediction"].max()
    return found
