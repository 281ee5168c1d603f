"""Threads that share a fitted estimator, as in a web service, get the predictions of one thread."""

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain, product

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
from tests.models.around import AROUND, around
from tests.test_common import CONFIGURATIONS
from tests.written import Written

N_THREADS = 4
N_ROWS = 6
METHODS = ("predict_uncertainty", "predict_proba", "p_values", "predict")


def forward(self, x):
    x = self.first(x).relu()
    return self.last(self.dropout(x + self.second(x).tanh()))


torch.manual_seed(0)
LAYERS = {"first": nn.Linear(4, 8), "second": nn.Linear(8, 8), "last": nn.Linear(8, 3)}
RESIDUAL = Written(forward, **LAYERS, dropout=nn.Dropout(0.2)).double().eval()
CONVOLUTIONS = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten()
CONVOLUTIONAL = nn.Sequential(*CONVOLUTIONS, nn.Linear(9, 3)).double().eval()
LAST = PoolSearch(n_steps=3, parameters="last")
GIVEN = [
    ModuleClassifier(RESIDUAL),
    *(around(kind, RESIDUAL) for kind in sorted({*AROUND} - {"auditor", "chains", "ensemble"})),
    skuq.DeepEnsembleClassifier(members=[RESIDUAL, CONVOLUTIONAL], setting="selected"),
    skuq.EvidentialProbe(RESIDUAL, head=NetworkHead(layer="second"), max_epochs=2),
    *(
        skuq.QUAMClassifier(module, setting="selected", search=search)
        for module in (RESIDUAL, CONVOLUTIONAL)
        for search in (PoolSearch(n_steps=3), LAST)
    ),
    skuq.QUAMClassifier(CONVOLUTIONAL, search=PointwiseSearch(n_steps=2)),
    skuq.OODDetector(CONVOLUTIONAL),
    skuq.OODDetector(skuq.QUAMClassifier(search=PoolSearch(n_steps=3))),
]
if find_spec("posteriors") is not None:
    GIVEN += [around("chains", RESIDUAL).set_params(parameters=each) for each in ("last", "all")]

KINDS = set(map(type, GIVEN))
DEFAULT = [  # of the other estimators with networks
    each
    for each in chain.from_iterable(CONFIGURATIONS)
    if not type(each).__module__.startswith(("skuq.gpc.", "skuq.audit."))
    and look_at(getattr(each, "estimator", None)).is_network
    and type(each) not in KINDS
]

pytestmark = [pytest.mark.usefixtures("short_training"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def many_switches():
    """Threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def assert_same_in_threads(estimator, rows):
    """Threads predict as one thread, also with a copy, as a new process would get it."""
    calls = [*product([name for name in METHODS if hasattr(estimator, name)], rows)]
    assert calls
    alone = [getattr(estimator, method)(row) for method, row in calls]
    for each in (estimator, pickle.loads(pickle.dumps(copy.deepcopy(estimator)))):
        with ThreadPoolExecutor(N_THREADS) as pool:
            together = pool.map(lambda call, each=each: getattr(each, call[0])(call[1]), calls)
        for found, expected in zip(together, alone, strict=True):
            np.testing.assert_allclose(
                np.stack(found), np.stack(expected), rtol=1e-5, atol=1e-7, equal_nan=True
            )


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that fork")
def test_a_forked_child_answers_as_its_parent_does():
    code = """
import os, numpy as np, torch, skuq
torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(300, 3))
model = skuq.RobustGPC().fit(X, X[:, 0] > 0)
before, pid = model.predict_proba(X), os.fork()
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os._exit(0 if np.array_equal(model.predict_proba(X), before) else 1)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
