"""Training data as tensors, and mini-batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class TrainingSet(NamedTuple):
    """Training data on which the penalty is computed.

    Attributes
    ----------
    X : Tensor of shape (n_samples, ...)
        Inputs of the searched module.
    y : Tensor of shape (n_samples,)
        Class codes (int64), or targets of a regression.
    weight : Tensor of shape (n_samples,), float64
        Sample weights, all positive.
    reference_loss : Tensor of shape (n_samples,), float64
        Loss of the reference model on each sample, in nats.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    reference_loss: Tensor


def training_batches(
    n_samples: int, batch_size: int, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw the mini-batches of the penalty: shuffled epochs, or all samples if they fit.

    Parameters
    ----------
    n_samples, batch_size, n_batches : int
        Size of the training set, of a batch, and how many batches are wanted.
    generator : torch.Generator
        Source of randomness.

    Yields
    ------
    Tensor of shape (min(batch_size, n_samples),), int64
        Row numbers.
    """
    if n_samples <= batch_size:
        for _ in range(n_batches):
            yield torch.arange(n_samples)
        return
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(n_batches):
        if len(order) < batch_size:
            order = torch.randperm(n_samples, generator=generator)
        batch, order = order[:batch_size], order[batch_size:]
        yield batch
