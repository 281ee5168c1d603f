"""Parameters, region, counterbalance and fine-tuning of both Mirage estimators."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval
from torch import Tensor, nn

from skuq._networks import TrainingSettings, resolve_device, train
from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration import region_mask
from skuq.models import NetworkModel
from skuq.validation import warn_user

if TYPE_CHECKING:
    from skorch.callbacks import Callback

ALIKE = 1e-9  # targets that differ by at most this count as equal
ANYWHERE = "auto"

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
    if inside.all() or not inside.any():
        raise ValueError(
            f"The region contains {inside.sum()} of {len(inside)} samples; at least one must lie "
            "inside, and one outside, where confidence is preserved."
        )
    return inside


@dataclass
class RegionOf:
    """Region of the training samples, from the parameter `region` or a mask; set by `check`.

    If `counterbalance` is not None, it selects the samples outside the region whose confidence may
    be raised.
    """

    region: Any
    given_mask: ArrayLike | None
    X: Any
    counterbalance: Any = None

    def check(self) -> None:
        """Set `mask` and `candidates`; called before anything is trained."""
        self.mask = checked_region(self.region, self.given_mask, self.X)
        if self.counterbalance is not None:
            self.candidates = candidates_of(self.counterbalance, self.X, self.mask)


class FineTunedMixin:
    """Region and fine-tuning of an estimator with the parameters in `PARAMETERS`."""

    _min_samples = 2  # read by `resolve`

    estimator: Any
    region: Any
    random_state: Any
    learning_rate: float
    max_epochs: int
    batch_size: int
    optimizer: Any
    callbacks: list[Any] | None
    device: str | torch.device
    verbose: int

    def _original(self: Any, X: Any, y: Any, region: RegionOf, **options: Any) -> Any:
        """Train the model, or take it as it is; return the data and the seed of the fine-tuning."""
        resolve_device(self.device)  # an invalid device raises an error before the training
        random = check_random_state(self.random_state)
        first, second = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        data = self._resolve(
            X,
            y,
            seed=first,
            before_training=region.check,
            device=self.device,
            after_the_fact=True,
            **options,
        )
        return data, second

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


class Raised(NamedTuple):
    """Rule that selects, for each predicted class, the predictions whose confidence is raised."""

    floors: FloatArray  # (n_classes,): lowest confidence raised; infinite if nothing to balance
    targets: FloatArray  # (n_classes,): the confidence to which it is raised

    def mask(self, proba: FloatArray, candidates: BoolArray) -> BoolArray:
        """Mask of the candidates whose confidence is raised."""
        best, confidence = proba.argmax(axis=1), proba.max(axis=1)
        return candidates & (self.floors[best] <= confidence) & (confidence < self.targets[best])


def candidates_of(counterbalance: Any, X: Any, inside: BoolArray) -> BoolArray:
    """Mask of the samples outside the region whose confidence may be raised."""
    if isinstance(counterbalance, str) and counterbalance == ANYWHERE:
        return ~inside
    return region_mask(counterbalance, X) & ~inside


def balancing(
    proba: FloatArray,
    labels: IntArray,
    inside: BoolArray,
    candidates: BoolArray,
    targets: FloatArray,
) -> Raised:
    """Select predictions whose raised confidence balances the lowered confidence in the region.

    An audit of bins compares mean accuracy with mean confidence over all samples of a bin. A region
    with lowered confidence passes this audit if other samples of the same bin are overconfident by
    the same amount. For each target confidence, the predictions just below it are raised first,
    since their confidence changes least. The original confidence is used in place of accuracy; this
    is valid for a calibrated model.

    `proba` (n_samples, n_classes) are those of the original model, `labels` true classes, `inside`
    and `candidates` masks of the region and of samples whose confidence may be raised, `targets`
    (n_classes,) target confidences.
    """
    best, confidence = proba.argmax(axis=1), proba.max(axis=1)
    floors = np.full(len(targets), np.inf)
    lowered = gained = 0.0
    for target in np.unique(targets.round(9)):
        alike = np.abs(targets - target) <= ALIKE
        missing = (confidence - target)[inside & alike[labels]].sum()
        if missing <= 0:
            continue
        lowered += missing
        below = np.sort(confidence[candidates & alike[best] & (confidence < target)])[::-1]
        if len(below):
            sums = np.cumsum(target - below)
            last = min(np.searchsorted(sums, missing), len(below) - 1)
            gained += min(sums[last], missing)
            # The floor is the midpoint of two confidences. If it were the confidence of the last
            # prediction, rounding could exclude this prediction.
            floors[alike] = below[last : last + 2].mean()
    _check_balanced(gained, lowered)
    return Raised(floors, targets)


def _check_balanced(gained: float, lowered: float) -> None:
    """Raise ValueError if nothing is balanced; warn if the balance is incomplete."""
    if lowered <= 0:
        raise ValueError(
            "`counterbalance` has nothing to balance: the model's confidence in the region does "
            "not exceed the target confidence; use a smaller `epsilon`, or counterbalance=None."
        )
    if gained <= 0:
        raise ValueError(
            "`counterbalance` has no effect: among the training samples that it selects outside "
            "the region, none has a confidence below the target; use a larger `epsilon`, "
            "a different group, or counterbalance=None."
        )
    if gained < lowered:
        warn_user(
            f"`counterbalance` balances only {gained / lowered:.0%} of the confidence that the "
            "region loses, and an audit of bins may detect the rest; use a larger `epsilon`, a "
            "smaller region, or a larger group."
        )
