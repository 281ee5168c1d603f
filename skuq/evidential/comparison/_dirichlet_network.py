"""Base of graph networks that are trained to output Dirichlet concentrations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback
from torch import Tensor, nn

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin
from skuq.evidential._dirichlet import Measure, dirichlet_uncertainty
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graph_training import fit_on_graph
from skuq.evidential._graphs import NodeGraph, as_node_graph, checked_nodes, graph_device
from skuq.evidential._head import safe_exp
from skuq.evidential._labelled import LabelledData, labelled_nodes
from skuq.evidential._node_predictions import NodeClassifierMixin
from skuq.evidential._propagation import Propagation, propagate
from skuq.evidential._training_parameters import Samples
from skuq.models import taken_as_it_is


class Concentrations(nn.Module):
    """A graph network whose outputs are logarithms of evidence: ``alpha = exp(o) + 1``."""

    takes_node_graph = True

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, graph: NodeGraph) -> Tensor:
        return safe_exp(self.network(graph)) + 1


class TrainingTask(NamedTuple):
    """Network, loss and samples of a method.

    Attributes
    ----------
    network : torch.nn.Module
        Called with a `NodeGraph`, returns concentrations.
    criterion : torch.nn.Module
        Called with concentrations, codes and inputs of the samples.
    training : Samples
        Samples to train on.
    callbacks : sequence of skorch callbacks
        Callbacks of the method.
    attributes : dict
        Fitted attributes of the method, besides those of all methods.
    """

    network: nn.Module
    criterion: nn.Module
    training: Samples
    callbacks: Sequence[Callback] = ()
    attributes: dict[str, Any] = {}


class DirichletNetworkClassifier(
    NodeClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator, ABC
):
    """Base of estimators that train a graph network of concentrations.

    A subclass has the parameters `estimator`, whose graph and settings it uses, and `measure`,
    and defines `_training_task`.
    """

    estimator: GraphClassifier
    measure: Measure
    propagation: Propagation | None = None
    alpha_: FloatArray

    @abstractmethod
    def _training_task(self, graph: NodeGraph, nodes: LabelledData, seed: int) -> TrainingTask:
        """Build the network and what it is trained with."""

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> DirichletNetworkClassifier:
        """Train the network on labelled nodes.

        Parameters
        ----------
        X : array-like of shape (n_labelled,) or (n_labelled, 1), int
            Ids of labelled nodes.
        y : array-like of shape (n_labelled,)
            Their classes.
        sample_weight : array-like of shape (n_labelled,), default=None
            Weights of the labelled nodes.
        X_val, y_val : array-like of shape (n_validation,), default=None
            Nodes for early stopping, and their classes. None: training runs for all epochs.

        Returns
        -------
        object
            The fitted estimator.

        Raises
        ------
        ValueError
            If the graph, the settings or the node ids are not valid, `y` holds one class, or the
            training diverges.
        """
        estimator = self.estimator
        if taken_as_it_is(estimator):
            raise TypeError(
                f"`estimator` must be a GraphClassifier, whose network is trained here under "
                f"another loss, got {estimator!r}."
            )
        estimator._validate_params()
        graph = as_node_graph(estimator.graph)
        nodes = labelled_nodes(graph, X, y, sample_weight, X_val, y_val)
        seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
        task = self._training_task(graph, nodes, seed)
        self.network_, self.history_, outputs = fit_on_graph(
            task.network,
            task.criterion,
            graph,
            task.training,
            nodes.validation,
            settings=estimator._training_settings(graph_device(estimator.device)),
            seed=seed,
            callbacks=task.callbacks,
        )
        for name, value in task.attributes.items():
            setattr(self, name, value)
        self.graph_, self.classes_ = graph, nodes.classes
        self.alpha_ = propagate(graph.adjacency, outputs.numpy(), self.propagation)
        self.proba_ = self.alpha_ / self.alpha_.sum(axis=1, keepdims=True)
        return self

    def predict_dirichlet(self, X: Any) -> FloatArray:
        """Predict the concentrations of the distribution over class probabilities.

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
            By `measure`, see `skuq.evidential.dirichlet_uncertainty`.
        """
        return dirichlet_uncertainty(self.predict_dirichlet(X), self.measure)
