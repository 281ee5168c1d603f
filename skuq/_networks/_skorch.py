"""Training code that needs skorch; imported only for training, because skorch is slow to import."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import skorch
import torch
from numpy.typing import NDArray
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import Tensor, nn
from torch.utils.data import default_convert

from skuq._networks._devices import device_with_memory, input_error, on_device, seeded
from skuq._networks._modules import mean_weight_one
from skuq.devices import with_gradients


class _Net(skorch.NeuralNet):
    """skorch net for dict batches: "inputs" are for the network, all other keys for the loss."""

    def infer(self, x: Any, **fit_params: Any) -> Any:
        return super().infer(x["inputs"], **fit_params)

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        rest = {name: values.to(self.device) for name, values in X.items() if name != "inputs"}
        loss: Tensor = self.criterion_(y_pred, y_true.to(self.device), *([rest] if rest else []))
        return loss

    def run_single_epoch(
        self, iterator: Any, training: bool, prefix: str, step_fn: Callable[..., Any], **params: Any
    ) -> None:
        # Unlike in skorch's method, losses stay tensors until the epoch ends: converting the loss
        # of each batch to a number would synchronise with the GPU for each batch.
        if iterator is None:
            return
        losses = []
        for batch in iterator:
            self.notify("on_batch_begin", batch=batch, training=training)
            step = step_fn(batch, **params)
            losses.append(step["loss"].detach())
            self.history.record_batch(f"{prefix}_loss", losses[-1])
            self.history.record_batch(f"{prefix}_batch_size", len(batch[1]))
            self.notify("on_batch_end", batch=batch, training=training, **step)
        self.history.record(f"{prefix}_batch_count", len(losses))
        rows = self.history[-1]["batches"][-len(losses) :]
        for row, loss in zip(rows, torch.stack(losses).tolist(), strict=True):
            row[f"{prefix}_loss"] = loss


def make_net(
    module: nn.Module,
    criterion: nn.Module,
    n_samples: int,
    settings: Any,  # a TrainingSettings
    device: torch.device,
    validation: Dataset | None,
    callbacks: Sequence[Callback],
) -> skorch.NeuralNet:
    """Create a net with the given training settings; `validation` is used for early stopping."""
    stopping: list[Callback] = []
    if validation is not None:
        patience, mute = settings.patience, lambda _: None
        stopping = [EarlyStopping(patience=patience, threshold=0, load_best=True, sink=mute)]
    n_epochs = settings.max_epochs
    schedule = [LRScheduler("CosineAnnealingLR", T_max=n_epochs)] if settings.cosine else []
    more: dict[str, Any] = {}
    if settings.weight_decay:
        more["optimizer__weight_decay"] = settings.weight_decay
    if not settings.verbose:  # remove skorch's log, which builds a table for each epoch
        more["callbacks__print_log"] = None
    return _Net(
        module,
        criterion=criterion,
        optimizer=settings.optimizer,
        lr=settings.learning_rate,
        max_epochs=n_epochs,
        batch_size=settings.batch_size,
        iterator_train=BatchLoader,
        # Shuffling a single batch would only change the random numbers of dropout.
        iterator_train__shuffle=0 < settings.batch_size < n_samples,
        iterator_valid=BatchLoader,
        train_split=None if validation is None else predefined_split(validation),
        callbacks=[*callbacks, *schedule, *stopping, *settings.callbacks],
        device=str(device),
        verbose=int(settings.verbose),
        **more,
    )


def as_dataset(
    data: Mapping[str, NDArray[Any]], targets: NDArray[Any], device: torch.device
) -> Dataset:
    """Copy data to `device` if its memory suffices, else to the CPU; scale "weight" to mean 1."""
    if "weight" in data:
        data = {**data, "weight": mean_weight_one(data["weight"])}
    n_bytes = targets.nbytes + sum(values.nbytes for values in data.values())
    where = device_with_memory(2 * n_bytes, device)

    def tensor(values: NDArray[Any]) -> Tensor:
        single = device.type == "mps" and values.dtype == np.float64
        return on_device(values.astype(np.float32) if single else values, where)

    return Dataset({name: tensor(values) for name, values in data.items()}, tensor(targets))


class BatchLoader:
    """Data loader that indexes whole batches of arrays or tensors, for ``iterator_train``.

    torch's loader fetches and stacks single samples, which takes as long as a step of a small
    network. If a single sample is left over, it joins the last batch. The order is drawn by torch's
    global generator.
    """

    def __init__(self, dataset: Dataset, batch_size: int, shuffle: bool = False):
        self.n_samples = len(dataset)
        self.batch_size = self.n_samples if batch_size == -1 else batch_size
        self.shuffle = shuffle
        self.X: Any = default_convert(dataset.X)  # type: ignore[no-untyped-call]
        self.y = torch.as_tensor(dataset.y)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        if self.batch_size >= self.n_samples and not self.shuffle:
            yield self.X, self.y  # without a copy
            return
        # Draw the order on the CPU, so that batches are the same on all devices.
        draw = torch.randperm if self.shuffle else torch.arange
        order = draw(self.n_samples, device="cpu").to(self.y.device)
        batches = list(order.split(self.batch_size))  # type: ignore[no-untyped-call]
        if self._joins_last():
            batches[-2:] = [torch.cat(batches[-2:])]
        for rows in batches:
            is_dict = isinstance(self.X, dict)
            X = {name: v[rows] for name, v in self.X.items()} if is_dict else self.X[rows]
            yield X, self.y[rows]

    def __len__(self) -> int:
        n_batches = -(-self.n_samples // self.batch_size)
        return n_batches - self._joins_last()

    def _joins_last(self) -> bool:
        """Whether to join the last two batches: batch normalisation needs more than one sample."""
        return 1 < self.batch_size < self.n_samples and self.n_samples % self.batch_size == 1


def net_dtype(net: skorch.NeuralNet) -> type[np.floating[Any]]:
    """Return the dtype for training data: float64 for a float64 module, otherwise float32."""
    if not isinstance(net.module, nn.Module):
        return np.float32
    floating = [p.dtype for p in net.module.parameters() if p.is_floating_point()]
    return np.float64 if floating[:1] == [torch.float64] else np.float32


@with_gradients()
def fit_net(
    net: skorch.NeuralNet,
    X: NDArray[Any],
    y: NDArray[Any],
    *,
    seed: int,
    sample_weight: NDArray[Any] | None = None,
) -> skorch.NeuralNet:
    """Fit a skorch net reproducibly, and restore torch's global random state.

    The net is fitted in place. `X` must have the dtype of the net's module, and `y` the form that
    its criterion needs. skorch nets accept no sample weights.
    """
    if sample_weight is not None:
        raise ValueError(
            "`sample_weight` needs a net that can use weights, but skorch nets cannot: pass "
            "estimator=None, or put a trained net into a FrozenEstimator."
        )
    with seeded(seed):
        try:
            # A copy, because torch warns of read-only arrays from pandas.
            return net.fit(np.array(X), y)
        except RuntimeError as error:  # raised by torch
            if not net.initialized_:
                raise
            raise input_error(net.module_, np.shape(X), error) from error
