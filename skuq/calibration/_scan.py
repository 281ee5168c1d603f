"""Scan for miscalibrated runs of neighbouring bins, and the statistical power of the scan.

Manipulated confidence rarely aligns with bin edges, and a few manipulated samples suffice for
detection if they are tested together. For every run of neighbouring bins, the scan computes the
evidence that the distance between accuracy and confidence exceeds the tolerance. It compares the
largest evidence with the largest evidence of simulated models that are just within the tolerance in
every bin. This test is exact at any sample size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import beta, binom

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._bin_sums import BinSums, whole_sums

N_SIMULATIONS = 2000
MAX_LENGTH = 10  # maximum number of bins in a run, which limits the work for many bins
# Mirage makes confidence too low, so the test for underconfidence receives most of the permitted
# error probability.
SHARES = {1: 0.8, -1: 0.2}
Direction = Literal["underconfident", "overconfident"]
DIRECTIONS: dict[int, Direction] = {1: "underconfident", -1: "overconfident"}  # by sign of the gap
# The seed is fixed, so that the verdict of an audit depends only on its sums.
SEED = 20250
ROUNDING = 1e-9  # relative tolerance; rounding changes evidence by less than this
PRECISION = 40  # bisection steps in the search for a gap
MAX_DOUBLINGS = 20  # maximum number of doublings in the search for the number of samples


class Finding(NamedTuple):
    """A run of neighbouring bins whose deviation cannot be explained by chance.

    Attributes
    ----------
    first, last : int
        First and last bin of the run.
    direction : {"underconfident", "overconfident"}
        Whether accuracy is above or below the reported confidence.
    evidence : float
        Log likelihood ratio of the accuracy against the closest tolerated accuracy, in nats.
    p_value : float
        Probability that a model just within the tolerance has evidence at least this large in any
        run, in either direction.
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
        Disjoint runs, most significant first.
    p_value : ndarray of shape (n_bins,), float64
        p-value of the finding that contains the bin; for a bin outside of all findings, the p-value
        of this bin alone.
    threshold, threshold_overconfident : float
        Smallest evidence of an underconfident run, and of an overconfident run, that counts as a
        finding, in nats.
    """

    findings: list[Finding]
    p_value: FloatArray
    threshold: float
    threshold_overconfident: float


def scan_bins(sums: BinSums, *, alpha: float, level: float = 0.05) -> Scan:
    """Find runs of neighbouring bins whose accuracy differs from confidence by more than alpha.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin, or sums of weights.
    alpha : float
        Tolerated distance between accuracy and confidence of each bin, in [0, 1].
    level : float, default=0.05
        Probability of at least one finding for a model within alpha.

    Returns
    -------
    Scan

    Notes
    -----
    A run has up to ten neighbouring bins. If a run has n samples, accuracy a and tolerated
    accuracy e, its evidence is ``n KL(a || e)`` if a is beyond e, and 0 if not. The largest
    evidence over all runs (a scan statistic [1]_) is compared with the largest evidence of
    simulated reference sets of the same sizes and confidences. The accuracy of these sets is alpha
    above confidence in every bin, and in a second test alpha below confidence. The first test
    uses four fifths of the level and the second test uses one fifth, because the audit
    mainly looks for lowered confidence.

    Among all models within alpha, models at the limit have the largest evidence, since an
    additional correct prediction never lowers the evidence of underconfidence. As a Monte Carlo
    test, the scan keeps the level for any number of samples, on average over its seed; with 2000
    simulations, the level for a single reference set may differ by about a tenth of its value. If
    confidences within a bin differ, labels vary less than in the simulations. If simulation cannot
    resolve a p-value, it is computed from Chernoff's bound ``exp(-evidence)`` for each run [2]_.
    Simulations have a fixed seed.

    With fractional weights w, each bin is tested with its effective number of predictions,
    ``sum(w)**2 / sum(w**2)`` rounded down. The accuracy of this number of unweighted predictions
    has the same variance as the weighted accuracy of the bin [3]_. The binomial tails for this
    number are approximations, like similar confidence limits for surveys [4]_; the guide reports
    how often calibrated models were flagged.

    References
    ----------
    .. [1] Kulldorff, "A Spatial Scan Statistic", Communications in Statistics 26, 1997.
    .. [2] Hoeffding, "Probability Inequalities for Sums of Bounded Random Variables", Journal
       of the American Statistical Association 58, 1963, Theorem 1.
    .. [3] Kish, "Survey Sampling", Wiley 1965, Section 11.7.
    .. [4] Korn, Graubard, "Confidence Intervals for Proportions With Small Expected Number of
       Positive Counts Estimated From Survey Data", Survey Methodology 24, 1998.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, scan_bins
    >>> edges, count = np.arange(6) * 20, np.array([0, 0, 13, 9, 90])
    >>> sums = BinSums(edges, count, np.array([0, 0, 12, 6, 82]), count * (edges[1:] - 10), 100)
    >>> [finding[:3] for finding in scan_bins(sums, alpha=0.05).findings]
    [(2, 2, 'underconfident')]
    """
    sums = whole_sums(sums)
    n_bins = len(sums.count)
    rng = np.random.default_rng(SEED)
    runs: list[Finding] = []
    alone, thresholds = np.ones(n_bins), []
    n_compared = n_runs(n_bins)
    first, last = _ends_of_runs(n_bins)
    for sign, direction in DIRECTIONS.items():
        edge = np.clip(np.nan_to_num(sums.mean_confidence) + sign * alpha, 0.0, 1.0)
        largest = simulated_evidence(sums.count, edge, sign, rng)
        thresholds.append(evidence_threshold(largest, level * SHARES[sign], n_compared))
        totals = _totals(sums.correct, sums.count, edge)
        right, size, tolerated = (total[last + 1] - total[first] for total in totals)
        evidence = run_evidence(right, size, tolerated / np.maximum(size, 1), sign)
        # Evidence that is equal may differ by rounding: compare with a tolerance.
        below = np.searchsorted(largest, evidence * (1 - ROUNDING), side="left")
        p = p_values(evidence, N_SIMULATIONS - below, N_SIMULATIONS, n_compared, sign)
        alone = np.minimum(alone, p[:n_bins])
        runs += [
            Finding(int(first[k]), int(last[k]), direction, float(evidence[k]), float(p[k]))
            for k in np.flatnonzero(p < level)
        ]
    findings = _disjoint(runs)
    for finding in findings:
        alone[finding.first : finding.last + 1] = finding.p_value
    return Scan(findings, alone, *thresholds)


def planned_threshold(
    n_bins: int = 10,
    *,
    level: float = 0.05,
    n_families: int = 1,
    direction: Direction = "underconfident",
) -> float:
    """Return the evidence that suffices for a finding in any reference set, to plan an audit.

    Parameters
    ----------
    n_bins : int, default=10
        Number of bins.
    level : float, default=0.05
        Probability of at least one finding for a model within alpha.
    n_families : int, default=1
        Number of sets of samples that are audited: all samples, and each group.
    direction : {"underconfident", "overconfident"}, default="underconfident"
        Deviation to be found: confidence that is too low, or too high.

    Returns
    -------
    float
        Evidence in nats; the threshold that `scan_bins` simulates is usually lower.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold
    >>> round(planned_threshold(10), 2)
    7.23
    """
    return float(np.log(n_runs(n_bins) * n_families / (SHARES[_sign(direction)] * level)))


def _sign(direction: Direction) -> int:
    for sign, name in DIRECTIONS.items():
        if name == direction:
            return sign
    raise ValueError(f"`direction` must be 'underconfident' or 'overconfident', got {direction!r}.")


def _as_underconfident(confidence: ArrayLike, direction: Direction) -> FloatArray:
    """Confidences that turn a test for overconfidence into a test for underconfidence.

    The evidence for too few right predictions at confidence c equals the evidence for too many
    wrong predictions at confidence 1 - c.
    """
    given = np.asarray(confidence, float)
    return given if _sign(direction) > 0 else 1 - given


def n_runs(n_bins: int) -> int:
    """Number of runs that are tested."""
    longest = min(MAX_LENGTH, n_bins)
    return longest * (2 * n_bins - longest + 1) // 2


def _totals(correct: IntArray, count: IntArray, edge: FloatArray) -> list[NDArray[Any]]:
    """Correct, all and tolerated predictions up to each bin, shape (..., n_bins + 1)."""
    return [
        np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)
        for values in (correct, count, count * edge)
    ]


def _evidence(
    correct: IntArray, count: IntArray, edge: FloatArray, sign: int
) -> Iterator[FloatArray]:
    """Evidence of all runs by length: arrays of shape (..., n_bins - length + 1), in nats."""
    totals = _totals(correct, count, edge)
    for length in range(1, min(MAX_LENGTH, edge.shape[-1]) + 1):
        k, n, expected = (total[..., length:] - total[..., :-length] for total in totals)
        yield _evidence_of(k, n, expected / np.maximum(n, 1), sign)


def _evidence_of(k: IntArray, n: IntArray, edge: FloatArray, sign: int) -> FloatArray:
    """`run_evidence` of one or many reference sets of the same sizes.

    A run of n predictions has n + 1 possible numbers of correct ones. If these are fewer than the
    reference sets, the evidence of each number is computed once.
    """
    if k.size <= n.size + n.sum():
        return run_evidence(k, n, edge, sign)
    possible = n.ravel() + 1
    start = possible.cumsum() - possible
    number = np.arange(possible.sum()) - np.repeat(start, possible)
    sizes, edges = np.repeat(n.ravel(), possible), np.repeat(edge.ravel(), possible)
    return run_evidence(number, sizes, edges, sign)[start.reshape(n.shape) + k]


def run_evidence(k: NDArray[Any], n: NDArray[Any], edge: FloatArray, sign: int) -> FloatArray:
    """``n KL(k / n || edge)`` where k / n is beyond the edge, else 0, in nats."""
    share = np.minimum(k / np.where(n > 0, n, 1), 1.0)  # rounded sums of weights may exceed 1
    with np.errstate(divide="ignore", invalid="ignore"):
        evidence = n * (xlogy(share, share / edge) + xlogy(1 - share, (1 - share) / (1 - edge)))
    # Rounding must not put a simulated accuracy that equals the edge beyond the edge.
    beyond = sign * (share - edge) > 1e-12
    return np.where(beyond & (n > 0), evidence, 0.0)


def largest_evidence(correct: IntArray, count: IntArray, edge: FloatArray, sign: int) -> FloatArray:
    """Compute the scan's statistic: the largest evidence among the runs of each reference set.

    Parameters
    ----------
    correct, count : ndarray of shape (..., n_bins), int64
        Numbers of correct predictions and of all predictions per bin, of one or more sets.
    edge : ndarray of shape (..., n_bins), float64
        Largest (or smallest) tolerated accuracy of each bin, in [0, 1].
    sign : {1, -1}
        1 to test for accuracies above the edge (underconfidence), -1 for accuracies below it.

    Returns
    -------
    ndarray of shape (...), float64
        Evidence in nats; 0 if no run is beyond the edge.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import largest_evidence
    >>> largest_evidence(np.array([9, 5]), np.array([10, 10]), np.array([0.6, 0.5]), 1).round(2)
    np.float64(2.26)
    """
    largest = np.zeros(correct.shape[:-1])
    for evidence in _evidence(correct, count, edge, sign):
        np.maximum(largest, evidence.max(axis=-1), out=largest)
    return largest


def simulated_evidence(
    count: IntArray, edge: FloatArray, sign: int, rng: np.random.Generator
) -> FloatArray:
    """Sorted largest evidence of simulated models at the edge, shape (N_SIMULATIONS,)."""
    correct = rng.binomial(count, edge, size=(N_SIMULATIONS, len(count)))
    return np.sort(largest_evidence(correct, count, edge, sign))


def p_values(
    evidence: FloatArray, reached: IntArray, n_simulated: int, n_compared: int, sign: int
) -> FloatArray:
    """p-values of the largest evidence, tested in one of two directions.

    `reached` is the number of simulated models with at least this evidence, and `n_compared` the
    number of runs or regions over which the maximum was computed.
    """
    simulated = (1 + reached) / (1 + n_simulated)
    bound = np.minimum(n_compared * np.exp(-evidence), simulated)
    p = np.where(reached == 0, bound, simulated) / SHARES[sign]
    return np.where(evidence > 0, np.minimum(1.0, p), 1.0)


def evidence_threshold(largest: FloatArray, level: float, n_compared: int) -> float:
    """Smallest evidence whose p-value, simulated in one direction, is below a level."""
    # Number of simulations that may reach the threshold.
    allowed = int(np.ceil(level * (1 + len(largest)))) - 2
    beyond = largest[-1 - max(0, allowed)] / (1 - ROUNDING)
    enough = float(np.nextafter(beyond, np.inf))
    return enough if allowed >= 0 else max(enough, float(np.log(n_compared / level)))


def _disjoint(runs: list[Finding]) -> list[Finding]:
    """Most significant runs that do not overlap; in a tie, the shortest run is preferred."""
    chosen: list[Finding] = []
    for run in sorted(runs, key=lambda r: (r.p_value, -round(r.evidence, 9), r.last - r.first)):
        if all(run.last < other.first or run.first > other.last for other in chosen):
            chosen.append(run)
    return chosen


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, tail: float
) -> tuple[FloatArray, FloatArray]:
    """Exact binomial limits of a probability, each wrong with probability at most `tail`.

    Parameters
    ----------
    successes, trials : array-like of shape (n,)
        Numbers of successes and of trials.
    tail : float
        Probability, in (0, 1), that the lower limit lies above the true value, and that the upper
        limit lies below the true value.

    Returns
    -------
    low, high : ndarray of shape (n,), float64
        Limits in [0, 1].

    References
    ----------
    .. [1] Clopper, Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of
       the Binomial", Biometrika 26(4), 1934.

    Examples
    --------
    >>> from skuq.calibration import clopper_pearson
    >>> low, high = clopper_pearson([0, 45], [50, 50], tail=0.025)
    >>> low.round(3), high.round(3)
    (array([0.   , 0.782]), array([0.071, 0.967]))
    """
    successes, trials = np.asarray(successes), np.asarray(trials)
    with np.errstate(invalid="ignore"):
        low = beta.ppf(tail, successes, trials - successes + 1)
        high = beta.isf(tail, successes + 1, trials - successes)
    return np.where(successes > 0, low, 0.0), np.where(successes < trials, high, 1.0)


def detectable_gap(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> FloatArray:
    """Return the smallest gap that an audit detects with probability `power`.

    Parameters
    ----------
    count, confidence : array-like of shape (n_bins,)
        Number of predictions in each bin and their mean confidence.
    alpha : float
        Tolerated distance between accuracy and confidence.
    threshold : float
        Smallest evidence for a finding in this direction, in nats, from `scan_bins` or
        `planned_threshold`.
    power : float, default=0.8
        Probability of detecting the gap, in (0, 1).
    direction : {"underconfident", "overconfident"}, default="underconfident"
        Deviation to be found: confidence that is too low, or too high.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Positive distance between true accuracy and confidence, for each bin alone; NaN where even
        an accuracy of 1 (or 0, for overconfidence) would not be detected with that probability.

    Examples
    --------
    >>> from skuq.calibration import detectable_gap, planned_threshold
    >>> threshold = planned_threshold()
    >>> detectable_gap([5, 50, 500], [0.5, 0.5, 0.5], alpha=0.05, threshold=threshold).round(2)
    array([ nan, 0.35, 0.15])
    """
    _check_power(power)
    confidence = _as_underconfident(confidence, direction)
    count, confidence = np.broadcast_arrays(np.asarray(count), confidence)
    least = _least_significant(count, confidence + alpha, threshold)
    possible = (count > 0) & (least <= count)
    # The p that solves P(K >= k | p) = power is a quantile of the beta distribution.
    with np.errstate(invalid="ignore"):
        accuracy = beta.ppf(power, least, count - least + 1)
    return np.where(possible, accuracy - confidence, np.nan)


def detectable_shift(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> float:
    """Return the smallest gap, common to all bins, that the scan would detect.

    It is the smallest gap that a single run detects with probability `power`; the scan of all
    runs may detect a smaller gap. NaN if no gap would be detected. The accuracy of bins with high
    confidence is capped at 1; for overconfidence, the accuracy of bins with low confidence is at
    least 0.
    """
    _check_power(power)
    confidence = np.nan_to_num(_as_underconfident(confidence, direction))
    size, claimed = _bins_of_runs(np.asarray(count), confidence)
    total = size.sum(axis=1)

    least = _least_significant(total, _accuracy_of_runs(size, claimed, total, alpha), threshold)
    possible = (total > 0) & (least <= total)
    if not possible.any():
        return math.nan
    size, claimed = size[possible], claimed[possible]
    total, least = total[possible], least[possible]
    needed = beta.ppf(power, least, total - least + 1)  # as in `detectable_gap`
    low, high = 0.0, 1.0
    for _ in range(PRECISION):
        middle = (low + high) / 2
        enough = (_accuracy_of_runs(size, claimed, total, middle) >= needed).any()
        low, high = (low, middle) if enough else (middle, high)
    return high


def _accuracy_of_runs(
    size: IntArray, claimed: FloatArray, total: IntArray, gap: float
) -> FloatArray:
    """Mean accuracy of each run if that of each bin exceeds its confidence by the gap."""
    right: FloatArray = (size * np.minimum(claimed + gap, 1.0)).sum(axis=1)
    return right / np.maximum(total, 1)


def _ends_of_runs(n_bins: int) -> tuple[IntArray, IntArray]:
    """First and last bin of each run, by length, shape (n_runs,)."""
    length = np.arange(min(MAX_LENGTH, n_bins))[:, None]  # beyond the first bin
    first = np.broadcast_to(np.arange(n_bins), (len(length), n_bins))
    inside = first + length < n_bins
    return first[inside], (first + length)[inside]


def _bins_of_runs(count: IntArray, confidence: FloatArray) -> tuple[IntArray, FloatArray]:
    """Counts and confidences of the bins of each run, shape (n_runs, longest run), 0-padded."""
    first, last = _ends_of_runs(len(count))
    bins = first[:, None] + np.arange(min(MAX_LENGTH, len(count)))
    inside = bins <= last[:, None]
    bins = np.minimum(bins, len(count) - 1)
    return np.where(inside, count[bins], 0), confidence[bins]


def required_samples(
    gap: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> FloatArray:
    """Return the number of predictions in a bin that is needed to detect a given gap.

    Parameters
    ----------
    gap : array-like of shape (n_bins,)
        True accuracy minus confidence, larger than `alpha`; for overconfidence, confidence minus
        true accuracy.
    confidence : array-like of shape (n_bins,)
        Mean confidence of the bin.
    alpha, threshold, power, direction
        As in `detectable_gap`.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Smallest number of predictions for which the test has the given power; infinite if `gap` is
        not larger than `alpha`, or if a million predictions are not enough. An accuracy above 1
        counts as 1, and an accuracy below 0 counts as 0.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold, required_samples
    >>> threshold = planned_threshold()
    >>> required_samples([0.5, 0.2, 0.04], 0.45, alpha=0.05, threshold=threshold)
    array([ 16., 227.,  inf])
    """
    _check_power(power)
    claimed = _as_underconfident(confidence, direction)
    gap, claimed = np.broadcast_arrays(np.asarray(gap, float), claimed)
    needed = [
        _required(min(g, 1 - c), c, alpha, threshold, power)
        for g, c in zip(gap.ravel(), claimed.ravel(), strict=True)
    ]
    return np.array(needed).reshape(gap.shape)


def _check_power(power: float) -> None:
    if not 0 < power < 1:
        raise ValueError(f"`power` must be in (0, 1), got {power}.")


def _least_significant(count: IntArray, edge: FloatArray | float, threshold: float) -> FloatArray:
    """Smallest number of correct predictions whose evidence reaches the threshold, or infinity."""
    edge = np.clip(np.nan_to_num(edge, nan=1.0), 0.0, 1.0)
    low, high = np.zeros(count.shape, np.int64), count + 1
    while (low < high).any():  # bisection; more correct predictions never lower evidence
        middle = (low + high) // 2
        enough = run_evidence(middle, count, edge, 1) >= threshold
        low, high = (
            np.where(enough | (low >= high), low, middle + 1),
            np.where(enough, middle, high),
        )
    return np.where(low <= count, low, np.inf)


def _required(gap: float, confidence: float, alpha: float, threshold: float, power: float) -> float:
    if gap <= alpha:
        return np.inf

    def enough(count: IntArray) -> BoolArray:
        least = _least_significant(count, confidence + alpha, threshold)
        return (least <= count) & (binom.sf(least - 1, count, confidence + gap) >= power)

    reached = np.flatnonzero(enough(2 ** np.arange(MAX_DOUBLINGS + 1)))
    if len(reached) == 0:
        return np.inf
    # Power is not monotonic in the number of samples, so every smaller number is tested.
    candidates = np.arange(1, 2 ** reached[0] + 1)
    return float(candidates[enough(candidates).argmax()])
