"""Find miscalibrated runs of neighbouring bins, and compute the power of this test.

Manipulated samples rarely fill exactly one bin, and are detected more easily if all of them are
tested together. The evidence of each run of neighbouring bins is therefore compared with the
largest evidence of models simulated at the limit of the tolerance. The test is exact at any size.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._bin_sums import BinSums, whole_sums

N_SIMULATIONS = 2000
MAX_LENGTH = 10  # maximum number of bins in a run, which limits the work for many bins
# Shares of the permitted error probability, by sign of the gap. The test for underconfidence gets
# most of it, because the Mirage attack makes confidence too low.
SHARES = {1: 0.8, -1: 0.2}
# The test of all samples gets this share of the permitted error probability, even without groups
# and regions: if groups reduced it, adding useless groups could make a failed audit pass.
ALL_SAMPLES = 0.5
Direction = Literal["underconfident", "overconfident"]
DIRECTIONS: dict[int, Direction] = {1: "underconfident", -1: "overconfident"}  # by sign of the gap
TINY = np.finfo(float).tiny  # replaces 0 in logarithms, so that 0 log(0) becomes 0
# The seed is fixed, so that the verdict of an audit depends only on its sums.
SEED = 20250
ROUNDING = 1e-9  # bound on the relative rounding error of evidence
PRECISION = 40  # number of bisection steps in the search for a gap
MAX_DOUBLINGS = 20  # maximum number of doublings in the search for the number of samples


class Finding(NamedTuple):
    first: int  # first bin of the run
    last: int  # last bin of the run
    direction: str  # "underconfident" (accuracy above the reported confidence) or "overconfident"
    evidence: float  # log likelihood ratio against the closest tolerated accuracy, in nats
    # Probability that, for a model just within the tolerance, some run has at least this evidence.
    p_value: float


class Scan(NamedTuple):
    findings: list[Finding]  # disjoint runs, most significant first
    p_value: FloatArray  # (n_bins,), of the finding that contains the bin, or of the bin alone
    # Smallest evidence that counts as a finding in each direction, in nats.
    threshold: float
    threshold_overconfident: float


def scan_bins(sums: BinSums, *, tolerance: float, level: float = 0.05) -> Scan:
    """Find runs of neighbouring bins whose accuracy deviates from confidence beyond a tolerance.

    A model within the tolerance in every bin has a finding with probability at most `level`. A run
    of n samples with accuracy a and tolerated accuracy e has the evidence ``n KL(a || e)`` if a is
    farther than e from the confidence, else 0. The test simulates the models at the limit of the
    tolerance, which have most evidence of all models within it. The level therefore holds for any
    number of samples, on average over the seed. For p-values that are too small to simulate,
    Chernoff's bound ``exp(-evidence)`` of each run is used (Hoeffding 1963, Theorem 1). With
    fractional weights, bins have their effective number of predictions (Kish).
    """
    sums = whole_sums(sums)
    n_bins = len(sums.count)
    rng = np.random.default_rng(SEED)
    runs: list[Finding] = []
    alone, thresholds = np.ones(n_bins), []
    n_compared = n_runs(n_bins)
    first, last = _ends_of_runs(n_bins)
    for sign, direction in DIRECTIONS.items():
        edge = np.clip(np.nan_to_num(sums.mean_confidence) + sign * tolerance, 0.0, 1.0)
        largest = simulated_evidence(sums.count, edge, sign, rng)
        thresholds.append(evidence_threshold(largest, level * SHARES[sign], n_compared))
        totals = _totals(sums.correct, sums.count, edge)
        right, size, tolerated = (total[last + 1] - total[first] for total in totals)
        evidence = run_evidence(right, size, tolerated / np.maximum(size, 1), sign)
        # Rounding may change evidence, so relative differences up to `ROUNDING` count as equality.
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


def planned_threshold(direction: Direction = "underconfident") -> float:
    """Return evidence, in nats, that suffices for a finding in any audit with default settings."""
    return float(np.log(n_runs(10) / (SHARES[_sign(direction)] * ALL_SAMPLES * 0.05)))


def _sign(direction: Direction) -> int:
    if direction not in get_args(Direction):
        raise ValueError(f"`direction` must be one of {get_args(Direction)}, got {direction!r}.")
    return 1 if direction == "underconfident" else -1


def _as_underconfident(confidence: ArrayLike, direction: Direction) -> FloatArray:
    """Return 1 - confidence if `direction` is "overconfident", else the confidence.

    Too few right predictions at confidence c are too many wrong predictions at confidence 1 - c.
    """
    given = np.asarray(confidence, float)
    return given if _sign(direction) > 0 else 1 - given


def n_runs(n_bins: int) -> int:
    longest = min(MAX_LENGTH, n_bins)
    return longest * (2 * n_bins - longest + 1) // 2


def _totals(correct: IntArray, count: IntArray, edge: FloatArray) -> list[NDArray[Any]]:
    """Return cumulative numbers of correct, all, and tolerated correct predictions over bins."""
    return [
        np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)
        for values in (correct, count, count * edge)
    ]


def _evidence(
    correct: IntArray, count: IntArray, edge: FloatArray, sign: int
) -> Iterator[FloatArray]:
    """Yield, for each length, the evidence of all runs of that length, (..., number of runs)."""
    totals = _totals(correct, count, edge)
    for length in range(1, min(MAX_LENGTH, edge.shape[-1]) + 1):
        k, n, expected = (total[..., length:] - total[..., :-length] for total in totals)
        limit = expected / np.maximum(n, 1)
        sets = tuple(range(k.ndim - n.ndim))
        least = k.min(axis=sets).ravel()
        possible = k.max(axis=sets).ravel() - least + 1
        if k.size <= possible.sum():
            yield run_evidence(k, n, limit, sign)
            continue
        # Many simulated sets have the same number of correct predictions in a run. Evidence is
        # therefore computed once for each possible number, and then looked up.
        start = possible.cumsum() - possible - least
        number = np.arange(possible.sum()) - np.repeat(start, possible)
        sizes, edges = np.repeat(n.ravel(), possible), np.repeat(limit.ravel(), possible)
        yield run_evidence(number, sizes, edges, sign)[start.reshape(n.shape) + k]


def run_evidence(k: NDArray[Any], n: NDArray[Any], edge: FloatArray, sign: int) -> FloatArray:
    """Return ``n KL(k / n || edge)`` if k / n is above the edge (below it for sign -1), else 0."""
    share = np.minimum(k / np.where(n > 0, n, 1), 1.0)  # rounding may put sums of weights above 1
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, other = np.maximum(share, TINY) / edge, np.maximum(1 - share, TINY) / (1 - edge)
        evidence = n * (share * np.log(ratio) + (1 - share) * np.log(other))
    # The margin excludes accuracies that equal the edge except for rounding.
    beyond = sign * (share - edge) > 1e-12
    return np.where(beyond & (n > 0), evidence, 0.0)


def largest_evidence(correct: IntArray, count: IntArray, edge: FloatArray, sign: int) -> FloatArray:
    """Return the largest evidence among all runs of each set, in nats, shape (...).

    `edge` is the accuracy at the limit of the tolerance. All arrays have shape (..., n_bins).
    """
    largest = np.zeros(correct.shape[:-1])
    for evidence in _evidence(correct, count, edge, sign):
        np.maximum(largest, evidence.max(axis=-1), out=largest)
    return largest


def simulated_evidence(
    count: IntArray, edge: FloatArray, sign: int, rng: np.random.Generator
) -> FloatArray:
    """Simulate models of accuracy `edge`; return the largest evidence of each model, sorted."""
    correct = rng.binomial(count, edge, size=(N_SIMULATIONS, len(count)))
    # Computations by bin are faster in Fortran order, in which the values of a bin are contiguous.
    return np.sort(largest_evidence(np.asfortranarray(correct), count, edge, sign))


def p_values(
    evidence: FloatArray, reached: IntArray, n_simulated: int, n_compared: int, sign: int
) -> FloatArray:
    """Compute p-values of evidence in one of two directions.

    `reached` of the `n_simulated` simulated models have at least this evidence in some of the
    `n_compared` runs or regions.
    """
    simulated = (1 + reached) / (1 + n_simulated)
    bound = np.minimum(n_compared * np.exp(-evidence), simulated)
    p = np.where(reached == 0, bound, simulated) / SHARES[sign]
    return np.where(evidence > 0, np.minimum(1.0, p), 1.0)


def evidence_threshold(largest: FloatArray, level: float, n_compared: int) -> float:
    """Return the smallest evidence with a p-value below `level` in a test of one direction."""
    # Maximum number of simulations whose evidence reaches the threshold.
    allowed = int(np.ceil(level * (1 + len(largest)))) - 2
    beyond = largest[-1 - max(0, allowed)] / (1 - ROUNDING)
    enough = float(np.nextafter(beyond, np.inf))
    return enough if allowed >= 0 else max(enough, float(np.log(n_compared / level)))


def _disjoint(runs: list[Finding]) -> list[Finding]:
    """Select the most significant runs that do not overlap; in a tie, prefer the shortest run."""
    chosen: list[Finding] = []
    for run in sorted(runs, key=lambda r: (r.p_value, -round(r.evidence, 9), r.last - r.first)):
        if all(run.last < other.first or run.first > other.last for other in chosen):
            chosen.append(run)
    return chosen


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, tail: float
) -> tuple[FloatArray, FloatArray]:
    """Compute exact lower and upper limits of a binomial probability, two arrays (n,).

    Each limit is wrong with probability at most `tail` (Clopper, Pearson, "The Use of Confidence or
    Fiducial Limits Illustrated in the Case of the Binomial", Biometrika 26(4), 1934).
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
    tolerance: float,
    threshold: float,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> FloatArray:
    """Return the smallest gap that a test of each bin alone detects with probability `power`.

    `threshold` is the smallest evidence for a finding in this direction, in nats. Gaps (n_bins,)
    are positive in both directions, and NaN where even an accuracy of 1 (or 0) is not detected.
    """
    _check_power(power)
    confidence = _as_underconfident(confidence, direction)
    count, confidence = np.broadcast_arrays(np.asarray(count), confidence)
    least = _least_significant(count, confidence + tolerance, threshold)
    possible = (count > 0) & (least <= count)
    # The p that solves P(K >= k | p) = power is a quantile of the beta distribution.
    with np.errstate(invalid="ignore"):
        accuracy = beta.ppf(power, least, count - least + 1)
    return np.where(possible, accuracy - confidence, np.nan)


def detectable_shift(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    tolerance: float,
    threshold: float,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> float:
    """Return the smallest gap that, if all bins have it, is detected with probability `power`.

    A test of one run, the most favourable one, detects it; a scan of all runs may detect a smaller
    gap. The result is NaN if no run detects any gap. Confidence plus gap is clipped to [0, 1].
    """
    _check_power(power)
    confidence = np.nan_to_num(_as_underconfident(confidence, direction))
    size, claimed = _bins_of_runs(np.asarray(count), confidence)
    total = size.sum(axis=1)
    least = _least_significant(total, _accuracy_of_runs(size, claimed, total, tolerance), threshold)
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
    """Compute the mean accuracy of each run if every bin's accuracy is confidence plus gap."""
    return (size * np.minimum(claimed + gap, 1.0)).sum(axis=1) / np.maximum(total, 1)


def _ends_of_runs(n_bins: int) -> tuple[IntArray, IntArray]:
    """Return the first and the last bin of each run, ordered by length, shape (n_runs,)."""
    length = np.arange(min(MAX_LENGTH, n_bins))[:, None]  # number of bins after the first
    first = np.broadcast_to(np.arange(n_bins), (len(length), n_bins))
    inside = first + length < n_bins
    return first[inside], (first + length)[inside]


def _bins_of_runs(count: IntArray, confidence: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the bins' counts (padded with 0) and confidences per run, (n_runs, longest run)."""
    first, last = _ends_of_runs(len(count))
    bins = first[:, None] + np.arange(min(MAX_LENGTH, len(count)))
    inside = bins <= last[:, None]
    bins = np.minimum(bins, len(count) - 1)
    return np.where(inside, count[bins], 0), confidence[bins]


def required_samples(
    gap: ArrayLike,
    confidence: ArrayLike,
    *,
    tolerance: float,
    threshold: float | None = None,
    power: float = 0.8,
    direction: Direction = "underconfident",
) -> FloatArray:
    """Return the number of predictions that a bin needs for a given gap to be detected.

    Parameters
    ----------
    gap : array-like of shape (n_bins,)
        True accuracy minus confidence, above `tolerance`; for overconfidence, confidence minus
        true accuracy.
    confidence : array-like of shape (n_bins,)
        Mean confidence of the bin.
    tolerance : float
        Tolerated distance between accuracy and confidence.
    threshold : float, default=None
        Smallest evidence for a finding in this direction, in nats. Default: the evidence that
        suffices in any audit of all samples with ten bins and a confidence level of 0.95.
    power : float, default=0.8
        Probability of detecting the gap, in (0, 1).
    direction : {"underconfident", "overconfident"}, default="underconfident"
        Deviation to be detected: "underconfident" if confidence is too low.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Smallest number of predictions with which the test has this power; infinite if `gap` is not
        above `tolerance`, or a million predictions are too few. Accuracies are clipped to [0, 1].

    Examples
    --------
    >>> from skuq.calibration import required_samples
    >>> required_samples([0.5, 0.2, 0.04], 0.45, tolerance=0.05)
    array([ 21., 249.,  inf])
    """
    _check_power(power)
    if threshold is None:
        threshold = planned_threshold(direction)
    claimed = _as_underconfident(confidence, direction)
    gap, claimed = np.broadcast_arrays(np.asarray(gap, float), claimed)
    needed = [
        _required(min(g, 1 - c), c, tolerance, threshold, power)
        for g, c in zip(gap.ravel(), claimed.ravel(), strict=True)
    ]
    return np.array(needed).reshape(gap.shape)


def _check_power(power: float) -> None:
    if not 0 < power < 1:
        raise ValueError(f"`power` must be in (0, 1), got {power}.")


def _least_significant(count: IntArray, edge: FloatArray | float, threshold: float) -> FloatArray:
    """Return the smallest number of right predictions with evidence >= threshold, or infinity."""
    edge = np.clip(np.nan_to_num(edge, nan=1.0), 0.0, 1.0)
    low, high = np.zeros(count.shape, np.int64), count + 1
    while (low < high).any():  # bisect: evidence never falls with more correct predictions
        middle = (low + high) // 2
        enough = run_evidence(middle, count, edge, 1) >= threshold
        low = np.where(enough | (low >= high), low, middle + 1)
        high = np.where(enough, middle, high)
    return np.where(low <= count, low, np.inf)


def _required(
    gap: float, confidence: float, tolerance: float, threshold: float, power: float
) -> float:
    if gap <= tolerance:
        return np.inf

    def enough(count: IntArray) -> BoolArray:
        least = _least_significant(count, confidence + tolerance, threshold)
        return (least <= count) & (binom.sf(least - 1, count, confidence + gap) >= power)

    reached = np.flatnonzero(enough(2 ** np.arange(MAX_DOUBLINGS + 1)))
    if len(reached) == 0:
        return np.inf
    # Test every smaller number too, because power is not monotonic in the number of samples.
    candidates = np.arange(1, 2 ** reached[0] + 1)
    return float(candidates[enough(candidates).argmax()])
