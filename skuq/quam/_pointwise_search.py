"""Gradient searches at single test points (the paper's Algorithm 1), many of which run together."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skuq._networks import (
    as_double,
    on_device,
    training_batches,
    within_memory,
)
from skuq.base import FloatArray
from skuq.files import stored
from skuq.quam._gradient_search import (
    EFFORT,
    Attack,
    Descent,
    FittedSearch,
    GradientSearch,
    MiniBatches,
    Schedule,
    SearchProblem,
    SearchSettings,
    efforts,
)
from skuq.quam._importance_sampling import Trajectories
from skuq.quam._objectives import Objective, Targeted
from skuq.quam._search import Classification, Outputs, Task

_WEAK = 1e-3  # default prior precision, in units of 1 / (mean square of the searched weights)


@stored("quam.pointwise-search")
@dataclass(kw_only=True, eq=False, repr=False)
class PointwiseSearch(GradientSearch):
    """Gradient search at each input whose uncertainty is computed: the paper's Algorithm 1.

    It is for networks and logistic regression. Each input needs one search per class.

    Parameters
    ----------
    parameters, targeted, update_every
        As in `PoolSearch`.
    n_steps : int, default=50
        Number of steps of each search.
    c0 : float or "auto", default="auto"
        Initial weight of the penalty on the training loss. "auto" is a tenth of the sum of the
        sample weights. For a regressor, "auto" is 20, because the gradient of the displacement does
        not decrease as a model moves away from the given model.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows at each update. "auto" multiplies the penalty by 10 over
        the search (by 125 for a regressor). If `c0` is "auto" as well, the final penalty of a
        classifier is the number of training samples. The search then minimises the negative log
        posterior of the training set plus one sample: the test point with the target class.
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float or "auto", default="auto"
        Factor by which the step size shrinks at each update of the penalty. "auto" keeps the step
        size constant for a regressor, or if each step uses all training samples. Otherwise, "auto"
        divides the step size by 50 over the search, because the noise of mini-batches would leave
        the last models with a total excess loss of hundreds of nats.
    prior_precision : float or "auto", default="auto"
        As in `PoolSearch`. "auto" is a weak prior, 0.001 divided by the mean square of the searched
        weights: without a prior, only the training loss would constrain the models.
    effort : {"equal", "paper"}, default="paper"
        As in `QuadraticSearch`. With "paper", the search minimises the negative log posterior.
    train_batch_size : int, default=256
        Number of training samples with which a step estimates the penalty.
    batch_size : int, default=8
        Number of test points whose searches run together. A smaller number needs less memory (each
        search needs 4 copies of the searched weights); the result is the same.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.quam import PointwiseSearch
    >>> QUAMClassifier(search=PointwiseSearch(n_steps=50)).search.n_steps
    50
    """

    n_steps: int = 50
    c0: float | str = "auto"
    prior_precision: float | str = "auto"
    train_batch_size: int = 256
    effort: str = "paper"
    batch_size: int = 8

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **GradientSearch._parameter_constraints,
        "effort": EFFORT,
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "prior_precision": [
            *GradientSearch._parameter_constraints["prior_precision"],
            StrOptions({"auto"}),
        ],
    }
    pointwise: ClassVar[bool] = True

    def shortening(self, problem: SearchProblem, task: Task) -> float:
        noisy = self.train_batch_size < len(problem.X) and isinstance(task, Classification)
        return 50.0 if noisy else 1.0

    def precision(self, problem: SearchProblem) -> float:
        if self.prior_precision != "auto":
            return float(self.prior_precision)
        weights = [problem.module.get_parameter(name) for name in problem.parameters]
        return _WEAK / float(torch.cat([w.detach().flatten() for w in weights]).square().mean())

    def batches(
        self, fitted: FittedSearch, task: Task, inputs: Tensor, reference: Tensor, device: Any
    ) -> list[SearchedPoints]:
        """Split preprocessed inputs into batches; all searches of a batch run together."""
        settings = self.settings(fitted.problem, task, device)
        x = fitted.features(inputs, device).numpy()
        equal = self.effort == "equal" and isinstance(task, Classification)
        effort = efforts(fitted.problem, x) if equal else np.ones(len(x))
        return [
            SearchedPoints(
                fitted.problem, settings, task, x[rows], reference[rows].numpy(), effort[rows]
            )
            for rows in gen_batches(len(x), self.batch_size)
        ]


class SearchedPoints(NamedTuple):
    """A batch of test points, with all that a process needs to run searches at these points."""

    problem: SearchProblem
    settings: SearchSettings
    task: Task
    x: NDArray[Any]
    reference: NDArray[Any]  # (n_points, n_outputs)
    effort: FloatArray  # (n_points,)

    def outputs(self) -> Iterator[Outputs]:
        """Run the searches, and yield the outputs of all models visited."""
        objective = self.task.objective(on_device(self.reference, self.settings.device))
        models = search_batch(self.problem, self.settings, self.x, objective, self.effort)
        targets = objective.targets.cpu() if isinstance(objective, Targeted) else None
        reference = on_device(self.reference, "cpu")
        yield Outputs(reference, models, targets, effort=self.effort)


def search_batch(
    problem: SearchProblem,
    settings: SearchSettings,
    x: NDArray[Any],
    objective: Objective,
    effort: FloatArray,
    start: dict[str, Tensor] | None = None,
) -> Trajectories:
    """Search at one batch of test points; return all models visited, on the CPU (Appendix C.1).

    Each search minimises ``L_adv(w) + c (L_train(w) - L_ref)``, with one Adam step for each penalty
    c. The sum of all objectives is differentiated, but searches stay independent: weights of one
    search occur only in its objective, and Adam treats elements separately. L_train - L_ref is
    estimated as the difference of two losses on the same mini-batch; this estimate has no bias and
    little noise.

    `x` (n_points, ...) contains the inputs of the searched layers. `objective` is on the device.
    `start` contains initial weights of all models, ordered by point and search; with None, searches
    start at the given model.
    """
    device, searched = settings.device, problem.on(settings.device)
    # Copy the network, because threads that share it would overwrite each other's weights.
    searched = searched._replace(module=deepcopy(searched.module))
    points = on_device(x, device)
    n_batches, size = len(settings.schedule.penalties) + 1, settings.train_batch_size
    batches = searched.batches.get((n_batches, size))
    if batches is None:
        # The seed is the same for every batch of points, so all searches use the same mini-batches.
        generator = torch.Generator().manual_seed(problem.seed)
        rows = training_batches(len(problem.X), size, n_batches, generator)
        batches = MiniBatches(searched.train, torch.stack([*rows]))
        searched.batches[n_batches, size] = batches

    def search(n_bytes: int) -> Trajectories:
        found = []
        for searches in searched.searches_that_fit(objective.n_searches, len(x), n_bytes):
            part = objective.subset(searches)
            descent = Descent(
                searched, part, prior_precision=settings.prior_precision, n_bytes=n_bytes
            )
            weights = descent.start(part, len(x))  # Line 1
            for name, of_all in (start or {}).items():
                chosen = of_all.reshape(len(x), -1, *of_all.shape[1:])[:, searches].flatten(0, 1)
                weights[name] = chosen.to(weights[name])
            attack = PointAttack(points, part, on_device(effort, device))
            found.append(run_searches(descent, weights, attack, batches, settings.schedule))
        return Trajectories(*(torch.cat(each, dim=1) for each in zip(*found, strict=True)))

    trajectories = Trajectories(*(each.cpu().double() for each in within_memory(search, device)))
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "A search for adversarial models diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance by StandardScaler."
        )
    return trajectories


class PointAttack(Attack):
    """Attack at each model's own test point; it also records the models' predictions there."""

    def __init__(self, points: Tensor, objective: Objective, effort: Tensor):
        self.points, self.objective = points, objective
        self.weight = as_double(effort)[:, None]
        self.own = points.repeat_interleave(objective.n_searches, dim=0).unsqueeze(1)
        self.predicted: list[Tensor] = []

    def inputs(self, step: int) -> Tensor:
        return self.own

    def losses(self, step: int, rows: slice, outputs: Tensor) -> Tensor:
        self.predicted.append(outputs.detach()[:, 0])
        by_point = outputs[:, 0].reshape(len(self.points), -1, outputs.shape[-1])
        return self.objective.attack(by_point)


def run_searches(
    descent: Descent,
    weights: dict[str, Tensor],
    attack: PointAttack,
    batches: MiniBatches,
    schedule: Schedule,
) -> Trajectories:
    """Run all searches at a batch of points; return outputs and losses after each step."""
    excess = [*descent.steps(weights, batches, schedule, attack)]
    with torch.no_grad():
        for name, found in descent.weights().items():
            weights[name].copy_(found)
        last = batches[len(schedule.penalties)]
        outputs = [
            *attack.predicted,
            descent.outputs(weights, attack.own, shared_input=False)[:, 0],
        ]
        excess.append(descent.excess_of_each(weights, last) @ last.weight + descent.prior(weights))
    # Omit the first elements of the lists, which belong to the initial models.
    shape = (len(attack.points), -1, len(schedule.penalties))
    trajectories = torch.stack(outputs[1:], dim=1)  # (n_models, n_steps, n_outputs)
    return Trajectories(
        trajectories.reshape(*shape, trajectories.shape[-1]),
        torch.stack(excess[1:], dim=1).reshape(shape),
    )
