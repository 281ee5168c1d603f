"""QUAM, agents and graphs on a GPU, or a pretended one: the numbers of the CPU, and few waits.

python -m tests.pretend_device cuda mps
pytest -m gpu tests/test_gpu.py tests/test_devices.py    # where there is a GPU
"""

import pickle
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.preprocessing import scale
from torch import nn

from skuq import EvidentialProbe, OODDetector, QUAMClassifier, QUAMRegressor, RobustGPC
from skuq._networks import (
    evaluate,
    resolve_device,
    stack_parameters,
    stacked_forward,
    within_memory,
)
from skuq.files import from_stored, to_stored
from skuq.quam import PointwiseSearch, PoolSearch

DEVICE = "cuda" if torch.cuda.is_available() else "mps"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "mps" and not torch.backends.mps.is_available(), reason="needs a GPU"
    ),
]
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="needs CUDA")
# MPS computes in float32, and steps of training and search make what that leaves out larger.
CLOSE = {"rtol": 1e-6, "atol": 1e-9} if DEVICE == "cuda" else {"rtol": 2e-2, "atol": 2e-3}
POOL = {"n_steps": 10}

ESTIMATORS = {
    "pool": QUAMClassifier(search=PoolSearch(**POOL)),
    "pool-batches": QUAMClassifier(search=PoolSearch(train_batch_size=40, **POOL)),
    "pool-prior": QUAMClassifier(search=PoolSearch(prior_precision=1.0, **POOL)),
    "pool-last": QUAMClassifier(search=PoolSearch(parameters="last", **POOL)),
    "pool-untargeted": QUAMClassifier(
        search=PoolSearch(targeted=False, train_batch_size=40, **POOL),
        mixture="dirac",
        setting="expected",
    ),
    "points": QUAMClassifier(search=PointwiseSearch(n_steps=5)),
    "points-last": QUAMClassifier(
        search=PointwiseSearch(n_steps=5, parameters="last", train_batch_size=40), n_targets=2
    ),
    "regressor": QUAMRegressor(search=PoolSearch(train_batch_size=40, **POOL)),
    "regressor-learned": QUAMRegressor(
        search=PoolSearch(**POOL), noise="learned", attack="divergence"
    ),
    "regressor-points": QUAMRegressor(search=PointwiseSearch(n_steps=5)),
}


@pytest.fixture(autouse=True)
def short(short_training):
    """Default networks are trained for a quarter of their epochs."""


def data_of(name="pool"):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    return X, X[:, 0] + 0.1 * y if "regressor" in name else y


def made(name, device):
    return clone(ESTIMATORS[name]).set_params(device=device, random_state=0)


def all_numbers(fitted, X):
    """What a user can ask of a fitted estimator."""
    found = [*fitted.predict_uncertainty(X).parts, fitted.score_samples(X), fitted.predict(X)]
    if hasattr(fitted, "predict_proba"):
        found.append(fitted.predict_proba(X))
    if not isinstance(fitted.search, PointwiseSearch):
        found += [fitted.explain(X[:2], n_typical=3).contribution, fitted.adversarial_models(X)[1]]
    return found


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fitted_model_answers_alike_on_all_devices(name):
    X, y = data_of(name)
    fitted = made(name, "cpu").fit(X, y)
    expected = all_numbers(fitted, X[::20])
    assert_equal(all_numbers(fitted.set_params(device=DEVICE), X[::20]), expected)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert_equal(all_numbers(loaded, X[::20]), expected)
    if torch.cuda.device_count() > 1:
        assert_equal(all_numbers(loaded.set_params(device="cuda:1"), X[::20]), expected)
    assert_equal(all_numbers(loaded.set_params(device="cpu"), X[::20]), expected)


def test_a_detector_judges_alike_on_all_devices():
    X, y = data_of()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )
    found = []
    for device in ("cpu", DEVICE):
        detector = OODDetector(network, device=device, random_state=0)
        detector.fit(X[::2], y[::2], X_held_out=X[1::2])
        found.append([each.to_numpy() for _, each in detector.single_scores(X).items()])
    assert_equal(found[1], found[0])
    detector = detector.set_params(device="cpu")
    assert_equal([each.to_numpy() for _, each in detector.single_scores(X).items()], found[0])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_search_finds_what_it_finds_on_the_cpu(name):
    X, y = data_of(name)
    on_cpu, on_gpu = (made(name, device).fit(X, y) for device in ("cpu", DEVICE))
    if DEVICE == "mps" and name == "regressor-learned":
        # Far from the data, networks predict variances that float32 does not hold; the search,
        # which divides by them, is another one.
        assert all(np.isfinite(each).all() for each in all_numbers(on_gpu, X))
        return
    assert_equal(all_numbers(on_gpu, X[::20]), all_numbers(on_cpu, X[::20]))
    if "points" not in name:
        new = [each.search_pool(X[::3] + 0.5).predict_uncertainty(X) for each in (on_gpu, on_cpu)]
        assert_equal(*new)


