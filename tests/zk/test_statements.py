"""Statements and their validator, public inputs, sums, thresholds and samples."""

import math
from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ezkl")

from skuq.calibration import BinSums, bin_sums
from skuq.calibration import TopLabelPredictions as Recorded
from skuq.zk import VerificationError
from skuq.zk import _ezkl as backend
from skuq.zk._circuits import edges
from skuq.zk._files import FORMAT, REPORTED, canonical, write_json
from skuq.zk._fixed_point import CONFIDENCE_BITS, Architecture, IntegerPredictions
from skuq.zk._public_commitment import Column, Encoding
from skuq.zk._results import judge
from skuq.zk._spot_check import chosen_rows, read_reports, sample_size
from skuq.zk._statements import (
    CONTEXT_BITS,
    FORMS,
    KINDS,
    AuditStatement,
    ReferenceData,
    chance_allowance,
    context,
    encoded,
    n_outputs,
    prediction_outputs,
    public_inputs,
    read_predictions,
    read_statement,
    read_sums,
    signed_sums,
    thresholds,
    too_few_to_fail,
)

ONE = 1 << CONFIDENCE_BITS
TREE = [0, 0.5, None, [1, 0.5, None, None]]  # three regions
COMMITTED = SimpleNamespace(
    digest="c0" * 32,
    shape=Architecture((2, 3), 20, 3, 5, 6, 10, 13, dict.fromkeys(("bins", "padded_bins"), 4)),
    encoding=SimpleNamespace(columns=[None] * 2),
    classes=["a", "b", "c"],
    record={"n_attestations": 8},
)
COMMON = {
    "format": FORMAT,
    "versions": {"skuq": "0.1.0", "ezkl": backend.VERSION},
    "commitment_digest": COMMITTED.digest,
}
AUDIT = {
    **COMMON,
    "alpha": 0.05,
    "n_bins": 10,
    "confidence_level": 0.95,
    "n_samples": 7,
    "reference_digest": "4e" * 32,
    "regions": None,
}
STATEMENTS = {
    "bins": {**AUDIT, "level": "bins"},
    "verdict": {**AUDIT, "level": "verdict", "pads": [2, 0]},
    "predictions": {
        **AUDIT,
        "level": "predictions",
        "reported_digest": "d5" * 32,
        "nonce": "ab",
        "n_proven": 7,
    },
    "attestation": {
        **COMMON,
        "level": "attestation",
        "x": [0.5, 1.0],
        "label": 2,
        "confidence": 1 << 14,
        "nonce": "ab",
        "number": 8,
    },
}
IMPOSSIBLE = [
    *(("bins", {"alpha": v}) for v in (1.1, -0.1)),
    *(("bins", {"n_bins": v}) for v in (11, 0)),
    *(("bins", {"confidence_level": v}) for v in (1.0, 0.0)),
    ("bins", {"n_samples": 0}),
    *(("verdict", {"alpha": v}) for v in (0.0505, 1e306)),
    *(("verdict", {"pads": v}) for v in ([0], [1, 1], [0, 6], [0, -1], [0, 1, 2])),
    # 7 samples in chunks of 4, of three regions: 2 to 4 chunks.
    ("verdict", {"pads": [0, 1, 2, 3, 4], "regions": TREE}),
    *(("predictions", {"n_proven": v}) for v in (8, 0)),
    *(("attestation", {"label": v}) for v in (3, -1)),
    *(("attestation", {"confidence": v}) for v in (0, ONE + 1)),
    *(("attestation", {"number": v}) for v in (0, 9)),
]
POSSIBLE = [
    *(("bins", {"alpha": v}) for v in (0.0, 1.0)),
    ("bins", {"n_bins": 1}),
    ("bins", {"confidence_level": None}),
    ("bins", {"n_samples": 1}),
    ("verdict", {"alpha": 0.999}),
    *(("verdict", {"n_samples": v}) for v in (5, 8)),
    *(("verdict", {"pads": list(range(n)), "regions": TREE}) for n in (2, 3, 4)),
    ("predictions", {"n_proven": 1}),
    *(("attestation", {name: v}) for name, v in (("label", 0), ("confidence", 1), ("number", 1))),
]


