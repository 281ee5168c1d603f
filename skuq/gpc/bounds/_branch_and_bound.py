"""Branch and bound over boxes, which bounds the minima of predictions over regions.

Implements Algorithm 1 of Blaas et al. (2020), for many minimisations at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_bounds import Evaluation, Expander, Expansion
from skuq.gpc.bounds._links import Link, Slopes
from skuq.gpc.bounds._regions import Region

_ENTRIES = 6_000_000  # maximum number of entries in a temporary array
_BATCH = 64  # maximum number of boxes that are bounded together; more would not be faster
_PER_ROUND = 32  # maximum boxes per problem and round; with 1, the search would be best-first
_NARROW = 1e-13  # a box is not split if width / |coordinate| is at most this in every feature
_STEPS = 6  # number of gradient descent steps before the first bound


@dataclass(frozen=True)
class Problems:
    """Problems, each to minimise a weighted sum of outputs, such as probabilities, in a region."""

    owner: Tensor  # (q,), index of the point around which the region of the problem lies
    objective: Tensor  # (q, n_outputs), weights of the outputs
    region: Region  # one region per problem, with only the features that vary
    # (q,): a problem is decided once its minimum is proven to differ from the threshold by more
    # than `band`. If the minimum is below the threshold, all problems of the same point are
    # decided, because one counterexample suffices for a point.
    threshold: Tensor | None = None
    band: Tensor | None = None  # (q,)

    def to(self, device: torch.device) -> Problems:
        owner, objective = self.owner.to(device), self.objective.to(device)
        return Problems(owner, objective, self.region.to(device))


class Solutions(NamedTuple):
    lower: Tensor  # (q,), proven lower bound on the minimum
    upper: Tensor  # (q,), upper bound on the minimum
    point: Tensor  # (q, f), point at which the objective is at most `upper`
    n_regions: Tensor  # (q,), number of boxes for which a bound was computed
    converged: Tensor  # (q,), whether bounds differ by at most `tol`, or exclude the threshold


class _Pool(NamedTuple):
    lower: Tensor  # lower limits of boxes
    upper: Tensor  # upper limits of boxes
    problem: Tensor  # index of the problem of each box
    bound: Tensor  # lower bound on the objective over each box

    def select(self, rows: Tensor) -> _Pool:
        return _Pool(*(part[rows] for part in self))

    def join(self, other: _Pool) -> _Pool:
        return _Pool(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


class Search:
    """Branch and bound for many problems at once; each round bounds boxes of all open problems.

    The state of problems and boxes is on the CPU, so boxes are selected without waiting for the
    device. Bounds of boxes and values at points are computed on the device of the posterior.
    """

    def __init__(
        self,
        expander: Expander,
        link: Link,
        problems: Problems,
        tol: float,
        max_regions: int,
        max_time: float,
        progress: Callable[[int], object] | None = None,
    ):
        self.expander, self.link, self.problems = expander, link, problems
        self.tol, self.max_regions, self.max_time = tol, max_regions, max_time
        self.progress = progress
        self.device = expander.model.inputs.device
        self.device_problems = problems.to(self.device)
        count = len(problems.owner)
        region = problems.region
        start = region.center.new_full
        self.best = start((count,), math.inf)
        self.point = region.center.clone()
        self.floor = start((count,), math.inf)  # smallest lower bound of discarded boxes
        self.n_regions = torch.zeros_like(problems.owner)
        self.active = torch.ones_like(problems.owner, dtype=torch.bool)
        everything = torch.arange(count, device="cpu")
        worst = problems.objective.amin(-1)
        self.pool = _Pool(region.lower, region.upper, everything, worst.clone())
        self._shrink()

    def run(self) -> Solutions:
        deadline = time.monotonic() + self.max_time
        self._descend(deadline)
        lower = self._lower()
        self.active &= ~self._decided(lower) & ~self._refuted()
        self.pool = self.pool.select(self.active[self.pool.problem])
        while bool(self.active.any()):
            before = int(self.active.sum())
            self._round(deadline)
            lower = torch.where(self.active, self._lower(), lower)
            left = torch.bincount(self.pool.problem, minlength=len(self.active)) > 0
            self.active &= left & ~self._decided(lower) & (self.n_regions < self.max_regions)
            self.active &= ~self._refuted()
            self.pool = self.pool.select(self.active[self.pool.problem])
            if self.progress is not None:
                self.progress(before - int(self.active.sum()))
            if time.monotonic() >= deadline:
                break
        lower = torch.minimum(lower, self.best)
        return Solutions(lower, self.best, self.point, self.n_regions, self._decided(lower))

    def _decided(self, lower: Tensor) -> Tensor:
        decided = self.best - lower <= self.tol
        threshold, band = self.problems.threshold, self.problems.band
        if threshold is not None and band is not None:
            decided = decided | (lower > threshold + band) | (self.best < threshold - band)
        return decided

    def _refuted(self) -> Tensor:
        threshold, band, owner = self.problems.threshold, self.problems.band, self.problems.owner
        if threshold is None or band is None:
            return torch.zeros_like(self.active)
        points = torch.zeros(int(owner.max()) + 1, dtype=torch.bool, device="cpu")
        points[owner[self.best < threshold - band]] = True
        return points[owner]

    def _lower(self) -> Tensor:
        """Return each problem's smallest lower bound over all its boxes, also discarded boxes."""
        return self.floor.scatter_reduce(0, self.pool.problem, self.pool.bound, "amin")

    def _round(self, deadline: float) -> None:
        # Select boxes for each problem separately: the result for a point must not depend on the
        # other points.
        ranks = _ranks(self.pool)
        left = (self.max_regions - self.n_regions)[self.pool.problem]
        chosen = torch.nonzero(ranks < left.clamp(max=_PER_ROUND))[:, 0]
        chosen = chosen[torch.argsort(ranks[chosen], stable=True)]
        rest = torch.ones_like(ranks, dtype=torch.bool)
        rest[chosen] = False
        boxes, first = self.pool.select(chosen), ranks[chosen] == 0
        self.pool = self.pool.select(rest)
        parts = list(torch.split(torch.arange(len(chosen), device="cpu"), self._batch_size()))
        for index, part in enumerate(parts):
            if index and time.monotonic() >= deadline:
                self.pool = self.pool.join(boxes.select(torch.cat(parts[index:])))
                return
            self._refine(boxes.select(part), first[part])

    def _refine(self, boxes: _Pool, first: Tensor) -> None:
        """Bound and split boxes; `first` marks each problem's box with the smallest bound."""
        self.n_regions += torch.bincount(boxes.problem, minlength=len(self.n_regions))
        problems, index = self.device_problems, boxes.problem.to(self.device)
        lower, upper, best = self._to_device(boxes.lower, boxes.upper, self.best[boxes.problem])
        region = problems.region.within(lower, upper, index)
        expansion = self.expander.expand(region, problems.owner[index])
        minimum = self.link.minimum(problems.objective[index], expansion, best)
        bound, point = _to_cpu(minimum.bound, minimum.point)
        known = bound.nan_to_num(nan=-math.inf)  # a bound is NaN after an overflow
        boxes = boxes._replace(bound=torch.maximum(boxes.bound, known))
        rows = torch.nonzero(first)[:, 0]
        if len(rows):
            likely, trial = point[rows], self._region(boxes.select(rows))
            centers, half_widths, _ = trial.coordinates()
            trial_points = trial.project(centers + half_widths * likely)
            self._update_best(trial_points, boxes.problem[rows])
        boxes, kept = self._discard(boxes)
        if len(kept):
            kept = kept.to(self.device)
            region, expansion, minimum = region[kept], expansion.select(kept), minimum.select(kept)
            slope, radius = _monotonicity(minimum.slopes, expansion)
            shares = self.expander.shares(region.coordinates()[1])
            influence = minimum.curvature + minimum.rest[:, None] * shares
            self.pool = self.pool.join(self._split(boxes, *_to_cpu(slope, radius, influence)))
            self._shrink()

    def _to_device(self, *parts: Tensor) -> tuple[Tensor, ...]:
        if self.device.type == "cpu":
            return parts
        return _split_columns(_concatenated(parts).to(self.device), parts)

    def _region(self, boxes: _Pool) -> Region:
        return self.problems.region.within(boxes.lower, boxes.upper, boxes.problem)

    def _batch_size(self) -> int:
        model = self.expander.model
        features = max(1, self.problems.region.lower.shape[1])
        # Array entries per box: values of the kernel, or several Hessians if these have more.
        share = max(len(model.reduction) * len(model.inputs), 6 * features) * features
        return max(1, min(_BATCH, _ENTRIES // share))

    def _update_best(self, points: Tensor, problem: Tensor) -> Tensor:
        value, gradient = self.outputs(points, problem)
        better = value < self.best[problem]
        self.best[problem[better]] = value[better]
        self.point[problem[better]] = points[better]
        return gradient

    def outputs(self, points: Tensor, problem: Tensor) -> tuple[Tensor, Tensor]:
        model = self.expander.model
        size = max(1, _ENTRIES // (len(model.inputs) * max(1, points.shape[1])))
        parts = []
        for rows in torch.split(torch.arange(len(points), device="cpu"), size):
            index, (near,) = problem[rows].to(self.device), self._to_device(points[rows])
            evaluation = self.expander.evaluate(near, self.device_problems.owner[index])
            objective = self.device_problems.objective[index]
            parts.append(_to_cpu(*objective_at(self.link, objective, evaluation)))
        values, gradients = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(gradients)

    def _descend(self, deadline: float) -> None:
        # Problems whose starting point is already a counterexample are decided, and take no steps.
        problem = torch.arange(len(self.best), device="cpu")
        points = self.problems.region.center
        gradient = self._update_best(points, problem)
        least = self.problems.objective.amin(-1)
        for step in range(_STEPS):
            rows = torch.nonzero(~self._decided(least)[problem])[:, 0]
            if len(rows) == 0 or time.monotonic() >= deadline:
                return
            points, gradient, problem = points[rows], gradient[rows], problem[rows]
            region = self.problems.region[problem]
            points = points - region.steepest(gradient) * 0.6**step
            points = torch.clamp(points, region.lower, region.upper)
            gradient = self._update_best(region.project(points), problem)

    def _discard(self, boxes: _Pool) -> tuple[_Pool, Tensor]:
        best = self.best[boxes.problem]
        closed = boxes.bound >= best - self.tol
        threshold, band = self.problems.threshold, self.problems.band
        if threshold is not None and band is not None:
            closed |= boxes.bound > (threshold + band)[boxes.problem]
        scale = torch.maximum(boxes.lower.abs(), boxes.upper.abs())
        closed |= (boxes.upper - boxes.lower <= _NARROW * scale).all(-1)
        discarded = boxes.select(closed)
        self.floor = self.floor.scatter_reduce(0, discarded.problem, discarded.bound, "amin")
        kept = torch.nonzero(~closed)[:, 0]
        return boxes.select(kept), kept

    def _split(self, boxes: _Pool, slope: Tensor, radius: Tensor, influence: Tensor) -> _Pool:
        """Fix features in which the objective is monotone; bisect one of the other features."""
        # `slope` and `radius` (b, f) are centre and half-width of the range of each partial
        # derivative over the box, up to a positive factor. `influence` (b, f) is how much each
        # feature contributes to the slack of the bound. The feature with the largest influence is
        # bisected, unless fixing features removes more than half of the slack.
        region = self._region(boxes)
        # Fixing a feature restricts a box to one of its faces. If the ball does not contain the
        # box, this face may lie outside the ball, so no feature is fixed.
        whole_box = region.is_box()[:, None]
        up, down = whole_box & (slope > radius), whole_box & (slope < -radius)
        lower = torch.where(down, boxes.upper, boxes.lower)
        upper = torch.where(up, boxes.lower, boxes.upper)
        width = upper - lower
        remaining = torch.where(width > 0, influence, 0.0)
        whole = (remaining.sum(-1) < influence.sum(-1) / 2) | (width <= 0).all(-1)
        feature = torch.where(width > 0, influence + 1e-300, -1.0).argmax(-1, keepdim=True)
        middle = (lower + width / 2).gather(1, feature)
        ends = torch.where(whole[:, None], upper, upper.scatter(1, feature, middle))
        left = boxes._replace(lower=lower, upper=ends)
        right = boxes._replace(lower=lower.scatter(1, feature, middle), upper=upper)
        return left.join(right.select(torch.nonzero(~whole)[:, 0]))

    def _shrink(self) -> None:
        """Shrink each box to the bounding box of its part inside the ball; drop empty boxes."""
        if self.problems.region.radius is not None:
            region, kept = self._region(self.pool).shrink()
            pool = self.pool._replace(lower=region.lower, upper=region.upper)
            self.pool = pool.select(torch.nonzero(kept)[:, 0])


def _to_cpu(*parts: Tensor) -> tuple[Tensor, ...]:
    if parts[0].device.type == "cpu":
        return parts
    return _split_columns(_concatenated(parts).cpu(), parts)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def _split_columns(joined: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    widths = [math.prod(part.shape[1:]) for part in like]
    parts = zip(joined.split(widths, dim=1), like, strict=True)  # type: ignore[no-untyped-call]
    return tuple(part.reshape(old.shape) for part, old in parts)


def _monotonicity(slopes: Slopes, expansion: Expansion) -> tuple[Tensor, Tensor]:
    """Bound each partial derivative by centre and half-width, scaled like `slopes` (Eq. 26)."""
    total, spread = [], []
    for moments, center, radius in (
        (expansion.mean, slopes.mean, slopes.mean_radius),
        (expansion.covariance, slopes.covariance, slopes.covariance_radius),
    ):
        reach = moments.hessian.abs().sum(-1) + moments.gradient_rest
        total.append((center[..., None] * moments.gradient).sum(1))
        uncertain = center.abs()[..., None] * reach
        spread.append((uncertain + radius[..., None] * (moments.gradient.abs() + reach)).sum(1))
    return total[0] + total[1], (spread[0] + spread[1]) * (1 + 1e-9)


def _ranks(pool: _Pool) -> Tensor:
    by_bound = torch.argsort(pool.bound, stable=True)
    order = by_bound[torch.argsort(pool.problem[by_bound], stable=True)]
    problem = pool.problem[order]
    positions = torch.arange(len(problem), device="cpu")
    first = torch.ones_like(problem, dtype=torch.bool)
    first[1:] = problem[1:] != problem[:-1]
    starts = torch.cummax(torch.where(first, positions, 0), 0).values
    ranks = torch.empty_like(positions)
    ranks[order] = positions - starts
    return ranks


def objective_at(link: Link, objective: Tensor, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """Compute upper bounds (b,) on the objective at points, and its gradients (b, f)."""
    # The bound is the computed value plus its error. Errors of the moments change the value through
    # first derivatives, and through second derivatives, which are at most 1 for all likelihoods.
    outputs = link.evaluate(objective, evaluation.mean, evaluation.covariance)
    value = outputs.value + outputs.error
    gradient = torch.zeros_like(evaluation.mean_gradient[:, 0])
    moved = torch.zeros_like(value)
    for slope, error, by_feature in (
        (outputs.mean_slope, evaluation.mean_error, evaluation.mean_gradient),
        (outputs.covariance_slope, evaluation.covariance_error, evaluation.covariance_gradient),
    ):
        value = value + (slope.abs() * error).sum(-1)
        moved = moved + error.sum(-1)
        gradient = gradient + (slope[..., None] * by_feature).sum(1)
    return value + objective.abs().sum(-1) * moved**2, gradient
