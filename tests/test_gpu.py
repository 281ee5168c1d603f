"""Estimators on a GPU, or a pretended one: the numbers of the CPU, few copies and waits, pickles.

python -m tests.pretend_device cuda mps
pytest -m gpu tests/test_gpu.py    # where there is a GPU
"""

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
from importlib.util import find_spec

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from torch import nn

import skuq
from skuq import OODDetector, QUAMClassifier, QUAMRegressor
from skuq._networks import device_with_memory, evaluate, resolve_device, within_memory
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, NetworkHead
from skuq.files import from_stored, to_stored
from skuq.quam import PointwiseSearch, PoolSearch
from tests.test_common import UpperHalf

DEVICE = "cuda" if torch.cuda.is_available() else "mps"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "mps" and not torch.backends.mps.is_available(), reason="needs a GPU"
    ),
    pytest.mark.usefixtures("short_training"),
    # torch.jit, which a dependency of the chains calls; nothing else may warn.
    pytest.mark.filterwarnings(
        "error",
        "ignore:.*torch.jit.script:DeprecationWarning",
        "ignore:.*worse than guessing",  # given networks are not trained
    ),
]
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="needs CUDA")
# MPS computes in float32, and steps of training and search make what that leaves out larger.
CLOSE = {"rtol": 1e-6, "atol": 1e-9} if DEVICE == "cuda" else {"rtol": 1e-2, "atol": 1e-3}
CLOSE_SEARCH = CLOSE if DEVICE == "cuda" else {"rtol": 2e-2, "atol": 2e-3}
# Heads are trained in float32. With weights of their own, an H100 and a CPU differ by up to 9e-6
# after ten epochs.
CLOSE_HEAD = {"rtol": 2e-5, "atol": 1e-9} if DEVICE == "cuda" else CLOSE
X, Y = load_iris(return_X_y=True)
X = scale(X)
NODES = make_node_classes(150, n_classes=3, n_features=6, random_state=0)

HEAD = NetworkHead(layer=-2, hidden_sizes=(4,))
CHAINS = {"n_chains": 2, "n_samples": 2, "steps_per_sample": 5}
HALF = {"region": UpperHalf(), "max_epochs": 4}
POOL = PoolSearch(n_steps=10)
IN_BATCHES = PoolSearch(n_steps=10, train_batch_size=40)
UNTARGETED = PoolSearch(n_steps=10, train_batch_size=40, targeted=False)
LAST_POINTS = PointwiseSearch(n_steps=5, parameters="last", train_batch_size=40)
ESTIMATORS = {
    "reference": skuq.ReferenceClassifier(),
    "distance": skuq.FeatureDistanceClassifier(),
    "mahalanobis": skuq.FeatureDistanceClassifier(layer="last", distance="mahalanobis"),
    "ensemble": skuq.DeepEnsembleClassifier(n_members=2),
    "ensemble-selected": skuq.DeepEnsembleClassifier(n_members=2, setting="selected"),
    "dropout": skuq.MCDropoutClassifier(n_samples=10),
    "laplace": skuq.LaplaceClassifier(),
    "laplace-selected": skuq.LaplaceClassifier(setting="selected"),
    "sgmcmc": skuq.SGMCMCClassifier(**CHAINS),
    "sgmcmc-last": skuq.SGMCMCClassifier(parameters="last", n_cycles=1, **CHAINS),
    "probe": skuq.EvidentialProbe(max_epochs=10),
    "probe-network": skuq.EvidentialProbe(head=HEAD, max_epochs=10),
    "mirage": skuq.MirageFineTuner(None, epsilon=0.5, **HALF),
    "mirage-regressor": skuq.MirageRegressor(**HALF),
    "anchored": skuq.AnchoredQuantileRegressor(max_epochs=10),
    "gpc": skuq.RobustGPC(max_iter=3),
    "gpr": skuq.RobustGPRegressor(max_iter=3),
    "pool": QUAMClassifier(search=POOL),
    "pool-batches": QUAMClassifier(search=IN_BATCHES),
    "pool-prior": QUAMClassifier(search=PoolSearch(n_steps=10, prior_precision=1.0)),
    "pool-last": QUAMClassifier(search=PoolSearch(n_steps=10, parameters="last")),
    "pool-untargeted": QUAMClassifier(search=UNTARGETED, mixture="dirac", setting="expected"),
    "points": QUAMClassifier(search=PointwiseSearch(n_steps=5)),
    "points-last": QUAMClassifier(search=LAST_POINTS, n_targets=2),
    "regressor": QUAMRegressor(search=IN_BATCHES),
    "regressor-learned": QUAMRegressor(search=POOL, noise="learned", attack="divergence"),
    "regressor-points": QUAMRegressor(search=PointwiseSearch(n_steps=5)),
}
# Chains and dropout while training draw from the generator of the device.
OTHER_STREAM = {"dropout", "sgmcmc", "sgmcmc-last"}


