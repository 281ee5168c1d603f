"""Kinds of input that a given model takes: text columns, or ids of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skuq.wrappers import unwrap


def brings_preprocessing(estimator: Any) -> bool:
    """Whether an estimator may transform its input itself: then text columns are its business."""
    while not isinstance(estimator, Pipeline):
        inside = unwrap(estimator, fitted=False)
        if inside is None:
            return False
        estimator = inside.estimator
    return True


def labels_in_mask(X: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Labels of the nodes in a mask.

    Parameters
    ----------
    X : array-like
        Ids of nodes, or booleans, one for each node.
    y : ndarray of shape (n_labelled,) or (n_nodes,)
        Labels of these nodes, or with a mask of all nodes.

    Returns
    -------
    ndarray of shape (n_labelled,)
    """
    mask = np.asarray(X)
    return y[mask] if mask.dtype == bool and mask.shape == y.shape else y


def takes_ids(estimator: Any) -> bool:
    """Whether the inputs of an estimator are ids, such as those of the nodes of a graph."""
    while not hasattr(estimator, "as_adopted"):
        inside = unwrap(estimator, fitted=False)
        if inside is None or isinstance(estimator, Pipeline):
            return False
        estimator = inside.estimator
    return bool(get_tags(estimator).input_tags.one_d_array)
