"""Detection of out-of-distribution inputs among digits, over several seeds.

QUAM's epistemic uncertainty, by a search for each input ("quam-pointwise") and by one on a pool
made from the training images ("quam-pool"), against the entropy of the model's own
probabilities, all from the same trained network.
"""

import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from benchmarks.harness import finish, parser, record, set_threads
from skuq.datasets import DigitsWithOOD, load_digits_with_ood
from skuq.metrics import detection_metrics
from skuq.quam import QUAMClassifier

POINTWISE = {"search": "pointwise", "setting": "selected"}


def aurocs(quam: QUAMClassifier, data: DigitsWithOOD) -> Iterator[tuple[str, str, float]]:
    """Part of the uncertainty, kind of OOD inputs and AUROC."""
    test = quam.predict_uncertainty(data.X_test)
    for kind, X in data.ood.items():
        u = quam.predict_uncertainty(X)
        for part in ("epistemic", "aleatoric"):
            yield part, kind, detection_metrics(getattr(test, part), getattr(u, part)).auroc


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=40, help="inputs per group")
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--parameters", choices=["all", "last"], default="all")
    args = arguments.parse_args()
    set_threads(args)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        data = load_digits_with_ood(n_test=args.n, n_ood=args.n, random_state=seed)
        common = {"parameters": args.parameters, "random_state": seed}
        methods = {
            "quam-pool": QUAMClassifier(**common),
            "quam-pointwise": QUAMClassifier(**POINTWISE, **common),
        }
        for method, quam in methods.items():
            quam.fit(data.X_train, data.y_train)
            start = time.perf_counter()
            for part, kind, auroc in aurocs(quam, data):
                if part == "epistemic":
                    found[method, kind].append(auroc)
                elif method == "quam-pointwise":  # "selected": that of the given model
                    found["reference", kind].append(auroc)
            seconds[method].append((time.perf_counter() - start) / (5 * args.n))
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
