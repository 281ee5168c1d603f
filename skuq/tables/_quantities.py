"""Predictive distributions of a regression, one for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skuq.base import FloatArray, predict_uncertainty
from skuq.calibration import conformal_limit
from skuq.residuals import (
    LEVELS,
    RowNoise,
    central_interval,
    interval_scores,
    mean_and_variance,
    stretched,
    widened,
)
from skuq.stored import stored
from skuq.tables._target_scale import TargetScale

_MEDIAN = int(np.flatnonzero(LEVELS == 0.5)[0])


class Forecast(NamedTuple):
    """Predictions of a batch of rows."""

    frame: pd.DataFrame  # prediction, parts of the uncertainty, and std
    quantiles: FloatArray  # at `LEVELS`, (n_rows, n_levels), in units of the target
    disagreement: FloatArray  # epistemic standard deviation, on the scale of training


@stored("tables.quantities")
@dataclass(frozen=True, eq=False)
class Quantities:
    """Distributions of the target from the outputs of a fitted regressor.

    Attributes
    ----------
    scale : TargetScale
        Scale on which the regressor was trained.
    noise : RowNoise or None
        Distribution of the residuals, learnt from held-out rows; None if the regressor itself
        predicts quantiles.
    """

    scale: TargetScale
    noise: RowNoise | None = None

    @classmethod
    def of_held_out(
        cls, estimator: Any, inputs: Any, y: FloatArray, scale: TargetScale, seed: int
    ) -> Quantities:
        """Learn the residuals, on held-out rows, of a regressor that does not predict quantiles."""
        predicted = np.asarray(estimator.predict(inputs), np.float64)
        work: dict[str, Any] = {"seed": seed, "n_jobs": None}
        weight = np.ones(len(y))
        return cls(scale, RowNoise.fit(inputs, predicted, y - predicted, weight, **work))

    def predict(self, estimator: Any, inputs: Any, *, held_out: bool = False) -> Forecast:
        """Predict rows; `held_out` rows get out-of-bag noise, as the noise was learnt from them."""
        predicted = np.asarray(estimator.predict(inputs), np.float64)
        own = None
        if hasattr(estimator, "predict_model_std"):
            std = estimator.predict_model_std(inputs)
        else:
            own = predict_uncertainty(estimator, inputs)
            # The epistemic uncertainty of a regressor with quantiles is a variance in squared units
            # of the target. The unit for other regressors is unknown.
            std = np.sqrt(own.epistemic) if self.noise is None else np.zeros(len(predicted))
        noise = self._noise_quantiles(estimator, inputs, predicted, held_out)
        together = widened(noise, noise[:, _MEDIAN], LEVELS, std)
        quantiles = self.scale.inverse(together)
        if self.scale.power != 1:
            predicted = mean_and_variance(quantiles, LEVELS)[0]
        elif self.noise is None:
            predicted = self.scale.inverse(predicted)
        parts: dict[str, Any] = {"prediction": predicted}
        if own is not None and self.noise is not None:
            parts |= {"total": own.total, "aleatoric": own.aleatoric, "epistemic": own.epistemic}
            parts["std"] = np.sqrt(mean_and_variance(quantiles, LEVELS)[1])
            std = own.part_or_total("epistemic")
        else:
            aleatoric = mean_and_variance(self.scale.inverse(noise), LEVELS)[1]
            epistemic = (self.scale.slope(predicted) * std) ** 2
            parts |= {"total": aleatoric + epistemic, "aleatoric": aleatoric}
            parts |= {"epistemic": epistemic, "std": np.sqrt(aleatoric + epistemic)}
        return Forecast(pd.DataFrame(parts), quantiles, std)

    def _noise_quantiles(
        self, estimator: Any, inputs: Any, predicted: FloatArray, held_out: bool
    ) -> FloatArray:
        """Quantiles of the target given the noise alone; (n_rows, n_levels)."""
        if self.noise is None:
            alone = {"model_std": np.zeros(len(predicted))}
            options = alone if hasattr(estimator, "predict_model_std") else {}
            quantiles: FloatArray = estimator.predict_quantiles(
                inputs, _levels(estimator), **options
            )
            return quantiles
        about = self.noise.quantiles(inputs, predicted, LEVELS)
        if held_out:
            forest = self.noise.forest
            about[forest.rows] = forest.out_of_bag_quantiles(LEVELS)
        return predicted[:, None] + about

    def interval(
        self, quantiles: FloatArray, coverage: float, limit: float
    ) -> tuple[FloatArray, FloatArray]:
        """Lower and upper endpoints of intervals, clipped to possible values; (n_rows,) each."""
        ends = stretched(*central_interval(quantiles, LEVELS, coverage), limit)
        return self.scale.possible(*ends)

    def limit(self, y: FloatArray, quantiles: FloatArray, coverage: float) -> float:
        """Conformal limit, which the score of a new row exceeds with probability 1 - coverage."""
        lower, upper = central_interval(quantiles, LEVELS, coverage)
        return conformal_limit(interval_scores(y, lower, upper), coverage)


def _levels(estimator: Any) -> FloatArray:
    """Quantile levels, clipped to the range that the estimator was trained on."""
    known = getattr(estimator, "quantile_levels_", LEVELS)
    return np.clip(LEVELS, known[0], known[-1])
