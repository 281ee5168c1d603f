"""Start of a fine-tuning; a callback of skorch, so imported by what trains."""

from __future__ import annotations

from typing import Any

import skorch
from skorch.callbacks import Callback


class WarmUp(Callback):
    """Start with KL(target || model) before Eq. 4 takes over.

    The gradient of Eq. 4 vanishes where the model is certain of a class: by itself it would
    leave the most confident predictions as they are. Both divergences have the same minimum.
    """

    def __init__(self, n_epochs: int):
        self.n_epochs = n_epochs

    def on_epoch_begin(self, net: skorch.NeuralNet, **kwargs: Any) -> None:
        net.criterion_.kl = "forward" if len(net.history) <= self.n_epochs else "reverse"
