"""Mixtures with their components at adversarial models: Gaussians, and Langevin chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skuq.baselines._chains import _posteriors
from skuq.models import TrainingSet, stacked_forward
from skuq.quam._batch import SearchSettings
from skuq.quam._components import GaussianMixtures, flatten, laplace_precision, unflatten
from skuq.quam._langevin import langevin_chains
from skuq.quam._objectives import Objective
from skuq.quam._sampling import BestModels
from skuq.quam._search import excess_loss


class MixtureSettings(NamedTuple):
    """What the components of the mixture are, and how to draw from them.

    Attributes
    ----------
    kind : {"laplace", "sgld"}
        Gaussians with the curvature of the posterior, or Langevin chains.
    n_samples : int
        Models drawn from each component.
    temperature : float
        T of the posterior ``exp(-L_train / T)``.
    gamma : float
        Slack in nats, within which the best model of each search is its most divergent one.
    """

    kind: str
    n_samples: int
    temperature: float
    gamma: float


class MixtureSample(NamedTuple):
    """Models drawn from the mixture of each test point.

    Attributes
    ----------
    outputs : Tensor of shape (n_points, n_models, n_outputs), float64
        What each returns at its own test point.
    log_posterior : Tensor of shape (n_points, n_models), float64
        Logarithm of ``p(w | D)**(1 / T)``, up to a constant.
    log_proposal : Tensor of shape (n_points, n_models), float64, or None
        Logarithm of the density of the mixture; None for an empirical one.
    """

    outputs: Tensor
    log_posterior: Tensor
    log_proposal: Tensor | None


class MixtureSampler:
    """Follows the searches of a batch of points, and draws from the mixture that they locate.

    Training losses are taken on the rows of the searches' last mini-batch, which is the whole
    training set if that fits into one. All models of all points are judged on the same rows,
    the curvature is that of their loss, and temperature "auto" counts as many samples.

    Without weight decay the likelihood alone has no integral. A normal prior around 0, for
    each parameter tensor with the mean square of the reference model as its variance, then
    makes a posterior of it for "laplace", where densities matter.

    Random numbers are shared by all points, like mini-batches, so that a point's result does
    not depend on which others are searched along. Models are drawn one from each component at
    a time: memory does not grow with `n_samples`.

    Parameters
    ----------
    divergence : callable
        See `BestModels`.
    objective : Objective
        The searches'; supplies the training loss, which is to be the cross-entropy.
    n_searches : int
        Searches of each point, which is the number K of components.
    settings : MixtureSettings
        Kind of the components.

    Raises
    ------
    ImportError
        If the extra "sgmcmc" is missing, for "sgld".

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 4 and 6; Owen and Zhou, "Safe and Effective
    Importance Sampling", 2000, for equal numbers of draws from each component.
    """

    def __init__(
        self,
        divergence: Callable[[Tensor], Tensor],
        objective: Objective,
        n_searches: int,
        settings: MixtureSettings,
    ):
        if settings.kind == "sgld":
            _posteriors()  # Missing, it should say so before the searches, not after.
        self._best = BestModels(divergence, settings.gamma)
        self._objective, self._n_searches, self._settings = objective, n_searches, settings

    def observe(self, outputs: Tensor, excess_loss: Tensor, weights: dict[str, Tensor]) -> None:
        """See `BestModels.observe`."""
        self._best.observe(outputs, excess_loss, weights)

    @torch.no_grad()
    def draw(
        self,
        module: nn.Module,
        x: Tensor,
        train: TrainingSet,
        rows: Tensor,
        settings: SearchSettings,
    ) -> MixtureSample:
        """Draw `n_samples` models around the best model of each search; see `FollowUp.draw`.

        Returns
        -------
        MixtureSample
            ``n_searches * n_samples`` models for each point.

        Raises
        ------
        ValueError
            If a chain diverges, or a curvature is not positive definite to rounding.
        """
        # A tensor of zeros stays, as in the searches.
        best = {k: w for k, w in self._best.weights.items() if bool(module.get_parameter(k).any())}
        job = _Job(module, best, train, rows, settings)
        draws = self._gaussians(job) if self._settings.kind == "laplace" else self._chains(job)
        own_x = x.repeat_interleave(self._n_searches, dim=0).unsqueeze(1)
        outputs, log_posterior, log_proposal = [], [], []
        for models, log_prior, log_density in draws:
            own = stacked_forward(module, models, own_x.clone(), shared_input=False)
            outputs.append(own.reshape(len(x), self._n_searches, -1).double())
            excess = excess_loss(
                module, models, train, rows, self._objective, settings.weight_decay
            )
            log_p = log_prior - excess / self._settings.temperature
            log_posterior.append(log_p.reshape(len(x), -1))
            if log_density is not None:
                log_proposal.append(log_density)
        return MixtureSample(
            torch.cat(outputs, dim=1),
            torch.cat(log_posterior, dim=1),
            torch.cat(log_proposal, dim=1) if log_proposal else None,
        )

    def _gaussians(self, job: _Job) -> Iterator[_Draw]:
        mean = flatten(job.best)
        weight = job.train.weight[job.rows]
        prior_precision = self._prior_precision(job)
        root = laplace_precision(
            job.module,
            job.best,
            job.train.X[job.rows],
            weight / weight.sum(),
            temperature=self._settings.temperature,
            prior_precision=prior_precision,
        )
        k = self._n_searches
        mixtures = GaussianMixtures(*(t.reshape(-1, k, *t.shape[1:]) for t in (mean, root)))
        generator = torch.Generator().manual_seed(job.settings.seed)
        # With weight decay, the excess loss has the prior already.
        decayed = job.settings.weight_decay > 0
        for _ in range(self._settings.n_samples):
            noise = torch.randn(k, mean.shape[1], generator=generator, dtype=torch.float64)
            drawn = mixtures.draw(noise.to(mean.device))
            rows = drawn.flatten(0, 1)
            log_prior = 0.0 if decayed else rows.square() @ prior_precision / -2
            yield _Draw(unflatten(rows, job.best), log_prior, mixtures.log_density(drawn))

    def _prior_precision(self, job: _Job) -> Tensor:
        """Precision of the normal prior of each weight, in the order of `flatten`."""
        parts = []
        for name, w in job.best.items():
            if job.settings.weight_decay > 0:
                precision = job.settings.weight_decay / self._settings.temperature
            else:
                precision = 1 / float(job.module.get_parameter(name).double().square().mean())
            parts.append(torch.full_like(w[0], precision, dtype=torch.float64).flatten())
        return torch.cat(parts)

    def _chains(self, job: _Job) -> Iterator[_Draw]:
        chains = langevin_chains(
            job.module,
            job.best,
            job.train,
            job.rows,
            n_searches=self._n_searches,
            n_samples=self._settings.n_samples,
            temperature=self._settings.temperature,
            settings=job.settings,
        )
        return (_Draw(models, 0.0, None) for models in chains)


class _Job(NamedTuple):
    """What all draws of a batch of points need; `best` has the tensors that move."""

    module: nn.Module
    best: dict[str, Tensor]
    train: TrainingSet
    rows: Tensor
    settings: SearchSettings


class _Draw(NamedTuple):
    """One model of each component: log-priors, and log-densities of shape (n_points, K)."""

    models: dict[str, Tensor]
    log_prior: Tensor | float
    log_density: Tensor | None
