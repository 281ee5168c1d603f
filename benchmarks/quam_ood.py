"""Detection of out-of-distribution inputs among digits, over several seeds.

QUAM's epistemic uncertainty, by a search for each input ("quam-pointwise") and by one search on a
pool generated from the training images ("quam-pool"), is compared with the entropy of the model's
own probabilities, all for the same trained network. For the models found by the search on the pool,
the measures of other settings and the width of the range of class probabilities ("quam-pool-range")
are also reported.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from copy import copy

import numpy as np

from benchmarks.harness import finish, parser, record, set_threads
from skuq.datasets import DigitsWithOOD, load_digits_with_ood
from skuq.metrics import detection_metrics
from skuq.quam import PointwiseSearch, PoolSearch, QUAMClassifier

# Methods by name, with the setting of each.
SEARCHES = {"pool": (PoolSearch, "expected"), "pointwise": (PointwiseSearch, "selected")}


def scores(quam: QUAMClassifier, X: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each method and its scores."""
    if quam.setting == "selected":  # used with a search for each input
        u = quam.predict_uncertainty(X)
        yield "quam-pointwise", u.epistemic
        yield "reference", u.aleatoric  # the entropy of the base model
        return
    yield "quam-pool", quam.predict_uncertainty(X).epistemic
    for setting in ("selected", "pairwise"):
        other = copy(quam).set_params(setting=setting)
        yield f"quam-pool-{setting}", other.predict_uncertainty(X).epistemic
    lower, upper = quam.predict_proba_bounds(X)
    yield "quam-pool-range", (upper - lower).max(axis=1)


def aurocs(quam: QUAMClassifier, data: DigitsWithOOD) -> Iterator[tuple[str, str, float]]:
    """Yield method, kind of OOD inputs and AUROC."""
    test = dict(scores(quam, data.X_test))
    for kind, X in data.ood.items():
        for method, values in scores(quam, X):
            yield method, kind, detection_metrics(test[method], values).auroc


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=40, help="inputs per group")
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--parameters", choices=["all", "last"], default="all")
    arguments.add_argument("--searches", nargs="+", choices=SEARCHES, default=[*SEARCHES])
    args = arguments.parse_args()
    set_threads(args)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        data = load_digits_with_ood(n_test=args.n, n_ood=args.n, random_state=seed)
        for search in args.searches:
            kind, setting = SEARCHES[search]
            quam = QUAMClassifier(
                search=kind(parameters=args.parameters), setting=setting, random_state=seed
            )
            quam.fit(data.X_train, data.y_train)
            start = time.perf_counter()
            quam.predict_uncertainty(data.X_test)
            seconds[f"quam-{search}"].append((time.perf_counter() - start) / len(data.X_test))
            for name, kind, auroc in aurocs(quam, data):
                found[name, kind].append(auroc)
        print(f"seed {seed}: " + ", ".join(f"{m} {k} {v[-1]:.3f}" for (m, k), v in found.items()))
    records = [
        record(method, f"digits_vs_{kind}", "auroc", np.mean(values), args.n, np.std(values))
        for (method, kind), values in found.items()
    ]
    records += [
        record(method, "digits", "seconds_per_point", np.mean(values), args.n, np.std(values))
        for method, values in seconds.items()
    ]
    finish("quam_ood", args, records)


if __name__ == "__main__":
    main()
