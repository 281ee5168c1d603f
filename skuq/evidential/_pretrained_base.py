"""What estimators around a pre-trained model share, with a graph and without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from skuq.base import FloatArray, UncertaintyMixin
from skuq.evidential._graph_model import (
    GraphModel,
    Outputs,
    adopted_outputs,
    graph_model,
    graph_of,
    known_classes,
)
from skuq.evidential._graphs import NodeGraph, checked_nodes, graph_device
from skuq.evidential._hooks import Layer
from skuq.evidential._node_classifier import (
    LabelledNodes,
    SharedParametersMixin,
    check_several_classes,
)
from skuq.evidential._node_model import NodeModel
from skuq.evidential._training import Samples
from skuq.labels import codes_of
from skuq.models import (
    AdoptedInputsMixin,
    AdoptedModel,
    adopt,
    classes_of_outputs,
    encode_labels,
    fit_or_adopt,
    resolve_device,
)


class Rows(NamedTuple):
    """Some of the samples of `Evaluated`.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,), int64
        Their positions.
    codes : ndarray of shape (n_rows,), int64
        Their classes.
    weight : ndarray of shape (n_rows,), float64
        Their weights.
    """

    rows: NDArray[np.int64]
    codes: NDArray[np.int64]
    weight: NDArray[np.float64]


class Evaluated(NamedTuple):
    """A pre-trained model on all samples at hand, and which of them are labelled.

    Attributes
    ----------
    model : AdoptedModel or GraphModel
        The model.
    graph : NodeGraph or None
        The graph.
    classes : ndarray of shape (n_classes,)
        Labels in the order of the logits.
    outputs : Outputs
        Of all nodes of a graph, or of the training samples followed by the validation samples.
    training : Rows
        Labelled samples.
    validation : Rows or None
        Samples to stop by.
    """

    model: AdoptedModel | GraphModel
    graph: NodeGraph | None
    classes: NDArray[Any]
    outputs: Outputs
    training: Rows
    validation: Rows | None


class PretrainedClassifier(
    SharedParametersMixin, AdoptedInputsMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator, ABC
):
    """Base of estimators that read a pre-trained model and predict its classes.

    A subclass has the parameters `model`, `graph`, `device` and `random_state`; its `fit` sets
    `model_`, `graph_` and `classes_`.
    """

    _shared = ("model", "graph")
    _model_parameter = "model"

    model: Any
    graph: Any
    graph_: NodeGraph | None
    model_: AdoptedModel | GraphModel
    classes_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = self.graph is not None
        return tags

    def _read_model(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        *,
        layer: Layer = -1,
        seed: int,
    ) -> Evaluated:
        """Validate what `fit` is given, and evaluate the model on it."""
        if (X_val is None) != (y_val is None):
            raise ValueError("Give both `X_val` and `y_val`, or neither.")
        graph = graph_of(self.model, self.graph)
        if graph is None:
            return self._read_on_rows(X, y, sample_weight, X_val, y_val, layer, seed)
        known = known_classes(self.model)
        nodes = LabelledNodes(graph, X, y, sample_weight, X_val, y_val, known=known)
        self.n_features_in_ = 1
        return self._read_on_graph(graph, nodes, layer, seed)

    def _read_on_graph(
        self, graph: NodeGraph, nodes: LabelledNodes, layer: Layer, seed: int
    ) -> Evaluated:
        model = graph_model(self.model, graph, nodes, device=self.device, seed=seed)
        outputs = model.outputs(layer, graph_device(self.device))
        labels = nodes.classes if model.classes is None else model.classes
        classes = classes_of_outputs(labels, outputs.logits.shape[1])

        def rows(part: Samples) -> Rows:
            codes = codes_of(nodes.classes[part.codes], classes, "y")
            return Rows(part.inputs["inputs"], codes, part.inputs["weight"].astype(np.float64))

        validation = None if nodes.validation is None else rows(nodes.validation)
        return Evaluated(model, graph, classes, outputs, rows(nodes.training), validation)

    def _read_on_rows(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        layer: Layer,
        seed: int,
    ) -> Evaluated:
        X, y = self._validate_training_data(X, y, min_samples=2)
        check_classification_targets(y)
        check_several_classes(y)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        device = resolve_device(self.device)
        model = fit_or_adopt(
            self.model,
            X,
            y,
            sample_weight=None if sample_weight is None else weight,
            seed=seed,
            device=device,
            after_the_fact=True,
        )
        inputs = model.inputs(X)
        classes, codes = encode_labels(y, model, inputs)
        training = Rows(np.arange(len(codes)), codes, weight)
        validation = None
        if X_val is not None:
            further = model.inputs(self._checked_rows(X_val))
            labels = column_or_1d(y_val, warn=True)
            check_consistent_length(further, labels)
            rows = len(codes) + np.arange(len(labels))
            validation = Rows(rows, codes_of(labels, classes, "y_val"), np.ones(len(labels)))
            inputs = torch.cat([inputs, further])
        outputs = adopted_outputs(model, inputs, layer, device)
        return Evaluated(model, None, classes, outputs, training, validation)

    def _keep(self, seen: Evaluated) -> None:
        """Set the fitted attributes that tell of the model."""
        self.model_, self.graph_, self.classes_ = seen.model, seen.graph, seen.classes

    def _outputs_of(self, X: Any, layer: Layer = -1) -> Outputs:
        """The model on new samples, without a graph."""
        inputs = self._validated_inputs(X)
        assert isinstance(self.model_, AdoptedModel)
        return adopted_outputs(self.model_, inputs, layer, resolve_device(self.device))

    def _nodes_of(self, X: Any) -> NDArray[np.int64]:
        """Checked node ids, with a graph."""
        assert self.graph_ is not None
        return checked_nodes(X, self.graph_.n_nodes)

    def as_adopted(self) -> AdoptedModel:
        """Return the pre-trained model in the form that `skuq.models.adopt` returns."""
        check_is_fitted(self)
        if isinstance(self.model_, AdoptedModel):
            return replace(self.model_, classes=self.classes_)
        module = adopt(self.model_.network).module
        return NodeModel(module=module, classes=self.classes_, graph=self.model_.graph)

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


def proba_of(logits: Tensor) -> FloatArray:
    """Class probabilities of shape (n_samples, n_classes), float64, from logits."""
    proba: FloatArray = logits.double().softmax(dim=1).numpy()
    return proba
