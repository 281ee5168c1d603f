"""Evidential probe: a Dirichlet distribution from a pre-trained classifier."""

from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq._networks import train
from skuq.base import FloatArray, Uncertainty, with_index_of
from skuq.devices import with_gradients
from skuq.evidential import _evidence, _outputs
from skuq.evidential._classifier import EvaluatedModel, PretrainedClassifier, graph_of, seen_nodes
from skuq.evidential._evidence import EvidenceLoss, Measure, NetworkHead, ProbeLoss
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graph_networks import Labelled, Samples
from skuq.evidential._graphs import Propagation
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._outputs import NodeModel, Outputs, TrainedNetworkMixin
from skuq.validation import refuse_ineffective


@dataclass(repr=False, eq=False)
class EvidentialProbe(TrainedNetworkMixin, PretrainedClassifier):
    """Evidence for the predictions of a pre-trained classifier.

    A small head is trained on the frozen representations of a classifier to predict the amount of
    evidence for each input. Evidence and the classifier's own probabilities define a Dirichlet
    distribution over class probabilities. The classifier is never changed, and its predictions are
    kept (unless `propagation` smooths them over a graph).

    Parameters
    ----------
    estimator : object, default=None
        The pre-trained classifier. With a graph: a `GraphClassifier`, a `torch.nn.Module` that
        is called as ``network(graph, features)`` (DGL) or ``network(x, edge_index)`` (PyG) and
        returns logits, a fitted skorch net around such a module, or a classifier of feature rows.
        Without a graph: anything that `skuq.models.adopt` accepts. A fitted estimator is used
        unchanged; an unfitted estimator is cloned and trained first. None trains a default network.
    graph : DGLGraph, (adjacency, features) or PyG Data, default=None
        The graph, as in `GraphClassifier`; `X` then holds node ids. None: the graph of `estimator`
        if it is a `GraphClassifier`, otherwise no graph; `X` then holds rows of features or images.
    head : {"logits", "network"} or NetworkHead, default="logits"
        Function that computes class evidence. "logits": ``q = exp(a z + b)`` with learned a and b
        for the classifier's logits z; the mean of z is subtracted first if the offset of z is
        arbitrary, as in log-probabilities. "network" is short for `NetworkHead()`.
    loss : EvidenceLoss, default=None
        Weights of the regularisers, and target levels of evidence. None: `EvidenceLoss()`.
    propagation : {"auto", "diffusion", "similarity", "vacuity", "evidence", "both", None}, \
default="auto"
        How uncertainty is averaged over neighbours after training. "diffusion": vacuity, averaged
        over random walks (10 steps of personalised PageRank with a matrix whose rows sum to 1,
        teleport 0.1). "similarity": "diffusion", and then a second diffusion over nodes with
        similar features (in memory, for up to about ten thousand nodes). "vacuity": vacuity, in 2
        steps with weight 0.5 for a node's own value (Eq. 90). "evidence": concentrations (10 steps,
        teleport 0.1; Eq. 91). "both": "evidence" and then "vacuity". Only "evidence" and "both"
        change class probabilities. "auto" is "diffusion" with a graph and None without.
    measure : {"vacuity", "information"}, default="vacuity"
        "vacuity": the aleatoric part is 1 minus the largest expected probability, and the epistemic
        part is the vacuity ``C / alpha_0`` (Eq. 6 and 7); the total, their sum, is a score and not
        a probability. "information", in nats: expected entropy (aleatoric), mutual information of
        class and probabilities (epistemic), and entropy of the expected probabilities (total).
    batches : NodeBatches, default=None
        With a graph, how your own network is evaluated in batches of nodes. None: in one pass.
    learning_rate, max_epochs : float and int, default=0.03 and 200
        Learning rate of Adam, and maximum number of epochs, each of one pass over all samples.
    patience : int, default=20
        With validation data: training stops after this number of epochs without an improvement of
        the validation loss. The weights of the best epoch are kept.
    callbacks : list, default=None
        Further skorch callbacks.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if available and the network is not small, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of the head's initial weights, and of the training of an unfitted estimator.
    verbose : int, default=0
        Whether skorch prints each epoch, and whether a progress bar is shown during the evaluation
        of a network in batches or on a graph with features on disk.

    Attributes
    ----------
    head_ : torch.nn.Module
        The trained head.
    graph_ : object or None
        The converted graph, which other estimators accept as `graph`.
    alpha_ : ndarray of shape (n_nodes, n_classes), float64
        With a graph: concentrations of all nodes.
    labelled_nodes_ : ndarray of shape (n_labelled,), int64, or None
        With a graph: nodes whose labels were passed to `fit`, or were used to train a
        `GraphClassifier`. None in a copy for another graph.
    classes_, history_
        Class labels, and the losses of each epoch, as in skorch.

    References
    ----------
    Yu et al., "Evidential Uncertainty Probes for Graph Neural Networks", AISTATS 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import EvidentialProbe
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000).fit(X, y)
    >>> probe = EvidentialProbe(model, random_state=0).fit(X, y)
    >>> probe.predict_dirichlet(X[:2]).shape
    (2, 3)
    """

    estimator: Any = None
    _: KW_ONLY
    graph: Any = None
    head: NetworkHead | Literal["logits", "network"] = "logits"
    loss: EvidenceLoss | None = None
    propagation: Propagation | Literal["auto"] | None = "auto"
    measure: Measure = "vacuity"
    batches: NodeBatches | None = None
    learning_rate: float = 0.03
    patience: int = 20

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "graph": "no_validation",
        "head": [StrOptions({"logits", "network"}), NetworkHead],
        "loss": [EvidenceLoss, None],
        "propagation": [StrOptions({"auto", *get_args(Propagation)}), None],
        "measure": [StrOptions({"vacuity", "information"})],
        "batches": [NodeBatches, None],
        **_outputs.TRAINING_PARAMETERS,
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train the head on the frozen representations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_labelled,) and int
            Inputs with labels, of the kind that the estimator accepts. With a graph: labelled nodes
            as ids or as a boolean mask over all nodes. The regularisers also use unlabelled nodes.
        y : array-like of shape (n_samples,)
            Class labels. With a mask: labels of the selected nodes, or of all nodes.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, as numbers of samples. A mean below 0.1 or above 10 raises a warning.
        X_val, y_val : arrays like `X` and `y`, default=None
            Data for early stopping. None: training runs for `max_epochs`.

        Raises
        ------
        ValueError
            If `y` has labels that the estimator does not predict, the training diverges, or a
            parameter has no effect, such as `propagation` without a graph, `patience` without
            validation data, or `batches` with a `GraphClassifier`.

        Warns
        -----
        UserWarning
            If the predictions of the estimator for the labelled inputs are worse than guessing. A
            possible cause: a `torch.nn.Module` stores no labels, so its outputs are assumed to be
            in the sorted order of the labels in `y`.
        """
        head: NetworkHead | None = None  # None: the head "logits"
        if self.head != "logits":
            head = self.head if isinstance(self.head, NetworkHead) else NetworkHead()
            head._validate_params()
        layer, loss = -1 if head is None else head.layer, self.loss or EvidenceLoss()
        loss._check(on_logits=head is None)
        if self.batches is not None:
            self.batches._validate_params()
        self._refuse_patience(X_val)
        graph = graph_of(self.estimator, self.graph)
        if graph is None:
            needing = ["batches"] if self.propagation is None else ["batches", "propagation"]
            refuse_ineffective(self, needing, "without a graph; give `graph`.")
        else:
            graph.prepare(self.propagation)
        random_state = check_random_state(self.random_state)
        estimator_seed, head_seed = map(int, random_state.randint(2**31 - 1, size=2))
        evaluated = self._evaluate_estimator(
            graph, X, y, sample_weight, X_val, y_val, layer=layer, seed=estimator_seed
        )
        self.head_, self.history_ = self._fit_head(evaluated, head, loss, head_seed)
        self._keep(evaluated)
        self._layer, self._estimator_seed = layer, estimator_seed
        self.labelled_nodes_: NDArray[np.int64] | None = None
        if graph is not None:
            seen = seen_nodes(self.estimator, graph)
            self.labelled_nodes_ = np.union1d(evaluated.data.rows, seen)
            auto = self.propagation == "auto"
            self._scheme = cast(Propagation | None, "diffusion" if auto else self.propagation)
            self.alpha_ = graph.propagate(self._dirichlet(evaluated.outputs), self._scheme)
        return self

    def with_graph(self, graph: Any) -> Self:
        """Return a copy that predicts for the nodes of another graph, without retraining.

        The graph must be of the same type as in `fit`, and its nodes must have the same features.
        The copy has `labelled_nodes_` only if both graphs are equal. The original is not changed.
        """
        check_is_fitted(self)
        if self.graph_ is None:
            raise ValueError("This probe was fitted on feature rows; fit it with `graph` first.")
        other = copy(self)
        other.graph_ = as_node_graph(graph)
        other.graph_.prepare(self._scheme)
        if not self.graph_.is_same(other.graph_):
            other.labelled_nodes_ = None
        other.model_ = replace(cast(NodeModel, self.model_), graph=other.graph_)
        outputs = self._outputs_of_nodes(other.model_, self._layer, self._estimator_seed)
        other.alpha_ = other.graph_.propagate(self._dirichlet(outputs), self._scheme)
        return other

    def predict_proba(self, X: Any) -> FloatArray:
        alpha = self.predict_dirichlet(X)
        return alpha / alpha.sum(axis=1, keepdims=True)

    def predict_dirichlet(self, X: Any) -> FloatArray:
        """Predict the concentrations ``alpha = (C + e) p`` of Dirichlet distributions (Eq. 11).

        Shape (n_samples, n_classes), float64, with columns in the order of `classes_`; `X` is as in
        `predict_proba`.
        """
        check_is_fitted(self)
        if self.graph_ is not None:
            return self.alpha_[self._nodes_of(X)]
        return self._dirichlet(self._outputs_of(X, self._layer))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the uncertainty of inputs or nodes, in the unit of `measure`."""
        return with_index_of(
            X, _evidence.dirichlet_uncertainty(self.predict_dirichlet(X), self.measure)
        )

    def _fit_head(
        self, evaluated: EvaluatedModel, head: NetworkHead | None, loss: EvidenceLoss, seed: int
    ) -> tuple[nn.Module, Any]:
        outputs, data = evaluated.outputs, evaluated.data
        training = _samples(outputs, data.training, all_rows=isinstance(evaluated.model, NodeModel))
        validation = None if data.validation is None else _samples(outputs, data.validation)
        inputs = {name: torch.from_numpy(values) for name, values in training.inputs.items()}
        module = _evidence.new_head(
            head, inputs, len(data.classes), level=loss.evidence_id, seed=seed
        )
        device = evaluated.model.resolved(self.device)
        settings = self._training_settings(device, loss.weight_decay)
        criterion = ProbeLoss(loss)
        return train(
            module, criterion, *training, validation=validation, settings=settings, seed=seed
        )

    def _dirichlet(self, outputs: Outputs) -> FloatArray:
        with torch.no_grad():
            e = self.head_(outputs.hidden).sum(dim=1, dtype=torch.float64).numpy()  # Eq. 10
        p = _outputs.proba_of(outputs.logits).clip(np.finfo(np.float64).tiny)
        alpha: FloatArray = (p.shape[1] + e)[:, None] * p  # Eq. 11
        return alpha


def _samples(outputs: Outputs, labelled: Labelled, *, all_rows: bool = False) -> Samples:
    """Build samples of Eq. 15 from labelled rows; with `all_rows`, regularisers use all rows."""
    rows, weight = labelled.rows, labelled.weight
    if all_rows:
        count = np.bincount(rows, minlength=len(outputs.logits))
        others = np.flatnonzero(count == 0)
        rows = np.concatenate([rows, others])
        weight = 1 / count[rows].clip(1)
    n_others = len(rows) - len(labelled.rows)
    inputs = {
        "inputs": outputs.hidden.numpy()[rows],
        "proba": _outputs.proba_of(outputs.logits)[rows].astype(np.float32),
        "weight": weight.astype(np.float32),
        "label_weight": np.pad(labelled.weight, (0, n_others)).astype(np.float32),
    }
    return Samples(inputs, np.pad(labelled.codes, (0, n_others), constant_values=-1))
