"""Rounding of a network to fixed-point numbers, within a tolerance of its confidences."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray, IntArray
from skuq.zk._dense_network import DenseNetwork
from skuq.zk._encoding import Column, Encoding
from skuq.zk._fixed_point import (
    CONFIDENCE_BITS,
    LARGEST_EXACT,
    MAX_SHIFT,
    ROUNDING,
    WEIGHT_BITS,
    IntegerNetwork,
    IntegerPredictions,
    integer_predictions,
    largest_value,
    logit_shift,
)

# Features are accepted up to this many standard deviations from the mean, or twice as far as any of
# the calibration data if that is farther.
SATURATION = 8.0


class Agreement(NamedTuple):
    """Difference between the integer function and the model that was committed to.

    Attributes
    ----------
    maximum, mean : float
        Difference of confidences on the calibration data, in probability.
    argmax : float
        Fraction of rows with the same most probable class.
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
    for bias in biases:
        offsets.append(_single(bias * 2.0**bits))
        bits += weight_bits + 1
    rounded = [_single(weight * 2.0**weight_bits) for weight in weights]
    return IntegerNetwork(rounded, offsets, encoding.bits, weight_bits)


def fit_encoding(network: DenseNetwork, X: ArrayLike, bits: int) -> Encoding:
    """Fit centre, scale and limit of each feature to calibration data, in few digits.

    Scales have three digits, and so has a centre, unless it is far from 0 for its scale, as that
    of times is: then it is as precise as the scale.
    """
    values = np.asarray(X, np.float64)
    columns = []
    for j, levels in enumerate(network.levels):
        if levels:
            columns.append(Column(levels))
            continue
        mean = float(values[:, j].mean())
        # Rounding gives equal values a deviation that is not always 0.
        spread = values[:, j].std() if np.ptp(values[:, j]) else 1.0
        scale = float(f"{spread:.3g}")
        center = round(mean, 2 - math.floor(math.log10(min(scale, abs(mean) or scale))))
        seen = float(np.abs((values[:, j] - center) / scale).max())
        columns.append(Column(0, center, scale, float(np.ceil(max(SATURATION, 2 * seen)))))
    return Encoding(tuple(columns), bits)


def agreement(reference: FloatArray, found: IntegerPredictions) -> Agreement:
    """Compare integer predictions with probabilities, shape (n_samples, n_classes)."""
    label = reference.argmax(axis=1)
    # A tie that rounding decides differently is not a difference in confidence.
    confidence = np.take_along_axis(reference, found.label[:, None], axis=1)[:, 0]
    difference = np.abs(confidence - found.confidence / 2.0**CONFIDENCE_BITS)
    return Agreement(
        float(difference.max()), float(difference.mean()), float((label == found.label).mean())
    )


def fit_fixed_point(
    network: DenseNetwork, X: ArrayLike, tolerance: float
) -> tuple[Encoding, IntegerNetwork, Agreement]:
    """Choose the smallest precision that keeps every confidence within a tolerance.

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
    for input_bits, weight_bits in _precisions(len(network.weights)):
        encoding = fit_encoding(network, X, input_bits)
        rounded = integer_network(network, encoding, weight_bits)
        shift = logit_shift(rounded.logit_bits, rounded.n_classes)
        if shift > MAX_SHIFT or largest_value(rounded, encoding.limits()) > LARGEST_EXACT:
            continue
        found = agreement(reference, integer_predictions(rounded, encoding.encode(X)))
        best = found if best is None or found.maximum < best.maximum else best
        if found.maximum + ROUNDING <= tolerance:
            return encoding, rounded, found
    reached = "no format fits" if best is None else f"{best.maximum + ROUNDING:.2g} was reached"
    raise ValueError(
        f"Confidences cannot be kept within tolerance={tolerance:g} of the model's ({reached}); "
        "allow a larger tolerance, or commit to a network with fewer layers or smaller weights."
    )


def _precisions(n_layers: int) -> list[tuple[int, int]]:
    """Binary digits of inputs and of weights, the ones that make the smallest logits first.

    Inputs may be finer than weights: their error passes through all layers.
    """
    pairs = [(w + more, w) for w in WEIGHT_BITS for more in range(3) if w + more in WEIGHT_BITS]
    return sorted(pairs, key=lambda bits: bits[0] + n_layers * bits[1])


def probabilities(network: DenseNetwork, X: ArrayLike) -> FloatArray:
    """Softmax of the folded network in floating point, shape (n_samples, n_classes)."""
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
    """Round to integers that single precision holds, as ONNX stores them."""
    # Larger weights fail later, at the number of bits that a circuit can hold.
    return np.clip(np.rint(values), -(2.0**62), 2.0**62).astype(np.float32).astype(np.int64)
