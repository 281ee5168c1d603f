"""Uncertainty scores from the logits of a pre-trained model: entropy, confidence, energy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skuq._information import centred, entropy, has_conventional_offset
from skuq.base import FloatArray, Uncertainty
from skuq.evidential import (
    NodeGraph,
    PretrainedClassifier,
    diffuse,
    graph_of,
    proba_of,
    smooth,
)
from skuq.validation import refuse_ineffective

Score = Literal["entropy", "max-score", "energy"]


class LogitUncertainty(PretrainedClassifier):
    """Uncertainty of a pre-trained classifier from its logits: entropy, confidence or energy.

    A fitted estimator is used unchanged; an unfitted estimator is trained first. The estimator's
    predictions are kept. ``method="energy", propagation="smoothing"`` is GNNSafe.

    The scores do not separate aleatoric from epistemic uncertainty: the total is the score, and
    both parts are NaN.

    `estimator`, `graph` and `device` are those of `EvidentialProbe`. The method "entropy" is the
    entropy of the class probabilities in nats, "max-score" is 1 minus the largest probability, and
    "energy" is minus the log-sum-exp of the logits. If the offset of the logits is only a
    convention, as in log-probabilities, the mean of each sample's logits is subtracted first.
    Scores of nodes are averaged over the graph: "smoothing", as in GNNSafe (Eq. 86), takes 2 steps
    with the weight `keep` for a node's own score; "diffusion" and "similarity" are those of the
    probe.

    References
    ----------
    Hendrycks and Gimpel, ICLR 2017; Liu et al., NeurIPS 2020; Wu et al., "Energy-based
    Out-of-Distribution Detection for Graph Neural Networks", ICLR 2023; Yu et al., AISTATS 2025,
    Eq. 82 to 86.
    """

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

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> LogitUncertainty:
        """Evaluate the estimator; the arguments are those of `EvidentialProbe.fit`."""
        graph = graph_of(self.estimator, self.graph)
        if graph is None:
            refuse_ineffective(self, ["propagation"], "without a graph; give `graph`.")
        else:
            graph.prepare(self.propagation)
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
        """Predict the class probabilities of the estimator, (n_samples, n_classes)."""
        check_is_fitted(self)
        if self.graph_ is not None:
            return self.proba_[self._nodes_of(X)]
        return proba_of(self._outputs_of(X).logits)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the score as the total, in nats, a probability, or the unit of the logits."""
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
