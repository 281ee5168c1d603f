"""Graph network with a kernel prior and a teacher (S-GNN-GKDE)."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import StrOptions
from skorch.callbacks import Callback
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.distributions import kl_divergence as dirichlet_kl

from skuq.base import FloatArray
from skuq.evidential._dirichlet import Measure
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._labelled import Labelled, LabelledData
from skuq.evidential._losses import expected_square_loss
from skuq.evidential._training_parameters import Samples
from skuq.evidential.comparison._dirichlet_network import (
    Concentrations,
    DirichletNetworkClassifier,
    TrainingTask,
)
from skuq.evidential.comparison._kernel import kernel_dirichlet
from skuq.information import kl_divergence

# Settings of `GraphClassifier` in the comparison.
GKDE_SETTINGS: dict[str, Any] = {"hidden_sizes": (16,), "max_epochs": 500}
TEACHER_HIDDEN_SIZES = (64,)
PRIOR_WEIGHT = 0.1  # of the divergence from the kernel prior
ANNEALING_EPOCHS = 200  # until the weight of the teacher is 1


class KernelDirichletGNN(DirichletNetworkClassifier):
    """Evidential graph network with a kernel prior and a teacher (S-GNN-GKDE).

    The prior of a node's concentrations counts labelled nodes nearby; the teacher is a
    `GraphClassifier` with 64 hidden units. Divergences from both enter the loss for all nodes,
    labelled or not.

    Parameters
    ----------
    estimator : GraphClassifier
        Graph, network and settings of the training; it is not fitted itself. The teacher is
        trained with the same settings, except for its hidden layer. The comparison by Yu et al.
        has ``hidden_sizes=(16,)``.
    measure : {"vacuity", "information"}, default="vacuity"
        Quantity and unit of the uncertainty, see `dirichlet_uncertainty`.

    Attributes
    ----------
    classes_, graph_, network_, history_
        As in `GraphClassifier`; the network returns concentrations.
    teacher_ : GraphClassifier
        The trained teacher.
    prior_ : ndarray of shape (n_nodes, n_classes), float64
        Concentrations of the kernel prior.
    alpha_, proba_ : ndarrays of shape (n_nodes, n_classes), float64
        Concentrations of all nodes, at least 1, and expected class probabilities.

    Notes
    -----
    Each term of the loss is a mean: of squares over labelled nodes, of divergences over all nodes.
    The validation loss has the squares alone, because the weight of the teacher changes from
    epoch to epoch and validation losses must be comparable.

    References
    ----------
    Zhao, Chen, Hu, Cho, "Uncertainty Aware Semi-Supervised Learning on Graph Data", NeurIPS
    2020, with the settings of Yu et al., AISTATS 2025, Eq. 88.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> from skuq.evidential import GraphClassifier, KernelDirichletGNN
    >>> data = make_node_classes(200, random_state=0)
    >>> settings = GraphClassifier(data.graph, hidden_sizes=(16,), max_epochs=20, random_state=0)
    >>> model = KernelDirichletGNN(settings).fit(range(100), data.labels[:100])
    >>> model.predict_dirichlet([150, 151]).shape
    (2, 4)
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": [GraphClassifier],
        "measure": [StrOptions({"vacuity", "information"})],
    }

    def __init__(self, estimator: GraphClassifier, *, measure: Measure = "vacuity"):
        self.estimator = estimator
        self.measure = measure

    def _training_task(self, graph: NodeGraph, nodes: LabelledData, seed: int) -> TrainingTask:
        teacher = clone(self.estimator).set_params(
            graph=graph,
            hidden_sizes=TEACHER_HIDDEN_SIZES,
            callbacks=None,
            random_state=seed,
            verbose=0,
        )
        teacher.fit(**nodes.as_arguments())
        rows, codes, weight = nodes.training
        prior = kernel_dirichlet(graph.adjacency, rows, codes, len(nodes.classes), weight=weight)
        network = self.estimator._new_network(graph.n_features, len(nodes.classes), seed)
        return TrainingTask(
            Concentrations(network),
            KernelLoss(),
            _samples_of_all_nodes(nodes.training, prior, teacher.proba_),
            [Annealing()],
            {"teacher_": teacher, "prior_": prior},
        )


def _samples_of_all_nodes(labelled: Labelled, prior: FloatArray, proba: FloatArray) -> Samples:
    """Labelled nodes as often as they are given, then the others, with prior and teacher."""
    count = np.bincount(labelled.rows, minlength=len(prior))
    others = np.flatnonzero(count == 0)
    rows = np.concatenate([labelled.rows, others])
    inputs = {
        "inputs": rows,
        "weight": np.pad(labelled.weight, (0, len(others))),
        "share": 1 / count[rows].clip(1) / len(prior),  # each node counts once
        "prior": prior[rows],
        "log_proba": np.log(proba[rows].clip(np.finfo(np.float64).tiny)),
    }
    return Samples(inputs, np.pad(labelled.codes, (0, len(others)), constant_values=-1))


class KernelLoss(nn.Module):
    """Loss of Eq. 88; while evaluating, its first term alone."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher_weight = 0.0

    def forward(self, alpha: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        alpha = alpha.double()  # large logarithms of the gamma function cancel
        labelled = codes >= 0
        weight = inputs["weight"].to(alpha)[labelled]
        square = expected_square_loss(alpha[labelled], codes[labelled])
        loss: Tensor = (weight * square).sum() / weight.sum()
        if not self.training:
            return loss
        share = inputs["share"].to(alpha)
        prior = Dirichlet(inputs["prior"].to(alpha), validate_args=False)
        from_prior = dirichlet_kl(Dirichlet(alpha, validate_args=False), prior)
        log_p = alpha.log() - alpha.sum(dim=1, keepdim=True).log()
        from_teacher = kl_divergence(log_p, inputs["log_proba"].to(alpha))
        divergences = PRIOR_WEIGHT * from_prior + self.teacher_weight * from_teacher
        return loss + (share * divergences).sum()  # Eq. 88


class Annealing(Callback):
    """Linear increase of the weight of the teacher."""

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        net.criterion_.teacher_weight = min(1.0, len(net.history) / ANNEALING_EPOCHS)
