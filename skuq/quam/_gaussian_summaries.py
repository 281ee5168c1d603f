"""What the models that a regressor's searches met say together."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.information import Decomposition, gaussian_entropy, gaussian_kl
from skuq.quam._gaussian_information import mixture_information
from skuq.quam._regression import DIRECTIONS, Gaussians, directed_divergence, gaussians
from skuq.quam._sampling import trajectory_weights
from skuq.quam._search import Trajectories


class AdversarialRegressors(NamedTuple):
    """The best adversarial model of each search, as arrays of shape (n_points, 2).

    Attributes
    ----------
    direction : ndarray, int64
        What the search asked for: 1 for a higher mean than the given model's, -1 for a lower
        one.
    mean, variance : ndarray, float64
        What the model predicts at the test point, in units of the target and their square.
    divergence : ndarray, float64
        KL divergence of its prediction from the given model's, in nats.
    excess_loss : ndarray, float64
        Its mean training loss above the given model's, in nats.
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


class _Met(NamedTuple):
    """The models of all searches of a batch, and the given one."""

    given: Gaussians  # (n_points, 1, 1)
    models: Gaussians  # (n_points, 2, n_steps)
    excess_loss: Tensor  # (n_points, 2, n_steps)

    @classmethod
    def of(cls, reference: Tensor, found: Trajectories, noise_variance: float | None) -> _Met:
        given = gaussians(reference[:, None, None], noise_variance)
        return cls(given, gaussians(found.outputs, noise_variance), found.excess_loss)

    def away(self) -> Tensor:
        """How far each model lies on the side that its search wants, in units of the target."""
        sign = self.models.mean.new_tensor(DIRECTIONS)[:, None]
        return sign * (self.models.mean - self.given.mean)

    def best(self, gamma: float) -> tuple[_Met, Tensor]:
        """The best model of each search, and whether it is feasible."""
        away = self.away()
        within = (self.excess_loss <= gamma) & (away > 0)
        divergence = directed_divergence(self.given, self.models, away)
        found = within.any(-1, keepdim=True)
        score = torch.where(within, divergence, -torch.inf)
        at = torch.where(found, score, -self.excess_loss).argmax(-1, keepdim=True)
        models = Gaussians(*(part.take_along_dim(at, dim=-1) for part in self.models))
        return _Met(self.given, models, self.excess_loss.take_along_dim(at, dim=-1)), found

    def weighed(self, mixture: str, temperature: float, gamma: float) -> tuple[Gaussians, Tensor]:
        """Models that count and their weights, (n_points, n_models)."""
        kept = self.best(gamma)[0] if mixture == "dirac" else self
        models = Gaussians(*(part.flatten(1) for part in kept.models))
        return models, trajectory_weights(kept.excess_loss, temperature)


def summarise_uncertainty(
    reference: Tensor,
    trajectories: Trajectories,
    *,
    noise_variance: float | None,
    setting: str,
    mixture: str,
    temperature: float,
    gamma: float,
) -> Decomposition:
    """Weigh the models met by the searches and take Eq. 26 or Eq. 27 over them.

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        What the given model returns.
    trajectories : Trajectories
        Result of the searches.
    noise_variance : float or None
        Variance of all models; None if it is their second output.
    setting : {"selected", "expected"}
        Eq. 27 or Eq. 26.
    mixture : {"trajectory", "dirac"}
        All models, or the best adversarial model of each search.
    temperature : float
        Temperature of the weights.
    gamma : float
        Slack of the best model, in nats.

    Returns
    -------
    Decomposition
        Aleatoric and epistemic part, float64 arrays of shape (n_points,), in nats.
    """
    met = _Met.of(reference, trajectories, noise_variance)
    models, weights = met.weighed(mixture, temperature, gamma)
    if setting == "selected":
        given = Gaussians(*(part[:, 0] for part in met.given))
        aleatoric = gaussian_entropy(given.variance[:, 0])
        epistemic = (weights * gaussian_kl(*given, *models)).sum(-1)
    else:
        aleatoric = (weights * gaussian_entropy(models.variance)).sum(-1)
        epistemic = mixture_information(*models, weights)
    return Decomposition(*(part.double().cpu().numpy() for part in (aleatoric, epistemic)))


def summarise_spread(
    reference: Tensor,
    trajectories: Trajectories,
    *,
    noise_variance: float | None,
    setting: str,
    mixture: str,
    temperature: float,
    gamma: float,
) -> tuple[FloatArray]:
    """Standard deviation of the models' means; parameters of `summarise_uncertainty`.

    Returns
    -------
    tuple of one ndarray of shape (n_points,), float64
        In units of the target, about the given model's mean ("selected") or the average of
        all ("expected").
    """
    met = _Met.of(reference, trajectories, noise_variance)
    models, weights = met.weighed(mixture, temperature, gamma)
    if setting == "selected":
        centre = met.given.mean[:, 0]
    else:
        centre = (weights * models.mean).sum(-1, keepdim=True)
    spread = (weights * (models.mean - centre).square()).sum(-1).sqrt()
    return (spread.double().cpu().numpy(),)


def summarise_best(
    reference: Tensor, trajectories: Trajectories, *, noise_variance: float | None, gamma: float
) -> AdversarialRegressors:
    """Keep the best adversarial model of each search; parameters of `summarise_uncertainty`.

    Returns
    -------
    AdversarialRegressors
        One model per point and direction.
    """
    met, feasible = _Met.of(reference, trajectories, noise_variance).best(gamma)
    parts = (
        torch.tensor(DIRECTIONS).expand(len(reference), -1)[..., None],
        *met.models,
        gaussian_kl(*met.given, *met.models),
        met.excess_loss,
        feasible,
    )
    return AdversarialRegressors(*(part.squeeze(-1).cpu().numpy() for part in parts))
