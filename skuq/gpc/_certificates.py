"""Certificates over regions around points: probability bounds, safety, radii, feature effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc._attacks import gradient_attack
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel, RegionModel
from skuq.gpc.bounds._regions import Region
from skuq.gpc.inference._posterior import TIE, UNSURE, most_probable

ProgressCallback = Callable[[int], object] | None


class ProbabilityBounds(NamedTuple):
    """Proven bounds on class probabilities over a region around each of n points.

    Attributes
    ----------
    min_lower, min_upper : ndarray of shape (n, k), float64
        Bounds on the smallest probability of each of the k classes in the region (Blaas et al.,
        AISTATS 2020, Eq. 3).
    max_lower, max_upper : ndarray of shape (n, k), float64
        Bounds on the largest probability of each class (Eq. 4).
    argmin, argmax : ndarray of shape (n, k, n_features), float64
        Points of the region that attain `min_upper` and `max_lower`, up to the numerical error of
        the predicted probability: rounding, or 1e-5 for the likelihood "softmax".
    n_regions : ndarray of shape (n,), int64
        Number of boxes that were bounded.
    converged : ndarray of shape (n,), bool
        Whether all gaps between lower and upper bounds of the point are within `tol`. If not,
        `max_time` or `max_regions` was reached; the bounds are valid, but wider.
    lower, upper : ndarray of shape (n, k), float64
        `min_lower` and `max_upper`: all probabilities in the region lie between them.
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

    def deviation(self, proba: Any) -> tuple[FloatArray, FloatArray]:
        """Bounds on the largest change of any class probability: the delta of Definition 1.

        Parameters
        ----------
        proba : array-like of shape (n, k)
            Probabilities of the same classes at the points themselves.

        Returns
        -------
        lower, upper : ndarray of shape (n,), float64
            Bounds on ``max_x max_c |p_c(x) - p_c(point)|``.
        """
        proba = np.asarray(proba)
        least = np.maximum(proba - self.min_upper, self.max_lower - proba)
        most = np.maximum(proba - self.min_lower, self.max_upper - proba)
        return least.max(axis=1).clip(min=0), most.max(axis=1).clip(min=0)


class Certificate(NamedTuple):
    """Decision for each of n points on whether the prediction can change within its region.

    The prediction of a classifier changes if the predicted class changes. The prediction of a
    regressor changes if the mean changes by more than the tolerance.

    Attributes
    ----------
    status : ndarray of shape (n,), str
        "safe" (proven), "unsafe" (a counterexample was found) or "undecided".
    margin_lower, margin_upper : ndarray of shape (n,), float64
        Bounds on the smallest margin in the region, refined only until the decision was certain.
        The margin is the probability of the class minus the probability of the most probable other
        class; with `delta` or `tolerance`, it is the allowed change minus the actual change.
    counterexample : ndarray of shape (n, n_features), float64
        Point of the region with a different prediction if "unsafe", otherwise NaN.
    n_regions : ndarray of shape (n,), int64
        Number of boxes that were bounded.
    """

    status: NDArray[np.str_]
    margin_lower: FloatArray
    margin_upper: FloatArray
    counterexample: FloatArray
    n_regions: NDArray[np.int64]


class SafeRadius(NamedTuple):
    """Radius around each of n points within which the prediction is proven not to change.

    `Certificate` defines when a prediction changes.

    Attributes
    ----------
    lower : ndarray of shape (n,), float64
        Proven radius: the prediction is the same at all points within this distance that lie in the
        domain and differ from the given point only in the free features. 0 if nothing was proven.
    upper : ndarray of shape (n,), float64
        Distance of the nearest counterexample that was found; infinite if none was found.
    counterexample : ndarray of shape (n, n_features), float64
        The nearest counterexample that was found; NaN if none was found.
    """

    lower: FloatArray
    upper: FloatArray
    counterexample: FloatArray


def probability_bounds(
    model: ProbabilityModel,
    regions: Region,
    classes: NDArray[np.intp],
    limits: Limits,
    progress: ProgressCallback = None,
) -> ProbabilityBounds:
    """Bound the smallest and the largest probability of classes over each region."""
    # classes (k,)
    if not model.jointly:
        return _bounds_of_many(model, regions, classes, limits, progress)
    n, units, k = len(regions), np.eye(model.n_classes), len(classes)
    least, most = np.arange(k), np.arange(k, 2 * k)
    if model.n_classes == 2:  # the maximum for one class is 1 minus the minimum for the other
        rows, least, most = units, classes, 1 - classes
    else:
        rows = np.concatenate([units[classes], -units[classes]])
    objectives = np.broadcast_to(rows, (n, *rows.shape))
    found = model.minima(regions, objectives, limits, progress=per_point(progress, len(rows)))
    whole = rows[most].clip(min=0).sum(axis=1)  # 1 for two classes (see above), else 0
    return ProbabilityBounds(
        found.lower[:, least].clip(0, 1),
        found.upper[:, least].clip(0, 1),
        (whole - found.upper[:, most]).clip(0, 1),
        (whole - found.lower[:, most]).clip(0, 1),
        found.point[:, least],
        found.point[:, most],
        found.n_regions.sum(axis=1),
        np.asarray(found.converged.all(axis=1)),
    )


