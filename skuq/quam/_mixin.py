"""What QUAM's estimators share: which weights move, and the searches batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn
from tqdm.auto import tqdm

from skuq.base import FloatArray
from skuq.models import AdoptedInputsMixin, evaluate, resolve_device, split_head
from skuq.quam._batch import Planner, SearchProblem, SearchSettings, Summary, search_batch
from skuq.quam._search import Schedule, penalty_schedule

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)

SEARCH_CONSTRAINTS: dict[str, Any] = {
    "parameters": [StrOptions({"all", "last", "bias", "norm"}), callable],
    "n_steps": [Interval(Integral, 1, None, closed="left")],
    "c0": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    "eta": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
    "update_every": [Interval(Integral, 1, None, closed="left")],
    "gamma": [Interval(Real, 0, None, closed="left")],
    "learning_rate": [Interval(Real, 0, 10, closed="right")],
    "learning_rate_decay": [Interval(Real, 1, None, closed="left")],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "train_batch_size": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "device": [str, torch.device],
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class Searched(NamedTuple):
    """A network cut in front of the first weights that move.

    Attributes
    ----------
    module : torch.nn.Module
        The part that moves, to its end.
    parameters : tuple of str
        Names, in `module`, of the parameters that move.
    body : torch.nn.Module or None
        What comes before and is computed once; None if there is nothing.
    """

    module: nn.Module
    parameters: tuple[str, ...]
    body: nn.Module | None


def searched_part(
    network: nn.Module, parameters: str | Callable[[str, Tensor], bool], X: Tensor
) -> Searched:
    """Choose the weights that searches may move.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode.
    parameters : {"all", "last", "bias", "norm"} or callable
        "last" is the last layer, "bias" all biases, "norm" the scales and shifts of
        normalisation layers; a callable is asked ``parameters(name, tensor)`` for each.
    X : Tensor of shape (n_samples, ...)
        Example inputs, on which the cut before a last layer is checked.

    Returns
    -------
    Searched
        The moving part, and what comes before it.

    Raises
    ------
    ValueError
        If no parameter is chosen, or all that are chosen are zero: step sizes are relative to
        them.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> searched_part(net, lambda name, tensor: name == "2.weight", torch.zeros(1, 4)).parameters
    ('2.weight',)
    """
    if parameters == "last":
        head = split_head(network, X)
        module, body = head.module, head.body
        chosen = [name for name, p in module.named_parameters() if p.is_floating_point()]
        return Searched(module, _movable(module, chosen, parameters), body)
    names = _chosen(network, parameters)
    _movable(network, names, parameters)
    if isinstance(network, nn.Sequential):
        order = list(network._modules)
        first = min(order.index(name.split(".")[0]) for name in names)
        if first > 0:
            return Searched(network[first:], tuple(names), network[:first])  # same names
    return Searched(network, tuple(names), None)


def _chosen(network: nn.Module, parameters: str | Callable[[str, Tensor], bool]) -> list[str]:
    floating = {name: p for name, p in network.named_parameters() if p.is_floating_point()}
    if callable(parameters):
        return [name for name, p in floating.items() if parameters(name, p)]
    if parameters == "all":
        return list(floating)
    if parameters == "bias":
        return [name for name in floating if name.rpartition(".")[2] == "bias"]
    of_norms = {
        id(p)
        for layer in network.modules()
        if isinstance(layer, _NORMS)
        for p in layer.parameters()
    }
    return [name for name, p in floating.items() if id(p) in of_norms]


def _movable(
    module: nn.Module, names: list[str], parameters: str | Callable[[str, Tensor], bool]
) -> tuple[str, ...]:
    if not names:
        raise ValueError(
            f"The network has no parameters of kind {parameters!r} that a search could move; "
            f"it has {[name for name, _ in module.named_parameters()]}."
        )
    if not any(bool(module.get_parameter(name).any()) for name in names):
        raise ValueError(
            f"All parameters that a search may move are zero ({names}), and step sizes are "
            "relative to them. Choose others with `parameters`."
        )
    return tuple(names)


class SearchingMixin(AdoptedInputsMixin):
    """Searches for estimators that hold their network in the attribute `model_`.

    The estimator has the parameters of `SEARCH_CONSTRAINTS`.
    """

    parameters: Any
    n_steps: int
    c0: float | str
    eta: float | str
    update_every: int
    learning_rate: float
    learning_rate_decay: float
    weight_decay: float
    temperature: float | str
    train_batch_size: int
    batch_size: int
    n_jobs: int | None
    verbose: int

    def _set_up_search(
        self, inputs: Tensor, y: NDArray[Any], weight: FloatArray, losses: FloatArray
    ) -> None:
        """Keep what all searches have in common; samples of weight zero are none."""
        self.reference_loss_ = float(np.average(losses, weights=weight))
        if not np.isfinite(self.reference_loss_):
            raise ValueError(
                f"The model's loss on its training data is {self.reference_loss_}. A skorch net "
                "whose module returns logits needs criterion=torch.nn.CrossEntropyLoss; with "
                "skorch's default criterion the module must return probabilities."
            )
        self._searched = searched_part(self.model_.module, self.parameters, inputs[:1024])
        features = self._features(inputs).numpy()
        counts = weight > 0
        self._problem = SearchProblem(
            self._searched.module, features[counts], y[counts], weight[counts], losses[counts]
        )

    def _features(self, inputs: Tensor) -> Tensor:
        if self._searched.body is None:
            return inputs
        return evaluate(self._searched.body, inputs, device=resolve_device(self.device))

    def _temperature(self) -> float:
        if self.temperature == "auto":
            return 1 / min(len(self._problem.X), self.train_batch_size)
        return float(self.temperature)

    def _schedule(self) -> Schedule:
        # With c = n_samples a search minimises the negative log posterior of the training set
        # and one sample more, the test point with the targeted class.
        n_samples, updates = len(self._problem.X), max((self.n_steps - 1) // self.update_every, 1)
        return penalty_schedule(
            self.n_steps,
            c0=n_samples / 10 if self.c0 == "auto" else float(self.c0),
            eta=10 ** (1 / updates) if self.eta == "auto" else float(self.eta),
            update_every=self.update_every,
            learning_rate=self.learning_rate,
            decay=self.learning_rate_decay,
        )

    def _search(
        self, inputs: Tensor, reference: NDArray[Any], planner: Planner, summarise: Summary
    ) -> Iterator[Any]:
        """Search batch by batch; `summarise` reduces each batch where it was computed."""
        features = self._features(inputs).numpy()
        settings = SearchSettings(
            parameters=self._searched.parameters,
            schedule=self._schedule(),
            train_batch_size=self.train_batch_size,
            weight_decay=self.weight_decay,
            seed=self._search_seed,
            device=str(resolve_device(self.device)),
        )
        jobs = (
            delayed(search_batch)(
                self._problem, settings, features[rows], reference[rows], planner, summarise
            )
            for rows in gen_batches(len(features), self.batch_size)
        )
        with tqdm(total=len(features), desc="QUAM", unit="input", disable=not self.verbose) as bar:
            for part in Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs):
                bar.update(len(part[0]))
                yield part

    _search_seed: int
