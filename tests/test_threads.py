"""Threads that share a fitted estimator, as in a web service, get the predictions of one thread."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from torch import nn

import skuq
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, NetworkHead
from skuq.models import ModuleClassifier, look_at
from skuq.quam import PointwiseSearch, PoolSearch
from tests.test_common import CONFIGURATIONS, UpperHalf

N_THREADS = 4
N_ROWS = 6
METHODS = ("predict_uncertainty", "predict_proba", "p_values", "predict")


class Residual(nn.Module):
    """A network that is not a chain: its features are read with hooks."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 8)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(self.dropout(x + self.second(x).tanh()))


def module(kind=Residual):
    torch.manual_seed(0)
    return kind().double().eval()


def convolutional():
    layers = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)
    return nn.Sequential(*layers)


SHORT = {"n_chains": 2, "n_samples": 2, "steps_per_sample": 2}
GIVEN = [
    ModuleClassifier(module()),
    skuq.ReferenceClassifier(module()),
    skuq.DeepEnsembleClassifier(members=[module(), module(convolutional)], setting="selected"),
    skuq.MCDropoutClassifier(module(), n_samples=5, setting="selected"),
    skuq.LaplaceClassifier(module()),
    skuq.FeatureDistanceClassifier(module()),
    skuq.EvidentialProbe(module(), head=NetworkHead(layer=-2), max_epochs=2),
    skuq.EvidentialProbe(module(), head=NetworkHead(layer="second"), max_epochs=2),
    skuq.MirageFineTuner(module(), region=UpperHalf(), epsilon=0.5, max_epochs=2),
    *(
        skuq.QUAMClassifier(module(kind), setting="selected", search=search)
        for kind in (Residual, convolutional)
        for search in (PoolSearch(n_steps=3), PoolSearch(n_steps=3, parameters="last"))
    ),
    skuq.QUAMClassifier(module(convolutional), search=PointwiseSearch(n_steps=2)),
    skuq.OODDetector(module()),
    skuq.OODDetector(module(convolutional)),
    skuq.OODDetector(skuq.QUAMClassifier(search=PoolSearch(n_steps=3))),
]
if find_spec("posteriors") is not None:
    GIVEN += [
        skuq.SGMCMCClassifier(module(), parameters=parameters, setting="selected", **SHORT)
        for parameters in ("last", "all")
    ]

KINDS = set(map(type, GIVEN))
DEFAULT = [  # of the other estimators with networks
    each
    for each in chain.from_iterable(CONFIGURATIONS)
    if not type(each).__module__.startswith(("skuq.gpc.", "skuq.audit."))
    and look_at(getattr(each, "estimator", None)).is_network
    and type(each) not in KINDS
]

pytestmark = [pytest.mark.usefixtures("short_training"), pytest.mark.filterwarnings("ignore")]


@contextmanager
def many_switches():
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def numbers(predicted):
    return np.stack(predicted) if isinstance(predicted, tuple) else predicted


def calls_of(estimator, rows):
    calls = [
        partial(getattr(estimator, method), row)
        for row in rows
        for method in METHODS
        if hasattr(estimator, method)
    ]
    assert calls
    return calls


def assert_same_in_threads(estimator, rows):
    """Threads predict as one thread, also with a copy, as a new process would get it."""
    alone = [numbers(call()) for call in calls_of(estimator, rows)]
    for each in (estimator, pickle.loads(pickle.dumps(copy.deepcopy(estimator)))):
        with many_switches(), ThreadPoolExecutor(N_THREADS) as pool:
            together = list(pool.map(lambda call: numbers(call()), calls_of(each, rows)))
        for found, expected in zip(together, alone, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(
    "estimator", [*DEFAULT, *GIVEN], ids=lambda each: "".join(str(each).split())
)
def test_threads_predict_as_one_thread(estimator):
    X, y = load_iris(return_X_y=True)
    X, y = scale(X)[::3], y[::3]
    if not is_classifier(estimator) and not isinstance(estimator, skuq.OODDetector):
        y = X[:, 0] + 0.1 * y
    assert_same_in_threads(clone(estimator).fit(X, y), X[:N_ROWS, None])


@pytest.mark.parametrize(
    "make",
    [
        lambda model, graph: model,
        lambda model, graph: skuq.EvidentialProbe(model, graph=graph, max_epochs=2),
        lambda model, graph: skuq.MCDropoutClassifier(model, n_samples=3),
        lambda model, graph: skuq.OODDetector(model),
    ],
    ids=["classifier", "probe", "dropout", "detector"],
)
def test_threads_predict_as_one_thread_on_nodes(make):
    data = make_node_classes(100, random_state=0)
    model = GraphClassifier(data.graph, max_epochs=2, random_state=0)
    fitted = make(model, data.graph).fit(np.arange(60), data.labels[:60])
    assert_same_in_threads(fitted, np.arange(60, 60 + N_ROWS)[:, None])
