"""The scikit-learn face of the evidential probe."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skuq.base import FloatArray, Uncertainty
from skuq.evidential._dirichlet import Measure, dirichlet_uncertainty
from skuq.evidential._graph_model import Outputs
from skuq.evidential._head import (
    Activation,
    EvidenceHead,
    ProbeLoss,
    TiedHead,
    centre,
    level_is_convention,
)
from skuq.evidential._hooks import Layer
from skuq.evidential._pretrained_base import Evaluated, PretrainedClassifier, Rows, proba_of
from skuq.evidential._propagation import Propagation, propagate
from skuq.evidential._training import (
    TRAINING_PARAMETERS,
    Samples,
    TrainingParametersMixin,
    checked_widths,
)
from skuq.models import resolve_device, seeded, train


class EvidentialProbe(TrainingParametersMixin, PretrainedClassifier):
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
        around one, or a classifier of feature rows. Without: anything `skuq.models.adopt`
        takes. What is not fitted is cloned and trained first; None trains a default network.
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph, default=None
        The graph, as `as_node_graph` takes it; `X` then holds node ids. None: the graph that a
        fitted `model` brings, if it does; else `X` is a feature matrix or images.
    layer : int, str or None, default=None
        Where evidence is read from. None: the class evidence is the exponential of the model's
        own logits, of which only scale and level are learned. Otherwise a layer of its own is
        learned (Eq. 18) on a hidden representation: -1 for the last layer (logits), -2 for
        what the last layer is given, and so on, or the name of a module.
    hidden_sizes : sequence of int, default=()
        With a `layer`: width of further layers of the probe, before the one of class evidence.
    activation : {"exp", "softplus"}, default="exp"
        What makes evidence positive.
    lambda_ice : float, default=1e-5
        Weight of intra-class evidence regularisation (Eq. 13).
    lambda_pcl : float, default=1e-4
        Weight of positive-confidence learning (Eq. 14). With both 0 it is the plain probe.
    evidence_id, evidence_ood : float, default=100.0 and 0.0
        Evidence that known and foreign inputs are drawn to (Eq. 14).
    propagation : {"auto", "diffusion", "vacuity", "evidence", "both", None}, default="auto"
        What neighbours in the graph hand on to each other, as `propagate` has it: vacuity over
        random walks ("diffusion"), vacuity in two steps ("vacuity", Eq. 90), concentrations
        ("evidence", Eq. 91), or these and then vacuity ("both"). The last two change class
        probabilities. "auto" is "diffusion" with a graph and None without.
    measure : {"vacuity", "information"}, default="vacuity"
        Quantity and unit of the uncertainty, as `dirichlet_uncertainty` has them.
    learning_rate : float, default=0.03
        Learning rate of Adam.
    weight_decay : float, default=1e-4
        L2 penalty.
    max_epochs : int, default=200
        Most epochs; each is one pass over all samples.
    patience : int, default=20
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
        "layer": [Interval(Integral, None, -1, closed="right"), str, None],
        "hidden_sizes": ["array-like"],
        "activation": [StrOptions({"exp", "softplus"})],
        "lambda_ice": [Interval(Real, 0, None, closed="left")],
        "lambda_pcl": [Interval(Real, 0, None, closed="left")],
        "evidence_id": [Interval(Real, 0, None, closed="neither")],
        "evidence_ood": [Interval(Real, 0, None, closed="left")],
        "propagation": [StrOptions({"auto", "diffusion", "vacuity", "evidence", "both"}), None],
        "measure": [StrOptions({"vacuity", "information"})],
        **TRAINING_PARAMETERS,
    }

    def __init__(
        self,
        model: Any = None,
        *,
        graph: Any = None,
        layer: Layer | None = None,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "exp",
        lambda_ice: float = 1e-5,
        lambda_pcl: float = 1e-4,
        evidence_id: float = 100.0,
        evidence_ood: float = 0.0,
        propagation: Propagation | Literal["auto"] | None = "auto",
        measure: Measure = "vacuity",
        learning_rate: float = 0.03,
        weight_decay: float = 1e-4,
        max_epochs: int = 200,
        patience: int = 20,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.model = model
        self.graph = graph
        self.layer = layer
        self.hidden_sizes = hidden_sizes
        self.activation = activation
        self.lambda_ice = lambda_ice
        self.lambda_pcl = lambda_pcl
        self.evidence_id = evidence_id
        self.evidence_ood = evidence_ood
        self.propagation = propagation
        self.measure = measure
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
        if self.layer is None and len(self.hidden_sizes) > 0:
            raise ValueError(
                "`hidden_sizes` needs a `layer` to learn from; set layer=-1 or another."
            )
        first, second = map(int, check_random_state(self.random_state).randint(2**31 - 1, size=2))
        seen = self._read_model(X, y, sample_weight, X_val, y_val, layer=self._layer(), seed=first)
        propagation = self.propagation
        if propagation == "auto":
            propagation = None if seen.graph is None else "diffusion"
        if seen.graph is None and propagation is not None:
            raise ValueError(
                f"`propagation`={propagation!r} needs a graph; give `graph`, or set 'auto'."
            )
        self.head_, self.history_ = self._fit_head(seen, second)
        self._keep(seen)
        if seen.graph is not None:
            alpha = self._dirichlet(seen.outputs)
            self.alpha_ = propagate(seen.graph.adjacency, alpha, propagation)
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
        return self._dirichlet(self._outputs_of(X, self._layer()))

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
        training = _samples(seen.outputs, seen.training, everyone=seen.graph is not None)
        validation = None
        if seen.validation is not None:
            validation = _samples(seen.outputs, seen.validation)
        head = self._new_head(seen, training, seed)
        loss = ProbeLoss(self.lambda_ice, self.lambda_pcl, self.evidence_id, self.evidence_ood)
        return train(
            head,
            loss,
            *training,
            validation=validation,
            settings=self._training_settings(resolve_device(self.device)),
            seed=seed,
        )

    def _new_head(self, seen: Evaluated, training: Samples, seed: int) -> nn.Module:
        hidden = torch.from_numpy(training.inputs["inputs"])
        if self.layer is None:
            convention = level_is_convention(hidden)
            strength = (centre(hidden) if convention else hidden).logsumexp(dim=1)
            labelled = torch.from_numpy(training.inputs["label_weight"])
            mean_strength = (labelled * strength).sum() / labelled.sum()
            level = float(np.log(self.evidence_id) - mean_strength)
            return TiedHead(level, convention, self.activation)
        mean, scale = _mean_and_scale(hidden, torch.from_numpy(training.inputs["weight"]))
        widths = checked_widths(self.hidden_sizes)
        with seeded(seed):
            return EvidenceHead(mean, scale, len(seen.classes), widths, self.activation)

    def _layer(self) -> Layer:
        return -1 if self.layer is None else self.layer

    def _dirichlet(self, outputs: Outputs) -> FloatArray:
        """Concentrations by Eq. 11, in float64."""
        with torch.no_grad():
            total = self.head_(outputs.hidden).sum(dim=1, dtype=torch.float64).numpy()
        proba = proba_of(outputs.logits).clip(np.finfo(np.float64).tiny)
        alpha: FloatArray = (proba.shape[1] + total)[:, None] * proba
        return alpha


def _samples(outputs: Outputs, labelled: Rows, *, everyone: bool = False) -> Samples:
    """Samples of the loss: the labelled rows, and all others if `everyone` enters Eq. 15.

    Then each node counts once in the regularisers, however often and with whatever weight it
    is labelled; otherwise the weights of the samples count in all terms.
    """
    rows, weight = labelled.rows, labelled.weight
    if everyone:
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


def _mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation of each column; 1 for constant ones."""
    hidden = hidden.double()
    share = (weight / weight.sum(dtype=torch.float64))[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()
