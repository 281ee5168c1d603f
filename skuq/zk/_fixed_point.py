"""Public architecture of a committed model, and fixed-point arithmetic of its function.

The arithmetic is that of the circuits, number for number. A proven confidence is its result, up to
the rounding of one division per logit that the proof system leaves to the prover (see `ROUNDING`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from skuq.base import BoolArray, IntArray

# A circuit for attestations, and one for each disclosure level. Level "verdict" takes two: one
# proves the sums of a chunk of rows under a one-time pad, the other one the verdict on the sums of
# all chunks.
CIRCUITS = ("attestation", "predictions", "bins", "padded_bins", "verdict")
# Numbers side by side in a row of a circuit, at most: with four, constraints get a higher degree.
MAX_COLUMNS = 3
# Blocks of such columns, at most: what overflows one goes on in the next one.
MAX_BLOCKS = 4
LOG_ROWS = range(13, 19)  # logarithms of the sizes of circuits
MAX_BINS = 1000  # a verifier must not be made to build a huge circuit
CONTEXT_BITS = 248  # of the SHA-256 that binds a proof to its statement
PAD_LIMBS, PAD_BITS = 3, 20  # a pad is a number of PAD_LIMBS digits of PAD_BITS bits
N_ALPHAS = 3  # thresholds of a verdict: alpha minus the tolerance, alpha, alpha plus it

CONFIDENCE_BITS = 14  # confidences are multiples of 2 ** -14
ONE = 1 << CONFIDENCE_BITS
LOGIT_BITS = 9  # differences of logits are rounded to multiples of 2 ** -9 before exp
REACH = 12 << LOGIT_BITS  # smaller differences of logits count as this one
WEIGHT_BITS = range(6, 13)  # precisions of weights and inputs
# Binary digits that a logit loses before exp. More, as of a network of many layers, would make the
# quotient ambiguous in the field, and finally the unit smaller than single precision holds.
MAX_SHIFT = 60
LARGEST_EXACT = (1 << 51) - 1  # double precision holds integers, and sums on the way to them
# The circuit accepts a quotient rounded either way: a prover may move each logit by one unit,
# and hence a confidence p by p (1 - p) times two units.
ROUNDING = 0.25 * 2 * 2.0**-LOGIT_BITS
# The proof system reads the argument of its table of powers in units of 2 ** -CONFIDENCE_BITS,
# but it is in units of 2 ** -LOGIT_BITS. The base, in single precision, corrects for that.
EXP_BASE = float(np.float32(np.exp(2.0 ** (CONFIDENCE_BITS - LOGIT_BITS))))


class Architecture(NamedTuple):
    """All that a verifying key depends on; public."""

    widths: tuple[int, ...]  # integers per input row, neurons of each hidden layer, classes
    logit_bits: int  # binary digits after the point of the logits
    digits: int  # that hold every number in the circuit
    n_salts: int  # random numbers that are committed to beside the weights
    n_pads: int  # chunks of rows whose sums can have a one-time pad, for level "verdict"
    n_bins: int  # largest number of confidence bins
    log_rows: int  # logarithm (base 2) of the number of rows of the circuits
    rows_per_proof: dict[str, int]  # rows of data that one proof of each circuit covers
    columns: dict[str, int] = {}  # side by side in a circuit's row; `MAX_COLUMNS` if not named

    @property
    def circuits(self) -> tuple[str, ...]:
        """Names of the circuits; those of level "verdict" exist only where there are pads."""
        return CIRCUITS if self.n_pads else CIRCUITS[:3]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the committed constants: weights and biases by layer, salt, pads."""
        layers = zip(self.widths[:-1], self.widths[1:], strict=True)
        shapes: list[tuple[int, ...]] = [s for a, b in layers for s in ((a, b), (1, b))]
        shapes.append((1, self.n_salts))
        if self.n_pads:
            shapes.append((self.n_pads, PAD_LIMBS * 3 * self.n_bins))
        return shapes

    def parts_of(self, circuit: str) -> list[tuple[range, tuple[int, int]]]:
        """Committed numbers that a circuit computes with: positions and shape of each part.

        These are the layers, each one's biases below its weights, and the pads.
        """
        layers = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        shapes = [*((a + 1, b) for a, b in layers), (1, self.n_salts)]
        shapes.append((self.n_pads, PAD_LIMBS * 3 * self.n_bins))
        ends = np.cumsum([a * b for a, b in shapes]).tolist()
        parts = [
            (range(end - a * b, end), (a, b)) for end, (a, b) in zip(ends, shapes, strict=True)
        ]
        used = [] if circuit == "verdict" else parts[: len(layers)]
        return [*used, parts[-1]] if circuit in ("padded_bins", "verdict") else used

    @property
    def n_committed(self) -> int:
        """Number of integers under the commitment."""
        return sum(math.prod(shape) for shape in self.shapes)  # of numpy's, large ones overflow

    def columns_of(self, circuit: str) -> int:
        """Numbers side by side in a row of a circuit."""
        return self.columns.get(circuit, MAX_COLUMNS)

    def rows_of(self, circuit: str) -> int:
        """Rows of data that one proof of a circuit covers; 0 if it has none."""
        return self.rows_per_proof.get(circuit, 0)


