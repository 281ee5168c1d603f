"""Losses that lower confidence inside a region and preserve predictions everywhere (Mirage).

Sources: Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of
Model Abstention", ICML 2025, Section 4.2 and Appendix C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Compute the target distribution for each true class.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Class labels.
    epsilon : float
        Bias towards the true class, in [0, 1].
    confusable : mapping, default=None
        For each class, the classes over which the remaining probability is distributed. None: all
        classes (Eq. 5). A collection of plausible classes: these classes and the true class
        (Eq. 10). A mapping of other classes to weights that sum to 1: these classes, in proportion
        to the weights (Eq. 12).

    Returns
    -------
    ndarray of shape (n_classes, n_classes), float64
        Row y is the target distribution for samples of class y.

    Raises
    ------
    ValueError
        If `epsilon` is outside [0, 1], or `confusable` does not match the classes.

    Warns
    -----
    UserWarning
        If a target distribution does not give the true class the largest probability; fine-tuning
        then changes predictions.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.mirage import target_table
    >>> target_table(np.array(["a", "b"]), 0.2)
    array([[0.6, 0.4],
           [0.4, 0.6]])
    >>> target_table(np.array(["a", "b"]), 0.2, {"a": ["b"], "b": []})
    array([[0.6, 0.4],
           [0. , 1. ]])
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"`epsilon` must be in [0, 1], got {epsilon}.")
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

    Parameters
    ----------
    targets : array-like of shape (n_classes, n_classes)
        Target distribution for each true class, as returned by `target_table`.
    lambda_ : float, default=0.5
        Weight of the samples in the region, in [0, 1]; other samples have weight
        ``1 - lambda_``. At 0.5 the loss is half of Eq. 3.
    kl : {"reverse", "forward"}, default="reverse"
        KL(model || target) as in Eq. 4, or KL(target || model) as in the authors' code.

    Examples
    --------
    >>> import torch
    >>> from skuq.mirage import MirageLoss
    >>> loss = MirageLoss([[0.5, 0.5], [0.5, 0.5]])
    >>> float(loss(torch.zeros(2, 2), torch.tensor([3, 2])))
    0.0
    """

    def __init__(self, targets: ArrayLike, lambda_: float = 0.5, kl: Direction = "reverse"):
        super().__init__()
        self.lambda_ = lambda_
        self.kl = kl
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
        """Encode class and region of each sample as one integer, the target of the loss.

        A single integer passes through a data loader as fast as the label alone.

        Parameters
        ----------
        labels : ndarray of shape (n_samples,), int64
            Class of each sample, 0 to n_classes - 1.
        inside : ndarray of shape (n_samples,), bool
            Whether each sample lies in the region.

        Returns
        -------
        ndarray of shape (n_samples,), int64
            The class, plus ``n_classes`` for samples in the region.
        """
        return labels + len(self.table) // 2 * inside

    def forward(self, logits: Tensor, code: Tensor) -> Tensor:
        """Mean loss in nats.

        Parameters
        ----------
        logits : Tensor of shape (n_samples, n_classes)
            Predictions.
        code : Tensor of shape (n_samples,), int64
            Class and region of each sample, as encoded by `region_codes`.

        Returns
        -------
        Tensor, scalar
        """
        label, weight, target, log_target = self.table.to(logits.dtype)[code].unbind(dim=1)
        log_proba = logits.log_softmax(dim=-1)
        if self.kl == "reverse":
            divergence = log_proba.exp() * (log_proba - log_target)  # Eq. 4
        else:
            divergence = nn.functional.kl_div(log_proba, target, reduction="none")
        return (weight * divergence - label * log_proba).sum() / len(code)  # Eq. 7


