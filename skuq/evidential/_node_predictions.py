"""Predictions on nodes, looked up among those of all nodes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.models import labels_in_mask


class NodeScoreMixin:
    """Accuracy, with labels of all nodes too if `X` is a mask of them."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy.

        Parameters
        ----------
        X : array-like
            Inputs of `predict`; with a graph, node ids or a mask of all nodes.
        y : array-like of shape (n_samples,)
            Class labels; with a mask, of the nodes in it or of all nodes.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        float
            Share of the samples that are predicted correctly.
        """
        labels = labels_in_mask(X, column_or_1d(y, warn=True))
        accuracy: float = super().score(X, labels, sample_weight)  # type: ignore[misc]
        return accuracy


class NodeClassifierMixin(NodeScoreMixin):
    """Class predictions for node ids.

    The estimator sets `graph_`, `classes_` and `proba_` of shape (n_nodes, n_classes).
    """

    graph_: NodeGraph
    classes_: NDArray[Any]
    proba_: FloatArray

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "proba_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.one_d_array = True
        return tags

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities of nodes.

        Parameters
        ----------
        X : array-like of shape (n_nodes,) or (n_nodes, 1), int
            Node ids.

        Returns
        -------
        ndarray of shape (n_nodes, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        check_is_fitted(self)
        return self.proba_[checked_nodes(X, self.graph_.n_nodes)]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of nodes.

        Parameters
        ----------
        X : array-like of shape (n_nodes,) or (n_nodes, 1), int
            Node ids.

        Returns
        -------
        ndarray of shape (n_nodes,)
            Class labels.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]
