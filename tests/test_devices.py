"""Estimators on a GPU, or a pretended one: copies, waits, pickles, and the default device.

pytest -m gpu tests/test_devices.py
PRETEND_DEVICE=mps pytest -m gpu tests/test_devices.py
"""

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from torch import nn

import skuq
from skuq._networks import device_with_memory
from skuq.evidential import NetworkHead
from skuq.quam import PoolSearch

DEVICE = "cuda" if torch.cuda.is_available() else "mps"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "mps" and not torch.backends.mps.is_available(), reason="needs a GPU"
    ),
    # torch.jit, which a dependency of the chains calls; nothing else may warn.
    pytest.mark.filterwarnings(
        "error",
        "ignore:.*torch.jit.script:DeprecationWarning",
        "ignore:.*worse than guessing",  # given networks are not trained
    ),
]
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="needs CUDA")
# MPS computes in float32, and training makes what that leaves out larger.
CLOSE = {"rtol": 1e-6, "atol": 1e-9} if DEVICE == "cuda" else {"rtol": 1e-2, "atol": 1e-3}


def upper_half(X):
    first = np.asarray(X)[:, 0]
    return first > np.median(first)


def network(*, dropout=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.ReLU(), *[nn.Dropout(dropout)] * (dropout > 0), nn.Linear(8, 3)]
    with torch.device("cpu"):
        return nn.Sequential(*layers).to(dtype).eval()


ESTIMATORS = {
    "reference": skuq.ReferenceClassifier(random_state=0),
    "distance": skuq.FeatureDistanceClassifier(random_state=0),
    "mahalanobis": skuq.FeatureDistanceClassifier(
        layer="last", distance="mahalanobis", random_state=0
    ),
    "ensemble": skuq.DeepEnsembleClassifier(n_members=2, random_state=0),
    "ensemble-selected": skuq.DeepEnsembleClassifier(
        n_members=2, setting="selected", random_state=0
    ),
    "dropout": skuq.MCDropoutClassifier(n_samples=10, random_state=0),
    "laplace": skuq.LaplaceClassifier(random_state=0),
    "laplace-selected": skuq.LaplaceClassifier(setting="selected", random_state=0),
    "sgmcmc": skuq.SGMCMCClassifier(n_chains=2, n_samples=2, steps_per_sample=5, random_state=0),
    "sgmcmc-last": skuq.SGMCMCClassifier(
        parameters="last", n_chains=2, n_samples=2, steps_per_sample=5, n_cycles=1, random_state=0
    ),
    "probe": skuq.EvidentialProbe(max_epochs=10, random_state=0),
    "probe-network": skuq.EvidentialProbe(
        head=NetworkHead(layer=-2, hidden_sizes=(4,)), max_epochs=10, random_state=0
    ),
    "mirage": skuq.MirageFineTuner(
        None, region=upper_half, epsilon=0.5, max_epochs=4, random_state=0
    ),
    "mirage-regressor": skuq.MirageRegressor(region=upper_half, max_epochs=4, random_state=0),
    "anchored": skuq.AnchoredQuantileRegressor(max_epochs=10, random_state=0),
    "gpc": skuq.RobustGPC(max_iter=3, random_state=0),
    "gpr": skuq.RobustGPRegressor(max_iter=3, random_state=0),
    "quam": skuq.QUAMClassifier(search=PoolSearch(n_steps=5), random_state=0),
}
REGRESSORS = {"mirage-regressor", "anchored", "gpr"}
# Heads are trained in float32. With weights of their own, an H100 and a CPU differ by up to 9e-6
# after ten epochs.
CLOSE_TRAINED = {"probe-network": CLOSE if DEVICE == "mps" else {"rtol": 2e-5, "atol": 1e-9}}
# Chains and dropout while training draw from the generator of the device.
OTHER_STREAM = {"dropout", "sgmcmc", "sgmcmc-last"}


@pytest.fixture(params=ESTIMATORS)
def name(request):
    if "sgmcmc" in request.param and find_spec("posteriors") is None:
        pytest.skip("needs the extra sgmcmc")
    if request.param in ("gpc", "gpr") and DEVICE == "mps":
        pytest.skip("certificates need float64")
    return request.param


@pytest.fixture(autouse=True)
def short(short_training):
    """Default networks are trained for a quarter of their epochs."""


@pytest.fixture
def default_device():
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)


def data_of(name):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    return X, X[:, 0] + 0.1 * y if name in REGRESSORS else y


def made(name, device):
    return clone(ESTIMATORS[name]).set_params(device=device)


