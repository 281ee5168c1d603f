"""A model folded into affine layers is the same function, and its rounding close to it."""

from itertools import pairwise

import numpy as np
import pytest
import sklearn.calibration
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skuq._networks import MLP, LeNet, TabularNet
from skuq.zk._fixed_point import ROUNDING, IntegerPredictions, integer_predictions
from skuq.zk._quantisation import (
    agreement,
    dense_network,
    fit_encoding,
    fit_fixed_point,
    integer_network,
    probabilities,
)
from tests.zk.tampering import ONE
from tests.zk.test_fixed_point import random_network

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def drawn(n_classes, seed=0, names=None):
    """Inputs of very different scales, and labels that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 3)) * [1.0, 20.0, 0.05] + [3.0, -50.0, 0.0]
    y = rng.integers(n_classes, size=300)
    X += 0.8 * y[:, None] * np.array([1.0, 20.0, 0.05])
    return X, y if names is None else np.array(names)[y]


def scaled(n_classes, names=None):
    X, y = drawn(n_classes, names=names)
    return StandardScaler().fit_transform(X), y


def assert_same_function(model, X):
    found = probabilities(dense_network(model), X)
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=0, atol=1e-6)
    assert np.ptp(found[:, 0]) > 0.1  # not a constant, which any folding would give


def skorch_net(module, X, y, kind=NeuralNetClassifier, **settings):
    torch.manual_seed(0)
    net = kind(module, max_epochs=3, lr=0.05, train_split=None, verbose=0, **settings)
    return net.fit(X.astype(np.float32), y)


@pytest.mark.parametrize(
    ("n_classes", "model"),
    [
        (2, MLPClassifier((8,), max_iter=30, random_state=0)),
        (3, MLPClassifier((6, 4), max_iter=30, random_state=0)),
        (5, MLPClassifier((5, 4, 3), max_iter=30, random_state=0)),
        (3, MLPClassifier((8, 5), activation="identity", max_iter=30, random_state=0)),
        (2, LogisticRegression()),
        (4, LogisticRegression()),
    ],
)
def test_models_of_scikit_learn_keep_their_probabilities(n_classes, model):
    X, y = scaled(n_classes)
    assert_same_function(model.fit(X, y), X)
    linear = getattr(model, "activation", "identity") == "identity"
    hidden = () if linear else model.hidden_layer_sizes
    shapes = [weight.shape for weight in dense_network(model).weights]
    assert shapes == list(pairwise((3, *hidden, n_classes)))


def test_batch_normalisation_and_dropout_of_a_skorch_net_are_those_of_evaluation():
    X, y = scaled(3)
    module = MLP(3, 3, (8, 6), dropout=0.5, batch_norm=True)
    net = skorch_net(module, X, y, criterion=nn.CrossEntropyLoss)
    network = dense_network(net)
    expected = net.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(probabilities(network, X), expected, rtol=0, atol=1e-6)
    assert [weight.shape for weight in network.weights] == [(3, 8), (8, 6), (6, 3)]
    assert np.abs(net.module_[1].running_mean.numpy()).max() > 0.01


def test_batch_normalisation_without_scale_and_offset_is_folded():
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.BatchNorm1d(2, affine=False), nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)
    ).double()
    module(torch.randn(50, 2, dtype=torch.float64) * 3 + 1)
    module.eval()
    X = np.random.default_rng(0).normal(size=(20, 2))
    expected = torch.softmax(module(torch.tensor(X)), 1).detach().numpy()
    np.testing.assert_allclose(probabilities(dense_network(module), X), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (MLP(3, 1, (8,)), {"kind": NeuralNetBinaryClassifier}),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)), {"criterion": nn.NLLLoss}),
    ],
)
def test_skorch_nets_of_one_logit_or_of_probabilities_keep_these(module, settings):
    X, y = scaled(2 if "kind" in settings else 3)
    net = skorch_net(module, X, y.astype(np.float32) if "kind" in settings else y, **settings)
    found = probabilities(dense_network(net), X)
    np.testing.assert_allclose(found, net.predict_proba(X.astype(np.float32)), rtol=0, atol=1e-6)


def test_a_final_log_softmax_changes_nothing():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(dim=1)).double()
    X = np.random.default_rng(0).normal(size=(20, 2))
    expected = module(torch.tensor(X)).exp().detach().numpy()
    np.testing.assert_allclose(probabilities(dense_network(module), X), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_embeddings_are_rows_of_the_first_layer_also_for_unknown_codes(batch_norm):
    torch.manual_seed(0)
    net = TabularNet(
        4, 3, {1: 3, 3: 2}, hidden_sizes=(6,), dropout=0.2, batch_norm=batch_norm
    ).double()
    rng = np.random.default_rng(0)
    X = np.stack(
        [
            rng.normal(size=60),
            rng.integers(-1, 4, size=60),
            rng.normal(size=60),
            rng.integers(-1, 3, size=60),
        ],
        axis=1,
    )
    net(torch.tensor(X))  # running statistics
    net.eval()
    network = dense_network(net)
    assert network.levels == (0, 3, 0, 2)
    assert network.weights[0].shape == (1 + 4 + 1 + 3, 6)
    expected = torch.softmax(net(torch.tensor(X)), 1).detach().numpy()
    np.testing.assert_allclose(probabilities(network, X), expected, rtol=0, atol=1e-6)
    assert {-1, 3} <= set(X[:, 1])


@pytest.mark.parametrize(
    ("n_classes", "steps"),
    [
        (2, [StandardScaler()]),
        (3, [StandardScaler(with_mean=False)]),
        (2, [StandardScaler(with_std=False), StandardScaler(with_mean=False)]),
        (3, [MinMaxScaler((-1, 3))]),
        (2, [MaxAbsScaler()]),
        (3, [MinMaxScaler(), "passthrough", StandardScaler(), MaxAbsScaler()]),
        (2, ["passthrough"]),
    ],
)
def test_scaling_of_features_is_folded_into_the_first_layer(n_classes, steps):
    X, y = drawn(n_classes)
    model = make_pipeline(*steps, LogisticRegression(max_iter=2000)).fit(X, y)
    assert_same_function(model, X)


def test_a_scaler_before_a_net_with_hidden_layers_is_folded():
    X, y = drawn(3)
    model = make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=30, random_state=0))
    assert_same_function(model.fit(X, y), X)


@pytest.mark.skipif(
    not hasattr(sklearn.calibration, "_TemperatureScaling"), reason="needs scikit-learn 1.8"
)
@pytest.mark.parametrize(("kind", "n_classes"), [(LogisticRegression, 2), (MLPClassifier, 3)])
def test_a_temperature_is_folded_into_the_last_layer(kind, n_classes):
    X, y = scaled(n_classes)
    model = kind(random_state=0, max_iter=50).fit(X, y)
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(X, y)
    assert_same_function(calibrated, X)
    assert np.abs(calibrated.predict_proba(X) - model.predict_proba(X)).max() > 1e-4
    assert len(dense_network(calibrated).weights) == len(dense_network(model).weights)


def test_classes_are_the_labels_in_the_order_of_the_logits():
    X, y = scaled(3, names=["zebra", "ant", "monkey"])
    model = LogisticRegression().fit(X, y)
    assert dense_network(model).classes.tolist() == ["ant", "monkey", "zebra"]
    assert_same_function(model, X)


def test_a_bare_module_has_numbers_for_classes():
    assert dense_network(MLP(2, 4, (3,))).classes.tolist() == [0, 1, 2, 3]


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
        (nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(), nn.Linear(4, 2)), "LeakyReLU"),
        (nn.Sequential(nn.Linear(2, 3), nn.Softmax(1), nn.Linear(3, 2)), "Softmax"),
        (nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(1), nn.Linear(3, 2)), "after a LogSoftmax"),
        (nn.Sequential(Residual(nn.Linear(2, 2)), nn.Linear(2, 2)), "Residual"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)), "running"),
        (MLP(2, 1, (3,)), "one logit per class"),
    ],
)
def test_a_network_that_is_not_supported_is_named(module, message):
    with pytest.raises(TypeError, match=message):
        dense_network(module)


def test_an_activation_other_than_relu_is_named():
    X, y = scaled(2)
    model = MLPClassifier((4,), activation="tanh", max_iter=5, random_state=0).fit(X, y)
    with pytest.raises(TypeError, match="Tanh"):
        dense_network(model)


@pytest.mark.parametrize("step", [PCA(2), MinMaxScaler(clip=True)])
def test_a_step_that_does_more_than_scale_features_is_named(step):
    X, y = drawn(2)
    model = Pipeline([("turn", step), ("fit", LogisticRegression())]).fit(X, y)
    with pytest.raises(TypeError, match=rf"'turn' \({type(step).__name__}\)"):
        dense_network(model)


def test_a_scaler_of_category_codes_is_an_error():
    X = np.stack([np.arange(30) % 3, np.linspace(-1, 1, 30)], axis=1).astype(np.float32)
    module = TabularNet(2, 2, {0: 3}, hidden_sizes=(3,))
    net = skorch_net(module, X, np.arange(30) % 2, criterion=nn.CrossEntropyLoss)
    model = Pipeline([("scale", StandardScaler().fit(X)), ("net", net)])
    with pytest.raises(TypeError, match="scales category codes"):
        dense_network(model)


def test_a_skorch_net_whose_probabilities_are_a_softmax_of_a_softmax_is_an_error():
    X, y = scaled(3)
    module = nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1))
    net = skorch_net(module, X, y, criterion=nn.CrossEntropyLoss)
    with pytest.raises(TypeError, match="The layer Softmax cannot be put into a circuit"):
        dense_network(net)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, dense_network(LogisticRegression(max_iter=1000, C=10).fit(X, y))


def test_confidences_are_within_the_tolerance_of_the_model(iris):
    X, network = iris
    bits = []
    for tolerance in (0.2, 0.05, 0.005, 0.003):
        encoding, rounded, found = fit_fixed_point(network, X, tolerance)
        proba, mine = probabilities(network, X), integer_predictions(rounded, encoding.encode(X))
        own = np.take_along_axis(proba, mine.label[:, None], axis=1)[:, 0]
        difference = np.abs(own - mine.confidence / ONE)
        assert found.maximum == pytest.approx(difference.max(), abs=1e-12)
        assert found.mean == pytest.approx(difference.mean(), abs=1e-12)
        assert found.maximum + ROUNDING <= tolerance
        assert found.argmax == (proba.argmax(axis=1) == mine.label).mean()
        bits.append(rounded.weight_bits)
    assert bits == sorted(bits)
    assert bits[0] < bits[-1]


def test_more_bits_make_a_smaller_error(iris):
    X, network = iris
    errors = []
    for bits in (4, 6, 8, 10):
        encoding = fit_encoding(network, X, bits)
        rounded = integer_network(network, encoding, bits)
        found = integer_predictions(rounded, encoding.encode(X))
        errors.append(agreement(probabilities(network, X), found).maximum)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 10 * errors[-1]


def test_a_tolerance_that_cannot_be_kept_is_named_with_what_was_reached(iris):
    X, network = iris
    with pytest.raises(ValueError, match=r"within tolerance=0.0009 .* \(0.00\d+ was reached\)"):
        fit_fixed_point(network, X, 0.0009)


def test_a_network_that_fits_no_format_is_an_error():
    rng = np.random.default_rng(0)
    network, _, _ = random_network(rng, (2, 9, 9, 9, 9, 9, 2), size=9.0)
    with pytest.raises(
        ValueError, match=r"tolerance=0.01 of the model's \(its numbers are too large at every"
    ):
        fit_fixed_point(network, rng.normal(size=(20, 2)), 0.01)


def test_a_network_of_too_many_layers_is_an_error_however_small_its_numbers():
    """The unit of its logits would be smaller than single precision holds."""
    rng = np.random.default_rng(0)
    network, _, _ = random_network(rng, (2, *[1] * 20, 2), size=1e-3)
    network = network._replace(biases=[0 * bias for bias in network.biases])
    with pytest.raises(ValueError, match="fewer layers"):
        fit_fixed_point(network, rng.normal(size=(20, 2)), 0.1)


def test_a_class_that_a_tie_decides_otherwise_is_no_difference_of_confidence():
    reference = np.array([[0.5, 0.5], [0.8, 0.2]])
    found = IntegerPredictions(np.array([1, 0]), np.array([ONE // 2, ONE // 2]))
    result = agreement(reference, found)
    assert result.maximum == pytest.approx(0.3)
    assert result.mean == pytest.approx(0.15)
    assert result.argmax == 0.5
