"""Epistemic and aleatoric variance from the quantiles of several networks.

Functions of arrays alone, numpy or torch alike. Quantiles have shape (n_members, ...,
n_quantiles): the first axis is the sample of networks drawn from the posterior, the last
one the levels; axes between them (observations, actions) are kept. Equations and propositions
are those of Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement Learning",
2019.
"""

from __future__ import annotations

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # numpy.ndarray or torch.Tensor


def epistemic_variance(quantiles: Array) -> Array:
    """Estimate the variance over networks, averaged over quantiles (Eq. 4) [1]_.

    For two networks this is half the mean squared difference (Eq. 6). It is unbiased for
    any number of networks that are independent samples of the posterior (Prop. 2.3).

    Parameters
    ----------
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the same returns by at least two networks.

    Returns
    -------
    array of shape (...)
        Squared unit of the quantiles; never negative.

    Raises
    ------
    ValueError
        If there are fewer than two networks.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019, Sec. 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.uadqn._estimates import epistemic_variance
    >>> epistemic_variance(np.array([[0.0, 1.0], [2.0, 1.0]])).item()
    1.0
    """
    n_members = _n_members(quantiles)
    deviation = quantiles - quantiles.mean(0)
    return (deviation * deviation).sum(0).mean(-1) / (n_members - 1)  # Eq. 4; Eq. 6 for two


def aleatoric_variance(quantiles: Array) -> Array:
    """Estimate the variance over quantiles of the mean network (Eq. 5), without bias [1]_.

    The covariance over quantiles of two networks (Eq. 7), averaged over all pairs. Errors
    of independent networks cancel in it (Prop. 2.3), while the variance of one network's
    quantiles counts them as risk (Prop. 2.1). Each action has a covariance of its own.

    Parameters
    ----------
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the same returns by at least two networks.

    Returns
    -------
    array of shape (...)
        Squared unit of the quantiles. An unbiased estimate of a variance near 0 can be
        negative.

    Raises
    ------
    ValueError
        If there are fewer than two networks.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019, Sec. 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.uadqn._estimates import aleatoric_variance
    >>> aleatoric_variance(np.array([[0.0, 2.0], [5.0, 7.0]])).item()
    1.0
    """
    n_members = _n_members(quantiles)
    # Eq. 7, averaged over pairs: n^2 times the variance of the mean is the sum of all
    # covariances, the networks' own variances included.
    of_mean = quantile_variance(quantiles.mean(0))
    own = quantile_variance(quantiles).mean(0)
    return (n_members * of_mean - own) / (n_members - 1)


def quantile_variance(quantiles: Array) -> Array:
    """Variance over the quantiles of each network, the biased estimate of Prop. 2.1.

    Parameters
    ----------
    quantiles : array of shape (..., n_quantiles)
        Quantiles, all of the same weight.

    Returns
    -------
    array of shape (...)
        Squared unit of the quantiles.
    """
    deviation = quantiles - quantiles.mean(-1)[..., None]
    return (deviation * deviation).mean(-1)


def aleatoric_part(quantiles: Array, aleatoric: str) -> Array:
    """Aleatoric variance by one of the paper's two estimates, never negative.

    Parameters
    ----------
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the value network, then of the auxiliary ones.
    aleatoric : {"covariance", "variance"}
        Eq. 7 from the auxiliary networks, 0 where it is negative; or the variance of the
        value network's quantiles, which is biased upwards where the network is unsure (the
        paper's variant 1).

    Returns
    -------
    array of shape (...)
        Squared unit of the quantiles.
    """
    if aleatoric == "covariance":
        return aleatoric_variance(quantiles[1:]).clip(0)  # Eq. 7
    return quantile_variance(quantiles[0])  # Prop. 2.1


def risk_adjusted_values(
    quantiles: Array, aleatoric_factor: float, aleatoric: str = "covariance"
) -> Array:
    """Value of each action: mean return minus a multiple of its aleatoric deviation [1]_.

    Parameters
    ----------
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the value network, which the means are of, then of the auxiliary ones.
    aleatoric_factor : float
        Lambda: number of standard deviations that are subtracted.
    aleatoric : {"covariance", "variance"}, default="covariance"
        Estimate of the variance, see `aleatoric_part`.

    Returns
    -------
    array of shape (...)
        Unit of the quantiles.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019, Algorithm 1.
    """
    means = quantiles[0].mean(-1)
    if aleatoric_factor == 0:
        return means
    # Algorithm 1: mu - lambda sigma_aleatoric
    return means - aleatoric_factor * aleatoric_part(quantiles, aleatoric) ** 0.5


def sampled_values(values: Array, quantiles: Array, epistemic_factor: float, noise: Array) -> Array:
    """Thompson samples of the actions' values [1]_.

    Parameters
    ----------
    values : array of shape (...)
        Means of the samples, see `risk_adjusted_values`.
    quantiles : array of shape (n_members, ..., n_quantiles)
        Quantiles of the value network, then of at least two auxiliary ones.
    epistemic_factor : float
        Beta: number of epistemic standard deviations in one of the samples.
    noise : array of shape (...)
        Standard normal numbers.

    Returns
    -------
    array of shape (...)
        Unit of the quantiles.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019, Algorithm 1.
    """
    # Algorithm 1: samples with the deviation beta sigma_epistemic (Eq. 6)
    return values + epistemic_factor * epistemic_variance(quantiles[1:]) ** 0.5 * noise


def _n_members(quantiles: Any) -> int:
    n_members = int(quantiles.shape[0])
    if n_members < 2:
        raise ValueError(
            "The quantiles of at least two networks are needed to tell epistemic from "
            f"aleatoric variance, got an array of shape {tuple(quantiles.shape)}."
        )
    return n_members
