"""Batches of training data by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import default_convert

if TYPE_CHECKING:
    from skorch.dataset import Dataset


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
