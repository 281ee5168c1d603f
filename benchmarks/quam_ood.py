"""Detection of out-of-distribution inputs among digits, over several seeds.

QUAM's epistemic uncertainty against the entropy of the model's own probabilities, both from
the same trained network.
"""

import time

import numpy as np

from benchmarks.harness import finish, parser, record, set_threads
from skuq.datasets import load_digits_with_ood
from skuq.metrics import detection_metrics
from skuq.quam import QUAMClassifier


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=40, help="inputs per group")
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--parameters", choices=["all", "last"], default="all")
    args = arguments.parse_args()
    set_threads(args)
    found: dict[tuple[str, str], list[float]] = {}
    seconds = []
    for seed in range(args.seed, args.seed + args.n_seeds):
        data = load_digits_with_ood(n_test=args.n, n_ood=args.n, random_state=seed)
        quam = QUAMClassifier(parameters=args.parameters, random_state=seed)
        quam.fit(data.X_train, data.y_train)
        start = time.perf_counter()
        test = quam.predict_uncertainty(data.X_test)
        for kind, X in data.ood.items():
            u = quam.predict_uncertainty(X)
            for method, part in (("quam", "epistemic"), ("reference", "aleatoric")):
                auroc = detection_metrics(getattr(test, part), getattr(u, part)).auroc
                found.setdefault((method, kind), []).append(auroc)
        seconds.append((time.perf_counter() - start) / (5 * args.n))
        print(f"seed {seed}: " + ", ".join(f"{m} {k} {v[-1]:.3f}" for (m, k), v in found.items()))
    records = [
        record(method, f"digits_vs_{kind}", "auroc", np.mean(values), args.n, np.std(values))
        for (method, kind), values in found.items()
    ]
    records.append(
        record("quam", "digits", "seconds_per_point", np.mean(seconds), args.n, np.std(seconds))
    )
    finish("quam_ood", args, records)


if __name__ == "__main__":
    main()
