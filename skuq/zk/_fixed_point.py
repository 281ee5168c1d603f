"""The committed function in integers, as the circuit computes it.

A confidence that is proven is the result of this arithmetic and of nothing else: what the
circuit and this module compute is the same, number for number, up to the rounding of one
division per logit that the proof system leaves to the prover (see `ROUNDING`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray, IntArray
from skuq.zk._dense_network import DenseNetwork

CONFIDENCE_BITS = 14  # confidences are multiples of 2 ** -14
LOGIT_BITS = 9  # differences of logits are rounded to multiples of 2 ** -9 before exp
REACH = 12 << LOGIT_BITS  # smaller differences of logits count as this one
BASE_BITS = 12  # numbers are split into digits of so many bits to find their sign
SATURATION = 8.0  # features are accepted up to so many deviations, or what calibration needs
WEIGHT_BITS = range(6, 13)
EXACT_BITS = 52  # of an integer that double precision holds, with its sign
# The circuit accepts a quotient rounded either way: a prover may move each logit by one unit,
# and hence a confidence p by p (1 - p) times two units.
ROUNDING = 0.25 * 2 * 2.0**-LOGIT_BITS


class Column(NamedTuple):
    """How one input column becomes integers.

    Attributes
    ----------
    levels : int
        0 for a number, else the number of category codes.
    center, scale : float
        A number ``x`` becomes ``round((x - center) / scale * 2 ** input_bits)``.
    limit : float
        Largest ``abs(x - center) / scale`` that is accepted.
    """

    levels: int
    center: float = 0.0
    scale: float = 1.0
    limit: float = 1.0

    @property
    def width(self) -> int:
        """Number of integers: 1, or an indicator per level and one for all other values."""
        return self.levels + 1 if self.levels else 1


class Encoding(NamedTuple):
    """How inputs become the integers that a proof is about; public.

    Attributes
    ----------
    columns : tuple of Column
        One per input column.
    bits : int
        Binary digits after the point of a scaled number.
    """

    columns: tuple[Column, ...]
    bits: int

    @property
    def width(self) -> int:
        """Integers per row."""
        return sum(column.width for column in self.columns)

    def limits(self) -> IntArray:
        """Largest absolute value of each integer, shape (width,)."""
        return np.concatenate(
            [
                np.ones(c.width, np.int64)
                if c.levels
                else np.array([int(np.ceil(c.limit * 2**self.bits))], np.int64)
                for c in self.columns
            ]
        )

    def encode(self, X: ArrayLike) -> IntArray:
        """Integers of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite numbers; category codes in columns that have levels.

        Returns
        -------
        ndarray of shape (n_samples, width), int64

        Raises
        ------
        ValueError
            If the shape is wrong, or a value is not finite or outside the committed range.
        """
        values = self._checked(X)
        blocks = []
        for j, column in enumerate(self.columns):
            x = values[:, j]
            if column.levels:
                code = x.astype(np.int64)
                known = (code >= 0) & (code < column.levels)
                blocks.append(
                    np.eye(column.width, dtype=np.int64)[np.where(known, code, column.levels)]
                )
                continue
            scaled = (x - column.center) / column.scale
            outside = np.abs(scaled) > column.limit
            if outside.any():
                row = int(outside.argmax())
                reach = column.limit * column.scale
                raise ValueError(
                    f"Feature {j} is {x[row]:.6g} in row {row}, outside the committed range "
                    f"[{column.center - reach:.6g}, {column.center + reach:.6g}]; commit again "
                    "with calibration data that cover such values, or leave the row out."
                )
            blocks.append(np.rint(scaled * 2**self.bits).astype(np.int64)[:, None])
        return np.concatenate(blocks, axis=1)

    def _checked(self, X: ArrayLike) -> FloatArray:
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise ValueError(
                f"Inputs must have shape (n_samples, {len(self.columns)}), got {values.shape}."
            )
        if len(values) == 0:
            raise ValueError("At least one row is needed, got none.")
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values)).any(axis=1).argmax())
            raise ValueError(f"Inputs must be finite numbers; row {row} has NaN or infinity.")
        return values


class IntegerNetwork(NamedTuple):
    """A network whose weights are integers.

    Attributes
    ----------
    weights : list of ndarray of shape (n_in, n_out), int64
        Multiples of ``2 ** -weight_bits``.
    biases : list of ndarray of shape (n_out,), int64
        In the units of their layer's sums.
    input_bits, weight_bits : int
        Binary digits after the point of inputs and weights.
    """

    weights: list[IntArray]
    biases: list[IntArray]
    input_bits: int
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


class Predictions(NamedTuple):
    """What the circuit computes for each row, arrays of shape (n_samples,), int64.

    Attributes
    ----------
    label : ndarray
        Number of the most probable class; of equal ones the first.
    confidence : ndarray
        Its probability in units of ``2 ** -CONFIDENCE_BITS``.
    """

    label: IntArray
    confidence: IntArray


class Agreement(NamedTuple):
    """How far the integer function is from the model that was committed to.

    Attributes
    ----------
    maximum, mean : float
        Difference of confidences on the calibration data, in probability.
    argmax : float
        Share of rows with the same most probable class.
    """

    maximum: float
    mean: float
    argmax: float


def integer_network(network: DenseNetwork, encoding: Encoding, weight_bits: int) -> IntegerNetwork:
    """Round the weights of a network that takes encoded inputs."""
    center = np.concatenate(
        [np.zeros(c.width) if c.levels else [c.center] for c in encoding.columns]
    )
    scale = np.concatenate([np.ones(c.width) if c.levels else [c.scale] for c in encoding.columns])
    # An indicator is the integer 1, not 2 ** bits.
    unit = np.concatenate(
        [np.full(c.width, 2.0**encoding.bits if c.levels else 1.0) for c in encoding.columns]
    )
    first = network.weights[0]
    weights = [first * scale[:, None] * unit[:, None], *network.weights[1:]]
    biases = [network.biases[0] + center @ first, *network.biases[1:]]
    bits = encoding.bits + weight_bits
    offsets = []
    for k, bias in enumerate(biases):
        offset = _single(bias * 2.0**bits)
        if not offset.any():
            # A layer that adds nothing would be left out of the circuit, which then depended on
            # the weights. One unit is far below what a confidence shows.
            offset[0] = k + 1
        offsets.append(offset)
        bits += weight_bits + 1
    rounded = [_single(weight * 2.0**weight_bits) for weight in weights]
    return IntegerNetwork(rounded, offsets, encoding.bits, weight_bits)


def value_bits(network: IntegerNetwork, limits: IntArray) -> int:
    """Bits that hold every number in the circuit, whatever accepted input it is given."""
    low, high = -limits.astype(object), limits.astype(object)
    largest = 0
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        w = weight.astype(object)
        up, down = np.maximum(w, 0), np.minimum(w, 0)
        low, high = low @ up + high @ down + bias, high @ up + low @ down + bias
        largest = max(largest, *map(abs, low), *map(abs, high))
        if k < len(network.weights) - 1:
            low, high = 2 * np.maximum(low, 0), 2 * np.maximum(high, 0)
    spread = 2 * (max(high) - min(low)) * tie_factor(network.n_classes) + network.n_classes
    return max(int(largest).bit_length(), int(spread).bit_length()) + 1


def tie_factor(n_classes: int) -> int:
    """Power of two at least `n_classes`: ``factor * z_j - j`` orders equal logits by class."""
    return 1 << (n_classes - 1).bit_length()


def integer_logits(network: IntegerNetwork, X: IntArray) -> IntArray:
    """Logits of encoded rows, shape (n_samples, n_classes), in units of 2 ** -logit_bits."""
    values = X
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = _product(values, weight) + bias
        if k < len(network.weights) - 1:
            values = values + np.abs(values)
    return values


def predictions(network: IntegerNetwork, X: IntArray) -> Predictions:
    """Label and confidence of encoded rows.

    Parameters
    ----------
    network : IntegerNetwork
        The committed function.
    X : ndarray of shape (n_samples, width), int64
        Encoded inputs.

    Returns
    -------
    Predictions
    """
    n_classes = network.n_classes
    factor = tie_factor(n_classes)
    ordered = integer_logits(network, X) * factor - np.arange(n_classes)
    label = ordered.argmax(axis=1)
    below = ordered - ordered.max(axis=1, keepdims=True)
    shift = network.logit_bits + factor.bit_length() - 1 - LOGIT_BITS
    # Rounded half away from zero, as the proof system's witness is.
    quotient = _rounded(below + (REACH << shift), shift)
    exponent = np.maximum(quotient, 0) - REACH
    one = 1 << CONFIDENCE_BITS
    weight = np.rint(one * EXP_BASE ** (exponent / one)).astype(np.int64)
    total = weight.sum(axis=1)
    return Predictions(label, (2 * one * one + total) // (2 * total))


# The table of exp takes its argument in units of 2 ** -LOGIT_BITS under the name of units of
# 2 ** -CONFIDENCE_BITS; the base, a single-precision number, makes up for it.
EXP_BASE = float(np.float32(np.exp(2.0 ** (CONFIDENCE_BITS - LOGIT_BITS))))


def fit_encoding(network: DenseNetwork, X: ArrayLike, bits: int) -> Encoding:
    """Scale features by what calibration data show, in numbers short enough to publish."""
    values = np.asarray(X, np.float64)
    columns = []
    for j, levels in enumerate(network.levels):
        if levels:
            columns.append(Column(levels))
            continue
        center = float(f"{values[:, j].mean():.3g}")
        scale = float(f"{values[:, j].std() or 1.0:.3g}")
        seen = float(np.abs((values[:, j] - center) / scale).max())
        columns.append(Column(0, center, scale, float(np.ceil(max(SATURATION, 2 * seen)))))
    return Encoding(tuple(columns), bits)


def agreement(reference: FloatArray, found: Predictions) -> Agreement:
    """Compare integer predictions with probabilities, shape (n_samples, n_classes)."""
    label = reference.argmax(axis=1)
    # A tie that rounding decides differently is no difference in confidence.
    confidence = np.take_along_axis(reference, found.label[:, None], axis=1)[:, 0]
    difference = np.abs(confidence - found.confidence / 2.0**CONFIDENCE_BITS)
    return Agreement(
        float(difference.max()), float(difference.mean()), float((label == found.label).mean())
    )


def fit_fixed_point(
    network: DenseNetwork, X: ArrayLike, tolerance: float
) -> tuple[Encoding, IntegerNetwork, Agreement]:
    """Choose the fewest bits that keep every confidence within a tolerance.

    Parameters
    ----------
    network : DenseNetwork
        Network to round.
    X : array-like of shape (n_samples, n_features)
        Calibration data.
    tolerance : float
        Largest allowed difference of a confidence, in probability, with what `ROUNDING`
        leaves to the prover included.

    Returns
    -------
    encoding : Encoding
    rounded : IntegerNetwork
    agreement : Agreement
        On the calibration data.

    Raises
    ------
    ValueError
        If no number of bits is enough, with the difference that was reached.
    """
    reference = probabilities(network, X)
    best: Agreement | None = None
    for bits in WEIGHT_BITS:
        encoding = fit_encoding(network, X, bits)
        rounded = integer_network(network, encoding, bits)
        if value_bits(rounded, encoding.limits()) > EXACT_BITS:
            break
        found = agreement(reference, predictions(rounded, encoding.encode(X)))
        best = found if best is None or found.maximum < best.maximum else best
        if found.maximum + ROUNDING <= tolerance:
            return encoding, rounded, found
    reached = "no format fits" if best is None else f"{best.maximum + ROUNDING:.2g} was reached"
    raise ValueError(
        f"Confidences cannot be kept within tolerance={tolerance:g} of the model's ({reached}); "
        "allow a larger tolerance, or commit to a network with fewer layers or smaller weights."
    )


def probabilities(network: DenseNetwork, X: ArrayLike) -> FloatArray:
    """Softmax of the network that was folded, shape (n_samples, n_classes), float64."""
    values = np.asarray(X, np.float64)
    values = np.concatenate(
        [_indicators(values[:, j], n) for j, n in enumerate(network.levels)], axis=1
    )
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = values @ weight + bias
        if k < len(network.weights) - 1:
            values = np.maximum(values, 0)
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def _indicators(x: FloatArray, levels: int) -> FloatArray:
    if not levels:
        return x[:, None]
    code = x.astype(np.int64)
    return np.eye(levels + 1)[np.where((code >= 0) & (code < levels), code, levels)]


def _single(values: FloatArray) -> IntArray:
    """Nearest integers that single precision holds: the circuit's file has no more."""
    # Weights beyond all bounds are found too long for a circuit, which is said there.
    return np.clip(np.rint(values), -(2.0**62), 2.0**62).astype(np.float32).astype(np.int64)


def _product(left: IntArray, right: IntArray) -> IntArray:
    """Exact product: doubles are faster than integers and exact below 2 ** 53."""
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64)


def _rounded(value: IntArray, shift: int) -> IntArray:
    half = 1 << (shift - 1)
    rounded: IntArray = np.sign(value) * ((np.abs(value) + half) >> shift)
    return rounded


def record_of(encoding: Encoding) -> dict[str, Any]:
    """The encoding as JSON."""
    return {"bits": encoding.bits, "columns": [list(column) for column in encoding.columns]}


def encoding_of(record: dict[str, Any]) -> Encoding:
    """The encoding from JSON; `ValueError` if it is none."""
    try:
        columns = tuple(
            Column(int(levels), float(center), float(scale), float(limit))
            for levels, center, scale, limit in record["columns"]
        )
        encoding = Encoding(columns, int(record["bits"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"The encoding of inputs is malformed: {error}") from error
    numbers = np.array([column[1:] for column in columns])
    if not columns or not np.isfinite(numbers).all() or (numbers[:, 1:] <= 0).any():
        raise ValueError("The encoding of inputs is malformed: scales and limits must be > 0.")
    return encoding
