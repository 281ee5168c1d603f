"""Uncertainty for a table: columns of numbers and text in, one row of uncertainty each out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq.base import FloatArray, predict_uncertainty
from skuq.tables._columns import CleanColumns, TableError
from skuq.tables._notes import (
    MISSING_TEXT,
    missing_notes,
    range_notes,
    split_note,
    suspicion_notes,
    unseen_notes,
)
from skuq.tables._validation import (
    check_names,
    check_sizes,
    check_training_columns,
    class_labels,
    feature_names,
)

MAX_CATEGORIES = 50  # of a text column; rarer values share one column
MAX_HELD_OUT = 200  # training rows that calibrate the p-values


class TableResult(NamedTuple):
    """Uncertainty of every row of a table.

    Attributes
    ----------
    rows : DataFrame
        One row per row of the table, in order: ``prediction``, ``confidence`` (largest
        probability), ``total``, ``aleatoric``, ``epistemic`` and ``conformal_p_value``.
    held_out : DataFrame
        The same columns, without the p-value, for the training rows that were held out, and
        their true label in ``label``.
    held_out_proba : ndarray of shape (n_held_out, n_classes), float64
        Predicted probabilities of the held-out rows.
    pipeline : Pipeline
        Fitted preprocessing and estimator; takes any table with the training columns.
    notes : list of str
        What was done to the data, in sentences.
    """

    rows: pd.DataFrame
    held_out: pd.DataFrame
    held_out_proba: FloatArray
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
    text counts as a category; numbers are standardised, text is one-hot encoded, and values that
    the training rows lack are marked in a column of their own. A fifth of
    the training rows, at most 200, is held out to calibrate the p-values.

    Parameters
    ----------
    estimator : estimator
        Classifier with `predict_uncertainty`; a clone is trained.
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
        ``conformal_p_value`` is the share of held-out training rows that are at least as
        uncertain (epistemic part), counting the row itself. Of rows from the distribution of
        the training rows, at most a share p is expected to have a p-value of p or less. The
        held-out rows are drawn class by class, so this holds up to rounding.

    Raises
    ------
    TableError
        If a column is missing, of the wrong kind or useless, or the target is not a class.
        It is a `ValueError`.

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", Springer 2005
    (conformal p-values).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import QUAMClassifier
    >>> from skuq.tables import quantify_table
    >>> flowers = load_iris(as_frame=True).frame
    >>> quam = QUAMClassifier(n_steps=10, random_state=0)  # a short search
    >>> result = quantify_table(quam, flowers, "target", flowers[:3])
    >>> list(result.rows)
    ['prediction', 'confidence', 'total', 'aleatoric', 'epistemic', 'conformal_p_value']
    """
    if missing not in ("impute", "refuse"):
        raise ValueError(f"`missing` must be 'impute' or 'refuse', got {missing!r}.")
    X, table, labels, columns, notes = _prepared(train, target, table, drop, missing)
    fit, held = _hold_out(labels, random_state)
    X_fit, X_held = X.iloc[fit], X.iloc[held]
    model = _fitted(
        _preprocessing(X_fit, columns.numbers_), clone(estimator), X_fit, labels[fit], random_state
    )
    held_out = _quantified(model, X_held).assign(label=labels[held])
    rows = _quantified(model, table)
    rows["conformal_p_value"] = _conformal_p_values(rows["epistemic"], held_out["epistemic"])
    notes.append(split_note(len(fit), len(held)))
    notes += unseen_notes(X_fit, table, columns.numbers_)
    notes += range_notes(X, table, columns.numbers_)
    pipeline = make_pipeline(columns, *model)
    return TableResult(rows, held_out, model.predict_proba(X_held), pipeline, notes)


class _Prepared(NamedTuple):
    """Both tables in one form, what they were checked to hold, and what there is to say."""

    X: pd.DataFrame
    table: pd.DataFrame
    labels: NDArray[Any]
    columns: CleanColumns
    notes: list[str]


def _prepared(
    train: pd.DataFrame, target: str, table: pd.DataFrame, drop: Sequence[str], missing: str
) -> _Prepared:
    check_names(train, "training table")
    check_names(table, "table to predict")
    features = feature_names(train, target, drop)
    labels = class_labels(train, target)
    columns = CleanColumns().fit(train[features])
    X = columns.transform(train)
    check_training_columns(X, columns.numbers_)
    clean = columns.transform(table)
    if len(clean) == 0:
        raise TableError("The table to predict has no rows.")
    check_sizes(X, columns.numbers_, "training table")
    check_sizes(clean, columns.numbers_, "table to predict")
    notes = missing_notes(X, clean, missing) + suspicion_notes(X, columns.numbers_)
    return _Prepared(X, clean, labels, columns, notes)


def _hold_out(labels: NDArray[Any], random_state: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to train on, with at least one of each class, and rows to hold out."""
    n_held = min(MAX_HELD_OUT, max(1, len(labels) // 5))
    rows = np.arange(len(labels))
    if n_held >= len(np.unique(labels)):
        fit, held = train_test_split(
            rows, test_size=n_held, stratify=labels, random_state=random_state
        )
        return fit, held
    # A row of each class cannot be held out, but one of each must train.
    shuffled = np.random.default_rng(random_state).permutation(rows)
    _, first = np.unique(labels[shuffled], return_index=True)
    held = np.delete(shuffled, first)[:n_held]
    return np.setdiff1d(rows, held), held


def _preprocessing(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    # A number that only held-out rows have stands as 0, so that it needs no case of its own.
    numeric = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
        StandardScaler(),
    )
    # No training row marks its category as unseen: what that means is left open by the data.
    unseen = make_pipeline(
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan),
        MissingIndicator(features="all"),
    )
    text = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=MISSING_TEXT),
        make_union(
            OneHotEncoder(
                handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
            ),
            unseen,
        ),
    )
    return make_column_transformer(
        (numeric, list(numbers)), (text, [name for name in X.columns if name not in numbers])
    )


def _fitted(
    preprocessing: Any, estimator: Any, X: pd.DataFrame, y: NDArray[Any], random_state: int
) -> Pipeline:
    """Both as a pipeline. A pool is made of rows, not of what the preprocessing makes of them."""
    inputs = preprocessing.fit_transform(X)
    pool = {}
    if estimator.get_params().get("pool") == "auto":
        from skuq.quam import make_pool  # reports import this module, but need no torch

        pool["X_pool"] = preprocessing.transform(make_pool(X, random_state=random_state))
    return make_pipeline(preprocessing, estimator.fit(inputs, y, **pool))


def _quantified(model: Pipeline, X: pd.DataFrame) -> pd.DataFrame:
    proba = model.predict_proba(X)
    frame = predict_uncertainty(model, X).to_frame()
    frame.insert(0, "prediction", model.classes_[proba.argmax(axis=1)])
    frame.insert(1, "confidence", proba.max(axis=1))
    return frame


def _conformal_p_values(epistemic: pd.Series, held_out: pd.Series) -> FloatArray:
    calibration = np.sort(held_out.to_numpy())
    # A row that was held out itself is as uncertain as itself, whatever rounding says: that
    # depends on which rows were computed together.
    limits = epistemic.to_numpy() * (1 - 1e-6)
    at_least = len(calibration) - np.searchsorted(calibration, limits, side="left")
    p_values: FloatArray = (1 + at_least) / (1 + len(calibration))
    return p_values
