"""Labelled rows or nodes that an estimator is fitted on, validated."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.labels import codes_of
from skuq.models import labels_in_mask


class Labelled(NamedTuple):
    """Labelled samples.

    Attributes
    ----------
    rows : ndarray of shape (n_labelled,), int64
        Positions among all samples, or node ids; one may occur several times.
    codes : ndarray of shape (n_labelled,), int64
        Positions of their labels among the classes.
    weight : ndarray of shape (n_labelled,), float64
        Sample weights.
    """

    rows: NDArray[np.int64]
    codes: NDArray[np.int64]
    weight: NDArray[np.float64]


class LabelledData(NamedTuple):
    """Classes, and labelled samples for training and early stopping.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Class labels.
    training : Labelled
        Samples to train on.
    validation : Labelled or None
        Samples for early stopping.
    """

    classes: NDArray[Any]
    training: Labelled
    validation: Labelled | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sorted rows of training and validation, each once."""
        parts = [self.training.rows]
        if self.validation is not None:
            parts.append(self.validation.rows)
        return np.unique(np.concatenate(parts))

    def as_arguments(self) -> dict[str, Any]:
        """Return the nodes as arguments of `fit`."""
        arguments = {
            "X": self.training.rows,
            "y": self.classes[self.training.codes],
            "sample_weight": self.training.weight,
        }
        if self.validation is not None:
            arguments["X_val"] = self.validation.rows
            arguments["y_val"] = self.classes[self.validation.codes]
        return arguments


def labelled_nodes(
    graph: NodeGraph,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    X_val: Any = None,
    y_val: Any = None,
    known_classes: NDArray[Any] | None = None,
) -> LabelledData:
    """Validate the labelled nodes that `fit` is given.

    Parameters
    ----------
    graph : NodeGraph
        Graph.
    X, y, sample_weight, X_val, y_val
        Arguments of `fit`. With a mask of all nodes for `X`, labels may be those of all nodes.
    known_classes : ndarray of shape (n_classes,), default=None
        Classes of a trained model, which are possible besides those in `y`.

    Returns
    -------
    LabelledData
        With sorted classes.

    Raises
    ------
    ValueError
        If anything about nodes, labels or weights is not valid.
    """
    ids, labels = _checked_pair(graph, X, y)
    check_several_classes(labels)
    classes = np.unique(labels if known_classes is None else np.append(labels, known_classes))
    weight = _check_sample_weight(sample_weight, ids, dtype=np.float64, ensure_non_negative=True)
    check_some_weight(weight)
    training = Labelled(ids, codes_of(labels, classes, "y"), weight)
    if not has_validation(X_val, y_val):
        return LabelledData(classes, training)
    ids, labels = _checked_pair(graph, X_val, y_val)
    validation = Labelled(ids, codes_of(labels, classes, "y_val"), np.ones(len(ids)))
    return LabelledData(classes, training, validation)


def check_several_classes(labels: NDArray[Any]) -> None:
    """Raise if all labels are of one class: nothing can be learned from them."""
    if (labels == labels[0]).all():
        raise ValueError(f"`y` holds one class only: {labels[0]!r}; at least 2 are needed.")


def check_some_weight(weight: NDArray[np.float64]) -> None:
    """Refuse weights that are all 0, which scikit-learn 1.6 does not."""
    if not weight.any():
        raise ValueError("`sample_weight` must contain at least one non-zero number.")


def has_validation(X_val: Any, y_val: Any) -> bool:
    """Whether validation data are given; raises if only one half of them is."""
    if (X_val is None) != (y_val is None):
        raise ValueError("Give both `X_val` and `y_val`, or neither.")
    return X_val is not None


def _checked_pair(graph: NodeGraph, X: Any, y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    ids = checked_nodes(X, graph.n_nodes)
    labels = labels_in_mask(X, column_or_1d(y, warn=True))
    check_consistent_length(ids, labels)
    check_classification_targets(labels)
    return ids, labels
