"""Base class of estimators on top of a pre-trained classifier, with or without a graph."""

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

from skuq._information import centred, has_conventional_offset
from skuq._networks import resolve_device
from skuq.base import FloatArray, UncertaintyMixin
from skuq.evidential._graph_classifier import (
    GraphClassifier,
    NodeModel,
    NodeScoreMixin,
    SharedParametersMixin,
)
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._outputs import (
    Layer,
    Outputs,
    fitted_node_model,
    node_outputs,
    row_outputs,
)
from skuq.evidential._propagation import diffuse
from skuq.evidential._training import (
    Labelled,
    LabelledData,
    check_several_classes,
    has_validation,
    labelled_nodes,
)
from skuq.labels import codes_of, labels_in_mask
from skuq.models import ModelMixin, NetworkModel, classes_of_logits, look_at, resolve
from skuq.validation import refuse_several_inputs, warn_if_worse_than_guessing
from skuq.wrappers import is_fitted, unwrap


class EvaluatedModel(NamedTuple):
    """A pre-trained model, and its outputs for all nodes, or for all samples of `fit`."""

    model: NetworkModel  # a `NodeModel` if there is a graph
    graph: NodeGraph | None
    outputs: Outputs
    data: LabelledData  # rows are positions in `outputs`; classes are in the order of the logits


