"""Searches of a regressor: what they ask for, and where they start.

Models are normal distributions of the target. What they return is the mean, and the logarithm
of the variance unless the noise is the same everywhere and known.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skuq.information import gaussian_kl
from skuq.quam._batch import Plan
from skuq.quam._objectives import Objective

# A search starts this far off the given model, in standard deviations of the noise: at the
# model itself the divergence is least and has no gradient.
START = 1e-2
DIRECTIONS = (1, -1)  # of the two searches of each point: upward, downward

# Beyond this, variances could not be divided by one another any more.
_MAX_LOG_VARIANCE = 100.0


class Gaussians(NamedTuple):
    """Means and variances, Tensors of equal shape, in units of the target and their square."""

    mean: Tensor
    variance: Tensor


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


def gaussians(outputs: Tensor, noise_variance: float | None) -> Gaussians:
    """Read outputs as normal distributions.

    Parameters
    ----------
    outputs : Tensor of shape (..., n_outputs)
        Mean, and log variance if `noise_variance` is None.
    noise_variance : float or None
        Variance of all models.

    Returns
    -------
    Gaussians
        Each part of shape (...).

    Examples
    --------
    >>> gaussians(torch.tensor([2.0, 0.0]), None)
    Gaussians(mean=tensor(2.), variance=tensor(1.))
    """
    mean = outputs[..., 0]
    if noise_variance is not None:
        return Gaussians(mean, torch.full_like(mean, noise_variance))
    return Gaussians(mean, outputs[..., 1].clamp(-_MAX_LOG_VARIANCE, _MAX_LOG_VARIANCE).exp())


def gaussian_loss(outputs: Tensor, y: Tensor, noise_variance: float | None) -> Tensor:
    """Negative log-likelihood of targets.

    Parameters
    ----------
    outputs : Tensor of shape (..., n_samples, n_outputs)
        What models return.
    y : Tensor of shape (n_samples,)
        Targets.
    noise_variance : float or None
        Variance of all models; None if it is their second output.

    Returns
    -------
    Tensor of shape (..., n_samples)
        Losses in nats.

    Examples
    --------
    >>> density = 0.5 / torch.pi  # its reciprocal is the variance at which log(2 pi variance) = 0
    >>> float(gaussian_loss(torch.tensor([[3.0]]), torch.tensor([3.0]), density))
    0.0
    """
    mean, variance = gaussians(outputs, noise_variance)
    return ((2 * torch.pi * variance).log() + (y - mean).square() / variance) / 2


def directed_divergence(reference: Gaussians, models: Gaussians, away: Tensor) -> Tensor:
    """KL divergence of models from the reference model, as if on the wanted side of it.

    Parameters
    ----------
    reference, models : Gaussians
        Distributions p and q.
    away : Tensor
        How far each model's mean lies on the side that is wanted, in units of the target.

    Returns
    -------
    Tensor
        In nats. The term of the means counts negative on the wrong side, so that more of it
        always leads to the side that is wanted, and is the divergence of Eq. 25 there.
    """
    spread = gaussian_kl(reference.mean, reference.variance, reference.mean, models.variance)
    return spread + away * away.abs() / (2 * models.variance)


def directed(reference: Tensor, noise_variance: float | None, start: float = 0.0) -> Objective:
    """Ask for models above and below the given one (Appendix C.1).

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        What the given model returns at the test points.
    noise_variance : float or None
        Variance of all models; None if it is their second output.
    start : float, default=0.0
        What is added to the displacement of a model, in standard deviations of the given one.

    Returns
    -------
    Objective
        Of two searches per point, upward and downward. ``L_adv`` is minus the
        `directed_divergence`.

    Examples
    --------
    >>> attack = directed(torch.tensor([[0.0]]), 1.0).attack
    >>> attack(torch.tensor([[2.0], [2.0]]))  # right for the first search, wrong for the second
    tensor([-2.,  2.])
    """
    given = gaussians(reference.repeat_interleave(len(DIRECTIONS), dim=0), noise_variance)
    sign = reference.new_tensor(DIRECTIONS).repeat(len(reference))

    def attack(outputs: Tensor) -> Tensor:
        models = gaussians(outputs, noise_variance)
        away = sign * (models.mean - given.mean) + start * given.variance.sqrt()
        return -directed_divergence(given, models, away)

    return Objective(attack, partial(gaussian_loss, noise_variance=noise_variance))


def displaced(reference: Tensor, noise_variance: float | None) -> Objective:
    """Ask for models above and below the given one, with a pull that does not grow.

    With one variance for all models, the displacement is the root of twice the divergence, so
    that the same models are the best within any loss. Yet minus the displacement, unlike minus
    its square, has a minimum for every penalty, and a gradient from the start.

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        What the given model returns at the test points.
    noise_variance : float or None
        Variance of all models; None if it is their second output.

    Returns
    -------
    Objective
        Of two searches per point, upward and downward. ``L_adv`` is minus the displacement of
        the mean, in standard deviations of the given model.

    Examples
    --------
    >>> attack = displaced(torch.tensor([[0.0]]), 0.25).attack
    >>> attack(torch.tensor([[2.0], [2.0]]))  # right for the first search, wrong for the second
    tensor([-4.,  4.])
    """
    given = gaussians(reference.repeat_interleave(len(DIRECTIONS), dim=0), noise_variance)
    sign = reference.new_tensor(DIRECTIONS).repeat(len(reference))

    def attack(outputs: Tensor) -> Tensor:
        return sign * (given.mean - outputs[..., 0]) / given.variance.sqrt()

    return Objective(attack, partial(gaussian_loss, noise_variance=noise_variance))


@torch.no_grad()
def output_bias(module: nn.Module, parameters: tuple[str, ...], X: Tensor) -> OutputBias | None:
    """Find, among the parameters that move, the bias of the output layer.

    Whatever the network looks like, it is the last bias of as many elements as there are
    outputs whose first element shifts the predicted mean by the same amount for all inputs.

    Parameters
    ----------
    module : torch.nn.Module
        Network; it is not altered.
    parameters : tuple of str
        Names of the parameters that move.
    X : Tensor of shape (n_samples, ...)
        Example inputs.

    Returns
    -------
    OutputBias or None
        None if there is no such bias or it does not move.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1))
    >>> output_bias(net, ("0.bias", "2.weight", "2.bias"), torch.eye(2)).name
    '2.bias'
    >>> output_bias(net, ("0.bias", "2.weight"), torch.eye(2)) is None
    True
    """
    module = deepcopy(module)
    before = module(X.clone())
    step = 1 + before[:, 0].abs().max()  # large enough to be seen in single precision
    for name in reversed(parameters):
        bias = module.get_parameter(name)
        if name.rpartition(".")[2] != "bias" or bias.shape != before.shape[1:]:
            continue
        bias[0] += step
        effect = (module(X.clone())[:, 0] - before[:, 0]) / step
        bias[0] -= step
        if effect[0] != 0 and torch.allclose(effect, effect[0], rtol=1e-3, atol=0):
            return OutputBias(name, len(bias), float(effect[0]))
    return None


def plan_searches(
    reference: Tensor, *, attack: str, noise_variance: float | None, bias: OutputBias | None
) -> Plan:
    """Two searches for each point; those for divergence start a little off the given model.

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        What the given model returns at the test points.
    attack : {"displacement", "divergence"}
        What the searches want: `displaced` or `directed`.
    noise_variance : float or None
        Variance of all models; None if it is their second output.
    bias : OutputBias or None
        What the start is moved by. None leaves it, and instead lets the attack, though not
        the loss, see the models as far off as they would have been.

    Returns
    -------
    Plan
        Objective, number of searches and starts.
    """
    if attack == "displacement":
        return Plan(displaced(reference, noise_variance), len(DIRECTIONS))
    if bias is None:
        return Plan(directed(reference, noise_variance, START), len(DIRECTIONS))
    scale = gaussians(reference, noise_variance).variance.sqrt() * START / bias.effect
    offset = reference.new_zeros(len(reference), len(DIRECTIONS), bias.width)
    offset[..., 0] = scale[:, None] * reference.new_tensor(DIRECTIONS)
    return Plan(
        directed(reference, noise_variance), len(DIRECTIONS), {bias.name: offset.flatten(0, 1)}
    )
