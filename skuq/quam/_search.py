"""Tasks of searches, base classes of searches and found models, and limits of memory and time."""

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

_PULL = 2.0  # displacement of predictions on a pool, in standard deviations of the target
# Maximum number of classes that n_targets="auto" selects. The cost of an input is proportional to
# the number of selected classes times the number of all classes.
_MOST_TARGETS = 10
# Constraint on the parameter `max_memory` of searches on a pool.
MAX_MEMORY: list[Any] = [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
LONG = 300.0  # seconds; a search that would take longer raises a warning
_SHARE = 0.5  # fraction of the free memory that max_memory="auto" allows


class Outputs(NamedTuple):
    """Predictions of the given model and of all models found, for a batch of inputs."""

    reference: Any  # (n_points, n_outputs)
    models: Trajectories
    targets: Any = None  # (n_points, n_searches), target classes; None if searches have no targets
    centre: Any = None  # (n_points, n_outputs), see `Found.centre`
    effort: Any = None  # (n_points,), weight of the attack at each point; None means 1


@stored("quam.classification")
@dataclass(frozen=True)
class Classification:
    """Task of a classifier: one search per class, or one search for any different prediction."""

    classes: NDArray[Any]
    targeted: bool
    n_targets: int | str | None
    growth: ClassVar[float] = 10.0  # factor by which eta="auto" raises a pointwise penalty

    def first_penalty(self, total_weight: float) -> float:
        """Compute the initial penalty of a pointwise search with c0="auto"."""
        # The penalty grows tenfold, up to the number of samples. With this last penalty, the search
        # minimises the negative log posterior of the training set plus one sample: the test point
        # with the target class.
        return total_weight / 10

    def targets(self, reference: Any) -> IntArray:
        """Select the target classes from the given model's outputs on a pool; -1 if untargeted."""
        if not self.targeted:
            return np.array([-1])
        n_classes = reference.shape[1]
        return self.fewer_targets(reference, np.arange(n_classes), self.n_searches(n_classes))

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        """Select the `n` classes in `targets` that are most probable on average."""
        if n >= len(targets):
            return targets
        proba = np.exp(np.asarray(log_softmax(reference))).mean(axis=0)[targets]
        return np.sort(targets[np.argsort(-proba, kind="stable")[:n]])

    def n_searches(self, n_classes: int) -> int:
        """Return the number of target classes, at an input or on a pool."""
        if self.n_targets is None:
            return n_classes
        most = _MOST_TARGETS if self.n_targets == "auto" else int(self.n_targets)
        return min(most, n_classes)

    def objective(self, reference: Tensor, targets: IntArray | None = None) -> Objective:
        """Build the objective from outputs on a pool, or, if `targets` is None, at test points."""
        from skuq._networks import on_device
        from skuq.quam._objectives import Targeted, Untargeted

        if not self.targeted:
            return Untargeted(reference.log_softmax(-1))
        if targets is not None:
            return Targeted(on_device(targets[None], reference.device))
        return Targeted(self.targets_at(reference))

    def targets_at(self, reference: Tensor) -> Tensor:
        """Select the target classes of the searches at each point, (n_points, n_searches)."""
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
            # The penalty of the search was n / effort, so losses are also divided by the effort.
            found = found._replace(
                excess_loss=found.excess_loss
                / array_namespace(found.excess_loss).asarray(outputs.effort)[:, None, None]
            )
        return estimate_uncertainty(reference, found, sampling, centre, targets)

    def proba_bounds(self, outputs: Outputs, gamma: float) -> tuple[FloatArray, FloatArray]:
        """Compute the range of class probabilities over models with an excess loss <= gamma."""
        given = log_softmax(outputs.reference)[:, None]
        if outputs.centre is not None:  # this model has the excess loss 0
            given = joined_models(given, log_softmax(outputs.centre)[:, None])
        return plausible_range(given, outputs.models, gamma)

    def class_costs(self, outputs: Outputs, total_weight: float) -> tuple[FloatArray]:
        """Compute, by input and class, the lowest excess training loss plus loss at the input."""
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
    """Task of a regressor: one search for higher predictions, and one for lower predictions."""

    attack: str
    noise_variance: float | None  # None if the models' second output is the log variance
    target_std: float
    bias: OutputBias | None = None
    growth: ClassVar[float] = 125.0

    @property
    def pull(self) -> float:
        """Distance by which searches on a pool displace predictions, in units of the target."""
        return _PULL * self.target_std

    def first_penalty(self, total_weight: float) -> float:
        # The gradient of a displacement does not decrease as models move away. A penalty that
        # starts at a tenth of the number of samples would let models move too far.
        return 20.0

    def targets(self, reference: Any) -> IntArray:
        return np.array(DIRECTIONS)

    def fewer_targets(self, reference: Any, targets: IntArray, n: int) -> IntArray:
        return targets  # both searches are needed, so `searches_in_memory` requires both

    def objective(self, reference: Tensor, targets: IntArray | None = None) -> Objective:
        from skuq.quam._objectives import Displacement, Divergence

        # On a pool, displacements are limited: inputs far from the data would otherwise dominate.
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
        """Compute aleatoric and epistemic uncertainty; also return the given model's means."""
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
    """The given model and its training data, in a form that a search can use."""


class Setup(NamedTuple):
    """Training losses of the model, (n_samples,), in nats, and settings of a search."""

    losses: FloatArray
    task: Task
    seed: int
    device: Any


class Search(ABC, BaseEstimator):
    """Base class of the searches, objects that contain the parameters of a search.

    `PoolSearch` and `RefitSearch` also have the methods `searches_in_memory` and `run`, which find
    models during `fit`. `PointwiseSearch` and `QuadraticSearch` have the method `batches`.
    """

    pool: Any
    #: Form of the models that the search supports.
    form: ClassVar[Literal["learner", "network"]]
    #: Whether searches run at each input, when the uncertainty of the input is computed.
    pointwise: ClassVar[bool] = False
    #: Maximum number of inputs of a layer for which search=None selects "quadratic". The cost grows
    #: with the third power of this number: 4,096 inputs take half a minute on one core.
    most_inputs: ClassVar[int] = 4096

    @abstractmethod
    def check_suits(self, given: Given, device: Any) -> None:
        """Raise if the search does not support the model, or if `device` cannot be used."""

    @abstractmethod
    def problem(self, model: Any, data: TrainingData, setup: Setup) -> Problem:
        """Convert model and training data to a `Problem`, without samples of weight 0."""


class Work(NamedTuple):
    """Resources of a search on a pool: `device` is for networks, `n_jobs` for other learners."""

    device: Any
    n_jobs: int | None
    verbose: int


@dataclass(frozen=True)
class Found(ABC):
    """Models that searches on a pool found, which can be evaluated at any input."""

    # Target of each search, (n_searches,): a class code, or -1 for an untargeted search; or, for a
    # regressor, the direction 1 or -1.
    targets: IntArray
    # Mean loss of each model minus the reference model's mean loss, (n_searches, n_kept), in nats.
    excess_loss: FloatArray
    standard_error: float  # largest standard error of the values in `excess_loss`
    # Whether losses are computed on samples held out from all models, because models trained on
    # these samples would have lower losses.
    held_out: ClassVar[bool]

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Compute outputs as a Tensor or an array, (n_points, n_searches, n_kept, n_outputs)."""

    def without_training_data(self) -> Self:
        """Return the same models without the training data of their searches."""
        return self

    def centre(self, inputs: Any) -> FloatArray | None:
        """Return outputs of the model that replaces the given model in the mixture, or None."""
        return None


def mean_loss(losses: FloatArray, weight: FloatArray) -> float:
    """Average the reference model's training losses, in nats (L_ref); raise if not finite."""
    mean = float(np.average(losses, weights=weight))
    if not np.isfinite(mean):
        raise ValueError(
            f"The model's loss on its training data is {mean}, but it must be finite. If the model "
            "is a skorch net whose module returns logits, set criterion=torch.nn.CrossEntropyLoss; "
            "with skorch's default criterion, the module must return probabilities."
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

    Each search keeps `n_kept` models of `model_bytes`. All searches also need `working` bytes.
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
    """Warn if a search of `n_parts` parts, which take `seconds` each, takes more than `LONG`."""
    if n_parts * seconds > LONG:
        warn_user(
            f"The search takes about {n_parts * seconds / 60:.0f} minutes: "
            f"{n_parts:,} {part} of {seconds:.2g} seconds. To shorten it, set {advice}. With "
            "verbose=1, its progress is shown."
        )


def with_progress(
    steps: Iterable[T], n_steps: int, *, verbose: int, advice: str, times: int
) -> Iterator[T]:
    """Iterate over the steps of a search, with a progress bar if `verbose`.

    After two steps, warn if all steps together will take long. `times` searches of `n_steps` steps
    run one after the other; 0 suppresses the warning.
    """
    start = perf_counter()
    with progress(total=n_steps, desc="QUAM search", unit="step", verbose=verbose) as bar:
        for done, step in enumerate(steps, 1):
            if done == 1:  # do not time the first step, because it includes the set-up
                start = perf_counter()
            if done == 2:
                warn_if_slow(n_steps * times, perf_counter() - start, "steps", advice)
            bar.update()
            yield step
