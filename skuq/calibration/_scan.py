"""Scan for miscalibration over runs of neighbouring bins, exact at any sample size.

Faked confidence rarely keeps to the bins of a table, and few of its samples suffice if they
are looked at together. The scan takes every run of neighbouring bins, measures by how much
accuracy is beyond the tolerated distance from confidence, and compares the largest evidence
with that of simulated models that are just within the tolerance in every bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from skuq.base import FloatArray, IntArray
from skuq.calibration._sums import BinSums

N_SIMULATIONS = 2000
MAX_LENGTH = 10  # bins of a run; all runs of ten bins, and bounded work with hundreds
# Mirage makes confidence too low: most of the error probability goes to finding that.
SHARES = {1: 0.8, -1: 0.2}
DIRECTIONS = {1: "underconfident", -1: "overconfident"}  # by the sign of the gap
# Fixed, so that the sums of an audit determine its verdict.
SEED = 20250
ROUNDING = 1e-9  # relative; equal evidence of different runs may differ by less


class Finding(NamedTuple):
    """A run of neighbouring bins whose deviation chance does not explain.

    Attributes
    ----------
    first, last : int
        First and last bin of the run.
    direction : {"underconfident", "overconfident"}
        Whether accuracy is above or below the reported confidence.
    evidence : float
        Log likelihood ratio of the accuracy against the closest that is tolerated, in nats.
    p_value : float
        Probability of evidence this large anywhere, in either direction, for a model just
        within the tolerance.
    """

    first: int
    last: int
    direction: str
    evidence: float
    p_value: float


class Scan(NamedTuple):
    """Result of `scan_bins`.

    Attributes
    ----------
    findings : list of Finding
        Disjoint runs, most striking first.
    p_value : ndarray of shape (n_bins,), float64
        For each bin that of its finding, else of the bin by itself.
    threshold : float
        Evidence from which on an underconfident run is a finding, in nats.
    """

    findings: list[Finding]
    p_value: FloatArray
    threshold: float


def scan_bins(sums: BinSums, *, alpha: float, level: float = 0.05) -> Scan:
    """Find the runs of neighbouring bins whose accuracy is further than alpha from confidence.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.
    alpha : float
        Tolerated distance between accuracy and confidence of each bin, in [0, 1].
    level : float, default=0.05
        Probability of any finding for a model that keeps to alpha.

    Returns
    -------
    Scan

    Notes
    -----
    A run is up to ten neighbouring bins. One with n samples, of which a share a was right
    while at most a share e was tolerated, has the evidence ``n KL(a || e)`` if a is beyond e
    (a scan statistic [1]_). The largest over all runs is compared with simulated reference
    sets of the same sizes and confidences, whose accuracy is alpha above confidence in every
    bin, and in a second test alpha below. The tests take four fifths and one fifth of the
    level, because lowered confidence is what is sought. Among all models within alpha, those at
    its edge give the largest evidence, since another correct prediction never lowers it. As a
    Monte Carlo test this keeps to the level whatever the number of samples, on average over its
    seed: with 2000 simulations the level for one given reference set may differ by about a tenth
    of it. Where confidences within a bin differ, labels vary less than simulated. Where simulation
    cannot resolve the p-value, Chernoff's bound ``exp(-evidence)`` for each run is used [2]_.
    Simulations have a fixed seed.

    References
    ----------
    .. [1] Kulldorff, "A Spatial Scan Statistic", Communications in Statistics 26, 1997.
    .. [2] Hoeffding, "Probability Inequalities for Sums of Bounded Random Variables", Journal
       of the American Statistical Association 58, 1963, Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, scan_bins
    >>> edges, count = np.arange(6) * 20, np.array([0, 0, 13, 9, 90])
    >>> sums = BinSums(edges, count, np.array([0, 0, 12, 6, 82]), count * (edges[1:] - 10), 100)
    >>> [finding[:3] for finding in scan_bins(sums, alpha=0.05).findings]
    [(2, 2, 'underconfident')]
    """
    n_bins = len(sums.count)
    rng = np.random.default_rng(SEED)
    runs: list[Finding] = []
    alone, thresholds = np.ones(n_bins), []
    n_compared = n_runs(n_bins)
    for sign, direction in DIRECTIONS.items():
        edge = np.clip(np.nan_to_num(sums.mean_confidence) + sign * alpha, 0.0, 1.0)
        largest = simulated_evidence(sums.count, edge, sign, rng)
        thresholds.append(evidence_threshold(largest, level * SHARES[sign], n_compared))
        for length, evidence in enumerate(_evidence(sums.correct, sums.count, edge, sign), 1):
            # Rounding may separate equal evidence: as large up to that counts as large.
            below = np.searchsorted(largest, evidence * (1 - ROUNDING), side="left")
            p = p_values(evidence, N_SIMULATIONS - below, N_SIMULATIONS, n_compared, sign)
            if length == 1:
                alone = np.minimum(alone, p)
            runs += [
                Finding(first, first + length - 1, direction, float(value), float(chance))
                for first, (value, chance) in enumerate(zip(evidence, p, strict=True))
                if chance < level
            ]
    findings = _disjoint(runs)
    for finding in findings:
        alone[finding.first : finding.last + 1] = finding.p_value
    return Scan(findings, alone, thresholds[0])


def planned_threshold(n_bins: int = 10, *, level: float = 0.05, n_families: int = 1) -> float:
    """Evidence that suffices for a finding whatever the reference set: for planning one.

    Parameters
    ----------
    n_bins : int, default=10
        Number of bins.
    level : float, default=0.05
        Probability of any finding for a model that keeps to alpha.
    n_families : int, default=1
        Sets of samples that are audited: all of them, and each group.

    Returns
    -------
    float
        In nats; the threshold that `scan_bins` finds by simulation is usually lower.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold
    >>> round(planned_threshold(10), 2)
    7.23
    """
    return float(np.log(n_runs(n_bins) * n_families / (SHARES[1] * level)))


def n_runs(n_bins: int) -> int:
    """Count the runs that are compared."""
    longest = min(MAX_LENGTH, n_bins)
    return longest * (2 * n_bins - longest + 1) // 2


def _evidence(
    correct: IntArray, count: IntArray, edge: FloatArray, sign: int
) -> Iterator[FloatArray]:
    """Evidence of all runs, by length: arrays of shape (..., n_bins - length + 1), in nats."""
    right, size, tolerated = (
        np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)
        for values in (correct, count, count * edge)
    )
    for length in range(1, min(MAX_LENGTH, edge.shape[-1]) + 1):
        k, n, expected = (
            total[..., length:] - total[..., :-length] for total in (right, size, tolerated)
        )
        yield run_evidence(k, n, expected / np.maximum(n, 1), sign)


def run_evidence(k: IntArray, n: IntArray, edge: FloatArray, sign: int) -> FloatArray:
    """``n KL(k / n || edge)`` where k / n is beyond the edge, else 0, in nats."""
    share = k / np.maximum(n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        evidence = n * (xlogy(share, share / edge) + xlogy(1 - share, (1 - share) / (1 - edge)))
    # Simulated accuracies at the edge itself must not count as beyond it by rounding.
    beyond = sign * (share - edge) > 1e-12
    return np.where(beyond & (n > 0), evidence, 0.0)


def largest_evidence(correct: IntArray, count: IntArray, edge: FloatArray, sign: int) -> FloatArray:
    """Largest evidence among the runs of each reference set: arrays (..., n_bins), in nats."""
    largest = np.zeros(correct.shape[:-1])
    for evidence in _evidence(correct, count, edge, sign):
        np.maximum(largest, evidence.max(axis=-1), out=largest)
    return largest


def simulated_evidence(
    count: IntArray, edge: FloatArray, sign: int, rng: np.random.Generator
) -> FloatArray:
    """Largest evidence for accuracies at the edge, sorted, shape (N_SIMULATIONS,)."""
    correct = rng.binomial(count, edge, size=(N_SIMULATIONS, len(count)))
    return np.sort(largest_evidence(correct, count, edge, sign))


def p_values(
    evidence: FloatArray, reached: IntArray, n_simulated: int, n_compared: int, sign: int
) -> FloatArray:
    """p-values of evidence that so many simulated models reach in one of two directions.

    `n_compared` is the number of runs, or of other parts of the samples, of which the evidence
    is the largest.
    """
    simulated = (1 + reached) / (1 + n_simulated)
    bound = np.minimum(n_compared * np.exp(-evidence), simulated)
    p = np.where(reached == 0, bound, simulated) / SHARES[sign]
    return np.where(evidence > 0, np.minimum(1.0, p), 1.0)


def evidence_threshold(largest: FloatArray, level: float, n_compared: int) -> float:
    """Smallest evidence with a p-value below a level, in one direction, by simulations."""
    allowed = int(np.ceil(level * (1 + len(largest)))) - 2  # simulations that may reach it
    beyond = largest[-1 - max(0, allowed)] / (1 - ROUNDING)
    enough = float(np.nextafter(beyond, np.inf))
    return enough if allowed >= 0 else max(enough, float(np.log(n_compared / level)))


def _disjoint(runs: list[Finding]) -> list[Finding]:
    """The most striking runs that do not overlap; of equal ones the shorter."""
    chosen: list[Finding] = []
    for run in sorted(runs, key=lambda r: (r.p_value, -round(r.evidence, 9), r.last - r.first)):
        if all(run.last < other.first or run.first > other.last for other in chosen):
            chosen.append(run)
    return chosen
