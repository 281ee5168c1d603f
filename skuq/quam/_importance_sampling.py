"""Mixture importance sampling (Eq. 3-6): from the models found by the searches to uncertainty.

All functions accept Tensors, from networks, and numpy arrays, from refitted learners.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq._information import (
    Decomposition,
    array_namespace,
    decompose_expected,
    decompose_pairwise,
    decompose_selected,
    entropy,
    kl_divergence,
    log_softmax,
)


class Trajectories(NamedTuple):
    """Predictions and excess training losses of all models visited by a batch of searches.

    Shapes: `outputs` (n_points, n_searches, n_steps, n_outputs), of each model at its own test
    point; `excess_loss` (n_points, n_searches, n_steps), an estimate of ``L_train - L_ref`` in
    nats.
    """

    outputs: Any
    excess_loss: Any


def as_numpy(array: Any) -> NDArray[Any]:
    """Convert an array, or a Tensor on any device, to a numpy array."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def taken(array: Any, at: Any, axis: int) -> Any:
    """`numpy.take_along_axis` for arrays and Tensors."""
    if isinstance(array, np.ndarray):
        return np.take_along_axis(array, at, axis)
    return array.take_along_dim(at, dim=axis)


def joined_models(first: Any, others: Any) -> Any:
    """Concatenate models along the second axis."""
    return array_namespace(others).concatenate((first, others), 1)


def _in_rows(array: Any) -> Any:
    """Merge the axes of searches and steps, (n_points, n_models, ...)."""
    return array.reshape(len(array), array.shape[1] * array.shape[2], *array.shape[3:])


class ImportanceSampling(NamedTuple):
    """The quantity to estimate, and the models and weights of the estimate.

    `setting`, `mixture`, `temperature` and `gamma` are parameters of the estimators. `by_search`:
    the given model and the searches are components of one mixture (see `pool_weights`); otherwise,
    the weights of all models are normalised together. `held_out`: losses are computed on samples
    held out from all models.
    """

    setting: str
    mixture: str
    temperature: float
    gamma: float
    by_search: bool = False
    held_out: bool = False

    def weights(self, excess_loss: Any) -> Any:
        """Weights of the models, (n_points, n_models); the given model is first if `by_search`."""
        if self.by_search:
            return pool_weights(excess_loss, self.temperature, held_out=self.held_out)
        return trajectory_weights(excess_loss, self.temperature)


def estimate_uncertainty(
    log_reference: Any,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    log_centre: Any = None,
) -> Decomposition:
    """Estimate the parts of uncertainty from the weighted models of the searches.

    Shapes: `log_reference` (n_points, n_classes), `log_centre` (n_points, n_classes); returns
    (n_points,).
    """
    log_proba, excess = log_softmax(trajectories.outputs), trajectories.excess_loss
    if sampling.mixture == "dirac":  # Eq. 6 with a delta distribution at each model
        best = _best_steps(log_reference, log_proba, excess, sampling.gamma)
        log_proba = taken(log_proba, best[..., None], 2)
        excess = taken(excess, best, 2)
    weights, models = sampling.weights(excess), _in_rows(log_proba)
    centre = log_reference if log_centre is None else log_centre
    if sampling.by_search:
        models = joined_models(centre[:, None], models)
    if sampling.setting == "selected":  # Eq. 2
        # Compute divergences from `centre`. If the given model has memorised its training samples,
        # all models found diverge from the given model.
        divergence = decompose_selected(centre, models, weights).epistemic
        parts = Decomposition(entropy(log_reference), divergence)
    elif sampling.setting == "pairwise":
        parts = decompose_pairwise(models, weights)
    else:
        parts = decompose_expected(models, weights)  # Eq. 1
    return Decomposition(*(as_numpy(part).astype(np.float64, copy=False) for part in parts))


