"""What searches ask for and what they find, of a classifier and of a regressor.

The objectives of searches by gradients need torch and are imported with it; all else takes numpy
arrays and Tensors alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skuq.base import FloatArray, IntArray
from skuq.information import Decomposition, log_softmax
from skuq.labels import codes_of
from skuq.quam._importance_sampling import (
    AdversarialModels,
    ImportanceSampling,
    Trajectories,
    as_numpy,
    best_adversarial_models,
    estimate_uncertainty,
    joined_models,
    plausible_range,
)
from skuq.quam._regression_sampling import (
    DIRECTIONS,
    AdversarialRegressors,
    best_adversarial_regressors,
    estimate_spread,
    gaussian_loss,
    gaussian_uncertainty,
)
from skuq.stored import stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from skuq.quam._objectives import Objective

# How far from the given model's prediction models on a pool are pulled, in standard deviations
# of the target: about to the ends of its range.
_PULL = 2.0
# Classes that n_targets="auto" asks for at most: each is a search, and an input costs the number of
# searches times the number of classes.
MOST_TARGETS = 10


class Search(ABC, BaseEstimator):
    """A way to search models, as a parameter object."""

    pool: Any
    #: Whether it searches for each input anew, when its uncertainty is asked for.
    pointwise: ClassVar[bool] = False

    @abstractmethod
    def check_suits(self, estimator: Any) -> None:
        """Refuse models that cannot be searched in this way."""

    def searches_in_memory(self, problem: Problem, n_searches: int) -> int:
        """How many searches fit into memory; an error if less than two, a warning if not all."""
        raise NotImplementedError


class Problem:
    """A given model and its training data, as a search needs them."""


@dataclass(frozen=True)
class Found(ABC):
    """The models that searches on a pool found; they answer for any input.

    Attributes
    ----------
    targets : ndarray of shape (n_searches,), int64
        What each search asked for: the code of a class, -1 for any other prediction, or the
        direction, 1 or -1, of a displacement.
    excess_loss : ndarray of shape (n_searches, n_kept), float64
        Mean loss of each model above that of the reference model, in nats.
    standard_error : float
        Largest standard error of one of them, in nats: models whose losses differ by less
        explain the data equally well as far as the data can tell.
    held_out : bool
        Whether the losses are those of samples that none of these models has seen. The loss on
        its own training data does not compare a given model with others.
    """

    targets: IntArray
    excess_loss: FloatArray
    standard_error: float
    held_out: ClassVar[bool]

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Outputs of all models, (n_points, n_searches, n_kept, n_outputs), on the CPU.

        Those of networks are a Tensor, those of learners an array.
        """

    def without_training_data(self) -> Self:
        """The same models, without the data that they were searched with."""
        return self

    def centre(self, inputs: Any) -> FloatArray | None:
        """Outputs of the model that the others are variants of; None if it is the given one."""
        return None


def mean_loss(losses: FloatArray, weight: FloatArray) -> float:
    """Mean training loss of the reference model, in nats (L_ref), which must be finite."""
    mean = float(np.average(losses, weights=weight))
    if not np.isfinite(mean):
        raise ValueError(
            f"The model's loss on its training data is {mean}. A skorch net "
            "whose module returns logits needs criterion=torch.nn.CrossEntropyLoss; with "
            "skorch's default criterion the module must return probabilities."
        )
    return mean


def mean_excess(losses: FloatArray, weight: FloatArray) -> tuple[FloatArray, float]:
    """Mean of excess losses over samples, and the largest standard error of one.

    `losses` is (..., n_samples), `weight` how many samples each of these stands for.
    """
    n_samples = weight.sum()
    share = weight / n_samples
    mean = losses @ share
    variance = (losses - mean[..., None]) ** 2 @ share
    return mean, float(np.sqrt(variance.max() / n_samples))


class Outputs(NamedTuple):
    """What the given model and all others predict for some inputs."""

    reference: Any  # (n_points, n_outputs)
    models: Trajectories
    targets: Any = None  # (n_points, n_searches), classes; None if none were asked for
    centre: Any = None  # (n_points, n_outputs), of the model that the others vary


class Task(ABC):
    """What the searches of an estimator ask for, and how the models found are judged."""

    # Of a search for single points, where its parameters are "auto": the first penalty for a total
    # weight of the training samples, and its growth over all steps.
    growth: ClassVar[float]

    @abstractmethod
    def first_penalty(self, total_weight: float) -> float: ...

    @abstractmethod
    def targets(self, reference: Any) -> IntArray:
        """What searches on a pool ask for, given the model's outputs there; see `Found`."""

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        """As many of these targets as fit into memory."""
        if n < len(targets):
            raise MemoryError("Searches for more and less do not fit into memory together.")
        return targets

    @abstractmethod
    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        """Objective of networks at the inputs of a pool."""

    @abstractmethod
    def point_objective(self, reference: Tensor) -> Objective:
        """Objective of networks at single points, given the model's outputs there."""

    @abstractmethod
    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        """Losses of a model's outputs, in nats."""

    @abstractmethod
    def uncertainty(self, outputs: Outputs, sampling: ImportanceSampling) -> Decomposition:
        """Aleatoric and epistemic part for each input."""

    @abstractmethod
    def best_models(self, outputs: Outputs, gamma: float) -> Any:
        """The best adversarial model of each search."""


@stored("quam.output-bias")
class OutputBias(NamedTuple):
    """A parameter that shifts the mean that a network predicts, by the same amount everywhere.

    Attributes
    ----------
    name : str
        Its name; the first of its elements is meant.
    width : int
        How many elements it has.
    effect : float
        How much the mean grows per unit of the bias.
    """

    name: str
    width: int
    effect: float


