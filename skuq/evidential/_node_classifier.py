"""What estimators on the nodes of one graph share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin
from skuq.evidential._dirichlet import Measure, dirichlet_uncertainty
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.evidential._training import Samples
from skuq.labels import codes_of
from skuq.models import is_fitted


class SharedParametersMixin:
    """Large parameters, such as graphs and pre-trained models, that copies share.

    scikit-learn's `clone` copies what is no estimator and un-fits what is one.
    """

    _shared: tuple[str, ...] = ("graph",)

    def __sklearn_clone__(self: Any) -> Any:
        params = self.get_params(deep=False)
        copied = {
            name: value if self._is_shared(name, value) else clone(value, safe=False)
            for name, value in params.items()
        }
        twin = type(self)(**copied)
        if hasattr(self, "_metadata_request"):
            twin._metadata_request = self._metadata_request
        return twin

    def _is_shared(self, name: str, value: Any) -> bool:
        """An estimator that is yet to be trained is copied: its settings may be searched."""
        untrained = hasattr(value, "get_params") and not is_fitted(value)
        return name in self._shared and not untrained


class NodeClassifierMixin(SharedParametersMixin):
    """Predictions on nodes, from concentrations or probabilities of all nodes.

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


class LabelledNodes:
    """Node ids, codes of their classes, and weights: training and validation, checked.

    Classes are those in `y`, and those that a trained model knows, if they are given.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Class labels, sorted.
    training, validation : Samples
        Inputs are the node ids and the weights; validation is None without such data.
    """

    def __init__(
        self,
        graph: NodeGraph,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        known: NDArray[Any] | None = None,
    ):
        ids, labels = _checked_pair(graph, X, y)
        check_several_classes(labels)
        self.classes = np.unique(labels if known is None else np.append(labels, known))
        weight = _check_sample_weight(
            sample_weight, ids, dtype=np.float32, ensure_non_negative=True
        )
        self.training = self._samples(ids, labels, weight, "y")
        self.validation = None
        if (X_val is None) != (y_val is None):
            raise ValueError("Give both `X_val` and `y_val`, or neither.")
        if X_val is not None:
            ids, labels = _checked_pair(graph, X_val, y_val)
            weight = np.ones(len(ids), dtype=np.float32)
            self.validation = self._samples(ids, labels, weight, "y_val")

    def as_arguments(self) -> dict[str, Any]:
        """Return the same nodes as arguments of `fit`."""
        arguments = {
            "X": self.training.inputs["inputs"],
            "y": self.classes[self.training.codes],
            "sample_weight": self.training.inputs["weight"],
        }
        if self.validation is not None:
            arguments["X_val"] = self.validation.inputs["inputs"]
            arguments["y_val"] = self.classes[self.validation.codes]
        return arguments

    def _samples(
        self, ids: NDArray[np.int64], labels: NDArray[Any], weight: NDArray[Any], name: str
    ) -> Samples:
        return Samples({"inputs": ids, "weight": weight}, codes_of(labels, self.classes, name))


def check_several_classes(labels: NDArray[Any]) -> None:
    """Refuse labels of one class: nothing can be learned from them."""
    if (labels == labels[0]).all():
        raise ValueError(f"`y` holds one class only: {labels[0]!r}; at least 2 are needed.")


def _checked_pair(graph: NodeGraph, X: Any, y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    ids = checked_nodes(X, graph.n_nodes)
    labels = column_or_1d(y, warn=True)
    check_consistent_length(ids, labels)
    check_classification_targets(labels)
    return ids, labels


class DirichletNodesMixin(NodeClassifierMixin, UncertaintyMixin):
    """Predictions on nodes from a Dirichlet distribution for each.

    The estimator sets `graph_`, `classes_` and, by `_set_dirichlet`, `alpha_`; it has the
    parameter `measure`.
    """

    alpha_: FloatArray
    measure: Measure

    def _set_dirichlet(self, alpha: FloatArray) -> None:
        self.alpha_ = alpha
        self.proba_ = alpha / alpha.sum(axis=1, keepdims=True)

    def predict_dirichlet(self, X: Any) -> FloatArray:
        """Predict the concentration of each node's distribution over class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_nodes,) or (n_nodes, 1), int
            Node ids.

        Returns
        -------
        ndarray of shape (n_nodes, n_classes), float64
            Positive; columns in the order of `classes_`.
        """
        check_is_fitted(self)
        return self.alpha_[checked_nodes(X, self.graph_.n_nodes)]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the uncertainty of nodes.

        Parameters
        ----------
        X : array-like of shape (n_nodes,) or (n_nodes, 1), int
            Node ids.

        Returns
        -------
        Uncertainty
            As `skuq.evidential.dirichlet_uncertainty` says for the chosen `measure`.
        """
        return dirichlet_uncertainty(self.predict_dirichlet(X), self.measure)
