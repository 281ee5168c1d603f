"""Detection of categorical columns from a learner's parameters and the steps before it."""

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

# Names of the parameters for categorical columns in scikit-learn's boosting, in LightGBM (with
# aliases) and in CatBoost.
_PARAMETERS = (
    "categorical_features",
    "categorical_feature",
    "cat_feature",
    "categorical_column",
    "cat_column",
    "cat_features",
)
_ENCODERS = (OneHotEncoder, OrdinalEncoder, TargetEncoder)
_MOVING = (ColumnTransformer, FeatureUnion, SelectorMixin)  # steps that reorder columns


def category_columns(estimator: Any, names: Sequence[Any]) -> list[int]:
    """Find the numeric columns that an estimator uses as codes of categories.

    Column dtypes, such as pandas' category type, are not inspected.

    Parameters
    ----------
    estimator : object
        Estimator, fitted or not: a learner with a parameter for categorical columns
        (``categorical_features`` of scikit-learn's boosting, ``feature_types`` of XGBoost,
        ``categorical_feature`` of LightGBM, ``cat_features`` of CatBoost), or a pipeline that
        encodes some columns.
    names : sequence of length n_columns
        Names of the input columns, or their positions if the columns have no names.
    """
    found: set[int] = set()
    in_place = True  # whether all steps so far keep the positions of columns
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
    """Columns that a learner's own parameters declare as categories."""
    parameters = learner.get_params(deep=False) if hasattr(learner, "get_params") else {}
    # Only the fitted booster stores the columns that were passed to LightGBM's `fit`.
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
    selected: Iterable[Any] = [columns] if np.ndim(columns) == 0 else columns
    selected = list(selected)
    if selected and isinstance(selected[0], bool | np.bool_):
        return np.flatnonzero(selected).tolist()
    if any(isinstance(each, str) for each in selected):
        known = list(names)
        return [known.index(each) for each in selected if each in known]
    chosen: list[int] = _safe_indexing(places, [int(each) for each in selected]).tolist()
    return chosen
