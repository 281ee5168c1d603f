"""Graph network with a kernel prior and a teacher (S-GNN-GKDE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from skorch.callbacks import Callback
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.evidential._dirichlet import Measure
from skuq.evidential._graph_classifier import NETWORK_PARAMETERS, GraphClassifier, build_network
from skuq.evidential._graphs import NodeGraph, as_node_graph
from skuq.evidential._losses import dirichlet_kl, expected_square_loss
from skuq.evidential._node_classifier import LabelledNodes
from skuq.evidential._training import Samples
from skuq.evidential.comparison._dirichlet_network import Concentrations, DirichletNetworkClassifier
from skuq.evidential.comparison._kernel import kernel_dirichlet
from skuq.information import kl_divergence

PRIOR_WEIGHT = 0.1  # of the divergence from the kernel prior
ANNEALING_EPOCHS = 200  # after which the teacher has its whole weight, which is 1


class KernelDirichletGNN(DirichletNetworkClassifier):
    """Evidential graph network that is drawn to a kernel prior and to a teacher.

    The prior of a node's concentrations counts labelled nodes nearby; the teacher is a
    `GraphClassifier` with 64 hidden units. Both pull at all nodes, not at labelled ones alone.

    Parameters
    ----------
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph
        The graph, as `skuq.evidential.as_node_graph` takes it. Clones share it.
    measure : {"vacuity", "information"}, default="vacuity"
        Quantity and unit of the uncertainty, as `dirichlet_uncertainty` has them.
    architecture : {"gcn", "gat"}, default="gcn"
        Graph convolutions, or attention with 8 heads; the teacher's too.
    hidden_sizes : sequence of int, default=(16,)
        Width of each hidden layer of the student.
    dropout : float, default=0.5
        Probability of dropping a hidden unit while training; the teacher's too.
    batch_norm : bool, default=False
        Whether hidden layers are normalised over the nodes; the teacher's too.
    learning_rate : float, default=0.01
        Learning rate of Adam; the teacher's too.
    weight_decay : float, default=1e-4
        L2 penalty; the teacher's too.
    max_epochs : int, default=500
        Most epochs; each is one pass over the whole graph. The teacher has its own default.
    patience : int, default=50
        With validation data: epochs without a smaller validation loss before training stops.
        The weights of the best epoch are kept.
    callbacks : list, default=None
        Further skorch callbacks for the student.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights and dropout of both networks.
    verbose : int, default=0
        Whether skorch prints each epoch.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    network_ : torch.nn.Module
        The trained student, called with a `NodeGraph`; it returns concentrations.
    teacher_ : GraphClassifier
        The trained teacher.
    prior_ : ndarray of shape (n_nodes, n_classes), float64
        Concentrations of the kernel prior.
    graph_ : NodeGraph
        The graph.
    alpha_, proba_ : ndarrays of shape (n_nodes, n_classes), float64
        Concentrations of all nodes, at least 1, and expected class probabilities.
    history_ : skorch.history.History
        Losses of each epoch.

    Notes
    -----
    Each term of the loss is a mean: of squares over labelled nodes, of divergences over all.
    The validation loss is that of squares alone, because the weight of the teacher changes
    from epoch to epoch and validation losses must be comparable.

    References
    ----------
    Zhao, Chen, Hu, Cho, "Uncertainty Aware Semi-Supervised Learning on Graph Data", NeurIPS
    2020, with the settings of Yu et al., AISTATS 2025, Eq. 88.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> from skuq.evidential import KernelDirichletGNN
    >>> data = make_node_classes(200, random_state=0)
    >>> model = KernelDirichletGNN(data.graph, max_epochs=20, random_state=0)
    >>> model.fit(range(100), data.labels[:100]).predict_dirichlet([150, 151]).shape
    (2, 4)
    """

    _parameter_constraints: dict[str, Any] = {
        "measure": [StrOptions({"vacuity", "information"})],
        **NETWORK_PARAMETERS,
    }

    def __init__(
        self,
        graph: Any,
        *,
        measure: Measure = "vacuity",
        architecture: Literal["gcn", "gat"] = "gcn",
        hidden_sizes: Sequence[int] = (16,),
        dropout: float = 0.5,
        batch_norm: bool = False,
        learning_rate: float = 0.01,
        weight_decay: float = 1e-4,
        max_epochs: int = 500,
        patience: int = 50,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.graph = graph
        self.measure = measure
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
    ) -> KernelDirichletGNN:
        """Train the teacher, then the student.

        Parameters
        ----------
        X : array-like of shape (n_labelled,) or (n_labelled, 1), int
            Ids of labelled nodes.
        y : array-like of shape (n_labelled,)
            Their classes.
        sample_weight : array-like of shape (n_labelled,), default=None
            Weights in the loss and in the prior.
        X_val, y_val : array-like of shape (n_validation,), default=None
            Nodes for early stopping, and their classes. None: training runs for all epochs.

        Returns
        -------
        KernelDirichletGNN
            The fitted estimator.

        Raises
        ------
        ValueError
            If the graph or the node ids are not valid, `y` holds one class, or the training
            diverges.
        """
        graph = as_node_graph(self.graph)
        nodes = LabelledNodes(graph, X, y, sample_weight, X_val, y_val)
        seed = self._draw_seed()
        teacher = self._trained_teacher(graph, nodes, seed)
        prior = kernel_dirichlet(
            graph.adjacency,
            nodes.training.inputs["inputs"],
            nodes.training.codes,
            len(nodes.classes),
            weight=nodes.training.inputs["weight"],
        )
        alpha = self._train(
            Concentrations(build_network(self, graph.n_features, len(nodes.classes), seed)),
            KernelLoss(),
            graph,
            _on_all_nodes(nodes.training, prior, teacher.proba_),
            nodes.validation,
            seed=seed,
            callbacks=[Annealing()],
        )
        self.teacher_, self.prior_ = teacher, prior
        self.graph_, self.classes_ = graph, nodes.classes
        self._set_dirichlet(alpha)
        return self

    def _trained_teacher(
        self, graph: NodeGraph, nodes: LabelledNodes, seed: int
    ) -> GraphClassifier:
        shared = [
            "architecture",
            "dropout",
            "batch_norm",
            "learning_rate",
            "weight_decay",
            "patience",
        ]
        shared.append("max_epochs")
        settings = {name: getattr(self, name) for name in [*shared, "device"]}
        teacher = GraphClassifier(graph, random_state=seed, **settings)
        return teacher.fit(**nodes.as_arguments())


def _on_all_nodes(training: Samples, prior: FloatArray, proba: FloatArray) -> Samples:
    """Labelled nodes as often as they are given, then the others; what prior and teacher say."""
    labelled = training.inputs["inputs"]
    count = np.bincount(labelled, minlength=len(prior))
    others = np.flatnonzero(count == 0)
    rows = np.concatenate([labelled, others])
    inputs = {
        "inputs": rows,
        "weight": np.pad(training.inputs["weight"], (0, len(others))),
        "share": 1 / count[rows].clip(1) / len(prior),  # each node counts once
        "prior": prior[rows],
        "log_proba": np.log(proba[rows].clip(np.finfo(np.float64).tiny)),
    }
    return Samples(inputs, np.pad(training.codes, (0, len(others)), constant_values=-1))


class KernelLoss(nn.Module):
    """Loss of Eq. 88; while evaluating, its first term alone."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher_weight = 0.0

    def forward(self, alpha: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        alpha = alpha.double()  # differences of large logarithms of the gamma function
        known = codes >= 0
        weight = inputs["weight"].to(alpha)[known]
        square = expected_square_loss(alpha[known], codes[known])
        loss: Tensor = (weight * square).sum() / weight.sum()
        if not self.training:
            return loss
        log_proba = alpha.log() - alpha.sum(dim=1, keepdim=True).log()
        share = inputs["share"].to(alpha)
        from_prior = (share * dirichlet_kl(alpha, inputs["prior"].to(alpha))).sum()
        from_teacher = (share * kl_divergence(log_proba, inputs["log_proba"].to(alpha))).sum()
        return loss + PRIOR_WEIGHT * from_prior + self.teacher_weight * from_teacher


class Annealing(Callback):
    """Gives the teacher its weight little by little."""

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        net.criterion_.teacher_weight = min(1.0, len(net.history) / ANNEALING_EPOCHS)
