"""Power of the audit and of published calibration tests, at equal false alarm rates.

Predictions are calibrated and then altered in one of three ways. A local fault, as by Mirage: the
confidences of a share of predictions are replaced by .56 to .58. Two global faults: all confidences
are lowered by a fixed amount, or sharpened as in overfitted networks. Confidences are uniform on .5
to 1, or mostly high, as is common for trained classifiers (.5 + .5 Beta(4, 1), mean .9). The
threshold of each test is calibrated to a false alarm rate of 5 %, on calibrated predictions with
the same confidences and sample size, so that no test gains from a wrong level. Peers: the expected
calibration error (ECE), the Kuiper statistic of cumulative differences (Arrieta-Ibarra et al.,
2022), the miscalibration of CORP, that is of isotonic regression (Dimitriadis et al., 2021),
Hosmer-Lemeshow with ten groups of equal size, and Spiegelhalter's z.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from sklearn.isotonic import isotonic_regression

from benchmarks.harness import finish, parser, record, set_threads
from skuq.calibration import TopLabelPredictions, bin_edges, bin_sums, largest_evidence

SHARES = {1: 0.8, -1: 0.2}  # shares of the permitted error for the two directions
SIZES = (200, 500, 1500)
LEVEL = 0.05
BUMPS = (0.02, 0.05, 0.1)


def scan(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Largest evidence in the audit's scan, without a tolerance but with the audit's shares."""
    sums = _sums(confidence, correct)
    mean = np.nan_to_num(sums.mean_confidence).clip(0, 1)
    return max(
        float(largest_evidence(sums.correct, sums.count, mean, sign) + np.log(share))
        for sign, share in SHARES.items()
    )


def ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error over ten uniform bins."""
    return _sums(confidence, correct).expected_calibration_error


def kuiper(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Range of the cumulative differences, divided by their standard deviation."""
    steps = (correct - confidence)[np.argsort(confidence, kind="stable")].cumsum()
    spread = np.sqrt((confidence * (1 - confidence)).sum())
    return float((max(0.0, steps.max()) - min(0.0, steps.min())) / spread)


def corp(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Brier score minus that after recalibration by isotonic regression."""
    order = np.lexsort((~correct, confidence))
    truth, claimed = correct[order].astype(float), confidence[order]
    fitted = isotonic_regression(truth)
    return float(((truth - claimed) ** 2 - (truth - fitted) ** 2).mean())


def hosmer_lemeshow(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Sum of squared standardised differences in ten groups of equal size."""
    parts = np.array_split(np.argsort(confidence, kind="stable"), 10)
    difference = np.array([(correct[part] - confidence[part]).sum() for part in parts])
    share = np.array([confidence[part].mean() for part in parts])
    size = np.array([len(part) for part in parts])
    return float((difference**2 / (size * share * (1 - share))).sum())


def spiegelhalter(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Distance of the Brier score from its expectation, standardised."""
    weight = 1 - 2 * confidence
    variance = (weight**2 * confidence * (1 - confidence)).sum()
    return float(abs(((correct - confidence) * weight).sum()) / np.sqrt(variance))


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "audit": scan,
    "ece": ece,
    "kuiper": kuiper,
    "corp": corp,
    "hosmer_lemeshow": hosmer_lemeshow,
    "spiegelhalter": spiegelhalter,
}


def _sums(confidence: np.ndarray, correct: np.ndarray):
    predictions = TopLabelPredictions(np.rint(confidence * 1e9).astype(np.int32), correct)
    return bin_sums(predictions, bin_edges(predictions.confidence, 10, "uniform"))


def bump(share: float) -> Callable[..., np.ndarray]:
    """Replace the confidence of a share of confident predictions by .56 to .58."""

    def change(confidence: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sure = np.flatnonzero(confidence > 0.75)
        faked = rng.choice(sure, round(share * len(confidence)), replace=False)
        changed = confidence.copy()
        changed[faked] = rng.uniform(0.56, 0.58, len(faked))
        return changed

    return change


def lowered(confidence: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Lower all confidences by five points."""
    return (confidence - 0.05).clip(0.5, 1)


def sharpened(confidence: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Multiply all log-odds by 1.5."""
    odds = (confidence / (1 - confidence).clip(1e-9)) ** 1.5
    return (odds / (1 + odds)).clip(0.5, 0.999)


FAULTS = {f"bump_{100 * share:g}": bump(share) for share in BUMPS}
FAULTS |= {"lowered_5_points": lowered, "sharpened": sharpened}


# Parameter of a beta distribution on .5 to 1.
CONFIDENCES = {"even": 1.0, "sure": 4.0}


def statistics(
    change: Callable[..., np.ndarray],
    shape: float,
    size: int,
    n_draws: int,
    seed: list[int],
    *,
    honest: bool,
) -> np.ndarray:
    """Compute the statistics of reference sets, of shape (n_draws, n_tests).

    Honest predictions have the same confidences, and labels drawn from these confidences.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_draws):
        truth = 0.5 + 0.499 * rng.beta(shape, 1, size)
        claimed = change(truth, rng)
        correct = rng.random(size) < (claimed if honest else truth)
        found.append([test(claimed, correct) for test in TESTS.values()])
    return np.array(found)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-draws", type=int, default=500)
    args: argparse.Namespace = arguments.parse_args()
    set_threads(args)
    records = []
    print(f"{'confidences, fault':24}{'n':>6}  " + "".join(f"{name:>17}" for name in TESTS))
    cases = itertools.product(CONFIDENCES.items(), FAULTS.items(), SIZES)
    for number, ((spread, shape), (fault, change), size) in enumerate(cases):
        calibrated, wrong = (
            statistics(change, shape, size, args.n_draws, [args.seed, number, k], honest=k == 0)
            for k in (0, 1)
        )
        threshold = np.quantile(calibrated, 1 - LEVEL, axis=0, method="higher")
        power = (wrong > threshold).mean(axis=0)
        name = f"{spread}_{fault}"
        print(f"{name:24}{size:6}  " + "".join(f"{share:17.2f}" for share in power), flush=True)
        records += [
            record(test, f"{name}_n{size}", "power", share, args.n_draws)
            for test, share in zip(TESTS, power, strict=True)
        ]
    finish("audit_peers", args, records)


if __name__ == "__main__":
    main()
