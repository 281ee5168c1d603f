"""Base of estimators that read a pre-trained classifier, with a graph or without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq.base import FloatArray, UncertaintyMixin
from skuq.evidential._graph_classifier import (
    GraphClassifier,
    NodeModel,
    NodeScoreMixin,
    SharedParametersMixin,
)
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.evidential._network_outputs import Layer, Outputs, adopted_outputs
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._pretrained_model import fit_on_graph, node_outputs
from skuq.evidential._training import (
    Labelled,
    LabelledData,
    check_several_classes,
    has_validation,
    labelled_nodes,
)
from skuq.labels import codes_of, labels_in_mask
from skuq.models import ModelMixin, NetworkModel, classes_of_logits, look_at, resolve
from skuq.networks import resolve_device
from skuq.wrappers import is_fitted, unwrap


class EvaluatedModel(NamedTuple):
    """A pre-trained model, and its outputs for all samples that `fit` is given.

    With a graph, these are all nodes; without, training samples followed by validation samples.
    """

    model: NetworkModel  # a `NodeModel` with a graph
    graph: NodeGraph | None
    outputs: Outputs
    data: LabelledData  # positions among the samples; classes in the order of the logits


def _check_no_ids(X: Any) -> None:
    """Refuse ids of nodes or a mask where there is no graph."""
    values = np.empty(0) if isinstance(X, Mapping) else np.asarray(X)
    if values.ndim == 1 and values.dtype.kind in "iub":
        raise ValueError(
            f"X holds {len(values)} whole numbers or booleans, such as ids of nodes, but there is "
            "no graph: pass `graph`, such as EvidentialProbe(model, graph=data). Rows of a table "
            "have shape (n_samples, n_features)."
        )


class PretrainedClassifier(
    SharedParametersMixin,
    NodeScoreMixin,
    ModelMixin,
    ClassifierMixin,
    UncertaintyMixin,
    BaseEstimator,
    ABC,
):
    """Base of estimators that read a pre-trained model and predict its classes.

    A subclass has the parameters `estimator`, `graph`, `device` and `random_state`; its `fit`
    sets `model_`, `graph_` and `classes_`.
    """

    _shared = ("estimator", "graph")
    # Of those that have no such parameters:
    verbose: int = 0
    batches: NodeBatches | None = None

    estimator: Any
    graph: Any
    graph_: NodeGraph | None
    model_: NetworkModel
    classes_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = self.graph is not None or look_at(self.estimator).takes_ids
        return tags

    def _evaluate_estimator(
        self,
        graph: NodeGraph | None,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        *,
        layer: Layer = -1,
        seed: int,
    ) -> EvaluatedModel:
        """Validate the arguments of `fit`, and evaluate the estimator on them."""
        if graph is None:
            return self._evaluate_on_rows(X, y, sample_weight, X_val, y_val, layer, seed)
        known = known_classes(self.estimator, X_val, y_val)
        nodes = labelled_nodes(graph, X, y, sample_weight, X_val, y_val, known)
        self.n_features_in_ = 1
        return self._evaluate_on_graph(graph, nodes, layer, seed)

    def _evaluate_on_graph(
        self, graph: NodeGraph, nodes: LabelledData, layer: Layer, seed: int
    ) -> EvaluatedModel:
        model = fit_on_graph(unwrapped(self.estimator), graph, nodes, device=self.device, seed=seed)
        outputs = self._outputs_of_nodes(model, layer, seed)
        labels = nodes.classes if model.classes is None else model.classes
        trained = nodes.classes[np.unique(nodes.training.codes)]
        if model.classes is None and len(trained) == outputs.logits.shape[1]:
            labels = trained
        classes = classes_of_logits(outputs.logits, labels)

        def in_order_of_logits(part: Labelled, name: str) -> Labelled:
            return part._replace(codes=codes_of(nodes.classes[part.codes], classes, name))

        training = in_order_of_logits(nodes.training, "y")
        validation = None
        if nodes.validation is not None:
            validation = in_order_of_logits(nodes.validation, "y_val")
        return EvaluatedModel(model, graph, outputs, LabelledData(classes, training, validation))

    def _evaluate_on_rows(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        layer: Layer,
        seed: int,
    ) -> EvaluatedModel:
        validated = has_validation(X_val, y_val)
        _check_no_ids(X)
        resolve_device(self.device)  # an error now, not after the training
        model: Any  # a network, since that form is asked for
        model, data = resolve(
            self.estimator,
            X,
            y,
            owner=self,
            seed=seed,
            sample_weight=sample_weight,
            further=(X_val,) if validated else (),
            min_samples=2,
            device=self.device,
            after_the_fact=True,
        )
        check_several_classes(data.labels)
        classes, inputs, n_rows = model.classes, data.inputs, len(data.codes)
        assert classes is not None
        labelled = LabelledData(classes, Labelled(np.arange(n_rows), data.codes, data.weight))
        if validated:
            further = model.inputs(data.further[0])
            labels = column_or_1d(y_val, warn=True)
            check_consistent_length(further, labels)
            codes = codes_of(labels, classes, "y_val")
            rows = n_rows + np.arange(len(labels))
            labelled = labelled._replace(validation=Labelled(rows, codes, np.ones(len(labels))))
            inputs = torch.cat([inputs, further])
        outputs = adopted_outputs(model, inputs, layer, model.resolved(self.device))
        return EvaluatedModel(model, None, outputs, labelled)

    def _keep(self, evaluated: EvaluatedModel) -> None:
        """Set the fitted attributes of the model."""
        self.model_, self.graph_ = evaluated.model, evaluated.graph
        self.classes_ = evaluated.data.classes

    def _outputs_of(self, X: Any, layer: Layer = -1) -> Outputs:
        """Evaluate the model on new samples, without a graph."""
        inputs = self._inputs(X)
        return adopted_outputs(self.model_, inputs, layer, self.model_.resolved(self.device))

    def _outputs_of_nodes(self, model: NodeModel, layer: Layer, seed: int) -> Outputs:
        """Evaluate a model on all nodes of its graph."""
        device, verbose = model.resolved(self.device), bool(self.verbose)
        return node_outputs(model, layer, device, batches=self.batches, seed=seed, verbose=verbose)

    def _nodes_of(self, X: Any) -> NDArray[np.int64]:
        """Validate node ids, with a graph."""
        assert self.graph_ is not None
        return checked_nodes(X, self.graph_.n_nodes)

    def as_model(self) -> NetworkModel:
        """Return the pre-trained model in the form that `skuq.models.adopt` returns."""
        check_is_fitted(self)
        return replace(self.model_, classes=self.classes_)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    @abstractmethod
    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities of shape (n_samples, n_classes)."""


