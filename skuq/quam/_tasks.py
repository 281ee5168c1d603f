"""Tasks of the searches (classification, regression), and jobs that evaluate the models found.

Objectives of gradient searches need torch and are imported when used; all other functions accept
numpy arrays and Tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from skuq._information import Decomposition, array_namespace, log_softmax
from skuq.base import FloatArray, IntArray
from skuq.files import stored
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
    OutputBias,
    best_adversarial_regressors,
    estimate_spread,
    gaussian_loss,
    gaussian_uncertainty,
)
from skuq.quam._search import Found

if TYPE_CHECKING:
    from torch import Tensor

    from skuq.quam._gradient_search import SearchProblem, SearchSettings
    from skuq.quam._objectives import Objective

# Displacement of predictions on a pool, in standard deviations of the target. Displaced predictions
# lie near the ends of the target's range.
_PULL = 2.0
# Largest number of classes that n_targets="auto" selects as targets of searches. Each selected
# class needs a search of its own, and the cost of evaluating an input is proportional to the number
# of searches times the number of all classes.
MOST_TARGETS = 10


class Outputs(NamedTuple):
    """Predictions of the given model and of all models found, for a batch of inputs."""

    reference: Any  # (n_points, n_outputs)
    models: Trajectories
    targets: Any = None  # (n_points, n_searches), classes; None in untargeted searches
    centre: Any = None  # (n_points, n_outputs), see `Found.centre`


class Task(ABC):
    """Targets and objectives of an estimator's searches, and uncertainty from the models found."""

    # Factor by which the penalty grows over a pointwise search with eta="auto".
    growth: ClassVar[float]

    @abstractmethod
    def first_penalty(self, total_weight: float) -> float:
        """Initial penalty of a pointwise search with c0="auto"."""

    @abstractmethod
    def targets(self, reference: Any) -> IntArray:
        """Targets of the searches on a pool, from the model's outputs on the pool; see `Found`."""

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        """Select `n` of the targets, as many as fit into memory."""
        if n < len(targets):
            raise MemoryError(
                f"A regressor needs {len(targets)} searches, for higher and for lower predictions, "
                f"but only {n} fit into memory; increase `max_memory` of the search, or let it "
                "keep fewer models."
            )
        return targets

    @abstractmethod
    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        """Objective of networks at the inputs of a pool."""

    @abstractmethod
    def point_objective(self, reference: Tensor) -> Objective:
        """Objective of networks at single points, given the model's outputs at these points."""

    @abstractmethod
    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        """Loss of a model's outputs on each sample, in nats."""

    @abstractmethod
    def uncertainty(self, outputs: Outputs, sampling: ImportanceSampling) -> Decomposition:
        """Aleatoric and epistemic part of each input's uncertainty."""

    @abstractmethod
    def best_models(self, outputs: Outputs, gamma: float) -> Any:
        """The best adversarial model of each search."""


@stored("quam.classification")
@dataclass(frozen=True)
class Classification(Task):
    """Classification: one search per class, or one untargeted search for any other prediction."""

    classes: NDArray[Any]
    targeted: bool
    n_targets: int | str | None
    growth: ClassVar[float] = 10.0

    def first_penalty(self, total_weight: float) -> float:
        # The penalty grows tenfold, up to the number of samples. With this last penalty, the search
        # minimises the negative log posterior for the training set and one further sample, namely
        # the test point with the target class.
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
        """Number of classes that are searched, at an input or on a pool."""
        if self.n_targets is None:
            return n_classes
        most = MOST_TARGETS if self.n_targets == "auto" else int(self.n_targets)
        return min(most, n_classes)

    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        from skuq._networks import on_device
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
        """Smallest and largest probability of each class over models with excess loss <= gamma."""
        given = log_softmax(outputs.reference)[:, None]
        if outputs.centre is not None:  # predictions of a model with an excess loss of zero
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
    """Regression: two searches, for a higher and for a lower prediction."""

    attack: str
    noise_variance: float | None  # None if the models' second output is the log variance
    target_std: float
    bias: OutputBias | None = None
    growth: ClassVar[float] = 125.0

    def first_penalty(self, total_weight: float) -> float:
        # The gradient of a displacement does not decrease with distance. A penalty that starts at
        # a tenth of the number of samples would let the search move too far.
        return 20.0

    def targets(self, reference: Any) -> IntArray:
        return np.array(DIRECTIONS)

    def objective(self, reference: Tensor, targets: IntArray) -> Objective:
        from skuq.quam._objectives import regression_objective

        return regression_objective(
            reference,
            attack=self.attack,
            noise_variance=self.noise_variance,
            bias=self.bias,
            limit=self.pull,  # otherwise, inputs far from the data would dominate the objective
        )

    def point_objective(self, reference: Tensor) -> Objective:
        from skuq.quam._objectives import regression_objective

        return regression_objective(
            reference, attack=self.attack, noise_variance=self.noise_variance, bias=self.bias
        )

    @property
    def pull(self) -> float:
        """Displacement of predictions on a pool, in units of the target."""
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
        """Aleatoric and epistemic part, and the given model's predictions."""
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


class SearchedPoints(NamedTuple):
    """A batch of test points, and everything a process needs to run their searches."""

    problem: SearchProblem
    settings: SearchSettings
    task: Task
    x: NDArray[Any]
    reference: NDArray[Any]  # (n_points, n_outputs)

    def outputs(self) -> Iterator[Outputs]:
        """Run the searches; only results computed from the trajectories leave the process."""
        from skuq._networks import on_device
        from skuq.quam._objectives import Targeted
        from skuq.quam._pointwise_search import search_batch

        reference = on_device(self.reference, self.settings.device)
        objective = self.task.point_objective(reference)
        models = search_batch(self.problem, self.settings, self.x, objective)
        targets = objective.targets.cpu() if isinstance(objective, Targeted) else None
        yield Outputs(on_device(self.reference, "cpu"), models, targets)


class EvaluatedRows(NamedTuple):
    """A batch of inputs, and everything a process needs to evaluate the models found on a pool."""

    x: Any
    model: Any
    found: Found
    device: Any
    chunk: int

    def outputs(self) -> Iterator[Outputs]:
        """Predictions of all models, in chunks."""
        for part in gen_batches(_num_samples(self.x), self.chunk):
            inputs = self.model.inputs(_safe_indexing(self.x, part))
            reference = self.model.outputs(inputs, self.device)
            outputs = self.found.outputs(inputs, self.device)
            xp = array_namespace(outputs)
            excess, targets = (
                xp.broadcast_to(xp.asarray(each), (len(outputs), *each.shape))
                for each in (self.found.excess_loss, self.found.targets)
            )
            yield Outputs(
                xp.asarray(reference, dtype=xp.float64),
                Trajectories(outputs, excess),
                None if self.found.targets[0] < 0 else targets,
                self.found.centre(inputs),
            )


def reduced(
    job: SearchedPoints | EvaluatedRows,
    function: Callable[..., Sequence[NDArray[Any]]],
    argument: Any,
) -> list[NDArray[Any]]:
    """Run a job: apply ``function(outputs, argument)`` to all its inputs."""
    parts = [function(outputs, argument) for outputs in job.outputs()]
    return [np.concatenate(each) for each in zip(*parts, strict=True)]