def test_a_model_of_a_user_on_the_gpu_is_taken():
    torch.manual_seed(0)
    images = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout()
    )
    net = nn.Sequential(*net, nn.Linear(144, 3)).eval().to(DEVICE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model's loss")
        found = [
            QUAMClassifier(FrozenEstimator(net), search=PoolSearch(n_steps=4), device=device)
            .set_params(random_state=0)
            .fit(images, np.arange(40) % 3)
            .predict_uncertainty(images)
            for device in ("cpu", DEVICE)
        ]
    np.testing.assert_allclose(*found, rtol=1e-2, atol=1e-4)  # the network is in float32
    assert next(net.parameters()).device.type == DEVICE


def test_a_model_fitted_on_a_gpu_is_saved_without_it():
    X, y = data_of()
    fitted = made("pool", DEVICE).fit(X, y)
    expected = fitted.predict_uncertainty(X)
    parts = to_stored(fitted._found), to_stored(fitted._problem)
    assert_equal([from_stored(parts[0]).excess_loss], [fitted._found.excess_loss])
    assert_equal(fitted.without_training_data().predict_uncertainty(X), expected)


@pytest.mark.parametrize("name", ["pool", "points"])
def test_threads_share_a_gpu(name):
    X, y = data_of()
    fitted = made(name, DEVICE).fit(X, y)
    expected = fitted.predict_uncertainty(X[:20])
    with joblib.parallel_config("threading"):
        assert_equal(fitted.set_params(n_jobs=2).predict_uncertainty(X[:20]), expected)


@pytest.mark.parametrize("batch_size", [40, 512])
@pytest.mark.parametrize("search", [PoolSearch, PointwiseSearch])
def test_a_step_of_a_search_copies_nothing_and_waits_for_nothing(watched, search, batch_size):
    X, y = data_of()
    counts = []
    for n_steps in (10, 20):
        search_ = search(n_steps=n_steps, train_batch_size=batch_size)
        model = QUAMClassifier(search=search_, device=DEVICE, random_state=0)
        with watched() as report:
            model.fit(X, y).predict_uncertainty(X[:4])
        counts.append(report.count)
    more = {kind: counts[1][kind] - counts[0][kind] for kind in ("up", "down", "sync", "kernel")}
    assert more["up"] == more["down"] == more["sync"] == 0
    assert more["kernel"] <= 60 * 10


@pytest.mark.parametrize("name", ["pool", "regressor"])
def test_weights_found_are_uploaded_once(watched, name):
    X, y = data_of(name)
    fitted = made(name, DEVICE).fit(X, y)
    fitted.predict_uncertainty(X)
    with watched() as report:
        fitted.predict_uncertainty(X[:1])
    assert report.count["up"] == 2  # the row, for the given model and for those found
    assert report.bytes["up"] <= 2 * X[:1].nbytes


def test_training_data_of_a_search_for_points_are_uploaded_once(watched):
    X, y = data_of()
    fitted = made("points", DEVICE).fit(X, y)
    bytes_up = []
    for n_rows in (8, 80):
        with watched() as report:
            fitted.predict_uncertainty(X[:n_rows])
        bytes_up.append(report.bytes["up"])
    assert bytes_up[1] - bytes_up[0] < 10 * X.nbytes


@pytest.fixture
def pretended():
    """The pretended device, whose memory can be limited; all of it afterwards."""
    from tests import pretend_device

    if DEVICE not in pretend_device.installed():
        pytest.skip("needs the pretended device")
    yield pretend_device
    pretend_device.limit(None, DEVICE)


def wide_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 3)).double().eval()


