"""Probes with settings that are quick to fit and do not depend on the defaults."""

from skuq import EvidentialProbe

QUICK = {
    "layer": -1,
    "propagation": None,
    "lambda_ice": 1e-3,
    "lambda_pcl": 1e-3,
    "learning_rate": 0.01,
    "max_epochs": 15,
    "random_state": 0,
}


def new_probe(model=None, **settings):
    return EvidentialProbe(model, **{**QUICK, **settings})
