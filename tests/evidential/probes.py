"""Probes with settings that are quick to fit and independent of the defaults."""

from dataclasses import fields

from skuq import EvidentialProbe
from skuq.evidential import EvidenceLoss, NetworkHead, NodeBatches

QUICK = {
    "propagation": None,
    "ice_weight": 1e-3,
    "pcl_weight": 1e-3,
    "learning_rate": 0.01,
    "max_epochs": 15,
    "random_state": 0,
}
PARTS = {"head": NetworkHead, "loss": EvidenceLoss, "batches": NodeBatches}


def new_probe(estimator=None, **settings):
    """Build a probe; parameters of its head, loss and batches are given by their own names."""
    settings = {**QUICK, **settings}
    for part, kind in PARTS.items():
        own = {field.name for field in fields(kind)} & settings.keys()
        own = {name: settings.pop(name) for name in own}
        if own and part not in settings:
            settings[part] = kind(**own)
    return EvidentialProbe(estimator, **{"head": NetworkHead(), **settings})
