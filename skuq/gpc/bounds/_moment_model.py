"""Proven bounds on mean and standard deviation of a posterior over regions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.bounds._expansion import Expansion
from skuq.gpc.bounds._latent_model import UNIT
from skuq.gpc.bounds._links import Minimum, Outputs, Slopes
from skuq.gpc.bounds._probability_model import RegionModel
from skuq.gpc.bounds._regions import box_minimum
from skuq.gpc.inference._posterior import Posterior

_ROUNDING = 4 * UNIT  # bound on the relative rounding error of one sum and one square root
_SMALL = 1e-16  # variances below this, relative to the largest, are rounding errors
_WIDER = 1 + 1e-9  # safety factor on global bounds, which need not be tight


class MomentLink:
    """Link for a multiple of the mean, or of the standard deviation including noise."""

    # An objective is (by_mean, by_deviation, least), shape (b, 3): the two factors, one of which is
    # 0, and a lower bound on the objective over all inputs.

    def __init__(self, most_variance: float, noise: float):
        self.most_variance, self.noise = most_variance, noise

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        by_mean, by_deviation = objective[:, 0], objective[:, 1]
        variance = covariance[:, 0].clamp(min=0) + self.noise
        # The square root is not differentiable at 0; variances near 0 are therefore rounded up.
        least = _SMALL * self.most_variance
        inner = variance.clamp(min=least).sqrt()
        rounded = torch.where((by_deviation > 0) | (variance > least), inner, 0.0)
        value = by_mean * mean[:, 0] + by_deviation * rounded
        # An error e of the variance v changes the root by at most e / sqrt(v).
        slope = by_deviation / inner
        return Outputs(value, _ROUNDING * value.abs(), by_mean[:, None], slope[:, None])

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        by_mean, by_deviation = objective[:, :1], objective[:, 1:2]
        # Standard deviation and variance attain their extremes at the same points.
        sign = by_deviation.sign()
        mean = expansion.mean.combine(by_mean[..., None])
        moments = mean.plus(expansion.covariance.combine(sign[..., None]))
        hessian, rest = moments.hessian[:, 0], moments.rest[:, 0]
        least, point = box_minimum(
            moments.value[:, 0], moments.gradient[:, 0], hessian, moments.ball
        )
        bound = least - rest
        variance = (sign[:, 0] * bound).clamp(0, self.most_variance)
        deviation = by_deviation[:, 0] * (variance + self.noise).sqrt()
        deviation = deviation - _ROUNDING * deviation.abs()
        bound = torch.where(by_mean[:, 0] == 0, deviation, bound)
        nothing = torch.zeros_like(by_mean)
        slopes = Slopes(by_mean, nothing, sign, nothing)
        bound = torch.maximum(bound, objective[:, 2])
        return Minimum(bound, point, hessian.abs().sum(-1), rest, slopes)


@dataclass(frozen=True)
class MomentModel(RegionModel):
    """Model that bounds mean and standard deviation of a posterior over regions."""

    posterior: Posterior  # of one latent function
    noise: float  # noise variance, added to the variance of the latent function
    device: str

    def prepare(self) -> None:
        """Compute cached tensors before the model is copied to other processes."""
        _ = self.latent, self.link

    @cached_property
    def link(self) -> MomentLink:
        """Link for means and standard deviations."""
        return MomentLink(self._most_variance, self.noise)

    @property
    def _most_variance(self) -> float:
        return self.latent.kernel.variance * (1 + self.latent.varsigma)

    def of_mean(self, scale: FloatArray) -> FloatArray:
        """Objectives for the smallest and the largest mean, in units of `scale` (n,): (n, 2, 3)."""
        size = float(self.latent.norms[0]) * self.latent.kernel.variance**0.5
        rows = np.array([[1.0, 0.0, -size * _WIDER], [-1.0, 0.0, -size * _WIDER]])
        return rows / scale[:, None, None]

    def of_deviation(self, n: int) -> FloatArray:
        """Objectives for the smallest and the largest standard deviation: (n, 2, 3)."""
        size = (self._most_variance + self.noise) ** 0.5
        rows = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, -size * _WIDER]])
        return np.broadcast_to(rows, (n, 2, 3))