class IntegerNetwork(NamedTuple):
    """A network whose weights are integers."""

    weights: list[IntArray]  # (n_in, n_out) each, multiples of 2 ** -weight_bits
    biases: list[IntArray]  # (n_out,) each, in the units of their layer's sums
    input_bits: int  # binary digits after the point
    weight_bits: int

    @property
    def logit_bits(self) -> int:
        """Binary digits after the point of the logits: every hidden layer adds one, since
        the circuit computes ``h + |h|``, twice the ReLU."""
        return self.input_bits + len(self.weights) * (self.weight_bits + 1) - 1

    @property
    def n_classes(self) -> int:
        """Number of logits."""
        return self.weights[-1].shape[1]


class IntegerPredictions(NamedTuple):
    """Label and confidence of rows as integers, arrays of shape (n_samples,)."""

    label: IntArray  # index of the most probable class; of equal ones the first
    confidence: IntArray  # its probability in units of 2 ** -CONFIDENCE_BITS

    def of(self, rows: BoolArray | IntArray) -> IntegerPredictions:
        """Predictions of some of the rows."""
        return IntegerPredictions(self.label[rows], self.confidence[rows])


def largest_value(network: IntegerNetwork, limits: IntArray) -> int:
    """Largest absolute value that the circuit splits into digits, for any accepted input.

    A sign is none of the digits. They hold the sums of each layer; ``2 x + 1`` for the differences
    x <= 0 of ordered logits; the divisor and the quotient of logits before exp; and errors of the
    reciprocal of a sum of at most C powers, of which each is at most `ONE`, as well as the
    differences of these errors and of twice a confidence and an edge.
    """
    low, high = -limits.astype(object), limits.astype(object)
    largest = 0
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        w = weight.astype(object)
        up, down = np.maximum(w, 0), np.minimum(w, 0)
        low, high = low @ up + high @ down + bias, high @ up + low @ down + bias
        largest = max(largest, *map(abs, low), *map(abs, high))
        if k < len(network.weights) - 1:
            low, high = 2 * np.maximum(low, 0), 2 * np.maximum(high, 0)
    n_classes = network.n_classes
    spread = (max(high) - min(low)) * tie_factor(n_classes) + n_classes - 1
    divisor = 1 << logit_shift(network.logit_bits, n_classes)
    return int(max(largest, 2 * spread - 1, divisor, REACH, 2 * n_classes * ONE))


def digit_base(log_rows: int) -> int:
    """Base of the digits into which numbers are split to find their sign.

    Each digit is looked up in a table, which is one column of the circuit but for its last rows.
    """
    return (1 << log_rows) - 16


def digits_of(largest: int, log_rows: int) -> int:
    """Number of digits that hold absolute values up to `largest`."""
    base, digits = digit_base(log_rows), 1
    while base**digits <= largest:
        digits += 1
    return digits


def tie_factor(n_classes: int) -> int:
    """Power of two at least `n_classes`: ``factor * z_j - j`` orders equal logits by class."""
    return 1 << (n_classes - 1).bit_length()


def logit_shift(logit_bits: int, n_classes: int) -> int:
    """Binary digits of ``factor * z_j - j`` that are rounded off before exp."""
    return logit_bits + tie_factor(n_classes).bit_length() - 1 - LOGIT_BITS


def integer_logits(network: IntegerNetwork, X: IntArray) -> IntArray:
    """Logits of encoded rows, shape (n_samples, n_classes), in units of 2 ** -logit_bits."""
    values = X
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = _product(values, weight) + bias
        if k < len(network.weights) - 1:
            values = values + np.abs(values)
    return values


def integer_predictions(network: IntegerNetwork, X: IntArray) -> IntegerPredictions:
    """Label and confidence of encoded rows, shape (n_samples, width)."""
    n_classes = network.n_classes
    factor = tie_factor(n_classes)
    ordered = integer_logits(network, X) * factor - np.arange(n_classes)
    label = ordered.argmax(axis=1)
    below = ordered - ordered.max(axis=1, keepdims=True)
    shift = logit_shift(network.logit_bits, n_classes)
    # Rounded half away from zero, as the proof system's witness is.
    quotient = _rounded(below + (REACH << shift), shift)
    exponent = np.maximum(quotient, 0) - REACH
    one = 1 << CONFIDENCE_BITS
    weight = np.rint(one * EXP_BASE ** (exponent / one)).astype(np.int64)
    total = weight.sum(axis=1)
    return IntegerPredictions(label, (2 * one * one + total) // (2 * total))


def _product(left: IntArray, right: IntArray) -> IntArray:
    """Multiply exactly: doubles are faster than integers, and exact below 2 ** 53."""
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64)


def _rounded(value: IntArray, shift: int) -> IntArray:
    half = 1 << (shift - 1)
    rounded: IntArray = np.sign(value) * ((np.abs(value) + half) >> shift)
    return rounded
