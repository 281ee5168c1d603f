"""The scikit-learn face of the evidential probe."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skuq.base import FloatArray, Uncertainty
from skuq.evidential._pretrained_base import Evaluated, PretrainedClassifier, Rows, proba_of
from skuq.evidential._training import TRAINING_PARAMETERS, Samples, fit_network
from skuq.evidential.dirichlet import Measure, dirichlet_uncertainty
from skuq.evidential.head import Activation, EvidenceHead, ProbeLoss
from skuq.evidential.hidden import Layer
from skuq.evidential.pretrained import Outputs
from skuq.evidential.propagation import Propagation, propagate
from skuq.nets import resolve_device, seeded


class EvidentialProbe(PretrainedClassifier):
    """Evidence that a pre-trained network has for its predictions, read off its hidden layer.

    A small network is trained on the frozen representations of a classifier and predicts how
    much evidence there is for each input; with the classifier's own probabilities that makes
    a Dirichlet distribution over class probabilities. The classifier is never changed, and its
    predictions stay what they are (unless `propagation` smooths them over a graph).

    Parameters
    ----------
    model : object, default=None
        The pre-trained classifier. With a graph: a fitted `GraphClassifier`, a
        `torch.nn.Module` that is called as its library has it (``network(graph, features)``
        for DGL, ``network(x, edge_index)`` for PyG) and returns logits, a fitted skorch net
        around one, or a classifier of feature rows. Without: anything `skuq.nets.adopt`
        takes. What is not fitted is cloned and trained first; None trains a default network.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph, as `as_node_graph` takes it; `X` then holds node ids. None: the graph that a
        fitted `model` brings, if it does; else `X` is a feature matrix or images.
    layer : int or str, default=-1
        Representation that evidence is read from: -1 for the last layer (logits), -2 for
        what the last layer is given, and so on, or the name of a module.
    hidden : sequence of int, default=()
        Width of further layers of the probe, before the one of class evidence.
    activation : {"exp", "softplus"}, default="exp"
        What makes evidence positive.
    lambda_ice : float, default=1e-3
        Weight of intra-class evidence regularisation (Eq. 13).
    lambda_pcl : float, default=1e-3
        Weight of positive-confidence learning (Eq. 14). With both 0 it is the plain probe.
    evidence_id, evidence_ood : float, default=100.0 and 0.0
        Evidence that known and foreign inputs are drawn to (Eq. 14).
    propagation : {None, "vacuity", "evidence", "both"}, default=None
        What neighbours in the graph hand on to each other: Dirichlet strengths (Eq. 90), which
        leaves class probabilities as they are, whole concentrations (Eq. 91), or first the
        one, then the other.
    measure : {"vacuity", "information"}, default="vacuity"
        Quantity and unit of the uncertainty, as `dirichlet_uncertainty` has them.
    lr : float, default=0.01
        Learning rate of Adam.
    weight_decay : float, default=1e-4
        L2 penalty.
    max_epochs : int, default=500
        Most epochs; each is one pass over all samples.
    patience : int, default=50
        With validation data: epochs without a smaller validation loss before training stops.
        The weights of the best epoch are kept.
    callbacks : list, default=None
        Further skorch callbacks.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights of the probe, and training of a model that is not fitted.
    verbose : int, default=0
        Whether skorch prints each epoch.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    head_ : torch.nn.Module
        The trained probe.
    graph_ : NodeGraph or None
        The graph.
    alpha_ : ndarray of shape (n_nodes, n_classes), float64
        With a graph: concentrations of all nodes.
    history_ : skorch.history.History
        Losses of each epoch.
    n_features_in_ : int
        Number of features seen in `fit`; 1 with a graph.

    References
    ----------
    Yu, Li, Saha, Lou, Chen, "Evidential Uncertainty Probes for Graph Neural Networks",
    AISTATS 2025.

    Examples
    --------
    On a table, with a model that somebody has trained already:

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import EvidentialProbe
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000).fit(X, y)
    >>> probe = EvidentialProbe(model, random_state=0).fit(X, y)
    >>> probe.predict_dirichlet(X[:2]).shape
    (2, 3)
    """

    _parameter_constraints: dict[str, Any] = {
        "model": "no_validation",
        "graph": "no_validation",
        "layer": [Interval(Integral, None, -1, closed="right"), str],
        "hidden": ["array-like"],
        "activation": [StrOptions({"exp", "softplus"})],
        "lambda_ice": [Interval(Real, 0, None, closed="left")],
        "lambda_pcl": [Interval(Real, 0, None, closed="left")],
        "evidence_id": [Interval(Real, 0, None, closed="neither")],
        "evidence_ood": [Interval(Real, 0, None, closed="left")],
        "propagation": [StrOptions({"vacuity", "evidence", "both"}), None],
        "measure": [StrOptions({"vacuity", "information"})],
        **TRAINING_PARAMETERS,
    }

    def __init__(
        self,
        model: Any = None,
        *,
        graph: Any = None,
        layer: Layer = -1,
        hidden: Sequence[int] = (),
        activation: Activation = "exp",
        lambda_ice: float = 1e-3,
        lambda_pcl: float = 1e-3,
        evidence_id: float = 100.0,
        evidence_ood: float = 0.0,
        propagation: Propagation | None = None,
        measure: Measure = "vacuity",
        lr: float = 0.01,
        weight_decay: float = 1e-4,
        max_epochs: int = 500,
        patience: int = 50,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.model = model
        self.graph = graph
        self.layer = layer
        self.hidden = hidden
        self.activation = activation
        self.lambda_ice = lambda_ice
        self.lambda_pcl = lambda_pcl
        self.evidence_id = evidence_id
        self.evidence_ood = evidence_ood
        self.propagation = propagation
        self.measure = measure
        self.lr = lr
        self.weight_decay = weight_decay
        self.max_epochs = max_epochs
        self.patience = patience
        self.callbacks = callbacks
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> EvidentialProbe:
        """Train the probe on the frozen model's representations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_labelled,) and int
            Inputs that the model was trained on; with a graph, ids of labelled nodes (all
            other nodes enter the regularisers without their labels).
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights in the loss.
        X_val, y_val : arrays like `X` and `y`, default=None
            Data for early stopping. None: training runs for all epochs.

        Returns
        -------
        EvidentialProbe
            The fitted estimator.

        Raises
        ------
        ValueError
            If inputs, graph or node ids are not valid, `layer` does not exist, labels are
            unknown to the model, propagation is asked for without a graph, or the training
            diverges.
        TypeError
            If `model` is of a kind that cannot be read.
        """
        if self.evidence_ood >= self.evidence_id:
            raise ValueError(
                f"`evidence_ood`={self.evidence_ood} must be smaller than "
                f"`evidence_id`={self.evidence_id}."
            )
        first, second = map(int, check_random_state(self.random_state).randint(2**31 - 1, size=2))
        seen = self._read_model(X, y, sample_weight, X_val, y_val, layer=self.layer, seed=first)
        if seen.graph is None and self.propagation is not None:
            raise ValueError(
                f"`propagation`={self.propagation!r} needs a graph; give `graph`, or set None."
            )
        self.head_, self.history_ = self._fit_head(seen, second)
        self._keep(seen)
        if seen.graph is not None:
            alpha = self._dirichlet(seen.outputs)
            self.alpha_ = propagate(seen.graph.adjacency, alpha, self.propagation)
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities: the model's own, unless concentrations are propagated.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        alpha = self.predict_dirichlet(X)
        return alpha / alpha.sum(axis=1, keepdims=True)

    def predict_dirichlet(self, X: Any) -> FloatArray:
        """Predict the concentration of the distribution over class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            ``alpha = (C + e) p`` (Eq. 11), positive; columns in the order of `classes_`.
        """
        check_is_fitted(self)
        if self.graph_ is not None:
            return self.alpha_[self._nodes_of(X)]
        return self._dirichlet(self._outputs_of(X, self.layer))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict uncertainty from the evidence.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        Uncertainty
            Each of shape (n_samples,). By default in units of probability: aleatoric is 1
            minus the largest expected probability, epistemic the vacuity ``C / alpha_0``. With
            ``measure="information"`` in nats.
        """
        return dirichlet_uncertainty(self.predict_dirichlet(X), self.measure)

    def _fit_head(self, seen: Evaluated, seed: int) -> tuple[nn.Module, Any]:
        n_all = len(seen.training.rows if seen.graph is None else seen.outputs.logits)
        everyone = np.arange(n_all)
        training = _samples(seen.outputs, everyone, seen.training)
        validation = None
        if seen.validation is not None:
            validation = _samples(seen.outputs, seen.validation.rows, seen.validation)
        weight = torch.as_tensor(training.inputs["weight"], dtype=torch.float64)
        mean, scale = _mean_and_scale(seen.outputs.hidden[:n_all], weight)
        with seeded(seed):
            head = EvidenceHead(mean, scale, len(seen.classes), tuple(self.hidden), self.activation)
        loss = ProbeLoss(self.lambda_ice, self.lambda_pcl, self.evidence_id, self.evidence_ood)
        return fit_network(
            head,
            loss,
            training,
            validation,
            settings=self,
            seed=seed,
            device=resolve_device(self.device),
        )

    def _dirichlet(self, outputs: Outputs) -> FloatArray:
        """Concentrations by Eq. 11, in float64."""
        with torch.no_grad():
            total = self.head_(outputs.hidden).sum(dim=1, dtype=torch.float64).numpy()
        proba = proba_of(outputs.logits).clip(np.finfo(np.float64).tiny)
        alpha: FloatArray = (proba.shape[1] + total)[:, None] * proba
        return alpha


def _samples(outputs: Outputs, rows: np.ndarray[Any, Any], labelled: Rows) -> Samples:
    """Samples of the loss: some rows, of which some are labelled."""
    n_rows = len(outputs.logits)
    codes = np.full(n_rows, -1)
    weight, label_weight = np.ones(n_rows), np.zeros(n_rows)
    codes[labelled.rows] = labelled.codes
    label_weight[labelled.rows] = labelled.weight
    if len(rows) == len(labelled.rows):  # all are labelled
        weight = label_weight
    inputs = {
        "inputs": outputs.hidden.numpy()[rows],
        "proba": proba_of(outputs.logits)[rows],
        "weight": weight[rows],
        "label_weight": label_weight[rows],
    }
    return Samples(inputs, codes[rows])


def _mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation of each column; 1 for constant ones."""
    hidden = hidden.double()
    share = (weight / weight.sum())[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()
