"""Distances from the training data in the features of a model."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, mahalanobis
from sklearn.covariance import LedoitWolf
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skuq.baselines import FeatureDistanceClassifier
from skuq.baselines import _single_model as module_under_test
from tests.baselines.oracles import WithoutLinear, seeded_module

DISTANCES = ("cosine", "mahalanobis")


@pytest.fixture(scope="module")
def network():
    """Features of six units before the first linear layer, of five before the last."""

    def layers():
        before = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten()
        return *before, nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)

    return seeded_module(lambda: nn.Sequential(*layers()).double())


CUTS = {"first-linear": [4], "last": [6], "both": [4, 6]}


def features_of(network, X, layer):
    return [network[:cut](torch.as_tensor(X)).detach().numpy() for cut in CUTS[layer]]


@pytest.mark.parametrize(
    ("layer", "n_neighbors"), [("first-linear", 1), ("last", 20), ("both", 20)]
)
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
def test_mahalanobis_distance_is_that_to_the_nearest_class_mean(iris, network, layer):
    model = FeatureDistanceClassifier(FrozenEstimator(network), layer=layer)
    model.set_params(distance="mahalanobis").fit(*iris)
    features = np.hstack(features_of(network, iris[0], layer))
    means = np.stack([features[iris[1] == c].mean(axis=0) for c in range(3)])
    residuals = features - means[iris[1]]
    scale = residuals.std(axis=0)
    scale[scale == 0] = 1
    shrunk = LedoitWolf(assume_centered=True).fit(residuals / scale).covariance_
    precision = np.linalg.inv(scale[:, None] * shrunk * scale)
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
def test_result_is_the_same_in_batches_and_without_samples_of_weight_zero(
    iris, network, distance, monkeypatch
):
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


class SumOfShares(nn.Module):
    """The last of its features is 1 but for rounding."""

    def __init__(self):
        super().__init__()
        self.shares, self.last = nn.Linear(4, 64), nn.Linear(65, 3)

    def forward(self, X):
        shares = self.shares(X).softmax(-1)
        return self.last(torch.cat([shares, shares.sum(-1, keepdim=True)], -1))


def test_rounding_in_single_precision_is_no_distance():
    X = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    y = np.arange(1000) % 3
    options = {"distance": "mahalanobis", "layer": "last"}
    networks = seeded_module(SumOfShares), seeded_module(SumOfShares).double()
    found, expected = (FeatureDistanceClassifier(each, **options).fit(X, y) for each in networks)
    expected = expected.predict_uncertainty(X).epistemic
    np.testing.assert_allclose(found.predict_uncertainty(X).epistemic, expected, rtol=1e-3)


def test_network_without_linear_layers_has_a_last_layer(iris):
    frozen = FrozenEstimator(seeded_module(lambda: WithoutLinear().double()))
    model = FeatureDistanceClassifier(frozen, n_neighbors=1).fit(*iris)
    np.testing.assert_allclose(model.predict_uncertainty(iris[0]).epistemic, 0, atol=1e-12)


class Mixing(nn.Module):
    """A linear layer for each of four positions, and one on their mean."""

    def __init__(self):
        super().__init__()
        self.mix, self.last = nn.Linear(1, 5), nn.Linear(5, 3)

    def forward(self, X):
        return self.last(self.mix(X[..., None]).tanh().mean(1))


def test_layers_without_a_single_vector_for_each_input_are_left_out(iris):
    frozen = FrozenEstimator(seeded_module(lambda: Mixing().double()))
    found, expected = (
        FeatureDistanceClassifier(frozen, layer=layer).fit(*iris).predict_uncertainty(iris[0])
        for layer in ("both", "last")
    )
    np.testing.assert_array_equal(found, expected)


def test_a_sample_of_weight_2_equals_two_neighbours(iris, network):
    weight = 1 + np.arange(150) % 3
    model = FeatureDistanceClassifier(FrozenEstimator(network), n_neighbors=7)
    found = model.fit(*iris, sample_weight=weight).predict_uncertainty(iris[0]).epistemic
    repeated = model.fit(iris[0].repeat(weight, 0), iris[1].repeat(weight))
    expected = repeated.predict_uncertainty(iris[0]).epistemic
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
