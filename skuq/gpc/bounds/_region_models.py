"""Models that bound minima of probabilities, means and standard deviations over regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.bounds._branch_and_bound import Problems, Search, objective_at
from skuq.gpc.bounds._latent_bounds import Expander, Expansion
from skuq.gpc.bounds._latent_model import UNIT, LatentModel
from skuq.gpc.bounds._links import Link, LogitLink, Minimum, Outputs, ProbitLink, Slopes
from skuq.gpc.bounds._many_classes import LEAST, ManyClassesLink
from skuq.gpc.bounds._regions import Region, box_minimum
from skuq.gpc.bounds._softmax_link import SoftmaxLink
from skuq.gpc.inference._likelihoods import MAX_CLASSES
from skuq.gpc.inference._posterior import Posterior, class_probabilities

_ENTRIES = 6_000_000  # maximum number of entries in a temporary array
_ROUNDING = 4 * UNIT  # bound on the relative rounding error of the square root of a sum
_SMALL = 1e-16  # variances below this fraction of the largest variance are rounding errors
_WIDER = 1 + 1e-9  # safety factor for rounding in bounds over all inputs


class Limits(NamedTuple):
    """Stopping criteria of a search, and a function to which it reports progress."""

    tol: float = 0.01  # a minimisation stops if lower and upper bound differ by at most this
    max_regions: int = 1_000_000  # maximum number of boxes per minimisation
    max_time: float = np.inf  # maximum time for all minimisations together, in seconds
    # Called with the number of minimisations, or of points, that finished since the last call.
    progress: Callable[[int], object] | None = None

    def per_point(self, count: int) -> Limits:
        """Return limits that report a finished point after every `count` minimisations."""
        progress = self.progress
        if progress is None:
            return self
        done = [0, 0]

        def report(minimisations: int) -> None:
            done[0] += minimisations
            progress(done[0] // count - done[1])
            done[1] = done[0] // count

        return self._replace(progress=report)


class Minima(NamedTuple):
    lower: FloatArray  # proven lower bounds
    upper: FloatArray  # upper bounds on the minima
    point: FloatArray  # (n, k, n_features), points at which the objective is at most `upper`
    n_regions: NDArray[np.int64]  # number of boxes for which a bound was computed
    converged: NDArray[np.bool_]  # False if the search stopped at a maximum of `Limits`


class RegionModel(ABC):
    """Base class of models that compute and bound predictions of a posterior."""

    posterior: Posterior  # of the latent functions
    device: str

    @cached_property
    def latent(self) -> LatentModel:
        return LatentModel.from_posterior(self.posterior, torch.device(self.device))

    @cached_property
    @abstractmethod
    def link(self) -> Link:
        """Link that computes and bounds predictions from latent moments."""

    def prepare(self) -> None:
        """Compute cached tensors before the model is copied to other processes."""
        _ = self.latent, self.link

    def minima(
        self,
        regions: Region,
        objectives: FloatArray,
        limits: Limits,
        threshold: FloatArray | None = None,
        band: FloatArray | None = None,
        link: Link | None = None,
    ) -> Minima:
        """Minimise k objectives over each region.

        `objectives` (n, k, n_outputs) has the form that the link expects, such as weights. With
        `threshold` and `band` (n, k), a minimisation also stops once its minimum is proven to
        differ from the threshold by more than the band. `link` defaults to `self.link`.
        """
        n, k, _ = objectives.shape
        link = self.link if link is None else link
        free, owner = regions.free, torch.arange(n, device="cpu").repeat_interleave(k)
        objective, region = _tensor(objectives).flatten(0, 1), regions.of_features(free)[owner]
        decision = (None if part is None else _tensor(part).flatten() for part in (threshold, band))
        problems = Problems(owner, objective, region, *decision)
        expander = Expander(self.latent, regions.center.to(self.device), free)
        found = Search(expander, link, problems, *limits).run()
        points = regions.center[owner].index_copy(1, free, found.point)
        parts = found._replace(point=points)
        return Minima(*(part.numpy().reshape(n, k, *part.shape[1:]) for part in parts))

    def values(self, points: Tensor, objective: FloatArray) -> FloatArray:
        """Return upper bounds on the objective at each point, (n,)."""
        return self._evaluate(self.link, points, objective)[0].cpu().numpy()

    def _evaluate(self, link: Link, points: Tensor, objective: FloatArray) -> tuple[Tensor, Tensor]:
        points, weights = points.to(self.device), _tensor(objective, self.device)
        everything = torch.arange(points.shape[1], device="cpu")
        size = max(1, _ENTRIES // self.posterior.inputs.size)
        parts = []
        for rows in torch.split(torch.arange(len(points), device=self.device), size):
            base, owner = points[rows], torch.arange(len(rows), device=self.device)
            evaluation = Expander(self.latent, base, everything).evaluate(base, owner)
            parts.append(objective_at(link, weights[rows], evaluation))
        values, gradients = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(gradients)


@dataclass(frozen=True)
class ProbabilityModel(RegionModel):
    posterior: Posterior  # of the latent functions
    likelihood: str
    device: str

    @property
    def jointly(self) -> bool:
        """Whether arbitrary weighted sums of class probabilities can be bounded."""
        return len(self.posterior.weights) <= MAX_CLASSES

    def prepare(self) -> None:
        _ = self.latent, self.link if self.jointly else self.many_classes_links

    @property
    def n_classes(self) -> int:
        return max(2, len(self.posterior.weights))

    @cached_property
    def link(self) -> Link:
        if not self.jointly:
            raise ValueError(
                f"`delta` and `explain` support at most {MAX_CLASSES} classes, and this model has "
                f"{self.n_classes}. Use `certify` without `delta`, or fit binary classifiers, for "
                "example one class against the rest."
            )
        most_variance = self.latent.kernel.variance * (1 + self.latent.varsigma)
        if self.likelihood == "softmax":
            indefinite = self.latent.kernel.variance * self.latent.varsigma
            return SoftmaxLink(self.latent.n_latent, most_variance, indefinite)
        return (ProbitLink if self.likelihood == "probit" else LogitLink)(most_variance)

    @cached_property
    def many_classes_links(self) -> dict[str, ManyClassesLink]:
        """Links for more than three classes, by kind of objective."""
        variance, varsigma = self.latent.kernel.variance, self.latent.varsigma
        limits = variance * (1 + varsigma), variance * varsigma
        device = torch.device(self.device)
        return {
            kind: ManyClassesLink(kind, self.n_classes, *limits, device)
            for kind in ("margin", "smallest", "largest")
        }

    def probabilities(self, X: FloatArray) -> FloatArray:
        return class_probabilities(self.likelihood, *self.posterior.moments(X))

    def minima_of_class(
        self,
        regions: Region,
        labels: NDArray[np.intp],
        kind: str,
        limits: Limits,
        threshold: float | None = None,
    ) -> Minima:
        """Minimise an objective of one class over each region; `Pairs` lists the `kind`s."""
        at = None if threshold is None else np.full((len(labels), 1), threshold)
        band = None if at is None else 0 * at
        objectives = LEAST * np.eye(self.n_classes)[labels][:, None]
        return self.minima(regions, objectives, limits, at, band, self.many_classes_links[kind])

    def attackable(self, points: Tensor, labels: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
        """Return the value (n,) that an attack minimises, and its gradients (n, n_features)."""
        # The value is the label's probability, or, for more than three classes, its margin.
        units = np.eye(self.n_classes)[labels]
        if self.jointly:
            return self._evaluate(self.link, points, units)
        return self._evaluate(self.many_classes_links["margin"], points, LEAST * units)


class MomentLink:
    """Link for a multiple of the mean, or of the standard deviation including noise."""

    # A row of the objectives (b, 3) holds the factor of the mean, the factor of the standard
    # deviation, and a lower bound on the objective for all inputs. One of the factors is 0.

    def __init__(self, most_variance: float, noise: float):
        self.most_variance, self.noise = most_variance, noise

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        by_mean, by_deviation = objective[:, 0], objective[:, 1]
        variance = covariance[:, 0].clamp(min=0) + self.noise
        # The square root is not differentiable at 0, so variances near 0 are raised to `least`.
        least = _SMALL * self.most_variance
        inner = variance.clamp(min=least).sqrt()
        rounded = torch.where((by_deviation > 0) | (variance > least), inner, 0.0)
        value = by_mean * mean[:, 0] + by_deviation * rounded
        # An error e of the variance v changes the standard deviation by at most e / sqrt(v).
        slope = by_deviation / inner
        return Outputs(value, _ROUNDING * value.abs(), by_mean[:, None], slope[:, None])

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        by_mean, by_deviation = objective[:, :1], objective[:, 1:2]
        # Bound the variance, which has its extremes where the standard deviation has its extremes.
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
    posterior: Posterior  # of one latent function
    noise: float  # noise variance, added to the variance of the latent function
    device: str

    @cached_property
    def link(self) -> MomentLink:
        return MomentLink(self._most_variance, self.noise)

    @property
    def _most_variance(self) -> float:
        return self.latent.kernel.variance * (1 + self.latent.varsigma)

    def of_mean(self, scale: FloatArray) -> FloatArray:
        """Return objectives (n, 2, 3) for the smallest and the largest mean, divided by `scale`."""
        size = float(self.latent.norms[0]) * self.latent.kernel.variance**0.5
        rows = np.array([[1.0, 0.0, -size * _WIDER], [-1.0, 0.0, -size * _WIDER]])
        return rows / scale[:, None, None]

    def of_deviation(self, n: int) -> FloatArray:
        """Return objectives (n, 2, 3) for the smallest and the largest standard deviation."""
        size = (self._most_variance + self.noise) ** 0.5
        rows = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, -size * _WIDER]])
        return np.broadcast_to(rows, (n, 2, 3))


def _tensor(array: FloatArray, device: str = "cpu") -> Tensor:
    return torch.tensor(array, dtype=torch.float64, device=device)
