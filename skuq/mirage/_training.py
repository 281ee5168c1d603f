"""Parameters, region and fine-tuning of both Mirage estimators."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import HasMethods, Interval
from torch import Tensor, nn

from skuq._networks import TrainingSettings, train
from skuq.base import BoolArray
from skuq.calibration import region_mask
from skuq.mirage._counterbalance import candidates_of
from skuq.models import NetworkModel

if TYPE_CHECKING:
    from skorch.callbacks import Callback

PARAMETERS: dict[str, Any] = {
    "estimator": "no_validation",
    "region": [callable, str, dict, None],
    "lambda_": [Interval(Real, 0, 1, closed="both")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "optimizer": [HasMethods("step"), callable],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def mask_of(region: Any, mask: ArrayLike | None, X: Any) -> BoolArray:
    """Mask of the samples in the region, from the parameter `region` or from a given mask."""
    if (region is None) == (mask is None):
        problem = (
            "No region is given; pass it" if mask is None else "Two regions are given; pass one"
        )
        raise ValueError(
            f"{problem} either as parameter `region` or as `fit(..., region_mask=...)`."
        )
    return region_mask(region if mask is None else lambda _: mask, X)


def checked_region(region: Any, mask: ArrayLike | None, X: Any) -> BoolArray:
    """Mask of the samples in the region; ValueError if it is empty or covers all samples."""
    inside = mask_of(region, mask, X)
    if not inside.any():
        raise ValueError("The region is empty: no training sample lies in it.")
    if inside.all():
        raise ValueError(
            "The region covers all training samples; at least one must lie outside, where "
            "confidence is preserved."
        )
    return inside


@dataclass
class RegionOf:
    """Region of the training samples, from the parameter `region` or a mask; validated by `check`.

    If `counterbalance` is not None, it selects the samples outside the region whose confidence may
    be raised.
    """

    region: Any
    given_mask: ArrayLike | None
    X: Any
    counterbalance: Any = None

    def check(self) -> None:
        """Set `mask` and `candidates`; ValueError if either is empty or the region covers all."""
        self.mask = checked_region(self.region, self.given_mask, self.X)
        if self.counterbalance is not None:
            self.candidates = candidates_of(self.counterbalance, self.X, self.mask)
            if not self.candidates.any():
                raise ValueError(
                    "`counterbalance` is empty: it contains no training sample outside the region."
                )


class FineTunedMixin:
    """Fine-tuning settings of an estimator with the parameters in `PARAMETERS`."""

    learning_rate: float
    max_epochs: int
    batch_size: int
    optimizer: Any
    callbacks: list[Any] | None
    device: str | torch.device
    verbose: int

    def _training_settings(self) -> TrainingSettings:
        return TrainingSettings(
            learning_rate=self.learning_rate,
            max_epochs=self.max_epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            # Step sizes decrease, because predictions close to the decision boundary keep flipping
            # while the steps are large.
            cosine=self.callbacks is None,
            callbacks=self.callbacks or [],
            device=self.device,
            verbose=self.verbose,
        )


def fine_tune(
    model: NetworkModel,
    inputs: Tensor,
    targets: NDArray[Any],
    criterion: nn.Module,
    *,
    settings: TrainingSettings,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> NetworkModel:
    """Continue training a copy of a model's network with a different loss.

    `inputs` are preprocessed and on the CPU. `callbacks` belong to the loss; callbacks of the user
    are in `settings`.
    """
    tuned = train(
        deepcopy(model.module).requires_grad_(True),
        criterion,
        {"inputs": inputs.numpy()},
        targets,
        settings=settings,
        seed=seed,
        callbacks=callbacks,
        loss_changes=True,  # the warm-up callback switches the divergence
    )
    return replace(model, module=tuned.module)


def two_seeds(random: np.random.RandomState) -> tuple[int, int]:
    """Seeds of the initial training and of the fine-tuning."""
    first, second = map(int, random.randint(np.iinfo(np.int32).max, size=2))
    return first, second


def warm_up(n_epochs: int) -> Callback:
    """Callback that uses KL(target || model) in the first epochs and Eq. 4 afterwards.

    The gradient of Eq. 4 vanishes where the model is certain of a class. Eq. 4 alone would
    therefore not change the most confident predictions. Both divergences have the same minimum.
    """
    from skorch.callbacks import Callback  # imported here because skorch imports slowly

    class WarmUp(Callback):
        def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
            net.criterion_.kl = "forward" if len(net.history) <= n_epochs else "reverse"

    return WarmUp()
