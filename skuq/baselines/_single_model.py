"""Uncertainty of a single model: entropy, distance from the training data, or dropout."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skuq._information import entropy
from skuq._networks import LayerInput, SampleFeatures, as_double, evaluate, float64_mlp, on_device
from skuq.base import FloatArray, Uncertainty, with_index_of
from skuq.baselines._sampled import (
    AT_LEAST_ONE,
    BaselineClassifier,
    SampledModelsClassifier,
    TrainingRows,
)
from skuq.features import Features, fit_whitening, unit_vectors
from skuq.models import NetworkModel
from skuq.validation import refuse_ineffective, warn_user

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_BATCH_SIZE = 8192  # maximum number of inputs whose features a prediction holds in memory at once


@dataclass(repr=False, eq=False)
class ReferenceClassifier(BaselineClassifier):
    """A single model, whose uncertainty is the entropy of its prediction.

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
    Schweighofer et al., NeurIPS 2023, Section 4.

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

    _supports_ids = True

    def _training_options(self) -> dict[str, Any]:
        return {"form": "natural"}

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute the entropy of the model's prediction in nats; the epistemic part is NaN."""
        aleatoric = np.asarray(entropy(self._log_proba(self._inputs(X))))
        return with_index_of(X, Uncertainty.from_parts(aleatoric, None))


@dataclass(repr=False, eq=False, kw_only=True)
class FeatureDistanceClassifier(BaselineClassifier):
    """Distance from the training data in the features of a trained model.

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
    layer : {"both", "last"}, default="both"
        Features that are compared. "last": the inputs of the last layer with weights. "both": in
        addition, the inputs of the first `torch.nn.Linear`, which may be the network's inputs,
        unless this layer receives several vectors per input, as in transformers, or is missing.
    device, random_state
        As in `ReferenceClassifier`.

    Attributes
    ----------
    classes_, model_
        As in `ReferenceClassifier`.
    neighbors_ : sklearn.neighbors.NearestNeighbors
        Nearest-neighbour index of the training samples, or of the class means.

    Notes
    -----
    Total = epistemic = the distance, which has no unit: "cosine" is between 0 and 2; "mahalanobis"
    is a sum, over features, of squared deviations in units of the standard deviation. The aleatoric
    part is NaN, because a distance does not measure label noise. Distances rank inputs and cannot
    be added to uncertainty in nats.

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
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import FeatureDistanceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000)
    >>> near = FeatureDistanceClassifier(model, distance="mahalanobis").fit(X, y)
    >>> u = near.predict_uncertainty([X[0], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[0] < u.epistemic[1])
    True
    """

    distance: str = "cosine"
    n_neighbors: int = 10
    layer: str = "both"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaselineClassifier._parameter_constraints,
        "distance": [StrOptions({"cosine", "mahalanobis"})],
        "n_neighbors": AT_LEAST_ONE,
        "layer": [StrOptions({"both", "last"})],
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
            n_neighbors = self._n_neighbors_of(weight)
        else:
            precision = max(np.finfo(part.dtype).eps for part in features)
            stacked = np.hstack(features).astype(np.float64)
            codes, weight = train.y.numpy(), train.weight.numpy()
            means, self._embed = fit_whitening(stacked, codes, weight=weight, precision=precision)
            self._counts, features, n_neighbors = None, [means], 1
        search = NearestNeighbors(n_neighbors=n_neighbors, algorithm="brute", metric="sqeuclidean")
        self.neighbors_ = search.fit(self._embed(features))

    def _compared_layers(self, X: Tensor) -> list[str]:
        network: Any = self.model_.network
        names = [LayerInput.of_last_layer(network, X).name]
        if self.layer == "both":
            names.append(LayerInput.of_first_vectors(network, X).name)
        return sorted(set(names))

    def _n_neighbors_of(self, weight: FloatArray) -> int:
        """Return the smallest k for which the weights of any k rows sum to >= `n_neighbors`."""
        n_samples = weight.sum()
        if self.n_neighbors > n_samples:
            warn_user(
                f"`n_neighbors` is {self.n_neighbors}, but there are only {n_samples:.6g} training "
                "samples; all of them are used."
            )
        fewest = np.cumsum(np.sort(weight))  # worst case: the nearest rows have the lowest weights
        return min(1 + int(np.searchsorted(fewest, self.n_neighbors)), len(weight))

    def _features_of(self, inputs: Tensor) -> Features:
        """Compute the features of each compared layer, (n_samples, n_features)."""
        device = self._device()
        layers = [SampleFeatures(self.model_.on(device), name) for name in self._layers]
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