@pytest.mark.filterwarnings("ignore:The model's loss")
def test_where_memory_runs_out_a_search_starts_again_with_smaller_pieces(pretended, monkeypatch):
    X, y = data_of()
    X, y = np.tile(X, (10, 1)), np.tile(y, 10)
    model = made("pool", DEVICE).set_params(estimator=FrozenEstimator(wide_network()))
    before = pretended.used(DEVICE)
    peak = pretended.peak(DEVICE, lambda: model.fit(X, y))
    expected = model.predict_uncertainty(X[:50])
    monkeypatch.setitem(within_memory.__globals__, "free_memory", lambda device: 2**30)  # not so
    pretended.limit(before + (peak - before) * 3 // 4, DEVICE)
    with pytest.warns(UserWarning, match="memory of .* ran out; restarting"):
        model.fit(X, y)
    assert_equal(model.predict_uncertainty(X[:50]), expected)


@pytest.mark.parametrize("estimator", [None, FrozenEstimator(wide_network())])
def test_too_little_memory_names_what_to_set(pretended, estimator):
    X, y = data_of()
    pretended.limit(pretended.used(DEVICE) + 2**14, DEVICE)
    model = made("pool", DEVICE).set_params(estimator=estimator)
    with pytest.raises(torch.OutOfMemoryError, match=r"does not suffice.*device='cpu'"):
        model.fit(X, y)


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
    X, y = data_of()
    with watched() as report:
        made("pool", "auto").fit(X, y).predict_uncertainty(X)
    assert not report.count


@pytest.mark.parametrize("message", ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "cuDNN error: X"])
def test_failures_of_a_device_are_not_taken_for_layers_without_a_batched_form(message):
    class Failing(nn.Linear):
        calls = 0

        def forward(self, x):
            Failing.calls += 1
            raise RuntimeError(message)

    net = Failing(2, 2)
    with pytest.raises(RuntimeError, match=message):
        stacked_forward(net, stack_parameters(net, 3), torch.ones(4, 2), shared_input=True)
    assert Failing.calls == 1


@pytest.mark.parametrize("device", ["cpu", DEVICE, "auto"])
def test_the_default_device_of_the_user_changes_nothing_in_a_search(device):
    X, y = data_of()
    expected = made("points", "cpu").fit(X, y).predict_uncertainty(X[:4])
    torch.set_default_device(DEVICE)
    try:
        found = made("points", device).fit(X, y).predict_uncertainty(X[:4])
    finally:
        torch.set_default_device(None)
    assert_equal(found, expected)


def node_data():
    from skuq.datasets import make_node_classes

    return make_node_classes(150, n_classes=3, n_features=6, random_state=0)


@pytest.mark.parametrize("architecture", ["gcn", "gat"])
def test_graph_networks_and_their_probe_give_what_the_cpu_gives(architecture):
    from skuq.evidential import GraphClassifier

    data, nodes, others = node_data(), np.arange(60), np.arange(60, 150)
    found = []
    for device in ("cpu", DEVICE):
        settings = {"max_epochs": 20, "device": device, "random_state": 0}
        net = GraphClassifier(data.graph, architecture=architecture, dropout=0.0, **settings)
        probe = EvidentialProbe(net.fit(nodes, data.labels[nodes]), **settings)
        probe.fit(nodes, data.labels[nodes])
        detector = OODDetector(FrozenEstimator(probe), false_alarm_rate=0.1, device=device)
        detector.fit(nodes, data.labels[nodes], X_held_out=others[:50])
        assert (detector.predict(others)[:50] < 0).mean() < 0.3
        found.append([net.predict_proba(others), *probe.predict_uncertainty(others).parts])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)  # networks in float32


def test_other_methods_for_graphs_run_on_the_device():
    from benchmarks.evidential_methods import comparison_methods

    data, nodes = node_data(), np.arange(60)
    made = comparison_methods(data.graph, max_epochs=3, device=DEVICE, random_state=0)
    for name, method in made.items():
        u = method.fit(nodes, data.labels[nodes]).predict_uncertainty(np.arange(100))
        assert np.isfinite(u.total).all(), name


@needs_cuda
def test_certificates_are_the_same_on_both_devices():
    X, y = data_of()
    X, y = X[:100, :2], y[:100]
    bounds = [
        RobustGPC(max_iter=3, device=device, random_state=0)
        .fit(X, y)
        .predict_proba_bounds(X[::20], radius=0.1)
        for device in ("cpu", DEVICE)
    ]
    np.testing.assert_allclose(bounds[0].min_lower, bounds[1].min_lower, atol=1e-9)
    np.testing.assert_allclose(bounds[0].max_upper, bounds[1].max_upper, atol=1e-9)
