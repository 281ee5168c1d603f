"""Base class of estimators on top of a pre-trained classifier, with or without a graph."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet, NeuralNetClassifier
from torch import nn

from skuq import models
from skuq._information import centred, has_conventional_offset
from skuq._networks import Columns, LogProbabilities, resolve_device
from skuq.base import FloatArray, UncertaintyMixin
from skuq.evidential import _outputs
from skuq.evidential._graph_classifier import (
    GraphClassifier,
    PredictionsMixin,
    SharedParametersMixin,
)
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graph_networks import Labelled
from skuq.evidential._graphs import NodeGraph, diffuse
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._outputs import FeaturesNetwork, LabelledData, Layer, NodeModel, Outputs
from skuq.labels import codes_of, labels_in_mask
from skuq.models import ModelMixin, NetworkModel
from skuq.validation import refuse_several_inputs, warn_if_worse_than_guessing
from skuq.wrappers import is_fitted, unwrap


class EvaluatedModel(NamedTuple):
    """A pre-trained model, and its outputs for all nodes, or for all samples of `fit`."""

    model: NetworkModel  # a `NodeModel` if there is a graph
    outputs: Outputs
    data: LabelledData  # rows are positions in `outputs`; classes are in the order of the logits


class PretrainedClassifier(
    SharedParametersMixin,
    PredictionsMixin,
    ModelMixin,
    ClassifierMixin,
    UncertaintyMixin,
    BaseEstimator,
):
    """Base class of estimators that evaluate a pre-trained model and predict its classes."""

    _shared = ("estimator", "graph")
    _min_samples = 2  # minimum number of samples, which `resolve` checks
    verbose: int = 0  # like `batches`, a default for subclasses without this parameter
    batches: NodeBatches | None = None

    graph: Any
    model_: NetworkModel

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = (
            self.graph is not None or models.look_at(self.estimator).takes_ids
        )
        return tags

    def _evaluate_estimator(
        self, graph: NodeGraph | None, *arguments: Any, layer: Layer = -1, seed: int
    ) -> EvaluatedModel:
        if graph is None:
            evaluated = self._evaluate_on_rows(*arguments, layer=layer, seed=seed)
        else:
            known = known_classes(self.estimator, *arguments[-2:])
            nodes = _outputs.labelled_nodes(graph, *arguments, known_classes=known)
            self.n_features_in_ = 1
            model = fitted_node_model(self.estimator, graph, nodes, self.device, seed)
            evaluated = _evaluated(model, nodes, self._outputs_of_nodes(model, layer, seed))
        _warn_if_worse_than_guessing(self.estimator, evaluated)
        return evaluated

    def _evaluate_on_rows(
        self, X: Any, y: Any, weight: Any, X_val: Any, y_val: Any, *, layer: Layer, seed: int
    ) -> EvaluatedModel:
        further = (X_val,) if _outputs.has_validation(X_val, y_val) else ()
        if not isinstance(X, Mapping):
            refuse_several_inputs(X)
            values = np.asarray(X)
            if values.ndim == 1 and values.dtype.kind in "iub":
                raise ValueError(
                    f"X contains {len(values)} integers or booleans, such as node ids or a mask, "
                    "but no graph was passed. Pass `graph`, or feature rows of shape (n_samples, "
                    "n_features)."
                )
        resolve_device(self.device)  # raises before the training, not after it
        model: Any
        call = partial(models.resolve, owner=self, seed=seed, device=self.device, further=further)
        model, data = call(self.estimator, X, y, sample_weight=weight, after_the_fact=True)
        models.check_several_classes(data.labels)
        inputs, n_rows = data.inputs, len(data.codes)
        training = Labelled(np.arange(n_rows), data.codes, data.weight)
        validation = None
        if further:
            inputs = torch.cat([inputs, model.inputs(data.further[0])])
            labels = column_or_1d(y_val, warn=True)
            rows = np.arange(n_rows, len(inputs))
            check_consistent_length(rows, labels)
            codes = codes_of(labels, model.classes, "y_val")
            validation = Labelled(rows, codes, np.ones(len(rows)))
        outputs = _outputs.row_outputs(model, inputs, layer, model.resolved(self.device))
        return EvaluatedModel(model, outputs, LabelledData(model.classes, training, validation))

    def _keep(self, evaluated: EvaluatedModel) -> None:
        self.model_, self.classes_ = evaluated.model, evaluated.data.classes
        self.graph_ = getattr(self.model_, "graph", None)

    def _outputs_of(self, X: Any, layer: Layer = -1) -> Outputs:
        inputs = self._inputs(X)
        return _outputs.row_outputs(self.model_, inputs, layer, self.model_.resolved(self.device))

    def _outputs_of_nodes(self, model: NodeModel, layer: Layer, seed: int) -> Outputs:
        device, verbose = model.resolved(self.device), bool(self.verbose)
        return _outputs.node_outputs(
            model, layer, device, batches=self.batches, seed=seed, verbose=verbose
        )

    def as_model(self) -> NetworkModel:
        """Return the pre-trained model as a `skuq.models.Model`."""
        check_is_fitted(self)
        return replace(self.model_, classes=self.classes_)


def fitted_node_model(
    estimator: Any, graph: NodeGraph, nodes: LabelledData, device: Any, seed: int
) -> NodeModel:
    """Return a pre-trained model (see `EvidentialProbe`), or train a model on labelled nodes."""
    model = unwrapped(estimator)
    if isinstance(model, nn.Module):
        return _outputs.node_model(model, graph, None)
    if isinstance(model, NeuralNet) and is_fitted(model):
        return _skorch_model(model, graph)
    if model is None:
        model = GraphClassifier(graph, device=device)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        model = clone(model).set_params(graph=graph)
        if model.random_state is None:
            model.set_params(random_state=seed)
        model.fit(**nodes.as_arguments())
    adopted: Any
    if hasattr(model, "fit") and not is_fitted(model):  # a classifier of feature rows
        rows, codes, weight = nodes.training
        features = graph.features.to_dense().numpy()[rows]
        given = None if (weight == 1).all() else weight
        adopted = models.fit_model(
            model, features, nodes.classes[codes], sample_weight=given, seed=seed
        )
    else:
        adopted = models.adopt(model)
    if isinstance(adopted, NodeModel):
        return replace(adopted, graph=graph)
    return _outputs.node_model(FeaturesNetwork(adopted), graph, adopted.classes)


def _skorch_model(net: NeuralNet, graph: NodeGraph) -> NodeModel:
    model = _outputs.node_model(net.module_, graph, None)
    if not isinstance(net, NeuralNetClassifier):
        return model
    if isinstance(net.criterion_, nn.NLLLoss):  # with it, a skorch module outputs probabilities
        model = model.followed_by(LogProbabilities())
    classes = np.asarray(net.classes_)
    order = np.argsort(classes)
    if (order != np.arange(len(order))).any():
        model = model.followed_by(Columns(order.tolist()))
    return replace(model, classes=classes[order])


def _evaluated(model: NodeModel, nodes: LabelledData, outputs: Outputs) -> EvaluatedModel:
    """Assign classes to a node model's logits, and convert nodes' codes to positions of logits."""
    labels = nodes.classes if model.classes is None else model.classes
    trained = nodes.classes[np.unique(nodes.training.codes)]
    if model.classes is None and len(trained) == outputs.logits.shape[1]:
        labels = trained
    classes = models.classes_of_logits(outputs.logits, labels)

    def in_order_of_logits(part: Labelled, name: str) -> Labelled:
        return part._replace(codes=codes_of(nodes.classes[part.codes], classes, name))

    training = in_order_of_logits(nodes.training, "y")
    validation = nodes.validation and in_order_of_logits(nodes.validation, "y_val")
    return EvaluatedModel(model, outputs, LabelledData(classes, training, validation))


def node_energy(
    estimator: Any, X: Any, y: Any, *, similar: bool = False, device: Any = "auto"
) -> FloatArray:
    """Compute a fitted node classifier's energy for all nodes, and diffuse it over the graph.

    With `similar`, also diffuse it over similar nodes. `X`, `y`: labelled nodes and their labels.
    """
    graph = graph_of(estimator, None)
    if graph is None:
        raise TypeError(f"{type(estimator).__name__} does not classify the nodes of a graph.")
    nodes = _outputs.labelled_nodes(graph, X, y, known_classes=known_classes(estimator))
    model = fitted_node_model(estimator, graph, nodes, device, seed=0)
    evaluated = _evaluated(model, nodes, _outputs.node_outputs(model, -1, model.resolved(device)))
    _warn_if_worse_than_guessing(estimator, evaluated)
    logits = evaluated.outputs.logits
    logits = centred(logits) if has_conventional_offset(logits) else logits
    energy = diffuse(graph.adjacency, -torch.logsumexp(logits, dim=1).numpy())  # Eq. 84
    return diffuse(graph.similar, energy) if similar else energy


def _warn_if_worse_than_guessing(estimator: Any, evaluated: EvaluatedModel) -> None:
    if models.look_at(estimator).class_weights:  # weights change the learned class frequencies
        return
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
    if inside is None or inside.transform is not None or isinstance(model, CalibratedClassifierCV):
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
    """Return the classes of a trained estimator; for a module, the labels of validation nodes.

    Validation nodes may have labels that `y` lacks, of classes that the network was trained on.
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
