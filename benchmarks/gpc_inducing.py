"""RobustGPC with inducing points: time, accuracy and probability ranges by the number of rows.

Rows have six features, of which three determine the class, and labels are noisy. Kernels are
fitted, or have a large signal variance and a long length-scale ("wide"), for which inducing points
are nearly linearly dependent. Metrics are the time of the fit, accuracy on test rows, the time of a
certificate and of probability ranges with tolerance .02, and the share of ranges that converged.
Run::

    python -m benchmarks.gpc_inducing --record gpc_inducing
"""

import resource
import time

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks.gpc import figures
from benchmarks.harness import finish, parser, set_threads
from skuq import RobustGPC


def rows(n: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Draw random rows with a curved decision boundary and label noise."""
    X = rng.normal(size=(n, 6))
    return X, (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n) > 0).astype(int)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[2000, 20_000, 100_000])
    arguments.add_argument("--n-inducing", type=int, default=200)
    arguments.add_argument("--radius", type=float, default=0.02)
    arguments.add_argument("--n-test", type=int, default=50)
    arguments.add_argument("--limit", type=float, default=10.0, help="seconds of each call")
    args = arguments.parse_args()
    set_threads(args)
    rng = np.random.default_rng(args.seed)
    X_test, y_test = rows(2000, rng)
    found = []
    for n in args.rows:
        X, y = rows(n, rng)
        kernels = {
            "fitted": {"max_iter": 15},
            "wide": {"kernel": ConstantKernel(1e4) * RBF(8.0), "optimizer": None},
        }
        for name, parameters in kernels.items():
            start = time.perf_counter()
            gpc = RobustGPC(
                n_inducing=args.n_inducing, random_state=args.seed, device="cpu", **parameters
            ).fit(X, y)
            fit = time.perf_counter() - start
            points = X_test[: args.n_test]
            gpc.certify(points[:1], radius=1e-3)  # fills caches
            start = time.perf_counter()
            certificate = gpc.certify(points, radius=args.radius, max_time=args.limit)
            certify = time.perf_counter() - start
            start = time.perf_counter()
            bounds = gpc.predict_proba_bounds(
                points, args.radius, tol=0.02, max_time=args.limit, class_=1
            )
            ranges = time.perf_counter() - start
            found += figures(
                name,
                f"{n}",
                len(points),
                seconds_fit=fit,
                accuracy=gpc.score(X_test, y_test),
                ms_certify=1e3 * certify / len(points),
                decided=np.mean(certificate.status != "undecided"),
                ms_range=1e3 * ranges / len(points),
                converged=bounds.converged.mean(),
                peak_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            )
    finish("gpc_inducing", args, found)


if __name__ == "__main__":
    main()
