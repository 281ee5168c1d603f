"""Public architecture of a committed model, and the fixed-point arithmetic of its predictions.

The arithmetic equals that of the circuits exactly, except for the rounding of one division per
logit, which the proof system leaves to the prover (see `ROUNDING`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from skuq.base import BoolArray, IntArray

# A circuit for attestations, and one for each disclosure level. Level "verdict" has two circuits:
# one proves the sums of a chunk of rows under a one-time pad, the other proves the verdict on the
# sums of all chunks.
CIRCUITS = ("attestation", "predictions", "bins", "padded_bins", "verdict")
# The cells of a circuit are in blocks of columns. A fourth column would raise the circuit's degree.
MAX_COLUMNS = 3  # per block
# Maximum number of blocks. When all rows of a block are used, the layout continues in the next.
MAX_BLOCKS = 4
LOG_ROWS = range(13, 19)  # possible base-2 logarithms of the number of rows of the circuits
MAX_BINS = 1000  # with more bins, a provider could make a verifier build a very large circuit
CONTEXT_BITS = 248  # number of bits used from the SHA-256 that binds a proof to its statement
PAD_LIMBS, PAD_BITS = 3, 20  # each number of a pad has PAD_LIMBS digits of PAD_BITS bits
N_ALPHAS = 3  # thresholds of a verdict: alpha - max_error, alpha, alpha + max_error

CONFIDENCE_BITS = 14  # confidences are multiples of 2 ** -14
ONE = 1 << CONFIDENCE_BITS
LOGIT_BITS = 9  # differences of logits are rounded to multiples of 2 ** -9 before exp
REACH = 12 << LOGIT_BITS  # a logit is raised to the largest logit minus REACH if it is smaller
WEIGHT_BITS = range(6, 13)  # possible binary digits after the point of weights and inputs
# Maximum number of binary digits of a logit that are rounded off before exp. With more digits, as a
# network of many layers would need, the quotient would be ambiguous in the finite field of the
# proofs. With still more digits, the unit would be too small for single precision.
MAX_SHIFT = 60
LARGEST_EXACT = (1 << 51) - 1  # integers up to this size and their sums are exact doubles
# The circuit accepts a quotient that is rounded up or down. Thus, a prover may shift each logit by
# one unit. This changes a confidence p by up to p (1 - p) times two units, and p (1 - p) <= 1/4.
ROUNDING = 0.25 * 2 * 2.0**-LOGIT_BITS
# The proof system interprets the argument of its table of powers in units of
# 2 ** -CONFIDENCE_BITS, but the argument is in units of 2 ** -LOGIT_BITS. The base, in single
# precision, corrects for this difference.
EXP_BASE = float(np.float32(np.exp(2.0 ** (CONFIDENCE_BITS - LOGIT_BITS))))


class Architecture(NamedTuple):
    """Public architecture, which determines the verifying keys."""

    widths: tuple[int, ...]  # integers per input row, units per hidden layer, number of classes
    logit_bits: int  # number of binary digits of the logits after the point
    digits: int  # number of digits into which the circuits split a number
    n_salts: int  # number of random numbers that are committed together with the weights
    n_pads: int  # number of one-time pads, one for each chunk of rows, for level "verdict"
    n_bins: int  # maximum number of confidence bins
    log_rows: int  # base-2 logarithm of the number of rows of the circuits
    rows_per_proof: dict[str, int]  # data rows that one proof of each circuit covers
    columns: dict[str, int] = {}  # number of columns of each circuit; `MAX_COLUMNS` if not listed

    @property
    def circuits(self) -> tuple[str, ...]:
        """Names of the circuits; the circuits of level "verdict" exist only if there are pads."""
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
        """Return positions and shapes of the committed numbers in a circuit, one pair per part.

        A part is a layer (its weights, then a last row with the biases), or all pads.
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
        # `math.prod` returns Python integers; numpy integers could overflow.
        return sum(math.prod(shape) for shape in self.shapes)

    def columns_of(self, circuit: str) -> int:
        return self.columns.get(circuit, MAX_COLUMNS)

    def rows_of(self, circuit: str) -> int:
        """Number of data rows per proof of a circuit; 0 if the circuit has no data rows."""
        return self.rows_per_proof.get(circuit, 0)


