"""Uncertainty of a single model: entropy of its prediction, or distance from the training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skuq._information import entropy
from skuq._networks import LayerInput, evaluate
from skuq.base import FloatArray, Uncertainty, with_index_of
from skuq.baselines._sampled import (
    AT_LEAST_ONE,
    COMMON_CONSTRAINTS,
    BaselineClassifier,
    TrainingRows,
)
from skuq.features import Features, fit_whitening, unit_vectors
from skuq.validation import refuse_ineffective, warn_user

_BATCH_SIZE = 8192  # number of inputs whose features are in memory at once during prediction


@dataclass(repr=False, eq=False)
class ReferenceClassifier(BaselineClassifier):
    """The given model alone: the uncertainty is the entropy of its prediction.

    Parameters
    ----------
    estimator : object, default=None
        The model: any classifier with `predict_proba`, or a node classifier. None trains the
        default network. A model in a `FrozenEstimator` or a `torch.nn.Module` is used without
        retraining; any other model is cloned and trained.
    device : str, default="auto"
        Device of a network; "auto" is CUDA if available, otherwise the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of the training.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.Model
        The model.

    Notes
    -----
    In nats: total = aleatoric = entropy of the model's prediction. The epistemic part is NaN,
    because it cannot be measured with a single model; `score_samples` ranks inputs by the entropy.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Section 4, where "the aleatoric uncertainty of the reference
    model (as in Eq. 2)" is a baseline.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import ReferenceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> reference = ReferenceClassifier(FrozenEstimator(mine)).fit(X, y)
    >>> reference.predict_uncertainty(X[:2]).epistemic
    array([nan, nan])
    """

    estimator: Any = None
    _: KW_ONLY
    device: str = "auto"
    random_state: Any = None

    _supports_ids = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        name: COMMON_CONSTRAINTS[name] for name in ("estimator", "device", "random_state")
    }

    def _training_options(self) -> dict[str, Any]:
        return {"form": "natural"}

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute the entropy of the model's prediction in nats; the epistemic part is NaN."""
        aleatoric = np.asarray(entropy(self._log_proba(self._inputs(X))))
        return with_index_of(X, Uncertainty.from_parts(aleatoric, None))