def _check_no_ids(X: Any) -> None:
    """Raise if `X` looks like node ids or a mask; call it only without a graph."""
    if isinstance(X, Mapping):
        return
    refuse_several_inputs(X)
    values = np.asarray(X)
    if values.ndim == 1 and values.dtype.kind in "iub":
        raise ValueError(
            f"X contains {len(values)} integers or booleans, such as node ids or a mask, but no "
            "graph was passed. Pass `graph`, for example EvidentialProbe(model, graph=data), or "
            "pass feature rows of shape (n_samples, n_features)."
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
    """Base class of estimators that evaluate a pre-trained model and predict its classes."""

    _shared = ("estimator", "graph")
    _min_samples = 2  # read by `resolve`
    # Values for subclasses without these parameters:
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
            evaluated = self._evaluate_on_rows(X, y, sample_weight, X_val, y_val, layer, seed)
        else:
            known = known_classes(self.estimator, X_val, y_val)
            nodes = labelled_nodes(graph, X, y, sample_weight, X_val, y_val, known)
            self.n_features_in_ = 1
            model = fitted_node_model(
                unwrapped(self.estimator), graph, nodes, device=self.device, seed=seed
            )
            evaluated = _evaluated(model, nodes, self._outputs_of_nodes(model, layer, seed))
        # Class weights change the class frequencies that the model learns.
        if not look_at(self.estimator).class_weights:
            _warn_if_worse_than_guessing(evaluated)
        return evaluated

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
        model: Any
        model, data = resolve(
            self.estimator,
            X,
            y,
            owner=self,
            seed=seed,
            sample_weight=sample_weight,
            further=(X_val,) if validated else (),
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
        outputs = row_outputs(model, inputs, layer, model.resolved(self.device))
        return EvaluatedModel(model, None, outputs, labelled)

    def _keep(self, evaluated: EvaluatedModel) -> None:
        """Set the fitted attributes that describe the model."""
        self.model_, self.graph_ = evaluated.model, evaluated.graph
        self.classes_ = evaluated.data.classes

    def _outputs_of(self, X: Any, layer: Layer = -1) -> Outputs:
        """Evaluate the model on new samples, without a graph."""
        inputs = self._inputs(X)
        return row_outputs(self.model_, inputs, layer, self.model_.resolved(self.device))

    def _outputs_of_nodes(self, model: NodeModel, layer: Layer, seed: int) -> Outputs:
        device, verbose = model.resolved(self.device), bool(self.verbose)
        return node_outputs(model, layer, device, batches=self.batches, seed=seed, verbose=verbose)

    def _nodes_of(self, X: Any) -> NDArray[np.int64]:
        assert self.graph_ is not None
        return checked_nodes(X, self.graph_.n_nodes)

    def as_model(self) -> NetworkModel:
        """Return the pre-trained model as a `skuq.models.Model`."""
        check_is_fitted(self)
        return replace(self.model_, classes=self.classes_)

    def predict(self, X: Any) -> NDArray[Any]:
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    @abstractmethod
    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities: the estimator's, unless propagation smooths them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """


def _evaluated(model: NodeModel, nodes: LabelledData, outputs: Outputs) -> EvaluatedModel:
    """Assign the logits of a node model to classes, and convert the codes of the labelled nodes."""
    labels = nodes.classes if model.classes is None else model.classes
    trained = nodes.classes[np.unique(nodes.training.codes)]
    if model.classes is None and len(trained) == outputs.logits.shape[1]:
        labels = trained
    classes = classes_of_logits(outputs.logits, labels)

    def in_order_of_logits(part: Labelled, name: str) -> Labelled:
        return part._replace(codes=codes_of(nodes.classes[part.codes], classes, name))

    training = in_order_of_logits(nodes.training, "y")
    validation = nodes.validation and in_order_of_logits(nodes.validation, "y_val")
    return EvaluatedModel(model, model.graph, outputs, LabelledData(classes, training, validation))


def node_energy(
    estimator: Any, X: Any, y: Any, *, similar: bool = False, device: Any = "auto"
) -> FloatArray:
    """Energy of all nodes, (n_nodes,), for a fitted node classifier; diffused over its graph.

    With `similar`, energy is then diffused over nodes with similar features. `X` and `y` are
    labelled nodes and their classes.
    """
    graph = graph_of(estimator, None)
    if graph is None:
        raise TypeError(f"{type(estimator).__name__} does not classify the nodes of a graph.")
    nodes = labelled_nodes(graph, X, y, known_classes=known_classes(estimator))
    model = fitted_node_model(unwrapped(estimator), graph, nodes, device=device, seed=0)
    evaluated = _evaluated(model, nodes, node_outputs(model, -1, model.resolved(device)))
    if not look_at(estimator).class_weights:
        _warn_if_worse_than_guessing(evaluated)
    logits = evaluated.outputs.logits
    logits = centred(logits) if has_conventional_offset(logits) else logits
    energy = diffuse(graph.adjacency, -torch.logsumexp(logits, dim=1).numpy())  # Eq. 84
    return diffuse(graph.similar, energy) if similar else energy


def _warn_if_worse_than_guessing(evaluated: EvaluatedModel) -> None:
    """Warn if the model's own predictions for the labelled samples are worse than guessing."""
    rows, codes, weight = evaluated.data.training
    log_proba = evaluated.outputs.logits[rows].log_softmax(1).numpy()
    loss = float(np.average(-log_proba[np.arange(len(rows)), codes], weights=weight))
    warn_if_worse_than_guessing(loss, codes, evaluated.data.classes, weight)


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
    """Return `graph` if it is given, otherwise the graph of the estimator if it has one."""
    model = unwrapped(estimator)
    if graph is not None:
        return as_node_graph(graph)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        return as_node_graph(model.graph)
    return getattr(model, "graph_", None)


def known_classes(estimator: Any, X_val: Any = None, y_val: Any = None) -> NDArray[Any] | None:
    """Return the classes of a trained estimator; None if it stores no labels.

    For a `torch.nn.Module`, which stores no labels, return the labels of the validation nodes.
    These labels may include classes that the network was trained on, but that `y` does not contain.
    """
    model = unwrapped(estimator)
    if isinstance(model, nn.Module) and y_val is not None:
        return labels_in_mask(X_val, np.ravel(y_val))
    fitted = model is not None and is_fitted(model)
    return np.asarray(model.classes_) if fitted and hasattr(model, "classes_") else None


def seen_nodes(estimator: Any, graph: NodeGraph) -> NDArray[np.int64]:
    """Return the nodes of the graph whose labels were used to train a `GraphClassifier`."""
    model = unwrapped(estimator)
    if isinstance(model, GraphClassifier) and is_fitted(model) and graph.is_same(model.graph_):
        return model.labelled_nodes_
    return np.empty(0, np.int64)
