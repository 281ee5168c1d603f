"""Evidential probe: a Dirichlet distribution from a pre-trained classifier."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, cast

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq.base import FloatArray, Uncertainty
from skuq.evidential._dirichlet import Measure, dirichlet_uncertainty
from skuq.evidential._graphs import as_node_graph
from skuq.evidential._head import (
    Activation,
    NetworkHead,
    ProbeLoss,
    logit_head,
    mean_and_scale,
)
from skuq.evidential._labelled import Labelled
from skuq.evidential._node_model import NodeModel
from skuq.evidential._ood_decisions import OODDecisionsMixin
from skuq.evidential._pretrained_classifier import EvaluatedModel, PretrainedClassifier
from skuq.evidential._pretrained_model import Outputs, proba_of, seen_nodes
from skuq.evidential._propagation import Propagation, propagate
from skuq.evidential._representations import Layer
from skuq.evidential._training_parameters import (
    TRAINING_PARAMETERS,
    Samples,
    TrainedNetworkMixin,
)
from skuq.models import checked_widths, resolve_device, seeded, train


class EvidentialProbe(OODDecisionsMixin, TrainedNetworkMixin, PretrainedClassifier):
    """Evidence for the predictions of a pre-trained classifier.

    A small head is trained on the frozen representations of a classifier to predict the amount
    of evidence for each input; with the classifier's own probabilities it defines a Dirichlet
    distribution over class probabilities. The classifier is never changed, and its predictions
    are kept (unless `propagation` smooths them over a graph).

    Parameters
    ----------
    estimator : object, default=None
        The pre-trained classifier. With a graph: a `GraphClassifier`, a `torch.nn.Module` that
        is called as ``network(graph, features)`` (DGL) or ``network(x, edge_index)`` (PyG) and
        returns logits, a fitted skorch net around one, or a classifier of feature rows.
        Without: anything that `skuq.models.adopt` accepts. An estimator that is fitted is used
        as it is; any other is cloned and trained first. None trains a default network.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph, in a form that `as_node_graph` accepts; `X` then holds node ids. None: the
        graph of `estimator` if it is a `GraphClassifier`; otherwise there is no graph, and `X`
        is a feature matrix or images.
    head : {"logits", "network"}, default="logits"
        How class evidence is computed. "logits": the exponential of the classifier's own logits,
        of which only scale and offset are learned. "network": a network of its own (Eq. 18) on
        the representation in `layer`.
    layer : int or str, default=-1
        For ``head="network"``: -1 for the logits, -2 for the input of the last layer, and so on,
        or the name of a module.
    hidden_sizes : sequence of int, default=()
        For ``head="network"``: width of further layers before that of class evidence.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.
    lambda_ice : float, default=1e-5
        Weight of intra-class evidence regularisation (Eq. 13).
    lambda_pcl : float, default=1e-4
        Weight of positive-confidence learning (Eq. 14). With both 0 it is the plain probe.
    evidence_id, evidence_ood : float, default=100.0 and 0.0
        Target levels of evidence for in-distribution and out-of-distribution inputs (Eq. 14).
    propagation : {"auto", "diffusion", "vacuity", "evidence", "both", None}, default="auto"
        How uncertainty is averaged over neighbours after training, see `propagate`: vacuity over
        random walks ("diffusion"), vacuity in two steps ("vacuity", Eq. 90), concentrations
        ("evidence", Eq. 91), or these and then vacuity ("both"). The last two change class
        probabilities. "auto" is "diffusion" with a graph and None without.
    measure : {"vacuity", "information"}, default="vacuity"
        Quantity and unit of the uncertainty, see `dirichlet_uncertainty`.
    batch_size : int, default=None
        With a graph and a network of your own: number of nodes for which it is evaluated at once,
        on a part of the graph that holds all that it reads for them. None: all nodes in one pass.
    max_neighbors : int, default=None
        With `batch_size`: number of edges into a node that are kept, besides a loop, drawn at
        random where there are more. None: all, so that the result is that of one pass.
    learning_rate : float, default=0.03
        Learning rate of Adam.
    weight_decay : float, default=1e-4
        L2 penalty.
    max_epochs : int, default=200
        Maximum number of epochs; each is one pass over all samples.
    patience : int, default=20
        With validation data: number of epochs without a smaller validation loss after which
        training stops. The weights of the best epoch are kept.
    callbacks : list, default=None
        Further skorch callbacks.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights of the head, and training of an estimator that is not fitted.
    verbose : int, default=0
        Whether skorch prints each epoch, and a bar is shown while a network is evaluated in
        batches, or on a graph whose features lie on disk.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    head_ : torch.nn.Module
        The trained head.
    graph_ : NodeGraph or None
        The graph.
    alpha_ : ndarray of shape (n_nodes, n_classes), float64
        With a graph: concentrations of all nodes.
    labelled_nodes_ : ndarray of shape (n_labelled,), int64, or None
        With a graph: nodes whose labels `fit` was given, and those of a `GraphClassifier`; None
        in a copy for another graph.
    calibration_scores_ : ndarray of shape (n_calibration,), float64
        Epistemic uncertainty of the samples given to `calibrate`.
    calibration_codes_ : ndarray of shape (n_calibration,), int64, or None
        Positions of their classes in `classes_`, if these were given.
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
    On a table, with a model that is trained already:

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
        "estimator": "no_validation",
        "graph": "no_validation",
        "head": [StrOptions({"logits", "network"})],
        "layer": [Interval(Integral, None, -1, closed="right"), str],
        "hidden_sizes": ["array-like"],
        "activation": [StrOptions({"exp", "softplus"})],
        "lambda_ice": [Interval(Real, 0, None, closed="left")],
        "lambda_pcl": [Interval(Real, 0, None, closed="left")],
        "evidence_id": [Interval(Real, 0, None, closed="neither")],
        "evidence_ood": [Interval(Real, 0, None, closed="left")],
        "propagation": [StrOptions({"auto", "diffusion", "vacuity", "evidence", "both"}), None],
        "measure": [StrOptions({"vacuity", "information"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "max_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        **TRAINING_PARAMETERS,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        graph: Any = None,
        head: Literal["logits", "network"] = "logits",
        layer: Layer = -1,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "exp",
        lambda_ice: float = 1e-5,
        lambda_pcl: float = 1e-4,
        evidence_id: float = 100.0,
        evidence_ood: float = 0.0,
        propagation: Propagation | Literal["auto"] | None = "auto",
        measure: Measure = "vacuity",
        batch_size: int | None = None,
        max_neighbors: int | None = None,
        learning_rate: float = 0.03,
        weight_decay: float = 1e-4,
        max_epochs: int = 200,
        patience: int = 20,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.graph = graph
        self.head = head
        self.layer = layer
        self.hidden_sizes = hidden_sizes
        self.activation = activation
        self.lambda_ice = lambda_ice
        self.lambda_pcl = lambda_pcl
        self.evidence_id = evidence_id
        self.evidence_ood = evidence_ood
        self.propagation = propagation
        self.measure = measure
        self.batch_size = batch_size
        self.max_neighbors = max_neighbors
        self.learning_rate = learning_rate
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
        """Train the head on the frozen representations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_labelled,) and int
            Inputs that the estimator was trained on; with a graph, ids of labelled nodes (all
            other nodes enter the regularisers without their labels), or a mask of all nodes.
        y : array-like of shape (n_samples,)
            Class labels; with a mask, of the nodes in it or of all nodes.
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
            unknown to the estimator, `propagation` or `batch_size` is set without a graph,
            `batch_size` for a `GraphClassifier`, or the training diverges.
        TypeError
            If `estimator` is of a kind that cannot be probed.
        """
        if self.evidence_ood >= self.evidence_id:
            raise ValueError(
                f"`evidence_ood`={self.evidence_ood} must be smaller than "
                f"`evidence_id`={self.evidence_id}."
            )
        if self.head == "logits" and (self.layer != -1 or len(self.hidden_sizes) > 0):
            raise ValueError(
                "`layer` and `hidden_sizes` are settings of head='network'; head='logits' reads "
                "the logits and has no layers."
            )
        if self.max_neighbors is not None and self.batch_size is None:
            raise ValueError("`max_neighbors` is a setting of batches; set `batch_size` too.")
        random_state = check_random_state(self.random_state)
        estimator_seed, head_seed = map(int, random_state.randint(2**31 - 1, size=2))
        evaluated = self._evaluate_estimator(
            X, y, sample_weight, X_val, y_val, layer=self.layer, seed=estimator_seed
        )
        graph = evaluated.graph
        propagation = self.propagation
        if propagation == "auto":
            propagation = None if graph is None else "diffusion"
        if graph is None and propagation is not None:
            raise ValueError(
                f"`propagation`={propagation!r} needs a graph; give `graph`, or set 'auto'."
            )
        if graph is None and self.batch_size is not None:
            raise ValueError("`batch_size` is for a network on a graph; give `graph`.")
        self.head_, self.history_ = self._fit_head(evaluated, head_seed)
        self._keep(evaluated)
        self._forget_calibration()
        self._propagation: Propagation | None = propagation
        self._estimator_seed = estimator_seed
        self.labelled_nodes_ = None
        if graph is not None:
            self.labelled_nodes_ = np.union1d(
                evaluated.data.rows, seen_nodes(self.estimator, graph)
            )
            alpha = self._dirichlet(evaluated.outputs)
            self.alpha_ = propagate(graph.adjacency, alpha, propagation)
        return self

    def with_graph(self, graph: Any) -> EvidentialProbe:
        """Return a copy that answers for the nodes of another graph, without new training.

        Parameters
        ----------
        graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph
            Graph with the same features of its nodes, in the same form as that of `fit`.

        Returns
        -------
        EvidentialProbe
            A copy, whose node ids are those of this graph. The estimator itself stays. The copy is
            not calibrated: call its `calibrate` with nodes of this graph. It refuses nodes of the
            training only if this graph is the same as that of `fit`; whether a graph continues
            that one, with the same nodes and further ones, is not checked.

        Raises
        ------
        ValueError
            If the probe was fitted without a graph, or its model cannot be evaluated on this one.
        TypeError
            If `graph` is not a graph.

        Examples
        --------
        >>> from skuq.datasets import make_node_classes
        >>> from skuq.evidential import EvidentialProbe
        >>> then, now = (make_node_classes(200, random_state=seed) for seed in (0, 1))
        >>> probe = EvidentialProbe(graph=then.graph, random_state=0)
        >>> probe = probe.fit(range(100), then.labels[:100])
        >>> len(probe.with_graph(now.graph).predict_uncertainty(range(200)))
        200
        """
        check_is_fitted(self)
        if self.graph_ is None:
            raise ValueError("This probe was fitted without a graph, so that it has no nodes.")
        other = copy(self)
        other._forget_calibration()
        other.graph_ = as_node_graph(graph)
        if not self.graph_.is_same(other.graph_):
            other.labelled_nodes_ = None
        other.model_ = replace(cast(NodeModel, self.model_), graph=other.graph_)
        outputs = self._outputs_of_nodes(other.model_, self.layer, self._estimator_seed)
        alpha = self._dirichlet(outputs)
        other.alpha_ = propagate(other.graph_.adjacency, alpha, self._propagation)
        return other

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities: the estimator's own, unless they are propagated.

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
        """Predict the concentrations of the Dirichlet distribution over class probabilities.

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

    def _fit_head(self, evaluated: EvaluatedModel, seed: int) -> tuple[nn.Module, Any]:
        outputs, data = evaluated.outputs, evaluated.data
        training = _samples(outputs, data.training, all_rows=evaluated.graph is not None)
        validation = None if data.validation is None else _samples(outputs, data.validation)
        return train(
            self._new_head(training, len(data.classes), seed),
            ProbeLoss(self.lambda_ice, self.lambda_pcl, self.evidence_id, self.evidence_ood),
            *training,
            validation=validation,
            settings=self._training_settings(resolve_device(self.device)),
            seed=seed,
        )

    def _new_head(self, training: Samples, n_classes: int, seed: int) -> nn.Module:
        z = torch.from_numpy(training.inputs["inputs"])
        if self.head == "logits":
            label_weight = torch.from_numpy(training.inputs["label_weight"])
            return logit_head(z, label_weight, self.evidence_id, self.activation)
        mean, scale = mean_and_scale(z, torch.from_numpy(training.inputs["weight"]))
        widths = checked_widths(self.hidden_sizes)
        with seeded(seed):
            return NetworkHead(mean, scale, n_classes, widths, self.activation)

    def _dirichlet(self, outputs: Outputs) -> FloatArray:
        """Compute concentrations in float64."""
        with torch.no_grad():
            e = self.head_(outputs.hidden).sum(dim=1, dtype=torch.float64).numpy()  # Eq. 10
        p = proba_of(outputs.logits).clip(np.finfo(np.float64).tiny)
        alpha: FloatArray = (p.shape[1] + e)[:, None] * p  # Eq. 11
        return alpha


def _samples(outputs: Outputs, labelled: Labelled, *, all_rows: bool = False) -> Samples:
    """Build the samples of Eq. 15: the labelled rows, and the others too with `all_rows`.

    In the second case each row counts once in the regularisers, however often and with whatever
    weight it is labelled; in the first, sample weights count in all terms.
    """
    rows, weight = labelled.rows, labelled.weight
    if all_rows:
        count = np.bincount(rows, minlength=len(outputs.logits))
        others = np.flatnonzero(count == 0)
        rows = np.concatenate([rows, others])
        weight = 1 / count[rows].clip(1)
    n_others = len(rows) - len(labelled.rows)
    inputs = {
        "inputs": outputs.hidden.numpy()[rows],
        "proba": proba_of(outputs.logits)[rows].astype(np.float32),
        "weight": weight.astype(np.float32),
        "label_weight": np.pad(labelled.weight, (0, n_others)).astype(np.float32),
    }
    return Samples(inputs, np.pad(labelled.codes, (0, n_others), constant_values=-1))