def assert_equal(found, expected, close=CLOSE):
    for part in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(
            getattr(found, part), getattr(expected, part), **close, err_msg=part
        )
        assert getattr(found, part).dtype == np.float64


def test_models_and_predictions_do_not_depend_on_the_device(name):
    X, y = data_of(name)
    fitted = made(name, "cpu").fit(X, y)
    expected, labels = fitted.predict_uncertainty(X[::10]), fitted.predict(X[::10])
    fitted.set_params(device=DEVICE)
    assert_equal(fitted.predict_uncertainty(X[::10]), expected)
    np.testing.assert_allclose(fitted.predict(X[::10]), labels, **CLOSE)
    found = made(name, DEVICE).fit(X, y)
    if name not in OTHER_STREAM:
        assert_equal(found.predict_uncertainty(X[::10]), expected, CLOSE_TRAINED.get(name, CLOSE))
    # What is fitted lies on the CPU, in the type of the network.
    if hasattr(found, "model_"):
        parameters = found.model_.module.parameters()
        assert {(p.device.type, p.dtype) for p in parameters} == {("cpu", torch.float64)}


def losses_on_device(watched, estimator, name, n_epochs):
    with watched() as report:
        estimator.set_params(max_epochs=n_epochs, device=DEVICE).fit(*data_of(name))
    return report.count


@pytest.mark.parametrize(
    ("name", "uploads"),
    [("probe", 0), ("probe-network", 0), ("mirage", 1), ("mirage-regressor", 1), ("anchored", 1)],
)
def test_an_epoch_uploads_no_data_and_waits_once(watched, name, uploads):
    # Batches are drawn on the CPU, all of an epoch at once; losses are read at its end.
    few, many = (losses_on_device(watched, clone(ESTIMATORS[name]), name, n) for n in (4, 6))
    assert many["up"] - few["up"] == 2 * uploads
    assert many["sync"] - few["sync"] == 0
    assert many["down"] - few["down"] == 2


def test_losses_are_numbers_for_callbacks_and_history():
    from skorch.callbacks import Callback

    seen = []

    class Watch(Callback):
        def on_batch_end(self, net, **kwargs):
            seen.append(float(net.history[-1, "batches", -1, "train_loss"]))

    probe = made("probe", DEVICE).set_params(callbacks=[Watch()], max_epochs=3)
    probe.fit(*data_of("probe"))
    read = [epoch["batches"][0]["train_loss"] for epoch in probe.history_]
    assert all(type(loss) is float for loss in read)
    assert read == pytest.approx(seen)


def test_data_too_large_for_the_device_stay_on_the_cpu(monkeypatch, watched):
    expected = made("mirage", DEVICE).fit(*data_of("mirage"))
    monkeypatch.setitem(device_with_memory.__globals__, "free_memory", lambda device: 1000)
    with watched() as report:
        found = made("mirage", DEVICE).fit(*data_of("mirage"))
    assert report.count["up"] > 2 * 4 * 3  # inputs and targets of each batch
    X = data_of("mirage")[0]
    assert_equal(found.predict_uncertainty(X[::10]), expected.predict_uncertainty(X[::10]))


@needs_cuda
@pytest.mark.parametrize(("free", "expected"), [(2**30, DEVICE), (1000, "cpu")])
def test_matrices_are_decomposed_where_there_is_memory_for_them(monkeypatch, free, expected):
    module = sys.modules[skuq.LaplaceClassifier.__module__]
    devices, original = [], module.last_layer_posterior

    def posterior(weight, bias, curvature, prior_precision):
        devices.append(curvature.device.type)
        return original(weight, bias, curvature, prior_precision)

    monkeypatch.setattr(module, "last_layer_posterior", posterior)
    monkeypatch.setitem(device_with_memory.__globals__, "free_memory", lambda device: free)
    X, y = data_of("laplace")
    found = made("laplace", DEVICE).fit(X, y)
    assert devices == [expected]
    assert found.posterior_.factor.device.type == "cpu"
    on_cpu = made("laplace", "cpu").fit(X, y)
    assert_equal(found.predict_uncertainty(X[::10]), on_cpu.predict_uncertainty(X[::10]))


@pytest.mark.parametrize("name", ["laplace", "ensemble", "dropout", "sgmcmc"])
def test_weights_go_to_the_device_once_however_many_batches(watched, name):
    if name == "sgmcmc" and find_spec("posteriors") is None:
        pytest.skip("needs the extra sgmcmc")
    X, y = data_of(name)
    fitted = made(name, DEVICE).fit(X, y)
    counts = []
    for batch_size in (75, 15):  # two batches, ten batches
        fitted.set_params(batch_size=batch_size).predict_uncertainty(X)
        with watched() as report:
            fitted.predict_uncertainty(X)
        counts.append(report.count)
    more = {kind: counts[1][kind] - counts[0][kind] for kind in ("up", "down", "sync")}
    assert more == {"up": 8, "down": 8, "sync": 0}  # rows of each batch, and its results


