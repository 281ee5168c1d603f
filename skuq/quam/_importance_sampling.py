"""Estimate uncertainty from the models found by the searches: importance sampling (Eq. 3-6).

All functions accept Tensors (outputs of networks) and numpy arrays (outputs of refitted learners).
A model for regression predicts a normal distribution of the target: its outputs are the mean and,
if the variance is not known, the log variance.
"""

from __future__ import annotations

import math
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
    gaussian_entropy,
    gaussian_kl,
    gaussian_pairwise_kl,
    kl_divergence,
    log_softmax,
)
from skuq.base import FloatArray
from skuq.files import stored

DIRECTIONS = (1, -1)  # directions of a regressor's two searches: higher and lower predictions

# Log variances are clipped to this absolute value, which keeps quotients of variances finite.
_MAX_LOG_VARIANCE = 100.0
_N_NODES = 32  # number of nodes of the Gauss-Hermite quadrature
# Mixture components with a weight below this are dropped; each changes the result by < 1e-8.
_NEGLIGIBLE = 1e-10
# Maximum number of pairs of mixture components in a batch of points.
_PAIRS_AT_ONCE = 2**18


class Trajectories(NamedTuple):
    """Outputs and excess training losses, in nats, of all models visited by a batch of searches.

    `outputs` (n_points, n_searches, n_steps, n_outputs) are those of a model at the test point of
    its search; `excess_loss` (n_points, n_searches, n_steps) estimates ``L_train - L_ref``.
    """

    outputs: Any
    excess_loss: Any


def as_numpy(array: Any) -> NDArray[Any]:
    """Convert an array, or a Tensor on any device, to a numpy array."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _as_double(array: Any) -> FloatArray:
    return as_numpy(array).astype(np.float64, copy=False)


def _taken(array: Any, at: Any, axis: int) -> Any:
    """Apply `numpy.take_along_axis` to arrays or Tensors."""
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
    """Settings of an estimate: its definition, and the models and weights that enter it.

    `setting`, `mixture`, `temperature` and `gamma` are parameters of the estimators. If `by_search`
    is True, the given model and the searches are components of a mixture (see `pool_weights`);
    otherwise, the weights of all models are normalised together. `held_out` tells whether losses
    are computed on samples held out from all models.
    """

    setting: str
    mixture: str
    temperature: float
    gamma: float
    by_search: bool = False
    held_out: bool = False

    def weights(self, excess_loss: Any) -> Any:
        """Compute weights, (n_points, n_models); if `by_search`, the given model comes first."""
        if self.by_search:
            return pool_weights(excess_loss, self.temperature, held_out=self.held_out)
        return trajectory_weights(excess_loss, self.temperature)


def estimate_uncertainty(
    log_reference: Any,
    trajectories: Trajectories,
    sampling: ImportanceSampling,
    log_centre: Any = None,
    targets: Any = None,
) -> Decomposition:
    """Estimate aleatoric and epistemic uncertainty, (n_points,), from models of the searches.

    Shapes: `log_reference`, `log_centre` (n_points, n_classes), `targets` (n_points, n_searches).
    """
    log_proba, excess = log_softmax(trajectories.outputs), trajectories.excess_loss
    if sampling.setting == "regret":
        last = _taken(log_proba[:, :, -1], targets[..., None], 2)[..., 0]
        regret = _log_sum_exp(last).clip(0)
        return Decomposition(*map(_as_double, (entropy(log_reference), regret)))
    if sampling.mixture == "dirac":  # Eq. 6 with a delta distribution at each model
        best = _best_steps(log_reference, log_proba, excess, sampling.gamma)
        log_proba = _taken(log_proba, best[..., None], 2)
        excess = _taken(excess, best, 2)
    weights, models = sampling.weights(excess), _in_rows(log_proba)
    centre = log_reference if log_centre is None else log_centre
    if sampling.by_search:
        models = joined_models(centre[:, None], models)
    if sampling.setting == "selected":  # Eq. 2
        # If the given model has memorised its training samples, all models found diverge from it.
        # In this case, `centre` is the model that replaces the given model.
        divergence = decompose_selected(centre, models, weights).epistemic
        parts = Decomposition(entropy(log_reference), divergence)
    elif sampling.setting == "pairwise":
        parts = decompose_pairwise(models, weights)
    else:
        parts = decompose_expected(models, weights)  # Eq. 1
    return Decomposition(*map(_as_double, parts))


def plausible_range(
    log_given: Any, trajectories: Trajectories, gamma: float
) -> tuple[FloatArray, FloatArray]:
    """Compute minimum and maximum probabilities of given models and models that explain the data.

    Shapes: `log_given` (n_points, n_given, n_classes); results (n_points, n_classes).
    """
    xp, given = array_namespace(log_given), array_namespace(log_given).exp(log_given)
    found = _in_rows(xp.exp(log_softmax(trajectories.outputs)))
    fits = _in_rows(trajectories.excess_loss <= gamma)[..., None]
    # Replace models with an excess loss above gamma by a given model, whose predictions are in the
    # range anyway.
    proba = joined_models(given, xp.where(fits, found, given[:, :1]))
    return _as_double(xp.amin(proba, 1)), _as_double(xp.amax(proba, 1))


def importance_weights(log_ratio: Any) -> Any:
    """Normalise importance weights of models w_n from ``log p(w_n | D) - log q(w_n)``, (..., n)."""
    return array_namespace(log_ratio).exp(log_softmax(log_ratio))  # Eq. 4


def trajectory_weights(excess_loss: Any, temperature: float) -> Any:
    """Weight each point's models by ``exp(-L_train / T)``, (n_points, n_targets * n_steps)."""
    xp = array_namespace(excess_loss)
    loss = _in_rows(xp.asarray(excess_loss, dtype=xp.float64))
    # Subtract the loss of the best model before the division, because the quotients of all models
    # could overflow at a low temperature.
    return importance_weights((xp.amin(loss, 1)[:, None] - loss) / temperature)


