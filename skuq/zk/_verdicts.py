"""Level "verdict": inputs of its final proofs, and verdicts that could never fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq.zk._files import VERDICT, VERDICTS
from skuq.zk._fixed_point import N_ALPHAS, ROUNDING, Architecture
from skuq.zk._statements import AuditStatement, ReferenceData, VerdictStatement

VERDICT_PART = "verdict"  # name of the part on all samples; a region's number is appended to it


def verdict_inputs(
    shape: Architecture,
    tolerance: float,
    statement: VerdictStatement,
    outputs: list[list[int]],
    chunks: Sequence[int],
) -> dict[str, Any]:
    """Inputs of the final proof of a verdict, computed from the outputs of its chunks."""
    used = np.zeros(shape.n_pads, np.int64)
    used[[statement.pads[k] for k in chunks]] = 1
    return {
        "sums": np.array([outputs[k] for k in chunks], dtype=object).sum(axis=0),
        "chunks": used,
        "alphas": thresholds(statement.alpha, tolerance),
        "chance": [chance_allowance(statement.n_bins, statement.single_level)],
    }


def verdict_chunks(
    shape: Architecture, statement: AuditStatement, data: ReferenceData
) -> dict[str, list[int]]:
    """Chunks of each verdict, by part of the statement: all samples, then each region."""
    where = data.region_of_chunks(shape.rows_of("padded_bins"))
    found = {VERDICT_PART: list(range(len(where)))}
    if statement.regions is not None:
        for k in np.unique(where):  # regions without samples have no verdict
            found[f"{VERDICT_PART} {k}"] = np.flatnonzero(where == k).tolist()
    return found


def verdict_file(part: str) -> str:
    """File name of the proof of a verdict."""
    number = part.removeprefix(VERDICT_PART)
    return f"{VERDICTS}/{int(number):05d}.json" if number else VERDICT


def thresholds(alpha: float, tolerance: float) -> list[int]:
    """Thresholds of a verdict in thousandths: alpha - tolerance, alpha, alpha + tolerance."""
    middle, step = round(1000 * alpha), math.ceil(round(1000 * tolerance, 6))
    values = [max(0, middle - step), middle, min(1000, middle + step)]
    assert len(values) == N_ALPHAS
    return values


def chance_allowance(n_bins: int, confidence_level: float | None) -> int:
    """Margin for sampling error in a bin, in quarters of millionths (Hoeffding, union bound).

    Suppose that in each of B bins, the mean confidence of independent predictions is within alpha
    of their mean probability of being correct. Then, with probability at least 1 - delta,
    ``max(0, |correct - confidence| - alpha n) ** 2 <= n log(2 B / delta) / 2`` holds in all bins.
    Here, n is the size of the bin, and 1 - delta is the confidence level. Without a confidence
    level, the margin is 0, as in Algorithm 1.
    """
    if confidence_level is None:
        return 0
    return math.ceil(4e6 * math.log(2 * n_bins / (1 - confidence_level)) / 2)


def too_few_to_fail(
    n_samples: int, n_classes: int, n_bins: int, alpha: float, confidence_level: float | None
) -> str:
    """Reason why a verdict might pass for all possible labels; empty if it could fail.

    The sums are secret, so this function assumes the worst case: each possible bin contains as many
    samples as possible, while the bin still passes both if all of its predictions are correct and
    if none of them is. With one more sample, the verdict can fail.
    """
    lower, upper = np.arange(n_bins) / n_bins, np.arange(1, n_bins + 1) / n_bins
    reached = upper > 1 / n_classes - ROUNDING
    # For each bin, the larger of the two gaps if all predictions are correct and if none is. The
    # mean confidence within the bin is chosen such that this larger gap is smallest.
    gap = np.maximum(0.5, np.maximum(lower, 1 - upper))[reached] - alpha
    if (gap <= 0).any():
        return "This audit might pass whatever the true labels are: use a smaller alpha."
    allowance = chance_allowance(n_bins, confidence_level) / 4e6
    needed = int(np.floor(allowance / (gap * gap)).sum()) + 1
    if n_samples >= needed:
        return ""
    return (
        "This audit might pass whatever the true labels are: use a smaller alpha, fewer bins, or "
        f"at least {needed} reference samples instead of {n_samples}."
    )
