"""Training of a skorch net that the user brings, with weights where its class can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skuq.models._evaluate import input_error
from skuq.models._training import mean_weight_one, seeded

if TYPE_CHECKING:
    import skorch


def dtype_of(net: skorch.NeuralNet) -> type[np.floating[Any]]:
    """Type of the numbers that a net trains on, which its module tells if it exists already."""
    if not isinstance(net.module, nn.Module):
        return np.float32
    floating = [p.dtype for p in net.module.parameters() if p.is_floating_point()]
    return np.float64 if floating[:1] == [torch.float64] else np.float32


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
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Targets, as the net's criterion takes them.
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
        If weights are given to a net that cannot use them, or the net refuses the inputs.
    """
    from skuq.models._weighted_classifier import WeightedClassifier

    weighted = isinstance(net, WeightedClassifier)
    if sample_weight is not None and not weighted:
        raise ValueError(
            "`sample_weight` needs a net that can use it: pass estimator=None, a trained net in "
            "FrozenEstimator, or a classifier derived from skuq.models.WeightedClassifier."
        )
    data: Any = np.array(X)  # pandas hands out read-only arrays, which torch warns about
    if weighted:
        weight = np.ones(len(X)) if sample_weight is None else sample_weight
        data = {"X": data, "sample_weight": mean_weight_one(weight)}
    with seeded(seed):
        try:
            return net.fit(data, y)
        except RuntimeError as error:  # of torch
            if not net.initialized_:
                raise
            raise input_error(net.module_, np.shape(X), error) from error
