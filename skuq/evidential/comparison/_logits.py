"""Uncertainty scores from the logits of a pre-trained model: entropy, confidence, energy."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skuq._information import centred, entropy, has_conventional_offset
from skuq.base import FloatArray, Uncertainty
from skuq.evidential._dirichlet import diffuse, smooth
from skuq.evidential._graphs import NodeGraph, prepare_propagation
from skuq.evidential._network_outputs import proba_of
from skuq.evidential._pretrained_classifier import PretrainedClassifier, graph_of
from skuq.validation import refuse_ineffective

Score = Literal["entropy", "max-score", "energy"]


class LogitUncertainty(PretrainedClassifier):
    """Uncertainty of a pre-trained classifier from its logits: entropy, confidence or energy.

    A fitted estimator is used unchanged; an unfitted estimator is trained first. The estimator's
    predictions are kept. ``method="energy", propagation="smoothing"`` is GNNSafe.

    The scores do not separate aleatoric from epistemic uncertainty: the total is the score, and
    both parts are NaN.

    Parameters
    ----------
    estimator : object, default=None
        The pre-trained classifier, in a form that `EvidentialProbe` accepts.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph; `X` then holds node ids. None: the graph of `estimator` if it is a
        `GraphClassifier`; for any other estimator, no graph is used, and `X` is a feature matrix
        or images.
    method : {"entropy", "max-score", "energy"}, default="entropy"
        "entropy": entropy of the class probabilities in nats. "max-score": 1 minus the largest
        class probability. "energy": minus the log-sum-exp of the logits; it may be positive or
        negative. If the offset of the logits is only a convention, as in log-probabilities or the
        logits (0, z) of two classes, the mean of each sample's logits is subtracted first.
    propagation : {"smoothing", "diffusion", "similarity", None}, default=None
        How scores are averaged over a graph. "smoothing", as in GNNSafe (Eq. 86): 2 steps, each a
        weighted mean of a node's score and the mean score of its neighbours. "diffusion", as in
        the probe: 10 steps of personalised PageRank over the edges. "similarity", as in the probe:
        "diffusion", then 10 more steps over nodes with similar features.
    keep : float, default=0.5
        With ``propagation="smoothing"``: weight of a node's own score in each step, in [0, 1]. The
        default is the value of GNNSafe's authors.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed for the training of an unfitted estimator.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    graph_ : NodeGraph or None
        The graph.
    centred_ : bool
        Whether the mean of each sample's logits is subtracted before they are scored.
    proba_, score_ : ndarrays of shape (n_nodes, n_classes) and (n_nodes,), float64
        With a graph: class probabilities and scores of all nodes.
    n_features_in_ : int
        Number of features seen in `fit`; 1 with a graph.

    References
    ----------
    Hendrycks and Gimpel, ICLR 2017; Liu et al., NeurIPS 2020; Wu et al., "Energy-based
    Out-of-Distribution Detection for Graph Neural Networks", ICLR 2023; Yu et al., AISTATS 2025,
    Eq. 82 to 86.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.evidential import LogitUncertainty
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000).fit(X, y)
    >>> LogitUncertainty(model, method="max-score").fit(X, y).predict_uncertainty(X).total.shape
    (150,)
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": "no_validation",
        "graph": "no_validation",
        "method": [StrOptions({"entropy", "max-score", "energy"})],
        "propagation": [StrOptions({"smoothing", "diffusion", "similarity"}), None],
        "keep": [Interval(Real, 0, 1, closed="both")],
        "device": [str, torch.device],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        graph: Any = None,
        method: Score = "entropy",
        propagation: Literal["smoothing", "diffusion", "similarity"] | None = None,
        keep: float = 0.5,
        device: str = "auto",
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.graph = graph
        self.method = method
        self.propagation = propagation
        self.keep = keep
        self.device = device
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> LogitUncertainty:
        """Evaluate the estimator, after training it if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_labelled,) and int
            Inputs on which the estimator was trained; with a graph, ids of labelled nodes.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, as numbers of samples: a sample of weight 2 counts twice, a sample of
            weight 0 is ignored. A mean weight below 0.1 or above 10 raises a warning. Used only to
            train an unfitted estimator.
        X_val, y_val : arrays like `X` and `y`, default=None
            With a graph: data for early stopping of an unfitted estimator.

        Returns
        -------
        LogitUncertainty
            The fitted estimator.

        Raises
        ------
        ValueError
            If inputs, graph or node ids are invalid, `y` has labels that the estimator does not
            predict, `propagation` is set without a graph, or `keep` is set without smoothing.
        TypeError
            If `estimator` is of an unsupported type.
        """
        graph = graph_of(self.estimator, self.graph)
        if graph is None:
            refuse_ineffective(self, ["propagation"], "without a graph; give `graph`.")
        else:
            prepare_propagation(graph, self.propagation)
        if self.propagation != "smoothing":
            refuse_ineffective(self, ["keep"], "without propagation='smoothing'.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        evaluated = self._evaluate_estimator(graph, X, y, sample_weight, X_val, y_val, seed=seed)
        logits = evaluated.outputs.logits
        self.centred_ = has_conventional_offset(logits)
        self._keep(evaluated)
        if graph is not None:
            self.proba_ = proba_of(logits)
            self.score_ = self._propagated(graph, self._score(logits))
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict the class probabilities of the estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        check_is_fitted(self)
        if self.graph_ is not None:
            return self.proba_[self._nodes_of(X)]
        return proba_of(self._outputs_of(X).logits)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the uncertainty score.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        Uncertainty
            Arrays of shape (n_samples,): the total is the score, and both parts are NaN. The unit
            is nats for "entropy", probability for "max-score", and the unit of the logits for
            "energy".
        """
        check_is_fitted(self)
        if self.graph_ is not None:
            score = self.score_[self._nodes_of(X)]
        else:
            score = self._score(self._outputs_of(X).logits)
        return Uncertainty.from_total(score)

    def _score(self, logits: Tensor) -> FloatArray:
        return logit_score(centred(logits) if self.centred_ else logits, self.method)

    def _propagated(self, graph: NodeGraph, score: FloatArray) -> FloatArray:
        if self.propagation == "smoothing":
            return smooth(graph.adjacency, score, keep=self.keep)  # Eq. 86
        if self.propagation is None:
            return score
        diffused = diffuse(graph.adjacency, score)
        return diffused if self.propagation == "diffusion" else diffuse(graph.similar, diffused)


def logit_score(logits: Tensor, score: Score) -> FloatArray:
    """Compute the uncertainty score of logits (the paper prints Eq. 84 without the logarithm)."""
    logits = logits.double()
    if score == "energy":
        values = -torch.logsumexp(logits, dim=1)  # Eq. 84
    elif score == "entropy":
        values = entropy(logits.log_softmax(dim=1))  # Eq. 82
    else:
        values = 1 - logits.softmax(dim=1).amax(dim=1)  # Eq. 83
    return np.asarray(values.numpy(), dtype=np.float64)
