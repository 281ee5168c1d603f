"""Circuits compared with integer arithmetic, number for number. They are run without a proof."""

import json
from collections import Counter
from itertools import product

import ezkl
import numpy as np
import pytest

from skuq.zk import _ezkl as backend
from skuq.zk import _fixed_point as fixed
from skuq.zk import _statements as st
from skuq.zk._circuits import build
from skuq.zk._public_commitment import Column, Encoding
from skuq.zk._quantisation import DenseNetwork, integer_network
from tests.zk.tampering import ONE
from tests.zk.test_fixed_point import random_network

CONTEXT = 2**247 + 12345
N_PADS, POINTS = 3, 6


class Circuits:
    def __init__(self, folder, network, limits, *, n_bins=10, n_pads=N_PADS):
        rng = np.random.default_rng(0)
        self.folder, self.network = folder, network
        widths = (network.weights[0].shape[0], *(w.shape[1] for w in network.weights))
        digits = fixed.digits_of(fixed.largest_value(network, limits), 13)
        points = dict.fromkeys(("predictions", "bins", "padded_bins"), POINTS)
        bits = network.logit_bits
        self.shape = fixed.Architecture(widths, bits, digits, 4, n_pads, n_bins, 13, points)
        layers = zip(network.weights, network.biases, strict=True)
        self.constants = [part for w, b in layers for part in (w, b[None])]
        self.constants.append(rng.integers(1 << 24, size=(1, 4)))
        if n_pads:
            self.constants.append(rng.integers(1 << fixed.PAD_BITS, size=self.shape.shapes[-1]))

    def run(self, circuit, values):
        ends = ("onnx", "settings", "circuit", "json")
        model, settings, compiled, data = (self.folder / f"{circuit}.{end}" for end in ends)
        if not compiled.exists():
            model.write_bytes(build(circuit, self.shape, self.constants))
            backend.describe(model, settings, circuit, self.shape)
            numbers = [int(value) for part in self.constants for value in part.ravel()]
            backend.compile_circuit(model, settings, compiled, numbers)
        inputs = st.public_inputs(circuit, self.shape, values, CONTEXT)
        numbers = [[backend._hex(v) for v in part] for part in inputs]
        data.write_text(json.dumps({"input_data": numbers}), encoding="utf-8")
        witness = ezkl.gen_witness(str(data), str(compiled), str(self.folder / "witness.json"))
        outputs = [backend._integer(v) for v in witness["outputs"][0]]
        assert outputs.pop() == CONTEXT
        self.tops = outputs.pop() if circuit in ("bins", "padded_bins") else None
        return outputs

    def pad(self, chunks):
        """Sum of the pads of some chunks, as integers of Python."""
        total = [0] * (3 * self.shape.n_bins)
        for chunk in chunks:
            limbs = [int(v) for v in self.constants[-1][chunk]]
            assert len(limbs) == fixed.PAD_LIMBS * len(total)
            for i, limb in enumerate(limbs):
                total[i % len(total)] += limb << fixed.PAD_BITS * (i // len(total))
        return total


def assert_circuits_agree(made, rows, codes, n_bins, names=("predictions", "bins", "padded_bins")):
    found = fixed.integer_predictions(made.network, rows)
    sums = st.signed_sums(found, codes, n_bins, made.shape.n_bins)
    for circuit in names:
        values, expected = st.bins_inputs(made.shape, circuit, rows, codes, n_bins), sums
        if circuit == "predictions":
            values = st.prediction_inputs(made.shape, rows)
            expected = st.prediction_outputs(made.shape, found)
        if circuit == "padded_bins":
            values["chunk"] = np.eye(made.shape.n_pads, dtype=int)[1]
            expected = [a + b for a, b in zip(sums, made.pad([1]), strict=True)]
        assert made.run(circuit, values) == expected, f"{circuit!r} is another function"
        assert [made.tops] == (st.known_outputs(circuit, values) or [None])


@pytest.mark.parametrize("widths", [(3, 2), (1, 5), (2, 4, 5), (2, 3, 4, 3)])
def test_circuits_of_random_networks_agree_with_arithmetic_in_the_open(tmp_path, widths):
    rng, seen = np.random.default_rng(sum(widths)), Counter()
    _, encoding, network = random_network(rng, widths, size=1.5)
    made = Circuits(tmp_path, network, encoding.limits())
    for n, n_bins in ((POINTS, 10), (POINTS, 4), (4, 10), (1, 1)):
        rows = encoding.encode(rng.normal(0, 2, size=(n, widths[0])))
        assert_circuits_agree(made, rows, rng.integers(widths[-1], size=n), n_bins)
        seen.update(fixed.integer_predictions(network, rows).confidence.tolist())
    assert len(seen) > 5


@pytest.mark.parametrize("n_bins", [10, 3])
def test_circuits_without_pads_and_with_other_bins_agree(tmp_path, n_bins):
    rng = np.random.default_rng(0)
    _, encoding, network = random_network(rng, (2, 3, 3), size=1.5)
    made = Circuits(tmp_path, network, encoding.limits(), n_bins=n_bins, n_pads=0)
    rows, codes = encoding.encode(rng.normal(0, 2, size=(POINTS, 2))), rng.integers(3, size=POINTS)
    assert made.shape.circuits == ("attestation", "predictions", "bins")
    for used in (n_bins, 2):
        assert_circuits_agree(made, rows, codes, used, names=("predictions", "bins"))


def test_circuits_agree_at_the_limits_of_the_inputs(tmp_path):
    rng = np.random.default_rng(3)
    _, encoding, network = random_network(rng, (2, 6, 3), size=6.0)
    made = Circuits(tmp_path, network, encoding.limits())
    rows = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 1], [0, 0]]) * encoding.limits()
    assert_circuits_agree(made, rows, rng.integers(3, size=6), 10)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_digits_hold_the_largest_number_and_no_larger_one(tmp_path, n_classes):
    weight = np.zeros((1, n_classes), int)
    weight[0, 0], weight[0, -1] = 1, -1
    network = fixed.IntegerNetwork([weight], [np.full(n_classes, 5)], 8, 8)
    # Twice the largest difference of ordered logits, minus 1, is below the square of the base.
    limit = (fixed.digit_base(13) ** 2 + 2 - 2 * n_classes) // (4 * fixed.tie_factor(n_classes))
    made = Circuits(tmp_path, network, np.array([limit]))
    assert made.shape.digits == 2
    rows = np.array([[limit], [-limit]] * 3)
    assert_circuits_agree(made, rows, np.zeros(6, int), 10)
    assert fixed.digits_of(fixed.largest_value(network, np.array([limit + 1])), 13) == 3
    with pytest.raises(RuntimeError, match="synthesis error"):
        made.run("bins", st.bins_inputs(made.shape, "bins", rows + 1, np.zeros(6, int), 10))


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_circuits_agree_on_equal_logits(tmp_path, n_classes):
    weight = np.resize([3, -3], (1, n_classes))
    network = fixed.IntegerNetwork([weight], [np.full(n_classes, 5)], 8, 8)
    made = Circuits(tmp_path, network, np.array([4096]))
    rows = np.array([[0], [4096], [-4096], [1], [-1], [500]])
    for code in range(n_classes):
        assert_circuits_agree(made, rows, np.full(6, code), 10)


