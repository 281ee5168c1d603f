"""Kinds of input that a given model takes: text columns, or ids of nodes."""

from __future__ import annotations

from typing import Any

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


def takes_ids(estimator: Any) -> bool:
    """Whether the inputs of an estimator are ids, such as those of the nodes of a graph."""
    while not hasattr(estimator, "as_adopted"):
        inside = unwrap(estimator, fitted=False)
        if inside is None or isinstance(estimator, Pipeline):
            return False
        estimator = inside.estimator
    return bool(get_tags(estimator).input_tags.one_d_array)
