"""Methods of the published comparison by name, to be fitted on your own graph."""

from __future__ import annotations

from typing import Any, Literal

from sklearn.utils import check_random_state

from benchmarks.evidential_methods.dirichlet_networks import EvidentialGNN
from benchmarks.evidential_methods.gkde import GKDE_SETTINGS, KernelDirichletGNN
from benchmarks.evidential_methods.gpn import GPN_SETTINGS, GraphPosteriorNetwork
from benchmarks.evidential_methods.logits import LogitUncertainty
from skuq import EvidentialProbe
from skuq.evidential import EvidenceLoss, GraphClassifier, NetworkHead, as_node_graph


def comparison_methods(
    graph: Any,
    estimator: Any = None,
    *,
    architecture: Literal["gcn", "gat"] = "gcn",
    learning_rate: float = 0.01,
    max_epochs: int | None = None,
    device: str = "auto",
    random_state: Any = None,
) -> dict[str, Any]:
    """Build the methods compared by Yu et al., AISTATS 2025, as unfitted estimators.

    Fit each method on the same labelled nodes. The paper's MC dropout and ensemble are not
    included: use `skuq.MCDropoutClassifier` and `skuq.DeepEnsembleClassifier` around a
    `GraphClassifier`, with ``setting="max-score"``.

    Parameters
    ----------
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph
        The graph, in a form that `as_node_graph` accepts.
    estimator : object, default=None
        The pre-trained classifier, in a form that `EvidentialProbe` accepts. Pass a fitted
        classifier: otherwise each method that uses the classifier trains it again. None: a
        `GraphClassifier`.
    architecture : {"gcn", "gat"}, default="gcn"
        Architecture of graph networks that are trained here: convolutions, or attention with 8
        heads.
    learning_rate : float, default=0.01
        Learning rate of graph networks that are trained here, except "gpn", which needs a smaller
        learning rate.
    max_epochs : int, default=None
        Maximum number of epochs of every training run. None: each method's own default.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of all methods.

    Returns
    -------
    dict of str to estimator
        Scores of the logits of `estimator`: "entropy", "max-score", "energy", "gnnsafe" (smoothed
        energy), "energy-diffused" and "energy-similar" (energy with the probe's propagation
        "diffusion" and "similarity"). Probes of `estimator`: "epn-reg" (the default), "epn-similar"
        (with ``propagation="similarity"``), "epn-ice" (without the second regulariser), "epn"
        (without regularisers), and "epn-free" (with a learned layer and the paper's propagation of
        vacuity). Methods that train their own networks: "gpn", "gkde", and "egnn" with the
        propagated variants "egnn-vacuity", "egnn-evidence" and "egnn-both".
    """
    graph = as_node_graph(graph)
    # All methods share one seed. If `estimator` is not fitted, all of them therefore train the same
    # network.
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    common: dict[str, Any] = {"device": device, "random_state": seed}
    length: dict[str, Any] = {} if max_epochs is None else {"max_epochs": max_epochs}
    network = {"architecture": architecture, "learning_rate": learning_rate, **length, **common}
    if estimator is None:
        estimator = GraphClassifier(graph, **network)
    read = {"estimator": estimator, "graph": graph, **common}

    def egnn(propagation: str | None = None) -> EvidentialGNN:
        return EvidentialGNN(GraphClassifier(graph, **network), propagation=propagation)

    return {
        "entropy": LogitUncertainty(method="entropy", **read),
        "max-score": LogitUncertainty(method="max-score", **read),
        "energy": LogitUncertainty(method="energy", **read),
        "gnnsafe": LogitUncertainty(method="energy", propagation="smoothing", **read),
        "energy-diffused": LogitUncertainty(method="energy", propagation="diffusion", **read),
        "energy-similar": LogitUncertainty(method="energy", propagation="similarity", **read),
        "gpn": GraphPosteriorNetwork(
            GraphClassifier(graph, **{**GPN_SETTINGS, **length, **common})
        ),
        "gkde": KernelDirichletGNN(GraphClassifier(graph, **{**GKDE_SETTINGS, **network})),
        "egnn": egnn(),
        "egnn-vacuity": egnn("vacuity"),
        "egnn-evidence": egnn("evidence"),
        "egnn-both": egnn("both"),
        "epn": EvidentialProbe(loss=EvidenceLoss(ice_weight=0.0, pcl_weight=0.0), **read),
        "epn-ice": EvidentialProbe(loss=EvidenceLoss(pcl_weight=0.0), **read),
        "epn-reg": EvidentialProbe(**read),
        "epn-similar": EvidentialProbe(propagation="similarity", **read),
        # The learned layer of the paper, which does not state the weights of the regularisers. With
        # the weights used here, classes left out of Planetoid's Cora and CiteSeer were detected
        # best.
        "epn-free": EvidentialProbe(
            head=NetworkHead(),
            loss=EvidenceLoss(ice_weight=1e-8, pcl_weight=1e-3),
            propagation="vacuity",
            max_epochs=300,
            **read,
        ),
    }
