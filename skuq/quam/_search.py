"""Tasks of the searches, base classes of searches and of the models they find; memory and time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from skuq._information import Decomposition, array_namespace, log_softmax
from skuq._progress import progress
from skuq.base import FloatArray, IntArray
from skuq.devices import available_memory
from skuq.files import stored
from skuq.labels import codes_of
from skuq.models import Given, TrainingData
from skuq.quam._importance_sampling import (
    DIRECTIONS,
    AdversarialModels,
    AdversarialRegressors,
    ImportanceSampling,
    OutputBias,
    Trajectories,
    Visited,
    as_numpy,
    best_adversarial_models,
    estimate_uncertainty,
    gaussian_loss,
    joined_models,
    plausible_range,
)
from skuq.validation import warn_user

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from skuq.quam._objectives import Objective

T = TypeVar("T")

# Displacement of predictions on a pool, in standard deviations of the target.
_PULL = 2.0
# Largest number of classes that n_targets="auto" selects: the cost of an input is proportional to
# this number times the number of all classes.
_MOST_TARGETS = 10
# Constraint on the parameter `max_memory` of searches on a pool.
MAX_MEMORY: list[Any] = [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
LONG = 300.0  # duration, in seconds, above which a search raises a warning
_SHARE = 0.5  # fraction of the free memory that max_memory="auto" allows


class Outputs(NamedTuple):
    """Predictions of the given model and of all models found, for a batch of inputs."""

    reference: Any  # (n_points, n_outputs)
    models: Trajectories
    targets: Any = None  # (n_points, n_searches), classes; None in untargeted searches
    centre: Any = None  # (n_points, n_outputs), see `Found.centre`
    effort: Any = None  # (n_points,), weight of the attack on each point; None is 1


@stored("quam.classification")
@dataclass(frozen=True)
class Classification:
    """Task of a classifier: a search per class, or one search for any different prediction."""

    classes: NDArray[Any]
    targeted: bool
    n_targets: int | str | None
    growth: ClassVar[float] = 10.0  # of the penalty, in a pointwise search with eta="auto"

    def first_penalty(self, total_weight: float) -> float:
        """Compute the initial penalty of a pointwise search with c0="auto"."""
        # The penalty grows tenfold, up to the number of samples. With this last penalty, the search
        # minimises the negative log posterior for the training set and one further sample, namely
        # the test point with the target class.
        return total_weight / 10

    def targets(self, reference: Any) -> IntArray:
        """Select the targets of the searches (see `Found`) from the model's outputs on a pool."""
        if not self.targeted:
            return np.array([-1])
        n_classes = reference.shape[1]
        return self.fewer_targets(reference, np.arange(n_classes), self.n_searches(n_classes))

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        """Select the `n` most probable of the target classes from the given model's outputs."""
        if n >= len(targets):
            return targets
        proba = np.exp(np.asarray(log_softmax(reference))).mean(axis=0)[targets]
        return np.sort(targets[np.argsort(-proba, kind="stable")[:n]])

    def n_searches(self, n_classes: int) -> int:
        """Return the number of classes that are searched, at an input or on a pool."""
        if self.n_targets is None:
            return n_classes
        most = _MOST_TARGETS if self.n_targets == "auto" else int(self.n_targets)
        return min(most, n_classes)

    def objective(self, reference: Tensor, targets: IntArray | None = None) -> Objective:
        """Build the objective from outputs on a pool or, without `targets`, at separate points."""
        from skuq._networks import on_device
        from skuq.quam._objectives import Targeted, Untargeted

        if not self.targeted:
            return Untargeted(reference.log_softmax(-1))
        if targets is not None:
            return Targeted(on_device(targets[None], reference.device))
        return Targeted(self.targets_at(reference))

    def targets_at(self, reference: Tensor) -> Tensor:
        """Select targets of separate searches for each point, (n_points, n_searches)."""
        from skuq._networks import on_device

        n_points, n_classes = reference.shape
        n_searches = self.n_searches(n_classes)
        if n_searches < n_classes:
            return reference.log_softmax(-1).topk(n_searches, dim=1).indices
        return on_device(np.arange(n_classes), reference.device).expand(n_points, -1)

    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        """Compute the loss of a model's outputs on each sample, in nats, on the CPU."""
        losses: FloatArray = -outputs[np.arange(len(y)), codes_of(y, self.classes, "y")]
        return losses

    def uncertainty(self, outputs: Outputs, sampling: ImportanceSampling) -> Decomposition:
        centre = None if outputs.centre is None else log_softmax(outputs.centre)
        reference = log_softmax(outputs.reference)
        found, targets = outputs.models, outputs.targets
        if outputs.effort is not None:
            # A penalty of n / effort weights models by the posterior to the power 1 / effort.
            found = found._replace(
                excess_loss=found.excess_loss
                / array_namespace(found.excess_loss).asarray(outputs.effort)[:, None, None]
            )
        return estimate_uncertainty(reference, found, sampling, centre, targets)

    def proba_bounds(self, outputs: Outputs, gamma: float) -> tuple[FloatArray, FloatArray]:
        """Compute the range of class probabilities over models with an excess loss <= gamma."""
        given = log_softmax(outputs.reference)[:, None]
        if outputs.centre is not None:  # predictions of a model with an excess loss of zero
            given = joined_models(given, log_softmax(outputs.centre)[:, None])
        return plausible_range(given, outputs.models, gamma)

    def class_costs(self, outputs: Outputs, total_weight: float) -> tuple[FloatArray]:
        """Minimise, over models, the excess training loss plus an input's loss with each class."""
        found = -as_numpy(log_softmax(outputs.models.outputs))
        found += total_weight * as_numpy(outputs.models.excess_loss)[..., None].clip(0)
        given = -as_numpy(log_softmax(outputs.reference))
        return (np.minimum(given, found.min(axis=(1, 2))),)

    def best_models(self, outputs: Outputs, gamma: float) -> AdversarialModels:
        found, excess_loss = outputs.models
        reference = log_softmax(outputs.reference)
        return best_adversarial_models(
            reference, log_softmax(found), excess_loss, gamma, outputs.targets
        )


