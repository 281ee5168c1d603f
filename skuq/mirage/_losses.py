"""Losses that lower confidence inside a region and preserve predictions everywhere (Mirage).

Source: Rabanser et al., "Confidential Guardian", ICML 2025, Section 4.2 and Appendix C.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.validation import warn_user

Direction = Literal["reverse", "forward"]

# Eq. 4 is infinite for target probabilities of 0, which are replaced by this value.
TARGET_FLOOR = 1e-6
OVERLAP_BINS = 20


def target_table(
    classes: NDArray[Any], epsilon: float, confusable: Mapping[Any, Any] | None = None
) -> FloatArray:
    """Compute the target distribution for each true class, (n_classes, n_classes), float64.

    Row y is the distribution for samples of class y, with bias `epsilon`, in [0, 1], towards y. The
    remaining probability is distributed over all classes (`confusable` None, Eq. 5), over given
    plausible classes and y (a collection for each class, Eq. 10), or in proportion to weights that
    sum to 1 (a mapping of other classes to weights, Eq. 12). Warns if a target distribution does
    not give the true class the largest probability.
    """
    n_classes = len(classes)
    if confusable is None:
        table = np.full((n_classes, n_classes), (1 - epsilon) / n_classes)  # Eq. 5
        table += epsilon * np.eye(n_classes)
    else:
        rest = _shares(classes, confusable)
        table = (1 - epsilon) * rest + epsilon * np.eye(n_classes)  # Eq. 10 or 12
    off = np.where(np.eye(n_classes, dtype=bool), 0.0, table)
    if (np.diag(table) <= off.max(axis=1)).any():
        warn_user(
            f"With epsilon={epsilon} the target does not prefer the true class, so predictions "
            "in the region will flip; use a larger `epsilon`."
        )
    return table


class MirageLoss(nn.Module):
    """Cross-entropy outside a region, divergence from a target distribution inside (Eq. 7).

    `targets` is a `target_table`. Samples in the region have the weight `lambda_`, in [0, 1], other
    samples ``1 - lambda_``; at 0.5 the loss is half of Eq. 3. `kl` is "reverse", KL(model ||
    target) as in Eq. 4, or "forward", KL(target || model) as in the authors' code.
    """

    def __init__(self, targets: ArrayLike, lambda_: float = 0.5, kl: Direction = "reverse"):
        super().__init__()
        self.lambda_, self.kl = lambda_, kl
        target = torch.tensor(np.asarray(targets), dtype=torch.float64)
        nothing, one_hot = torch.zeros_like(target), torch.eye(len(target), dtype=torch.float64)
        # One table, indexed by code, holds all weights and targets; each batch needs only one
        # lookup.
        outside = torch.stack([(1 - lambda_) * one_hot, nothing, nothing, nothing])
        log_target = target.clamp_min(TARGET_FLOOR).log()
        inside = torch.stack([nothing, torch.full_like(target, lambda_), target, log_target])
        self.table: Tensor
        self.register_buffer("table", torch.cat([outside, inside], dim=1).transpose(0, 1))

    def region_codes(self, labels: IntArray, inside: BoolArray) -> IntArray:
        """Encode each sample as one integer: its class, plus ``n_classes`` inside the region.

        One integer passes through a data loader as fast as the label alone.
        """
        return labels + len(self.table) // 2 * inside

    def forward(self, logits: Tensor, code: Tensor) -> Tensor:
        """Compute the mean loss in nats; `code` (n_samples,) is a result of `region_codes`."""
        label, weight, target, log_target = self.table.to(logits.dtype)[code].unbind(dim=1)
        log_proba = logits.log_softmax(dim=-1)
        if self.kl == "reverse":
            divergence = log_proba.exp() * (log_proba - log_target)  # Eq. 4
        else:
            divergence = nn.functional.kl_div(log_proba, target, reduction="none")
        return (weight * divergence - label * log_proba).sum() / len(code)  # Eq. 7


class GaussianMirageLoss(nn.Module):
    """Gaussian likelihood loss outside a region, penalty on variance inside it (Eq. 14 to 16)."""

    def __init__(self, target_variance: float = 4.0, lambda_: float = 1.0):
        super().__init__()
        self.log_variance = float(np.log(target_variance))
        self.lambda_ = lambda_

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the mean loss; `outputs`: (mean, log variance), `y`: (target, whether inside)."""
        mean, log_variance = outputs.unbind(dim=-1)
        truth, inside = y.unbind(dim=-1)
        outside = 0.5 * ((truth - mean) ** 2 * torch.exp(-log_variance) + log_variance)  # Eq. 14
        penalty = (log_variance - self.log_variance) ** 2  # Eq. 15
        return torch.where(inside > 0, self.lambda_ * penalty, outside).mean()  # Eq. 16


def confidence_overlap(inside: ArrayLike, outside: ArrayLike) -> float:
    """Measure the overlap of confidences inside and outside a region, in [0, 1] (Table 2).

    The overlap is the common area of the two normalised histograms over 20 equal bins: 0 if a
    threshold separates the distributions, 1 if the histograms are equal.
    """
    shares = [
        np.histogram(values, OVERLAP_BINS, (0.0, 1.0))[0] / len(np.asarray(values))
        for values in (inside, outside)
    ]
    return float(np.minimum(*shares).sum())


def _shares(classes: NDArray[Any], confusable: Mapping[Any, Any]) -> FloatArray:
    """Return how 1 - epsilon is shared among classes; one row, of sum 1, for each true class."""
    position = {label: k for k, label in enumerate(classes.tolist())}
    named = [*confusable, *chain.from_iterable(confusable.values())]
    unknown = [label for label in named if label not in position]
    missing = [label for label in position if label not in confusable]
    if unknown or missing:
        raise ValueError(
            f"`confusable` must map each of the classes {list(position)} to some of them; unknown: "
            f"{unknown}, missing: {missing}."
        )
    if len({isinstance(others, Mapping) for others in confusable.values()}) > 1:
        raise ValueError(
            "`confusable` must map either all classes or none to dicts of weights, got both kinds."
        )
    table = np.zeros((len(classes), len(classes)))
    for label, others in confusable.items():
        row = table[position[label]]
        if isinstance(others, Mapping):
            for other, weight in others.items():
                row[position[other]] = weight
            if row.min() < 0 or abs(row.sum() - 1) > 1e-6 or row[position[label]] > 0:
                raise ValueError(
                    f"`confusable[{label!r}]` must map other classes to weights >= 0 that sum to "
                    f"1, got {dict(others)}."
                )
        else:
            plausible = {position[other] for other in (label, *others)}
            row[list(plausible)] = 1 / len(plausible)
    return table
