"""Uncertainty for a table: columns of numbers and text in, one row of uncertainty each out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.multiclass import type_of_target

from skuq.base import FloatArray, predict_uncertainty

MAX_CATEGORIES = 50  # of a text column; rarer values share one column
MAX_FAMILIAR = 200  # rows held out to learn what uncertainty is usual


class TableError(ValueError):
    """The table cannot be used as it is; the message says what to change."""


class TableResult(NamedTuple):
    """Uncertainty of every row of a table.

    Attributes
    ----------
    rows : DataFrame
        One row per row of the table, in order: ``prediction``, ``confidence`` (largest
        probability), ``total``, ``aleatoric``, ``epistemic`` and ``familiarity``.
    familiar : DataFrame
        The same columns, without familiarity, for the training rows that were held out,
        and their true label in ``label``.
    pipeline : Pipeline
        Fitted preprocessing and estimator.
    notes : list of str
        What was done to the data, in sentences.
    """

    rows: pd.DataFrame
    familiar: pd.DataFrame
    pipeline: Pipeline
    notes: list[str]


def quantify_table(
    estimator: Any,
    train: pd.DataFrame,
    target: str,
    table: pd.DataFrame,
    *,
    missing: str = "impute",
    drop: Sequence[str] = (),
    random_state: int = 0,
) -> TableResult:
    """Train on one table and quantify the uncertainty of predictions for another.

    Missing numbers are replaced by the median and marked in a column of their own, missing
    text counts as a category; numbers are standardised, text is one-hot encoded. A fifth of
    the training rows, at most 200, is held out: it shows what uncertainty is usual.

    Parameters
    ----------
    estimator : estimator
        Unfitted classifier with `predict_uncertainty`.
    train : DataFrame of shape (n_samples, n_columns)
        Training table.
    target : str
        Its column with the class to predict.
    table : DataFrame of shape (n_rows, n_columns)
        Rows to predict; columns that `train` lacks are ignored.
    missing : {"impute", "refuse"}, default="impute"
        What to do about missing values.
    drop : sequence of str, default=()
        Columns to leave out.
    random_state : int, default=0
        Choice of the held-out rows.

    Returns
    -------
    TableResult
        ``familiarity`` is the share of held-out training rows that are at least as
        uncertain (epistemic part), counting the row itself: a conformal p-value. Of rows
        like the training rows, at most a share p has a familiarity of p or less.

    Raises
    ------
    TableError
        If a column is missing, of the wrong kind or useless, or the target is not a class.

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", Springer 2005
    (conformal p-values).
    """
    features = _features(train, target, drop)
    _check_target(train, target)
    _check_columns(train, features)
    _check_same_kind(train, table, features)
    notes = _missing_notes(train, table, features, missing)
    X, y = _cleaned(train, features), train[target].to_numpy()
    if y.dtype.kind not in "iufb":
        y = y.astype(str)
    X_fit, X_held, y_fit, y_held = _hold_out(X, y, random_state)
    pipeline = make_pipeline(_preprocessing(X_fit), estimator).fit(X_fit, y_fit)
    familiar = _quantified(pipeline, X_held).assign(label=y_held)
    rows = _quantified(pipeline, _cleaned(table, features))
    rows["familiarity"] = _familiarity(rows["epistemic"], familiar["epistemic"])
    notes.append(
        f"{len(X_fit)} rows trained the model; {len(X_held)} were held out to learn what "
        "uncertainty is usual."
    )
    notes += _unseen_notes(X_fit, _cleaned(table, features))
    return TableResult(rows, familiar, pipeline, notes)


def _features(train: pd.DataFrame, target: str, drop: Sequence[str]) -> list[str]:
    for name in (target, *drop):
        if name not in train.columns:
            near = difflib.get_close_matches(name, map(str, train.columns), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TableError(
                f"The training table has no column {name!r}; it has "
                f"{', '.join(map(str, train.columns))}.{hint}"
            )
    features = [name for name in train.columns if name != target and name not in drop]
    if not features:
        raise TableError("The training table has no column left to learn from.")
    return features


def _check_target(train: pd.DataFrame, target: str) -> None:
    y = train[target]
    if y.isna().any():
        raise TableError(
            f"The target {target!r} is missing in {int(y.isna().sum())} training rows; fill "
            "them in or remove them."
        )
    if is_numeric_dtype(y) and type_of_target(y.to_numpy()).startswith("continuous"):
        raise TableError(
            f"The target {target!r} holds continuous numbers, not classes; group it into "
            "classes first."
        )
    counts = y.value_counts()
    if len(counts) < 2:
        raise TableError(f"The target {target!r} must hold at least 2 classes, got {len(counts)}.")
    if counts.iloc[-1] < 2:
        raise TableError(
            f"Class {counts.index[-1]!r} of the target {target!r} has a single row; at least 2 "
            "are needed (is the target really a class?)."
        )


def _is_number(column: pd.Series) -> bool:
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _check_columns(train: pd.DataFrame, features: Sequence[str]) -> None:
    for name in features:
        column = train[name]
        if column.isna().all():
            raise TableError(f"Column {name!r} is empty; leave it out (--drop {name}).")
        if not _is_number(column) and len(train) > MAX_CATEGORIES and column.nunique() == len(train):
            raise TableError(
                f"Column {name!r} holds a different text in every row, so nothing can be "
                f"learnt from it; leave it out (--drop {name})."
            )


def _check_same_kind(train: pd.DataFrame, table: pd.DataFrame, features: Sequence[str]) -> None:
    lacking = [name for name in features if name not in table.columns]
    if lacking:
        raise TableError(
            f"The table to predict lacks {', '.join(lacking)}, which the training table has; "
            "add these columns or leave them out of both (--drop)."
        )
    if len(table) == 0:
        raise TableError("The table to predict has no rows.")
    for name in features:
        if _is_number(train[name]) and not (_is_number(table[name]) or table[name].isna().all()):
            bad = table.loc[pd.to_numeric(table[name], errors="coerce").isna(), name].dropna()
            example = f", such as {bad.iloc[0]!r}" if len(bad) else ""
            raise TableError(
                f"Column {name!r} holds numbers in the training table, but text in the table "
                f"to predict{example}."
            )
    for frame, which in ((train, "training table"), (table, "table to predict")):
        numbers = frame[[name for name in features if _is_number(frame[name])]]
        infinite = np.isinf(numbers.to_numpy(dtype=float)).any(axis=0)
        if infinite.any():
            raise TableError(
                f"Column {numbers.columns[infinite][0]!r} of the {which} holds infinite numbers."
            )


def _missing_notes(
    train: pd.DataFrame, table: pd.DataFrame, features: Sequence[str], missing: str
) -> list[str]:
    notes = []
    for frame, which in ((train, "training table"), (table, "table to predict")):
        counts = frame[features].isna().sum()
        counts = counts[counts > 0]
        if counts.empty:
            continue
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        if missing == "refuse":
            raise TableError(
                f"The {which} has missing values: {listed}. Fill them in, or let them be "
                "imputed (--missing impute)."
            )
        notes.append(f"Missing values in the {which} were imputed: {listed}.")
    return notes


def _unseen_notes(train: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    notes = []
    for name in train.columns:
        if not _is_number(train[name]):
            unseen = sorted(set(table[name].dropna()) - set(train[name].dropna()))
            if unseen:
                notes.append(
                    f"Column {name} has values that the model was not trained on, such as "
                    f"{unseen[0]!r}; they count as none of the known ones."
                )
    return notes


def _cleaned(frame: pd.DataFrame, features: Sequence[str]) -> pd.DataFrame:
    """Features with text as plain objects, so that any kind of missing value is one NaN."""
    out = {}
    for name in features:
        column = frame[name]
        if _is_number(column):
            out[name] = column.astype(float)
        else:
            out[name] = column.astype(str).astype(object).where(column.notna(), np.nan)
    return pd.DataFrame(out).reset_index(drop=True)


def _hold_out(
    X: pd.DataFrame, y: NDArray[Any], random_state: int
) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[Any], NDArray[Any]]:
    n_held = min(MAX_FAMILIAR, max(1, len(y) // 5))
    n_classes = len(np.unique(y))
    stratify = y if n_held >= n_classes else None
    parts = train_test_split(X, y, test_size=n_held, stratify=stratify, random_state=random_state)
    return tuple(parts)


def _preprocessing(X: pd.DataFrame) -> Any:
    numbers = [name for name in X.columns if _is_number(X[name])]
    texts = [name for name in X.columns if name not in numbers]
    return make_column_transformer(
        (
            make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()),
            numbers,
        ),
        (
            make_pipeline(
                SimpleImputer(strategy="constant", fill_value="(missing)"),
                OneHotEncoder(
                    handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
                ),
            ),
            texts,
        ),
    )


def _quantified(pipeline: Pipeline, X: pd.DataFrame) -> pd.DataFrame:
    proba = pipeline.predict_proba(X)
    frame = predict_uncertainty(pipeline, X).to_frame()
    frame.insert(0, "prediction", pipeline.classes_[proba.argmax(axis=1)])
    frame.insert(1, "confidence", proba.max(axis=1))
    return frame


def _familiarity(epistemic: pd.Series, held_out: pd.Series) -> FloatArray:
    usual = np.sort(held_out.to_numpy())
    at_least = len(usual) - np.searchsorted(usual, epistemic.to_numpy(), side="left")
    share: FloatArray = (1 + at_least) / (1 + len(usual))
    return share
