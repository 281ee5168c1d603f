"""Effects of features averaged over test points, compared with a linear surrogate (Fig. 6).

Binary models of the paper's synthetic and spam data, 10 evaluations of the evidence. For each
radius, `RobustGPC.explain` averages the effect of every feature on the probability of the second
class (App. G). The surrogate is a ridge regression of the probability on random perturbations of
each point, as in LIME, whose coefficients are averaged. The reference is the correlation of each
feature with the class. The paper claims that on Synthetic2D the signs of both LIME coefficients are
wrong, and that the signs of the effects at radius 2 are correct. Run::

    python -m benchmarks.gpc_global --record gpc_global
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

from benchmarks.gpc import Data, figures, fit, load
from benchmarks.harness import finish, kept_run, parser, set_threads
from skuq import RobustGPC

RADII = {"synthetic2d": (0.1, 2.0), "spam": (0.1, 2.0)}


def surrogate(model: RobustGPC, points: NDArray, rng: np.random.Generator) -> NDArray:
    """Compute mean coefficients of ridge regressions around the points, at the data's scale."""
    found = []
    for (
        point
    ) in points:  # LIME perturbs in standard deviations of the data, and weights by distance
        moves = rng.normal(size=(1000, points.shape[1]))
        near = np.exp(-(moves**2).sum(axis=1) / (0.75**2 * points.shape[1]))
        proba = model.predict_proba(point + moves)[:, 1]
        found.append(Ridge(alpha=1.0).fit(moves, proba, sample_weight=near).coef_)
    return np.mean(found, axis=0)


def compared(
    name: str, radius: str, n_points: int, n_train: int, seed: int, *, args: argparse.Namespace
) -> dict[str, Any]:
    """Compute the effects of all features at one radius, and the surrogate's coefficients."""
    data: Data = load(name, args.data_dir, seed, n_train)
    with warnings.catch_warnings():  # the limit of evaluations is intended
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fit(data, args.max_iter, seed=seed)
    rng = np.random.default_rng(seed)
    points = data.X_test[rng.permutation(len(data.X_test))[:n_points]]
    start = time.process_time()
    effects = model.explain(points, float(radius), tol=args.tol, max_time=args.limit)
    seconds = (time.process_time() - start) / len(points)
    linear = surrogate(model, points, rng)
    target = (data.y == model.classes_[1]) - (data.y == model.classes_[1]).mean()
    world = target @ (data.X - data.X.mean(axis=0)) / data.X.std(axis=0) / len(data.X)
    rows, dataset = [], f"{name}_r{radius}"
    for method, values in (("explain", effects.overall), ("surrogate", linear)):
        scaled = values / np.abs(values).max()  # to unit scale, as in the figure
        of_features = {f"feature_{j}": x for j, x in enumerate(scaled)}
        rows += figures(
            method,
            dataset,
            len(points),
            signs_of_the_data=np.mean(np.sign(values) == np.sign(world)),
            correlation_with_the_data=np.corrcoef(values, world)[0, 1],
            **of_features,
        )
    both = {"correlation": np.corrcoef(effects.overall, linear)[0, 1], "seconds_per_point": seconds}
    rows += figures("explain_and_surrogate", dataset, len(points), **both)
    return {"rows": rows}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", choices=RADII, default=[*RADII])
    arguments.add_argument("--n-train", type=int, default=1000)
    arguments.add_argument("--n-points", type=int, default=50)
    arguments.add_argument("--max-iter", type=int, default=10, help="evaluations of the evidence")
    arguments.add_argument("--tol", type=float, default=5e-3)
    arguments.add_argument("--limit", type=float, default=120.0, help="seconds per call")
    args = arguments.parse_args()
    set_threads(args)
    found: list[dict] = []
    for name in args.dataset:
        for radius in RADII[name]:
            cell = (name, f"{radius:g}", args.n_points, args.n_train, args.seed)
            found += kept_run(compared, *cell, args=args)["rows"]
    finish("gpc_global", args, found)


if __name__ == "__main__":
    main()