@stored("quam.regression")
@dataclass(frozen=True)
class Regression:
    """Task of a regressor: search for higher and for lower predictions (see `Classification`)."""

    attack: str
    noise_variance: float | None  # None if the models' second output is the log variance
    target_std: float
    bias: OutputBias | None = None
    growth: ClassVar[float] = 125.0

    @property
    def pull(self) -> float:
        """Displacement of predictions on a pool, in units of the target."""
        return _PULL * self.target_std

    def first_penalty(self, total_weight: float) -> float:
        # The gradient of a displacement does not decrease with distance. A penalty that starts at
        # a tenth of the number of samples would let the search move too far.
        return 20.0

    def targets(self, reference: Any) -> IntArray:
        return np.array(DIRECTIONS)

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        return targets  # both searches always fit into memory

    def objective(self, reference: Tensor, targets: IntArray | None = None) -> Objective:
        from skuq.quam._objectives import Displacement, Divergence

        # Without a limit on a pool, inputs far from the data would dominate the objective.
        limit = inf if targets is None else self.pull
        if self.attack == "displacement":
            return Displacement(reference, self.noise_variance, limit=limit)
        return Divergence(reference, self.noise_variance, limit=limit, bias=self.bias)

    def loss(self, outputs: Any, y: NDArray[Any]) -> FloatArray:
        losses: FloatArray = gaussian_loss(np.asarray(outputs), y, self.noise_variance)
        return losses

    def uncertainty(
        self, outputs: Outputs, sampling: ImportanceSampling
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute aleatoric and epistemic part; also return the given model's predictions."""
        mean = as_numpy(outputs.reference)[:, 0].astype(np.float64, copy=False)
        return (*self._visited(outputs, sampling).uncertainty(sampling), mean)

    def spread(self, outputs: Outputs, sampling: ImportanceSampling) -> tuple[FloatArray]:
        """Compute the standard deviation of the models' means, in units of the target."""
        return (self._visited(outputs, sampling).spread(sampling),)

    def _visited(self, outputs: Outputs, sampling: ImportanceSampling) -> Visited:
        around = sampling.setting != "selected" and outputs.centre is not None
        reference = outputs.centre if around else outputs.reference
        return Visited.of(reference, outputs.models, self.noise_variance)

    def best_models(self, outputs: Outputs, gamma: float) -> AdversarialRegressors:
        visited = Visited.of(outputs.reference, outputs.models, self.noise_variance)
        return visited.best_models(gamma)


Task = Classification | Regression


class Problem:
    """The given model and its training data, in the form that a search needs."""


class Setup(NamedTuple):
    """Losses of the model in nats, (n_samples,), and settings of a search."""

    losses: FloatArray
    task: Task
    seed: int
    device: Any


class Search(ABC, BaseEstimator):
    """Base class of the searches, which are parameter objects of QUAM's estimators.

    `PoolSearch` and `RefitSearch` have the methods `searches_in_memory` and `run`, which find the
    models during `fit`; `PointwiseSearch` and `QuadraticSearch` have `batches`.
    """

    pool: Any
    #: The form of model that the search requires.
    form: ClassVar[Literal["learner", "network"]]
    #: Whether a separate search for each input runs when the uncertainty of the input is computed.
    pointwise: ClassVar[bool] = False
    #: Largest number of inputs of a layer for which "quadratic" is a default. The cost grows with
    #: the third power of this number; at 4,096, it is half a minute of one core.
    most_inputs: ClassVar[int] = 4096

    @abstractmethod
    def check_suits(self, given: Given, device: Any) -> None:
        """Raise if the search does not support the model, or the model rejects the device."""

    @abstractmethod
    def problem(self, model: Any, data: TrainingData, setup: Setup) -> Problem:
        """Prepare model and training data for the searches; drop samples of weight 0."""


class Work(NamedTuple):
    """Where and how a search on a pool runs; learners ignore the device, networks ignore n_jobs."""

    device: Any
    n_jobs: int | None
    verbose: int


@dataclass(frozen=True)
class Found(ABC):
    """Models found by searches on a pool; they can be evaluated at any input."""

    # Target of each search, (n_searches,): a class code; -1 for any prediction other than the given
    # model's; or, for a regressor, the direction 1 or -1.
    targets: IntArray
    # Mean loss of each model minus that of the reference model, (n_searches, n_kept), in nats.
    excess_loss: FloatArray
    standard_error: float  # largest error of `excess_loss`; smaller differences are not significant
    # Whether the losses are computed on samples held out from all models. The loss of a model
    # trained on these samples would be too low to be compared.
    held_out: ClassVar[bool]

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Compute outputs, (n_points, n_searches, n_kept, n_outputs): CPU Tensor, or array."""

    def without_training_data(self) -> Self:
        """Return the same models without the training data of their searches."""
        return self

    def centre(self, inputs: Any) -> FloatArray | None:
        """Compute outputs of a model that replaces the given one in the mixture; None if none."""
        return None


def mean_loss(losses: FloatArray, weight: FloatArray) -> float:
    """Average the reference model's training losses, in nats (L_ref); raise if not finite."""
    mean = float(np.average(losses, weights=weight))
    if not np.isfinite(mean):
        raise ValueError(
            f"The model's loss on its training data is {mean}; it must be finite. A skorch net "
            "whose module returns logits needs criterion=torch.nn.CrossEntropyLoss; with "
            "skorch's default criterion the module must return probabilities."
        )
    return mean


def mean_excess(losses: FloatArray, weight: FloatArray) -> tuple[FloatArray, float]:
    """Average excess losses over samples; also return the largest standard error of the means.

    Shapes: `losses` (..., n_samples), `weight` (n_samples,).
    """
    n_samples = weight.sum()
    share = weight / n_samples
    mean = losses @ share
    variance = (losses - mean[..., None]) ** 2 @ share
    return mean, float(np.sqrt(variance.max() / n_samples))


def searches_in_memory(
    n_searches: int, n_kept: int, model_bytes: int, max_memory: float | str, *, working: int = 0
) -> int:
    """Count the searches whose models fit into memory; raise MemoryError if fewer than two do.

    Each search keeps `n_kept` models of `model_bytes`; `working` bytes are needed in addition.
    """
    limit = available_memory() * _SHARE if max_memory == "auto" else float(max_memory)
    of_each = max(1, n_kept * model_bytes)
    n_fit = int(max(0, limit - working) // of_each)
    if n_fit >= n_searches:
        return n_searches
    sizes = (
        f"{n_searches} searches would keep {n_searches * n_kept:,} models of "
        f"{model_bytes / 1e6:.3g} MB, which takes {(n_searches * of_each + working) / 1e6:,.0f} MB "
        f"of memory; the limit is {limit / 1e6:,.0f} MB (search__max_memory"
        f"{', half of the free memory' if max_memory == 'auto' else ''})"
    )
    if n_fit < min(2, n_searches):
        raise MemoryError(
            f"The {sizes}. At least {min(2, n_searches)} of the searches must fit. Search fewer "
            "weights (search__parameters='last'), keep fewer models (search__n_steps, "
            "search__shares), or use a smaller model."
        )
    warn_user(
        f"The {sizes}. Only the {n_fit} most probable classes are searched, as with "
        f"n_targets={n_fit}. Set n_targets, or reduce the memory of each search "
        "(search__parameters='last', search__n_steps, search__shares)."
    )
    return n_fit


def warn_if_slow(n_parts: int, seconds: float, part: str, advice: str) -> None:
    """Warn if a search of `n_parts` parts of `seconds` each takes more than `LONG`."""
    if n_parts * seconds > LONG:
        warn_user(
            f"The search takes about {n_parts * seconds / 60:.0f} minutes: "
            f"{n_parts:,} {part} of {seconds:.2g} seconds. To shorten it, set {advice}; verbose=1 "
            "shows its progress."
        )


def with_progress(
    steps: Iterable[T], n_steps: int, *, verbose: int, advice: str, times: int
) -> Iterator[T]:
    """Iterate over the steps of a search, with a progress bar if `verbose`.

    After two steps, warn if all steps together will take long. `times` is the number of searches
    that run one after the other, with `n_steps` steps each; 0 suppresses the warning.
    """
    start = perf_counter()
    with progress(total=n_steps, desc="QUAM search", unit="step", verbose=verbose) as bar:
        for done, step in enumerate(steps, 1):
            if done == 1:  # not timed, because it includes the set-up
                start = perf_counter()
            if done == 2:
                warn_if_slow(n_steps * times, perf_counter() - start, "steps", advice)
            bar.update()
            yield step