@pytest.fixture(params=ESTIMATORS)
def name(request):
    if "sgmcmc" in request.param and find_spec("posteriors") is None:
        pytest.skip("needs the extra sgmcmc")
    if request.param in ("gpc", "gpr") and DEVICE == "mps":
        pytest.skip("certificates need float64")
    return request.param


@pytest.fixture
def default_device():
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def fitted(name, device, **params):
    estimator = clone(ESTIMATORS[name]).set_params(device=device, random_state=0, **params)
    return estimator.fit(X, X[:, 0] + 0.1 * Y if is_regressor(estimator) else Y)


def is_imprecise(fitted):
    """Whether the search divides by variances far from the data, which float32 does not hold."""
    return DEVICE == "mps" and getattr(fitted, "noise", None) == "learned"


def said(fitted, X=X[::10]):
    parts = fitted.predict_uncertainty(X).parts
    assert {part.dtype for part in parts} == {np.dtype(np.float64)}
    found = [*parts, fitted.score_samples(X), fitted.predict(X)]
    if hasattr(fitted, "predict_proba"):
        found.append(fitted.predict_proba(X))
    if isinstance(getattr(fitted, "search", None), PoolSearch):
        found += [fitted.explain(X[:2], n_typical=3).contribution, fitted.adversarial_models(X)[1]]
        if not is_imprecise(fitted):
            found += fitted.search_pool(X[::3] + 0.5).predict_uncertainty(X).parts
    return found


def assert_equal(found, expected, close=CLOSE):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **close)


def counted(watched, call):
    with watched() as report:
        call()
    return report


def more(watched, call, few, many):
    """What a call with `many` copies to and from the device, waits and starts beyond `few`."""
    first, second = (counted(watched, lambda n=n: call(n)).count for n in (few, many))
    return [second[kind] - first[kind] for kind in ("up", "down", "sync", "kernel")]


def test_models_and_predictions_do_not_depend_on_the_device(name):
    close = CLOSE_SEARCH if isinstance(ESTIMATORS[name], QUAMClassifier | QUAMRegressor) else CLOSE
    model = fitted(name, "cpu")
    expected = said(model)
    assert_equal(said(model.set_params(device=DEVICE)), expected, close)
    model = pickle.loads(pickle.dumps(model))
    assert_equal(said(model), expected, close)
    if torch.cuda.device_count() > 1:
        assert_equal(said(model.set_params(device="cuda:1")), expected, close)
    assert_equal(said(model.set_params(device="cpu")), expected, close)
    found = fitted(name, DEVICE)
    if is_imprecise(found):
        assert all(np.isfinite(each).all() for each in said(found))
    elif name not in OTHER_STREAM:
        assert_equal(said(found), expected, CLOSE_HEAD if name == "probe-network" else close)
    # What is fitted lies on the CPU, in the type of the network.
    if hasattr(getattr(found, "model_", None), "module"):
        parameters = found.model_.module.parameters()
        assert {(p.device.type, p.dtype) for p in parameters} == {("cpu", torch.float64)}


