"""Proven ranges of class probabilities against sampling, attacks and dense grids.

Bounds on probabilities over random regions are computed for random models (kernels, likelihoods,
inference, full and sparse). Each range is compared with the probabilities at points of the region:
uniform points, corners, the border, and the end points of gradient attacks; with up to three free
features also a dense grid. A single probability outside its range would refute the proofs.
Probabilities are computed independently, with the kernels of scikit-learn and a quadrature in this
file.
"""

import time
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, softmax
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from benchmarks.harness import finish, parser, record, set_threads
from skuq import RobustGPC

ROUNDING = 1e-9  # rounding error of the probabilities computed here
NORMS = ("linf", "l2", "l1", "box")
LIKELIHOODS = ("probit", "logit", "softmax", "softmax, 4 to 10 classes")
DRAWS, SAMPLED = 40_000, 0.02  # latent draws beyond three classes, and five of their errors
GRID = {1: 2001, 2: 61, 3: 17}  # points per free feature


@dataclass
class Totals:
    """Counts and extremes for one likelihood and norm."""

    points: int = 0
    violations: int = 0
    overshoot: float = -np.inf
    ranges: int = 0
    converged: int = 0
    gap: float = 0.0


def random_kernel(rng, d):
    """A sum or product of stationary kernels, half of them with a length scale per feature."""

    def scale():
        return rng.uniform(0.4, 3.0, d if rng.random() < 0.5 else None)

    def leaf():
        return rng.choice(
            [
                RBF(scale()),
                Matern(scale(), nu=1.5),
                Matern(scale(), nu=2.5),
                RationalQuadratic(rng.uniform(0.4, 3.0), rng.uniform(0.3, 5.0)),
            ],
            p=[0.4, 0.2, 0.2, 0.2],
        )

    kernel = ConstantKernel(10 ** rng.uniform(-0.5, 2.0)) * leaf()
    draw = rng.random()
    if draw < 0.25:
        kernel = kernel + rng.uniform(0.1, 3.0) * leaf()
    elif draw < 0.5:
        kernel = kernel * leaf()
    elif draw < 0.6:
        kernel = kernel + ConstantKernel(rng.uniform(0.1, 3.0))
    return kernel


def random_model(rng, likelihood, d):
    """Fit a classifier to labels from a random wave."""
    n, n_classes = int(rng.integers(8, 40)), 2
    if likelihood.startswith("softmax"):
        n_classes = int(rng.integers(2, 4) if likelihood == "softmax" else rng.integers(4, 11))
        n = max(n, 3 * n_classes)
    X = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0)
    y = np.sin(2 * X @ rng.normal(size=(d, n_classes))).argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)
    binary = not likelihood.startswith("softmax")
    inference = "ep" if binary and rng.random() < 0.4 else "laplace"
    inducing = max(3, n // 2) if rng.random() < 0.3 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RobustGPC(
            random_kernel(rng, d),
            likelihood=likelihood.partition(",")[0],
            inference=inference,
            n_inducing=inducing,
            optimizer=None,
            device="cpu",
            random_state=0,
        ).fit(X, y)


def probabilities(model, X):
    """Compute class probabilities from the posterior, independently of the package's code."""
    posterior, n = model.posterior_, len(X)
    cross = model.kernel_(X, posterior.inputs)
    prior = model.kernel_.diag(X[:1])[0]
    mean = cross @ posterior.weights.T
    size = mean.shape[1]
    covariance = np.zeros((n, size, size))
    for matrix, c, d in zip(posterior.reduction(), *np.triu_indices(size), strict=True):
        value = prior * (c == d) - np.einsum("ij,ij->i", cross @ matrix, cross)
        covariance[:, c, d] = covariance[:, d, c] = value
    if size == 1:
        return binary(model.likelihood_, mean[:, 0], covariance[:, 0, 0])
    if size == 2:  # depends only on the difference
        spread = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
        return binary("logit", mean[:, 1] - mean[:, 0], spread)
    return multiclass(mean, covariance) if size == 3 else sampled(mean, covariance)


