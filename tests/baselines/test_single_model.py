"""MC dropout against networks in training mode, and distances in the features of a model."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, mahalanobis
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skuq.baselines import FeatureDistanceClassifier, MCDropoutClassifier
from skuq.baselines import _single_model as module_under_test
from skuq.baselines._single_model import MaskedNetworks, _dropout_modules
from skuq.models import NetworkModel, adopt
from tests.baselines.oracles import assert_as_by_hand, seeded_module
from tests.written import Written


def _masked_outputs(module, X, *, n_samples, seed=0):
    return MaskedNetworks(adopt(module), n_samples, seed).outputs(X)


def test_masked_networks_are_compared_as_the_equations_say(iris, dropped):
    options = {"n_samples": 5, "setting": "selected", "random_state": 0}
    model = MCDropoutClassifier(FrozenEstimator(dropped), **options).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    outputs = _masked_outputs(dropped, X, n_samples=5, seed=model._sampling_seed).softmax(-1)
    reference = dropped(X).softmax(-1).detach().numpy()
    u = model.predict_uncertainty(iris[0][:9])
    assert_as_by_hand(u, reference, outputs.numpy(), "selected", atol=1e-12)


def test_default_network_has_dropout_of_the_rate_asked_for(iris):
    model = MCDropoutClassifier(dropout=0.4, n_samples=5, random_state=0).fit(*iris)
    assert [module.p for module in _dropout_modules(model.model_.module)] == [0.4]


def tiny():
    layers = nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 2)
    return nn.Sequential(*layers).double()


def test_masked_networks_are_those_of_a_network_in_training_mode_and_more_extend_fewer():
    # Three hidden units: the eight networks can be listed, each with its probability.
    network, rate = seeded_module(tiny), 0.3
    X = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=torch.float64)
    found = _masked_outputs(network, X, n_samples=2000)
    hidden = torch.tanh(network[0](X)).detach()
    for kept in itertools.product([0.0, 1.0], repeat=3):
        mask = torch.tensor(kept, dtype=torch.float64) / (1 - rate)
        expected = network[3](hidden * mask).detach()
        share = torch.isclose(found, expected[:, None]).all(-1)
        assert torch.equal(share[0], share[1])  # the same networks for both points
        p = rate ** kept.count(0.0) * (1 - rate) ** kept.count(1.0)
        assert float(share[0].double().mean()) == pytest.approx(p, abs=5 * (p / 2000) ** 0.5)
    few, many = (_masked_outputs(network, X, n_samples=n) for n in (3, 8))
    assert torch.equal(few, many[:, :3])


def test_masks_drop_whole_channels_if_the_layer_does_and_differ_between_calls():
    network = nn.Sequential(nn.Dropout2d(0.5), nn.Flatten()).eval()
    X = torch.ones(2, 8, 3, 3)
    found = MaskedNetworks(NetworkModel(module=network), 20, 0).outputs(X)
    by_channel = found.reshape(2, 20, 8, 9)
    assert torch.equal(by_channel, by_channel[..., :1].expand_as(by_channel))
    assert set(found.unique().tolist()) == {0.0, 2.0}
    dropout = nn.Dropout(0.5)
    network = nn.Sequential(dropout, dropout).eval()
    found = MaskedNetworks(NetworkModel(module=network), 1, 0).outputs(torch.ones(1, 4000))
    share = float((found > 0).float().mean())
    assert share == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)


def test_outputs_do_not_depend_on_company():
    norm = seeded_module(lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16)))
    network = nn.Sequential(norm, nn.Dropout(0.5)).eval()
    X = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0))
    together = _masked_outputs(network, X, n_samples=3)  # several batches
    for rows in (slice(0, 5), slice(-5, None), slice(1022, 1026)):
        torch.testing.assert_close(together[rows], _masked_outputs(network, X[rows], n_samples=3))


def test_only_modules_that_drop_are_found():
    layers = nn.Dropout(0.0), nn.Dropout2d(0.1), nn.AlphaDropout(0.5)
    found = _dropout_modules(nn.Sequential(*layers))
    assert [type(module) for module in found] == [nn.Dropout2d]


DISTANCES = ("cosine", "mahalanobis")


@pytest.fixture(scope="module")
def network():
    """Features of six units before the first linear layer, of five before the last."""

    def layers():
        before = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten()
        return *before, nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)

    return seeded_module(lambda: nn.Sequential(*layers()).double())


CUTS = {"last": [6], "both": [4, 6]}


def features_of(network, X, layer):
    return [network[:cut](torch.as_tensor(X)).detach().numpy() for cut in CUTS[layer]]


@pytest.mark.parametrize(("layer", "n_neighbors"), [("last", 1), ("last", 20), ("both", 20)])
def test_cosine_distance_is_the_mean_to_the_neighbours(iris, network, layer, n_neighbors):
    X, y = iris[0][::2], iris[1][::2]
    model = FeatureDistanceClassifier(FrozenEstimator(network), layer=layer)
    u = model.set_params(n_neighbors=n_neighbors).fit(X, y).predict_uncertainty(iris[0][1::2])
    new, known = (features_of(network, rows, layer) for rows in (iris[0][1::2], X))
    distances = [cdist(*parts, "cosine") for parts in zip(new, known, strict=True)]
    expected = np.sort(np.mean(distances, axis=0), axis=1)[:, :n_neighbors].mean(axis=1)
    np.testing.assert_allclose(u.epistemic, expected, atol=1e-6)
    np.testing.assert_array_equal(u.total, u.epistemic)
    assert np.isnan(u.aleatoric).all()


@pytest.mark.parametrize("layer", CUTS)
@pytest.mark.parametrize("step", [1, 15])  # the covariance of ten samples is shrunk
def test_mahalanobis_distance_is_that_to_the_nearest_class_mean(iris, network, layer, step):
    iris = [each[::step] for each in iris]
    model = FeatureDistanceClassifier(FrozenEstimator(network), layer=layer)
    model.set_params(distance="mahalanobis").fit(*iris)
    features = np.hstack(features_of(network, iris[0], layer))
    means = np.stack([features[iris[1] == c].mean(axis=0) for c in range(3)])
    residuals = features - means[iris[1]]
    scale = residuals.std(axis=0)
    scale[scale == 0] = 1
    covariance = EmpiricalCovariance(assume_centered=True).fit(residuals / scale).covariance_
    if len(features) < 5 * len(covariance) or np.linalg.cond(covariance) > 1e6:
        covariance = LedoitWolf(assume_centered=True).fit(residuals / scale).covariance_
    precision = np.linalg.inv(scale[:, None] * covariance * scale)
    X = 3 * iris[0][:10]
    rows = np.hstack(features_of(network, X, layer))
    expected = [min(mahalanobis(row, mean, precision) ** 2 for mean in means) for row in rows]
    np.testing.assert_allclose(model.predict_uncertainty(X).epistemic, expected, rtol=1e-6)


@pytest.mark.parametrize("distance", DISTANCES)
def test_model_that_starts_with_a_linear_layer_is_compared_in_its_inputs(iris, distance):
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    u = FeatureDistanceClassifier(pipe, distance=distance).fit(*iris).predict_uncertainty(iris[0])
    scaled = StandardScaler().fit_transform(iris[0])
    direct = FeatureDistanceClassifier(LogisticRegression(), distance=distance)
    expected = direct.fit(scaled, iris[1]).predict_uncertainty(scaled)
    np.testing.assert_allclose(u, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("distance", DISTANCES)
def test_neither_batches_nor_samples_of_weight_zero_matter(iris, network, distance, monkeypatch):
    model = FeatureDistanceClassifier(FrozenEstimator(network), distance=distance)
    kept = iris[1] != 2
    whole = model.fit(iris[0][kept], iris[1][kept]).predict_uncertainty(iris[0])
    monkeypatch.setattr(module_under_test, "_BATCH_SIZE", 7)
    np.testing.assert_allclose(model.predict_uncertainty(iris[0]), whole, rtol=1e-6, atol=1e-12)
    weighted = model.fit(*iris, sample_weight=kept).predict_uncertainty(iris[0])
    np.testing.assert_allclose(weighted, whole, rtol=1e-6, atol=1e-12)


def test_features_that_are_all_zero_have_a_distance():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    model = FeatureDistanceClassifier(LogisticRegression(), n_neighbors=2).fit(X, [0, 0, 1, 1])
    found = model.predict_uncertainty([[0.0, 0.0], [5.0, 0.0], [-1.0, 0.0]]).epistemic
    np.testing.assert_allclose(found, [0.25, 0.0, 0.75], atol=1e-7)


def test_fewer_samples_than_neighbours_are_warned_of(iris):
    X, y = iris[0][::15], iris[1][::15]
    with pytest.warns(UserWarning, match="only 10"):
        few = FeatureDistanceClassifier(LogisticRegression(), n_neighbors=20).fit(X, y)
    expected = FeatureDistanceClassifier(LogisticRegression(), n_neighbors=10).fit(X, y)
    found = few.predict_uncertainty(iris[0])
    np.testing.assert_array_equal(found, expected.predict_uncertainty(iris[0]))


def test_rounding_in_single_precision_is_no_distance():
    X = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    y = np.arange(1000) % 3
    options = {"distance": "mahalanobis", "layer": "last"}

    def sum_of_shares(self, X):  # the last of its features is 1 but for rounding
        shares = self.shares(X).softmax(-1)
        return self.last(torch.cat([shares, shares.sum(-1, keepdim=True)], -1))

    def build():
        return Written(sum_of_shares, shares=nn.Linear(4, 64), last=nn.Linear(65, 3))

    networks = seeded_module(build), seeded_module(build).double()
    found, expected = (FeatureDistanceClassifier(each, **options).fit(X, y) for each in networks)
    expected = expected.predict_uncertainty(X).epistemic
    np.testing.assert_allclose(found.predict_uncertainty(X).epistemic, expected, rtol=1e-3)


def test_a_last_layer_need_not_be_linear_and_layers_without_single_vectors_are_left_out(iris):
    def of_convolution(self, X):
        return self.layer(X[:, None]).flatten(1)

    network = seeded_module(lambda: Written(of_convolution, layer=nn.Conv1d(1, 3, 4)).double())
    model = FeatureDistanceClassifier(FrozenEstimator(network), n_neighbors=1).fit(*iris)
    np.testing.assert_allclose(model.predict_uncertainty(iris[0]).epistemic, 0, atol=1e-12)

    def mixing(self, X):  # a linear layer for each of four positions, and one on their mean
        return self.last(self.mix(X[..., None]).tanh().mean(1))

    def build():
        return Written(mixing, mix=nn.Linear(1, 5), last=nn.Linear(5, 3)).double()

    network = seeded_module(build)
    both = (FeatureDistanceClassifier(FrozenEstimator(network), layer=x) for x in ("both", "last"))
    found, expected = (each.fit(*iris).predict_uncertainty(iris[0]) for each in both)
    np.testing.assert_array_equal(found, expected)


def test_a_sample_of_weight_2_equals_two_neighbours(iris, network):
    weight = 1 + np.arange(150) % 3
    model = FeatureDistanceClassifier(FrozenEstimator(network), n_neighbors=7)
    found = model.fit(*iris, sample_weight=weight).predict_uncertainty(iris[0]).epistemic
    repeated = model.fit(iris[0].repeat(weight, 0), iris[1].repeat(weight))
    expected = repeated.predict_uncertainty(iris[0]).epistemic
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
