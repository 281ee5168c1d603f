"""Predictions of scikit-learn's boosted trees for a few rows.

scikit-learn calls a function for each tree, which takes far longer than following a few rows
through the tree. Here, numpy follows the rows through all trees at once, with equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from skuq.base import FloatArray

MOST_ROWS = 32  # with more rows, scikit-learn is faster
_DEEPEST = 30  # maximum depth of trees; for deeper trees, scikit-learn is faster
_KINDS = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
_JOINED: WeakKeyDictionary[Any, tuple[Any, int, Any]] = WeakKeyDictionary()


def for_few_rows(estimator: Any) -> Any:
    """Return a copy of boosted trees that predicts a few rows faster; other models unchanged."""
    if type(estimator) not in _KINDS:
        return estimator
    trees = estimator._predictors
    known, n_trees, joined = _JOINED.get(estimator, (None, 0, None))
    if known is not trees or n_trees != len(trees):  # fitted again, or more trees added
        joined = _joined(estimator)
        _JOINED[estimator] = trees, len(trees), joined
    return estimator if joined is None else joined


def _joined(estimator: Any) -> Any:
    """Return a copy with joined trees, without references to the estimator; None if unsuitable."""
    trees, start = estimator._predictors, estimator._baseline_prediction
    nodes = [tree.nodes for tree in chain(*trees)]
    if not nodes or any(each["is_categorical"].any() for each in nodes):
        return None
    if max(each["depth"].max() for each in nodes) > _DEEPEST:
        return None
    joined = copy(estimator)
    vars(joined).pop("_raw_predict", None)  # an attribute that a scorer for early stopping sets
    joined._predictors = [[*map(_Trees, zip(*trees, strict=True), np.ravel(start))]]
    joined._baseline_prediction = np.zeros_like(start)  # because the joined trees add it
    return joined


class _Trees:
    """All trees of one output, with the interface of a single tree of scikit-learn."""

    def __init__(self, trees: Sequence[Any], start: float):
        sizes = [len(tree.nodes) for tree in trees]
        nodes = np.concatenate([tree.nodes for tree in trees])
        self.roots = np.cumsum(sizes) - sizes
        first, is_leaf = np.repeat(self.roots, sizes), nodes["is_leaf"] == 1
        # Make each leaf its own child: all rows can then take the same number of steps.
        next_nodes = nodes["left"] + first, nodes["right"] + first
        children = np.where(is_leaf, np.arange(len(nodes)), next_nodes)
        self.children = children.ravel("F")  # children of node k are at 2 k and 2 k + 1
        self.column = np.where(is_leaf, 0, nodes["feature_idx"].astype(np.int64))
        self.limit, self.value = nodes["num_threshold"].copy(), nodes["value"].copy()
        self.missing_go_right = nodes["missing_go_to_left"] == 0
        self.depth, self.start = int(nodes["depth"].max()), start

    def predict(self, X: FloatArray, **_: Any) -> FloatArray:
        cells, row = X.ravel(), np.arange(len(X))[:, None] * X.shape[1]
        some_missing = np.isnan(cells).any()
        node: Any = np.broadcast_to(self.roots, (len(X), len(self.roots)))
        for _step in range(self.depth):
            values = cells.take(self.column.take(node) + row)
            right = ~(values <= self.limit.take(node))  # also True if the limit is NaN
            if some_missing:
                right = np.where(np.isnan(values), self.missing_go_right.take(node), right)
            node = self.children.take(2 * node + right)
        terms = np.insert(self.value.take(node), 0, self.start, axis=1)
        total: FloatArray = np.cumsum(terms, axis=1)[:, -1]  # added in scikit-learn's order
        return total