def checked(record, level):
    return read_statement(record, COMMITTED, level, "s.json")


@pytest.mark.parametrize("level", STATEMENTS)
def test_a_statement_has_the_entries_of_its_level_and_no_others(level):
    statement = STATEMENTS[level]
    found = checked(statement, level)
    assert type(found) is KINDS[level]
    assert found.record() == statement
    assert found.canonical() == canonical(statement)
    assert hash(found.canonical())
    with pytest.raises(FrozenInstanceError):
        found.level = "bins"
    for name, value in statement.items():
        rest = {key: value for key, value in statement.items() if key != name}
        with pytest.raises(VerificationError, match=f"s.json .*{name}"):
            checked(rest, level)
        with pytest.raises(VerificationError, match=name):
            checked({**statement, name: object()}, level)
        if isinstance(value, list):
            assert getattr(found, name) == tuple(value)
    with pytest.raises(VerificationError, match="unknown entry 'more'"):
        checked({**statement, "more": 1}, level)
    for other in set(STATEMENTS) - {level}:  # none is a substitute for another
        with pytest.raises(VerificationError, match=f"level={level}, but you asked for {other}"):
            checked(statement, other)


def test_every_entry_has_a_form():
    assert {entry.name for kind in KINDS.values() for entry in fields(kind)} == set(FORMS)


@pytest.mark.parametrize(("level", "change"), IMPOSSIBLE)
def test_impossible_values_are_refused(level, change):
    name = next(iter(change))
    with pytest.raises(VerificationError, match=f"{name}.* is impossible"):
        checked({**STATEMENTS[level], **change}, level)


@pytest.mark.parametrize(("level", "change"), POSSIBLE)
def test_the_limits_of_what_is_possible_are_accepted(level, change):
    found = checked({**STATEMENTS[level], **change}, level)
    assert {name: found.record()[name] for name in change} == change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": FORMAT - 1}, f"expected {FORMAT}"),
        ({"commitment_digest": "00" * 32}, "different commitment"),
        ({"versions": {"ezkl": "23.0.6", "skuq": "0.1"}}, "not made with ezkl"),
    ],
)
def test_a_statement_of_something_else_is_refused(change, message):
    with pytest.raises(VerificationError, match=message):
        checked({**STATEMENTS["bins"], **change}, "bins")


@pytest.mark.parametrize(("tree", "regions", "audits"), [(None, 1, 1), (TREE, 3, 4)])
def test_each_region_has_sums_and_all_samples_one_verdict_more(tree, regions, audits):
    found = checked({**STATEMENTS["bins"], "regions": tree}, "bins")
    assert (found.n_regions, found.n_audits) == (regions, audits)
    assert found.single_level == pytest.approx(1 - 0.05 / audits)


def drawn(rng, n, n_classes=3):
    found = IntegerPredictions(rng.integers(n_classes, size=n), rng.integers(1, ONE + 1, size=n))
    return found, rng.integers(n_classes, size=n)


