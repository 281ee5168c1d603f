"""Outputs of a node classifier for OOD scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.ood._outputs import Evaluator, RowOutputs
from skuq.validation import warn_user


@dataclass(frozen=True)
class NodeOutputs(Evaluator):
    """A fitted node classifier, with the energy of its logits diffused over the graph.

    Attributes
    ----------
    estimator : estimator
        Node classifier whose inputs are node ids.
        Energy of all nodes, diffused over their graph. If the estimator averages over similar
        nodes, the energy is also diffused over similar nodes.
    """

    estimator: Any
    diffused: Any

    @classmethod
    def of(cls, estimator: Any, nodes: Any, y: Any, device: Any) -> NodeOutputs:
        """Create from a fitted classifier and its labelled nodes."""
        from skuq.evidential import LogitUncertainty

        similarity = getattr(estimator, "propagation", None) == "similarity"
        diffused = LogitUncertainty(
            estimator,
            method="energy",
            propagation="similarity" if similarity else "diffusion",
            device=device,
        )
        return cls(estimator, diffused.fit(nodes, y))

    def __call__(self, X: Any, device: Any = None) -> RowOutputs:
        has_parts = hasattr(self.estimator, "predict_uncertainty")
        return RowOutputs(
            X,
            log_proba=np.log(self.estimator.predict_proba(X).clip(1e-300)),
            energy=self.diffused.predict_uncertainty(X).total,
            uncertainty=self.estimator.predict_uncertainty(X) if has_parts else None,
        )


def node_ids(X: Any) -> NDArray[np.int64]:
    """Convert node ids or a Boolean mask to node ids."""
    ids = np.asarray(X)
    return np.flatnonzero(ids) if ids.dtype == bool else ids.ravel()


def check_held_out_nodes(estimator: Any, nodes: NDArray[np.int64], *, given: bool) -> None:
    """Raise ValueError for held-out nodes that are repeated or were used for training.

    Warn if the estimator does not know which nodes of its graph were used for training. `given`
    states whether the user passed the held-out nodes.
    """
    distinct, count = np.unique(nodes, return_counts=True)
    repeated = distinct[count > 1]
    if len(repeated):
        raise ValueError(
            f"{len(repeated)} of the held-out nodes occur more than once, for example "
            f"{repeated[0]}. Pass each node once."
        )
    seen = getattr(estimator, "labelled_nodes_", ())
    if seen is None:  # `estimator` is a copy for a graph that differs from the training graph
        warn_user(
            "The estimator was trained on another graph, so it cannot be checked whether held-out "
            "nodes were used for training. If they were, the actual false alarm rate is higher "
            "than `false_alarm_rate`. Pass nodes that do not correspond to any training nodes "
            "as `X_held_out`."
        )
        return
    used = np.intersect1d(nodes, seen)
    if len(used):
        origin = (
            f"{len(used)} of the held-out nodes were"
            if given
            else f"No `X_held_out` was given, so {len(nodes)} of the nodes in `X` were held out; "
            f"{len(used)} of the held-out nodes were"
        )
        raise ValueError(
            f"{origin} used for training or early stopping (the first is node {used[0]:.0f}), so "
            "their uncertainty is lower than that of new nodes. Pass other nodes as `X_held_out`."
        )
