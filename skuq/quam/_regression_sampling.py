"""Importance sampling for regression: from the models of the searches to uncertainty."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.information import Decomposition, gaussian_entropy, gaussian_kl
from skuq.quam._importance_sampling import ImportanceSampling, Trajectories
from skuq.quam._regression_objectives import (
    DIRECTIONS,
    Gaussians,
    directed_divergence,
    gaussians,
)

_N_NODES = 32  # of the quadrature
# Components of less weight change the result by less than 1e-8 each and cost as much as others.
_NEGLIGIBLE = 1e-10
_PAIRS_AT_ONCE = 2**18  # of components, over all points of a batch


class AdversarialRegressors(NamedTuple):
    """The best adversarial model of each search, as arrays of shape (n_points, 2).

    Attributes
    ----------
    direction : ndarray, int64
        The side that the search asked for: 1 for a higher mean than the given model's, -1
        for a lower one.
    mean, variance : ndarray, float64
        Prediction of the model at the test point, in units of the target and their square.
    divergence : ndarray, float64
        KL divergence of its prediction from the given model's, in nats.
    excess_loss : ndarray, float64
        Its mean training loss above the given model's, in nats; of a learner that was refitted,
        as in `AdversarialModels`.
    feasible : ndarray, bool
        Whether any model of the search lay on the wanted side and kept its excess loss within
        gamma. Where none did, the model shown is the one of smallest excess loss.
    """

    direction: Any
    mean: Any
    variance: Any
    divergence: Any
    excess_loss: Any
    feasible: Any


class _Visited(NamedTuple):
    """The models of all searches of a batch, and the given one."""

    given: Gaussians  # (n_points, 1, 1)
    models: Gaussians  # (n_points, 2, n_steps)
    excess_loss: Tensor  # (n_points, 2, n_steps)

    @classmethod
    def of(cls, reference: Tensor, found: Trajectories, noise_variance: float | None) -> _Visited:
        given = gaussians(reference[:, None, None], noise_variance)
        return cls(given, gaussians(found.outputs, noise_variance), found.excess_loss)

    def away(self) -> Tensor:
        """Distance of each model towards the side that its search wants, in units of the target."""
        sign = self.models.mean.new_tensor(DIRECTIONS)[:, None]
        return sign * (self.models.mean - self.given.mean)

    def best(self, gamma: float) -> tuple[_Visited, Tensor]:
        """The best model of each search, and whether it is feasible."""
        away = self.away()
        within = (self.excess_loss <= gamma) & (away > 0)
        divergence = directed_divergence(self.given, self.models, away)
        found = within.any(-1, keepdim=True)
        score = torch.where(within, divergence, -torch.inf)
        at = torch.where(found, score, -self.excess_loss).argmax(-1, keepdim=True)
        models = Gaussians(*(part.take_along_dim(at, dim=-1) for part in self.models))
        return _Visited(self.given, models, self.excess_loss.take_along_dim(at, dim=-1)), found

    def weighted(self, sampling: ImportanceSampling) -> tuple[Gaussians, Tensor]:
        """Models that count and their weights, (n_points, n_models)."""
        kept = self.best(sampling.gamma)[0] if sampling.mixture == "dirac" else self
        models = [part.flatten(1) for part in kept.models]
        if sampling.by_search:
            pairs = zip(self.given, models, strict=True)
            models = [torch.cat([given[:, 0], part], dim=1) for given, part in pairs]
        return Gaussians(*models), sampling.weights(kept.excess_loss)


def gaussian_uncertainty(
    reference: Tensor,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    *,
    noise_variance: float | None,
) -> Decomposition:
    """Weigh the models visited by the searches and take Eq. 26 or Eq. 27 over them.

    Shapes: `reference` (n_points, n_outputs); returns (n_points,).
    """
    visited = _Visited.of(reference, trajectories, noise_variance)
    models, weights = visited.weighted(sampling)
    if sampling.setting == "selected":  # Eq. 27
        given = Gaussians(*(part[:, 0] for part in visited.given))
        aleatoric = gaussian_entropy(given.variance[:, 0])
        epistemic = (weights * gaussian_kl(*given, *models)).sum(-1)
    else:  # Eq. 26
        aleatoric = (weights * gaussian_entropy(models.variance)).sum(-1)
        epistemic = mixture_information(*models, weights)
    return Decomposition(*(part.double().cpu().numpy() for part in (aleatoric, epistemic)))


def estimate_spread(
    reference: Tensor,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    *,
    noise_variance: float | None,
) -> FloatArray:
    """Standard deviation of the models' means; parameters of `gaussian_uncertainty`.

    Returns shape (n_points,).
    """
    visited = _Visited.of(reference, trajectories, noise_variance)
    models, weights = visited.weighted(sampling)
    if sampling.setting == "selected":
        centre = visited.given.mean[:, 0]
    else:
        centre = (weights * models.mean).sum(-1, keepdim=True)
    spread = (weights * (models.mean - centre).square()).sum(-1).sqrt()
    return spread.double().cpu().numpy()


def best_adversarial_regressors(
    reference: Tensor, trajectories: Trajectories, gamma: float, *, noise_variance: float | None
) -> AdversarialRegressors:
    """Keep the best adversarial model of each search; parameters of `gaussian_uncertainty`."""
    visited, feasible = _Visited.of(reference, trajectories, noise_variance).best(gamma)
    parts = (
        torch.tensor(DIRECTIONS).expand(len(reference), -1)[..., None],
        *visited.models,
        gaussian_kl(*visited.given, *visited.models),
        visited.excess_loss,
        feasible,
    )
    return AdversarialRegressors(*(part.squeeze(-1).cpu().numpy() for part in parts))


def mixture_information(mean: Tensor, variance: Tensor, weights: Tensor) -> Tensor:
    """Expected KL divergence of the mixture from its components.

    This is the mutual information of target and component, the epistemic part of Eq. 26. It
    has no closed form; each component is integrated by Gauss-Hermite quadrature. The error is
    below 1e-4 nats if variances are equal, and some hundredths of a nat if standard deviations
    differ by more than a factor of ten.

    Shapes: `mean, variance` (n_points, n_models), `weights` (n_points, n_models); returns
    (n_points,).
    """
    kept = weights.double().where(weights > _NEGLIGIBLE, 0.0)
    kept, order = kept.topk(int((kept > 0).sum(dim=1).max()), dim=1)
    parts = mean.double(), variance.double().sqrt()
    mean, scale = (part.take_along_dim(order, dim=1) for part in parts)
    size = max(1, _PAIRS_AT_ONCE // order.shape[1] ** 2)
    batches = zip(*(torch.split(part, size) for part in (mean, scale, kept)), strict=True)
    return torch.cat([_information(*batch) for batch in batches])


def _information(mean: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    weights = weights / weights.sum(dim=1, keepdim=True)
    # Density of component j at node y of component i, both without the factor of sqrt(2 pi).
    log_factor = (weights.log() - scale.log())[:, None]
    nodes, shares = np.polynomial.hermite_e.hermegauss(_N_NODES)
    total = torch.zeros_like(weights)
    for node, share in zip(nodes, shares / math.sqrt(2 * math.pi), strict=True):
        y = mean + scale * node
        distance = (y[:, :, None] - mean[:, None]) / scale[:, None]
        log_mixture = torch.logsumexp(log_factor - distance.square() / 2, dim=2)
        total += share * (-scale.log() - node**2 / 2 - log_mixture)
    entropy = torch.special.entr(weights).sum(dim=1)
    return (weights * total).sum(dim=1).clamp(min=0.0).minimum(entropy)
