"""Uncertainty from dropout that goes on after training."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, Uncertainty
from skuq.evidential._graphs import graph_device
from skuq.evidential._node_model import NodeModel
from skuq.evidential._pretrained_classifier import PretrainedClassifier
from skuq.evidential.comparison._dropout_masks import (
    dropout_modules,
    sample_on_graph,
    sample_on_rows,
)
from skuq.evidential.comparison._scores import AverageMeasure, ModelAverage
from skuq.models import resolve_device


class MCDropout(PretrainedClassifier):
    """Average of a pre-trained network under random dropout.

    Dropout modules (`torch.nn.Dropout` and its kin for one to three axes) of a copy of the
    network stay active, everything else is in evaluation mode.

    Parameters
    ----------
    estimator : object, default=None
        The pre-trained classifier, as `EvidentialProbe` takes it, with dropout modules. None
        works with a graph only: the default network without one has no dropout.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph; `X` then holds node ids. None: the graph that a fitted `model` brings, if it
        does; else `X` is a feature matrix or images.
    n_samples : int, default=10
        How often the network is evaluated.
    measure : {"score", "information"}, default="score"
        "score": the total is 1 minus the largest mean probability; as it does not tell its
        sources apart, the aleatoric and the epistemic part are half of it each.
        "information", in nats: entropy of the mean, expected entropy and mutual information.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Dropout, and training of a model that is not fitted.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    graph_ : NodeGraph or None
        The graph.
    seeds_ : ndarray of shape (n_samples,)
        Seed of each sample of dropout. The same estimator predicts the same twice.
    average_ : ModelAverage
        With a graph: mean class probabilities of all nodes, and what they hide.
    n_features_in_ : int
        Number of features seen in `fit`; 1 with a graph.

    Notes
    -----
    On a graph each node drops units of its own, as in training. Elsewhere all inputs see the
    same `n_samples` thinned networks: each drops what it drops for every row (the first axis),
    so that predictions do not depend on which inputs they are made with.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; settings of Yu et
    al., AISTATS 2025, Appendix C.3.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import load_iris
    >>> from skuq.evidential import MCDropout
    >>> X, y = load_iris(return_X_y=True)
    >>> network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)).double()
    >>> dropout = MCDropout(network, random_state=0).fit(X, y)
    >>> dropout.predict_uncertainty(X[:2]).total.shape
    (2,)
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": "no_validation",
        "graph": "no_validation",
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "measure": [StrOptions({"score", "information"})],
        "device": [str, torch.device],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        graph: Any = None,
        n_samples: int = 10,
        measure: AverageMeasure = "score",
        device: str = "auto",
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.graph = graph
        self.n_samples = n_samples
        self.measure = measure
        self.device = device
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> MCDropout:
        """Take over the model, and train it if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_labelled,) and int
            Inputs that the model was trained on; with a graph, ids of labelled nodes.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights in the training of a model that is not fitted.
        X_val, y_val : arrays like `X` and `y`, default=None
            With a graph: data for early stopping of a model that is not fitted.

        Returns
        -------
        MCDropout
            The fitted estimator.

        Raises
        ------
        ValueError
            If inputs, graph or node ids are not valid, labels are unknown to the model, or it
            has no dropout.
        TypeError
            If `model` is of a kind that cannot be read.
        """
        first, *seeds = check_random_state(self.random_state).randint(
            2**31 - 1, size=1 + self.n_samples
        )
        seen = self._evaluate_estimator(X, y, sample_weight, X_val, y_val, seed=int(first))
        if isinstance(seen.model, NodeModel):
            samples = sample_on_graph(seen.model, map(int, seeds), graph_device(self.device))
            self.average_ = ModelAverage.of(np.stack(samples))
        else:
            dropout_modules(seen.model.module)
        self._keep(seen)
        self.seeds_ = np.array(seeds)
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities, averaged over dropout.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        return self._average(X).proba

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict uncertainty from dropout.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        Uncertainty
            Each of shape (n_samples,), as `measure` says: units of probability, or nats.
        """
        return self._average(X).uncertainty(self.measure)

    def _average(self, X: Any) -> ModelAverage:
        check_is_fitted(self)
        if self.graph_ is not None:
            return self.average_.at(self._nodes_of(X))
        inputs = self._validated_inputs(X)
        device = resolve_device(self.device)
        samples = sample_on_rows(self.model_, inputs, map(int, self.seeds_), device)
        return ModelAverage.of(np.stack(samples))
