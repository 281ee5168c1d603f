"""Uncertainty for a table: columns of numbers and text in, one row of uncertainty each out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skuq.base import FloatArray, predict_uncertainty
from skuq.tables._checks import (
    check_columns,
    check_finite,
    check_same_kind,
    check_target,
    feature_names,
    is_number,
    missing_notes,
    unseen_notes,
)

MAX_CATEGORIES = 50  # of a text column; rarer values share one column
MAX_HELD_OUT = 200  # training rows that show what uncertainty is usual


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
    familiar_proba : ndarray of shape (n_held_out, n_classes), float64
        Predicted probabilities of the held-out rows.
    pipeline : Pipeline
        Fitted preprocessing and estimator.
    notes : list of str
        What was done to the data, in sentences.
    """

    rows: pd.DataFrame
    familiar: pd.DataFrame
    familiar_proba: FloatArray
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
    features = feature_names(train, target, drop)
    check_target(train, target)
    check_columns(train, features)
    check_same_kind(train, table, features)
    check_finite(train, table, features)
    notes = missing_notes(train, table, features, missing)
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
    notes += unseen_notes(X_fit, _cleaned(table, features))
    proba = pipeline.predict_proba(X_held)
    return TableResult(rows, familiar, proba, pipeline, notes)


def _cleaned(frame: pd.DataFrame, features: Sequence[str]) -> pd.DataFrame:
    """Features with text as plain objects, so that any kind of missing value is one NaN."""
    out = {}
    for name in features:
        column = frame[name]
        if is_number(column):
            out[name] = column.astype(float)
        else:
            out[name] = column.astype(str).astype(object).where(column.notna(), np.nan)
    return pd.DataFrame(out).reset_index(drop=True)


def _hold_out(
    X: pd.DataFrame, y: NDArray[Any], random_state: int
) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[Any], NDArray[Any]]:
    n_held = min(MAX_HELD_OUT, max(1, len(y) // 5))
    n_classes = len(np.unique(y))
    stratify = y if n_held >= n_classes else None
    parts = train_test_split(X, y, test_size=n_held, stratify=stratify, random_state=random_state)
    return tuple(parts)


def _preprocessing(X: pd.DataFrame) -> Any:
    numbers = [name for name in X.columns if is_number(X[name])]
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
