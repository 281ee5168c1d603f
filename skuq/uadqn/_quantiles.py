"""Quantile loss, variances from quantiles, and values of actions.

The functions for variances (Eq. 4 to 7) and for values of actions (Algorithm 1) accept quantiles as
arrays or tensors of shape (n_members, ..., n_quantiles); the networks are samples from the
posterior. Equations and propositions are numbered as in Clements et al., "Estimating Risk and
Uncertainty in Deep Reinforcement Learning", 2019.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

Array = TypeVar("Array", bound=Any)  # numpy.ndarray or torch.Tensor


def quantile_levels(n_quantiles: int, kind: str = "midpoint", **options: Any) -> Tensor:
    """Return the levels of equally weighted quantiles: midpoints, or i / (N + 1) for "paper".

    Midpoints (i - .5) / N, as in the authors' code, suit equal weights. The paper (its Sec. 1)
    prints i / (N + 1), which omits more of both tails: with 50 quantiles, the variance of a normal
    distribution is too small by 13 %, with midpoints by 3 %.
    """
    ranks = torch.arange(1, n_quantiles + 1, **options)
    if kind == "midpoint":
        return (ranks - 0.5) / n_quantiles
    if kind == "paper":
        return ranks / (n_quantiles + 1)
    raise ValueError(f"levels must be 'midpoint' or 'paper', got {kind!r}.")


def quantile_loss(quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
    """Compute the quantile regression loss, summed over quantiles and averaged over targets.

    The loss is ``sum_i mean_j rho_{tau_i}(z_j - q_i)`` with ``rho_tau(u) = u (tau - 1[u < 0])``
    (Eq. 1). All networks share the `targets` (n_samples, n_targets), which get no gradient.
    `quantiles` have shape (n_members, n_samples, n_quantiles), the result (n_members, n_samples).
    """
    fixed, targets = quantiles.detach(), targets.detach()
    u = targets[..., None] - fixed[:, :, None]
    loss: Tensor = (u * (levels - (u < 0).to(u.dtype))).mean(2).sum(-1)  # Eq. 1
    # The added term is 0, but its gradient is the gradient of the loss.
    return loss + (quantile_loss_gradient(fixed, targets, levels) * (quantiles - fixed)).sum(-1)


def quantile_loss_gradient(quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
    """Compute the gradient of `quantile_loss` by `quantiles`; the result has the same shape.

    The loss is convex and piecewise linear. Its slope at a quantile is the share of targets below
    the quantile, minus the level; the slope is NaN for samples with a non-finite target.
    """
    # Store comparisons as floats, because a sum of booleans is slower. Put the targets on the axis
    # before the last, because a sum over the last axis is slower.
    below = quantiles.new_empty(*quantiles.shape[:2], targets.shape[-1], quantiles.shape[-1])
    torch.gt(quantiles.detach()[:, :, None], targets[..., None], out=below)
    # The last term makes the gradient NaN if a target is not finite; comparisons would hide this.
    return below.sum(2) / targets.shape[-1] - levels + (0 * targets).sum(-1, keepdim=True)


def prior_scale(weights: list[Tensor]) -> Tensor:
    """Compute the standard deviation of each network's initial weights, without biases."""
    # Each weight has shape (n_members, ...); the result has shape (n_members,).
    return torch.cat([weight.flatten(1) for weight in weights], dim=1).std(dim=1)


def bellman_targets(
    quantiles: Tensor, rewards: Tensor, terminal: Tensor, discount: float | Tensor
) -> Tensor:
    """Compute the Bellman targets of QR-DQN (Sec. 1): samples of the return, one per quantile.

    The target is ``r`` if the episode has ended. Otherwise it is ``r + discount * q_i(s', a')``,
    where ``a'`` is the action with the highest mean. `quantiles` are those of the target network at
    the next observations, (n_samples, n_actions, n_quantiles); other arguments are (n_samples, 1).
    """
    best = quantiles.mean(-1).argmax(1)[:, None, None].expand(-1, 1, quantiles.shape[-1])
    ahead = quantiles.gather(1, best).squeeze(1)
    return rewards + (1 - terminal) * discount * ahead