def safety(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    limits: Limits,
    progress: ProgressCallback = None,
) -> Certificate:
    """Decide for each region whether one class is most probable everywhere (Definition 2)."""
    # labels (n,)
    if not model.jointly:
        return _safety_of_many(model, regions, labels, limits, progress)
    units = np.eye(model.n_classes)
    others = np.stack([np.delete(units, label, axis=0) for label in labels])
    objectives = units[labels][:, None] - others
    zero = np.zeros(objectives.shape[:2])
    # Computed probabilities may count as equal if the exact ones differ by less than 2 * TIE.
    return certificate(model, regions, objectives, zero, zero, 2 * TIE, limits, progress)


def robustness(
    model: ProbabilityModel,
    regions: Region,
    delta: float,
    limits: Limits,
    progress: ProgressCallback = None,
) -> Certificate:
    """Decide for each region whether no class probability changes by more than `delta`."""
    rows = np.eye(model.n_classes)
    if model.n_classes > 2:  # with two classes, an increase of p_1 is a decrease of p_0
        rows = np.concatenate([rows, -rows])
    n, points = len(regions), regions.center
    objectives = np.broadcast_to(rows, (n, *rows.shape))
    # Proven bounds on the probabilities at the points themselves.
    most = np.stack([model.values(points, np.tile(row, (n, 1))) for row in rows], axis=1)
    total = rows.sum(axis=1)  # two classes: lower bound of one = 1 - upper bound of the other
    least = total - most[:, ::-1] if len(rows) == 2 else -np.roll(most, len(rows) // 2, axis=1)
    middle, error = (most + least) / 2, (most - least) / 2
    return certificate(model, regions, objectives, middle - delta, error, TIE, limits, progress)


def _safety_of_many(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    limits: Limits,
    progress: ProgressCallback,
) -> Certificate:
    """Prove safety by bounds on the margin; refute it by points with a different predicted class.

    Used for more than three classes.
    """
    found = model.minima_of_class(regions, labels, "margin", limits, 2 * UNSURE, progress)
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
    """Margin of each label; above 0 if and only if the label is the predicted class."""
    proba, rows = model.probabilities(points), np.arange(len(points))
    others = proba.copy()
    others[rows, labels] = -np.inf
    margin = proba[rows, labels] - others.max(axis=1)
    same = most_probable(proba) == labels
    return np.where(same, margin.clip(min=1e-300), margin.clip(max=0.0))


def _bounds_of_many(
    model: ProbabilityModel,
    regions: Region,
    classes: NDArray[np.intp],
    limits: Limits,
    progress: ProgressCallback,
) -> ProbabilityBounds:
    """Bound probabilities of more than three classes; lower and upper bounds need not converge."""
    share = limits._replace(max_time=limits.max_time / (2 * len(classes)))
    low, least, argmin, n_low = _extremes_of_many(model, regions, classes, "smallest", share)
    high, most, argmax, n_high = _extremes_of_many(model, regions, classes, "largest", share)
    least, most = np.maximum(least, low), np.minimum(most, high)
    done = ((least - low <= limits.tol) & (high - most <= limits.tol)).all(axis=1)
    if progress is not None:
        progress(len(done))
    n_regions = (n_low + n_high).sum(axis=1)
    return ProbabilityBounds(low, least, most, high, argmin, argmax, n_regions, done)


def _extremes_of_many(
    model: ProbabilityModel,
    regions: Region,
    classes: NDArray[np.intp],
    kind: str,
    limits: Limits,
) -> list[NDArray[Any]]:
    """Extremes of class probabilities, (n, k): bounds, attained values, points and box counts."""
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


class Bisection:
    """Simultaneous bisection of the certified radii of all points."""

    # points (n, n_features), trial (n,)

    def __init__(self, points: FloatArray, order: float, max_radius: float, precision: float):
        self._points, self._order, self._precision = points, order, precision
        self._lower, self._upper = np.zeros(len(points)), np.full(len(points), np.inf)
        self._nearest = np.full_like(points, np.nan)
        self._ceiling = np.full(len(points), float(max_radius))  # largest radius left to prove
        self._undecided = np.zeros(len(points))  # largest undecided radius
        self.trial, self.open = self._ceiling.copy(), np.arange(len(points))

    def learn(self, found: Certificate) -> None:
        """Update the brackets with the certificates at the trial radii."""
        safe, unsafe = self.open[found.status == "safe"], self.open[found.status == "unsafe"]
        self._lower[safe] = self.trial[safe]
        # Points that are proven safe at a radius larger than a radius that was undecided.
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
        between = (low < self.trial) & (self.trial < high)  # false for adjacent float64 values
        self.open = np.intersect1d(self.open, np.flatnonzero(wide & between))

    def result(self) -> SafeRadius:
        """Radii and counterexamples found so far."""
        return SafeRadius(self._lower, self._upper, self._nearest)


def certificate(
    model: RegionModel,
    regions: Region,
    objectives: FloatArray,
    threshold: FloatArray,
    error: FloatArray,
    tie: float,
    limits: Limits,
    progress: ProgressCallback,
) -> Certificate:
    """Decide for each region whether the minima of all objectives exceed their thresholds.

    Shapes: `objectives` (n, k, n_outputs); `threshold` (n, k), known up to `error` (n, k).
    """
    n, k, _ = objectives.shape
    report = per_point(progress, k)
    found = model.minima(regions, objectives, limits, threshold, error + tie, report)
    lower, upper = found.lower - threshold - error, found.upper - threshold + error
    rows, worst = np.arange(n), upper.argmin(axis=1)
    unsafe = np.asarray((upper < -tie).any(axis=1))
    safe = np.asarray((lower > tie).all(axis=1))
    example = np.where(unsafe[:, None], found.point[rows, worst], np.nan)
    status = np.where(safe, "safe", np.where(unsafe, "unsafe", "undecided"))
    return Certificate(
        status, lower.min(axis=1), upper.min(axis=1), example, found.n_regions.sum(axis=1)
    )


def per_point(progress: ProgressCallback, count: int) -> ProgressCallback:
    """Convert a progress callback that counts points to one that counts minimisations."""
    if progress is None:
        return None
    done = [0, 0]

    def report(minimisations: int) -> None:
        done[0] += minimisations
        progress(done[0] // count - done[1])
        done[1] = done[0] // count

    return report


class FeatureEffects(NamedTuple):
    """Effect of each feature on the probability of a class.

    Attributes
    ----------
    local : ndarray of shape (n, n_features), float64
        Effect at each point, positive if the probability increases with the feature (Blaas et al.,
        AISTATS 2020, Eq. 23-25); a difference of probabilities between -2 and 2.
    overall : ndarray of shape (n_features,), float64
        Mean of `local` over the points (Eq. 26).
    error : ndarray of shape (n, n_features), float64
        Proven bound on the error of `local`.
    """

    local: FloatArray
    overall: FloatArray
    error: FloatArray


def feature_effects(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    limits: Limits,
    progress: Callable[[int], object] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Compare the range of a probability above and below the point, per feature (Eq. 23-25)."""
    # labels (n,) -> local, error (n, n_features)
    features = regions.free.tolist()
    share = limits._replace(max_time=limits.max_time / len(features))
    local, error = (np.zeros(tuple(regions.center.shape)) for _ in range(2))
    for feature in features:
        found = _effect(model, _sides(regions, feature), labels, share)
        local[:, feature], error[:, feature] = found
    if progress is not None:
        progress(len(regions))
    return local, error


def _sides(regions: Region, feature: int) -> Region:
    """Line segments along one feature from the center of each region: upwards, then downwards."""
    center, above, below = (regions.center.clone() for _ in range(3))
    above[:, feature], below[:, feature] = regions.upper[:, feature], regions.lower[:, feature]
    lower, upper = torch.cat([center, below]), torch.cat([above, center])
    return Region(torch.cat([center, center]), lower, upper)


def _effect(
    model: ProbabilityModel, sides: Region, labels: NDArray[np.intp], limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """Effect of a feature: (max + min above) - (max + min below), with its error bound."""
    units = np.eye(model.n_classes)[labels]
    objectives = np.stack([units, -units], axis=1)
    found = model.minima(sides, np.concatenate([objectives] * 2), limits)
    middle, half = (found.lower + found.upper) / 2, (found.upper - found.lower) / 2
    above, below = np.split(middle[:, 0] - middle[:, 1], 2)
    return above - below, half.sum(axis=1).reshape(2, -1).sum(axis=0)
