"""Exact posterior of a binary Gaussian-process classifier, by elliptical slice sampling.

This is the reference for Gaussian approximations of the posterior.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from skuq import RobustGPC


class Gold(NamedTuple):
    """Sampled moments of the latent function, and class probabilities, at n points.

    `error` is the Monte-Carlo standard error of `mean`; `r_hat` the split potential scale
    reduction, near 1 if the chains agree.
    """

    mean: NDArray
    std: NDArray
    proba: NDArray
    error: NDArray
    r_hat: NDArray


def elliptical_slices(
    mean: NDArray,
    factor: NDArray,
    log_ratio: Callable[[NDArray], NDArray],
    *,
    n_chains: int,
    n_steps: int,
    rng: np.random.Generator,
) -> NDArray:
    """Sample from ``N(mean, factor factor') exp(log_ratio)``; shape (n_steps, n_chains, k).

    All chains are vectorised; each shrinks its own slice (Murray, Adams, MacKay, 2010).
    """
    k = len(mean)
    state = rng.normal(size=(n_chains, k)) @ factor.T  # dispersed initial states
    value = log_ratio(mean + state)
    states = np.empty((n_steps, n_chains, k), dtype=np.float32)
    for step in range(n_steps):
        direction = rng.normal(size=(n_chains, k)) @ factor.T
        level = value + np.log(rng.random(n_chains))
        angle = rng.uniform(0, 2 * np.pi, n_chains)
        least, most = angle - 2 * np.pi, angle.copy()
        open_, start = np.arange(n_chains), state.copy()
        while len(open_):
            turn = angle[open_, None]
            moved = np.cos(turn) * start[open_] + np.sin(turn) * direction[open_]
            new = log_ratio(mean + moved)
            good = new > level[open_]
            state[open_[good]], value[open_[good]] = moved[good], new[good]
            open_ = open_[~good]
            below = angle[open_] < 0
            least[open_] = np.where(below, angle[open_], least[open_])
            most[open_] = np.where(below, most[open_], angle[open_])
            angle[open_] = rng.uniform(least[open_], most[open_])
        states[step] = mean + state
    return states


def split_r_hat(draws: NDArray) -> NDArray:
    """Compute split R-hat of draws (n_steps, n_chains, k), of shape (k,)."""
    half = len(draws) // 2
    halves = np.concatenate([draws[:half], draws[half : 2 * half]], axis=1).astype(float)
    within = halves.var(axis=0, ddof=1).mean(axis=0)
    between = halves.mean(axis=0).var(axis=0, ddof=1)
    return np.sqrt((half - 1) / half + between / within)


def summarise(draws: NDArray) -> Gold:
    """Compute moments and diagnostics of latent draws of shape (n_steps, n_chains, k)."""
    return Gold(
        draws.mean(axis=(0, 1)),
        draws.std(axis=(0, 1)),
        ndtr(draws).mean(axis=(0, 1)),
        draws.mean(axis=0).std(axis=0, ddof=1) / np.sqrt(draws.shape[1]),
        split_r_hat(draws),
    )


def gold_standard(
    base: RobustGPC,
    y: NDArray,
    X_test: NDArray,
    *,
    n_chains: int,
    n_steps: int,
    rng: np.random.Generator,
) -> Gold:
    """Sample the latent values at training and test points under the kernel of `base`.

    The exact posterior is the Gaussian approximation of `base`, times the ratio of the likelihood
    to the Gaussian sites of `base`. With expectation propagation, the sampler therefore starts
    close to the posterior.
    """
    posterior = base.posterior_
    inputs, n = posterior.inputs, len(posterior.inputs)
    points = np.concatenate([inputs, X_test])
    cross = base.kernel_(points, inputs)
    reduction, alpha = posterior.reduction()[0], posterior.weights[0]
    mean, covariance = cross @ alpha, base.kernel_(points) - cross @ reduction @ cross.T
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(values.clip(min=0))
    # With sites of precision W, R = W (I - K R), and S^-1 m = K^-1 m + W m.
    precision = np.diagonal(reduction) / (1 - np.einsum("ij,ji->i", cross[:n], reduction))
    shift = alpha + precision * mean[:n]
    sign = np.where(y == base.classes_[1], 1.0, -1.0)

    def log_ratio(latent: NDArray) -> NDArray:
        f = latent[:, :n]
        return (log_ndtr(sign * f) + precision * f**2 / 2 - shift * f).sum(axis=1)

    total = n_steps + n_steps // 4  # the first fifth is burn-in
    draws = elliptical_slices(mean, factor, log_ratio, n_chains=n_chains, n_steps=total, rng=rng)
    return summarise(draws[-n_steps:, :, n:].astype(float))


def distances(model: RobustGPC, points: NDArray, gold: Gold) -> dict[str, float]:
    """Compute average distances of means, standard deviations and probabilities."""
    mean, covariance = model.posterior_.moments(points)
    apart, std = np.abs(mean[:, 0] - gold.mean), np.sqrt(covariance[:, 0, 0])
    return {
        "mean_distance": apart.mean(),
        "mean_distance_in_std": (apart / gold.std).mean(),
        "std_distance": np.abs(std - gold.std).mean(),
        "proba_distance": np.abs(model.predict_proba(points)[:, 1] - gold.proba).mean(),
    }