def binary(likelihood, mean, variance):
    variance = np.maximum(variance, 0)
    if likelihood == "probit":
        p = ndtr(mean / np.sqrt(1 + variance))
    else:
        z, weights = normal_rule(np.sqrt(variance.max()))
        p = expit(mean[:, None] + np.sqrt(variance)[:, None] * z) @ weights
    return np.stack([1 - p, p], 1)


def multiclass(mean, covariance):
    contrast = np.concatenate([np.eye(2), -np.ones((2, 1))], 1)
    values, vectors = np.linalg.eigh(contrast @ covariance @ contrast.T)
    factor = vectors * np.sqrt(np.maximum(values, 0))[:, None]
    z, weights = normal_rule(np.abs(factor).max() * 2)
    pairs = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel()
    pairs, weights = pairs[weights > 1e-15], weights[weights > 1e-15]
    result = []
    for part in np.array_split(np.arange(len(mean)), 1 + len(mean) // 100):
        latent = np.zeros((len(part), len(pairs), 3))
        latent[..., :2] = (mean[part] @ contrast.T)[:, None] + pairs @ factor[part].swapaxes(1, 2)
        result.append(np.einsum("bnc,n->bc", softmax(latent, axis=-1), weights))
    return np.concatenate(result)


def sampled(mean, covariance):
    """Average over draws, with the same draws for all points."""
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0))[:, None]
    z = np.random.default_rng(0).normal(size=(DRAWS // 2, mean.shape[1]))
    z = np.concatenate([z, -z])
    return np.stack([softmax(m + z @ f.T, -1).mean(0) for m, f in zip(mean, factor, strict=True)])


def normal_rule(scale):
    """Trapezoidal rule for the logistic function of a normal variable with this std."""
    width = min(np.pi / (2 * max(scale, 1e-300)), 4.0)
    step = 2 * np.pi * width / 30
    z = step * np.arange(-np.ceil(8 / step), np.ceil(8 / step) + 1)
    weights = step * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z, weights / weights.sum()


def random_region(rng, norm, X, d):
    """Draw arguments of the bounds, and the boxes and radii that they define."""
    features = np.sort(rng.choice(d, rng.integers(1, d + 1), replace=False))
    free = np.isin(np.arange(d), features)
    if norm == "box":
        down, up = rng.exponential(0.4, (2, *X.shape)) * (rng.random((2, *X.shape)) < 0.8)
        return {"region": (X - down, X + up), "features": features}, (
            np.where(free, X - down, X),
            np.where(free, X + up, X),
            None,
        )
    radius = rng.exponential(0.4, len(X))
    limits = (X.min(axis=0) - 0.1, X.max(axis=0) + 0.1) if rng.random() < 0.3 else None
    lower, upper = X - radius[:, None], X + radius[:, None]
    if limits is not None:
        lower, upper = np.maximum(lower, limits[0]), np.minimum(upper, limits[1])
    request = {"radius": radius, "norm": norm, "features": features, "domain": limits}
    boxes = np.where(free, lower, X), np.where(free, upper, X)
    return request, (*boxes, None if norm == "linf" else radius)


def sample(rng, x, lower, upper, radius, norm, n):
    """Draw points of one region: uniform, corners and border, projected into the ball."""
    points = lower + (upper - lower) * rng.random((n, len(x)))
    third = n // 3
    points[:third] = np.where(rng.random((third, len(x))) < 0.5, lower, upper)
    mixed = rng.random((third, len(x)))
    points[third : 2 * third] = np.where(
        mixed < 0.3, lower, np.where(mixed < 0.6, upper, points[third : 2 * third])
    )
    return inside(x, points, radius, norm)


def inside(x, points, radius, norm):
    if radius is None:
        return points
    order = {"l2": 2, "l1": 1}[norm]
    distance = np.linalg.norm(points - x, ord=order, axis=1)
    share = np.minimum(1, radius * (1 - 1e-14) / np.maximum(distance, 1e-300))
    return x + share[:, None] * (points - x)


def grid(x, lower, upper, radius, norm):
    """Build a grid over the free features of one region; None if there are too many."""
    free = int((upper > lower).sum())
    if free not in GRID:
        return None
    axes = [
        np.linspace(a, b, GRID[free] if a < b else 1) for a, b in zip(lower, upper, strict=False)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(x))
    return inside(x, points, radius, norm)


def examine(rng, likelihood, norm, per_region, totals):
    """Compare the ranges of one random model over a few regions with values at points."""
    d = int(rng.integers(1, 6))
    model = random_model(rng, likelihood, d)
    X = model.posterior_.inputs[:3] + rng.normal(size=(min(3, len(model.posterior_.inputs)), d)) / 4
    request, (lower, upper, radii) = random_region(rng, norm, X, d)
    tol = float(rng.choice([0.005, 0.02, 0.1]))
    limit = int(rng.choice([1, 10, 1000], p=[0.1, 0.2, 0.7]))
    found = model.predict_proba_bounds(X, **request, tol=tol, max_regions=limit, max_time=5.0)
    attacks = [
        model.attack(X, y=np.full(len(X), label), method=method, **request).points
        for label in model.classes_
        for method in ("pgd", "fgsm")
    ]
    for i in range(len(X)):
        radius = None if radii is None else radii[i]
        region = (X[i], lower[i], upper[i], radius, norm)
        parts = [sample(rng, *region, per_region), X[i : i + 1], *(a[i : i + 1] for a in attacks)]
        parts += [found.argmin[i], found.argmax[i]]
        binary = not likelihood.startswith("softmax")
        dense = grid(*region) if found.converged[i] and binary else None
        if dense is not None:
            parts.append(dense)
        proba = probabilities(model, np.concatenate(parts))
        slack = SAMPLED if proba.shape[1] > 3 else ROUNDING
        over = np.maximum(found.min_lower[i] - proba, proba - found.max_upper[i])
        totals.points += len(proba)
        totals.violations += int((over > slack).any(axis=1).sum())
        totals.overshoot = max(totals.overshoot, float(over.max()))
        totals.ranges += 1
        totals.converged += bool(found.converged[i])
        if dense is not None:
            seen = proba[-len(dense) :]
            gap = max(
                (seen.min(axis=0) - found.min_lower[i]).max(),
                (found.max_upper[i] - seen.max(axis=0)).max(),
            )
            totals.gap = max(totals.gap, float(gap - tol))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-points", type=int, default=1_000_000, help="sampled in total")
    args = arguments.parse_args()
    set_threads(args)
    cases = [(likelihood, norm) for likelihood in LIKELIHOODS for norm in NORMS]
    totals = {case: Totals() for case in cases}
    start, seed = time.perf_counter(), 0
    while sum(total.points for total in totals.values()) < args.n_points:
        for likelihood, norm in cases:
            rng = np.random.default_rng([args.seed, seed])
            seed += 1
            per_region = {"softmax": 500, LIKELIHOODS[-1]: 60}.get(likelihood, 6000)
            examine(rng, likelihood, norm, per_region, totals[likelihood, norm])
    records = []
    for (likelihood, norm), total in totals.items():
        name = f"{likelihood}, {norm}"
        print(
            f"{name}: {total.points} points in {total.ranges} regions, {total.violations} "
            f"violations, overshoot {total.overshoot:.1e}, {total.converged} converged, "
            f"gap to the grid beyond the tolerance {total.gap:.4f}"
        )
        records += [
            record("RobustGPC", name, "points", total.points, total.points),
            record("RobustGPC", name, "regions", total.ranges, total.ranges),
            record("RobustGPC", name, "violations", total.violations, total.points),
            record("RobustGPC", name, "largest_overshoot", total.overshoot, total.points),
            record(
                "RobustGPC", name, "share_converged", total.converged / total.ranges, total.ranges
            ),
            record("RobustGPC", name, "largest_gap_beyond_tolerance", total.gap, total.ranges),
        ]
    violations = sum(total.violations for total in totals.values())
    points = sum(total.points for total in totals.values())
    seconds = time.perf_counter() - start
    print(f"{violations} violations at {points} points in {seconds:.0f} s")
    records.append(record("RobustGPC", "all", "violations", violations, points))
    finish("gpc_soundness", args, records)


if __name__ == "__main__":
    main()