@needs_cuda
def test_a_gpu_is_waited_for_few_times_while_bounds_are_refined(watched):
    X, y = data_of("gpc")
    X, y = X[:100, :2], y[:100]
    on_cpu = skuq.RobustGPC(max_iter=3, device="cpu", random_state=0).fit(X, y)
    expected = on_cpu.predict_proba_bounds(X[::20], radius=0.1)
    on_gpu = copy.deepcopy(on_cpu).set_params(device=DEVICE)
    with watched() as report:
        found = on_gpu.predict_proba_bounds(X[::20], radius=0.1)
    assert report.count["sync"] + report.count["down"] <= 15
    for part in ("min_lower", "min_upper", "max_lower", "max_upper"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), atol=1e-9)


@pytest.mark.parametrize("likelihood", ["probit", "softmax"])
@needs_cuda
def test_bounds_for_three_classes_are_those_of_the_cpu(likelihood):
    X, y = data_of("gpc")
    X, y = (X[:, :2], y) if likelihood == "softmax" else (X[50:, :2], y[50:])
    model = skuq.RobustGPC(max_iter=3, likelihood=likelihood, device="cpu", random_state=0).fit(
        X, y
    )
    for norm in ("linf", "l2", "l1"):
        expected = model.set_params(device="cpu").certify(X[::30], radius=0.1, norm=norm)
        found = model.set_params(device=DEVICE).certify(X[::30], radius=0.1, norm=norm)
        np.testing.assert_array_equal(found.status, expected.status)


def test_certificates_refuse_mps():
    with pytest.raises(ValueError, match="float64"):
        skuq.RobustGPC(device="mps").fit(*data_of("gpc"))


# Loads all models in one process, which takes long to start; prints their device and warnings.
LOADED = """
import json, pickle, sys, warnings, numpy as np, torch
assert not torch.cuda.is_available()
cases, X, out = sys.argv[1:]
with open(cases, "rb") as file:
    cases = pickle.load(file)
X, found = np.load(X), {}
for name, pickled in cases.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = pickle.loads(pickled)
        parts = [part.tolist() for part in model.predict_uncertainty(X).parts]
    said = [str(each.message) for each in said if each.category is not DeprecationWarning]
    found[name] = parts, model.device, said
with open(out, "w") as file:
    json.dump(found, file)
"""


def given_models():
    """Models that hold networks on the device."""
    from skorch import NeuralNetClassifier

    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    skorch = {"criterion": nn.CrossEntropyLoss, "max_epochs": 2, "verbose": 0}
    module = network(dtype=torch.float32).to(DEVICE)
    net = NeuralNetClassifier(network(dtype=torch.float32), device=DEVICE, **skorch).fit(X, y)
    pipeline = make_pipeline(StandardScaler(), net).fit(X, y)
    options = {"max_epochs": 2, "random_state": 0, "device": "auto"}
    members = [module, network(dtype=torch.float32)]
    models = {
        "module": skuq.EvidentialProbe(module, **options),
        "frozen": skuq.EvidentialProbe(FrozenEstimator(net), **options),
        "pipeline": skuq.EvidentialProbe(FrozenEstimator(pipeline), **options),
        "members": skuq.DeepEnsembleClassifier(members=members, device="auto"),
    }
    return {name: model.fit(X, y) for name, model in models.items()}


