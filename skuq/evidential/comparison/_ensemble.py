"""Several graph networks that differ in nothing but their seeds."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import Uncertainty, UncertaintyMixin
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graphs import as_node_graph, checked_nodes
from skuq.evidential._labelled import labelled_nodes
from skuq.evidential._node_predictions import NodeClassifierMixin
from skuq.evidential._shared_parameters import SharedParametersMixin
from skuq.evidential.comparison._scores import AverageMeasure, ModelAverage


class GraphEnsemble(
    SharedParametersMixin, NodeClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Average of graph classifiers trained from different initial weights.

    Parameters
    ----------
    classifier : GraphClassifier, default=None
        What each member is a clone of, fitted or not. None: one with default settings.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph, as `as_node_graph` takes it. Clones share it. None: that of `classifier`.
    n_members : int, default=10
        Number of classifiers.
    measure : {"score", "information"}, default="score"
        "score": the total is 1 minus the largest mean probability; as it does not tell its
        sources apart, the aleatoric and the epistemic part are half of it each.
        "information", in nats: entropy of the mean, expected entropy and mutual information.
    n_jobs : int, default=None
        Members trained at once, in processes, as joblib has it.
    random_state : int, RandomState instance or None, default=None
        Initial weights and dropout of the members; `classifier`'s own is not used.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    graph_ : NodeGraph
        The graph.
    members_ : list of GraphClassifier
        The fitted classifiers.
    average_ : ModelAverage
        What they say together about all nodes.
    proba_ : ndarray of shape (n_nodes, n_classes), float64
        Mean class probabilities of all nodes.

    References
    ----------
    Lakshminarayanan, Pritzel, Blundell, NeurIPS 2017; settings of Yu et al., AISTATS 2025,
    Appendix C.3.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> from skuq.evidential import GraphClassifier, GraphEnsemble
    >>> data = make_node_classes(200, random_state=0)
    >>> classifier = GraphClassifier(data.graph, max_epochs=20)
    >>> ensemble = GraphEnsemble(classifier, n_members=3, random_state=0)
    >>> ensemble.fit(range(100), data.labels[:100]).predict_uncertainty([150]).total.shape
    (1,)
    """

    _parameter_constraints: dict[str, Any] = {
        "classifier": [GraphClassifier, None],
        "graph": "no_validation",
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "measure": [StrOptions({"score", "information"})],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        classifier: GraphClassifier | None = None,
        *,
        graph: Any = None,
        n_members: int = 10,
        measure: AverageMeasure = "score",
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.classifier = classifier
        self.graph = graph
        self.n_members = n_members
        self.measure = measure
        self.n_jobs = n_jobs
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> GraphEnsemble:
        """Train all members on the same labelled nodes.

        Parameters
        ----------
        X : array-like of shape (n_labelled,) or (n_labelled, 1), int
            Ids of labelled nodes.
        y : array-like of shape (n_labelled,)
            Their classes.
        sample_weight : array-like of shape (n_labelled,), default=None
            Weights in the loss.
        X_val, y_val : array-like of shape (n_validation,), default=None
            Nodes for early stopping, and their classes. None: training runs for all epochs.

        Returns
        -------
        GraphEnsemble
            The fitted estimator.

        Raises
        ------
        ValueError
            If the graph or the node ids are not valid, there is no graph, `y` holds one class,
            or the training diverges.
        """
        given = self.graph
        if given is None and self.classifier is not None:
            given = self.classifier.graph
        if given is None:
            raise ValueError("An ensemble needs a graph; give `graph`, or a `classifier` with one.")
        graph = as_node_graph(given)
        arguments = labelled_nodes(graph, X, y, sample_weight, X_val, y_val).as_arguments()
        classifier = GraphClassifier(graph) if self.classifier is None else self.classifier
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_members)
        members = [
            clone(classifier).set_params(graph=graph, random_state=int(seed)) for seed in seeds
        ]
        # Processes, because seeds govern the one random state that threads share.
        fitted = Parallel(n_jobs=self.n_jobs)(
            delayed(member.fit)(**arguments) for member in members
        )
        for member in fitted:
            member.graph = member.graph_ = graph  # one instead of a copy from each process
        self.members_ = fitted
        self.average_ = ModelAverage.of(np.stack([member.proba_ for member in fitted]))
        self.graph_, self.classes_ = graph, fitted[0].classes_
        self.proba_ = self.average_.proba
        return self

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict uncertainty from the disagreement and doubt of the members.

        Parameters
        ----------
        X : array-like of shape (n_nodes,) or (n_nodes, 1), int
            Node ids.

        Returns
        -------
        Uncertainty
            Each of shape (n_nodes,), as `measure` says: units of probability, or nats.
        """
        check_is_fitted(self)
        return self.average_.at(checked_nodes(X, self.graph_.n_nodes)).uncertainty(self.measure)
