"""Uncertainty of a single model from how far an input is from the training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skuq.base import FloatArray, Uncertainty
from skuq.baselines._sampled import (
    AT_LEAST_ONE,
    COMMON_CONSTRAINTS,
    BaselineClassifier,
    TrainingRows,
)
from skuq.networks import LayerInput, evaluate, moved
from skuq.validation import refuse_ineffective, warn_user

_BATCH_SIZE = 8192  # inputs whose features are held at once when predicting


class FeatureDistanceClassifier(BaselineClassifier):
    """Distance from the training data in the features of the given model.

    Nothing is sampled or trained beside the model: inputs that look like none of the training
    data, to the layers that the model has learned, are the uncertain ones.

    Parameters
    ----------
    estimator : object, default=None
        The model, as `QUAMClassifier` takes it: None trains the default network, a skorch net
        or scikit-learn model is cloned and trained, and a model in a `FrozenEstimator` or a
        `torch.nn.Module` is taken as it is; `fit` then needs the data that it was trained on.
    distance : {"cosine", "mahalanobis"}, default="cosine"
        "cosine": cosine distance to a near neighbour among the training samples.
        "mahalanobis": squared Mahalanobis distance to the nearest class mean, with one
        covariance for all classes.
    n_neighbors : int, default=20
        With ``distance="cosine"``: which neighbour, counted from the nearest; the most distant
        one if there are fewer training samples.
    layer : {"first-linear", "last"}, default="first-linear"
        Features that are compared: those that enter the first `torch.nn.Linear` of the network,
        which are the inputs themselves if it starts with one, or those that enter the last
        layer.
    device : str, default="auto"
        Where to compute features; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling and mini-batches of the training.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The model.
    neighbors_ : sklearn.neighbors.NearestNeighbors
        Search among the training samples, or among class means.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Total = epistemic = the distance, which has no unit: from 0 to 2 for "cosine", and a sum of
    squares of as many standard deviations as there are features for "mahalanobis". Aleatoric = 0,
    since a distance says nothing about noise in the labels; `ReferenceClassifier` measures it.
    Distances rank inputs and cannot be added to uncertainty in nats.

    Directions of features are compared by "cosine", not their lengths; features that are all 0
    are at distance 1/2 from all others. Sample weights count in the training of the model; in the
    distances only whether they are 0, which leaves a sample out. A training sample is its own
    nearest neighbour. A feature that does not vary within classes, but for rounding in the type
    of numbers that the network computes with, has no standard deviation to be scaled by: its unit
    matters to "mahalanobis".

    References
    ----------
    Sun, Ming, Zhu, Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022,
    with features before the last layer; Lee, Lee, Lee, Shin, "A Simple Unified Framework for
    Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import FeatureDistanceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> near = FeatureDistanceClassifier(FrozenEstimator(mine), distance="mahalanobis").fit(X, y)
    >>> u = near.predict_uncertainty([X[0], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[0] < u.epistemic[1])
    True
    """

    _parameter_constraints: dict[str, Any] = {
        **{name: COMMON_CONSTRAINTS[name] for name in ("estimator", "device", "random_state")},
        "distance": [StrOptions({"cosine", "mahalanobis"})],
        "n_neighbors": AT_LEAST_ONE,
        "layer": [StrOptions({"first-linear", "last"})],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        distance: str = "cosine",
        n_neighbors: int = 20,
        layer: str = "first-linear",
        device: str = "auto",
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.distance = distance
        self.n_neighbors = n_neighbors
        self.layer = layer
        self.device = device
        self.random_state = random_state

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Measure the distance of inputs from the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part, each of shape (n_samples,): the distance, 0 and
            the distance, without a unit.
        """
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        inputs, network = self._inputs(X), moved(self._features, self._device())
        batches = gen_batches(len(inputs), _BATCH_SIZE)
        distance = np.concatenate([self._distances(network, inputs[rows]) for rows in batches])
        return Uncertainty.from_parts(np.zeros_like(distance), distance)

    def _training_options(self) -> dict[str, Any]:
        if self.distance == "mahalanobis":
            refuse_ineffective(
                self, ["n_neighbors"], "with distance='mahalanobis', which compares class means."
            )
        return {}

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        self._features = self._layer_input(train.X[:1])
        computed = self._features_of(self._features, train.X)
        features = computed.double().numpy()
        if self.distance == "cosine":
            self._embed: Callable[[FloatArray], NDArray[Any]] = unit_vectors
            self._search_among(features, self._n_neighbors_of(len(features)))
        else:
            precision = torch.finfo(computed.dtype).eps
            means, self._embed = fit_whitening(features, train.y.numpy(), precision=precision)
            self._search_among(means, 1)

    def _layer_input(self, X: Tensor) -> LayerInput:
        network: Any = self.model_.network
        if self.layer == "last":
            return LayerInput.of_last_layer(network, X)
        features = LayerInput.of_first_linear(network, X)
        if features is None:
            raise ValueError(
                f"{type(network).__name__} has no torch.nn.Linear; use layer='last' for the "
                "features that enter its last layer."
            )
        return features

    def _n_neighbors_of(self, n_samples: int) -> int:
        if self.n_neighbors > n_samples:
            warn_user(
                f"`n_neighbors` is {self.n_neighbors}, but there are {n_samples} training "
                "samples only; the most distant one is taken."
            )
        return min(self.n_neighbors, n_samples)

    def _search_among(self, features: FloatArray, n_neighbors: int) -> None:
        search = NearestNeighbors(n_neighbors=n_neighbors, algorithm="brute", metric="sqeuclidean")
        self.neighbors_ = search.fit(self._embed(features))

    def _features_of(self, network: nn.Module, inputs: Tensor) -> Tensor:
        return evaluate(network, inputs, device=self._device()).flatten(1)

    def _distances(self, network: nn.Module, inputs: Tensor) -> FloatArray:
        features = self._features_of(network, inputs).double().numpy()
        distances, _ = self.neighbors_.kneighbors(self._embed(features))
        return distances[:, -1].astype(np.float64)


def unit_vectors(features: FloatArray) -> NDArray[np.float32]:
    """Scale features so that squared Euclidean distances are cosine distances."""
    # |a - b|^2 = 1 - cos(a, b) for vectors of squared length 1/2.
    scaled: NDArray[np.float32] = (normalize(features) * np.sqrt(0.5)).astype(np.float32)
    return scaled


@dataclass(frozen=True)
class Whitening:
    """Linear map after which squared Euclidean distances are squared Mahalanobis distances.

    Attributes
    ----------
    centre : ndarray of shape (n_features,)
        Subtracted first.
    matrix : ndarray of shape (n_features, n_features)
        Square root of the precision.
    """

    centre: FloatArray
    matrix: FloatArray

    def __call__(self, features: FloatArray) -> FloatArray:
        whitened: FloatArray = (features - self.centre) @ self.matrix
        return whitened


def fit_whitening(
    features: FloatArray, codes: NDArray[np.int64], *, precision: float = 0.0
) -> tuple[FloatArray, Whitening]:
    """Fit normal distributions to classes, with one covariance for all of them.

    The covariance is that of features around their class means, shrunk as Ledoit and Wolf
    proposed after each feature was scaled to variance 1, so that features of any scale and
    number can be used. Those that do not vary within classes are not scaled.

    Shapes: `features` (n_samples, n_features), `codes` (n_samples,); returns (n_classes,
    n_features).
    """
    present, of_sample = np.unique(codes, return_inverse=True)
    means = np.stack([features[codes == code].mean(axis=0) for code in present])
    residuals = features - means[of_sample]
    scale = np.sqrt((residuals**2).mean(axis=0))
    rounding = max(1e-12, 10 * precision)  # of sums, which is more than that of single numbers
    varies = scale > rounding * np.abs(features).max(axis=0, initial=0)
    if not varies.any():
        raise ValueError(
            "The features of the training samples do not vary within classes, so that Mahalanobis "
            "distances are not defined; use distance='cosine' or more training samples."
        )
    scale[~varies] = 1
    covariance = LedoitWolf(assume_centered=True).fit(residuals / scale)
    variances, directions = np.linalg.eigh(covariance.covariance_)
    smallest = np.finfo(np.float64).eps * len(variances) * variances.max()
    matrix = directions / np.sqrt(variances.clip(smallest)) / scale[:, None]
    return means, Whitening(features.mean(axis=0), matrix)
