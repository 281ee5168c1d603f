"""Statements and public inputs: sums, thresholds, samples, and files."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from skuq.calibration import TopLabelPredictions as Recorded
from skuq.calibration import bin_sums
from skuq.zk._circuits import edges
from skuq.zk._files import canonical
from skuq.zk._fixed_point import CONFIDENCE_BITS, Architecture, IntegerPredictions
from skuq.zk._public_commitment import Column, Encoding
from skuq.zk._spot_check import chosen_rows, sample_size
from skuq.zk._statements import (
    CONTEXT_BITS,
    chance_allowance,
    context,
    encoded,
    n_outputs,
    prediction_outputs,
    public_inputs,
    read_predictions,
    read_sums,
    reference_digest,
    signed_sums,
    thresholds,
    too_few_to_fail,
)

ONE = 1 << CONFIDENCE_BITS


def drawn(rng, n, n_classes=3):
    found = IntegerPredictions(rng.integers(n_classes, size=n), rng.integers(1, ONE + 1, size=n))
    return found, rng.integers(n_classes, size=n)


# Sums per bin


@pytest.mark.parametrize(("n_bins", "most"), [(1, 1), (1, 10), (4, 10), (7, 10), (10, 10), (3, 3)])
def test_sums_that_were_read_are_those_of_the_auditor_in_the_open(n_bins, most):
    rng = np.random.default_rng(n_bins)
    found, codes = drawn(rng, 500)
    found.confidence[:2] = 1, ONE
    sums = read_sums(signed_sums(found, codes, n_bins, most), n_bins, most)
    limits = np.array([math.ceil(b * ONE / n_bins) for b in range(n_bins + 1)])
    np.testing.assert_array_equal(sums.edges, limits)
    recorded = Recorded(found.confidence.astype(np.int32), found.label == codes)
    (theirs,) = bin_sums(recorded, limits)
    for name in ("count", "correct", "confidence"):
        np.testing.assert_array_equal(getattr(sums, name), getattr(theirs, name))
    bins = [min(int(c) * n_bins // ONE, n_bins - 1) for c in found.confidence]
    for b in range(n_bins):
        mine = [i for i in range(500) if bins[i] == b]
        assert sums.count[b] == len(mine)
        assert sums.confidence[b] == sum(int(found.confidence[i]) for i in mine)
        assert sums.correct[b] == sum(bool(found.label[i] == codes[i]) for i in mine)
    assert sums.scale == ONE


def test_sums_of_chunks_add_up():
    rng = np.random.default_rng(0)
    found, codes = drawn(rng, 90)
    total = np.zeros(30, np.int64)
    for start in range(0, 90, 25):
        part = slice(start, start + 25)
        chunk = IntegerPredictions(found.label[part], found.confidence[part])
        total += signed_sums(chunk, codes[part], 4, 10)
    assert total.tolist() == signed_sums(found, codes, 4, 10)


@pytest.mark.parametrize("n_bins", [2, 4, 8, 10, 3])
def test_a_confidence_on_an_edge_belongs_to_the_upper_bin(n_bins):
    for b in range(1, n_bins):
        edge = -(-b * ONE // n_bins)
        for confidence, expected in ((edge, b), (edge - 1, b - 1)):
            found = IntegerPredictions(np.array([0]), np.array([confidence]))
            sums = read_sums(signed_sums(found, np.array([0]), n_bins, 10), n_bins, 10)
            assert sums.count.argmax() == expected
            assert sums.count.sum() == sums.correct.sum() == 1


def test_confidence_one_belongs_to_the_last_bin():
    found = IntegerPredictions(np.array([0]), np.array([ONE]))
    sums = read_sums(signed_sums(found, np.array([1]), 4, 10), 4, 10)
    assert sums.count.tolist() == [0, 0, 0, 1]
    assert sums.correct.tolist() == [0, 0, 0, 0]
    assert sums.confidence.tolist() == [0, 0, 0, ONE]


def test_thresholds_of_bins_are_odd_and_those_of_no_bin_out_of_reach():
    found = edges(4, 6)
    assert (found % 2 == 1).all() or (np.abs(found) % 2 == 1).all()
    assert found.tolist() == [-1, 2 * ONE // 4 - 1, ONE - 1, 2 * 3 * ONE // 4 - 1] + 2 * [
        2 * ONE + 1
    ]


def shape_of(**changed):
    values = {
        "widths": (2, 3),
        "logit_bits": 12,
        "digits": 3,
        "n_salts": 5,
        "n_pads": 0,
        "n_bins": 10,
        "log_rows": 13,
        "rows_per_proof": {"bins": 4, "predictions": 4},
    }
    return Architecture(**{**values, **changed})


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


def test_an_input_of_the_wrong_size_is_named():
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=r"'rows' must have shape \(4, 2\), got 6 numbers"):
        public_inputs("predictions", shape_of(), {"rows": np.zeros((3, 2), int)}, 1)


def test_outputs_are_as_many_as_are_sent():
    """Two per row, three sums per bin, and a verdict at each of three thresholds."""
    shape = shape_of()
    for circuit in ("attestation", "predictions"):
        assert n_outputs(circuit, shape) == 2 * shape.rows_of(circuit)
    assert n_outputs("bins", shape) == n_outputs("padded_bins", shape) == 3 * shape.n_bins
    assert n_outputs("verdict", shape) == 3


# Thresholds


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


def test_without_a_level_nothing_is_left_to_chance():
    assert chance_allowance(10, None) == 0


@pytest.mark.parametrize(("n_bins", "level"), [(1, 0.5), (10, 0.95), (10, 0.99), (3, 0.05)])
def test_chance_is_the_bound_of_hoeffding_in_quarters_of_millionths(n_bins, level):
    bound = math.log(2 * n_bins / (1 - level)) / 2
    found = chance_allowance(n_bins, level)
    assert 0 <= found / 4e6 - bound < 1 / 4e6


def test_a_model_within_alpha_passes_at_least_as_often_as_the_level_says():
    rng = np.random.default_rng(0)
    n, n_bins, alpha = 100, 10, 0.05
    allowed = chance_allowance(n_bins, 0.8) / 4e6 * n
    confidence = (np.arange(n_bins) + 0.5) / n_bins
    truth = np.clip(confidence + alpha, 0, 1)
    correct = rng.binomial(n, truth, size=(2000, n_bins))
    excess = np.maximum(0, np.abs(correct - n * confidence) - alpha * n)
    passes = (excess**2 <= allowed).all(axis=1).mean()
    assert 0.8 < passes <= 1


# Samples


def test_the_sample_of_the_documentation():
    assert sample_size(0.02, 0.01) == 228


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("error", [0.001, 0.01, 0.3])
def test_a_sample_is_the_smallest_that_is_large_enough(share, error):
    k = sample_size(share, error)
    assert (1 - share) ** k <= error < (1 - share) ** (k - 1)


@pytest.mark.parametrize(
    ("share", "error", "name"),
    [(0, 0.1, "false_share"), (1, 0.1, "false_share"), (0.1, 0, "error"), (0.1, 1, "error")],
)
def test_a_sample_needs_shares_between_none_and_all(share, error, name):
    with pytest.raises(ValueError, match=rf"`{name}` must be in \(0, 1\), got [01]"):
        sample_size(share, error)


def stated(nonce, **others):
    """What was fixed before any row is chosen."""
    fixed = {"commitment_digest": "c", "reference_digest": "r", "reported_digest": "p"}
    return SimpleNamespace(**{**fixed, "nonce": nonce, **others})


@pytest.mark.parametrize("k", [1, 7, 50])
def test_chosen_rows_are_distinct_and_in_order(k):
    rows = chosen_rows(stated("a"), np.zeros(50, np.int64), k)
    assert len(set(rows.tolist())) == k
    assert rows.tolist() == sorted(rows.tolist())
    assert 0 <= rows.min() <= rows.max() < 50


@pytest.mark.parametrize("name", sorted(vars(stated(""))))
def test_chosen_rows_depend_on_all_that_was_fixed_before(name):
    first, same = (chosen_rows(stated("a"), np.zeros(200, np.int64), 20).tolist() for _ in range(2))
    assert first == same
    assert (
        chosen_rows(stated(**{"nonce": "a", name: "other"}), np.zeros(200, np.int64), 20).tolist()
        != first
    )


@pytest.mark.parametrize("name", ["alpha", "confidence_level", "versions", "anything"])
def test_chosen_rows_do_not_depend_on_what_the_provider_may_write_after_the_challenge(name):
    # Else it could try many statements until the rows suit it.
    first = chosen_rows(stated("a"), np.zeros(200, np.int64), 20).tolist()
    assert chosen_rows(stated("a", **{name: "c"}), np.zeros(200, np.int64), 20).tolist() == first


def test_a_larger_sample_holds_the_smaller_one():
    few, many = (
        set(chosen_rows(stated("a"), np.zeros(100, np.int64), k).tolist()) for k in (10, 30)
    )
    assert few < many


def test_no_row_is_chosen_more_often_than_chance_allows():
    counts = np.zeros(20)
    for nonce in range(1000):
        counts[chosen_rows(stated(nonce), np.zeros(20, np.int64), 5)] += 1
    # Each is binomial with mean 250 and deviation 13.7.
    assert counts.min() > 190
    assert counts.max() < 310


def test_a_context_depends_on_the_statement_and_on_the_part():
    found = {
        context(canonical(statement), part)
        for statement in ({"a": 1}, {"a": 2}, {"a": 1, "b": None})
        for part in ("bins 0", "bins 1", "verdict")
    }
    assert len(found) == 9
    assert all(0 <= value < 1 << CONTEXT_BITS for value in found)
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})


# Labels and reference data


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 7], r"labels that are not among the classes: \[7\]"),
        ([[0, 1]], r"Labels must have shape \(n_samples,\), got \(1, 2\)"),
        ([0], "there are 2 inputs and 1 labels"),
    ],
)
def test_labels_that_do_not_fit_are_an_error(y, message):
    encoding = Encoding((Column(0, 0.0, 1.0, 8.0),), 4)
    with pytest.raises(ValueError, match=message):
        encoded(encoding, np.arange(2), [[0.0], [1.0]], y)


def test_the_digest_of_reference_data_depends_on_every_number_and_on_the_shape():
    rows, codes = np.arange(12).reshape(6, 2), np.arange(6)
    changed = rows.copy()
    changed[3, 1] += 1
    found = {
        reference_digest(*pair)
        for pair in (
            (rows, codes),
            (changed, codes),
            (rows, codes[::-1]),
            (rows[::-1], codes[::-1]),
            (rows.reshape(3, 4), codes),
            (rows[:5], codes[:5]),
        )
    }
    assert len(found) == 6


@pytest.mark.parametrize("n_pads", [2, 2**61, 10**30])
def test_committed_numbers_are_counted_exactly_however_many(n_pads):
    shape = Architecture((4, 3), 21, 3, 5, n_pads, 8, 13, {})
    assert shape.n_committed == 5 * 3 + 5 + n_pads * 3 * 3 * 8


# Whether a verdict can fail


def passes(count, confidence, correct, alpha, chance):
    """The rule of level "verdict" for one bin."""
    excess = np.maximum(0, np.abs(correct - confidence) - alpha * count)
    return 4e6 * excess**2 <= count * chance


def always_passes(bins, alpha, chance):
    """Whether (samples, mean confidence) of each bin pass if all are right, and if none is."""
    return all(
        passes(n, n * mean, correct, alpha, chance) for n, mean in bins for correct in (0, n)
    )


def needed_by(n_classes, n_bins, alpha, confidence_level):
    found = too_few_to_fail(0, n_classes, n_bins, alpha, confidence_level)
    return int(found.split("at least ")[1].split()[0])


@pytest.mark.parametrize("confidence_level", [None, 0.5, 0.95])
@pytest.mark.parametrize(
    ("n_classes", "n_bins", "alpha"),
    [(2, 10, 0.05), (2, 1, 0.0), (3, 4, 0.1), (5, 7, 0.2), (2, 5, 0.4), (30, 10, 0.05)],
)
def test_with_the_needed_samples_some_labels_fail_a_verdict_wherever_confidences_are(
    n_classes, n_bins, alpha, confidence_level
):
    chance = chance_allowance(n_bins, confidence_level)
    needed = needed_by(n_classes, n_bins, alpha, confidence_level)
    assert not too_few_to_fail(needed, n_classes, n_bins, alpha, confidence_level)
    rng = np.random.default_rng(0)
    for spread in np.repeat([0.1, 1.0, 10.0], 100):
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
    assert "use a smaller alpha." in too_few_to_fail(10**9, 2, 10, 0.5, 0.95)
    assert too_few_to_fail(10**9, 2, 10, 0.499, 0.95) == ""


def test_a_share_that_no_number_of_proofs_finds_asks_for_all_of_them():
    assert sample_size(1e-310, 0.01) > 10**15
