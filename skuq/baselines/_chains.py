"""Parallel stochastic gradient Markov chains over the weights of a network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from skuq._networks import as_double, seeded, stacked_forward, training_batches
from skuq.baselines._sampled import TrainingRows
from skuq.extras import import_optional

# Friction of Hamiltonian chains per unit of time. It does not change the target distribution. With
# a step size of 0.1 the momentum factor is about 0.9, which is usual in training.
_FRICTION = 1.0


def run_chains(
    module: nn.Module,
    starts: Mapping[str, Tensor],
    train: TrainingRows,
    *,
    n_samples: int,
    steps_per_sample: int,
    learning_rate: float,
    temperature: float,
    batch_size: int,
    prior_precision: float,
    generator: torch.Generator,
    method: str = "sghmc",
    n_cycles: int | None = None,
) -> Iterator[dict[str, Tensor]]:
    r"""Sample the posterior of a network with parallel chains.

    The posterior is ``exp(-(sum_i weight_i CE_i + prior_precision / 2 |w|^2) / temperature)``.
    Chains use the gradient of its logarithm, divided by the sum of weights. Step sizes therefore do
    not depend on the number of samples. Chains share only their mini-batches.

    Shapes: `starts` (n_chains, \*parameter.shape); returns (n_chains, \*parameter.shape).
    """
    total_weight = float(train.weight.sum())
    if total_weight <= 0:
        raise ValueError("All sample weights are 0; pass at least one positive weight.")
    schedule = _schedule(
        learning_rate, temperature / total_weight, n_samples, steps_per_sample, n_cycles
    )
    log_posterior = _scaled_log_posterior(module, train, prior_precision, total_weight)
    models = {name: value.detach().clone() for name, value in starts.items()}
    transform = _transform(method, log_posterior, schedule, models, generator)
    state = transform.init(models)
    for sample in range(n_samples):
        n_steps = steps_per_sample + schedule.exploration(sample)
        rows = list(training_batches(len(train.X), batch_size, n_steps, generator))
        batches = torch.stack(rows).to(train.X.device)
        seed = int(torch.randint(2**62, (), generator=generator))
        # The library `posteriors` draws from torch's global generator.
        with seeded(seed):
            for batch in batches:
                state, _ = transform.update(state, batch)
        drawn = {name: state.params[name].clone() for name in models}
        finite = torch.stack([torch.isfinite(value).all() for value in drawn.values()])
        if not bool(finite.all()):
            raise ValueError(
                "A Markov chain diverged (NaN or infinite weights). Use a smaller "
                "`learning_rate`, or scale the features, for instance with StandardScaler."
            )
        yield drawn


def _scaled_log_posterior(
    module: nn.Module, train: TrainingRows, prior_precision: float, total_weight: float
) -> Callable[[Any, Tensor], tuple[Tensor, Tensor]]:
    """Log posterior divided by the sum of weights, summed over the chains."""

    def log_posterior(models: Any, batch: Tensor) -> tuple[Tensor, Tensor]:
        models = dict(models.items())
        logits = stacked_forward(module, models, train.X[batch].clone(), shared_input=True)
        targets = train.y[batch].repeat(len(logits))
        losses = cross_entropy(as_double(logits.flatten(0, 1)), targets, reduction="none")
        losses = losses.reshape(len(logits), -1) @ as_double(train.weight[batch])
        loss = losses.sum() * (len(train.X) / len(batch))
        square = sum(as_double(value).square().sum() for value in models.values())
        value = -(loss + prior_precision / 2 * square) / total_weight
        return value, torch.empty(0)

    return log_posterior


class _Schedule(NamedTuple):
    """Step size and temperature at each step, and extra exploration steps before each model."""

    rate: Callable[[Any], float]
    heat: Callable[[Any], float]
    exploration: Callable[[int], int]


def _schedule(
    learning_rate: float,
    temperature: float,
    n_samples: int,
    steps_per_sample: int,
    n_cycles: int | None,
) -> _Schedule:
    if n_cycles is None:
        return _Schedule(lambda _: learning_rate, lambda _: temperature, lambda _: 0)
    if n_samples % n_cycles:
        raise ValueError(
            f"`n_samples` ({n_samples}) must be a multiple of `n_cycles` ({n_cycles})."
        )
    per_cycle = n_samples // n_cycles
    half = per_cycle * steps_per_sample

    def rate(step: Any) -> float:
        # Eq. 1 (Zhang et al.)
        return learning_rate / 2 * (1 + math.cos(math.pi * (int(step) % (2 * half)) / (2 * half)))

    def heat(step: Any) -> float:
        # Algorithm 1 (Zhang et al.): exploration, then sampling
        return 0.0 if int(step) % (2 * half) < half else temperature

    return _Schedule(rate, heat, lambda sample: 0 if sample % per_cycle else half)


def _transform(
    method: str,
    log_posterior: Callable[[Any, Tensor], tuple[Tensor, Tensor]],
    schedule: _Schedule,
    models: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Any:
    """Build the algorithm of ``posteriors``; draw first momenta at the chains' temperature."""
    algorithms = _posteriors().sgmcmc
    common = {"lr": schedule.rate, "temperature": schedule.heat}
    if method == "sgld":
        # Eq. 4 (Welling and Teh)
        return algorithms.sgld.build(log_posterior, **common)
    if method != "sghmc":
        raise ValueError(f"`method` must be 'sghmc' or 'sgld', got {method!r}.")
    # By default, the library draws momenta at temperature 1, which would move each chain out of the
    # mode in which it starts.
    momenta = {
        name: math.sqrt(schedule.heat(0)) * _noise_like(value, generator)
        for name, value in models.items()
    }
    # The library's `sghmc` widens a Gaussian by a factor 1 / (1 - step * curvature / friction).
    # BAOA integrates the same dynamics, but samples a Gaussian exactly and is stable at much larger
    # steps.
    # BAOA (Leimkuhler and Matthews, p. 271)
    return algorithms.baoa.build(log_posterior, alpha=_FRICTION, momenta=momenta, **common)


def _noise_like(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value.device)


def _posteriors() -> ModuleType:
    with warnings.catch_warnings():
        # Classes of the library cause a deprecation warning of tensordict, which does not concern
        # users.
        warnings.simplefilter("ignore", FutureWarning)
        return import_optional("posteriors", extra="sgmcmc")
