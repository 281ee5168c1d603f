"""A skorch classifier with sample weights; with skorch, so imported when it is asked for."""

from __future__ import annotations

from typing import Any

import skorch
from torch import Tensor

from skuq.models._training import weighted_mean


class WeightedClassifier(skorch.NeuralNetClassifier):
    """skorch classifier whose loss is the mean of losses times per-sample weights.

    `fit` takes ``{"X": array, "sample_weight": array}`` as its input, which is how skorch
    passes further per-sample data along. Weights should have mean 1; one of 2 then equals a sample
    given twice. The criterion must return one loss per sample
    (``criterion__reduction="none"``).
    """

    def get_loss(self, y_pred: Tensor, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        losses = super().get_loss(y_pred, y_true, X=X, **kwargs)
        weight = X["sample_weight"]
        if losses.shape != weight.shape:
            raise ValueError(
                "A weighted loss needs one loss per sample; set criterion__reduction='none'."
            )
        return weighted_mean(losses, weight)

    def infer(self, x: Any, **fit_params: Any) -> Tensor:
        outputs: Tensor = super().infer(x["X"] if isinstance(x, dict) else x, **fit_params)
        return outputs
