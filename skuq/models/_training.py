"""Training through skorch: a weighted loss, one seed, no trace left in global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import skorch
import torch
from numpy.typing import NDArray
from skorch.dataset import Dataset
from torch import Tensor, nn
from torch.utils.data import default_convert

from skuq.models._networks import MLP


class WeightedClassifier(skorch.NeuralNetClassifier):
    """skorch classifier whose loss is the mean weighted by per-sample weights.

    `fit` takes ``{"X": array, "sample_weight": array}`` as its input, which is how skorch
    passes further per-sample data along. Weights of 2 equal samples given twice. The
    criterion must return one loss per sample (``criterion__reduction="none"``).
    """

    def get_loss(self, y_pred: Tensor, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        losses = super().get_loss(y_pred, y_true, X=X, **kwargs)
        weight = X["sample_weight"].to(losses)
        if losses.shape != weight.shape:
            raise ValueError(
                "A weighted loss needs one loss per sample; set criterion__reduction='none'."
            )
        # A batch of zero weights has no loss; the bound keeps it from being 0 / 0.
        return (weight * losses).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    def infer(self, x: Any, **fit_params: Any) -> Tensor:
        outputs: Tensor = super().infer(x["X"] if isinstance(x, dict) else x, **fit_params)
        return outputs


class BatchLoader:
    """Take batches from arrays by index, for skorch's ``iterator_train``.

    torch's loader fetches samples one by one and stacks them again, which takes about as long
    as a step of a small network.

    Parameters
    ----------
    dataset : skorch.dataset.Dataset
        Holds inputs, an array or a dict of arrays, and targets, an array.
    batch_size : int
        Samples per batch; -1 takes all. A single sample that is left joins the last batch.
        If all are taken in order, the batch is the data itself and no copy.
    shuffle : bool, default=False
        Whether each pass has an order of its own, drawn by torch's global generator.

    Examples
    --------
    >>> import numpy as np
    >>> from skorch.dataset import Dataset
    >>> from skuq.models import BatchLoader
    >>> loader = BatchLoader(Dataset(np.eye(5), np.arange(5)), batch_size=3)
    >>> [y.tolist() for X, y in loader]
    [[0, 1, 2], [3, 4]]
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
        order = torch.randperm if self.shuffle else torch.arange
        batches = list(order(self.n_samples).split(self.batch_size))  # type: ignore[no-untyped-call]
        if self._joins_last():
            batches[-2:] = [torch.cat(batches[-2:])]
        for rows in batches:
            yield _rows(self.X, rows), self.y[rows]

    def __len__(self) -> int:
        n_batches = -(-self.n_samples // self.batch_size)
        return n_batches - self._joins_last()

    def _joins_last(self) -> bool:
        """Whether a single sample is left, on which batch normalisation cannot train."""
        return 1 < self.batch_size < self.n_samples and self.n_samples % self.batch_size == 1


def _rows(data: Any, rows: Tensor) -> Any:
    if isinstance(data, dict):
        return {name: values[rows] for name, values in data.items()}
    return data[rows]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and leave its global random state as it was."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


def default_classifier(
    n_features: int, n_classes: int, *, device: torch.device
) -> WeightedClassifier:
    """Build the classifier that is trained when the user brings none.

    An `MLP` with one hidden layer of 100 units in float64, trained by Adam with weight
    decay (a Gaussian prior on the weights, so that the posterior is proper).

    Parameters
    ----------
    n_features, n_classes : int
        Width of input and output.
    device : torch.device
        Where to train.

    Returns
    -------
    WeightedClassifier
        Untrained; fit it with `fit_net`.
    """
    return WeightedClassifier(
        _float64_mlp,
        module__n_features=n_features,
        module__n_outputs=n_classes,
        criterion=nn.CrossEntropyLoss,
        criterion__reduction="none",
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=5e-3,
        max_epochs=100,
        batch_size=256,
        train_split=None,
        iterator_train=BatchLoader,
        iterator_train__shuffle=True,
        device=str(device),
        verbose=0,
    )


def _float64_mlp(n_features: int, n_outputs: int) -> nn.Module:
    return MLP(n_features, n_outputs).double()


def fit_net(
    net: skorch.NeuralNet,
    X: NDArray[Any],
    y: NDArray[Any],
    *,
    seed: int,
    sample_weight: NDArray[Any] | None = None,
) -> skorch.NeuralNet:
    """Fit a skorch net reproducibly, leaving torch's global random state as it was.

    Parameters
    ----------
    net : skorch.NeuralNet
        Net to fit, in place.
    X : ndarray of shape (n_samples, ...)
        Inputs, in the dtype of the net's module.
    y : ndarray of shape (n_samples,)
        Targets: class codes 0 .. n_classes - 1, as the net's criterion wants them.
    seed : int
        Governs initial weights, shuffling and dropout.
    sample_weight : ndarray of shape (n_samples,), default=None
        Weights, for a `WeightedClassifier` only.

    Returns
    -------
    skorch.NeuralNet
        The same net, fitted.

    Raises
    ------
    ValueError
        If weights are given to a net that cannot use them.
    """
    weighted = isinstance(net, WeightedClassifier)
    if sample_weight is not None and not weighted:
        raise ValueError(
            "`sample_weight` needs a net that can use it; pass estimator=None or derive the "
            "net from skuq.models.WeightedClassifier."
        )
    data: Any = np.array(X)  # pandas hands out read-only arrays, which torch warns about
    if weighted:
        weight = np.ones(len(X)) if sample_weight is None else sample_weight
        data = {"X": data, "sample_weight": weight}
    with seeded(seed):
        return net.fit(data, y)
