"""Langevin chains that start from the adversarial models of many test points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from skuq.baselines._chains import run_chains
from skuq.baselines._curvature import diagonal_curvature
from skuq.models import TrainingSet
from skuq.quam._batch import SearchSettings

# With 20 models from each chain, they take as many steps as the searches did by default.
_STEPS_PER_SAMPLE = 5


def langevin_chains(
    module: nn.Module,
    starts: dict[str, Tensor],
    train: TrainingSet,
    rows: Tensor,
    *,
    n_searches: int,
    n_samples: int,
    temperature: float,
    settings: SearchSettings,
) -> Iterator[dict[str, Tensor]]:
    """Run chains on the posterior ``exp(-L_train / T)``, with the same noise for all points.

    The step size is 1 over an upper bound on the curvature at the reference model.

    Parameters
    ----------
    module : torch.nn.Module
        Reference model.
    starts : dict of str to Tensor of shape (n_points * n_searches, \\*parameter.shape)
        Where chains start, point by point.
    train : TrainingSet
        Training data.
    rows : Tensor of shape (n_rows,), int64
        Training samples on which the curvature is bounded.
    n_searches : int
        Chains of each point, which have noise of their own.
    n_samples : int
        Models to take from each chain.
    temperature : float
        T, for the mean training loss.
    settings : SearchSettings
        Supplies weight decay, the size of mini-batches and the seed.

    Yields
    ------
    dict of str to Tensor of shape (n_points * n_searches, \\*parameter.shape)
        One model of each chain.

    Raises
    ------
    ImportError
        If the extra "sgmcmc" is missing.
    ValueError
        If a chain diverges.

    References
    ----------
    Welling and Teh, ICML 2011; as mixture components: Schweighofer et al., NeurIPS 2023,
    Section 2.2.
    """
    # `run_chains` follows the sum of the losses, not their mean.
    total = float(train.weight.sum())
    chains = run_chains(
        module,
        starts,
        train,
        n_samples=n_samples,
        steps_per_sample=_STEPS_PER_SAMPLE,
        learning_rate=_stable_step(module, starts, train, rows, settings.weight_decay),
        temperature=temperature * total,
        batch_size=settings.train_batch_size,
        prior_precision=settings.weight_decay * total,
        generator=torch.Generator().manual_seed(settings.seed),
        method="sgld",
    )
    for _ in range(n_samples):
        with _SharedNoise(n_searches):  # but not around what others do between the models
            models = next(chains)
        yield models


def _stable_step(
    module: nn.Module,
    moved: dict[str, Tensor],
    train: TrainingSet,
    rows: Tensor,
    weight_decay: float,
) -> float:
    """Step size at which chains cannot overshoot, near the reference model.

    Steps below 2 / curvature are stable, and no direction's curvature exceeds the sum of
    squared slopes of the logits, since that of the cross-entropy by the logits is below 1.
    """
    X, weight = train.X[rows], train.weight[rows]
    reference = {name: module.get_parameter(name) for name in moved}
    with torch.no_grad():
        n_outputs = module(X[:1].clone()).shape[-1]
    slopes = diagonal_curvature(
        module,
        reference,
        X,
        weight / weight.sum(),
        variance=torch.ones(n_outputs, device=X.device),
    )
    return 1 / (sum(float(part.sum()) for part in slopes.values()) + weight_decay)


class _SharedNoise(TorchFunctionMode):
    """Gives the chains of all points the same noise.

    The library draws the noise of a whole stack of models at once, so that a point's chains
    would depend on its place among the points.
    """

    def __init__(self, n_searches: int):
        super().__init__()
        self._n_searches = n_searches

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.randn_like:
            return func(*args, **(kwargs or {}))
        (stack,) = args
        noise = torch.randn_like(stack[: self._n_searches])
        return noise.repeat(len(stack) // self._n_searches, *[1] * (stack.ndim - 1))
