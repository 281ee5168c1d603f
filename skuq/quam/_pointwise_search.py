"""Gradient search for each test point anew: the paper's Algorithm 1, many points at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq.networks import (
    TrainingSet,
    on_device,
    stack_parameters,
    training_batches,
    within_memory,
)
from skuq.quam._gradient_search import (
    Attack,
    Descent,
    GradientSearch,
    MiniBatches,
    Schedule,
    Searched,
    SearchProblem,
    SearchSettings,
)
from skuq.quam._importance_sampling import Trajectories
from skuq.quam._objectives import Objective
from skuq.stored import stored


@stored("quam.pointwise-search")
@dataclass(kw_only=True, eq=False, repr=False)
class PointwiseSearch(GradientSearch):
    """Search for each input anew, when its uncertainty is asked for: the paper's Algorithm 1.

    For networks and logistic regression. `fit` searches nothing; each input costs as many searches
    as there are classes.

    Parameters
    ----------
    parameters : {"auto", "all", "linear", "last", "bias", "norm"} or callable, default="auto"
        Weights of the network that the search may move, as in `PoolSearch`.
    targeted : bool, default=True
        Whether there is one search for each class, as in `PoolSearch`.
    n_steps : int, default=100
        Length of each search; its cost is proportional to this.
    c0 : float or "auto", default="auto"
        Initial weight of the penalty on training loss. "auto" is a tenth of the number of training
        samples, where each counts by its weight, and 20 for a regressor, because a displacement
        pulls with the same force at any distance.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows. "auto" makes it ten times as large in the end (125 times
        for a regressor). With `c0` "auto" it then equals the number of training samples, and the
        search minimises the negative log posterior of the training set and one sample more, the
        test point with the targeted class.
    update_every : int, default=1
        Steps between two changes of the penalty and of the step size.
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float or "auto", default="auto"
        Factor by which the step size shrinks whenever the penalty grows; "auto" keeps it constant.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each moving weight, as in `PoolSearch`.
    train_batch_size : int, default=256
        Training samples on which each step computes the penalty.
    batch_size : int, default=8
        Test points searched at once; no effect on the result. Bounds memory: each search takes 4
        copies of the weights that it moves.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.quam import PointwiseSearch
    >>> QUAMClassifier(search=PointwiseSearch(n_steps=50)).search.n_steps
    50
    """

    n_steps: int = 100
    c0: float | str = "auto"
    train_batch_size: int = 256
    batch_size: int = 8

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **GradientSearch._parameter_constraints,
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }
    pointwise: ClassVar[bool] = True
    _shortening = 1.0


def search_batch(
    problem: SearchProblem, settings: SearchSettings, x: NDArray[Any], objective: Objective
) -> Trajectories:
    """Search the adversarial models of one batch of test points.

    `x` are the points as they reach the moving layers, (n_points, ...), and the objective has its
    tensors on the device. Returns the models met by all searches, on the CPU.
    """
    device, searched = settings.device, problem.on(settings.device)
    # Threads that share the problem put their own weights into a copy of the network.
    searched = searched._replace(module=deepcopy(searched.module))
    points = on_device(x, device)
    n_batches, size = len(settings.schedule.penalties) + 1, settings.train_batch_size
    batches = searched.batches.get((n_batches, size))
    if batches is None:
        # The same seed for every batch of points: all searches see the same mini-batches.
        generator = torch.Generator().manual_seed(problem.seed)
        rows = training_batches(len(problem.X), size, n_batches, generator)
        batches = MiniBatches(searched.train, torch.stack([*rows]))
        searched.batches[n_batches, size] = batches

    def search(n_bytes: int) -> Trajectories:
        found = [
            _search(
                searched,
                _starts(searched.module, problem.parameters, len(x), part),
                points,
                batches,
                part,
                settings.schedule,
                prior_precision=settings.prior_precision,
                n_bytes=n_bytes,
            )
            for part in map(
                objective.subset,
                searched.searches_that_fit(objective.n_searches, len(x), n_bytes),
            )
        ]
        return Trajectories(*(torch.cat(each, dim=1) for each in zip(*found, strict=True)))

    trajectories = Trajectories(*(each.cpu().double() for each in within_memory(search, device)))
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "An adversarial model search diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance with StandardScaler."
        )
    return trajectories


def _starts(
    module: nn.Module, names: Sequence[str], n_points: int, objective: Objective
) -> dict[str, Tensor]:
    """Weights that the searches start from: the reference model's, moved by the offsets."""
    weights = stack_parameters(module, n_points * objective.n_searches, names)  # Line 1
    with torch.no_grad():
        for name, offset in objective.offsets().items():
            weights[name] += offset
    return weights


