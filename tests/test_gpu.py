"""Every estimator on a GPU beside the CPU: equal results, and fitted on one, used on the other.

    pytest -m gpu tests/test_gpu.py

Skipped where there is no CUDA device. ``SKUQ_GPU_DEVICE=cpu`` runs the same comparisons without
one, which shows that the tests themselves hold.
"""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from skuq import (
    AnchoredQuantileRegressor,
    DeepEnsembleClassifier,
    EvidentialProbe,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    MirageFineTuner,
    MirageRegressor,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    RobustGPC,
    SGMCMCClassifier,
)
from skuq.quam import PoolSearch

DEVICE = os.environ.get("SKUQ_GPU_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
    ),
]
# Networks compute in float64: what differs is the order of sums, grown by steps of training.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def upper_half(X):
    first = np.asarray(X)[:, 0]
    return first > np.median(first)


ESTIMATORS = {
    "quam": QUAMClassifier(search=PoolSearch(n_steps=10), random_state=0),
    "quam-last": QUAMClassifier(search=PoolSearch(n_steps=10, parameters="last"), random_state=0),
    "quam-dirac": QUAMClassifier(
        search=PoolSearch(n_steps=10, targeted=False),
        mixture="dirac",
        setting="expected",
        random_state=0,
    ),
    "quam-regressor": QUAMRegressor(search=PoolSearch(n_steps=10), random_state=0),
    "quam-regressor-learned": QUAMRegressor(
        search=PoolSearch(n_steps=10), noise="learned", attack="divergence", random_state=0
    ),
    "reference": ReferenceClassifier(random_state=0),
    "distance": FeatureDistanceClassifier(random_state=0),
    "ensemble": DeepEnsembleClassifier(n_members=2, random_state=0),
    "dropout": MCDropoutClassifier(n_samples=10, random_state=0),
    "laplace": LaplaceClassifier(random_state=0),
    "sgmcmc": SGMCMCClassifier(n_chains=2, n_samples=2, steps_per_sample=5, random_state=0),
    "probe": EvidentialProbe(max_epochs=20, random_state=0),
    "mirage": MirageFineTuner(None, region=upper_half, epsilon=0.5, max_epochs=10, random_state=0),
    "mirage-regressor": MirageRegressor(region=upper_half, max_epochs=10, random_state=0),
    "anchored": AnchoredQuantileRegressor(max_epochs=20, random_state=0),
    "gpc": RobustGPC(max_iter=3, random_state=0),
}
REGRESSORS = {"quam-regressor", "quam-regressor-learned", "mirage-regressor", "anchored"}
# Training draws dropout masks on the device: two devices drop different units.
OTHER_STREAM = {"dropout", "sgmcmc"}


@pytest.fixture(scope="module", params=ESTIMATORS)
def name(request):
    if request.param == "sgmcmc" and find_spec("posteriors") is None:
        pytest.skip("needs the extra sgmcmc")
    return request.param


def data_of(name):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    return X, X[:, 0] + 0.1 * y if name in REGRESSORS else y


def assert_equal(found, expected):
    for part in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(
            getattr(found, part), getattr(expected, part), **CLOSE, err_msg=part
        )


@pytest.fixture(scope="module")
def on_cpu(name):
    return clone(ESTIMATORS[name]).set_params(device="cpu").fit(*data_of(name))


@pytest.fixture(scope="module")
def on_gpu(name):
    return clone(ESTIMATORS[name]).set_params(device=DEVICE).fit(*data_of(name))


def test_a_model_fitted_on_the_cpu_is_as_uncertain_on_the_gpu(name, on_cpu):
    X, _ = data_of(name)
    expected = on_cpu.predict_uncertainty(X[::10])
    moved = pickle.loads(pickle.dumps(on_cpu)).set_params(device=DEVICE)
    assert_equal(moved.predict_uncertainty(X[::10]), expected)


def test_fitting_on_the_gpu_gives_what_the_cpu_gives(name, on_cpu, on_gpu):
    if name in OTHER_STREAM:
        pytest.skip("dropout masks and noise of chains are drawn on the device")
    X, _ = data_of(name)
    assert_equal(on_gpu.predict_uncertainty(X[::10]), on_cpu.predict_uncertainty(X[::10]))


def test_a_model_fitted_on_the_gpu_can_be_moved_to_the_cpu(name, on_gpu):
    X, _ = data_of(name)
    expected = on_gpu.predict_uncertainty(X[::10])
    moved = pickle.loads(pickle.dumps(on_gpu)).set_params(device="cpu")
    assert_equal(moved.predict_uncertainty(X[::10]), expected)


def test_a_model_fitted_on_the_gpu_loads_where_there_is_none(name, on_gpu, tmp_path):
    X, _ = data_of(name)
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(clone(on_gpu).set_params(device="auto").fit(*data_of(name))))
    code = (
        "import pickle, sys, numpy as np, torch\n"
        "assert not torch.cuda.is_available()\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "u = model.predict_uncertainty(np.load(sys.argv[2]))\n"
        "np.save(sys.argv[3], np.stack(u))\n"
    )
    rows, out = tmp_path / "X.npy", tmp_path / "u.npy"
    np.save(rows, X[::10])
    # `upper_half` is pickled by its name in this module.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code, path, rows, out],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = np.stack(on_gpu.predict_uncertainty(X[::10]))
    np.testing.assert_allclose(np.load(out), expected, **CLOSE)


def test_certificates_are_the_same_on_both_devices():
    X, y = load_iris(return_X_y=True)
    X, y = scale(X)[:100, :2], y[:100]
    bounds = [
        RobustGPC(max_iter=3, device=device, random_state=0)
        .fit(X, y)
        .predict_proba_bounds(X[::20], radius=0.1)
        for device in ("cpu", DEVICE)
    ]
    # Both are sound; how far they are refined may differ by rounding.
    np.testing.assert_allclose(bounds[0].min_lower, bounds[1].min_lower, atol=1e-3)
    np.testing.assert_allclose(bounds[0].max_upper, bounds[1].max_upper, atol=1e-3)


def test_an_agent_trained_on_the_gpu_acts_on_the_cpu():
    pytest.importorskip("stable_baselines3")
    from skuq import UADQN

    agent = UADQN("CliffWind-v0", total_timesteps=300, device=DEVICE, random_state=0)
    agent.fit(np.arange(3))
    observations = np.eye(agent.observation_space_.shape[0], dtype=np.float32)[:5]
    expected = agent.predict_uncertainty(observations)
    moved = pickle.loads(pickle.dumps(agent)).set_params(device="cpu")
    assert_equal(moved.predict_uncertainty(observations), expected)


def test_a_graph_network_on_the_gpu_gives_what_the_cpu_gives():
    from skuq.datasets import make_node_classes
    from skuq.evidential import GraphClassifier

    data = make_node_classes(150, n_classes=3, n_features=6, random_state=0)
    nodes = np.arange(60)
    found = [
        GraphClassifier(
            data.graph, hidden_sizes=(8,), dropout=0.0, max_epochs=20, device=device, random_state=0
        )
        .fit(nodes, data.labels[nodes])
        .predict_proba(np.arange(150))
        for device in ("cpu", DEVICE)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
