"""Agreement of `predict` and `certify` near decision boundaries.

Bisection between two points of different predicted classes gives points within a few float64
numbers of the decision boundary. `certify` is called for small regions around each point, and
`predict` at random points of the region and at the counterexample. Contradictions are a different
prediction in a region that is certified as safe, and a counterexample with the same prediction.
Run::

    python -m benchmarks.gpc_agreement --record gpc_agreement
"""

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import finish, parser, record, set_threads
from skuq import RobustGPC

RADII = (1e-9, 1e-5, 1e-3, 1e-2)


def models() -> Iterator[tuple[str, RobustGPC, NDArray]]:
    """Fit models of two, three and ten classes, some with very uncertain latent functions."""
    wide = {"kernel": ConstantKernel(2500.0) * RBF(1.0), "optimizer": None}
    cases = [
        ("iris, fitted kernel", load_iris, {}),
        ("iris, variance 2500", load_iris, wide),
        ("iris, 20 inducing points", load_iris, {"n_inducing": 20}),
        ("wine, fitted kernel", load_wine, {}),
        ("digits, ten classes", load_digits, {"n_inducing": 100, "max_iter": 5}),
        ("breast cancer, probit", load_breast_cancer, {"n_inducing": 60}),
        (
            "breast cancer, logit",
            load_breast_cancer,
            {"likelihood": "logit", "n_inducing": 60, "max_iter": 20},
        ),
    ]
    for name, load, parameters in cases:
        X, y = load(return_X_y=True)
        X = StandardScaler().fit_transform(X)
        yield name, RobustGPC(device="cpu", random_state=0, **parameters).fit(X, y), X


def near_decisions(
    gpc: RobustGPC, X: NDArray, count: int, rng: np.random.Generator, steps: int = 45
) -> NDArray:
    """Find points on both sides of decision boundaries, shape (about count, n_features)."""
    classes = gpc.predict(X)
    first, second = rng.integers(len(X), size=(2, 20 * count))
    apart = np.flatnonzero(classes[first] != classes[second])[: count // 2]
    near, far, own = X[first[apart]], X[second[apart]], classes[first[apart]]
    for _ in range(steps):
        middle = (near + far) / 2
        same = (gpc.predict(middle) == own)[:, None]
        near, far = np.where(same, middle, near), np.where(same, far, middle)
    return np.concatenate([near, far])


def contradictions(
    gpc: RobustGPC, points: NDArray, radius: float, n_tried: int, rng: np.random.Generator
) -> dict[str, int]:
    """Count tested points and contradictions, and the share of each status, for one radius."""
    labels, n = gpc.predict(points), len(points)
    found = gpc.certify(points, radius=radius, max_regions=2)
    tried = points + radius * rng.uniform(-1, 1, (n_tried, *points.shape))
    changed = gpc.predict(tried.reshape(-1, points.shape[1])).reshape(n_tried, n) != labels
    unsafe = found.status == "unsafe"
    wrong = 0
    if unsafe.any():
        wrong = int((gpc.predict(found.counterexample[unsafe]) == labels[unsafe]).sum())
    return {
        "points": n * n_tried + int(unsafe.sum()),
        "contradictions": int((changed & (found.status == "safe")).sum()) + wrong,
        **{kind: int((found.status == kind).sum()) for kind in ("safe", "unsafe", "undecided")},
    }


def case(name: str, gpc: RobustGPC, X: NDArray, args: argparse.Namespace) -> list[dict]:
    """Test all radii for one model; half of the points are near decision boundaries."""
    rng, start, total = np.random.default_rng(args.seed), time.perf_counter(), {}
    points = near_decisions(gpc, X, args.n_regions // 2, rng)
    points = np.concatenate([points, points + rng.normal(size=points.shape) * 0.05])
    for radius in RADII:
        counts = contradictions(gpc, points, radius, args.n_tried, rng)
        total = {key: total.get(key, 0) + value for key, value in counts.items()}
    print(f"{name}: {total} in {time.perf_counter() - start:.0f} s", flush=True)
    return [record("RobustGPC", name, key, value, total["points"]) for key, value in total.items()]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-regions", type=int, default=40, help="of each radius and model")
    arguments.add_argument("--n-tried", type=int, default=110, help="points of each region")
    args = arguments.parse_args()
    set_threads(args)
    found = []
    for name, gpc, X in models():
        found += case(name, gpc, X, args)
    points, wrong = (
        int(sum(one["value"] for one in found if one["metric"] == key))
        for key in ("points", "contradictions")
    )
    found.append(record("RobustGPC", "all", "points", points, points))
    found.append(record("RobustGPC", "all", "contradictions", wrong, points))
    print(f"{wrong} contradictions at {points} points")
    finish("gpc_agreement", args, found)


if __name__ == "__main__":
    main()
