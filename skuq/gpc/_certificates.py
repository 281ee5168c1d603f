"""Functions that compute bounds, certificates, attacks and feature effects; their result types."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc.bounds._latent_model import UNIT
from skuq.gpc.bounds._region_models import (
    Limits,
    Minima,
    MomentModel,
    ProbabilityModel,
    RegionModel,
)
from skuq.gpc.bounds._regions import Region
from skuq.gpc.inference._posterior import TIE, UNSURE, most_probable

_STEPS = 40  # number of steps of the attack "pgd"
_DECAY = 0.9  # factor by which the step length decreases after each step
_REGRESSION_TIE = 1e-9  # a region is undecided if |margin| / tolerance may be below this
_ROUNDING = 4 * UNIT  # bound on the relative rounding error of ``shift + scale * value``


class Bounds(NamedTuple):
    """Proven bounds on predictions over a region around each of n points.

    For a classifier, predictions are the probabilities of k classes. For a regressor, they are the
    mean or the standard deviation, in the unit of the target, and arrays have no axis of length k.

    Attributes
    ----------
    min_lower, min_upper : ndarray of shape (n, k) or (n,), float64
        Bounds on the smallest value in the region (Blaas et al., AISTATS 2020, Eq. 3).
    max_lower, max_upper : ndarray of shape (n, k) or (n,), float64
        Bounds on the largest value in the region (Eq. 4).
    argmin, argmax : ndarray of shape (n, k, n_features) or (n, n_features), float64
        Points of the region at which the prediction equals `min_upper` or `max_lower`, up to a
        rounding error, or, for the likelihood "softmax", up to an error of 1e-5.
    n_regions : ndarray of shape (n,), int64
        Number of boxes (parts of the region) for which the search computed a bound.
    converged : ndarray of shape (n,), bool
        Whether lower and upper bounds of each extreme differ by at most `tol`. If not, the search
        stopped at `max_time` or `max_regions`; its bounds are valid, but wider.
    lower, upper : ndarray of shape (n, k) or (n,), float64
        `min_lower` and `max_upper`, between which all predictions in the region lie.
    """

    min_lower: FloatArray
    min_upper: FloatArray
    max_lower: FloatArray
    max_upper: FloatArray
    argmin: FloatArray
    argmax: FloatArray
    n_regions: NDArray[np.int64]
    converged: NDArray[np.bool_]

    @property
    def lower(self) -> FloatArray:
        return self.min_lower

    @property
    def upper(self) -> FloatArray:
        return self.max_upper


class RegressionBounds(NamedTuple):
    """Bounds on the mean and on the standard deviation that ``predict`` returns."""

    mean: Bounds
    std: Bounds


class Certificate(NamedTuple):
    """Decisions whether predictions can change in the regions around n points.

    The prediction of a classifier changes if the predicted class changes. The prediction of a
    regressor changes if the mean changes by more than `tolerance`.

    Attributes
    ----------
    status : ndarray of shape (n,), str
        "safe" (proven), "unsafe" (a counterexample was found) or "undecided".
    margin_lower, margin_upper : ndarray of shape (n,), float64
        Bounds on the smallest margin in the region, refined only until `status` was certain. The
        margin is the probability of the predicted class (or of `y`) minus the largest of the other
        probabilities; with `delta` or `tolerance`, the allowed change minus the actual change.
    counterexample : ndarray of shape (n, n_features), float64
        Point of the region at which the prediction differs, if "unsafe"; otherwise NaN.
    n_regions : ndarray of shape (n,), int64
        Number of boxes (parts of the region) for which the search computed a bound.
    """

    status: NDArray[np.str_]
    margin_lower: FloatArray
    margin_upper: FloatArray
    counterexample: FloatArray
    n_regions: NDArray[np.int64]


class SafeRadius(NamedTuple):
    """Radii of balls around n points in which predictions are proven not to change.

    `Certificate` defines when a prediction changes.

    Attributes
    ----------
    lower : ndarray of shape (n,), float64
        Proven radius: the prediction is the same at all points of the domain within this distance
        that differ from the center only in `features`. 0 if no radius was proven.
    upper : ndarray of shape (n,), float64
        Distance to `counterexample`; infinite if the search found no counterexample.
    counterexample : ndarray of shape (n, n_features), float64
        Nearest point with a different prediction that the search found; NaN without such a point.
    """

    lower: FloatArray
    upper: FloatArray
    counterexample: FloatArray


class FeatureEffects(NamedTuple):
    """Effect of each feature on the probability of a class.

    Attributes
    ----------
    local : ndarray of shape (n, n_features), float64
        Effect at each point, in [-2, 2]; positive if larger values of the feature increase the
        probability (Blaas et al., AISTATS 2020, Eq. 23-25).
    overall : ndarray of shape (n_features,), float64
        Mean of `local` over the points (Eq. 26).
    error : ndarray of shape (n, n_features), float64
        Proven bound on the error of `local`.
    """

    local: FloatArray
    overall: FloatArray
    error: FloatArray


class Attack(NamedTuple):
    """Points at which an attack found the lowest probability of a class.

    Attributes
    ----------
    points : ndarray of shape (n, n_features), float64
        For each region, the point at which the attack found the lowest probability.
    proba : ndarray of shape (n,), float64
        Probability of the attacked class at `points`.
    success : ndarray of shape (n,), bool
        Whether the predicted class at `points` differs from the attacked class.
    """

    points: FloatArray
    proba: FloatArray
    success: NDArray[np.bool_]


def probability_bounds(
    model: ProbabilityModel, regions: Region, classes: NDArray[np.intp], limits: Limits
) -> Bounds:
    # `classes` has the shape (k,).
    if not model.jointly:
        return _bounds_of_many(model, regions, classes, limits)
    n, units, k = len(regions), np.eye(model.n_classes), len(classes)
    least, most = np.arange(k), np.arange(k, 2 * k)
    if model.n_classes == 2:  # the maximum for one class is 1 minus the minimum for the other
        rows, least, most = units, classes, 1 - classes
    else:
        rows = np.concatenate([units[classes], -units[classes]])
    objectives = np.broadcast_to(rows, (n, *rows.shape))
    found = model.minima(regions, objectives, limits.per_point(len(rows)))
    whole = rows[most].clip(min=0).sum(axis=1)  # 1 if max q is 1 - min(1 - q); 0 if it is -min(-q)
    bounds = _ranges(found, least, most, whole)
    return Bounds._make([*(end.clip(0, 1) for end in bounds[:4]), *bounds[4:]])


def _ranges(found: Minima, least: Any, most: Any, whole: Any) -> Bounds:
    """Bound ranges of q by minima of q (columns `least`) and of ``whole - q`` (columns `most`)."""
    both = np.union1d(least, most)
    return Bounds(
        found.lower[:, least],
        found.upper[:, least],
        whole - found.upper[:, most],
        whole - found.lower[:, most],
        found.point[:, least],
        found.point[:, most],
        found.n_regions[:, both].sum(axis=1),
        np.asarray(found.converged[:, both].all(axis=1)),
    )


def safety(
    model: ProbabilityModel, regions: Region, labels: NDArray[np.intp], limits: Limits
) -> Certificate:
    """Decide for each region whether its label is the predicted class everywhere (Definition 2)."""
    if not model.jointly:
        return _safety_of_many(model, regions, labels, limits)
    units = np.eye(model.n_classes)
    others = np.stack([np.delete(units, label, axis=0) for label in labels])
    objectives = units[labels][:, None] - others
    zero = np.zeros(objectives.shape[:2])
    # Probabilities whose exact difference is below 2 * TIE may count as equal after rounding.
    return certificate(model, regions, objectives, zero, zero, 2 * TIE, limits)


def robustness(
    model: ProbabilityModel, regions: Region, delta: float, limits: Limits
) -> Certificate:
    """Decide for each region whether no class probability changes by more than `delta`."""
    rows, total = np.eye(model.n_classes), 1.0
    if model.n_classes > 2:  # with two classes, an increase of p_1 is a decrease of p_0
        rows, total = np.concatenate([rows, -rows]), 0.0
    objectives = np.broadcast_to(rows, (len(regions), *rows.shape))
    return _invariance(model, regions, objectives, total, delta, TIE, limits)


def stability(
    model: MomentModel, regions: Region, tolerances: FloatArray, limits: Limits
) -> Certificate:
    """Decide for each region whether the mean stays within a tolerance of the mean at the center.

    Margins in the result are divided by `tolerances` (n,).
    """
    objectives = model.of_mean(tolerances)
    return _invariance(model, regions, objectives, 0.0, 1.0, _REGRESSION_TIE, limits)


def _invariance(
    model: RegionModel,
    regions: Region,
    objectives: FloatArray,
    total: float,
    change: float,
    tie: float,
    limits: Limits,
) -> Certificate:
    """Decide for each region whether objectives stay above their value at the center - `change`.

    Objective i of the first half and objective i of the second half add up to `total`.
    """
    k = objectives.shape[1]
    # `most` and `least` are proven upper and lower bounds on the objectives at the centers.
    most = np.stack([model.values(regions.center, objectives[:, i]) for i in range(k)], axis=1)
    least = total - np.roll(most, k // 2, axis=1)
    middle, error = (most + least) / 2, (most - least) / 2
    return certificate(model, regions, objectives, middle - change, error, tie, limits)


def _safety_of_many(
    model: ProbabilityModel, regions: Region, labels: NDArray[np.intp], limits: Limits
) -> Certificate:
    """Decide as `safety`: bounds on the margin prove safety, points of margin <= 0 disprove it."""
    found = model.minima_of_class(regions, labels, "margin", limits, 2 * UNSURE)
    lower = found.lower[:, 0]
    center = regions.center.numpy()
    safe, worst, margins = lower > 2 * UNSURE, center.copy(), np.ones(len(labels))
    rows = np.flatnonzero(~safe)
    if len(rows):
        attack = gradient_attack(model, regions[rows], labels[rows], "pgd")
        for points in (center[rows], found.point[rows, 0], attack.points):
            tried = _predicted_margins(model, points, labels[rows])
            better = tried < margins[rows]
            worst[rows[better]], margins[rows[better]] = points[better], tried[better]
    status = np.where(safe, "safe", np.where(margins <= 0, "unsafe", "undecided"))
    example = np.where((status == "unsafe")[:, None], worst, np.nan)
    upper = np.minimum(margins + 2 * UNSURE, found.upper[:, 0])
    return Certificate(status, np.minimum(lower, upper), upper, example, found.n_regions[:, 0])


def _predicted_margins(
    model: ProbabilityModel, points: FloatArray, labels: NDArray[np.intp]
) -> FloatArray:
    """Return the margin of each label: above 0 if the label is the predicted class, else <= 0."""
    proba, rows = model.probabilities(points), np.arange(len(points))
    others = proba.copy()
    others[rows, labels] = -np.inf
    margin = proba[rows, labels] - others.max(axis=1)
    same = most_probable(proba) == labels
    return np.where(same, margin.clip(min=1e-300), margin.clip(max=0.0))


def _bounds_of_many(
    model: ProbabilityModel, regions: Region, classes: NDArray[np.intp], limits: Limits
) -> Bounds:
    """Bound probabilities of more than three classes; bounds may not converge to within `tol`."""
    share = limits._replace(max_time=limits.max_time / (2 * len(classes)), progress=None)
    low, least, argmin, n_low = _extremes_of_many(model, regions, classes, "smallest", share)
    high, most, argmax, n_high = _extremes_of_many(model, regions, classes, "largest", share)
    least, most = np.maximum(least, low), np.minimum(most, high)
    done = ((least - low <= limits.tol) & (high - most <= limits.tol)).all(axis=1)
    if limits.progress is not None:
        limits.progress(len(done))
    n_regions = (n_low + n_high).sum(axis=1)
    return Bounds(low, least, most, high, argmin, argmax, n_regions, done)


def _extremes_of_many(
    model: ProbabilityModel, regions: Region, classes: NDArray[np.intp], kind: str, limits: Limits
) -> list[NDArray[Any]]:
    """Return proven bounds, attained values, their points, and numbers of boxes, (n, k, ...)."""
    columns = []
    for own in classes:
        found = model.minima_of_class(regions, np.full(len(regions), own), kind, limits)
        lower, upper, point = found.lower[:, 0], found.upper[:, 0], found.point[:, 0]
        predicted = model.probabilities(point)[:, own]
        if kind == "smallest":
            proven, attained = 1 + lower, np.minimum(1 + upper, predicted + UNSURE)
        else:
            proven, attained = -lower, np.maximum(-upper, predicted - UNSURE)
        columns.append((proven.clip(0, 1), attained.clip(0, 1), point, found.n_regions[:, 0]))
    return [np.stack(column, axis=1) for column in zip(*columns, strict=True)]


def certificate(
    model: RegionModel,
    regions: Region,
    objectives: FloatArray,
    threshold: FloatArray,
    error: FloatArray,
    tie: float,
    limits: Limits,
) -> Certificate:
    """Decide for each region whether the minima of all objectives exceed their thresholds.

    The exact thresholds are within `error` (n, k) of `threshold` (n, k); minima within `tie` of a
    threshold are undecided. `objectives` has the shape (n, k, n_outputs).
    """
    n, k, _ = objectives.shape
    found = model.minima(regions, objectives, limits.per_point(k), threshold, error + tie)
    lower, upper = found.lower - threshold - error, found.upper - threshold + error
    rows, worst = np.arange(n), upper.argmin(axis=1)
    unsafe = np.asarray((upper < -tie).any(axis=1))
    safe = np.asarray((lower > tie).all(axis=1))
    example = np.where(unsafe[:, None], found.point[rows, worst], np.nan)
    status = np.where(safe, "safe", np.where(unsafe, "unsafe", "undecided"))
    return Certificate(
        status, lower.min(axis=1), upper.min(axis=1), example, found.n_regions.sum(axis=1)
    )


def moment_bounds(model: MomentModel, regions: Region, limits: Limits) -> tuple[Any, ...]:
    """Compute the fields of `Bounds` for the mean, then the fields for the standard deviation."""
    n = len(regions)
    objectives = np.concatenate([model.of_mean(np.ones(n)), model.of_deviation(n)], axis=1)
    found = model.minima(regions, objectives, limits.per_point(4))
    return (*_ranges(found, 0, 1, 0.0), *_ranges(found, 2, 3, 0.0))


def rescaled(bounds: Bounds, scale: float, shift: float) -> Bounds:
    """Transform bounds to ``shift + scale * value``, rounded outwards."""

    def moved(end: FloatArray, direction: int) -> FloatArray:
        value = shift + scale * end
        return value + direction * _ROUNDING * (abs(shift) + np.abs(scale * end))

    ends = map(moved, bounds[:4], (-1, 1, -1, 1))
    return Bounds._make([*ends, *bounds[4:]])


def gradient_attack(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    method: str,
    n_restarts: int = 0,
    rng: np.random.RandomState | None = None,
) -> Attack:
    # The attack minimises the label's probability, or, for more than three classes, its margin.
    # "fgsm" is GPFGS (Grosse et al., "The limitations of model uncertainty in adversarial
    # settings", 2018).
    regions = regions.to(model.device)
    value, gradient = model.attackable(regions.center, labels)
    if method == "fgsm":  # the end of the step is returned even if its probability is not lower
        best = regions.project(regions.center - regions.steepest(gradient))
    else:
        start, n = regions.center, len(regions.center)
        if n_restarts and rng is not None:  # all starting points take their steps in one batch
            share = torch.as_tensor(rng.uniform(size=(n_restarts * n, start.shape[1]))).to(start)
            regions = regions[torch.arange(n, device=start.device).repeat(1 + n_restarts)]
            labels = np.tile(labels, 1 + n_restarts)
            lower, width = regions.lower[n:], (regions.upper - regions.lower)[n:]
            start = regions.project(torch.cat([start, lower + share * width]))
            value, gradient = model.attackable(start, labels)
        found, reached = start.clone(), value.clone()
        for step in range(_STEPS):
            start = regions.project(start - 0.5 * _DECAY**step * regions.steepest(gradient))
            value, gradient = model.attackable(start, labels)
            better = value < reached
            found[better], reached[better] = start[better], value[better]
        labels, least = labels[:n], reached.view(-1, n).argmin(0)
        best = found[least * n + torch.arange(n, device=least.device)]
    points = best.cpu().numpy()
    proba = model.probabilities(points)
    return Attack(points, proba[np.arange(len(points)), labels], most_probable(proba) != labels)


def feature_effects(
    model: ProbabilityModel, regions: Region, labels: NDArray[np.intp], limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """Compute effects of features: min + max of a probability above a point, minus those below."""
    features, n = regions.free.tolist(), len(regions)
    share = limits._replace(max_time=limits.max_time / len(features), progress=None)
    units = np.eye(model.n_classes)[labels]
    objectives = np.concatenate([np.stack([units, -units], axis=1)] * 2)
    local, error = (np.zeros(tuple(regions.center.shape)) for _ in range(2))
    for feature in features:
        # Eq. 23. Regions are line segments from the centers, first all upwards, then all downwards.
        center, lower, upper = (torch.cat([regions.center] * 2) for _ in range(3))
        upper[:n, feature] = regions.upper[:, feature]
        lower[n:, feature] = regions.lower[:, feature]
        found = model.minima(Region(center, lower, upper), objectives, share)
        middle, half = (found.lower + found.upper) / 2, (found.upper - found.lower) / 2
        above, below = np.split(middle[:, 0] - middle[:, 1], 2)  # sums of minimum and maximum
        local[:, feature] = above - below
        error[:, feature] = half.sum(axis=1).reshape(2, -1).sum(axis=0)
    if limits.progress is not None:
        limits.progress(n)
    return local, error


class Bisection:
    def __init__(self, points: FloatArray, order: float, max_radius: float, precision: float):
        self._points, self._order, self._precision = points, order, precision
        self._lower, self._upper = np.zeros(len(points)), np.full(len(points), np.inf)
        self._nearest = np.full_like(points, np.nan)
        self._ceiling = np.full(len(points), float(max_radius))  # largest radius to try
        self._undecided = np.zeros(len(points))  # largest undecided radius
        self.trial, self.open = self._ceiling.copy(), np.arange(len(points))

    def learn(self, found: Certificate) -> None:
        """Update bounds on radii by certificates for the radii `trial`; choose the next `trial`."""
        safe, unsafe = self.open[found.status == "safe"], self.open[found.status == "unsafe"]
        self._lower[safe] = self.trial[safe]
        # These points are safe at a radius above an undecided radius, so larger radii can be tried.
        above = safe[self.trial[safe] > self._ceiling[safe]]
        self._ceiling[above] = self._upper[above]
        examples = found.counterexample[found.status == "unsafe"]
        distance = np.linalg.norm(examples - self._points[unsafe], ord=self._order, axis=1)
        nearer = distance < self._upper[unsafe]
        self._upper[unsafe[nearer]] = distance[nearer]
        self._nearest[unsafe[nearer]] = examples[nearer]
        failed = self.open[found.status != "safe"]
        ends = np.minimum(self.trial, self._upper)[failed]
        self._ceiling[failed] = np.minimum(self._ceiling[failed], ends)
        unknown = self.open[found.status == "undecided"]
        self._undecided[unknown] = np.maximum(self._undecided[unknown], self.trial[unknown])
        # First bisect to increase the proven radius, then search for nearer counterexamples.
        proving = self._ceiling - self._lower > self._precision
        low = np.where(proving, self._lower, np.maximum(self._undecided, self._ceiling))
        high = np.where(proving, self._ceiling, self._upper)
        wide = np.isfinite(high) & (high - low > self._precision)
        self.trial = np.where(wide, low + (np.where(wide, high, low) - low) / 2, low)
        between = (low < self.trial) & (self.trial < high)  # False if no float64 lies between them
        self.open = np.intersect1d(self.open, np.flatnonzero(wide & between))

    def result(self) -> SafeRadius:
        return SafeRadius(self._lower, self._upper, self._nearest)
