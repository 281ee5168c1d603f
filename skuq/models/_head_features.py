"""Features on which the last step of a model decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.models._model import Model

if TYPE_CHECKING:
    import torch


def head_features(
    model: Model, inputs: Any, device: torch.device | str = "cpu"
) -> NDArray[np.floating[Any]] | None:
    """Compute the features on which the last step of a model decides.

    Parameters
    ----------
    model : Model
        What `resolve` or `adopt` returned.
    inputs : Tensor, array or DataFrame of shape (n_samples, ...)
        Preprocessed inputs, as ``model.inputs`` returns them.
    device : torch.device or str, default="cpu"
        Where to compute those of a network.

    Returns
    -------
    ndarray of shape (n_samples, n_features), float32 or float64, or None
        Of a network, what enters its last layer with weights, which are the inputs of a linear
        model, in the number type of the network. Of other learners the inputs, after the
        transformers of a pipeline and with NaN as it is. None if these are no numbers, and of a
        model of nodes.

    Examples
    --------
    >>> from torch import nn
    >>> from skuq.models import adopt
    >>> model = adopt(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> head_features(model, model.inputs([[0.0, 1.0, 2.0]])).shape
    (1, 8)
    """
    if model.at_once:
        return None
    if model.network is None:
        return _as_numbers(inputs)
    from skuq.models._network_model import NetworkModel
    from skuq.networks import LayerInput, evaluate, on_device

    assert isinstance(model, NetworkModel)
    device = model.resolved(device)
    network = model.on(device)
    layer = LayerInput.of_last_layer(network, on_device(inputs[:2], device))
    features: NDArray[np.floating[Any]] = evaluate(layer, inputs, device=device).flatten(1).numpy()
    return features


def _as_numbers(inputs: Any) -> FloatArray | None:
    """Inputs of a learner as one array; None if some are no numbers."""
    if isinstance(inputs, pd.DataFrame):
        if not all(pd.api.types.is_numeric_dtype(dtype) for dtype in inputs.dtypes):
            return None
        return inputs.to_numpy(np.float64, na_value=np.nan)
    array = np.asarray(inputs)
    return array.astype(np.float64) if array.ndim == 2 and array.dtype.kind in "biuf" else None