def plausible_range(
    log_given: Any, trajectories: Trajectories, gamma: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest probability over the given models and the feasible models found.

    Shapes: `log_given` (n_points, n_given, n_classes); returns (n_points, n_classes) twice.
    """
    xp, given = array_namespace(log_given), array_namespace(log_given).exp(log_given)
    found = _in_rows(xp.exp(log_softmax(trajectories.outputs)))
    fits = _in_rows(trajectories.excess_loss <= gamma)[..., None]
    # Models with an excess loss above gamma are replaced by a given model. The range contains the
    # predictions of the given models anyway.
    proba = joined_models(given, xp.where(fits, found, given[:, :1]))
    lower, upper = (as_numpy(extreme(proba, 1)) for extreme in (xp.amin, xp.amax))
    return lower.astype(np.float64, copy=False), upper.astype(np.float64, copy=False)


def importance_weights(log_posterior: Any, log_proposal: Any = None) -> Any:
    """Normalised importance weights ``p(w_n | D) / q(w_n)`` of sampled models, (..., n_models)."""
    log_ratio = log_posterior if log_proposal is None else log_posterior - log_proposal
    return array_namespace(log_ratio).exp(log_softmax(log_ratio))  # Eq. 4


def trajectory_weights(excess_loss: Any, temperature: float) -> Any:
    """Weights ``exp(-L_train / T)`` of all models visited by the searches of a point.

    Shapes: `excess_loss` (n_points, n_targets, n_steps); returns (n_points, n_targets * n_steps).
    """
    xp = array_namespace(excess_loss)
    loss = _in_rows(xp.asarray(excess_loss, dtype=xp.float64))
    # Subtract the loss of the best model before dividing by the temperature. Otherwise, the
    # quotients of all models could overflow at a low temperature.
    return importance_weights((xp.amin(loss, 1)[:, None] - loss) / temperature)


def pool_weights(excess_loss: Any, temperature: float, *, held_out: bool = True) -> Any:
    """Weights of the given model and of all models found by searches on a pool.

    The proposal is a mixture: one half is the given model, the other half is shared equally by
    the searches. The weights ``exp(-L_train / T)`` are normalised within each search. With losses
    on held-out samples, all searches together are also weighted against the given model. Searches
    are not weighted against one another, because the noise of the losses would then give classes
    unequal weights.

    Shapes: `excess_loss` (n_points, n_searches, n_kept); returns (n_points, 1 + n_searches *
    n_kept).
    """
    xp = array_namespace(excess_loss)
    loss = xp.asarray(excess_loss, dtype=xp.float64)
    within = importance_weights(-loss / temperature)  # sum to 1 in each search
    mean = (within * loss).sum(-1)[..., None]
    ratio = xp.exp(-mean.clip(0) / temperature)  # p(w | D), relative to the given model
    together = ratio.mean(1)[:, None] if held_out else xp.ones_like(ratio[:, :1])
    searches = together * within / loss.shape[1]
    given = xp.ones_like(within[:, 0, :1])
    # Eq. 6 for a proposal with weight 1/2 on the given model and 1/2 on all searches together.
    weights = joined_models(given, _in_rows(searches))
    return weights / weights.sum(1)[:, None]  # Eq. 4


class AdversarialModels(NamedTuple):
    """The best adversarial model of each search, as arrays.

    Attributes
    ----------
    target : ndarray of shape (n_points, n_targets)
        Class targeted by the search; for an untargeted search, the class that the model predicts.
    proba : ndarray of shape (n_points, n_targets, n_classes)
        Prediction of the model at the test point.
    divergence : ndarray of shape (n_points, n_targets)
        KL divergence of the prediction from the reference model's prediction, in nats.
    excess_loss : ndarray of shape (n_points, n_targets)
        Mean training loss of the model minus the reference model's mean training loss, in nats. For
        a refitted learner, the loss is computed on held-out training samples, and the reference is
        the learner refitted without a pool.
    feasible : ndarray of shape (n_points, n_targets), bool
        Whether any model of the search has an excess loss of at most gamma. Otherwise, the model
        with the smallest excess loss is returned.
    """

    target: Any
    proba: Any
    divergence: Any
    excess_loss: Any
    feasible: Any

    def is_adversarial(self, min_divergence: float) -> Any:
        """Return which models contradict the given model and still explain the data (Definition 1).

        Unlike Definition 1, this includes models that explain the data better than the given model
        by more than gamma.

        Parameters
        ----------
        min_divergence : float
            Lambda: smallest divergence, in nats, at which a model counts as different.

        Returns
        -------
        ndarray of shape (n_points, n_targets), bool
            Whether the model is feasible and its divergence is at least `min_divergence`.
        """
        return self.feasible & (self.divergence >= min_divergence)


def best_adversarial_models(
    log_reference: Any,
    log_proba: Any,
    excess_loss: Any,
    gamma: float,
    targets: Any = None,
) -> AdversarialModels:
    """For each search, the most divergent model with an excess loss of at most gamma.

    Shapes: `log_reference` (n_points, n_classes), `log_proba` (n_points, n_targets, n_steps,
    n_classes), `excess_loss` (n_points, n_targets, n_steps), `targets` (n_points, n_targets).
    """
    best = _best_steps(log_reference, log_proba, excess_loss, gamma)
    found = taken(log_proba, best[..., None], 2).squeeze(2)
    xp = array_namespace(found)
    arrays = (
        found.argmax(-1) if targets is None else targets,
        xp.exp(found),
        kl_divergence(log_reference[:, None], found),
        taken(excess_loss, best, 2).squeeze(2),
        (excess_loss <= gamma).any(-1),
    )
    return AdversarialModels(*map(as_numpy, arrays))


def _best_steps(log_reference: Any, log_proba: Any, excess_loss: Any, gamma: float) -> Any:
    """For each search, the step of the model that `best_adversarial_models` returns, (..., 1)."""
    divergence = kl_divergence(log_reference[:, None, None], log_proba)
    within = excess_loss <= gamma
    xp = array_namespace(excess_loss)
    by_divergence = xp.where(within, divergence, -xp.inf)  # Lines 7 and 8
    score = xp.where(within.any(-1)[..., None], by_divergence, -excess_loss)
    return score.argmax(-1)[..., None]