@pytest.mark.parametrize(
    ("name", "uploads"),
    [("probe", 0), ("probe-network", 0), ("mirage", 1), ("mirage-regressor", 1), ("anchored", 1)],
)
def test_an_epoch_uploads_no_data_and_waits_once(watched, name, uploads):
    # Batches are drawn on the CPU, all of an epoch at once; losses are read at its end.
    found = more(watched, lambda n: fitted(name, DEVICE, max_epochs=n), 4, 6)
    assert found[:3] == [2 * uploads, 2, 0]


def test_losses_are_numbers_for_callbacks_and_history():
    from skorch.callbacks import Callback

    seen = []

    class Watch(Callback):
        def on_batch_end(self, net, **kwargs):
            seen.append(float(net.history[-1, "batches", -1, "train_loss"]))

    history = fitted("probe", DEVICE, callbacks=[Watch()], max_epochs=3).history_
    read = [epoch["batches"][0]["train_loss"] for epoch in history]
    assert all(type(loss) is float for loss in read)
    assert read == pytest.approx(seen)


def test_data_too_large_for_the_device_stay_on_the_cpu(monkeypatch, watched):
    expected = said(fitted("mirage", DEVICE))
    monkeypatch.setitem(device_with_memory.__globals__, "free_memory", lambda device: 1000)
    with watched() as report:
        found = fitted("mirage", DEVICE)
    assert report.count["up"] > 2 * 4 * 3  # inputs and targets of each batch
    assert_equal(said(found), expected)


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
    found = fitted("laplace", DEVICE)
    assert devices == [expected]
    assert found.posterior_.factor.device.type == "cpu"
    assert_equal(said(found), said(fitted("laplace", "cpu")))


@pytest.mark.parametrize("name", ["laplace", "ensemble", "dropout", "sgmcmc"])
def test_weights_go_to_the_device_once_however_many_batches(watched, name):
    if name == "sgmcmc":
        pytest.importorskip("posteriors")
    model = fitted(name, DEVICE)
    for n in (75, 15):  # two batches, ten batches
        model.set_params(batch_size=n).predict_uncertainty(X)
    found = more(watched, lambda n: model.set_params(batch_size=n).predict_uncertainty(X), 75, 15)
    assert found[:3] == [8, 8, 0]  # rows of each batch, and its results


@pytest.mark.parametrize("likelihood", ["probit", "softmax"])
@needs_cuda
def test_certificates_are_the_same_on_both_devices(likelihood):
    rows = slice(0, 150) if likelihood == "softmax" else slice(50, 150)
    model = skuq.RobustGPC(max_iter=3, likelihood=likelihood, device="cpu", random_state=0)
    model.fit(X[rows, :2], Y[rows])
    asked = {"X": X[rows, :2][::20], "radius": 0.1}
    for norm in ("linf", "l2", "l1"):
        expected = model.set_params(device="cpu").certify(**asked, norm=norm).status
        found = model.set_params(device=DEVICE).certify(**asked, norm=norm).status
        np.testing.assert_array_equal(found, expected)
    if likelihood == "probit":
        found, expected = (
            model.set_params(device=each).predict_proba_bounds(**asked) for each in (DEVICE, "cpu")
        )
        for part in ("min_lower", "min_upper", "max_lower", "max_upper"):
            np.testing.assert_allclose(getattr(found, part), getattr(expected, part), atol=1e-9)


@needs_cuda
def test_a_gpu_is_waited_for_few_times_while_bounds_are_refined(watched):
    model = skuq.RobustGPC(max_iter=3, device=DEVICE, random_state=0).fit(X[:100, :2], Y[:100])
    report = counted(watched, lambda: model.predict_proba_bounds(X[:100:20, :2], radius=0.1))
    assert report.count["sync"] + report.count["down"] <= 15