@dataclass(repr=False, eq=False)
class FeatureDistanceClassifier(BaselineClassifier):
    """Distance from the training data in the features of the given model.

    Inputs whose hidden features are far from the features of all training data are uncertain.

    Parameters
    ----------
    estimator : object, default=None
        The model, as in `QUAMClassifier`; a model that is not retrained needs its own training data
        in `fit`.
    distance : {"cosine", "mahalanobis"}, default="cosine"
        "cosine": mean cosine distance to the nearest neighbours among the training samples.
        "mahalanobis": squared Mahalanobis distance to the nearest class mean, with one
        covariance for all classes.
    n_neighbors : int, default=10
        With ``distance="cosine"``: number of neighbours; all if there are fewer training samples.
    layer : {"both", "first-linear", "last"}, default="both"
        Features that are compared. "first-linear": the inputs of the first `torch.nn.Linear`,
        which are the network's inputs if it starts with a linear layer. "last": the inputs of the
        last layer with weights. "both": the features of both layers, or only those of "last" if
        there is no linear layer, or if the first linear layer does not receive one vector per
        input, as in transformers.
    device, random_state
        As in `ReferenceClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The model.
    neighbors_ : sklearn.neighbors.NearestNeighbors
        Nearest-neighbour index of the training samples, or of the class means.

    Notes
    -----
    Total = epistemic = the distance, which has no unit. "cosine" distances lie between 0 and 2.
    "mahalanobis" distances are squared deviations, each in units of a standard deviation, summed
    over the features. The aleatoric part is NaN, because a distance does not measure label noise;
    `ReferenceClassifier` measures it. Distances rank inputs and cannot be added to uncertainty in
    nats.

    A zero vector is at cosine distance 1/2 from all other vectors. With layer="both", the distance
    is the mean of two cosine distances. Sample weights count in the training of the model and in
    the distances: a sample of weight 2 equals two neighbours. A training sample is its own nearest
    neighbour. A feature that does not vary within classes, up to rounding in the network's dtype,
    cannot be standardised; "mahalanobis" then depends on the feature's unit.

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

    estimator: Any = None
    _: KW_ONLY
    distance: str = "cosine"
    n_neighbors: int = 10
    layer: str = "both"
    device: str = "auto"
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{name: COMMON_CONSTRAINTS[name] for name in ("estimator", "device", "random_state")},
        "distance": [StrOptions({"cosine", "mahalanobis"})],
        "n_neighbors": AT_LEAST_ONE,
        "layer": [StrOptions({"both", "first-linear", "last"})],
    }

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute the distance of inputs from the training data; the aleatoric part is NaN."""
        check_is_fitted(self)
        self._validate_params()  # parameters may have changed since `fit`
        inputs = self._inputs(X)
        batches = gen_batches(len(inputs), _BATCH_SIZE)
        distance = np.concatenate([self._distances(inputs[rows]) for rows in batches])
        return with_index_of(X, Uncertainty.from_parts(None, distance))

    def _training_options(self) -> dict[str, Any]:
        if self.distance == "mahalanobis":
            refuse_ineffective(
                self, ["n_neighbors"], "with distance='mahalanobis', which compares class means."
            )
        return {}

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        self._layers = self._compared_layers(train.X)
        features = self._features_of(train.X)
        if self.distance == "cosine":
            self._embed: Callable[[Features], NDArray[Any]] = unit_vectors
            weight = train.weight.numpy()
            self._counts = None if (weight == 1).all() else weight
            self._search_among(features, self._n_neighbors_of(weight))
        else:
            precision = max(np.finfo(part.dtype).eps for part in features)
            stacked = np.hstack(features).astype(np.float64)
            codes, weight = train.y.numpy(), train.weight.numpy()
            means, self._embed = fit_whitening(stacked, codes, weight=weight, precision=precision)
            self._counts = None
            self._search_among([means], 1)

    def _compared_layers(self, X: Tensor) -> list[str]:
        """Names of the layers whose inputs are the features."""
        network: Any = self.model_.network
        if self.layer == "first-linear":
            first = LayerInput.of_first_linear(network, X)
            if first is None:
                raise ValueError(
                    f"{type(network).__name__} has no torch.nn.Linear; use layer='last' for the "
                    "inputs of its last layer."
                )
            return [first.name]
        names = [LayerInput.of_last_layer(network, X).name]
        if self.layer == "both":
            names.append(LayerInput.of_first_vectors(network, X).name)
        return sorted(set(names))

    def _n_neighbors_of(self, weight: FloatArray) -> int:
        """Smallest k for which the weights of any k rows sum to at least `n_neighbors`."""
        n_samples = weight.sum()
        if self.n_neighbors > n_samples:
            warn_user(
                f"`n_neighbors` is {self.n_neighbors}, but there are only {n_samples:.6g} training "
                "samples; all of them are used."
            )
        fewest = np.cumsum(np.sort(weight))  # worst case: the nearest rows have the least weights
        return min(1 + int(np.searchsorted(fewest, self.n_neighbors)), len(weight))

    def _search_among(self, features: Features, n_neighbors: int) -> None:
        search = NearestNeighbors(n_neighbors=n_neighbors, algorithm="brute", metric="sqeuclidean")
        self.neighbors_ = search.fit(self._embed(features))

    def _features_of(self, inputs: Tensor) -> Features:
        """Compute the features of each compared layer, (n_samples, n_features)."""
        device = self._device()
        network = self.model_.on(device)
        layers = [LayerInput(network, name) for name in self._layers]
        return [evaluate(each, inputs, device=device).flatten(1).numpy() for each in layers]

    def _distances(self, inputs: Tensor) -> FloatArray:
        distances, rows = self.neighbors_.kneighbors(self._embed(self._features_of(inputs)))
        if self._counts is None:
            return distances.mean(axis=1, dtype=np.float64)
        # Clip the weight of the last neighbour so that the weights sum to `n_neighbors`.
        reached = np.minimum(self._counts[rows].cumsum(axis=1), self.n_neighbors)
        share = np.diff(reached, axis=1, prepend=0)
        mean: FloatArray = (distances * share).sum(axis=1) / reached[:, -1]
        return mean
