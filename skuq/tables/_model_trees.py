"""Bounds checks of the trees in a model from a file.

Compiled code follows the nodes of a tree, and adds up the trees of gradient boosting, without
checking array bounds. A forged tree could read or write memory outside its arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier

N_WORDS = 8  # number of 32-bit words in a bitset for 256 categories


def is_damaged(value: Any, width: int) -> bool:
    """Whether an object contains a tree that reads out of bounds for rows of `width` columns."""
    name, attributes = type(value).__name__, getattr(value, "__dict__", {})
    if name == "Tree":
        return value.value.size < value.node_count or not _lead_on(
            value.children_left, value.children_right, value.feature, width
        )
    if name == "TreePredictor":
        return not _is_predictor(value, width)
    if "_predictors" in attributes:
        return not _knows_categories(value, width)
    if name.startswith("GradientBoosting") and "estimators_" in attributes:
        return not _has_columns(value)
    return False


def _lead_on(left: Any, right: Any, feature: Any, width: int) -> bool:
    """Whether all children come after their parent, and all column indices are valid."""
    inner = np.flatnonzero(left != -1)
    children, used = np.stack([left[inner], right[inner]]), feature[inner]
    leads_on = (children > inner) & (children < len(left))
    return bool(len(left) and leads_on.all() and (used >= 0).all() and (used < width).all())


def _is_predictor(tree: Any, width: int) -> bool:
    nodes = np.asarray(tree.nodes)
    if nodes.ndim != 1:
        return False
    is_leaf = nodes["is_leaf"] != 0
    left, right = (
        np.where(is_leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right")
    )
    n_sets = nodes["bitset_idx"].astype(np.int64)[_by_category(nodes)].max(initial=-1) + 1
    sets = np.asarray(tree.raw_left_cat_bitsets)
    has_sets = n_sets == 0 or (sets.ndim == 2 and len(sets) >= n_sets and sets.shape[1] >= N_WORDS)
    return has_sets and _lead_on(left, right, nodes["feature_idx"], width)


def _by_category(nodes: Any) -> Any:
    """Mask of inner nodes with a categorical split; the flag of a leaf is unused."""
    return (nodes["is_categorical"] != 0) & (nodes["is_leaf"] == 0)


def _knows_categories(model: Any, width: int) -> bool:
    """Whether every column with a categorical split is categorical in the bin mapper.

    Histogram boosting stores one row of known categories for each such column.
    """
    is_categorical = np.asarray(model._bin_mapper.is_categorical_)
    if is_categorical.shape != (width,):
        return False
    asked = [np.zeros(0, dtype=np.int64)]
    for tree in (tree for trees in model._predictors for tree in trees):
        nodes = np.asarray(tree.nodes)
        asked.append(nodes["feature_idx"][_by_category(nodes)])
    columns = np.concatenate(asked)
    return bool(np.isin(columns, np.flatnonzero(is_categorical)).all())


def _has_columns(model: Any) -> bool:
    """Whether the initial predictions have one column for each tree of a boosting stage."""
    trees = np.asarray(model.estimators_)
    if trees.ndim != 2 or any(
        type(getattr(each, "tree_", None)).__name__ != "Tree" for each in trees.ravel().tolist()
    ):
        return False
    n_columns, start = trees.shape[1], model.init_
    if n_columns == 1:
        return True
    if isinstance(start, str):
        return start == "zero" and model.n_trees_per_iteration_ == n_columns
    # The predictions of the trees are added to those of `init_`, whose shape the sum keeps.
    return (
        type(start) is DummyClassifier
        and model._loss.is_multiclass
        and start.n_outputs_ == 1
        and start.n_classes_ == n_columns
        and np.shape(start.class_prior_) == (n_columns,)
    )