def test_devices_that_do_not_suffice_or_are_absent_are_refused():
    with pytest.raises(ValueError, match="float64"):
        skuq.RobustGPC(device="mps").fit(X, Y)
    # An estimator that is not fitted keeps its device.
    twin = pickle.loads(pickle.dumps(skuq.ReferenceClassifier(device="cuda:7")))
    with pytest.raises(ValueError, match="cuda:7"):
        twin.fit(X, Y)


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
    from skorch import NeuralNetClassifier

    rows = X.astype(np.float32)
    skorch = {"criterion": nn.CrossEntropyLoss, "max_epochs": 2, "verbose": 0}
    module = network().to(DEVICE)
    net = NeuralNetClassifier(network(), device=DEVICE, **skorch).fit(rows, Y)
    pipeline = make_pipeline(StandardScaler(), net).fit(rows, Y)
    options = {"max_epochs": 2, "random_state": 0, "device": "auto"}
    members = [module, network()]
    models = {
        "module": skuq.EvidentialProbe(module, **options),
        "frozen": skuq.EvidentialProbe(FrozenEstimator(net), **options),
        "pipeline": skuq.EvidentialProbe(FrozenEstimator(pipeline), **options),
        "members": skuq.DeepEnsembleClassifier(members=members, device="auto"),
    }
    return {name: model.fit(rows, Y) for name, model in models.items()}


