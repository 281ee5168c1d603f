"""Statements, sums, thresholds and samples; their form is in ``alterations.json``."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from skuq.calibration import BinSums, bin_sums
from skuq.calibration import TopLabelPredictions as Recorded
from skuq.zk import _statements as st
from skuq.zk._files import FORMAT, VerificationError, write_json
from skuq.zk._fixed_point import Architecture, IntegerPredictions
from skuq.zk._results import judge
from skuq.zk._spot_check import chosen_rows, read_reports, sample_size
from tests.zk.tampering import ONE

TREE = [0, 0.5, None, [1, 0.5, None, None]]  # three regions
COMMITTED = SimpleNamespace(
    shape=Architecture((2, 3), 20, 3, 5, 6, 10, 13, {"padded_bins": 4}),
    encoding=SimpleNamespace(columns=[None] * 2),
)
COMMON = {"format": FORMAT, "versions": {}, "commitment_digest": "c", "reference_digest": "r"}
AUDIT = {"alpha": 0.05, "n_bins": 10, "confidence_level": 0.95, "n_samples": 7, "regions": None}
LIMITS = [  # entry, impossible values, possible ones
    ("alpha", [1.001, -0.001, 0.0505, 1e306], [0.0, 0.999, 1.0]),
    ("n_bins", [11, 0], [1, 10]),
    ("confidence_level", [1.0, 0.0], [None, 0.5]),
    ("n_samples", [0, 4, 9], [5, 8]),
    ("pads", [[0], [1, 1], [0, 6], [0, -1], [0, 1, 2]], [[5, 0]]),
]


@pytest.mark.parametrize(("name", "impossible", "possible"), LIMITS)
def test_impossible_values_are_refused_and_the_limits_accepted(name, impossible, possible):
    def found(**settings):
        record = {**COMMON, **AUDIT, "level": "verdict", "pads": [2, 0], **settings}
        return st.VerdictStatement.of(record).impossible(COMMITTED) or "possible"

    for value in impossible:
        assert name in found(**{name: value}) or found(**{name: value}) == "the list of pads"
    assert [found(**{name: value}) for value in possible] == ["possible"] * len(possible)
    more = {"level": "predictions", "reported_digest": "d", "nonce": "n"}
    for n, may in ((0, False), (1, True), (7, True), (8, False)):
        proven = st.SpotCheckStatement.of({**COMMON, **AUDIT, **more, "n_proven": n})
        assert (proven.impossible(COMMITTED) is None) == may
    # 7 samples in chunks of 4, of three regions: 2 to 4 chunks.
    pads = [found(pads=list(range(n)), regions=TREE) for n in range(1, 6)]
    assert pads == ["the list of pads", *["possible"] * 3, "the list of pads"]


def drawn(rng, n, n_classes=3):
    found = IntegerPredictions(rng.integers(n_classes, size=n), rng.integers(1, ONE + 1, size=n))
    return found, rng.integers(n_classes, size=n)


@pytest.mark.parametrize(("n_bins", "most"), [(1, 1), (1, 10), (4, 10), (7, 10), (10, 10), (3, 3)])
def test_sums_that_were_read_are_those_of_the_auditor_in_the_open(n_bins, most):
    found, codes = drawn(np.random.default_rng(n_bins), 300)
    found.confidence[:2] = 1, ONE
    edge = -(-ONE * np.arange(1, n_bins) // n_bins)  # they belong to the upper bins
    found.confidence[2 : 2 + len(edge)] = edge
    found.confidence[20 : 20 + len(edge)] = edge - 1
    totals = st.signed_sums(found, codes, n_bins, most)
    sums = st.read_sums(totals, n_bins, most)
    limits = np.array([math.ceil(b * ONE / n_bins) for b in range(n_bins + 1)])
    np.testing.assert_array_equal(sums.edges, limits)
    right = found.label == codes
    theirs = bin_sums(Recorded(found.confidence.astype(np.int32), right), limits)
    inside = np.minimum(found.confidence * n_bins // ONE, n_bins - 1) == np.arange(n_bins)[:, None]
    by_hand = {"count": 1, "confidence": found.confidence, "correct": right}
    for name, values in by_hand.items():
        np.testing.assert_array_equal(getattr(sums, name), getattr(theirs, name))
        np.testing.assert_array_equal(getattr(sums, name), (inside * values).sum(axis=1))
    assert sums.scale == ONE
    parts = [slice(start, start + 125) for start in range(0, 300, 125)]
    chunks = [st.signed_sums(found.of(part), codes[part], n_bins, most) for part in parts]
    assert np.sum(chunks, axis=0).tolist() == totals


def test_a_verdict_is_about_alpha_and_alpha_minus_and_plus_tolerance():
    assert st.thresholds(0.05, 0.005) == st.thresholds(0.05, 0.0041) == [45, 50, 55]
    assert st.thresholds(0.05, 0.004) == [46, 50, 54]
    assert st.thresholds(0.0, 0.01) == [0, 0, 10]
    assert st.thresholds(1.0, 0.2) == [800, 1000, 1000]


@pytest.mark.parametrize(("n_bins", "level"), [(1, 0.5), (10, 0.95), (10, 0.99), (3, 0.05)])
def test_chance_is_the_bound_of_hoeffding_in_quarters_of_millionths(n_bins, level):
    bound = math.log(2 * n_bins / (1 - level)) / 2
    assert 0 <= st.chance_allowance(n_bins, level) / 4e6 - bound < 1 / 4e6
    assert st.chance_allowance(n_bins, None) == 0


def passes(count, confidence, correct, alpha, chance):
    """The rule of level "verdict" for one bin."""
    excess = np.maximum(0, np.abs(correct - confidence) - alpha * count)
    return 4e6 * excess**2 <= count * chance


def test_a_model_within_alpha_passes_at_least_as_often_as_the_level_says():
    n, n_bins, alpha = 100, 10, 0.05
    confidence = (np.arange(n_bins) + 0.5) / n_bins
    right = np.clip(confidence + alpha, 0, 1)
    correct = np.random.default_rng(0).binomial(n, right, size=(2000, n_bins))
    found = passes(n, n * confidence, correct, alpha, st.chance_allowance(n_bins, 0.8))
    assert 0.8 < found.all(axis=1).mean() <= 1


def question(**settings):
    return st.AuditStatement.of({**COMMON, **AUDIT, "level": "bins", **settings})


def asking(n_bins, alpha, confidence_level):
    return question(n_bins=n_bins, alpha=alpha, confidence_level=confidence_level)


@pytest.mark.parametrize(
    ("alpha", "passed", "robust"),
    [(0.05, False, True), (0.09, False, False), (0.11, True, False), (0.2, True, True)],
)
def test_a_verdict_that_differs_at_alpha_minus_or_plus_some_is_not_robust(alpha, passed, robust):
    total = (np.array([v]) for v in (100, 80, 90 * ONE))  # 10 points too confident
    found = judge(BinSums(np.array([0, ONE]), *total, ONE), asking(1, alpha, None), 0.02)
    assert (found.passed, found.robust) == (passed, robust)


def test_a_sample_is_the_smallest_that_is_large_enough():
    for share, error in product((0.01, 0.5, 0.99), (0.001, 0.3)):
        k = sample_size(share, error)
        assert (1 - share) ** k <= error < (1 - share) ** (k - 1)
    assert sample_size(0.02, 0.01) == 228  # as the documentation says
    assert sample_size(1e-310, 0.01) > 10**15
    for share, error, name in ((0, 0.1, "share"), (1, 0.1, "share"), (0.1, 0, "error")):
        with pytest.raises(ValueError, match=name):
            sample_size(share, error)


REPORTS = {"label": [0, 1], "confidence": [1, ONE], "reference_digest": "r"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"label": label}, "impossible") for label in ([0, 2], [-1, 0])),
        *(({"confidence": value}, "impossible") for value in ([0, 9], [1, ONE + 1], [1, 10**30])),
        *(({name: [1]}, "one prediction per") for name in ("label", "confidence")),
        ({"reference_digest": "s"}, "different reference data"),
    ],
)
def test_reports_are_possible_and_of_the_same_data(tmp_path, change, message):
    stated = SimpleNamespace(n_samples=2, reference_digest="r")
    write_json(tmp_path / "reported.json", REPORTS)
    assert [part.tolist() for part in read_reports(tmp_path, stated, 2)] == [[0, 1], [1, ONE]]
    write_json(tmp_path / "reported.json", {**REPORTS, **change})
    with pytest.raises(VerificationError, match=message):
        read_reports(tmp_path, stated, 2)


def chosen(nonce="a", n=200, k=20, **others):
    """Rows that follow from what was fixed before any row is chosen."""
    fixed = {"commitment_digest": "c", "reference_digest": "r", "reported_digest": "p"}
    stated = SimpleNamespace(**{**fixed, "nonce": nonce, **others})
    return chosen_rows(stated, np.zeros(n, np.int64), k).tolist()


def test_chosen_rows_depend_on_all_that_was_fixed_before_the_challenge_and_on_nothing_else():
    for k in (1, 7, 50):
        rows = chosen(n=50, k=k)
        assert rows == sorted(set(rows) & set(range(50)))
        assert len(rows) == k
    assert set(chosen(k=10)) < set(chosen(k=30))
    for name in ("commitment_digest", "reference_digest", "reported_digest", "nonce"):
        assert chosen(**{name: "other"}) != chosen()
    # Else a provider could try many statements until the rows suit it.
    for name in ("alpha", "confidence_level", "versions", "anything"):
        assert chosen(**{name: "c"}) == chosen()


def test_no_row_is_chosen_more_often_than_chance_allows():
    counts = np.bincount(np.ravel([chosen(nonce, 20, 5) for nonce in range(1000)]), minlength=20)
    # Each is binomial with mean 250 and deviation 13.7.
    assert 190 < counts.min() <= counts.max() < 310


@pytest.mark.parametrize("n_pads", [2, 2**61, 10**30])
def test_committed_numbers_are_counted_exactly_however_many(n_pads):
    shape = Architecture((4, 3), 21, 3, 5, n_pads, 8, 13, {})
    assert shape.n_committed == 5 * 3 + 5 + n_pads * 3 * 3 * 8


def always_passes(bins, alpha, chance):
    """Whether (samples, mean confidence) of each bin pass if all are right, and if none is."""
    ends = [(n, n * mean, right) for n, mean in bins for right in (0, n)]
    return all(passes(*each, alpha, chance) for each in ends)


def needed_by(n_classes, *asked):
    found = st.too_few_to_fail(0, n_classes, asking(*asked))
    return int(found.split("at least ")[1].split()[0])


@pytest.mark.parametrize(
    ("n_classes", "n_bins", "alpha", "confidence_level"),
    [
        *((2, 10, 0.05, None), (2, 1, 0.0, 0.5), (3, 4, 0.1, 0.95), (5, 7, 0.2, None)),
        *((2, 5, 0.4, 0.95), (30, 10, 0.05, 0.5)),
    ],
)
def test_with_the_needed_samples_some_labels_fail_a_verdict_wherever_confidences_are(
    n_classes, n_bins, alpha, confidence_level
):
    chance = st.chance_allowance(n_bins, confidence_level)
    needed = needed_by(n_classes, n_bins, alpha, confidence_level)
    assert not st.too_few_to_fail(needed, n_classes, asking(n_bins, alpha, confidence_level))
    rng = np.random.default_rng(0)
    for spread in np.repeat([0.1, 1.0, 10.0], 60):
        drawn = rng.multinomial(needed, rng.dirichlet(np.full(200, spread)))
        means = rng.uniform(1 / n_classes, 1, 200)
        places = np.minimum((means * n_bins).astype(int), n_bins - 1)
        counts = np.bincount(places, drawn, n_bins)
        totals = np.bincount(places, drawn * means, n_bins)
        bins = [(n, total / n) for n, total in zip(counts, totals, strict=True) if n]
        assert not always_passes(bins, alpha, chance)


@pytest.mark.parametrize(
    ("n_classes", "n_bins", "alpha"), [(2, 10, 0.05), (2, 1, 0.0), (4, 4, 0.1), (2, 4, 0.2)]
)
def test_with_one_sample_less_all_labels_may_pass_a_verdict(n_classes, n_bins, alpha):
    chance, total = st.chance_allowance(n_bins, 0.95), 0
    for b in range(n_bins):
        low, high = max(b / n_bins, 1 / n_classes - 0.0009), (b + 1) / n_bins - 1e-9
        mean = min(max(0.5, low), high)
        n = 0
        while mean >= low and always_passes([(n + 1, mean)], alpha, chance):
            n += 1
        total += n
    assert total == needed_by(n_classes, n_bins, alpha, 0.95) - 1


def test_the_default_question_needs_the_samples_that_the_guide_names():
    assert needed_by(2, 10, 0.05, 0.95) == 54
    assert "use a smaller tolerance." in st.too_few_to_fail(10**9, 2, asking(10, 0.5, 0.95))
    assert st.too_few_to_fail(10**9, 2, asking(10, 0.499, 0.95)) == ""