class IntegerNetwork(NamedTuple):
    weights: list[IntArray]  # (n_in, n_out) each, multiples of 2 ** -weight_bits
    biases: list[IntArray]  # (n_out,) each, in the unit of the layer's weighted sums
    input_bits: int  # number of binary digits of inputs after the point
    weight_bits: int

    @property
    def logit_bits(self) -> int:
        """Number of binary digits of logits after the point; each 2 ReLU(h) = h + |h| adds 1."""
        return self.input_bits + len(self.weights) * (self.weight_bits + 1) - 1

    @property
    def n_classes(self) -> int:
        return self.weights[-1].shape[1]


class IntegerPredictions(NamedTuple):
    """Predicted labels and confidences as integers, arrays of shape (n_samples,)."""

    label: IntArray  # index of the most probable class; the first such class in a tie
    confidence: IntArray  # probability of this class in units of 2 ** -CONFIDENCE_BITS

    def of(self, rows: BoolArray | IntArray) -> IntegerPredictions:
        return IntegerPredictions(self.label[rows], self.confidence[rows])


def largest_value(network: IntegerNetwork, limits: IntArray) -> int:
    """Bound the absolute values that the circuit splits into digits, over all accepted inputs.

    These values are the sums of each layer; ``2 x + 1`` for differences x <= 0 of ordered logits;
    divisor and quotient of the logits before exp; errors, and differences of errors, of the
    reciprocal of a sum of `n_classes` powers <= `ONE`; and ``2 c - edge`` for confidences c.
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
    """Return the base in which circuits write numbers; one column lists digits 0 to base - 1."""
    return (1 << log_rows) - 16


def digits_of(largest: int, log_rows: int) -> int:
    base, digits = digit_base(log_rows), 1
    while base**digits <= largest:
        digits += 1
    return digits


def tie_factor(n_classes: int) -> int:
    """Return a factor for which ``factor * z_j - j`` is largest at the first class in a tie."""
    return 1 << (n_classes - 1).bit_length()


def logit_shift(logit_bits: int, n_classes: int) -> int:
    """Return the number of bits of ``factor * z_j - j`` that are rounded off before exp."""
    return logit_bits + tie_factor(n_classes).bit_length() - 1 - LOGIT_BITS


def integer_logits(network: IntegerNetwork, X: IntArray) -> IntArray:
    """Compute logits of encoded rows, (n_samples, n_classes), in units of 2 ** -logit_bits."""
    values = X
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        # Doubles are faster than integers, and exact below 2 ** 53.
        product = values.astype(np.float64) @ weight.astype(np.float64)
        values = product.astype(np.int64) + bias
        if k < len(network.weights) - 1:
            values = values + np.abs(values)
    return values


def integer_predictions(network: IntegerNetwork, X: IntArray) -> IntegerPredictions:
    """Predict labels and confidences of encoded rows, shape (n_samples, width)."""
    n_classes = network.n_classes
    factor = tie_factor(n_classes)
    ordered = integer_logits(network, X) * factor - np.arange(n_classes)
    label = ordered.argmax(axis=1)
    below = ordered - ordered.max(axis=1, keepdims=True)
    shift = logit_shift(network.logit_bits, n_classes)
    # Halves are rounded away from zero, as in the witness that the proof system computes.
    dividend = below + (REACH << shift)
    quotient = np.sign(dividend) * ((np.abs(dividend) + (1 << (shift - 1))) >> shift)
    exponent = np.maximum(quotient, 0) - REACH
    one = 1 << CONFIDENCE_BITS
    weight = np.rint(one * EXP_BASE ** (exponent / one)).astype(np.int64)
    total = weight.sum(axis=1)
    return IntegerPredictions(label, (2 * one * one + total) // (2 * total))
