"""Models found on a pool, whatever learner they belong to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from skuq.base import FloatArray, IntArray


@dataclass(frozen=True)
class Found(ABC):
    """The models that searches on a pool found; they answer for any input.

    Attributes
    ----------
    sought : ndarray of shape (n_searches,), int64
        What each search asked for: the code of a class, or the direction, 1 or -1, of a
        displacement.
    excess_loss : ndarray of shape (n_searches, n_kept), float64
        Mean loss of each model above that of the reference model, in nats.
    standard_error : float
        Largest standard error of one of them, in nats: models whose losses differ by less
        explain the data equally well as far as the data can tell.
    held_out : bool
        Whether the losses are those of samples that none of these models has seen. The loss on
        its own training data does not compare a given model with others.
    """

    sought: IntArray
    excess_loss: FloatArray
    standard_error: float
    held_out: ClassVar[bool]

    @abstractmethod
    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        """Predict with all models.

        Parameters
        ----------
        inputs : Tensor, array or DataFrame of shape (n_points, ...)
            Inputs as the model takes them.
        device : torch.device or str, default="cpu"
            Where networks compute.

        Returns
        -------
        Tensor of shape (n_points, n_searches, n_kept, n_outputs), float64
            Logits, log-probabilities or predictions, on the CPU.
        """

    def centre(self, inputs: Any) -> Tensor | None:
        """Outputs of the model that the others are variants of; None if it is the given one."""
        return None
