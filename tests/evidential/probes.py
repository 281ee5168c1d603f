"""Probes with settings that are quick to fit and independent of the defaults."""

from skuq import EvidentialProbe

QUICK = {
    "head": "network",
    "propagation": None,
    "lambda_ice": 1e-3,
    "lambda_pcl": 1e-3,
    "learning_rate": 0.01,
    "max_epochs": 15,
    "random_state": 0,
}


def new_probe(estimator=None, **settings):
    return EvidentialProbe(estimator, **{**QUICK, **settings})
