"""A model folded into affine layers is the same function, and its rounding close to it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn import calibration
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skuq._networks import MLP, LeNet, TabularNet
from skuq.zk import _quantisation as q
from skuq.zk._fixed_point import ROUNDING, IntegerPredictions, integer_predictions
from tests.zk.tampering import ONE
from tests.zk.test_fixed_point import random_network

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def drawn(n_classes):
    """Inputs of very different scales, and labels that depend on them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1.0, 20.0, 0.05] + [3.0, -50.0, 0.0]
    y = rng.integers(n_classes, size=300)
    return X + 0.8 * y[:, None] * np.array([1.0, 20.0, 0.05]), y


def scaled(n_classes):
    X, y = drawn(n_classes)
    return StandardScaler().fit_transform(X), y


def assert_same_function(model, X):
    network = q.dense_network(model)
    found = q.probabilities(network, X)
    if isinstance(model, nn.Module):
        expected = torch.softmax(model(torch.tensor(X)), 1).detach().numpy()
    else:
        skorch = isinstance(model, NeuralNet)
        expected = model.predict_proba(X.astype(np.float32) if skorch else X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.ptp(found[:, 0]) > 0.1  # not a constant, which any folding would give
    return network


def skorch_net(module, X, y, kind=NeuralNetClassifier, **settings):
    torch.manual_seed(0)
    for layer in module.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    net = kind(module, max_epochs=10, lr=0.05, train_split=None, verbose=0, **settings)
    return net.fit(X.astype(np.float32), y)


def mlp(*hidden, **settings):
    return MLPClassifier(hidden, max_iter=30, random_state=0, **settings)


@pytest.mark.parametrize(
    ("n_classes", "model"),
    [
        *((2, mlp(8)), (5, mlp(5, 4, 3)), (3, mlp(8, 5, activation="identity"))),
        *((2, LogisticRegression()), (4, LogisticRegression())),
    ],
)
def test_models_of_scikit_learn_keep_their_probabilities(n_classes, model):
    X, y = scaled(n_classes)
    names = np.array([*"edcba"])[:n_classes]
    network = assert_same_function(model.fit(X, names[y]), X)
    linear = getattr(model, "activation", "identity") == "identity"
    hidden = () if linear else model.hidden_layer_sizes
    shapes = [weight.shape for weight in network.weights]
    assert shapes == list(pairwise((3, *hidden, n_classes)))
    assert network.classes.tolist() == sorted(names)


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (MLP(3, 3, (8, 6), dropout=0.5, batch_norm=True), {"criterion": nn.CrossEntropyLoss}),
        (MLP(3, 1, (8,)), {"kind": NeuralNetBinaryClassifier}),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)), {"criterion": nn.NLLLoss}),
    ],
)
def test_skorch_nets_of_logits_of_one_logit_or_of_probabilities_keep_these(module, settings):
    X, y = scaled(2 if "kind" in settings else 3)
    net = skorch_net(module, X, y.astype(np.float32) if "kind" in settings else y, **settings)
    network = assert_same_function(net, X)
    if len(network.weights) == 3:  # batch normalisation and dropout are those of evaluation
        assert [weight.shape for weight in network.weights] == [(3, 8), (8, 6), (6, 3)]
        assert np.abs(net.module_[1].running_mean.numpy()).max() > 0.01


def test_batch_normalisation_without_scale_and_offset_and_a_final_log_softmax_are_folded():
    torch.manual_seed(1)
    first, last = nn.BatchNorm1d(2, affine=False), nn.LogSoftmax(dim=1)
    layers = first, nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2), last
    module = nn.Sequential(*layers).double()
    module(torch.randn(50, 2, dtype=torch.float64) * 3 + 1)
    assert_same_function(module.eval(), 3 * np.random.default_rng(0).normal(size=(20, 2)))
    assert q.dense_network(module).classes.tolist() == [0, 1]


@pytest.mark.parametrize("batch_norm", [False, True])
def test_embeddings_are_rows_of_the_first_layer_also_for_unknown_codes(batch_norm):
    torch.manual_seed(0)
    settings = {"hidden_sizes": (6,), "dropout": 0.2, "batch_norm": batch_norm}
    net, rng = TabularNet(4, 3, {1: 3, 3: 2}, **settings).double(), np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X[:, 1], X[:, 3] = rng.integers(-1, 4, size=60), rng.integers(-1, 3, size=60)
    net(torch.tensor(X))  # running statistics
    network = assert_same_function(net.eval(), X)
    assert network.levels == (0, 3, 0, 2)
    assert network.weights[0].shape == (1 + 4 + 1 + 3, 6)
    assert {-1, 3} <= set(X[:, 1])


LINEAR = LogisticRegression(max_iter=2000)


@pytest.mark.parametrize(
    ("n_classes", "steps"),
    [
        (3, [StandardScaler(), mlp(8)]),
        (3, [StandardScaler(with_mean=False), LINEAR]),
        (2, [StandardScaler(with_std=False), StandardScaler(with_mean=False), LINEAR]),
        (3, [MinMaxScaler((-1, 3)), LINEAR]),
        (2, [MaxAbsScaler(), LINEAR]),
        (3, [MinMaxScaler(), "passthrough", StandardScaler(), MaxAbsScaler(), LINEAR]),
        (2, ["passthrough", LINEAR]),
    ],
)
def test_scaling_of_features_is_folded_into_the_first_layer(n_classes, steps):
    X, y = drawn(n_classes)
    assert_same_function(make_pipeline(*steps).fit(X, y), X)