def pool_weights(excess_loss: Any, temperature: float, *, held_out: bool = True) -> Any:
    """Weight the given model and models found on a pool, (n_points, 1 + n_searches * n_kept).

    The proposal is a mixture: one half is the given model, and the searches share the other half
    equally. Within each search, the models' weights ``exp(-loss / T)`` are normalised. Losses on
    held-out samples also determine the weight of all searches together, relative to the given
    model. The searches, each of which targets one class, always have equal weights: noise of the
    losses must not favour a class.
    """
    xp = array_namespace(excess_loss)
    loss = xp.asarray(excess_loss, dtype=xp.float64)
    within = importance_weights(-loss / temperature)  # weights with sum 1 in each search
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
        Class that the search targets; for an untargeted search, the class that the model predicts.
    proba : ndarray of shape (n_points, n_targets, n_classes)
        Prediction of the model at the test point.
    divergence : ndarray of shape (n_points, n_targets)
        KL(reference model's prediction, this model's prediction), in nats.
    excess_loss : ndarray of shape (n_points, n_targets)
        Mean training loss of the model minus the reference model's mean training loss, in nats. For
        a refitted learner, the loss is computed on held-out training samples, and the reference is
        the learner refitted without a pool.
    feasible : ndarray of shape (n_points, n_targets), bool
        Whether some model of the search has an excess loss of at most gamma. If no model has, the
        other fields are those of the model with the smallest excess loss.
    """

    target: Any
    proba: Any
    divergence: Any
    excess_loss: Any
    feasible: Any

    def is_adversarial(self, min_divergence: float) -> Any:
        """Return which models contradict the given model and still explain the data (Definition 1).

        The result, (n_points, n_targets), is True for feasible models whose divergence is at least
        `min_divergence` (lambda), in nats. Models whose loss is lower than the given model's by
        more than gamma are also included, unlike in Definition 1.
        """
        return self.feasible & (self.divergence >= min_divergence)


def best_adversarial_models(
    log_reference: Any,
    log_proba: Any,
    excess_loss: Any,
    gamma: float,
    targets: Any = None,
) -> AdversarialModels:
    """Select, for each search, the most divergent model with an excess loss of at most gamma.

    Shapes: `log_reference` (n_points, n_classes), `log_proba` (n_points, n_targets, n_steps,
    n_classes), `excess_loss` (n_points, n_targets, n_steps), `targets` (n_points, n_targets).
    """
    best = _best_steps(log_reference, log_proba, excess_loss, gamma)
    found = _taken(log_proba, best[..., None], 2).squeeze(2)
    xp = array_namespace(found)
    arrays = (
        found.argmax(-1) if targets is None else targets,
        xp.exp(found),
        kl_divergence(log_reference[:, None], found),
        _taken(excess_loss, best, 2).squeeze(2),
        (excess_loss <= gamma).any(-1),
    )
    return AdversarialModels(*map(as_numpy, arrays))


def _best_steps(log_reference: Any, log_proba: Any, excess_loss: Any, gamma: float) -> Any:
    """Return, for each search, the step of its best adversarial model, (..., 1)."""
    divergence = kl_divergence(log_reference[:, None, None], log_proba)
    within = excess_loss <= gamma
    xp = array_namespace(excess_loss)
    by_divergence = xp.where(within, divergence, -xp.inf)  # Lines 7 and 8
    score = xp.where(within.any(-1)[..., None], by_divergence, -excess_loss)
    return score.argmax(-1)[..., None]


class Gaussians(NamedTuple):
    """Normal distributions: means in units of the target, and variances in squared units."""

    mean: Any
    variance: Any


def gaussians(outputs: Any, noise_variance: float | None) -> Gaussians:
    """Convert outputs, (..., n_outputs), to normal distributions."""
    xp, mean = array_namespace(outputs), outputs[..., 0]
    if noise_variance is not None:
        return Gaussians(mean, xp.full_like(mean, noise_variance))
    # Gradients of quotients of variances contain the cube of a variance, which overflows in float32
    # (on MPS) if the log variance is above 29.
    limit = _MAX_LOG_VARIANCE if xp.finfo(outputs.dtype).bits == 64 else _MAX_LOG_VARIANCE / 4
    return Gaussians(mean, xp.exp(outputs[..., 1].clip(-limit, limit)))


def gaussian_loss(outputs: Any, y: Any, noise_variance: float | None) -> Any:
    """Compute negative log-likelihoods, (..., n_samples), from outputs and targets."""
    mean, variance = gaussians(outputs, noise_variance)
    log_variance = array_namespace(variance).log(2 * math.pi * variance)
    return (log_variance + (y - mean) ** 2 / variance) / 2


def directed_divergence(reference: Gaussians, models: Gaussians, away: Any) -> Any:
    """Compute KL(reference, models), where the term of the means gets the sign of `away`."""
    spread = gaussian_kl(reference.mean, reference.variance, reference.mean, models.variance)
    return spread + away * abs(away) / (2 * models.variance)


@stored("quam.output-bias")
class OutputBias(NamedTuple):
    """A bias of `width` elements; adding 1 to the first shifts all predicted means by `effect`."""

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
        KL(given model's prediction, this model's prediction), in nats.
    excess_loss : ndarray, float64
        Mean training loss of the model minus the given model's mean training loss, in nats; for a
        refitted learner, as in `AdversarialModels`.
    feasible : ndarray, bool
        Whether some model of the search has a mean in the search direction and an excess loss of at
        most gamma. If none has, the other fields are those of the model with the smallest loss.
    """

    direction: Any
    mean: Any
    variance: Any
    divergence: Any
    excess_loss: Any
    feasible: Any


