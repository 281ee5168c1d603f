"""Search for regions of the inputs in which confidence is wrong, with a test that is exact."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration import _scan
from skuq.calibration._bin_sums import SCALE, TopLabelPredictions
from skuq.calibration._conditions import LEAST, Conditions, checked_conditions, conditions_of
from skuq.calibration._scan import DIRECTIONS, SHARES, evidence_threshold, run_evidence
from skuq.imports import shown
from skuq.validation import whole_groups

MAX_SIMULATIONS = 500
WORK = 5 * 10**6  # maximum of samples times simulations: above 10,000 samples, simulate less often
MOST_PAIRED = 400  # with more conditions on the inputs, no two of them are combined to a region
MOST_FINDINGS = 5  # maximum number of regions in the result
TOLERANCE_PRECISION = 5e-3  # width at which the bisection of a tolerance stops
FIRST_GUESS = 0.1  # initial tolerance of regions
N_SIMULATED = 5  # number of reference sets for which thresholds are simulated
# For regions that trees learn: their share of the search's permitted error probability, the maximum
# number of training samples, and the maximum number of learned regions that are tested.
LEARNED, MAX_LEARNED, N_LEARNED = 1 / 3, 5_000, 20
TREES = {"n_estimators": 40, "max_depth": 4, "subsample": 0.5, "max_features": 0.5}
CONFIDENCE = object()  # stands for the reported confidence in place of a column name


class Region(NamedTuple):
    """A region of the inputs in which accuracy differs from confidence more than by chance.

    Attributes
    ----------
    conditions : dict
        Intervals or values by column, in the form that `region_mask` accepts.
    confidence_range : tuple of float
        Interval of reported confidence, including both endpoints; (0, 1) without such a condition.
    count : int
        Number of samples, or sum of their weights (a float if any weight is fractional).
    confidence, accuracy, gap : float
        Mean reported confidence, fraction of correct predictions, and accuracy - confidence.
    gap_low, gap_high : float
        Confidence limits of the gap that hold for all searched regions together (exact binomial,
        Bonferroni).
    direction : {"underconfident", "overconfident"}
        Whether accuracy is above or below the reported confidence.
    evidence : float
        Log likelihood ratio of the accuracy against the closest tolerated accuracy, in nats.
    p_value : float
        Probability that, for a model just within the tolerance, some region has at least this
        evidence; corrected for all tests of the audit.
    """

    conditions: dict[Any, Any]
    confidence_range: tuple[float, float]
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here
    confidence: float
    accuracy: float
    gap: float
    gap_low: float
    gap_high: float
    direction: str
    evidence: float
    p_value: float

    @property
    def rule(self) -> str:
        """The region in words, such as "age <= 30 and education = Bachelors"."""
        parts = [
            _condition_text(f"column {name}" if isinstance(name, int | np.integer) else name, rule)
            for name, rule in self.conditions.items()
        ]
        low, high = self.confidence_range
        if low > 0 or high < 1:
            ends = [None if end in (0, 1) else round(100 * end, 7) for end in (low, high)]
            parts.append(_condition_text("confidence in %", tuple(ends)))
        return " and ".join(parts)


class RegionSearch(NamedTuple):
    regions: list[Region]  # at most five disjoint regions, most significant first
    n_searched: int  # number of tested regions of one or two conditions
    n_samples: int  # number of samples that were used, or the sum of their weights
    # Smallest evidence that counts as a finding in each direction, in nats.
    threshold: float
    threshold_overconfident: float
    left_out: dict[str, tuple[int, int]] = {}  # as in `Conditions`


def search_regions(
    X: Any,
    predictions: TopLabelPredictions,
    *,
    tolerance: float,
    confidence_level: float = 0.95,
    n_families: float = 1,
    weight: NDArray[Any] | None = None,
    codes: IntArray | None = None,
    random_state: int = 0,
) -> RegionSearch:
    """Find regions of the inputs whose accuracy differs from confidence by more than tolerance.

    `X` is a table of n_samples rows (numbers, texts and missing values), or its `Conditions`. The
    probability of a false finding is at most ``(1 - confidence_level) / n_families``. A sample of
    integer `weight` w counts as w independent samples, a sample of fractional weight as one. In
    simulations, outcomes of samples with equal `codes` are as dependent as possible.

    The evidence of each region of one or two conditions is compared with the largest evidence of
    all regions for simulated labels (Kulldorff 1997), because the same samples serve to find and to
    test a region. Boosted trees (Friedman 2002) also learn regions of up to four conditions, from
    one half of the samples. These are tested with the other half, to which their counts refer
    (exact binomial, Bonferroni), with the share `LEARNED` of the permitted error probability. A
    hash of `random_state` and of the pattern of right predictions selects the halves, and the
    samples of too large tables. Without the labels, nobody can predict this selection.
    """
    seed = search_seed(predictions, random_state)
    conditions = checked_conditions(X, len(predictions.confidence), seed)
    share = n_families / (1 - LEARNED), n_families / LEARNED
    level = (1 - confidence_level) / share[0]
    samples = _samples(conditions, predictions, weight, codes)
    pairs = _pairs(samples)
    n_pairs, total = len(pairs), samples.number.sum().item()
    if n_pairs == 0:
        return RegionSearch([], 0, total, np.inf, np.inf, conditions.left_out)
    rng = np.random.default_rng(_scan.SEED)
    n_simulated = min(MAX_SIMULATIONS, WORK // len(samples.correct))
    found: list[_Candidate] = []
    thresholds = []
    for sign in DIRECTIONS:
        evidence, largest = _evidence(samples, pairs, tolerance, sign, n_simulated, rng)
        thresholds.append(evidence_threshold(largest, level * SHARES[sign], n_pairs))
        below = np.searchsorted(largest, evidence * (1 - _scan.ROUNDING), side="left")
        p = _scan.p_values(evidence, n_simulated - below, n_simulated, n_pairs, sign)
        found += [
            _Candidate(min(1.0, share[0] * p[k]), float(evidence[k]), sign, {*pairs[k].tolist()})
            for k in np.flatnonzero(p < level)
        ]
    learned, tested = _learned(samples, tolerance, seed)
    corrected = [each._replace(p_value=min(1.0, share[1] * each.p_value)) for each in learned]
    found += [each for each in corrected if each.p_value < 1 - confidence_level]
    tail = (1 - confidence_level) / n_families / (2 * (n_pairs + N_LEARNED))
    regions = [_region(each, samples, tested, tail) for each in _disjoint(found, samples)]
    low, high = thresholds
    return RegionSearch(regions, n_pairs, total, low, high, conditions.left_out)


def _learned(samples: _Samples, tolerance: float, seed: int) -> tuple[list[_Candidate], BoolArray]:
    order = np.random.default_rng(seed).permutation(len(samples.correct))
    learn, tested = order[: len(order) // 2][:MAX_LEARNED], np.zeros(len(order), bool)
    tested[order[len(order) // 2 :]] = True
    if samples.codes is not None:  # do not divide a group between learning and testing
        tested = whole_groups(tested, samples.codes)
        learn = learn[~tested[learn]]
    if len(learn) < 4 * LEAST:
        return [], tested
    from sklearn.ensemble import GradientBoostingRegressor

    deviation, weight = samples.correct - samples.confidence, samples.number[learn].astype(float)
    trees = GradientBoostingRegressor(**TREES, random_state=0)
    trees.fit(samples.masks[:, learn].T, deviation[learn], sample_weight=weight)
    place = {mask.tobytes(): k for k, mask in enumerate(samples.masks)}
    negation = [place.get((~mask).tobytes()) for mask in samples.masks]
    leaves = set().union(*(_leaves(tree.tree_, negation) for tree in trees.estimators_[:, 0]))
    found = []
    for leaf in (leaf for leaf in sorted(leaves) if leaf and leaf[0] < samples.n_inputs):
        inside = samples.masks[[*leaf]].all(axis=0)
        for sign in DIRECTIONS:
            evidence = _evidence_inside(samples, inside & ~tested, tolerance, sign)[0]
            found.append((evidence, sign, leaf, inside & tested))
    candidates = []
    for _, sign, leaf, inside in sorted(found, key=lambda each: -each[0])[:N_LEARNED]:
        evidence, right, size, limit = _evidence_inside(samples, inside, tolerance, sign)
        if evidence > 0 and inside.sum() >= LEAST:
            # `betainc` computes the binomial tail, and accepts sums of weights as well as counts.
            tail = (right, size - right + 1, limit), (size - right, right + 1, 1 - limit)
            p = N_LEARNED * float(betainc(*tail[sign < 0]))
            candidates.append(_Candidate(p, evidence, sign, {*leaf}, True))
    return candidates, tested


def _leaves(
    tree: Any, negation: list[int | None], node: int = 0, path: tuple[int, ...] = ()
) -> set[tuple[int, ...]]:
    """Return the conditions on each leaf's path; unmet ones become their `negation`, if any."""
    if tree.children_left[node] < 0:
        return {path}
    met = int(tree.feature[node])
    ways = (tree.children_left[node], negation[met]), (tree.children_right[node], met)
    paths = [(child, path if k is None else tuple(sorted({*path, k}))) for child, k in ways]
    return set().union(*(_leaves(tree, negation, *each) for each in paths))


