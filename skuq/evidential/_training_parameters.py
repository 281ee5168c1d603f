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

# Constraints of the training parameters of `GraphClassifier` and `EvidentialProbe`.
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
    """Samples of a training or validation pass.

    Attributes
    ----------
    inputs : mapping of str to ndarray of shape (n_samples, ...)
        Arguments of the network, under "inputs", and further ones of the loss.
    codes : ndarray of shape (n_samples,), int64
        Classes, -1 where unknown.
    """

    inputs: Mapping[str, NDArray[Any]]
    codes: NDArray[np.int64]


class TrainedNetworkMixin:
    """Settings of the training for an estimator with the parameters `TRAINING_PARAMETERS`."""

    learning_rate: float
    weight_decay: float
    max_epochs: int
    patience: int
    callbacks: list[Any] | None
    verbose: int

    def _training_settings(self, device: torch.device) -> TrainingSettings:
        """Settings for Adam, with all samples in one batch."""
        return TrainingSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            max_epochs=self.max_epochs,
            patience=self.patience,
            callbacks=self.callbacks or [],
            device=device,
            verbose=self.verbose,
        )
