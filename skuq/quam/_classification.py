"""Searches of a classifier: what they ask for, and what their models say together."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from skuq.information import (
    Decomposition,
    decompose_expected,
    decompose_selected,
    kl_divergence,
)
from skuq.quam._batch import Plan
from skuq.quam._mixtures import MixtureSample, MixtureSampler, MixtureSettings
from skuq.quam._objectives import targeted as targeted_objective
from skuq.quam._objectives import untargeted as untargeted_objective
from skuq.quam._sampling import (
    AdversarialModels,
    best_adversarial_models,
    best_of_searches,
    importance_weights,
    trajectory_weights,
)
from skuq.quam._search import Trajectories

# Effective sample size below which weights rest on a single model in effect.
_FEW_MODELS = 1.5


def targets_of(log_reference: Tensor, n_targets: int | None) -> Tensor:
    """Classes to ask for at each point: all of them, or the most probable ones.

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    n_targets : int or None
        How many classes; None or more than there are takes all.

    Returns
    -------
    Tensor of shape (n_points, n_targets), int64
        Classes, the most probable first if they are chosen.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Section 4.3, "Compute Efficiency".

    Examples
    --------
    >>> targets_of(torch.tensor([[0.2, 0.3, 0.5]]).log(), 2)
    tensor([[2, 1]])
    """
    n_points, n_classes = log_reference.shape
    if n_targets is None or n_targets >= n_classes:
        return torch.arange(n_classes, device=log_reference.device).expand(n_points, -1)
    return log_reference.topk(n_targets, dim=1).indices


def plan_searches(
    log_reference: Tensor,
    *,
    targeted: bool,
    n_targets: int | None,
    mixture: MixtureSettings | None = None,
) -> Plan:
    """One search for each target of each point, or a single untargeted one.

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    targeted : bool
        Whether searches ask for classes.
    n_targets : int or None
        For how many of the most probable ones; None for all.
    mixture : MixtureSettings, default=None
        What to draw models from after the searches, if trajectories are not enough.

    Returns
    -------
    Plan
        Objective, number of searches, and what follows them.
    """
    plan = Plan(untargeted_objective(log_reference), 1)
    if targeted:
        targets = targets_of(log_reference, n_targets)
        plan = Plan(targeted_objective(targets), targets.shape[1])
        if mixture is None:
            return plan._replace(part=lambda searches: targeted_objective(targets[:, searches]))
    if mixture is None:
        return plan
    of_searches = log_reference.repeat_interleave(plan.n_searches, dim=0)

    def divergence(logits: Tensor) -> Tensor:
        found: Tensor = kl_divergence(of_searches, log_softmax(logits, dim=-1))
        return found

    sampler = MixtureSampler(divergence, plan.objective, plan.n_searches, mixture)
    return plan._replace(follow_up=sampler)


def summarise_uncertainty(
    log_reference: Tensor,
    trajectories: Trajectories,
    *,
    setting: str,
    mixture: str,
    temperature: float,
    gamma: float,
) -> Decomposition:
    """Weigh the models met by the searches and take Eq. 1 or Eq. 2 over them.

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    trajectories : Trajectories
        Result of the searches.
    setting : {"selected", "expected"}
        Eq. 2 or Eq. 1.
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
    log_proba, excess = log_softmax(trajectories.outputs, dim=-1), trajectories.excess_loss
    if mixture == "dirac":
        best = best_of_searches(log_reference, log_proba, excess, gamma)
        log_proba = log_proba.take_along_dim(best[..., None], dim=2)
        excess = excess.take_along_dim(best, dim=2)
    weights = trajectory_weights(excess, temperature)
    return _decompose(log_reference, log_proba.flatten(1, 2), weights, setting)


def summarise_mixture(
    log_reference: Tensor, sample: MixtureSample, *, setting: str
) -> Decomposition:
    """Take Eq. 1 or Eq. 2 over models drawn from a mixture, by importance sampling (Eq. 4).

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    sample : MixtureSample
        The models.
    setting : {"selected", "expected"}
        Eq. 2 or Eq. 1.

    Returns
    -------
    Decomposition
        Aleatoric and epistemic part, float64 arrays of shape (n_points,), in nats.

    Warns
    -----
    RuntimeWarning
        If the weights of most points rest on a single model.
    """
    weights = importance_weights(sample.log_posterior, sample.log_proposal)
    effective = float((1 / weights.square().sum(-1)).median())
    if sample.log_proposal is not None and effective < _FEW_MODELS:
        warnings.warn(
            f"Importance weights of mixture 'laplace' rest on {effective:.1f} of "
            f"{weights.shape[-1]} models for the median input, so the estimate is a rough one. "
            "Move fewer weights (parameters='last'), set `weight_decay` to that of the "
            "training, or draw more models (`n_samples`).",
            RuntimeWarning,
            stacklevel=2,
        )
    return _decompose(log_reference, log_softmax(sample.outputs, dim=-1), weights, setting)


def _decompose(
    log_reference: Tensor, log_proba: Tensor, weights: Tensor, setting: str
) -> Decomposition:
    """From log-probabilities of shape (n_points, n_models, n_classes), and their weights."""
    if setting == "selected":
        parts = decompose_selected(log_reference, log_proba, weights)
    else:
        parts = decompose_expected(log_proba, weights)
    return Decomposition(*(part.double().cpu().numpy() for part in parts))


def summarise_best(
    log_reference: Tensor,
    trajectories: Trajectories,
    *,
    gamma: float,
    targeted: bool,
    n_targets: int | None,
) -> AdversarialModels:
    """Keep the best adversarial model of each search; see `best_adversarial_models`."""
    log_proba = log_softmax(trajectories.outputs, dim=-1)
    targets = targets_of(log_reference, n_targets) if targeted else None
    return best_adversarial_models(
        log_reference, log_proba, trajectories.excess_loss, gamma, targets
    )
