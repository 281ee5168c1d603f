"""Graph network as a scikit-learn classifier of nodes, and mixins for node classifiers."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq._networks import WeightedLoss, resolve_device, seeded
from skuq.base import FloatArray
from skuq.devices import with_gradients
from skuq.evidential import _outputs
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graph_networks import Architecture, GraphNetwork, train_on_graph
from skuq.evidential._graphs import checked_nodes
from skuq.evidential._outputs import NodeModel, TrainedNetworkMixin
from skuq.labels import labels_in_mask
from skuq.validation import checked_widths, refuse_ineffective
from skuq.wrappers import is_fitted


class SharedParametersMixin:
    """Let clones share the graph and fitted estimators, instead of copying or resetting these."""

    _shared: tuple[str, ...] = ("graph",)

    def __sklearn_clone__(self: Any) -> Any:
        params = self.get_params(deep=False)
        for name, value in params.items():
            # Clone unfitted estimators, because a grid search sets parameters of the clones.
            untrained = hasattr(value, "get_params") and not is_fitted(value)
            if untrained or name not in self._shared:
                params[name] = clone(value, safe=False)
        twin = type(self)(**params)
        if hasattr(self, "_metadata_request"):
            twin._metadata_request = self._metadata_request
        return twin


class PredictionsMixin:
    """Predictions for node ids, or for rows; the `fit` of a subclass sets the attributes."""

    graph_: Any  # a NodeGraph, or None
    classes_: NDArray[Any]

    @abstractmethod
    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities: the estimator's, unless propagation has smoothed them.

        `X` are rows (n_samples, n_features), or ids of nodes if there is a graph. Columns are in
        the order of `classes_`.
        """

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class; `X` as in `predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy; with a mask as `X`, `y` may hold the labels of all nodes."""
        labels = labels_in_mask(X, y)
        accuracy: float = super().score(X, labels, sample_weight)  # type: ignore[misc]
        return accuracy

    def _nodes_of(self, X: Any) -> NDArray[np.int64]:
        check_is_fitted(self)
        return checked_nodes(X, self.graph_.n_nodes)


class NodeClassifierMixin(PredictionsMixin):
    """Predictions that are looked up in `proba_`, of shape (n_nodes, n_classes)."""

    proba_: FloatArray

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "proba_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.one_d_array = True
        return tags

    def predict_proba(self, X: Any) -> FloatArray:
        nodes = self._nodes_of(X)
        return self.proba_[nodes]


@dataclass(repr=False, eq=False)
class GraphClassifier(
    SharedParametersMixin, TrainedNetworkMixin, NodeClassifierMixin, ClassifierMixin, BaseEstimator
):
    """Graph network that classifies the nodes of a graph.

    The network is trained on the labels of some nodes, and on the features and edges of all nodes
    (transductive learning). `X` holds node ids; cross-validation thus splits nodes.

    Parameters
    ----------
    graph : DGLGraph, (adjacency, features) or PyG Data
        The graph: a `dgl.DGLGraph` with features in ``ndata["feat"]``; a pair (adjacency,
        features), where the adjacency is a dense matrix, scipy sparse matrix or DGLGraph; or an
        object with ``edge_index`` and ``x``. Features in a float32 `numpy.memmap` stay on disk.
        Edges become undirected and unweighted; self-loops are dropped. Clones share the graph.
    architecture : {"gcn", "gat"}, default="gcn"
        Graph convolutions (GCN), or attention with 8 heads (GAT).
    hidden_sizes : sequence of int, default=(64,)
        Width of each hidden layer.
    dropout : float, default=0.5
        Probability of dropping a hidden unit during training.
    batch_norm : bool, default=False
        Whether hidden layers are batch-normalised over the nodes.
    weight_decay : float, default=1e-4
        L2 penalty.
    learning_rate, max_epochs, patience, callbacks, device, random_state, verbose
        As in `EvidentialProbe`, with other defaults.

    Attributes
    ----------
    network_ : torch.nn.Module
        The trained network; its input is the converted graph.
    labelled_nodes_ : ndarray of shape (n_labelled,), int64
        Nodes whose labels were used for training or early stopping.
    proba_ : ndarray of shape (n_nodes, n_classes), float64
        Class probabilities of all nodes.
    classes_, graph_, history_
        As in `EvidentialProbe`.

    References
    ----------
    Kipf and Welling, ICLR 2017; Velickovic et al., ICLR 2018.

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

    graph: Any
    _: KW_ONLY
    architecture: Architecture = "gcn"
    hidden_sizes: Sequence[int] = (64,)
    dropout: float = 0.5
    batch_norm: bool = False
    learning_rate: float = 0.01
    weight_decay: float = 1e-4
    patience: int = 50

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "graph": "no_validation",
        "architecture": [StrOptions(set(get_args(Architecture)))],
        "hidden_sizes": ["array-like"],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        **_outputs.TRAINING_PARAMETERS,
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train the network on labelled nodes.

        Parameters
        ----------
        X : array-like of shape (n_labelled,) or (n_labelled, 1), int
            Ids of labelled nodes, or a boolean mask over all nodes.
        y, sample_weight, X_val, y_val
            As in `EvidentialProbe.fit`.

        Raises
        ------
        ValueError
            If the graph or the node ids are invalid, or a parameter has no effect: `patience`
            without validation data, `dropout` or `batch_norm` without hidden layers.
        """
        self._refuse_ineffective(X_val)
        graph = as_node_graph(self.graph)
        data = _outputs.labelled_nodes(graph, X, y, sample_weight, X_val, y_val)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.network_, self.history_, logits = train_on_graph(
            self._new_network(graph.n_features, len(data.classes), seed),
            WeightedLoss(nn.CrossEntropyLoss(reduction="none")),
            graph,
            data.training.as_samples(),
            data.validation,
            settings=self._training_settings(resolve_device(self.device), self.weight_decay),
            seed=seed,
        )
        self.graph_, self.classes_, self.labelled_nodes_ = graph, data.classes, data.rows
        self.proba_ = logits.softmax(dim=1).numpy()
        return self

    def _refuse_ineffective(self, X_val: Any) -> None:
        self._refuse_patience(X_val)
        if len(self.hidden_sizes) == 0:
            context = "without hidden layers; set their widths in `hidden_sizes`."
            refuse_ineffective(self, ["dropout", "batch_norm"], context)

    def _new_network(self, n_features: int, n_classes: int, seed: int) -> GraphNetwork:
        widths = checked_widths(self.hidden_sizes)
        with seeded(seed):
            return GraphNetwork(
                self.architecture, n_features, n_classes, widths, self.dropout, self.batch_norm
            )

    def as_model(self) -> NodeModel:
        """Return the fitted network as a `skuq.models.Model`."""
        check_is_fitted(self)
        return _outputs.node_model(self.network_, self.graph_, self.classes_)
