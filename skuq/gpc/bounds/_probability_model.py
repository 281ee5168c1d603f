"""Class probabilities of one posterior: values, gradients and proven minima over regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc.bounds._balls import Ball
from skuq.gpc.bounds._branch_and_bound import Problems, Search, objective_at
from skuq.gpc.bounds._expansion import Expander
from skuq.gpc.bounds._latent_model import LatentModel
from skuq.gpc.bounds._links import Link, LogitLink, ProbitLink
from skuq.gpc.bounds._many_classes import ManyClassesLink
from skuq.gpc.bounds._neighbourhoods import Neighbourhoods
from skuq.gpc.bounds._pairs import LEAST
from skuq.gpc.bounds._softmax_link import SoftmaxLink
from skuq.gpc.inference._posterior import Posterior
from skuq.gpc.inference._predictive import class_probabilities
from skuq.gpc.inference._quadrature import MAX_CLASSES

_ENTRIES = 6_000_000  # numbers in the largest temporary array


class Limits(NamedTuple):
    """Limits at which a search ends.

    Attributes
    ----------
    tol : float
        Wanted width of each bound, in probability.
    max_regions : int
        Boxes bounded for each minimisation at most.
    max_time : float
        Seconds for all minimisations together at most.
    """

    tol: float = 0.01
    max_regions: int = 1_000_000
    max_time: float = np.inf


class Minima(NamedTuple):
    """Bounds of minima over regions, all of shape (n, k) for k objectives.

    Attributes
    ----------
    lower, upper : ndarray, float64
        Proven bounds.
    point : ndarray of shape (n, k, n_features)
        Points of the regions at which the objective is no larger than `upper`.
    n_regions : ndarray, int64
        Boxes that were bounded.
    converged : ndarray, bool
        Whether the search ended by itself and not at a limit.
    """

    lower: FloatArray
    upper: FloatArray
    point: FloatArray
    n_regions: NDArray[np.int64]
    converged: NDArray[np.bool_]


@dataclass(frozen=True)
class ProbabilityModel:
    """Class probabilities of a posterior, with proven minima over regions.

    Attributes
    ----------
    posterior : Posterior
        Of the latent functions.
    likelihood : {"probit", "logit", "softmax"}
        Turns latent functions into probabilities.
    device : str
        Where to compute.
    """

    posterior: Posterior
    likelihood: str
    device: str

    @cached_property
    def latent(self) -> LatentModel:
        """The latent posterior as tensors; prepared once."""
        return LatentModel.from_posterior(self.posterior, torch.device(self.device))

    def _require_jointly(self) -> None:
        if not self.jointly:
            raise ValueError(
                f"Changes of probabilities and effects of features are bounded for at most "
                f"{MAX_CLASSES} classes, and this model has {self.n_classes}. Ask whether the "
                "class can change, or fit one binary classifier for each question, for example "
                "one class against the rest."
            )

    @property
    def jointly(self) -> bool:
        """Whether any weighted sum of class probabilities can be bounded."""
        return len(self.posterior.weights) <= MAX_CLASSES

    def prepare(self) -> None:
        """Prepare once what every process needs."""
        _ = self.latent, self.link if self.jointly else self.many_classes_links

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return max(2, len(self.posterior.weights))

    @cached_property
    def link(self) -> Link:
        """The likelihood, averaged over the latent functions."""
        most_variance = self.latent.kernel.variance * (1 + self.latent.varsigma)
        if self.likelihood == "softmax":
            indefinite = self.latent.kernel.variance * self.latent.varsigma
            return SoftmaxLink(self.latent.n_latent, most_variance, indefinite)
        return (ProbitLink if self.likelihood == "probit" else LogitLink)(most_variance)

    @cached_property
    def many_classes_links(self) -> dict[str, ManyClassesLink]:
        """The values of one class beside more than two others, by kind."""
        variance, varsigma = self.latent.kernel.variance, self.latent.varsigma
        limits = variance * (1 + varsigma), variance * varsigma
        device = torch.device(self.device)
        return {
            kind: ManyClassesLink(kind, self.n_classes, *limits, device)
            for kind in ("margin", "smallest", "largest")
        }

    def probabilities(self, X: FloatArray) -> FloatArray:
        """Class probabilities at points, shape (n, n_classes)."""
        return class_probabilities(self.likelihood, *self.posterior.moments(X))

    def minima(
        self,
        regions: Neighbourhoods,
        objectives: FloatArray,
        limits: Limits,
        threshold: FloatArray | None = None,
        band: FloatArray | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Minima:
        """Minimise weighted sums of class probabilities over each region.

        Parameters
        ----------
        regions : Neighbourhoods
            Regions around n points.
        objectives : ndarray of shape (n, k, n_classes)
            Weights of the classes in the k sums of each point.
        limits : Limits
            When to stop.
        threshold, band : ndarray of shape (n, k), default=None
            A search ends as soon as its minimum is known to be above or below the threshold
            by more than the band.
        progress : callable, default=None
            Called with the numbers of minimisations that have ended.

        Returns
        -------
        Minima
        """
        self._require_jointly()
        return self._search(self.link, regions, objectives, limits, threshold, band, progress)

    def minima_of_class(
        self,
        regions: Neighbourhoods,
        labels: NDArray[np.intp],
        kind: str,
        limits: Limits,
        threshold: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Minima:
        """Minimise a value of one class beside all others over each region.

        Parameters
        ----------
        regions, limits, progress
            As for `minima`.
        labels : ndarray of shape (n,)
            The class of each point.
        kind : {"margin", "smallest", "largest"}
            As of `ManyClassesLink`.
        threshold : float, default=None
            A search ends as soon as its minimum is known to be above or below.

        Returns
        -------
        Minima
            Of shape (n, 1).
        """
        objectives = LEAST * np.eye(self.n_classes)[labels][:, None]
        at = None if threshold is None else np.full((len(labels), 1), threshold)
        band = None if at is None else 0 * at
        link = self.many_classes_links[kind]
        return self._search(link, regions, objectives, limits, at, band, progress)

    def _search(
        self,
        link: Link,
        regions: Neighbourhoods,
        objectives: FloatArray,
        limits: Limits,
        threshold: FloatArray | None,
        band: FloatArray | None,
        progress: Callable[[int], object] | None,
    ) -> Minima:
        n, k, _ = objectives.shape
        base = self._tensor(regions.points)
        free = torch.as_tensor(regions.free, device=base.device)
        owner = torch.arange(n, device=base.device).repeat_interleave(k)
        start = base[:, free][owner]
        ball = None
        if regions.radius is not None and regions.norm is not None:
            ball = Ball(start, self._tensor(regions.radius)[owner], regions.norm)
        weights = self._tensor(objectives.reshape(n * k, -1))
        problems = Problems(
            owner=owner,
            objective=weights,
            lower=self._tensor(regions.lower)[:, free][owner],
            upper=self._tensor(regions.upper)[:, free][owner],
            start=start,
            ball=ball,
            threshold=None if threshold is None else self._tensor(threshold.reshape(-1)),
            band=None if band is None else self._tensor(band.reshape(-1)),
        )
        search = Search(Expander(self.latent, base, free), link, problems, **limits._asdict())
        solutions = search.run(progress)
        points = base[owner].index_copy(1, free, solutions.point)
        parts = (*solutions[:2], points, *solutions[3:])
        return Minima(*(part.cpu().numpy().reshape(n, k, *part.shape[1:]) for part in parts))

    def gradients(self, X: FloatArray, objective: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of class probabilities (n,), rounded up, and gradients (n, n_features)."""
        return self._gradients(self.link, X, objective)

    def attackable(self, X: FloatArray, labels: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """What an attack on a class lowers (n,), and its gradient (n, n_features).

        The probability of the class, or beyond three classes its margin.
        """
        if self.jointly:
            return self.gradients(X, np.eye(self.n_classes)[labels])
        objective = LEAST * np.eye(self.n_classes)[labels]
        return self._gradients(self.many_classes_links["margin"], X, objective)

    def _gradients(
        self, link: Link, X: FloatArray, objective: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        base = self._tensor(X)
        everything = torch.arange(base.shape[1], device=base.device)
        rows = torch.arange(len(base), device=base.device)
        values, gradients = [], []
        for part in torch.split(rows, max(1, _ENTRIES // self.posterior.inputs.size)):
            evaluation = Expander(self.latent, base[part], everything).evaluate(
                base[part], torch.arange(len(part), device=base.device)
            )
            value, gradient = objective_at(link, self._tensor(objective)[part], evaluation)
            values.append(value)
            gradients.append(gradient)
        return torch.cat(values).cpu().numpy(), torch.cat(gradients).cpu().numpy()

    def _tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float64, device=self.device)
