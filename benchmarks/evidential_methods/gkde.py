"""Graph network with a kernel prior and a teacher (S-GNN-GKDE)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import gen_batches
from skorch.callbacks import Callback
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.distributions import kl_divergence as dirichlet_kl

from benchmarks.evidential_methods.dirichlet_networks import (
    Concentrations,
    DirichletNetworkClassifier,
)
from skuq._information import kl_divergence
from skuq._networks import as_double
from skuq.base import FloatArray
from skuq.evidential import GraphClassifier, Labelled, Samples

# Settings of `GraphClassifier` in the comparison of methods.
GKDE_SETTINGS: dict[str, Any] = {"hidden_sizes": (16,), "max_epochs": 500}
TEACHER_HIDDEN_SIZES = (64,)
PRIOR_WEIGHT = 0.1  # weight of the divergence from the kernel prior in the loss
ANNEALING_EPOCHS = 200  # number of epochs after which the weight of the teacher is 1
# Number of labelled nodes whose distances to all nodes are in memory at once.
BATCH_SIZE = 256


class KernelDirichletGNN(DirichletNetworkClassifier):
    """Evidential graph network with a kernel prior and a teacher (S-GNN-GKDE).

    The prior concentrations of a node depend on the labelled nodes nearby. The teacher is a
    `GraphClassifier` with 64 hidden units. The loss contains the divergences from the prior and
    from the teacher, for labelled and unlabelled nodes.

    `estimator` specifies the graph, the network and the settings of the training, also those of
    the teacher, except for its hidden layer. Yu et al. use ``hidden_sizes=(16,)``. Fitted
    attributes are `teacher_` and the concentrations `prior_` of shape (n_nodes, n_classes).

    Notes
    -----
    The loss is the mean squared error over labelled nodes plus mean divergences over all nodes.
    The validation loss is the squared error alone, because validation losses must be comparable and
    the weight of the teacher changes from epoch to epoch.

    References
    ----------
    Zhao, Chen, Hu, Cho, "Uncertainty Aware Semi-Supervised Learning on Graph Data", NeurIPS
    2020, with the settings of Yu et al., AISTATS 2025, Eq. 88.
    """

    def __init__(self, estimator: GraphClassifier, *, measure: str = "vacuity"):
        self.estimator = estimator
        self.measure = measure

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> KernelDirichletGNN:
        """Train the teacher and the network; the arguments are those of `GraphClassifier.fit`."""
        graph, nodes, seed = self._labelled_data(X, y, sample_weight, X_val, y_val)
        teacher = clone(self.estimator).set_params(
            graph=graph,
            hidden_sizes=TEACHER_HIDDEN_SIZES,
            callbacks=None,
            random_state=seed,
            verbose=0,
        )
        self.teacher_ = teacher.fit(**nodes.as_arguments())
        rows, codes, weight = nodes.training
        n_classes = len(nodes.classes)
        self.prior_ = kernel_dirichlet(graph.adjacency, rows, codes, n_classes, weight=weight)
        network = self.estimator._new_network(graph.n_features, n_classes, seed)
        samples = _samples_of_all_nodes(nodes.training, self.prior_, teacher.proba_)
        self._train(
            Concentrations(network),
            KernelLoss(),
            graph,
            nodes,
            samples,
            seed,
            callbacks=[Annealing()],
        )
        return self


def _samples_of_all_nodes(labelled: Labelled, prior: FloatArray, proba: FloatArray) -> Samples:
    """Build samples of all nodes, with prior and teacher: labelled nodes, then unlabelled nodes.

    A node that is labelled several times has several samples.
    """
    count = np.bincount(labelled.rows, minlength=len(prior))
    others = np.flatnonzero(count == 0)
    rows = np.concatenate([labelled.rows, others])
    inputs = {
        "inputs": rows,
        "weight": np.pad(labelled.weight, (0, len(others))),
        # The shares of all samples of a node sum to 1 / n_nodes.
        "share": 1 / count[rows].clip(1) / len(prior),
        "prior": prior[rows],
        "log_proba": np.log(proba[rows].clip(np.finfo(np.float64).tiny)),
    }
    return Samples(inputs, np.pad(labelled.codes, (0, len(others)), constant_values=-1))


class KernelLoss(nn.Module):
    """Loss of Eq. 88; in evaluation mode only its first term."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher_weight = 0.0

    def forward(self, alpha: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        alpha = as_double(alpha)  # differences of large log-gamma values lose precision in float32
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
    """Callback that increases the weight of the teacher linearly."""

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        net.criterion_.teacher_weight = min(1.0, len(net.history) / ANNEALING_EPOCHS)


def expected_square_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Expected squared error under a Dirichlet distribution (Sensoy et al., 2018, Eq. 5)."""
    alpha_0 = alpha.sum(dim=1, keepdim=True)
    p = alpha / alpha_0
    y = nn.functional.one_hot(codes, alpha.shape[1]).to(p)
    return ((y - p).square() + p * (1 - p) / (alpha_0 + 1)).sum(dim=1)  # Eq. 88, first term


def hops(adjacency: sparse.csr_array, sources: NDArray[np.int64], cutoff: int) -> NDArray[np.int64]:
    """Compute lengths of shortest paths, (n_nodes, n_sources), -1 if longer than `cutoff`.

    The algorithm is a breadth-first search from all sources at once, on a symmetric adjacency
    matrix.
    """
    columns = np.arange(len(sources))
    distance = np.full((adjacency.shape[0], len(sources)), -1)
    distance[sources, columns] = 0
    front = (distance == 0).astype(np.float32)
    for length in range(1, cutoff + 1):
        reached = (adjacency @ front > 0) & (distance < 0)
        if not reached.any():
            break
        distance[reached] = length
        front = reached.astype(np.float32)
    return distance


def kernel_dirichlet(
    adjacency: sparse.csr_array,
    nodes: NDArray[np.int64],
    codes: NDArray[np.int64],
    n_classes: int,
    *,
    weight: FloatArray | None = None,
    sigma: float = 1.0,
    cutoff: int = 10,
) -> FloatArray:
    """Compute kernel prior concentrations from nearby labelled nodes (Zhao et al., Eq. 8).

    The concentration of a class is 1 plus the sum, over the labelled nodes of this class, of the
    normal density (standard deviation `sigma`) at the length of the shortest path from the labelled
    node. `sigma` and `cutoff` are in edges.
    """
    weight = np.ones(len(nodes)) if weight is None else weight
    kernel = np.exp(-((np.arange(cutoff + 1) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    kernel = np.append(kernel, 0.0)  # index -1: no path
    alpha = np.ones((adjacency.shape[0], n_classes))
    for batch in gen_batches(len(nodes), BATCH_SIZE):
        of_class = np.eye(n_classes)[codes[batch]] * weight[batch, None]
        alpha += kernel[hops(adjacency, nodes[batch], cutoff)] @ of_class
    return alpha