def search_adversarial_models(
    module: nn.Module,
    weights: dict[str, Tensor],
    x: Tensor,
    train: TrainingSet,
    batches: Sequence[Tensor],
    *,
    objective: Objective,
    schedule: Schedule,
    prior_precision: float = 0.0,
) -> Trajectories:
    """Search adversarial models for many test points, all at once.

    Each search minimises ``L_adv(w) + c (L_train(w) - L_ref)``, one Adam step per penalty
    iteration, while c grows. The searches are independent of one another: gradients of their
    sum are the gradients of each, and Adam works element by element.

    Mini-batches are shared by all searches, so a result does not depend on which other
    points are searched along. ``L_train - L_ref`` is estimated by the difference of the two
    models' losses on the same batch, which is unbiased and free of most of the batch noise.
    The slack gamma of the paper is a constant of the objective, without a gradient: it enters
    only where the best model is picked (`best_adversarial_models`).

    Parameters
    ----------
    module : torch.nn.Module
        Reference model; it is not altered.
    weights : dict of str to Tensor of shape (n_points * n_searches, \\*parameter.shape)
        The parameters that move, where each search starts, point by point; they are altered
        in place and hold the last models afterwards.
    x : Tensor of shape (n_points, ...)
        Test points.
    train : TrainingSet
        Training data of the penalty, inputs in the form that `module` takes.
    batches : sequence of n_steps + 1 int64 Tensors
        Rows of the penalty's mini-batch in each iteration; the last one only serves to
        evaluate the models of the last update.
    objective : Objective
        Attack at the test points, and training loss.
    schedule : Schedule
        Penalties and step sizes of the n_steps steps. One step size suits networks of very
        different weights because it is relative; a tensor of zeros stays.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each weight: the negative log posterior is
        ``n * mean loss + prior_precision / 2 * |w|**2``, where n is the sum of the sample
        weights, and ``1 / n`` of it takes the place of the mean training loss of both models.

    Returns
    -------
    Trajectories
        One model per update; the model that the search starts from is not among them.

    References
    ----------
    Schweighofer et al., "Quantification of Uncertainty with Adversarial Models",
    NeurIPS 2023: Algorithm 1 and Appendix C.1.
    """
    searched = Searched.of(module, train, [*weights], float(train.weight.sum()))
    return _search(
        searched,
        weights,
        x,
        MiniBatches(train, torch.stack([*batches])),
        objective,
        schedule,
        prior_precision=prior_precision,
        n_bytes=within_memory(int, x.device),
    )


class _PointAttack(Attack):
    """``L_adv`` of each model at its own test point; notes what the models predict there."""

    def __init__(self, points: Tensor, objective: Objective, n_models: int):
        self.points, self.objective = points, objective
        self.own = points.repeat_interleave(n_models // len(points), dim=0).unsqueeze(1)
        self.predicted: list[Tensor] = []

    def inputs(self, step: int) -> Tensor:
        return self.own

    def losses(self, step: int, rows: slice, outputs: Tensor) -> Tensor:
        self.predicted.append(outputs.detach()[:, 0])
        by_point = outputs[:, 0].reshape(len(self.points), -1, outputs.shape[-1])
        return self.objective.attack(by_point)


def _search(
    searched: Searched,
    weights: dict[str, Tensor],
    points: Tensor,
    batches: MiniBatches,
    objective: Objective,
    schedule: Schedule,
    *,
    prior_precision: float,
    n_bytes: int,
) -> Trajectories:
    """Search for some points, each with as many searches as the objective has."""
    descent = Descent(searched, objective, prior_precision=prior_precision, n_bytes=n_bytes)
    attack = _PointAttack(points, objective, len(next(iter(weights.values()))))
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
    # The models of the updates, without those that the searches start from.
    shape = (len(points), -1, len(schedule.penalties))
    trajectories = torch.stack(outputs[1:], dim=1)  # (n_models, n_steps, n_outputs)
    return Trajectories(
        trajectories.reshape(*shape, trajectories.shape[-1]),
        torch.stack(excess[1:], dim=1).reshape(shape),
    )
