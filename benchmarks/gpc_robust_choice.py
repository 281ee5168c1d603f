"""Kernels selected by accuracy, marginal likelihood or certified accuracy: a comparison.

MNIST 3 against 8 at 14 x 14 pixels, few training images. A grid search with two folds over
length-scale and variance of the kernel scores every model by accuracy and by certified accuracy
(`skuq.metrics.certified_accuracy`, l2 ball, one box for each image). The best kernel by each score,
and the maximum of the marginal likelihood from the default initial values, are then fitted to all
training images and compared on test images: accuracy, certified accuracy at three radii, and
accuracy under the iterated attack at the radius of the search. Of equal scores, the first in the
grid is selected. Run::

    python -m benchmarks.gpc_robust_choice --record gpc_robust_choice
"""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from benchmarks.gpc import figures, load
from benchmarks.harness import finish, parser, set_threads
from skuq import RobustGPC
from skuq.metrics import certified_accuracy

LENGTH_SCALES = (1.5, 3.0, 6.0, 12.0, 24.0)
VARIANCES = (1.0, 10.0, 100.0)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-train", type=int, default=200)
    arguments.add_argument("--n-test", type=int, default=200)
    arguments.add_argument("--radius", type=float, default=0.5, help="of the search")
    args = arguments.parse_args()
    set_threads(args)
    data = load("mnist38", args.data_dir, args.seed, args.n_train, args.n_test)
    ball = {"norm": "l2", "max_regions": 1, "domain": data.domain}
    scale = float(np.sqrt(data.X.var(axis=0).sum()))
    base = RobustGPC(random_state=args.seed, device="cpu")
    kernels = [ConstantKernel(v) * RBF(s) for v in VARIANCES for s in LENGTH_SCALES]
    search = GridSearchCV(
        base,
        {"kernel": kernels, "optimizer": [None]},
        scoring={"accuracy": "accuracy", "certified": certified_accuracy(args.radius, **ball)},
        cv=StratifiedKFold(2, shuffle=True, random_state=args.seed),
        refit=False,
    ).fit(data.X, data.y)
    chosen = {"marginal likelihood": (ConstantKernel(1.0) * RBF(scale), "lbfgs")}
    for score in ("accuracy", "certified"):
        mean = search.cv_results_[f"mean_test_{score}"]
        chosen[score] = kernels[int(mean.argmax())], None
    found = []
    for method, (kernel, optimizer) in chosen.items():
        model = RobustGPC(kernel, optimizer=optimizer, random_state=args.seed, device="cpu")
        model.fit(data.X, data.y)
        attack = model.attack(
            data.X_test, y=data.y_test, radius=args.radius, norm="l2", domain=data.domain
        )
        fitted = model.kernel_
        found += figures(
            method,
            data.name,
            args.n_test,
            variance=fitted.k1.constant_value,
            length_scale=fitted.k2.length_scale,
            accuracy=model.score(data.X_test, data.y_test),
            attacked=1 - attack.success.mean(),
            **{
                f"certified_{share:g}": certified_accuracy(share * args.radius, **ball)(
                    model, data.X_test, data.y_test
                )
                for share in (0.5, 1, 2)
            },
        )
    finish("gpc_robust_choice", args, found)


if __name__ == "__main__":
    main()