@stored("quam.classification")
@dataclass(frozen=True)
class Classification(Task):
    """One search for each class, or for any other prediction than the given model's."""

    classes: NDArray[Any]
    targeted: bool
    n_targets: int | str | None
    growth: ClassVar[float] = 10.0

    def first_penalty(self, total_weight: float) -> float:
        # It ends at the number of samples: a search for one test point then minimises the negative
        # log posterior of the training set and one sample more, the point with the targeted class.
        return total_weight / 10

    def targets(self, reference: Any) -> IntArray:
        if not self.targeted:
            return np.array([-1])
        n_classes = reference.shape[1]
        return self.fewer_targets(reference, np.arange(n_classes), self._n_searches(n_classes))

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        """The `n` most probable of these classes, according to the given model's outputs."""
        if n >= len(targets):
            return targets
        proba = np.exp(as_numpy(log_softmax(reference))).mean(axis=0)[targets]
        return np.sort(targets[np.argsort(-proba, kind="stable")[:n]])

    def _n_searches(self, n_classes: int) -> int:
        """How many classes are asked for, at an input or on a pool."""
        if self.n_targets is None:
            return n_classes
        most = MOST_TARGETS if self.n_targets == "auto" else int(self.n_targets)
        return min(most, n_classes)

    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        from skuq.networks import on_device
        from skuq.quam._objectives import Targeted, Untargeted

        if targets[0] < 0:
            return Untargeted(reference.log_softmax(-1))
        return Targeted(on_device(targets[None], reference.device))

    def point_objective(self, reference: Tensor) -> Objective:
        from skuq.quam._objectives import classification_objective

        n_targets = self._n_searches(reference.shape[1])
        return classification_objective(
            reference.log_softmax(-1), targeted=self.targeted, n_targets=n_targets
        )

    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        losses: FloatArray = -as_numpy(outputs)[np.arange(len(y)), codes_of(y, self.classes, "y")]
        return losses

    def uncertainty(self, outputs: Outputs, sampling: ImportanceSampling) -> Decomposition:
        centre = None if outputs.centre is None else log_softmax(outputs.centre)
        reference = log_softmax(outputs.reference)
        return estimate_uncertainty(reference, outputs.models, sampling, centre)

    def proba_bounds(self, outputs: Outputs, gamma: float) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest probability of each class over models that fit within gamma."""
        given = log_softmax(outputs.reference)[:, None]
        if outputs.centre is not None:  # it explains the data, too
            given = joined_models(given, log_softmax(outputs.centre)[:, None])
        return plausible_range(given, outputs.models, gamma)

    def best_models(self, outputs: Outputs, gamma: float) -> AdversarialModels:
        found, excess_loss = outputs.models
        return best_adversarial_models(
            log_softmax(outputs.reference),
            log_softmax(found),
            excess_loss,
            gamma,
            outputs.targets,
        )


@stored("quam.regression")
@dataclass(frozen=True)
class Regression(Task):
    """Two searches, for a higher and for a lower prediction."""

    attack: str
    noise_variance: float | None  # None if it is the second output of models
    target_std: float
    bias: OutputBias | None = None
    growth: ClassVar[float] = 125.0

    def first_penalty(self, total_weight: float) -> float:
        # A displacement pulls with the same force at any distance: a penalty that ends at the
        # number of samples would let it run too far.
        return 20.0

    def targets(self, reference: Any) -> IntArray:
        return np.array(DIRECTIONS)

    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        from skuq.quam._regression_objectives import regression_objective

        return regression_objective(
            reference,
            attack=self.attack,
            noise_variance=self.noise_variance,
            bias=self.bias,
            limit=self.pull,  # inputs far out would outweigh all others
        )

    def point_objective(self, reference: Tensor) -> Objective:
        from skuq.quam._regression_objectives import regression_objective

        return regression_objective(
            reference, attack=self.attack, noise_variance=self.noise_variance, bias=self.bias
        )

    @property
    def pull(self) -> float:
        """How far models on a pool are pulled, in units of the target."""
        return _PULL * self.target_std

    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        losses: FloatArray = gaussian_loss(as_numpy(outputs), y, self.noise_variance)
        return losses

    def uncertainty(self, outputs: Outputs, sampling: ImportanceSampling) -> Decomposition:
        return gaussian_uncertainty(
            *self._centred(outputs, sampling), sampling, noise_variance=self.noise_variance
        )

    def uncertainty_and_mean(
        self, outputs: Outputs, sampling: ImportanceSampling
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Parts of the uncertainty, and the given model's predictions."""
        mean = as_numpy(outputs.reference)[:, 0].astype(np.float64, copy=False)
        return (*self.uncertainty(outputs, sampling), mean)

    def spread(self, outputs: Outputs, sampling: ImportanceSampling) -> tuple[FloatArray]:
        """Standard deviation of the models' means, in units of the target."""
        found = self._centred(outputs, sampling)
        return (estimate_spread(*found, sampling, noise_variance=self.noise_variance),)

    def _centred(self, outputs: Outputs, sampling: ImportanceSampling) -> tuple[Any, Trajectories]:
        around = sampling.setting != "selected" and outputs.centre is not None
        return (outputs.centre if around else outputs.reference), outputs.models

    def best_models(self, outputs: Outputs, gamma: float) -> AdversarialRegressors:
        return best_adversarial_regressors(
            outputs.reference, outputs.models, gamma, noise_variance=self.noise_variance
        )