def test_equal_layers_without_a_bias_are_committed_to_as_any_others(tmp_path):
    encoding = Encoding((Column(0, 0.0, 1.0, 8.0),) * 2, 8)
    weights = [np.array([[1.0, -1.0], [0.5, 2.0]])] * 2
    dense = DenseNetwork(weights, [np.zeros(2)] * 2, (0, 0), np.arange(2))
    made = Circuits(tmp_path, integer_network(dense, encoding, 8), encoding.limits())
    rows = encoding.encode([[0.5, 0.25], [-1.0, 2.0]])
    assert_circuits_agree(made, rows, np.array([0, 1]), 10)


def test_a_row_that_would_be_right_whatever_its_label_shows(tmp_path):
    """Weights that are no integers could make ordered logits equal; here the order is left out."""
    network = fixed.IntegerNetwork([np.array([[3, 3, 3]])], [np.full(3, 5)], 8, 8)
    made = Circuits(tmp_path, network, np.array([4096]))
    values = st.bins_inputs(made.shape, "bins", np.array([[7], [9]]), np.array([2, 1]), 10)
    made.run("bins", values)
    assert made.tops == 2
    made.run("bins", {**values, "order": np.zeros(3, int)})
    assert made.tops == 2 * 5  # three classes on top: 2 * 3 - 1 in each counted row


