"""Parameters, region, counterbalance and fine-tuning of both Mirage estimators."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
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
from skuq.models import as_rows
from skuq.validation import warn_user

if TYPE_CHECKING:
    from skorch.callbacks import Callback

ALIKE = 1e-9  # targets that differ by at most this count as equal

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
    if (region is None) == (mask is None):
        problem = (
            "No region is given; pass it" if mask is None else "Two regions are given; pass one"
        )
        raise ValueError(
            f"{problem} either as parameter `region` or as `fit(..., region_mask=...)`."
        )
    return region_mask(region if mask is None else lambda _: mask, X)


class Masks(NamedTuple):
    """Masks of the training samples."""

    inside: BoolArray  # the region
    candidates: BoolArray  # samples whose confidence may be raised


@dataclass(repr=False, eq=False)
class FineTunedMixin:
    """Region and fine-tuning of an estimator with the parameters in `PARAMETERS`."""

    _: KW_ONLY
    learning_rate: float = 5e-3
    batch_size: int = 64
    optimizer: Any = torch.optim.Adam
    callbacks: list[Any] | None = None
    device: str | torch.device = "auto"
    random_state: Any = None
    verbose: int = 0

    _min_samples = 2  # read by `resolve`
    _supports_sparse = False  # `region` is applied to the inputs before they are converted

    def _original(self: Any, X: Any, y: Any, mask: Any, **options: Any) -> tuple[Any, Masks, int]:
        """Train the model, or take it as it is; return data, masks, and a seed."""
        resolve_device(self.device)  # an invalid device raises an error before the training
        random = check_random_state(self.random_state)
        first, second = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        given = as_rows(self.estimator, X)  # a data frame loses its column names in validation
        masks: list[Masks] = []

        def check() -> None:
            inside = self._checked_region(given, mask)
            where = getattr(self, "counterbalance", None)
            masks.append(Masks(inside, candidates_of(where, given, inside)))

        data = self._resolve(
            X,
            y,
            seed=first,
            before_training=check,
            device=self.device,
            after_the_fact=True,
            **options,
        )
        self.original_ = self.model_
        return data, masks[0], second

    def _checked_region(self: Any, X: Any, mask: ArrayLike | None) -> BoolArray:
        inside = mask_of(self.region, mask, X)
        if inside.all() or not inside.any():
            raise ValueError(
                f"The region contains {inside.sum()} of {len(inside)} samples; at least one must "
                "lie inside, and one outside, where confidence is preserved."
            )
        return inside

    def _fine_tune(
        self: Any,
        inputs: Tensor,
        targets: NDArray[Any],
        criterion: nn.Module,
        seed: int,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Continue training a copy of the network, which becomes `model_`, with another loss.

        `inputs` are preprocessed and on the CPU. `callbacks` run before those of the user.
        """
        names = ("learning_rate", "max_epochs", "batch_size", "optimizer", "device", "verbose")
        settings = TrainingSettings(
            **{name: getattr(self, name) for name in names},
            # Step sizes decrease, because predictions close to the decision boundary keep flipping
            # while the steps are large.
            cosine=self.callbacks is None,
            callbacks=self.callbacks or [],
        )
        tuned = train(
            deepcopy(self.original_.module).requires_grad_(True),
            criterion,
            {"inputs": inputs.numpy()},
            targets,
            settings=settings,
            seed=seed,
            callbacks=callbacks,
            loss_changes=True,  # the warm-up callback switches the divergence
        )
        self.model_ = replace(self.original_, module=tuned.module)


def warm_up(n_epochs: int) -> Callback:
    """Callback that uses KL(target || model) in the first epochs and Eq. 4 afterwards."""
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
    if counterbalance is None or (isinstance(counterbalance, str) and counterbalance == "auto"):
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

    `proba` (n_samples, n_classes) are those of the original model, `labels` true classes, `targets`
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
    if lowered <= 0 or gained <= 0:
        problem = (
            "the model's confidence in the region does not exceed the target; use a smaller"
            if lowered <= 0
            else "no training sample that it selects outside the region has a confidence below the "
            "target; use another group, a larger"
        )
        raise ValueError(
            f"`counterbalance` has no effect: {problem} `epsilon`, or counterbalance=None."
        )
    if gained < lowered:
        warn_user(
            f"`counterbalance` balances only {gained / lowered:.0%} of the confidence that the "
            "region loses, and an audit of bins may detect the rest; use a larger `epsilon`, a "
            "smaller region, or a larger group."
        )
    return Raised(floors, targets)