def _evidence_inside(
    samples: _Samples, inside: BoolArray, tolerance: float, sign: int
) -> tuple[float, float, float, float]:
    """Return evidence, effective numbers of right predictions and samples, tolerated accuracy."""
    number = samples.number[inside]
    size = max(1e-9, number.sum())
    unit = size / max(1e-9, samples.squares[inside].sum())
    limit = _tolerated((samples.confidence[inside] * number).sum() / size, tolerance, sign)
    right, size = float(unit * samples.number_right[inside].sum()), float(unit * size)
    evidence = float(run_evidence(np.array(right), np.array(size), limit, sign))
    return evidence, right, size, float(limit)


def search_seed(predictions: TopLabelPredictions, random_state: int) -> int:
    """Compute a seed from the pattern of right predictions, which only the labels reveal."""
    content = np.packbits(predictions.correct).tobytes() + str(random_state).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:16], "big")


def region_tolerance(
    draws: Sequence[tuple[Conditions, TopLabelPredictions]], confidence_level: float
) -> float:
    """Find the tolerance with which a fraction `confidence_level` of `draws` has no findings."""
    tolerance = FIRST_GUESS
    for _ in range(2):
        thresholds = np.mean(
            [_thresholds(*draw, tolerance, confidence_level) for draw in draws[:N_SIMULATED]],
            axis=0,
        )
        needed = [_needed_tolerance(*draw, thresholds) for draw in draws]
        tolerance = float(np.quantile(needed, confidence_level, method="higher"))
    return tolerance