def test_what_was_fitted_on_a_gpu_is_used_where_there_is_none(tmp_path):
    models, asked = given_models(), X[::10].astype(np.float32)
    for name in ("laplace", "probe", "anchored"):
        models[f"fitted {name}"] = fitted(name, DEVICE)
    if DEVICE == "mps":  # of which skorch cannot load a trained net elsewhere
        del models["frozen"], models["pipeline"]
    cases, rows, out = (tmp_path / name for name in ("models.pkl", "X.npy", "found.json"))
    cases.write_bytes(pickle.dumps({name: pickle.dumps(each) for name, each in models.items()}))
    np.save(rows, asked)
    path = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {key: v for key, v in os.environ.items() if key != "PRETEND_DEVICE"} | path
    command = [sys.executable, "-c", LOADED, cases, rows, out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, (parts, device, said) in json.loads(out.read_text(encoding="utf-8")).items():
        expected = models[name].predict_uncertainty(asked).parts
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


def test_the_default_device_of_the_user_changes_nothing(name, default_device):
    device = ["cpu", DEVICE, "auto"][[*ESTIMATORS].index(name) % 3]
    found = said(fitted(name, device))
    torch.set_default_device(None)
    assert_equal(found, said(fitted(name, device)))


def test_bounds_do_not_see_the_default_device(default_device):
    model = skuq.RobustGPC(max_iter=3, device="cpu", random_state=0).fit(X[:100, :2], Y[:100])
    found = model.predict_proba_bounds(X[:100:20, :2], radius=0.1)
    torch.set_default_device(None)
    expected = model.predict_proba_bounds(X[:100:20, :2], radius=0.1)
    np.testing.assert_array_equal(found.min_lower, expected.min_lower)


@pytest.fixture
def agent():
    pytest.importorskip("stable_baselines3")
    options = {"algorithm_kwargs": {"policy_kwargs": {"net_arch": [8]}}, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gymnasium
        agent = skuq.UADQN("CliffWind-v0", total_timesteps=260, device=DEVICE, **options)
        return agent.fit(np.arange(3))


OBSERVATIONS = np.eye(10, dtype=np.float32)


def test_an_agent_moves_to_where_it_is_set_and_goes_on_learning(agent):
    expected = agent.predict_uncertainty(OBSERVATIONS)
    assert agent.algorithm_.policy.device.type == DEVICE
    found = agent.set_params(device="cpu").predict_uncertainty(OBSERVATIONS)
    assert agent.algorithm_.policy.device.type == "cpu"
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-4)
    loaded = pickle.loads(pickle.dumps(agent)).set_params(device=DEVICE)
    np.testing.assert_allclose(loaded.predict_uncertainty(OBSERVATIONS).total, expected.total)
    assert loaded.algorithm_.policy.device.type == DEVICE
    for device in ("cpu", DEVICE):
        agent.set_params(device=device).predict(OBSERVATIONS)
        agent.algorithm_.learn(40, reset_num_timesteps=False)
    states = agent.algorithm_.policy.optimizer.state.values()
    assert {state["exp_avg"].device.type for state in states} == {DEVICE}


@needs_cuda
def test_small_networks_of_agents_stay_on_the_cpu_by_auto(agent):
    for width, expected in ((8, "cpu"), (200, "cuda")):
        kwargs = {"policy_kwargs": {"net_arch": [width] * 2}}
        model = clone(agent).set_params(device="auto", algorithm_kwargs=kwargs).fit(np.arange(3))
        assert model.algorithm_.policy.device.type == expected


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_an_agent_does_not_see_the_default_device(agent, device, default_device):
    agent.set_params(device=device).fit(np.arange(3)).predict_uncertainty(OBSERVATIONS)


def test_a_detector_judges_alike_on_all_devices():
    torch.manual_seed(0)
    layers = nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    network, devices = nn.Sequential(*layers), ("cpu", DEVICE, DEVICE)
    detectors = [OODDetector(network, device=each, random_state=0) for each in devices]
    for detector in detectors:
        detector.fit(X[::2], Y[::2], X_held_out=X[1::2])
    detectors[2].set_params(device="cpu")
    expected, *found = (each.single_scores(X).to_numpy() for each in detectors)
    assert_equal(found, [expected] * 2, CLOSE_SEARCH)


def test_a_model_of_a_user_on_the_gpu_is_taken():
    torch.manual_seed(0)
    images = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()
    net = nn.Sequential(*layers, nn.Dropout(), nn.Linear(144, 3)).eval().to(DEVICE)
    quam, found = QUAMClassifier(net, search=PoolSearch(n_steps=4), random_state=0), []
    for device in ("cpu", DEVICE):
        quam.set_params(device=device).fit(images, np.arange(40) % 3)
        found.append(quam.predict_uncertainty(images))
    np.testing.assert_allclose(*found, rtol=1e-2, atol=1e-4)  # the network is in float32
    assert next(net.parameters()).device.type == DEVICE


def test_a_model_fitted_on_a_gpu_is_saved_without_it():
    model = fitted("pool", DEVICE)
    expected = model.predict_uncertainty(X)
    again = from_stored(to_stored(model._found)), from_stored(to_stored(model._problem))
    assert_equal([again[0].excess_loss], [model._found.excess_loss])
    assert_equal(model.without_training_data().predict_uncertainty(X), expected)


@pytest.mark.parametrize("name", ["pool", "points"])
def test_threads_share_a_gpu(name):
    model = fitted(name, DEVICE)
    expected = model.predict_uncertainty(X[:20])
    with joblib.parallel_config("threading"):
        found = model.set_params(n_jobs=2).predict_uncertainty(X[:20])
    assert_equal(found, expected, CLOSE_SEARCH)


@pytest.mark.parametrize("batch_size", [40, 512])
@pytest.mark.parametrize("search", [PoolSearch, PointwiseSearch])
def test_a_step_of_a_search_copies_nothing_and_waits_for_nothing(watched, search, batch_size):
    def searched(n_steps):
        search_ = search(n_steps=n_steps, train_batch_size=batch_size)
        fitted("pool", DEVICE, search=search_).predict_uncertainty(X[:4])

    *copies, kernels = more(watched, searched, 10, 20)
    assert copies == [0, 0, 0]
    assert kernels <= 60 * 10


@pytest.mark.parametrize("name", ["pool", "regressor"])
def test_weights_found_are_uploaded_once(watched, name):
    model = fitted(name, DEVICE)
    model.predict_uncertainty(X)
    report = counted(watched, lambda: model.predict_uncertainty(X[:1]))
    assert report.count["up"] == 2  # the row, for the given model and for those found
    assert report.bytes["up"] <= 2 * X[:1].nbytes


def test_training_data_of_a_search_for_points_are_uploaded_once(watched):
    model = fitted("points", DEVICE)
    few, many = (
        counted(watched, lambda n=n: model.predict_uncertainty(X[:n])).bytes["up"] for n in (8, 80)
    )
    assert many - few < 10 * X.nbytes


@pytest.fixture
def pretended():
    """The pretended device, whose memory can be limited; all of it afterwards."""
    from tests import pretend_device

    if DEVICE not in pretend_device.installed():
        pytest.skip("needs the pretended device")
    yield pretend_device
    pretend_device.limit(None, DEVICE)


torch.manual_seed(0)
WIDE = nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 3)).double().eval()


