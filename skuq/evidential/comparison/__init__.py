"""Baselines for evidential probes, with the same interface as the probes."""

from skuq.evidential.comparison._dirichlet_networks import EvidentialGNN
from skuq.evidential.comparison._gkde import KernelDirichletGNN
from skuq.evidential.comparison._gpn import GraphPosteriorNetwork
from skuq.evidential.comparison._logits import LogitUncertainty
from skuq.evidential.comparison._methods import comparison_methods

__all__ = [
    "EvidentialGNN",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitUncertainty",
    "comparison_methods",
]
