"""Posterior weights of sampled models: the mixture importance sampling of QUAM, Eq. 3-6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skuq.information import kl_divergence


def importance_weights(log_posterior: Tensor, log_proposal: Tensor | None = None) -> Tensor:
    """Normalised importance weights ``p(w_n | D) / q(w_n)`` of sampled models.

    Parameters
    ----------
    log_posterior : Tensor of shape (..., n_models)
        Logarithm of the posterior density of each model, up to a constant.
    log_proposal : Tensor of shape (..., n_models), default=None
        Logarithm of the density q that the models were drawn from; None takes the models
        themselves as the empirical sampling distribution (Appendix C.1).

    Returns
    -------
    Tensor of shape (..., n_models)
        Weights that sum to 1, so that the posterior's constant is not needed.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 4 (self-normalised).

    Examples
    --------
    >>> importance_weights(torch.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    log_ratio = log_posterior if log_proposal is None else log_posterior - log_proposal
    return torch.softmax(log_ratio, dim=-1)


def trajectory_weights(excess_loss: Tensor, temperature: float) -> Tensor:
    """Weights ``exp(-L_train / T)`` of all models that the searches of a point met.

    Parameters
    ----------
    excess_loss : Tensor of shape (n_points, n_targets, n_steps)
        Mean training loss above the reference model's, in nats.
    temperature : float
        T; one over the number of training samples gives the likelihood itself, since the
        loss is a mean.

    Returns
    -------
    Tensor of shape (n_points, n_targets * n_steps)
        Weights that sum to 1 for each point.

    Examples
    --------
    >>> trajectory_weights(torch.zeros(1, 2, 2), temperature=1.0).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    loss = excess_loss.flatten(1).double()
    # Differences from the best model, so that no temperature makes them infinite.
    return importance_weights((loss.min(dim=1, keepdim=True).values - loss) / temperature)


class AdversarialModels(NamedTuple):
    """The best adversarial model of each search, as arrays.

    Attributes
    ----------
    target : ndarray of shape (n_points, n_targets)
        Class that the search asked for; of an untargeted search, the class that the model
        predicts.
    proba : ndarray of shape (n_points, n_targets, n_classes)
        What it predicts at the test point.
    divergence : ndarray of shape (n_points, n_targets)
        KL divergence of its prediction from the reference model's, in nats.
    excess_loss : ndarray of shape (n_points, n_targets)
        Its mean training loss above the reference model's, in nats.
    feasible : ndarray of shape (n_points, n_targets), bool
        Whether any model of the search kept its excess loss within gamma. Where none did,
        the model shown is the one of smallest excess loss.
    """

    target: Any
    proba: Any
    divergence: Any
    excess_loss: Any
    feasible: Any

    def is_adversarial(self, min_divergence: float) -> Any:
        """Tell which models contradict the given one, and still explain the data.

        Parameters
        ----------
        min_divergence : float
            Lambda: divergence, in nats, from which on a model counts as different.

        Returns
        -------
        ndarray of shape (n_points, n_targets), bool
            Whether the model is feasible and diverges that much.

        References
        ----------
        Schweighofer et al., NeurIPS 2023, Definition 1; a model that explains the data better
        than the given one by more than gamma counts here, too.

        Examples
        --------
        >>> import numpy as np
        >>> models = AdversarialModels(
        ...     np.array([[0, 1]]),
        ...     np.array([[[0.9, 0.1], [0.2, 0.8]]]),
        ...     divergence=np.array([[0.0, 1.1]]),
        ...     excess_loss=np.array([[0.0, 0.001]]),
        ...     feasible=np.array([[True, True]]),
        ... )
        >>> models.is_adversarial(0.5)
        array([[False,  True]])
        """
        return self.feasible & (self.divergence >= min_divergence)


def best_adversarial_models(
    log_reference: Tensor,
    log_proba: Tensor,
    excess_loss: Tensor,
    gamma: float,
    targets: Tensor | None = None,
) -> AdversarialModels:
    """Pick from each search the model that diverges most among those that fit well enough.

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    log_proba : Tensor of shape (n_points, n_targets, n_steps, n_classes)
        Log-probabilities that each model of each search gives to the classes at its point.
    excess_loss : Tensor of shape (n_points, n_targets, n_steps)
        Mean training loss of each model above that of the reference model, in nats.
    gamma : float
        Slack in nats: a model is feasible if its training loss is at most this much above
        the reference model's.
    targets : Tensor of shape (n_points, n_targets), int64, default=None
        What the searches asked for; None for untargeted ones.

    Returns
    -------
    AdversarialModels
        One model per point and target.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Definition 1 and Algorithm 1, lines 7-8 and 10.
    """
    best = best_of_searches(log_reference, log_proba, excess_loss, gamma)
    found = log_proba.take_along_dim(best[..., None], dim=2).squeeze(2)
    arrays = (
        found.argmax(-1) if targets is None else targets,
        found.exp(),
        kl_divergence(log_reference[:, None], found),
        excess_loss.take_along_dim(best, dim=2).squeeze(2),
        (excess_loss <= gamma).any(-1),
    )
    return AdversarialModels(*(array.cpu().numpy() for array in arrays))


def best_of_searches(
    log_reference: Tensor, log_proba: Tensor, excess_loss: Tensor, gamma: float
) -> Tensor:
    """Position, in its search, of the model that `best_adversarial_models` picks.

    Parameters are those of `best_adversarial_models`.

    Returns
    -------
    Tensor of shape (n_points, n_targets, 1), int64
        Steps.
    """
    divergence = kl_divergence(log_reference[:, None, None], log_proba)
    within = excess_loss <= gamma
    by_divergence = torch.where(within, divergence, -torch.inf)
    score = torch.where(within.any(-1, keepdim=True), by_divergence, -excess_loss)
    return score.argmax(-1, keepdim=True)


class BestModels:
    """Keeps the weights of the model that `best_adversarial_models` picks from each search.

    Searches show their models one after another, so that one copy of the weights is enough.

    Parameters
    ----------
    divergence : callable
        Outputs of the models at their own test points, shape (n_models, n_outputs), to their
        divergence from the reference model in nats, shape (n_models,), never negative.
    gamma : float
        Slack in nats, not negative.

    Attributes
    ----------
    weights : dict of str to Tensor of shape (n_models, \\*parameter.shape)
        The best models so far, one of each search.

    Examples
    --------
    >>> best = BestModels(lambda outputs: outputs.abs().sum(-1), gamma=0.1)
    >>> for value, excess in [(1.0, 0.3), (2.0, 0.0), (3.0, 0.2), (1.5, 0.0)]:
    ...     model = torch.tensor([[value]])
    ...     best.observe(model, torch.tensor([excess]), {"w": model})
    >>> best.weights["w"]
    tensor([[2.]])
    """

    def __init__(self, divergence: Callable[[Tensor], Tensor], gamma: float):
        self.weights: dict[str, Tensor] = {}
        self._divergence, self._gamma = divergence, gamma

    @torch.no_grad()
    def observe(self, outputs: Tensor, excess_loss: Tensor, weights: dict[str, Tensor]) -> None:
        """Look at the next model of each search.

        Parameters
        ----------
        outputs : Tensor of shape (n_models, n_outputs)
            What the models return at their own test points.
        excess_loss : Tensor of shape (n_models,)
            Mean training loss of each model above that of the reference model, in nats.
        weights : dict of str to Tensor of shape (n_models, \\*parameter.shape)
            The models; copied where they are better than all before.
        """
        # Divergences are never negative, so that models that fit beat all that do not.
        fits = excess_loss <= self._gamma
        score = torch.where(fits, self._divergence(outputs), -excess_loss)
        if not self.weights:
            self.weights = {name: w.detach().clone() for name, w in weights.items()}
            self._score = score
            return
        better = score > self._score
        self._score = score.where(better, self._score)
        rows = better.nonzero().squeeze(1)
        for name, w in weights.items():
            self.weights[name][rows] = w.detach()[rows]
