"""False alarms and power of audits of weighted samples.

Confidences are drawn from a beta distribution on [.5, 1], and each prediction is correct with
probability confidence plus a shift. Weights of several kinds are independent of the confidences, or
five times as large for confidences above .8 (names ending in "_top"). Metrics are shares of
reference sets that are flagged at a level of .05: "calibrated" without shift and tolerance=0;
"at_alpha" with a shift of .05 and tolerance=.05, the largest tolerated error; "power" with a shift
of .15 and tolerance=.05.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.harness import finish, parser, record, set_threads
from skuq.calibration import bin_edges, bin_sums, scan_bins, top_label_predictions

LEVEL, N_BINS = 0.05, 10
SIZES = (60, 300, 2000)
WEIGHTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "equal": lambda rng, n: np.full(n, 0.5),
    "uniform": lambda rng, n: rng.uniform(0.1, 1, n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1, n),
    "two_values": lambda rng, n: np.where(rng.random(n) < 0.1, 1.0, 0.1),
    "pareto": lambda rng, n: rng.pareto(2, n) + 1e-3,
}
QUESTIONS = {"calibrated": (0.0, 0.0), "at_alpha": (0.05, 0.05), "power": (0.15, 0.05)}


def is_flagged(
    rng: np.random.Generator, n: int, kind: str, top: bool, shift: float, tolerance: float
) -> bool:
    """Whether the audit of one reference set fails."""
    confidence = 0.5 + 0.5 * rng.beta(4, 1.5, n)
    right = rng.random(n) < np.minimum(confidence + shift, 1)
    weight = WEIGHTS[kind](rng, n)
    if top:
        weight = weight * np.where(confidence > 0.8, 5.0, 1.0)
    proba = np.stack([confidence, 1 - confidence], axis=1)
    predictions = top_label_predictions(np.where(right, 0, 1), proba, classes=[0, 1])
    edges = bin_edges(predictions.confidence, N_BINS, "uniform")
    sums = bin_sums(predictions, edges, weight=weight)
    return bool(scan_bins(sums, tolerance=tolerance, level=LEVEL).findings)


def main() -> None:
    """Print and record shares of flagged reference sets."""
    p = parser(__doc__)
    p.add_argument("--draws", type=int, default=1000, help="reference sets of each cell")
    args = p.parse_args()
    set_threads(args)
    rng, records = np.random.default_rng(args.seed), []
    for kind in WEIGHTS:
        for top in (False, True):
            for n in SIZES:
                name = f"{kind}{'_top' * top}_n{n}"
                for question, asked in QUESTIONS.items():
                    draws = args.draws if question != "power" else max(1, args.draws // 5)
                    flagged = [is_flagged(rng, n, kind, top, *asked) for _ in range(draws)]
                    share = float(np.mean(flagged))
                    print(f"{name:22} {question:12} {share:.3f}", flush=True)
                    records.append(record("audit", name, question, share, draws))
    finish("audit_weights", args, records)


if __name__ == "__main__":
    main()
