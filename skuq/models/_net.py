"""The skorch net that trains; with skorch, so imported by what trains and by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import skorch
from numpy.typing import NDArray
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import Tensor, nn

from skuq.models._batches import BatchLoader

if TYPE_CHECKING:
    from skuq.models._training import TrainingSettings


class _Net(skorch.NeuralNet):
    """skorch net on batches that are dicts: "inputs" for the network, the rest for the loss."""

    def infer(self, x: Any, **fit_params: Any) -> Any:
        return super().infer(x["inputs"], **fit_params)

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        rest = {name: values.to(self.device) for name, values in X.items() if name != "inputs"}
        loss: Tensor = self.criterion_(y_pred, y_true.to(self.device), *([rest] if rest else []))
        return loss


def make_net(
    module: nn.Module | Callable[[], nn.Module],
    criterion: nn.Module,
    n_samples: int,
    *,
    settings: TrainingSettings,
    validation: Dataset | None,
    callbacks: Sequence[Callback],
) -> skorch.NeuralNet:
    """Net with the settings of a training; `validation` is what its patience is about."""
    stopping: list[Callback] = []
    if validation is not None:
        stopping = [
            EarlyStopping(patience=settings.patience, threshold=0, load_best=True, sink=_mute)
        ]
    if settings.cosine:
        callbacks = [*callbacks, LRScheduler("CosineAnnealingLR", T_max=settings.max_epochs)]
    decay = {"optimizer__weight_decay": settings.weight_decay} if settings.weight_decay else {}
    return _Net(
        module,
        criterion=criterion,
        optimizer=settings.optimizer,
        lr=settings.learning_rate,
        max_epochs=settings.max_epochs,
        batch_size=settings.batch_size,
        iterator_train=BatchLoader,
        # A single batch needs no order, and drawing one would shift what dropout draws.
        iterator_train__shuffle=0 < settings.batch_size < n_samples,
        iterator_valid=BatchLoader,
        train_split=None if validation is None else predefined_split(validation),
        callbacks=[*callbacks, *stopping, *settings.callbacks],
        device=str(settings.device),
        verbose=int(settings.verbose),
        **decay,
    )


def as_dataset(data: Mapping[str, NDArray[Any]], targets: NDArray[Any]) -> Dataset:
    """Copies, because pandas hands out read-only arrays, which torch warns about."""
    return Dataset({name: np.array(values) for name, values in data.items()}, np.array(targets))


def _mute(message: str) -> None:
    """Ignore what early stopping prints."""