@pytest.mark.skipif(not hasattr(calibration, "_TemperatureScaling"), reason="scikit-learn < 1.8")
@pytest.mark.parametrize(("kind", "n_classes"), [(LogisticRegression, 2), (MLPClassifier, 3)])
def test_a_temperature_is_folded_into_the_last_layer(kind, n_classes):
    X, y = scaled(n_classes)
    model = kind(random_state=0, max_iter=50).fit(X, y)
    calibrated = calibration.CalibratedClassifierCV(FrozenEstimator(model), method="temperature")
    calibrated.fit(X, y)
    network = assert_same_function(calibrated, X)
    assert np.abs(calibrated.predict_proba(X) - model.predict_proba(X)).max() > 1e-4
    assert len(network.weights) == len(q.dense_network(model).weights)


class Residual(nn.Sequential):
    """A container that computes something else than its layers do."""

    def forward(self, X):
        return X + super().forward(X)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)), "Conv2d"),
        (LeNet(), "LeNet"),
        (nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2)), "Sigmoid"),
        (nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)), "LayerNorm"),
        (nn.Sequential(nn.Linear(2, 3), nn.Softmax(1), nn.Linear(3, 2)), "Softmax"),
        (nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(1), nn.Linear(3, 2)), "after a LogSoftmax"),
        (nn.Sequential(Residual(nn.Linear(2, 2)), nn.Linear(2, 2)), "Residual"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)), "running"),
        (MLP(2, 1, (3,)), "one logit per class"),
    ],
)
def test_a_network_that_is_not_supported_is_named(module, message):
    with pytest.raises(TypeError, match=message):
        q.dense_network(module)


def test_a_model_that_is_not_supported_is_named():
    X, y = drawn(3)
    tanh = mlp(4, activation="tanh").fit(X, y)
    # Its probabilities are a softmax of a softmax.
    module, criterion = nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)), nn.CrossEntropyLoss
    twice = skorch_net(module, X, y, criterion=criterion)
    turned = make_pipeline(PCA(2), LogisticRegression()).fit(X, y)
    clipped = make_pipeline(MinMaxScaler(clip=True), LogisticRegression()).fit(X, y)
    codes = np.stack([np.arange(30) % 3, np.linspace(-1, 1, 30)], axis=1).astype(np.float32)
    module = TabularNet(2, 2, {0: 3}, hidden_sizes=(3,))
    net = skorch_net(module, codes, np.arange(30) % 2, criterion=criterion)
    of_codes = Pipeline([("scale", StandardScaler().fit(codes)), ("net", net)])
    for model, message in (
        (tanh, "Tanh"),
        (twice, "The layer Softmax cannot be put into a circuit"),
        (turned, r"'pca' \(PCA\)"),
        (clipped, r"'minmaxscaler' \(MinMaxScaler\)"),
        (of_codes, "scales category codes"),
    ):
        with pytest.raises(TypeError, match=message):
            q.dense_network(model)


def test_confidences_are_within_the_tolerance_of_the_model_and_ties_make_no_difference():
    X, y = load_iris(return_X_y=True)
    network = q.dense_network(LogisticRegression(max_iter=1000, C=10).fit(X, y))
    bits, proba = [], q.probabilities(network, X)
    for tolerance in (0.2, 0.05, 0.005, 0.003):
        encoding, rounded, found = q.fit_fixed_point(network, X, tolerance)
        mine = integer_predictions(rounded, encoding.encode(X))
        difference = np.abs(proba[np.arange(len(X)), mine.label] - mine.confidence / ONE)
        assert found.maximum == pytest.approx(difference.max(), abs=1e-12)
        assert found.mean == pytest.approx(difference.mean(), abs=1e-12)
        assert found.maximum + ROUNDING <= tolerance
        assert found.argmax == (proba.argmax(axis=1) == mine.label).mean()
        bits.append(rounded.weight_bits)
    assert bits == sorted(bits)
    assert bits[0] < bits[-1]
    with pytest.raises(ValueError, match=r"within max_error=0.0009 .* \(0.00\d+ was reached\)"):
        q.fit_fixed_point(network, X, 0.0009)
    found = IntegerPredictions(np.array([1, 0]), np.array([ONE // 2, ONE // 2]))
    result = q.agreement(np.array([[0.5, 0.5], [0.8, 0.2]]), found)
    assert result == pytest.approx((0.3, 0.15, 0.5))


@pytest.mark.parametrize(
    ("hidden", "size", "tolerance", "message"),
    [
        ([9] * 5, 9.0, 0.01, r"max_error=0.01 .*\(its numbers are too large at every"),
        # The unit of its logits would be smaller than single precision holds.
        ([1] * 20, 1e-3, 0.1, "fewer layers"),
    ],
)
def test_a_network_that_fits_no_format_is_an_error(hidden, size, tolerance, message):
    rng = np.random.default_rng(0)
    network, _, _ = random_network(rng, (2, *hidden, 2), size=size)
    if len(hidden) == 20:
        network = network._replace(biases=[0 * bias for bias in network.biases])
    with pytest.raises(ValueError, match=message):
        q.fit_fixed_point(network, rng.normal(size=(20, 2)), tolerance)