class GaussianMirageLoss(nn.Module):
    """Gaussian log-likelihood loss outside a region, penalty on the variance inside (Eq. 14 to 16).

    Parameters
    ----------
    target_variance : float, default=4.0
        Target variance in the region.
    lambda_ : float, default=1.0
        Weight of the region.
    """

    def __init__(self, target_variance: float = 4.0, lambda_: float = 1.0):
        super().__init__()
        self.log_variance = float(np.log(target_variance))
        self.lambda_ = lambda_

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean loss.

        Parameters
        ----------
        outputs : Tensor of shape (n_samples, 2)
            Predicted mean and log variance.
        y : Tensor of shape (n_samples, 2)
            Regression targets, and 1 for samples in the region, else 0.

        Returns
        -------
        Tensor, scalar
        """
        mean, log_variance = outputs.unbind(dim=-1)
        truth, inside = y.unbind(dim=-1)
        outside = 0.5 * ((truth - mean) ** 2 * torch.exp(-log_variance) + log_variance)  # Eq. 14
        penalty = (log_variance - self.log_variance) ** 2  # Eq. 15
        return torch.where(inside > 0, self.lambda_ * penalty, outside).mean()  # Eq. 16


def confidence_overlap(inside: ArrayLike, outside: ArrayLike) -> float:
    """Measure the overlap of two distributions of confidence (Table 2).

    Parameters
    ----------
    inside, outside : array-like of shape (n_inside,) and (n_outside,)
        Confidences in [0, 1] inside and outside a region.

    Returns
    -------
    float
        Common area of the two normalised histograms over 20 equal bins, in [0, 1]: 0 if a threshold
        separates the distributions, 1 if the histograms are equal.

    Examples
    --------
    >>> from skuq.mirage import confidence_overlap
    >>> confidence_overlap([0.5, 0.5], [0.5, 0.9, 0.9, 0.9])
    0.25
    """
    shares = []
    for name, values in (("inside", inside), ("outside", outside)):
        array = np.asarray(values, np.float64)
        if len(array) == 0:
            raise ValueError(f"`{name}` must not be empty, got no confidences.")
        if not ((array >= 0) & (array <= 1)).all():
            raise ValueError(f"`{name}` must hold confidences in [0, 1], got other values or NaN.")
        shares.append(np.histogram(array, OVERLAP_BINS, (0.0, 1.0))[0] / len(array))
    return float(np.minimum(*shares).sum())


def _shares(classes: NDArray[Any], confusable: Mapping[Any, Any]) -> FloatArray:
    """Distribution of the probability 1 - epsilon over the classes, one row per true class."""
    position = {label: k for k, label in enumerate(classes.tolist())}
    unknown = [label for label in confusable if label not in position]
    missing = [label for label in position if label not in confusable]
    if unknown or missing:
        raise ValueError(
            f"`confusable` must have exactly the classes {list(position)} as its keys; unknown: "
            f"{unknown}, missing: {missing}."
        )
    if len({isinstance(others, Mapping) for others in confusable.values()}) > 1:
        raise ValueError(
            "`confusable` must map either all classes or none to dicts of weights, got both kinds."
        )
    table = np.zeros((len(classes), len(classes)))
    for label, others in confusable.items():
        strange = [other for other in others if other not in position]
        if strange:
            raise ValueError(f"`confusable[{label!r}]` names unknown classes: {strange}.")
        fill = _fill_weights if isinstance(others, Mapping) else _fill_subset
        fill(table[position[label]], label, others, position)
    return table


def _fill_subset(
    row: FloatArray, label: Any, others: Iterable[Any], position: Mapping[Any, int]
) -> None:
    plausible = {position[other] for other in (label, *others)}
    row[list(plausible)] = 1 / len(plausible)


def _fill_weights(
    row: FloatArray, label: Any, others: Mapping[Any, float], position: Mapping[Any, int]
) -> None:
    for other, weight in others.items():
        row[position[other]] = weight
    if row.min() < 0 or abs(row.sum() - 1) > 1e-6 or row[position[label]] > 0:
        raise ValueError(
            f"`confusable[{label!r}]` must map other classes to weights >= 0 that sum to 1, "
            f"got {dict(others)}."
        )