def _thresholds(
    conditions: Conditions,
    predictions: TopLabelPredictions,
    tolerance: float,
    confidence_level: float,
) -> list[float]:
    """Simulate evidence thresholds for both directions in audits that also test all samples."""
    samples = _samples(conditions, predictions)
    pairs, rng = _pairs(samples), np.random.default_rng(_scan.SEED)
    n_simulated = min(MAX_SIMULATIONS, WORK // len(samples.correct))
    return [
        evidence_threshold(
            _evidence(samples, pairs, tolerance, sign, n_simulated, rng)[1],
            (1 - confidence_level) * (1 - _scan.ALL_SAMPLES) * (1 - LEARNED) * SHARES[sign],
            len(pairs),
        )
        for sign in DIRECTIONS
    ]


def _needed_tolerance(
    conditions: Conditions, predictions: TopLabelPredictions, thresholds: FloatArray
) -> float:
    """Find by bisection the smallest tolerance with which all evidence is below `thresholds`."""
    samples = _samples(conditions, predictions)
    pairs = _pairs(samples)
    size, right = (
        _sum(samples, pairs, each).astype(np.int64) for each in (samples.number, samples.correct)
    )
    claimed = _sum(samples, pairs, samples.confidence) / size
    low, high = 0.0, 1.0
    while high - low > TOLERANCE_PRECISION:
        middle = (low + high) / 2
        passes = all(
            run_evidence(right, size, _tolerated(claimed, middle, sign), sign).max() < threshold
            for sign, threshold in zip(DIRECTIONS, thresholds, strict=True)
        )
        low, high = (low, middle) if passes else (middle, high)
    return high


class _Samples(NamedTuple):
    rules: list[tuple[Any, Any]]  # conditions on the inputs, then on the confidence
    masks: BoolArray  # (n_conditions, n_samples), whether a sample meets a condition
    n_inputs: int  # number of conditions on the inputs
    confidence: FloatArray
    correct: BoolArray
    weight: NDArray[Any] | None
    codes: IntArray | None = None

    @property
    def number(self) -> NDArray[Any]:
        """Weight of each sample, or 1 if `weight` is None, (n_samples,)."""
        return np.ones_like(self.correct) if self.weight is None else self.weight

    @property
    def is_fractional(self) -> bool:
        return self.weight is not None and self.weight.dtype.kind == "f"

    @property
    def squares(self) -> NDArray[Any]:
        """Contribution of each sample to sum(w**2), which effective counts need, (n_samples,)."""
        if self.codes is not None:
            return self.number * np.bincount(self.codes, weights=self.number)[self.codes]
        return self.number**2 if self.is_fractional else self.number

    @property
    def number_right(self) -> NDArray[Any]:
        return self.correct if self.weight is None else self.correct * self.weight


class _Candidate(NamedTuple):
    p_value: float  # corrected for all tests of the audit
    evidence: float
    sign: int
    conditions: set[int]
    is_learned: bool = False


def _samples(
    conditions: Conditions,
    predictions: TopLabelPredictions,
    weight: NDArray[Any] | None = None,
    codes: IntArray | None = None,
) -> _Samples:
    if weight is not None and not weight.all():
        counted = weight > 0
        conditions, weight = conditions.without(~counted), weight[counted]
        predictions, codes = predictions.at(counted), None if codes is None else codes[counted]
    rows = conditions.rows
    confidence = predictions.confidence[rows] / SCALE
    reported = conditions_of(confidence[:, None])
    masks = np.concatenate([conditions.masks, reported.masks])
    rules = conditions.rules + [(CONFIDENCE, rule) for _, rule in reported.rules]
    # If several conditions have equal masks, keep the first of these.
    _, kept = np.unique(np.packbits(masks, axis=1), axis=0, return_index=True)
    size = masks.sum(axis=1)
    kept = np.sort(kept[(size[kept] >= LEAST) & (size[kept] < len(rows))])
    n_inputs = int((kept < len(conditions.rules)).sum())
    rules, correct = [rules[k] for k in kept], predictions.correct[rows]
    weight, codes = (None if each is None else each[rows] for each in (weight, codes))
    return _Samples(rules, masks[kept], n_inputs, confidence, correct, weight, codes)


def _pairs(samples: _Samples) -> IntArray:
    """Return pairs of conditions (k, k: condition k alone) met by enough samples, (n_pairs, 2)."""
    masks = samples.masks.astype(np.float32)
    enough = np.tril(masks @ masks.T >= LEAST)
    # Skip regions of confidence alone, because the scan over bins tests these.
    enough[:, samples.n_inputs :] = False
    if samples.n_inputs > MOST_PAIRED:
        alone = np.eye(samples.n_inputs, dtype=bool)
        enough[: samples.n_inputs, : samples.n_inputs] &= alone
    return np.argwhere(enough)


def _evidence(
    samples: _Samples,
    pairs: IntArray,
    tolerance: float,
    sign: int,
    n_simulated: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Return each pair's evidence, and the largest evidence of any pair per simulation (sorted)."""
    edge = _tolerated(samples.confidence, tolerance, sign)
    correct = np.column_stack(
        [samples.number_right, _simulated_correct(samples, edge, n_simulated, rng)]
    )
    correct = correct.astype(np.float32)
    masks = samples.masks.astype(np.float32)
    size = _sum(samples, pairs, samples.number)
    expected = _sum(samples, pairs, edge * samples.number)
    # The tolerated accuracy of a sample, confidence +- tolerance, is clipped to [0, 1]. Its mean in
    # a region (`expected / size`) can therefore be closer to the mean confidence than `tolerance`.
    # Simulated labels are tested against this mean. Observed labels are tested against `allowed`,
    # which loses some evidence, but ensures that every finding deviates by more than `tolerance`.
    claimed = _sum(samples, pairs, samples.confidence * samples.number) / size
    allowed = _tolerated(claimed, tolerance, sign)
    # Rescale the weights of each region so that they add up to its effective number of samples.
    unit = size / _sum(samples, pairs, samples.squares)
    size, expected = unit * size, unit * expected
    evidence, largest = np.zeros(len(pairs)), np.zeros(1 + n_simulated)
    for first in np.unique(pairs[:, 0]):
        here = np.flatnonzero(pairs[:, 0] == first)
        inside = np.flatnonzero(samples.masks[first])
        right = masks[np.ix_(pairs[here, 1], inside)] @ correct[inside]
        if samples.is_fractional:
            right *= unit[here, None].astype(np.float32)
        evidence[here] = run_evidence(right[:, 0].astype(float), size[here], allowed[here], sign)
        _raise_to_largest(largest, right, size[here], expected[here], sign)
    return evidence, np.sort(largest[1:])


def _simulated_correct(
    samples: _Samples, edge: FloatArray, n_simulated: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Simulate `number_right` for models of accuracy `edge`, (n_samples, n_simulated)."""
    shape = len(edge), n_simulated
    if samples.weight is not None and not samples.is_fractional:
        return rng.binomial(samples.weight[:, None], edge[:, None], shape)
    if samples.codes is None:
        drawn = rng.random(shape, dtype=np.float32)
    else:
        drawn = rng.random((samples.codes.max() + 1, n_simulated), dtype=np.float32)[samples.codes]
    right = drawn < edge[:, None]
    return right if samples.weight is None else right * samples.weight[:, None]


def _tolerated(confidence: FloatArray, tolerance: float, sign: int) -> FloatArray:
    return np.clip(confidence + sign * tolerance, 0.0, 1.0)


def _sum(samples: _Samples, pairs: IntArray, values: FloatArray | BoolArray) -> FloatArray:
    """Sum `values` over the samples that meet both conditions of each pair, (n_pairs,)."""
    return ((samples.masks * values) @ samples.masks.T.astype(float))[*pairs.T]


def _raise_to_largest(
    largest: FloatArray,
    right: NDArray[np.float32],
    size: FloatArray,
    expected: FloatArray,
    sign: int,
) -> None:
    """Raise each entry of `largest`, (n_sets,), in place to the largest evidence of the regions."""
    # KL(a || e) is at most (a - e)**2 / (e (1 - e)). It takes longer to compute than this bound, so
    # compute it only where the bound exceeds the largest evidence. `right` is (n_regions, n_sets).
    share = expected / size
    width = sign * np.sqrt(np.maximum(expected * (1 - share), 1e-12))
    most = (right - expected[:, None].astype(np.float32)) / width[:, None].astype(np.float32)
    k, column = np.nonzero(most > (1 - 1e-3) * np.sqrt(largest).astype(np.float32))
    values = run_evidence(right[k, column].astype(float), size[k], share[k], sign)
    np.maximum.at(largest, column, values)


def _disjoint(found: list[_Candidate], samples: _Samples) -> list[_Candidate]:
    """Select the most significant disjoint regions; among equals, those with fewest conditions."""
    chosen: list[_Candidate] = []
    taken = np.zeros(len(samples.correct), bool)
    for each in sorted(found, key=lambda c: (c.p_value, -round(c.evidence, 9), len(c.conditions))):
        inside = samples.masks[[*each.conditions]].all(axis=0)
        if len(chosen) < MOST_FINDINGS and not (inside & taken).any():
            chosen.append(each)
            taken |= inside
    return chosen


def _region(each: _Candidate, samples: _Samples, tested: BoolArray, tail: float) -> Region:
    inside = samples.masks[[*each.conditions]].all(axis=0)
    inside = inside & tested if each.is_learned else inside
    number = samples.number[inside]
    count, correct = number.sum().item(), samples.number_right[inside].sum().item()
    confidence = float(np.average(samples.confidence[inside], weights=number))
    whole = int(count**2 / samples.squares[inside].sum() + 1e-6) if samples.is_fractional else count
    share = whole * (correct / count) if samples.is_fractional else correct
    low, high = _scan.clopper_pearson(share, whole, tail)
    conditions: dict[Any, Any] = {}
    for k in each.conditions:
        name, rule = samples.rules[k]
        conditions[name] = _intersection(conditions[name], rule) if name in conditions else rule
    reported = conditions.pop(CONFIDENCE, (None, None))
    if not isinstance(reported, tuple):  # the rule is one confidence, not an interval
        reported = (reported, reported)
    ends = 0.0 if reported[0] is None else reported[0], 1.0 if reported[1] is None else reported[1]
    accuracy, p = correct / count, each.p_value
    gap, least, most = (float(end) - confidence for end in (accuracy, low, high))
    side, evidence = DIRECTIONS[each.sign], each.evidence
    return Region(
        conditions, ends, count, confidence, accuracy, gap, least, most, side, evidence, p
    )


def _condition_text(name: Any, rule: Any) -> str:
    name = shown(name)
    if not isinstance(rule, tuple):
        return f"{name} is missing" if rule is None else f"{name} = {_value(rule)}"
    low, high = rule
    if low == high:
        return f"{name} = {_value(low)}"
    if low is None:
        return f"{name} <= {_value(high)}"
    return (
        f"{name} >= {_value(low)}" if high is None else f"{_value(low)} <= {name} <= {_value(high)}"
    )


def _value(value: Any) -> str:
    """Format a value with all digits, because a rounded limit would describe another region."""
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else shown(value)


def _intersection(one: Any, other: Any) -> Any:
    if not isinstance(one, tuple):
        return one
    if not isinstance(other, tuple):
        return other
    ends = list(zip(one, other, strict=True))
    low = max((end for end in ends[0] if end is not None), default=None)
    return low, min((end for end in ends[1] if end is not None), default=None)