class Visited(NamedTuple):
    """The given model of a regressor, and all models that searches at a batch of points visited."""

    given: Gaussians  # (n_points, 1, 1)
    models: Gaussians  # (n_points, 2, n_steps)
    excess_loss: Any  # (n_points, 2, n_steps)

    @classmethod
    def of(cls, reference: Any, found: Trajectories, noise_variance: float | None) -> Visited:
        given = gaussians(reference[:, None, None], noise_variance)
        return cls(given, gaussians(found.outputs, noise_variance), found.excess_loss)

    def best(self, gamma: float) -> tuple[Visited, Any]:
        """Select the best model of each search; also return whether it is feasible."""
        distance = self.models.mean - self.given.mean
        xp = array_namespace(distance)
        # Displacement of each model's mean in the direction of its search, in units of the target.
        away = xp.stack([sign * distance[:, k] for k, sign in enumerate(DIRECTIONS)], 1)
        within = (self.excess_loss <= gamma) & (away > 0)
        divergence = directed_divergence(self.given, self.models, away)
        found = within.any(-1)[..., None]
        score = xp.where(within, divergence, -xp.inf)
        at = xp.where(found, score, -self.excess_loss).argmax(-1)[..., None]
        models = Gaussians(*(_taken(part, at, -1) for part in self.models))
        return Visited(self.given, models, _taken(self.excess_loss, at, -1)), found

    def best_models(self, gamma: float) -> AdversarialRegressors:
        """Return the best model of each search, as arrays."""
        visited, feasible = self.best(gamma)
        parts = (
            np.broadcast_to(np.array(DIRECTIONS), (len(self.excess_loss), 2))[..., None],
            *visited.models,
            gaussian_kl(*visited.given, *visited.models),
            visited.excess_loss,
            feasible,
        )
        return AdversarialRegressors(*(as_numpy(part).squeeze(-1) for part in parts))

    def weighted(self, sampling: ImportanceSampling) -> tuple[Gaussians, Any]:
        """Return models and weights, (n_points, n_models), from which uncertainty is estimated."""
        kept = self.best(sampling.gamma)[0] if sampling.mixture == "dirac" else self
        models = [part.reshape(len(part), -1) for part in kept.models]
        if sampling.by_search:
            pairs = zip(self.given, models, strict=True)
            models = [joined_models(given[:, 0], part) for given, part in pairs]
        return Gaussians(*models), sampling.weights(kept.excess_loss)

    def uncertainty(self, sampling: ImportanceSampling) -> Decomposition:
        """Estimate aleatoric and epistemic uncertainty, (n_points,), from the weighted models."""
        models, weights = self.weighted(sampling)
        if sampling.setting == "selected":  # Eq. 27
            given = Gaussians(*(part[:, 0] for part in self.given))
            aleatoric = gaussian_entropy(given.variance[:, 0])
            epistemic = (weights * gaussian_kl(*given, *models)).sum(-1)
        else:  # Eq. 26
            aleatoric = (weights * gaussian_entropy(models.variance)).sum(-1)
            pairwise = sampling.setting == "pairwise"
            divergence = gaussian_pairwise_kl if pairwise else mixture_information
            epistemic = divergence(*models, weights)
        return Decomposition(_as_double(aleatoric), _as_double(epistemic))

    def spread(self, sampling: ImportanceSampling) -> FloatArray:
        """Compute the weighted standard deviation of the models' means, (n_points,)."""
        models, weights = self.weighted(sampling)
        centre = self.given.mean[:, 0]
        if sampling.setting != "selected":
            centre = (weights * models.mean).sum(-1)[..., None]
        return np.sqrt(_as_double((weights * (models.mean - centre) ** 2).sum(-1)))


