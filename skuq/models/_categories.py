"""Columns that a learner takes for categories, by its parameters and the steps before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder
from sklearn.utils import _safe_indexing

from skuq.wrappers import unwrap

# Parameters that name columns: of scikit-learn's boosting, LightGBM with its aliases, and CatBoost.
_PARAMETERS = (
    "categorical_features",
    "categorical_feature",
    "cat_feature",
    "categorical_column",
    "cat_column",
    "cat_features",
)
_ENCODERS = (OneHotEncoder, OrdinalEncoder, TargetEncoder)
_MOVING = (ColumnTransformer, FeatureUnion, SelectorMixin)  # columns to other places


def category_columns(estimator: Any, names: Sequence[Any]) -> list[int]:
    """Find the columns of numbers that an estimator takes for codes of categories.

    Types of columns, such as pandas' category type, are not looked at.

    Parameters
    ----------
    estimator : object
        What the user passed, fitted or not: a learner that is told which columns hold categories
        (``categorical_features`` of scikit-learn's boosting, ``feature_types`` of XGBoost,
        ``categorical_feature`` of LightGBM, ``cat_features`` of CatBoost), or a pipeline that
        encodes some.
    names : sequence of length n_columns
        Names of the columns of its inputs; their positions if they have none.

    Returns
    -------
    list of int
        Positions of the columns.

    Examples
    --------
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> learner = HistGradientBoostingClassifier(categorical_features=["town"])
    >>> category_columns(learner, ["age", "town"])
    [1]
    """
    found: set[int] = set()
    in_place = True  # whether columns arrive where they were
    while in_place and (inside := unwrap(estimator, fitted=False)) is not None:
        steps = estimator.steps[:-1] if isinstance(estimator, Pipeline) else [("", estimator)]
        for _, step in steps:
            if in_place:
                found |= _encoded(step, names)
                in_place = not isinstance(step, _MOVING)
        estimator = inside.estimator
    if in_place and getattr(estimator, "n_features_in_", len(names)) == len(names):
        found |= _declared(estimator, names)
    return sorted(found)


def _encoded(step: Any, names: Sequence[Any]) -> set[int]:
    """Columns that a step of a pipeline encodes as categories."""
    if isinstance(step, _ENCODERS):
        return set(range(len(names)))
    if isinstance(step, Pipeline):
        return set().union(*(_encoded(each, names) for _, each in step.steps))
    if not isinstance(step, ColumnTransformer):
        return set()
    found: set[int] = set()
    for _, transformer, columns in step.transformers:
        if not callable(columns):
            chosen = _positions(columns, names)
            inner = _encoded(transformer, [names[k] for k in chosen])
            found |= {chosen[k] for k in inner}
    return found


def _declared(learner: Any, names: Sequence[Any]) -> set[int]:
    """Columns that a learner's own parameters call categories."""
    parameters = learner.get_params(deep=False) if hasattr(learner, "get_params") else {}
    # What LightGBM's `fit` was told is known to the fitted booster alone.
    booster = getattr(learner, "_Booster", None)
    parameters = {**parameters, **(getattr(booster, "params", None) or {})}
    types = parameters.get("feature_types")
    found = {k for k, kind in enumerate(types) if kind == "c"} if types is not None else set()
    for name in _PARAMETERS:
        given = parameters.get(name)
        if given is not None and (np.ndim(given) == 1 or isinstance(given, int)):
            found |= set(_positions(given, names))
    return {k for k in found if k < len(names)}


def _positions(columns: Any, names: Sequence[Any]) -> list[int]:
    """Positions of columns given by name, position, slice or mask."""
    places = np.arange(len(names))
    if isinstance(columns, slice) and not isinstance(columns.start or columns.stop, str):
        return places[columns].tolist()
    wanted: Iterable[Any] = [columns] if np.ndim(columns) == 0 else columns
    wanted = list(wanted)
    if wanted and isinstance(wanted[0], bool | np.bool_):
        return np.flatnonzero(wanted).tolist()
    if any(isinstance(each, str) for each in wanted):
        known = list(names)
        return [known.index(each) for each in wanted if each in known]
    chosen: list[int] = _safe_indexing(places, [int(each) for each in wanted]).tolist()
    return chosen
