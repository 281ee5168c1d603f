"""Importance sampling for regression: from the models found by the searches to uncertainty.

Each model predicts a normal distribution of the target. The outputs of a model are the mean and, if
the variance is not known, the log variance. As in `_importance_sampling`, the outputs are arrays or
Tensors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from skuq._information import (
    Decomposition,
    array_namespace,
    entropy,
    gaussian_entropy,
    gaussian_kl,
    gaussian_pairwise_kl,
)
from skuq.base import FloatArray
from skuq.files import stored
from skuq.quam._importance_sampling import (
    ImportanceSampling,
    Trajectories,
    as_numpy,
    joined_models,
    taken,
)

DIRECTIONS = (1, -1)  # the two searches of each point: upward, downward

# Limit of log variances, which keeps quotients of variances finite.
_MAX_LOG_VARIANCE = 100.0
_N_NODES = 32  # nodes of the quadrature
# Mixture components below this weight are dropped. Each of them changes the result by < 1e-8.
_NEGLIGIBLE = 1e-10
# Number of pairs of mixture components in a batch, summed over the points of the batch.
_PAIRS_AT_ONCE = 2**18


class Gaussians(NamedTuple):
    """Means in units of the target, and variances in squared units, of equal shape."""

    mean: Any
    variance: Any


def gaussians(outputs: Any, noise_variance: float | None) -> Gaussians:
    """Convert outputs, (..., n_outputs), to normal distributions."""
    xp, mean = array_namespace(outputs), outputs[..., 0]
    if noise_variance is not None:
        return Gaussians(mean, xp.full_like(mean, noise_variance))
    # Gradients of quotients of variances contain the cube of a variance. In float32 (on MPS), this
    # cube overflows if the log variance is above 29.
    limit = _MAX_LOG_VARIANCE if xp.finfo(outputs.dtype).bits == 64 else _MAX_LOG_VARIANCE / 4
    return Gaussians(mean, xp.exp(outputs[..., 1].clip(-limit, limit)))


def gaussian_loss(outputs: Any, y: Any, noise_variance: float | None) -> Any:
    """Negative log-likelihood: (..., n_samples, n_outputs), (n_samples,) -> (..., n_samples)."""
    mean, variance = gaussians(outputs, noise_variance)
    log_variance = array_namespace(variance).log(2 * math.pi * variance)
    return (log_variance + (y - mean) ** 2 / variance) / 2


def directed_divergence(reference: Gaussians, models: Gaussians, away: Any) -> Any:
    """KL divergence from the reference model; the term with the means has the sign of `away`."""
    spread = gaussian_kl(reference.mean, reference.variance, reference.mean, models.variance)
    return spread + away * abs(away) / (2 * models.variance)


@stored("quam.output-bias")
class OutputBias(NamedTuple):
    """A bias of `width` elements; the first one shifts predicted means by `effect` per unit."""

    name: str
    width: int
    effect: float


class AdversarialRegressors(NamedTuple):
    """The best adversarial model of each search, as arrays of shape (n_points, 2).

    Attributes
    ----------
    direction : ndarray, int64
        Direction of the search: 1 for a higher mean than the given model's, -1 for a lower mean.
    mean, variance : ndarray, float64
        Prediction of the model at the test point, in units of the target and in squared units.
    divergence : ndarray, float64
        KL divergence of the prediction from the given model's prediction, in nats.
    excess_loss : ndarray, float64
        Mean training loss of the model minus the given model's mean training loss, in nats; for a
        refitted learner, as in `AdversarialModels`.
    feasible : ndarray, bool
        Whether any model of the search has a mean in the direction of the search and an excess
        loss of at most gamma. Otherwise, the model with the smallest excess loss is returned.
    """

    direction: Any
    mean: Any
    variance: Any
    divergence: Any
    excess_loss: Any
    feasible: Any


class _Visited(NamedTuple):
    """The models visited by all searches of a batch, and the given model."""

    given: Gaussians  # (n_points, 1, 1)
    models: Gaussians  # (n_points, 2, n_steps)
    excess_loss: Any  # (n_points, 2, n_steps)

    @classmethod
    def of(cls, reference: Any, found: Trajectories, noise_variance: float | None) -> _Visited:
        given = gaussians(reference[:, None, None], noise_variance)
        return cls(given, gaussians(found.outputs, noise_variance), found.excess_loss)

    def away(self) -> Any:
        """Displacement of each model's mean in its search direction, in units of the target."""
        distance = self.models.mean - self.given.mean
        xp = array_namespace(distance)
        return xp.stack([sign * distance[:, k] for k, sign in enumerate(DIRECTIONS)], 1)

    def best(self, gamma: float) -> tuple[_Visited, Any]:
        """The best model of each search, and whether it is feasible."""
        away = self.away()
        within = (self.excess_loss <= gamma) & (away > 0)
        divergence = directed_divergence(self.given, self.models, away)
        found = within.any(-1)[..., None]
        xp = array_namespace(divergence)
        score = xp.where(within, divergence, -xp.inf)
        at = xp.where(found, score, -self.excess_loss).argmax(-1)[..., None]
        models = Gaussians(*(taken(part, at, -1) for part in self.models))
        return _Visited(self.given, models, taken(self.excess_loss, at, -1)), found

    def weighted(self, sampling: ImportanceSampling) -> tuple[Gaussians, Any]:
        """Models that enter the estimate and their weights, (n_points, n_models)."""
        kept = self.best(sampling.gamma)[0] if sampling.mixture == "dirac" else self
        models = [part.reshape(len(part), -1) for part in kept.models]
        if sampling.by_search:
            pairs = zip(self.given, models, strict=True)
            models = [joined_models(given[:, 0], part) for given, part in pairs]
        return Gaussians(*models), sampling.weights(kept.excess_loss)