@pytest.mark.parametrize(("n_bins", "most"), [(1, 1), (1, 10), (4, 10), (7, 10), (10, 10), (3, 3)])
def test_sums_that_were_read_are_those_of_the_auditor_in_the_open(n_bins, most):
    rng = np.random.default_rng(n_bins)
    found, codes = drawn(rng, 300)
    found.confidence[:2] = 1, ONE
    edge = -(-ONE * np.arange(1, n_bins) // n_bins)  # they belong to the upper bins
    found.confidence[2 : 2 + len(edge)] = edge
    found.confidence[20 : 20 + len(edge)] = edge - 1
    sums = read_sums(signed_sums(found, codes, n_bins, most), n_bins, most)
    limits = np.array([math.ceil(b * ONE / n_bins) for b in range(n_bins + 1)])
    np.testing.assert_array_equal(sums.edges, limits)
    (theirs,) = bin_sums(Recorded(found.confidence.astype(np.int32), found.label == codes), limits)
    bins = np.minimum(found.confidence * n_bins // ONE, n_bins - 1)
    by_hand = {
        "count": [(bins == b).sum() for b in range(n_bins)],
        "confidence": [found.confidence[bins == b].sum() for b in range(n_bins)],
        "correct": [((found.label == codes) & (bins == b)).sum() for b in range(n_bins)],
    }
    for name, expected in by_hand.items():
        np.testing.assert_array_equal(getattr(sums, name), getattr(theirs, name))
        np.testing.assert_array_equal(getattr(sums, name), expected)
    assert sums.scale == ONE
    parts = [slice(start, start + 125) for start in range(0, 300, 125)]
    chunks = [signed_sums(found.of(part), codes[part], n_bins, most) for part in parts]
    assert np.sum(chunks, axis=0).tolist() == signed_sums(found, codes, n_bins, most)


def test_thresholds_of_bins_are_odd_and_those_of_no_bin_out_of_reach():
    found = edges(4, 6)
    assert (np.abs(found) % 2 == 1).all()
    assert found.tolist() == [-1, ONE // 2 - 1, ONE - 1, 3 * ONE // 2 - 1] + 2 * [2 * ONE + 1]


def shape_of(**changed):
    circuits = {"bins": 4, "predictions": 4}
    return Architecture((2, 3), 12, 3, 5, 0, 10, 13, circuits)._replace(**changed)


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
def test_outputs_of_predictions_are_read_as_they_were_written(n_classes):
    shape = shape_of(widths=(2, n_classes))
    found, _ = drawn(np.random.default_rng(n_classes), 3, n_classes)
    outputs = prediction_outputs(shape, found)
    assert len(outputs) == 8
    assert outputs[6:] == outputs[4:6]  # the last row fills the chunk
    again = read_predictions(shape, outputs, 3)
    np.testing.assert_array_equal(again.label, found.label)
    np.testing.assert_array_equal(again.confidence, found.confidence)


def test_outputs_are_as_many_as_are_sent():
    """Two per row, three sums per bin, and a verdict at each of three thresholds."""
    circuits = {"attestation": 0, "predictions": 8, "bins": 30, "padded_bins": 30, "verdict": 3}
    assert {circuit: n_outputs(circuit, shape_of()) for circuit in circuits} == circuits
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=r"'rows' must have shape \(4, 2\), got 6 numbers"):
        public_inputs("predictions", shape_of(), {"rows": np.zeros((3, 2), int)}, 1)


@pytest.mark.parametrize(
    ("alpha", "tolerance", "expected"),
    [
        (0.05, 0.005, [45, 50, 55]),
        (0.05, 0.0041, [45, 50, 55]),
        (0.05, 0.004, [46, 50, 54]),
        (0.0, 0.01, [0, 0, 10]),
        (1.0, 0.2, [800, 1000, 1000]),
        (0.003, 0.005, [0, 3, 8]),
    ],
)
def test_a_verdict_is_about_alpha_and_alpha_minus_and_plus_tolerance(alpha, tolerance, expected):
    assert thresholds(alpha, tolerance) == expected


@pytest.mark.parametrize(("n_bins", "level"), [(1, 0.5), (10, 0.95), (10, 0.99), (3, 0.05)])
def test_chance_is_the_bound_of_hoeffding_in_quarters_of_millionths(n_bins, level):
    bound = math.log(2 * n_bins / (1 - level)) / 2
    assert 0 <= chance_allowance(n_bins, level) / 4e6 - bound < 1 / 4e6
    assert chance_allowance(n_bins, None) == 0


def test_a_model_within_alpha_passes_at_least_as_often_as_the_level_says():
    rng = np.random.default_rng(0)
    n, n_bins, alpha = 100, 10, 0.05
    allowed = chance_allowance(n_bins, 0.8) / 4e6 * n
    confidence = (np.arange(n_bins) + 0.5) / n_bins
    correct = rng.binomial(n, np.clip(confidence + alpha, 0, 1), size=(2000, n_bins))
    excess = np.maximum(0, np.abs(correct - n * confidence) - alpha * n)
    assert 0.8 < (excess**2 <= allowed).all(axis=1).mean() <= 1


@pytest.mark.parametrize(
    ("alpha", "passed", "robust"),
    [(0.05, False, True), (0.09, False, False), (0.11, True, False), (0.2, True, True)],
)
def test_a_verdict_that_is_another_at_alpha_minus_or_plus_tolerance_is_not_robust(
    alpha, passed, robust
):
    total = (np.array([v]) for v in (100, 80, 90 * ONE))  # 10 points too confident
    found = judge(BinSums(np.array([0, ONE]), *total, ONE), asking(1, alpha, None), 0.02)
    assert (found.passed, found.robust) == (passed, robust)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("error", [0.001, 0.3])
def test_a_sample_is_the_smallest_that_is_large_enough(share, error):
    k = sample_size(share, error)
    assert (1 - share) ** k <= error < (1 - share) ** (k - 1)
    assert sample_size(0.02, 0.01) == 228  # as the documentation says
    assert sample_size(1e-310, 0.01) > 10**15


@pytest.mark.parametrize(
    ("share", "error", "name"),
    [(0, 0.1, "false_share"), (1, 0.1, "false_share"), (0.1, 0, "error"), (0.1, 1, "error")],
)
def test_a_sample_needs_shares_between_none_and_all(share, error, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        sample_size(share, error)


def chosen(nonce="a", n=200, k=20, **others):
    """Rows that follow from what was fixed before any row is chosen."""
    fixed = {"commitment_digest": "c", "reference_digest": "r", "reported_digest": "p"}
    stated = SimpleNamespace(**{**fixed, "nonce": nonce, **others})
    return chosen_rows(stated, np.zeros(n, np.int64), k).tolist()


def test_chosen_rows_are_distinct_in_order_and_nested():
    for k in (1, 7, 50):
        rows = chosen(n=50, k=k)
        assert rows == sorted(set(rows))
        assert len(rows) == k
        assert 0 <= rows[0] <= rows[-1] < 50
    assert set(chosen(k=10)) < set(chosen(k=30))


def test_chosen_rows_depend_on_all_that_was_fixed_before_the_challenge_and_on_nothing_else():
    first = chosen()
    assert chosen() == first
    for name in ("commitment_digest", "reference_digest", "reported_digest", "nonce"):
        assert chosen(**{name: "other"}) != first
    # Else a provider could try many statements until the rows suit it.
    for name in ("alpha", "confidence_level", "versions", "anything"):
        assert chosen(**{name: "c"}) == first


def test_no_row_is_chosen_more_often_than_chance_allows():
    counts = np.zeros(20)
    for nonce in range(1000):
        counts[chosen(nonce, 20, 5)] += 1
    # Each is binomial with mean 250 and deviation 13.7.
    assert counts.min() > 190
    assert counts.max() < 310


REPORTS = {"label": [0, 1], "confidence": [1, ONE], "reference_digest": "r"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        *(({"label": label}, "impossible") for label in ([0, 2], [-1, 0])),
        *(({"confidence": value}, "impossible") for value in ([0, 9], [1, ONE + 1], [1, 10**30])),
        *(({name: [1]}, "one prediction per") for name in ("label", "confidence")),
        ({"reference_digest": "s"}, "different reference data"),
    ],
)
def test_reports_are_possible_and_of_the_same_data(tmp_path, change, message):
    write_json(tmp_path / REPORTED, {**REPORTS, **change})
    stated = SimpleNamespace(n_samples=2, reference_digest="r")
    if message is None:
        assert [part.tolist() for part in read_reports(tmp_path, stated, 2)] == [[0, 1], [1, ONE]]
        return
    with pytest.raises(VerificationError, match=message):
        read_reports(tmp_path, stated, 2)


def test_a_context_depends_on_the_statement_and_on_the_part():
    found = {
        context(canonical(statement), part)
        for statement in ({"a": 1}, {"a": 2}, {"a": 1, "b": None})
        for part in ("bins 0", "bins 1", "verdict")
    }
    assert len(found) == 9
    assert all(0 <= value < 1 << CONTEXT_BITS for value in found)


@pytest.mark.parametrize(
    ("y", "message"),
    [([1, 7], r"classes: \[7\]"), ([[0, 1]], "Labels"), ([0], "2 inputs, but 1 labels")],
)
def test_labels_that_do_not_fit_are_an_error(y, message):
    encoding = Encoding((Column(0, 0.0, 1.0, 8.0),), 4)
    with pytest.raises(ValueError, match=message):
        encoded(encoding, np.arange(2), [[0.0], [1.0]], y)


def test_the_digest_of_reference_data_depends_on_every_number_and_on_the_shape():
    rows, codes = np.arange(12).reshape(6, 2), np.arange(6)
    other = rows.copy()
    other[3, 1] += 1
    pairs = [
        *((rows, codes), (other, codes), (rows, codes[::-1]), (rows[::-1], codes[::-1])),
        *((rows.reshape(3, 4), codes), (rows[:5], codes[:5])),
    ]
    assert len({ReferenceData(*pair, codes).digest for pair in pairs}) == 6


@pytest.mark.parametrize("n_pads", [2, 2**61, 10**30])
def test_committed_numbers_are_counted_exactly_however_many(n_pads):
    shape = Architecture((4, 3), 21, 3, 5, n_pads, 8, 13, {})
    assert shape.n_committed == 5 * 3 + 5 + n_pads * 3 * 3 * 8


def passes(count, confidence, correct, alpha, chance):
    """The rule of level "verdict" for one bin."""
    excess = np.maximum(0, np.abs(correct - confidence) - alpha * count)
    return 4e6 * excess**2 <= count * chance


def always_passes(bins, alpha, chance):
    """Whether (samples, mean confidence) of each bin pass if all are right, and if none is."""
    return all(
        passes(n, n * mean, correct, alpha, chance) for n, mean in bins for correct in (0, n)
    )


def question(**settings):
    return AuditStatement.of({**STATEMENTS["bins"], **settings})


def asking(n_bins, alpha, confidence_level):
    return question(n_bins=n_bins, alpha=alpha, confidence_level=confidence_level)


def needed_by(n_classes, *asked):
    found = too_few_to_fail(0, n_classes, asking(*asked))
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
    chance = chance_allowance(n_bins, confidence_level)
    needed = needed_by(n_classes, n_bins, alpha, confidence_level)
    assert not too_few_to_fail(needed, n_classes, asking(n_bins, alpha, confidence_level))
    rng = np.random.default_rng(0)
    for spread in np.repeat([0.1, 1.0, 10.0], 60):
        share = rng.dirichlet(np.full(200, spread))
        drawn = rng.multinomial(needed, share)
        means = rng.uniform(1 / n_classes, 1, 200)
        places = np.minimum((means * n_bins).astype(int), n_bins - 1)
        bins = [
            (n, float(np.average(means[places == b], weights=drawn[places == b])))
            for b in range(n_bins)
            if (n := int(drawn[places == b].sum()))
        ]
        assert not always_passes(bins, alpha, chance)


@pytest.mark.parametrize(
    ("n_classes", "n_bins", "alpha"), [(2, 10, 0.05), (2, 1, 0.0), (4, 4, 0.1), (2, 4, 0.2)]
)
def test_with_one_sample_less_all_labels_may_pass_a_verdict(n_classes, n_bins, alpha):
    chance, bins = chance_allowance(n_bins, 0.95), []
    for b in range(n_bins):
        low, high = max(b / n_bins, 1 / n_classes - 0.0009), (b + 1) / n_bins - 1e-9
        mean = min(max(0.5, low), high)
        n = 0
        while mean >= low and always_passes([(n + 1, mean)], alpha, chance):
            n += 1
        bins.append((n, mean))
    assert sum(n for n, _ in bins) == needed_by(n_classes, n_bins, alpha, 0.95) - 1


def test_the_default_question_needs_the_samples_that_the_guide_names():
    assert needed_by(2, 10, 0.05, 0.95) == 54
    assert "use a smaller alpha." in too_few_to_fail(10**9, 2, asking(10, 0.5, 0.95))
    assert too_few_to_fail(10**9, 2, asking(10, 0.499, 0.95)) == ""
