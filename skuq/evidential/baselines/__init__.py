"""The methods that evidential probes are compared with, behind the same protocol."""

from skuq.evidential.baselines.dropout import MCDropout
from skuq.evidential.baselines.egnn import EvidentialGNN
from skuq.evidential.baselines.ensemble import GraphEnsemble
from skuq.evidential.baselines.gkde import KernelDirichletGNN
from skuq.evidential.baselines.gpn import GraphPosteriorNetwork
from skuq.evidential.baselines.logits import LogitUncertainty

__all__ = [
    "EvidentialGNN",
    "GraphEnsemble",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitUncertainty",
    "MCDropout",
]