@dataclass(repr=False, eq=False, kw_only=True)
class MCDropoutClassifier(SampledModelsClassifier):
    """Disagreement of a network's predictions under random dropout masks (MC dropout).

    Parameters
    ----------
    estimator : object, default=None
        The model, as in `QUAMClassifier`, or a node classifier. None trains a network with one
        hidden layer of 100 units, followed by dropout that drops the same units for all inputs of a
        batch. The module must contain `torch.nn.Dropout` (or `Dropout1d`, `Dropout2d`,
        `Dropout3d`). Functional dropout stays inactive.
    n_samples : int, default=100
        Number of dropout masks. Can be changed without refitting.
    dropout : float, default=0.2
        Dropout rate of the default network; a given model keeps its own rate.
    setting, batch_size, device
        As in `DeepEnsembleClassifier`; quantities are defined there too.
    random_state : int, RandomState instance or None, default=None
        Seed of the training and of the dropout masks, which are drawn once, in `fit`.

    Attributes
    ----------
    classes_, model_
        As in `ReferenceClassifier`.

    Notes
    -----
    The given model, to which `setting` refers, is the network without dropout. All test points, and
    all nodes of a graph, have the same masks.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; as a baseline:
    Schweighofer et al., NeurIPS 2023, Appendix C.3; Yu et al., AISTATS 2025, Appendix C.3.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> from skuq.baselines import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> dropout = MCDropoutClassifier(random_state=0).fit(scale(X), y)
    >>> u = dropout.predict_uncertainty([[0.0] * 4, [-1.0, 0.8, -1.3, -1.3]])
    >>> bool(u.epistemic[0] > u.epistemic[1])  # between two classes, and amid the third
    True
    """

    n_samples: int = 100
    dropout: float = 0.2

    _supports_ids = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SampledModelsClassifier._parameter_constraints,
        "n_samples": AT_LEAST_ONE,
        "dropout": [Interval(Real, 0, 1, closed="neither")],
    }

    def _training_options(self) -> dict[str, Any]:
        if self.estimator is not None:
            refuse_ineffective(self, ["dropout"], "on a given model, which keeps its own rate.")
        return {"network": partial(_default_network, dropout=self.dropout)}

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        _dropout_modules(self.model_.network)  # raises an error if there are none

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        masked = MaskedNetworks(self.model_.to(device), self.n_samples, self._sampling_seed)
        return lambda X: as_double(masked.outputs(self.model_.inputs(X))).log_softmax(-1)


class BatchDropout(nn.Dropout):
    """Dropout of the same units for all inputs, so that a sample of weight 2 equals two samples."""

    def forward(self, X: Tensor) -> Tensor:
        return X * super().forward(torch.ones_like(X[:1]))


def _default_network(n_features: int, n_outputs: int, dropout: float) -> nn.Module:
    network = float64_mlp(n_features, n_outputs, dropout=dropout)
    for name, part in network.named_children():
        if isinstance(part, nn.Dropout):
            network.set_submodule(name, BatchDropout(part.p))
    return network


def _dropout_modules(network: nn.Module) -> list[Any]:
    kinds = (nn.Dropout, *_CHANNELS)
    modules = [part for part in network.modules() if isinstance(part, kinds) and part.p > 0]
    if not modules:
        raise ValueError(
            "The model has no torch.nn.Dropout, Dropout1d, Dropout2d or Dropout3d with p > 0. Only "
            "these are sampled, not AlphaDropout, or dropout in attention or recurrent layers. Use "
            "estimator=None for a default network with dropout, or use another method."
        )
    return modules


class MaskedNetworks:
    """Outputs of a model under random dropout masks, on the model's device.

    A mask drops the same units for all inputs, so that the outputs for one input do not depend on
    the other inputs. The first axis of the dropout modules' inputs must be the axis of the model's
    inputs. A smaller `n_samples` uses the first masks of a larger `n_samples`.
    """

    def __init__(self, model: NetworkModel, n_samples: int, seed: int):
        self._masked = replace(model, module=deepcopy(model.module))
        self._seeds = np.random.RandomState(seed).randint(2**31 - 1, size=n_samples)
        self._masks: list[Tensor] | None = None  # one item per call of a dropout module, in order
        self._calls: list[tuple[Any, Tensor]] = []  # dropout modules and their outputs
        self._current: Iterator[Tensor] | None = None
        for module in _dropout_modules(self._masked.module):
            module.register_forward_hook(self._drop)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Compute the outputs, (n_inputs, n_samples, n_outputs)."""
        inputs = on_device(inputs, self._masked.device)
        if self._masks is None:
            self._masked.one_pass(inputs[:1])  # records the calls of dropout modules
            generators = [torch.Generator().manual_seed(int(seed)) for seed in self._seeds]
            drawn = [[_mask(*call, generator) for call in self._calls] for generator in generators]
            stacked = [torch.stack(masks) for masks in zip(*drawn, strict=True)]
            self._masks, self._calls = [masks.to(inputs.device) for masks in stacked], []
        outputs = []
        for number in range(len(self._seeds)):
            self._current = (masks[number] for masks in self._masks)
            outputs.append(self._masked.one_pass(inputs))
        return torch.stack(outputs, dim=1)

    def _drop(self, module: Any, _: Any, output: Tensor) -> Tensor:
        # `output` equals the module's input, because the module is in evaluation mode.
        if self._current is None:
            self._calls.append((module, output))
            return output
        return output * next(self._current)


def _mask(module: Any, output: Tensor, generator: torch.Generator) -> Tensor:
    units = output.shape[1:2] if isinstance(module, _CHANNELS) else output.shape[1:]
    ones = (1,) * (output.ndim - 1 - len(units))
    keep = 1.0 - module.p
    mask = torch.empty(1, *units, *ones, dtype=output.dtype, device="cpu")
    return mask.bernoulli_(keep, generator=generator).div_(keep or 1.0)
