"""Certificates of rows for ``skuq certify``, with counterexamples of realistic values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from sklearn.preprocessing import StandardScaler

    from skuq.gpc import RobustGPC


class Columns(NamedTuple):
    """Feature names, and feature values in training and new rows, (n_rows, n_columns) each."""

    names: list[str]
    train: np.ndarray[Any, Any]
    new: np.ndarray[Any, Any]


def certified(
    gpc: RobustGPC,
    scaler: StandardScaler,
    table: Columns,
    request: dict[str, Any],
    is_bounded: bool,
) -> pd.DataFrame:
    """Return class, probability, proven radius and a counterexample for each new row."""
    import numpy as np
    import pandas as pd

    points = scaler.transform(table.new)
    labels, proba = gpc.predict(points), gpc.predict_proba(points)
    domain: Any = None
    limits: Any = (-np.inf, np.inf)
    if is_bounded:  # limited to the training range, extended to include the row's own values
        limits = (
            np.minimum(table.train.min(axis=0), table.new),
            np.maximum(table.train.max(axis=0), table.new),
        )
        domain = tuple(map(scaler.transform, limits))
    found = gpc.certified_radius(points, labels, domain=domain, **request)
    rows = pd.DataFrame(
        {
            "class": labels,
            "probability": proba.max(axis=1),
            "certified_radius": found.lower,
            "counterexample_radius": found.upper,
        }
    )
    # Clip, since values may leave the limits by a rounding error when the scaling is undone.
    examples = np.clip(scaler.inverse_transform(found.counterexample), *limits)
    whole = [
        index
        for index in request["features"]
        if (table.train[:, index] % 1 == 0).all() and (table.new[:, index] % 1 == 0).all()
    ]
    if whole:
        is_found = np.isfinite(found.upper)
        examples, is_whole = _made_whole(gpc, scaler, table.new, examples, labels, whole)
        moved = np.abs(scaler.transform(examples) - points)
        order = {"linf": np.inf, "l2": 2, "l1": 1}[request["norm"]]
        radii = np.linalg.norm(moved, ord=order, axis=1)
        rows["counterexample_radius"] = np.where(is_found & is_whole, radii, found.upper)
        rows["whole"] = np.where(is_found, np.where(is_whole, "yes", "no"), "")
    for index in request["features"]:
        rows[f"counterexample_{table.names[index]}"] = examples[:, index]
    return rows


def _made_whole(
    gpc: RobustGPC,
    scaler: StandardScaler,
    X: np.ndarray[Any, Any],
    examples: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    whole: list[int],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Round counterexamples in integer columns if the class still changes; mark the rounded rows.

    Values are rounded to the nearest integer. If the class then does not change, they are rounded
    away from the values of the row; if the class still does not change, they stay unrounded.
    Rounding stays within the limits, which are integers in these columns.
    """
    import numpy as np

    made, is_whole = examples.copy(), np.zeros(len(X), dtype=bool)
    near, own = examples[:, whole], X[:, whole]
    away = np.where(near > own, np.ceil(near - 1e-9), np.floor(near + 1e-9))
    for rounded in (np.round(near), away):
        tried = examples.copy()
        tried[:, whole] = rounded
        rows = np.flatnonzero(np.isfinite(tried).all(axis=1) & ~is_whole)
        if len(rows):
            rows = rows[gpc.predict(scaler.transform(tried[rows])) != labels[rows]]
            made[rows], is_whole[rows] = tried[rows], True
    return made, is_whole


def whole_notes(rows: pd.DataFrame) -> list[str]:
    """Note how many counterexamples could not be rounded to integers."""
    broken = int((rows["whole"] == "no").sum()) if "whole" in rows else 0
    if not broken:
        return []
    return [
        f"The counterexamples of {broken} rows, marked by whole = no, have fractions in columns of "
        "whole numbers, because rounded counterexamples would keep the class."
    ]