def mixture_information(mean: Any, variance: Any, weights: Any) -> Any:
    """Compute the expected KL(component, mixture) of mixtures of normal distributions, (n_points,).

    This is the mutual information of target and component, the epistemic part of Eq. 26. It has no
    closed form, so each component is integrated by Gauss-Hermite quadrature. The error is below
    1e-4 nats if variances are equal, and a few hundredths of a nat if standard deviations differ by
    more than a factor of ten. Shapes: `mean`, `variance`, `weights` (n_points, n_models).
    """
    xp = array_namespace(weights)
    mean, variance, weights = (xp.asarray(x, dtype=xp.float64) for x in (mean, variance, weights))
    kept = xp.where(weights > _NEGLIGIBLE, weights, 0.0 * weights)
    order = xp.argsort(-kept, 1)[:, : int((kept > 0).sum(1).max())]
    mean, scale, kept = (_taken(part, order, 1) for part in (mean, xp.sqrt(variance), kept))
    size = max(1, _PAIRS_AT_ONCE // order.shape[1] ** 2)
    parts = [slice(start, start + size) for start in range(0, len(mean), size)]
    return xp.concatenate([_information(mean[rows], scale[rows], kept[rows]) for rows in parts])


def _information(mean: Any, scale: Any, weights: Any) -> Any:
    xp = array_namespace(weights)
    weights = weights / weights.sum(1)[:, None]
    with np.errstate(divide="ignore"):  # weights of dropped components are 0
        log_weights = xp.log(weights)
    # Log of (weight / standard deviation) of each component j. The densities of the mixture and of
    # component i below omit the factor 1 / sqrt(2 pi), because it cancels.
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
    """Compute log-sum-exp over the last axis, at least one value of which must be finite."""
    if not isinstance(values, np.ndarray):
        return values.logsumexp(-1)
    largest = values.max(axis=-1, keepdims=True)
    return np.log(np.exp(values - largest).sum(axis=-1)) + largest[..., 0]