def test_what_was_fitted_on_a_gpu_is_used_where_there_is_none(tmp_path, short_training):
    X, y = data_of("probe")
    models = given_models()
    for name in ("laplace", "probe", "anchored"):
        models[f"fitted {name}"] = made(name, DEVICE).fit(X, y)
    if DEVICE == "mps":  # of which skorch cannot load a trained net elsewhere
        del models["frozen"], models["pipeline"]
    cases, rows, out = (tmp_path / name for name in ("models.pkl", "X.npy", "found.json"))
    cases.write_bytes(pickle.dumps({name: pickle.dumps(each) for name, each in models.items()}))
    np.save(rows, X[::10].astype(np.float32))
    path = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {key: v for key, v in os.environ.items() if key != "PRETEND_DEVICE"} | path
    command = [sys.executable, "-c", LOADED, cases, rows, out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, (parts, device, said) in json.loads(out.read_text(encoding="utf-8")).items():
        expected = models[name].predict_uncertainty(X[::10].astype(np.float32)).parts
        np.testing.assert_allclose(parts, expected, rtol=1e-2, atol=1e-3, err_msg=name)
        assert device == "auto"
        if name.startswith("fitted"):
            assert len(said) == 1, said
            assert f"device='{DEVICE}'" in said[0]
        elif name in ("module", "members"):  # skorch says itself that its device is not here
            assert not said


def test_networks_that_were_given_stay_where_they_are():
    model = given_models()["module"]
    for same in (model, copy.copy(model), clone(model), copy.deepcopy(model)):
        assert next(same.estimator.parameters()).device.type == DEVICE
    assert copy.copy(model).estimator is model.estimator
    loaded = pickle.loads(pickle.dumps(model))
    assert next(loaded.estimator.parameters()).device.type == "cpu"


def test_an_estimator_that_is_not_fitted_keeps_its_device():
    twin = pickle.loads(pickle.dumps(skuq.ReferenceClassifier(device="cuda:7")))
    assert twin.device == "cuda:7"
    with pytest.raises(ValueError, match="cuda:7"):
        twin.fit(*data_of("reference"))


def test_the_default_device_of_the_user_changes_nothing(name, default_device):
    X, y = data_of(name)
    device = ["cpu", DEVICE, "auto"][[*ESTIMATORS].index(name) % 3]
    found = made(name, device).fit(X, y)
    uncertain, predicted = found.predict_uncertainty(X[::10]), found.predict(X[::10])
    torch.set_default_device(None)
    expected = made(name, device).fit(X, y)
    assert_equal(uncertain, expected.predict_uncertainty(X[::10]))
    np.testing.assert_allclose(predicted, expected.predict(X[::10]), **CLOSE)


def test_bounds_do_not_see_the_default_device(default_device):
    X, y = data_of("gpc")
    X, y = X[:100, :2], y[:100]
    model = skuq.RobustGPC(max_iter=3, device="cpu", random_state=0).fit(X, y)
    found = model.predict_proba_bounds(X[::20], radius=0.1)
    torch.set_default_device(None)
    expected = model.predict_proba_bounds(X[::20], radius=0.1)
    np.testing.assert_array_equal(found.min_lower, expected.min_lower)


@pytest.fixture
def agent():
    pytest.importorskip("stable_baselines3")
    from skuq import UADQN

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gymnasium
        return UADQN(
            "CliffWind-v0",
            total_timesteps=260,
            device=DEVICE,
            algorithm_kwargs={"policy_kwargs": {"net_arch": [8]}},
            random_state=0,
        ).fit(np.arange(3))


def test_an_agent_moves_to_where_it_is_set(agent):
    observations = np.eye(10, dtype=np.float32)
    expected = agent.predict_uncertainty(observations)
    assert agent.algorithm_.policy.device.type == DEVICE
    agent.set_params(device="cpu")
    found = agent.predict_uncertainty(observations)
    assert agent.algorithm_.policy.device.type == "cpu"
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-4)
    loaded = pickle.loads(pickle.dumps(agent)).set_params(device=DEVICE)
    np.testing.assert_allclose(loaded.predict_uncertainty(observations).total, expected.total)
    assert loaded.algorithm_.policy.device.type == DEVICE


def test_an_agent_that_was_moved_goes_on_learning(agent):
    agent.set_params(device="cpu").predict(np.eye(10, dtype=np.float32))
    agent.algorithm_.learn(40, reset_num_timesteps=False)
    agent.set_params(device=DEVICE).predict(np.eye(10, dtype=np.float32))
    agent.algorithm_.learn(40, reset_num_timesteps=False)
    states = agent.algorithm_.policy.optimizer.state.values()
    assert {state["exp_avg"].device.type for state in states} == {DEVICE}


@needs_cuda
def test_small_networks_of_agents_stay_on_the_cpu_by_auto(agent):
    small = clone(agent).set_params(device="auto").fit(np.arange(3))
    assert small.algorithm_.policy.device.type == "cpu"
    large = {"policy_kwargs": {"net_arch": [200, 200]}}
    large = clone(agent).set_params(device="auto", algorithm_kwargs=large).fit(np.arange(3))
    assert large.algorithm_.policy.device.type == "cuda"


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_an_agent_does_not_see_the_default_device(agent, device, default_device):
    agent.set_params(device=device)
    agent.fit(np.arange(3)).predict_uncertainty(np.eye(10, dtype=np.float32))
