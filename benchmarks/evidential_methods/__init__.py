"""Methods that Yu et al., AISTATS 2025, compare with the evidential probe."""

from benchmarks.evidential_methods.dirichlet_networks import EvidentialGNN
from benchmarks.evidential_methods.gkde import KernelDirichletGNN
from benchmarks.evidential_methods.gpn import GraphPosteriorNetwork
from benchmarks.evidential_methods.logits import LogitUncertainty
from benchmarks.evidential_methods.methods import comparison_methods

__all__ = [
    "EvidentialGNN",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitUncertainty",
    "comparison_methods",
]
