"""Graph network as a scikit-learn classifier of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq.evidential._backbones import ARCHITECTURES, GraphNetwork
from skuq.evidential._graph_training import fit_on_graph, node_samples
from skuq.evidential._graphs import as_node_graph, graph_device
from skuq.evidential._labelled import labelled_nodes
from skuq.evidential._node_model import NodeModel, node_model
from skuq.evidential._node_predictions import NodeClassifierMixin
from skuq.evidential._shared_parameters import SharedParametersMixin
from skuq.evidential._training_parameters import TRAINING_PARAMETERS, TrainedNetworkMixin
from skuq.models import WeightedLoss, checked_widths, seeded


class GraphClassifier(
    SharedParametersMixin, TrainedNetworkMixin, NodeClassifierMixin, ClassifierMixin, BaseEstimator
):
    """Graph network that classifies the nodes of a graph.

    It learns from labelled nodes and the features and edges of all nodes (transductive
    learning). `X` holds node ids, so cross-validation splits nodes.

    Parameters
    ----------
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph
        The graph, as `skuq.evidential.as_node_graph` takes it. Clones share it.
    architecture : {"gcn", "gat"}, default="gcn"
        Graph convolutions (GCN), or attention with 8 heads (GAT).
    hidden_sizes : sequence of int, default=(64,)
        Width of each hidden layer.
    dropout : float, default=0.5
        Probability of dropping a hidden unit during training.
    batch_norm : bool, default=False
        Whether hidden layers are batch-normalised over the nodes.
    learning_rate : float, default=0.01
        Learning rate of Adam.
    weight_decay : float, default=1e-4
        L2 penalty.
    max_epochs : int, default=200
        Maximum number of epochs; each is one pass over the whole graph.
    patience : int, default=50
        With validation data: number of epochs without a smaller validation loss after which
        training stops. The weights of the best epoch are kept.
    callbacks : list, default=None
        Further skorch callbacks.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights and dropout.
    verbose : int, default=0
        Whether skorch prints each epoch.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    network_ : torch.nn.Module
        The trained network, called with a `NodeGraph`.
    graph_ : NodeGraph
        The graph.
    labelled_nodes_ : ndarray of shape (n_labelled,), int64
        Nodes whose labels trained the network or stopped its training.
    proba_ : ndarray of shape (n_nodes, n_classes), float64
        Class probabilities of all nodes.
    history_ : skorch.history.History
        Losses of each epoch.

    References
    ----------
    Kipf and Welling, ICLR 2017; Velickovic et al., ICLR 2018. Sizes are those of Yu et al.,
    AISTATS 2025, Appendix C.3, with a larger learning rate.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> from skuq.evidential import GraphClassifier
    >>> graph = make_node_classes(300, random_state=0)
    >>> nodes = range(100)
    >>> model = GraphClassifier((graph.adjacency, graph.features), random_state=0)
    >>> model.fit(nodes, graph.labels[:100]).score(range(100, 300), graph.labels[100:]) > 0.8
    True
    """

    _parameter_constraints: dict[str, Any] = {
        "graph": "no_validation",
        "architecture": [StrOptions(set(ARCHITECTURES))],
        "hidden_sizes": ["array-like"],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        **TRAINING_PARAMETERS,
    }

    def __init__(
        self,
        graph: Any,
        *,
        architecture: Literal["gcn", "gat"] = "gcn",
        hidden_sizes: Sequence[int] = (64,),
        dropout: float = 0.5,
        batch_norm: bool = False,
        learning_rate: float = 0.01,
        weight_decay: float = 1e-4,
        max_epochs: int = 200,
        patience: int = 50,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.graph = graph
        self.architecture = architecture
        self.hidden_sizes = hidden_sizes
        self.dropout = dropout
        self.batch_norm = batch_norm
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_epochs = max_epochs
        self.patience = patience
        self.callbacks = callbacks
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> GraphClassifier:
        """Train the network on labelled nodes.

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
        GraphClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the graph or the node ids are not valid, `y` holds one class, or the training
            diverges.
        """
        graph = as_node_graph(self.graph)
        data = labelled_nodes(graph, X, y, sample_weight, X_val, y_val)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.network_, self.history_, logits = fit_on_graph(
            self._new_network(graph.n_features, len(data.classes), seed),
            WeightedLoss(nn.CrossEntropyLoss(reduction="none")),
            graph,
            node_samples(data.training),
            data.validation,
            settings=self._training_settings(graph_device(self.device)),
            seed=seed,
        )
        self.graph_, self.classes_ = graph, data.classes
        self.labelled_nodes_ = data.rows
        self.proba_ = logits.softmax(dim=1).numpy()
        return self

    def _new_network(self, n_features: int, n_classes: int, seed: int) -> GraphNetwork:
        """A network of the classifier's architecture, with its initial weights."""
        with seeded(seed):
            return ARCHITECTURES[self.architecture](
                n_features,
                n_classes,
                checked_widths(self.hidden_sizes),
                self.dropout,
                self.batch_norm,
            )

    def as_adopted(self) -> NodeModel:
        """Return the fitted network in the form that `skuq.models.adopt` returns."""
        check_is_fitted(self)
        return node_model(self.network_, self.graph_, self.classes_)
