"""Estimators around a model, with little to compute."""

import pytest
from sklearn.base import clone

import skuq
from skuq.evidential import NetworkHead
from skuq.quam import PointwiseSearch, PoolSearch
from tests.test_common import UpperHalf

SHORT = {"n_chains": 1, "n_samples": 2, "steps_per_sample": 2, "setting": "selected"}
EVERY_POINT = PointwiseSearch(n_steps=2, parameters="all")
AROUND = {
    "pool": skuq.QUAMClassifier(search=PoolSearch(n_steps=2)),
    "pool, all": skuq.QUAMClassifier(search=PoolSearch(n_steps=3, parameters="all")),
    "points": skuq.QUAMClassifier(search=PointwiseSearch(n_steps=3, parameters="last")),
    "probe": skuq.EvidentialProbe(None, max_epochs=2),
    "auditor": skuq.CalibrationAuditor(None),
    "tuner": skuq.MirageFineTuner(None, region=UpperHalf(), max_epochs=1),
    "reference": skuq.ReferenceClassifier(),
    "distance": skuq.FeatureDistanceClassifier(n_neighbors=3),
    "Laplace": skuq.LaplaceClassifier(n_samples=5, setting="selected"),
    "dropout": skuq.MCDropoutClassifier(n_samples=3, setting="selected"),
    "ensemble": skuq.DeepEnsembleClassifier(),
    "chains": skuq.SGMCMCClassifier(parameters="last", **SHORT),
    "detector": skuq.OODDetector(None),
    "points, all": skuq.QUAMClassifier(search=EVERY_POINT, n_targets=1),
    "probe of hidden": skuq.EvidentialProbe(None, head=NetworkHead(layer=-2), max_epochs=2),
}


def around(kind, model):
    if kind == "chains":
        pytest.importorskip("posteriors")
    given = {"members": [model, model]} if kind == "ensemble" else {"estimator": model}
    seed = {} if kind == "auditor" else {"random_state": 0}
    return clone(AROUND[kind]).set_params(**given, **seed)