def epistemic_variance(quantiles: Array) -> Array:
    """Estimate the variance over networks, averaged over quantiles (Clements et al., 2019, Eq. 4).

    For two networks this is half the mean squared difference (Eq. 7). The estimate is unbiased for
    any number of networks that are independent samples from the posterior (Prop. 2.3).

    Parameters
    ----------
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the same returns, predicted by at least two networks.

    Returns
    -------
    array of shape (...)
        Non-negative variance, in squared units of the quantiles.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.uadqn import epistemic_variance
    >>> epistemic_variance(np.array([[0.0, 1.0], [2.0, 1.0]])).item()
    1.0
    """
    n_members = _n_members(quantiles)
    deviation = quantiles - quantiles.mean(0)
    # Eq. 4; for two networks, this is Eq. 7.
    return (deviation * deviation).sum(0).mean(-1) / (n_members - 1)


def aleatoric_variance(quantiles: Array) -> Array:
    """Estimate, without bias, the variance over quantiles that are averaged across networks.

    The networks' quantiles are averaged, and Eq. 5 of Clements et al., "Estimating Risk and
    Uncertainty in Deep Reinforcement Learning", 2019, is the variance over these averages. It is
    estimated by the covariance, over quantiles, of two networks (Eq. 7), averaged over all pairs.
    Errors of independent networks cancel in the covariance (Prop. 2.3), but the variance over one
    network's quantiles counts such errors as risk (Prop. 2.1).

    Arguments and result are as in `epistemic_variance`, but the estimate can be negative.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.uadqn import aleatoric_variance
    >>> aleatoric_variance(np.array([[0.0, 2.0], [5.0, 7.0]])).item()
    1.0
    """
    n_members = _n_members(quantiles)
    # Eq. 7, averaged over pairs of the n networks: the sum of all covariances, including the n
    # variances, is n^2 times the variance of the mean.
    of_mean = quantile_variance(quantiles.mean(0))
    own = quantile_variance(quantiles).mean(0)
    return (n_members * of_mean - own) / (n_members - 1)


def quantile_variance(quantiles: Array) -> Array:
    """Compute the variance over the quantiles of each network, the biased estimate of Prop. 2.1."""
    deviation = quantiles - quantiles.mean(-1)[..., None]
    return (deviation * deviation).mean(-1)


def aleatoric_part(quantiles: Array, aleatoric: str) -> Array:
    """Compute the aleatoric variance by one of the paper's two estimates, clipped at 0."""
    # `quantiles` has shape (n_members, ..., n_quantiles), with the value network first.
    check_estimate(aleatoric)
    if aleatoric == "covariance":
        return aleatoric_variance(quantiles[1:]).clip(0)  # Eq. 7
    return quantile_variance(quantiles[0])  # variant 1, biased upwards (Prop. 2.1)


def check_estimate(aleatoric: str) -> None:
    if aleatoric not in ("covariance", "variance"):
        raise ValueError(f"aleatoric must be 'covariance' or 'variance', got {aleatoric!r}.")


def risk_adjusted_values(
    quantiles: Array, aleatoric_factor: float, aleatoric: str = "covariance"
) -> Array:
    """Compute the mean return of each action minus a multiple of its aleatoric std."""
    # `quantiles` has shape (n_members, ..., n_quantiles), with the value network first.
    means = quantiles[0].mean(-1)
    if aleatoric_factor == 0:
        return means
    # Algorithm 1: mu - lambda sigma_aleatoric
    return means - aleatoric_factor * aleatoric_part(quantiles, aleatoric) ** 0.5


def sampled_values(values: Array, epistemic: Array, epistemic_factor: float, noise: Array) -> Array:
    """Compute Thompson samples of `values`, from standard normal `noise` of the same shape."""
    # Algorithm 1: samples with standard deviation beta sigma_epistemic (Eq. 7)
    return values + epistemic_factor * epistemic**0.5 * noise


def _n_members(quantiles: Any) -> int:
    n_members = int(quantiles.shape[0])
    if n_members < 2:
        raise ValueError(
            "Quantiles of at least two networks are needed to separate epistemic from "
            f"aleatoric variance, got an array of shape {tuple(quantiles.shape)}."
        )
    return n_members
