"""What graph networks that are trained to output concentrations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from skorch.callbacks import Callback
from torch import nn

from skuq.base import FloatArray
from skuq.evidential._graph_classifier import OnNodes, node_outputs
from skuq.evidential._graphs import NodeGraph, graph_device
from skuq.evidential._head import safe_exp
from skuq.evidential._node_classifier import DirichletNodesMixin
from skuq.evidential._training import Samples, TrainingParametersMixin
from skuq.models import train


class Concentrations(nn.Module):
    """A graph network whose outputs are taken for logarithms of evidence: ``exp(o) + 1``."""

    takes_node_graph = True

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, graph: NodeGraph) -> torch.Tensor:
        return safe_exp(self.network(graph)) + 1


class DirichletNetworkClassifier(
    TrainingParametersMixin, DirichletNodesMixin, ClassifierMixin, BaseEstimator
):
    """Base of estimators that train a network of concentrations.

    A subclass has the parameters of `TRAINING_PARAMETERS`.
    """

    device: Any
    random_state: Any

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _train(
        self,
        network: nn.Module,
        criterion: nn.Module,
        graph: NodeGraph,
        training: Samples,
        validation: Samples | None,
        *,
        seed: int,
        callbacks: Sequence[Callback] = (),
    ) -> FloatArray:
        """Train a network; set `network_` and `history_`, return concentrations of all nodes."""
        device = graph_device(self.device)
        trained, self.history_ = train(
            OnNodes(network, graph.to(device)),
            criterion,
            *training,
            validation=validation,
            settings=self._training_settings(device),
            seed=seed,
            callbacks=callbacks,
        )
        network = trained.network  # type: ignore[assignment]
        self.network_ = network
        alpha: FloatArray = node_outputs(network, graph, device).double().numpy()
        return alpha