def unwrapped(model: Any) -> Any:
    """Return the model inside wrappers that change neither its inputs nor its outputs."""
    try:
        inside = unwrap(model)
    except (NotFittedError, TypeError):
        return model
    changes = isinstance(model, CalibratedClassifierCV)
    if inside is None or inside.transform is not None or changes:
        return model
    return unwrapped(inside.estimator)


def graph_of(estimator: Any, graph: Any) -> NodeGraph | None:
    """Return the given graph, else that of the estimator if it is a graph classifier."""
    model = unwrapped(estimator)
    _check_fitted_around(model)
    if graph is not None:
        return as_node_graph(graph)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        return as_node_graph(model.graph)
    return getattr(model, "graph_", None)


def _check_fitted_around(model: Any) -> None:
    """Refuse wrappers of a `GraphClassifier` that are not fitted.

    A search over them takes ids of nodes, and would be trained on features.
    """
    inside, level = model, unwrap(model, fitted=False)
    while level is not None:
        inside, level = level.estimator, unwrap(level.estimator, fitted=False)
    if inside is not model and isinstance(inside, GraphClassifier) and not is_fitted(model):
        raise ValueError(
            f"{type(model).__name__} around a GraphClassifier is not fitted; fit it first, on "
            "node ids, such as EvidentialProbe(search.fit(nodes, labels))."
        )


def known_classes(estimator: Any, X_val: Any = None, y_val: Any = None) -> NDArray[Any] | None:
    """Return the classes of a trained estimator; None if it has no labels.

    A network may know the classes of validation nodes, although it has no labels.
    """
    model = unwrapped(estimator)
    if isinstance(model, nn.Module) and y_val is not None:
        return labels_in_mask(X_val, np.ravel(y_val))
    if model is None or not is_fitted(model) or not hasattr(model, "classes_"):
        return None
    return np.asarray(model.classes_)


def seen_nodes(estimator: Any, graph: NodeGraph) -> NDArray[np.int64]:
    """Return the nodes of the graph whose labels a trained estimator is known to have seen."""
    model = unwrapped(estimator)
    if isinstance(model, GraphClassifier) and is_fitted(model) and graph.is_same(model.graph_):
        return model.labelled_nodes_
    return np.empty(0, np.int64)