@pytest.mark.parametrize("n_bins", [2, 10])
def test_circuits_agree_on_confidences_that_are_on_an_edge(tmp_path, n_bins):
    network = fixed.IntegerNetwork([np.array([[0, 64]])], [np.full(2, 5)], 6, 6)
    rows = np.array([[0], [40_000], [-40_000], [0], [90], [-300]])
    made = Circuits(tmp_path, network, np.array([40_000]))
    confidence = fixed.integer_predictions(made.network, rows).confidence
    assert (confidence[:4] == [ONE // 2, ONE, ONE, ONE // 2]).all()
    assert_circuits_agree(made, rows, np.array([0, 1, 1, 1, 0, 0]), n_bins)


def by_the_rule(bins, alphas, chance):
    """The rule in integers of Python; `bins` has number, sum of confidences, correct ones."""
    flags = []
    for alpha in alphas:
        excess = ((n, 1000 * abs(r * ONE - c) - alpha * n * ONE) for n, c, r in bins)
        kept = all(4 * max(0, gap) ** 2 <= chance * n * ONE**2 for n, gap in excess)
        flags.append(1 if kept else -1)
    return flags


def sums_of(bins, most):
    n, c, r = zip(*bins, *[(0, 0, 0)] * (most - len(bins)), strict=True)
    surplus = [2 * right - number for right, number in zip(r, n, strict=True)]
    return [sum(part[b:]) - sum(part[:b]) for part in (n, c, surplus) for b in range(most)]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A verdict, which agrees with the rule; of its circuits, only the verdict is run."""
    _, encoding, network = random_network(np.random.default_rng(0), (2, 3, 2))
    made = Circuits(tmp_path_factory.mktemp("judge"), network, encoding.limits())

    def verdict(bins, alphas, chance, chunks=(0, 2)):
        plain = sums_of(bins, made.shape.n_bins)
        sums = [a + b for a, b in zip(plain, made.pad(chunks), strict=True)]
        values = {"sums": sums, "alphas": alphas, "chance": [chance]}
        values["chunks"] = [int(c in chunks) for c in range(N_PADS)]
        expected = by_the_rule(bins, alphas, chance)
        assert made.run("verdict", values) == expected
        return expected

    return verdict


def drawn_bins(rng, n_bins, off):
    bins = []
    for b in range(n_bins):
        n, mean = int(rng.integers(0, 400)), (b + rng.uniform()) / n_bins
        right = rng.binomial(n, np.clip(mean + rng.choice([-1, 1]) * off, 0, 1))
        bins.append((n, round(n * mean * ONE), int(right)))
    return bins


def test_sums_made_by_hand_are_those_of_predictions():
    rng = np.random.default_rng(0)
    right, confidence = rng.integers(2, size=200), rng.integers(1, ONE + 1, size=200)
    found = fixed.IntegerPredictions(right, confidence)
    inside = [np.minimum(confidence * 4 // ONE, 3) == b for b in range(4)]
    bins = [(int(m.sum()), int(confidence[m].sum()), int(right[m].sum())) for m in inside]
    assert sums_of(bins, 10) == st.signed_sums(found, np.ones(200, int), 4, 10)


@pytest.mark.parametrize("n_bins", [10, 4, 1])
@pytest.mark.parametrize("level", [None, 0.95])
def test_a_verdict_follows_the_rule_in_integers(judge, n_bins, level):
    rng, seen = np.random.default_rng(n_bins), set()
    for off in (0.0, 0.04, 0.08, 0.12, 0.16, 0.2):
        bins = drawn_bins(rng, n_bins, off)
        alphas = st.thresholds(float(rng.choice([0.02, 0.1, 0.2])), 0.03)
        seen.add(tuple(judge(bins, alphas, st.chance_allowance(n_bins, level))))
    assert len(seen) > 1


def test_a_verdict_is_the_same_under_any_pads(judge):
    bins = drawn_bins(np.random.default_rng(1), 10, 0.1)
    for chunks in ((0,), (1, 2), (0, 1, 2)):
        judge(bins, [20, 100, 300], st.chance_allowance(10, 0.95), chunks)


def test_a_gap_of_exactly_alpha_passes_and_one_unit_more_fails_in_every_bin(judge):
    # 1000 predictions, half of them correct, and a sum of confidences off by 50 of them.
    for b, sign in product(range(10), (-1, 1)):
        exact = (500 + sign * 50) * ONE
        for total, expected in ((exact, [-1, 1, 1]), (exact + sign, [-1, -1, 1])):
            bins = [(10, 5 * ONE, 5)] * 10
            bins[b] = (1000, total, 500)
            assert judge(bins, [49, 50, 51], 0) == expected


def test_chance_of_exactly_the_excess_passes_and_so_do_bins_of_no_samples(judge):
    # Excess of 30 among 900: 30 ** 2 = 900 * 1, in quarters of millionths 4e6.
    bins = [(900, (450 + 90 + 30) * ONE, 450)] * 10
    assert judge(bins, [0, 100, 200], 4_000_000) == [-1, 1, 1]
    assert judge(bins, [0, 100, 200], 3_999_999) == [-1, -1, 1]
    assert judge([(0, 0, 0)] * 9 + [(20, 19 * ONE, 19)], [0, 1, 2], 0) == [1, 1, 1]
    bins = [(3000, 3000 * ONE, 0)] * 10
    assert judge(bins, [0, 50, 999], 0) == [-1, -1, -1]
    assert judge(bins, [0, 50, 1000], st.chance_allowance(10, 0.95)) == [-1, -1, 1]
