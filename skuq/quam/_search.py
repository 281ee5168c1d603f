"""Base classes of the searches and of the models they find; memory and time of a search."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm.auto import tqdm

from skuq.base import FloatArray, IntArray
from skuq.devices import available_memory
from skuq.validation import warn_user

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Constraint on the parameter `max_memory` of searches on a pool.
MAX_MEMORY: list[Any] = [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})]
LONG = 300.0  # duration, in seconds, above which a search raises a warning
_SHARE = 0.5  # fraction of the free memory that max_memory="auto" allows


class Search(ABC, BaseEstimator):
    """Base class of the searches, which are parameter objects of QUAM's estimators."""

    pool: Any
    #: Whether a separate search for each input runs when the uncertainty of the input is computed.
    pointwise: ClassVar[bool] = False

    @abstractmethod
    def check_suits(self, estimator: Any) -> None:
        """Raise TypeError for models that this search does not support."""

    def searches_in_memory(self, problem: Problem, n_searches: int) -> int:
        """Number of searches that fit into memory; raise if 0 or 1 fit, warn if not all fit."""
        raise NotImplementedError


class Problem:
    """The given model and its training data, in the form that a search needs."""


@dataclass(frozen=True)
class Found(ABC):
    """Models found by searches on a pool; they can be evaluated at any input.

    Attributes
    ----------
    targets : ndarray of shape (n_searches,), int64
        Target of each search: a class code; -1 for any prediction other than the given model's; or,
        for a regressor, the direction 1 or -1.
    excess_loss : ndarray of shape (n_searches, n_kept), float64
        Mean loss of each model minus the mean loss of the reference model, in nats.
    standard_error : float
        Largest standard error of `excess_loss`, in nats: smaller differences are not significant.
    held_out : bool
        Whether the losses are computed on samples held out from all models. The loss of a model
        trained on these samples would be too low to be compared.
    """

    targets: IntArray
    excess_loss: FloatArray
    standard_error: float
    held_out: ClassVar[bool]

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Any:
        """Outputs of all models, (n_points, n_searches, n_kept, n_outputs), on the CPU.

        Networks return a Tensor, learners an array.
        """

    def without_training_data(self) -> Self:
        """Return the same models without the training data of their searches."""
        return self

    def centre(self, inputs: Any) -> FloatArray | None:
        """Outputs of the model that replaces the given model in the mixture; None if it is kept."""
        return None


def mean_loss(losses: FloatArray, weight: FloatArray) -> float:
    """Mean training loss of the reference model, in nats (L_ref); raise if it is not finite."""
    mean = float(np.average(losses, weights=weight))
    if not np.isfinite(mean):
        raise ValueError(
            f"The model's loss on its training data is {mean}; it must be finite. A skorch net "
            "whose module returns logits needs criterion=torch.nn.CrossEntropyLoss; with "
            "skorch's default criterion the module must return probabilities."
        )
    return mean


def mean_excess(losses: FloatArray, weight: FloatArray) -> tuple[FloatArray, float]:
    """Mean excess losses over samples, and the largest standard error of these means.

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
    """Number of searches whose models fit into memory; raise MemoryError if fewer than two fit.

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
            "weights (search__parameters='last' or 'bias'), keep fewer models (search__n_steps, "
            "search__shares), or use a smaller model."
        )
    warn_user(
        f"The {sizes}. Only the {n_fit} most probable classes are searched, as with "
        f"n_targets={n_fit}. Set n_targets, or reduce the memory of each search "
        "(search__parameters='last', search__n_steps, search__shares)."
    )
    return n_fit


def pickled_size(model: Any) -> int:
    """Size of a model's pickle, an estimate of its memory, in bytes; 0 if pickling fails."""
    try:
        return len(pickle.dumps(model, protocol=5))
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda
        return 0


def warn_if_slow(n_parts: int, seconds: float, part: str, advice: str) -> None:
    """Warn if a search of `n_parts`, each of which takes some seconds, takes more than `LONG`."""
    if n_parts * seconds > LONG:
        warn_user(
            f"The search on the pool takes about {n_parts * seconds / 60:.0f} minutes: "
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
    with tqdm(total=n_steps, desc="QUAM search", unit="step", disable=not verbose) as bar:
        for done, step in enumerate(steps, 1):
            if done == 1:  # not timed, because it includes the set-up
                start = perf_counter()
            if done == 2:
                warn_if_slow(n_steps * times, perf_counter() - start, "steps", advice)
            bar.update()
            yield step