def gaussian_uncertainty(
    reference: Any,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    *,
    noise_variance: float | None,
) -> Decomposition:
    """Parts of uncertainty, (n_points,), from the weighted models of the searches."""
    visited = _Visited.of(reference, trajectories, noise_variance)
    models, weights = visited.weighted(sampling)
    if sampling.setting == "selected":  # Eq. 27
        given = Gaussians(*(part[:, 0] for part in visited.given))
        aleatoric = gaussian_entropy(given.variance[:, 0])
        epistemic = (weights * gaussian_kl(*given, *models)).sum(-1)
    else:  # Eq. 26
        aleatoric = (weights * gaussian_entropy(models.variance)).sum(-1)
        pairwise = sampling.setting == "pairwise"
        divergence = gaussian_pairwise_kl if pairwise else mixture_information
        epistemic = divergence(*models, weights)
    parts = (aleatoric, epistemic)
    return Decomposition(*(as_numpy(part).astype(np.float64, copy=False) for part in parts))


def estimate_spread(
    reference: Any,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    *,
    noise_variance: float | None,
) -> FloatArray:
    """Weighted standard deviation of the models' means, (n_points,)."""
    visited = _Visited.of(reference, trajectories, noise_variance)
    models, weights = visited.weighted(sampling)
    if sampling.setting == "selected":
        centre = visited.given.mean[:, 0]
    else:
        centre = (weights * models.mean).sum(-1)[..., None]
    variance = as_numpy((weights * (models.mean - centre) ** 2).sum(-1))
    return np.sqrt(variance.astype(np.float64, copy=False))


def best_adversarial_regressors(
    reference: Any, trajectories: Trajectories, gamma: float, *, noise_variance: float | None
) -> AdversarialRegressors:
    """Best adversarial model of each search."""
    visited, feasible = _Visited.of(reference, trajectories, noise_variance).best(gamma)
    parts = (
        np.broadcast_to(np.array(DIRECTIONS), (len(reference), 2))[..., None],
        *visited.models,
        gaussian_kl(*visited.given, *visited.models),
        visited.excess_loss,
        feasible,
    )
    return AdversarialRegressors(*(as_numpy(part).squeeze(-1) for part in parts))


def mixture_information(mean: Any, variance: Any, weights: Any) -> Any:
    """Expected KL divergence of the mixture from its components, (n_points,).

    This is the mutual information of target and component, the epistemic part of Eq. 26. It has no
    closed form; each component is integrated by Gauss-Hermite quadrature. The error is below 1e-4
    nats if variances are equal, and a few hundredths of a nat if standard deviations differ by more
    than a factor of ten. Shapes: `mean`, `variance`, `weights` (n_points, n_models).
    """
    xp = array_namespace(weights)
    mean, variance, weights = (xp.asarray(x, dtype=xp.float64) for x in (mean, variance, weights))
    kept = xp.where(weights > _NEGLIGIBLE, weights, 0.0 * weights)
    order = xp.argsort(-kept, 1)[:, : int((kept > 0).sum(1).max())]
    mean, scale, kept = (taken(part, order, 1) for part in (mean, xp.sqrt(variance), kept))
    size = max(1, _PAIRS_AT_ONCE // order.shape[1] ** 2)
    parts = [slice(start, start + size) for start in range(0, len(mean), size)]
    return xp.concatenate([_information(mean[rows], scale[rows], kept[rows]) for rows in parts])


def _information(mean: Any, scale: Any, weights: Any) -> Any:
    xp = array_namespace(weights)
    weights = weights / weights.sum(1)[:, None]
    with np.errstate(divide="ignore"):  # dropped components have weight 0
        log_weights = xp.log(weights)
    # Log of the quotient of weight and standard deviation of component j. The factor of sqrt(2 pi)
    # is omitted in the densities of the mixture and of component i below, because it cancels.
    log_factor = (log_weights - xp.log(scale))[:, None]
    nodes, shares = np.polynomial.hermite_e.hermegauss(_N_NODES)
    total = xp.zeros_like(weights)
    for node, share in zip(nodes, shares / math.sqrt(2 * math.pi), strict=True):
        y = mean + scale * node
        distance = (y[:, :, None] - mean[:, None]) / scale[:, None]
        log_mixture = _log_sum_exp(log_factor - distance**2 / 2)
        total += share * (-xp.log(scale) - node**2 / 2 - log_mixture)
    return xp.minimum((weights * total).sum(1).clip(0), entropy(log_weights))


def _log_sum_exp(values: Any) -> Any:
    """Log-sum-exp over the last axis, which must contain a finite value."""
    if not isinstance(values, np.ndarray):
        return values.logsumexp(-1)
    largest = values.max(axis=-1, keepdims=True)
    return np.log(np.exp(values - largest).sum(axis=-1)) + largest[..., 0]
