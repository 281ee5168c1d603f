"""Parameters and samples of the networks that this package trains."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from skuq.models import TrainingSettings

# What the estimators of this package have in common.
TRAINING_PARAMETERS: dict[str, Any] = {
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class Samples(NamedTuple):
    """What a training or validation pass is given.

    Attributes
    ----------
    inputs : mapping of str to ndarray of shape (n_samples, ...)
        What the network is called with, under "inputs", and whatever else its loss needs.
    codes : ndarray of shape (n_samples,), int64
        Classes, -1 where unknown.
    """

    inputs: Mapping[str, NDArray[Any]]
    codes: NDArray[np.int64]


class TrainingParametersMixin:
    """Settings of the training of an estimator that has `TRAINING_PARAMETERS`."""

    learning_rate: float
    weight_decay: float
    max_epochs: int
    patience: int
    callbacks: list[Any] | None
    verbose: int

    def _training_settings(self, device: torch.device) -> TrainingSettings:
        """Settings of Adam with all samples in one batch."""
        return TrainingSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            max_epochs=self.max_epochs,
            patience=self.patience,
            callbacks=self.callbacks or [],
            device=device,
            verbose=self.verbose,
        )


def checked_widths(hidden_sizes: Any) -> tuple[int, ...]:
    """Widths of hidden layers; an error if one is no positive integer."""
    widths = tuple(hidden_sizes)
    if not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise ValueError(f"`hidden_sizes` must hold positive integers, got {hidden_sizes!r}.")
    return widths
