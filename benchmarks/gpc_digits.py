"""Ten digits of 64 pixels: certified accuracy against radius, and accuracy under attack.

A softmax model of scikit-learn's digits, features in [0, 1]. For each norm and radius: the share
of test images that are proven to be classified correctly everywhere in the ball (certified
accuracy, all pixels free), and the share that stays correct under the iterated attack. The true
robust accuracy lies between the two. Run::

    python -m benchmarks.gpc_digits --record gpc_digits
"""

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from benchmarks.gpc import figures
from benchmarks.harness import finish, parser, set_threads
from skuq import RobustGPC

RADII = {"linf": (0.0, 0.002, 0.005, 0.01, 0.02, 0.05), "l2": (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-train", type=int, default=1000)
    arguments.add_argument("--n-test", type=int, default=100)
    arguments.add_argument("--n-inducing", type=int, default=150)
    arguments.add_argument("--max-iter", type=int, default=8, help="evaluations of the evidence")
    arguments.add_argument("--max-regions", type=int, default=2)
    args = arguments.parse_args()
    set_threads(args)
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(
        X / 16, y, train_size=args.n_train, random_state=args.seed, stratify=y
    )
    start = time.perf_counter()
    gpc = RobustGPC(
        n_inducing=args.n_inducing, max_iter=args.max_iter, random_state=args.seed, device="cpu"
    ).fit(X, y)
    fit, accuracy = time.perf_counter() - start, gpc.score(X_test, y_test)
    found = figures("RobustGPC", "all", len(X_test), seconds_fit=fit, accuracy=accuracy)
    points, labels = X_test[: args.n_test], y_test[: args.n_test]
    for norm, radii in RADII.items():
        for radius in radii:
            request = {"radius": radius, "norm": norm, "domain": (0.0, 1.0)}
            start = time.perf_counter()
            status = gpc.certify(points, y=labels, max_regions=args.max_regions, **request).status
            seconds = (time.perf_counter() - start) / len(points)
            attack = gpc.attack(points, y=labels, **request)
            found += figures(
                "RobustGPC",
                f"{norm} {radius:g}",
                len(points),
                certified=np.mean(status == "safe"),
                attacked=1 - attack.success.mean(),
                contradictions=np.sum(attack.success & (status == "safe")),
                seconds=seconds,
            )
    finish("gpc_digits", args, found)


if __name__ == "__main__":
    main()