def test_where_memory_runs_out_a_search_starts_again_with_smaller_pieces(pretended, monkeypatch):
    data = np.tile(X, (10, 1)), np.tile(Y, 10)
    model = clone(ESTIMATORS["pool"]).set_params(estimator=WIDE, device=DEVICE, random_state=0)
    before = pretended.used(DEVICE)
    peak = pretended.peak(DEVICE, lambda: model.fit(*data))
    expected = model.predict_uncertainty(X[:50])
    monkeypatch.setitem(within_memory.__globals__, "free_memory", lambda device: 2**30)  # not so
    pretended.limit(before + (peak - before) * 3 // 4, DEVICE)
    with pytest.warns(UserWarning, match="memory of .* ran out; restarting"):
        model.fit(*data)
    assert_equal(model.predict_uncertainty(X[:50]), expected, CLOSE_SEARCH)


@pytest.mark.parametrize("estimator", [None, WIDE])
def test_too_little_memory_names_what_to_set(pretended, estimator):
    pretended.limit(pretended.used(DEVICE) + 2**14, DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match=r"does not suffice.*device='cpu'"):
        fitted("pool", DEVICE, estimator=estimator)


def test_inputs_are_evaluated_in_pieces_that_fit(pretended):
    net = nn.Sequential(nn.Linear(100, 1000), nn.ReLU(), nn.Linear(1000, 2))
    x = torch.randn(4000, 100)
    expected = evaluate(net, x)
    pretended.limit(pretended.used(DEVICE) + 8 * 2**20, DEVICE)
    torch.testing.assert_close(evaluate(net, x, device=DEVICE), expected)


@pytest.mark.parametrize("n_hidden", [100, 10_000])
def test_auto_takes_the_gpu_for_networks_that_are_not_small(n_hidden):
    net = nn.Sequential(nn.Linear(4, n_hidden), nn.ReLU(), nn.Linear(n_hidden, 3))
    expected = "cuda" if DEVICE == "cuda" and n_hidden > 1000 else "cpu"
    assert resolve_device("auto", net).type == expected


def test_a_default_network_is_trained_where_its_size_belongs(watched):
    assert not counted(watched, lambda: fitted("pool", "auto").predict_uncertainty(X)).count


@pytest.mark.parametrize("architecture", ["gcn", "gat"])
def test_graph_networks_and_their_probe_give_what_the_cpu_gives(architecture):
    nodes, others = np.arange(60), np.arange(60, 150)
    found = []
    for device in ("cpu", DEVICE):
        settings = {"max_epochs": 20, "device": device, "random_state": 0}
        net = GraphClassifier(NODES.graph, architecture=architecture, dropout=0.0, **settings)
        probe = skuq.EvidentialProbe(net.fit(nodes, NODES.labels[nodes]), **settings)
        probe.fit(nodes, NODES.labels[nodes])
        detector = OODDetector(FrozenEstimator(probe), false_alarm_rate=0.1, device=device)
        detector.fit(nodes, NODES.labels[nodes], X_held_out=others[:50])
        assert (detector.predict(others)[:50] < 0).mean() < 0.3
        found.append([net.predict_proba(others), *probe.predict_uncertainty(others).parts])
    assert_equal(*found, {"rtol": 1e-2, "atol": 1e-3})  # networks in float32


def test_other_methods_for_graphs_run_on_the_device():
    from benchmarks.evidential_methods import comparison_methods

    nodes = np.arange(60)
    methods = comparison_methods(NODES.graph, max_epochs=3, device=DEVICE, random_state=0)
    for name, method in methods.items():
        u = method.fit(nodes, NODES.labels[nodes]).predict_uncertainty(np.arange(100))
        assert np.isfinite(u.total).all(), name
