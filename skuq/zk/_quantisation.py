"""Conversion of classifiers to affine layers with integer weights and ReLU between the layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from torch import nn

from skuq._networks import BinaryLogits, Columns, ScaledLogits, TabularNet
from skuq.base import FloatArray, IntArray
from skuq.models import adopt
from skuq.zk import _fixed_point as fixed
from skuq.zk._fixed_point import IntegerNetwork, IntegerPredictions
from skuq.zk._public_commitment import Column, Encoding, indicators

SUPPORTED = (
    "Linear, ReLU, BatchNorm1d, Dropout, Flatten, Identity, a final LogSoftmax, "
    "skuq._networks.MLP and skuq._networks.TabularNet"
)
PROVABLE = (
    "Audits can be proven for a LogisticRegression, an MLPClassifier with activation='relu', and "
    "networks of linear layers and ReLU, on numeric columns without missing values."
)
# The largest accepted difference of a feature from its mean is this many standard deviations, or
# twice the largest difference in the calibration data if that is larger.
SATURATION = 8.0
# Largest accepted change of a probability when layers are merged; rounding errors are smaller.
MAX_FOLDING_ERROR = 1e-4


def fit_fixed_point(
    network: DenseNetwork, X: ArrayLike, max_error: float
) -> tuple[Encoding, IntegerNetwork, Agreement]:
    """Choose the lowest precision whose error on `X`, plus `ROUNDING`, is at most `max_error`."""
    reference = probabilities(network, X)
    best: Agreement | None = None
    # Precisions of inputs and weights, sorted by the resulting size of the logits. Inputs may have
    # more bits than weights, because their error propagates through all layers.
    allowed = fixed.WEIGHT_BITS
    pairs = [(w + more, w) for w in allowed for more in range(3) if w + more in allowed]
    pairs.sort(key=lambda bits: bits[0] + len(network.weights) * bits[1])
    for input_bits, weight_bits in pairs:
        encoding = fit_encoding(network, X, input_bits)
        rounded = integer_network(network, encoding, weight_bits)
        shift = fixed.logit_shift(rounded.logit_bits, rounded.n_classes)
        largest = fixed.largest_value(rounded, encoding.limits())
        if shift > fixed.MAX_SHIFT or largest > fixed.LARGEST_EXACT:
            continue
        found = agreement(reference, fixed.integer_predictions(rounded, encoding.encode(X)))
        best = found if best is None or found.maximum < best.maximum else best
        if found.maximum + fixed.ROUNDING <= max_error:
            return encoding, rounded, found
    reached = "its numbers are too large at every precision"
    if best is not None:
        reached = f"{best.maximum + fixed.ROUNDING:.2g} was reached"
    raise ValueError(
        f"Confidences cannot be kept within max_error={max_error:g} of the model's ({reached}); "
        "allow a larger error, or commit to a network with fewer layers or smaller weights."
    )


def fit_encoding(network: DenseNetwork, X: ArrayLike, bits: int) -> Encoding:
    """Fit centre, scale and limit of each feature to calibration data, rounded to few digits.

    Scales have three digits. Centres have three digits too, unless they are large compared with
    the scale, as for timestamps; such a centre is rounded at the last digit of the scale.
    """
    values = np.asarray(X, np.float64)
    columns = []
    for j, levels in enumerate(network.levels):
        if levels:
            columns.append(Column(levels))
            continue
        mean = float(values[:, j].mean())
        # `ptp` detects equal values; due to rounding, their standard deviation may not be zero.
        spread = values[:, j].std() if np.ptp(values[:, j]) else 1.0
        scale = float(f"{spread:.3g}")
        center = round(mean, 2 - math.floor(math.log10(min(scale, abs(mean) or scale))))
        seen = float(np.abs((values[:, j] - center) / scale).max())
        columns.append(Column(0, center, scale, float(np.ceil(max(SATURATION, 2 * seen)))))
    return Encoding(tuple(columns), bits)


def integer_network(network: DenseNetwork, encoding: Encoding, weight_bits: int) -> IntegerNetwork:
    """Convert a network to integer weights, which apply to inputs encoded as integers."""
    # Indicators are encoded as the integer 1, not 2 ** bits.
    each = [
        (0.0, 1.0, 2.0**encoding.bits) if column.levels else (column.center, column.scale, 1.0)
        for column in encoding.columns
        for _ in range(column.width)
    ]
    center, scale, unit = np.array(each).T
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


class Agreement(NamedTuple):
    """Differences between the integer model and the committed model."""

    maximum: float  # maximum difference between confidences on the calibration data
    mean: float
    argmax: float  # fraction of rows for which both models predict the same class


def agreement(reference: FloatArray, found: IntegerPredictions) -> Agreement:
    """Compare integer predictions with probabilities of shape (n_samples, n_classes)."""
    label = reference.argmax(axis=1)
    # Compare the confidence with the probability of the class that the integer model predicts.
    # If both models predict different classes of equal probability, this does not count as error.
    confidence = np.take_along_axis(reference, found.label[:, None], axis=1)[:, 0]
    difference = np.abs(confidence - found.confidence / 2.0**fixed.CONFIDENCE_BITS)
    return Agreement(
        float(difference.max()), float(difference.mean()), float((label == found.label).mean())
    )


def probabilities(network: DenseNetwork, X: ArrayLike) -> FloatArray:
    """Compute the softmax output of the folded network in doubles, (n_samples, n_classes)."""
    values = np.asarray(X, np.float64)
    blocks = [
        indicators(x, levels) if levels else x[:, None]
        for x, levels in zip(values.T, network.levels, strict=True)
    ]
    values = np.concatenate(blocks, axis=1)
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = values @ weight + bias
        if k < len(network.weights) - 1:
            values = np.maximum(values, 0)
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def _single(values: FloatArray) -> IntArray:
    """Round to integers that are exact in single precision, as stored in ONNX."""
    # Clipping prevents overflow. `fit_fixed_point` rejects networks with such large weights.
    return np.clip(np.rint(values), -(2.0**62), 2.0**62).astype(np.float32).astype(np.int64)


class DenseNetwork(NamedTuple):
    """Affine layers with ReLU between them, from numeric and one-hot inputs to logits."""

    weights: list[FloatArray]  # (n_in, n_out) of each layer
    biases: list[FloatArray]  # (n_out,) of each layer
    # For each input column, 0 if the column is numeric, else the number of known category codes. A
    # categorical column becomes levels + 1 indicators, of which the last represents all unknown
    # values.
    levels: tuple[int, ...]
    classes: NDArray[Any]  # labels in the order of the logits


def dense_network(estimator: Any) -> DenseNetwork:
    """Fold a fitted classifier into affine layers with ReLU between them.

    Batch normalisation, feature scaling and temperature are folded into the neighbouring
    layer, dropout is omitted, and embeddings become weights of the first layer.
    """
    try:
        adopted = adopt(estimator)
    except TypeError as error:
        raise TypeError(f"{error} {PROVABLE}") from error
    folded = _Folded()
    levels = folded.add(adopted.module)
    weights, biases = map(list, zip(*folded.steps, strict=True))
    if adopted.transform is not None:
        scaling = _scaling(adopted.transform)
        if any(levels):
            raise TypeError(
                "A pipeline that scales category codes cannot be put into a circuit; commit to "
                "the network itself and pass it preprocessed features."
            )
        center, factor = (np.broadcast_to(part, len(weights[0])) for part in scaling)
        biases[0] = biases[0] - (center * factor) @ weights[0]
        weights[0] = factor[:, None] * weights[0]
    n_classes = weights[-1].shape[1]
    if n_classes < 2:
        raise TypeError(
            f"The classifier must have one logit per class, got {n_classes} output; wrap a "
            "binary network so that it returns two logits, or pass its skorch net."
        )
    classes = np.arange(n_classes) if adopted.classes is None else np.asarray(adopted.classes)
    return DenseNetwork(weights, biases, levels or (0,) * len(weights[0]), classes)


def check_folded(estimator: Any, network: DenseNetwork, X: ArrayLike) -> None:
    """Check that the folded network predicts the same probabilities as the estimator."""
    adopted = adopt(estimator)
    with torch.no_grad():
        proba = adopted.module(adopted.inputs(X)).double().softmax(dim=-1).numpy()
    found = probabilities(network, X)
    if proba.shape != found.shape or np.abs(proba - found).max() > MAX_FOLDING_ERROR:
        raise TypeError(
            "The model cannot be put into a circuit: its layers alone do not give its predictions."
        )


class _Folded:
    """Affine layers with ReLU between them, built module by module."""

    def __init__(self) -> None:
        self.steps: list[tuple[FloatArray, FloatArray]] = []
        self._open = False  # whether the next affine map is merged with the previous map
        # Whether there was a LogSoftmax. It does not change the probabilities, and must come last.
        self._ended = False

    def add(self, module: nn.Module) -> tuple[int, ...]:
        """Append a module; return its `DenseNetwork.levels`, or () if all columns are numeric."""
        width = self.steps[-1][0].shape[1] if self.steps else 0
        kinds: dict[type[nn.Module], Callable[[Any], Any]] = {
            TabularNet: self._tabular,
            nn.Sequential: lambda m: next(filter(None, [self.add(part) for part in m]), ()),
            nn.Linear: lambda m: self._affine(
                _array(m.weight).T, np.zeros(m.out_features) if m.bias is None else _array(m.bias)
            ),
            nn.BatchNorm1d: lambda m: self._affine(*_batch_norm(m)),
            nn.ReLU: lambda m: setattr(self, "_open", False),
            **dict.fromkeys((nn.Identity, nn.Dropout, nn.Flatten), lambda m: ()),
            nn.LogSoftmax: lambda m: setattr(self, "_ended", True),
            ScaledLogits: lambda m: self._affine(m.factor * np.eye(width), np.zeros(width)),
            BinaryLogits: lambda m: self._affine(np.array([[0.0, 1.0]]), np.zeros(2)),
            Columns: lambda m: self._affine(
                np.eye(len(m.order))[:, m.order], np.zeros(len(m.order))
            ),
        }
        kind = next((kind for kind in kinds if isinstance(module, kind)), None)
        # A subclass with its own `forward` counts as an unsupported layer.
        if self._ended or kind is None or type(module).forward is not kind.forward:
            raise TypeError(
                f"The layer {type(module).__name__} cannot be put into a circuit"
                f"{' after a LogSoftmax' if self._ended else ''}; the supported layers are "
                f"{SUPPORTED}."
            )
        return kinds[kind](module) or ()

    def _affine(self, weight: FloatArray, bias: FloatArray) -> None:
        if self._open:
            before, offset = self.steps.pop()
            weight, bias = before @ weight, offset @ weight + bias
        self.steps.append((weight, bias))
        self._open = True

    def _tabular(self, net: TabularNet) -> tuple[int, ...]:
        """Append the embeddings, as weights of one-hot indicators, and the layers after them."""
        n_columns = len(net.numeric) + len(net.categorical)
        levels = [0] * n_columns
        for column, n_levels in zip(net.categorical, net.levels, strict=True):
            levels[column] = n_levels
        widths = [1 if n == 0 else n + 1 for n in levels]
        start = np.concatenate([[0], np.cumsum(widths)])
        embedded = [_array(table.weight) for table in net.embeddings]
        n_inner = len(net.numeric) + sum(table.shape[1] for table in embedded)
        weight = np.zeros((start[-1], n_inner))
        for position, column in enumerate(net.numeric):
            weight[start[column], position] = 1.0
        position = len(net.numeric)
        for column, table in zip(net.categorical, embedded, strict=True):
            rows = slice(start[column], start[column + 1])
            weight[rows, position : position + table.shape[1]] = table
            position += table.shape[1]
        self._affine(weight, np.zeros(n_inner))
        self.add(net.mlp)
        return tuple(levels)


def _batch_norm(module: nn.BatchNorm1d) -> tuple[FloatArray, FloatArray]:
    if module.running_mean is None or module.running_var is None:
        raise TypeError(
            "A BatchNorm1d needs running statistics (track_running_stats=True) in a circuit."
        )
    factor = 1 / np.sqrt(_array(module.running_var) + module.eps)
    offset = np.zeros(len(factor))
    if module.affine:
        factor, offset = factor * _array(module.weight), _array(module.bias)
    return np.diag(factor), -_array(module.running_mean) * factor + offset


def _scaling(transform: Any) -> tuple[FloatArray, FloatArray]:
    pipeline = getattr(transform, "__self__", None)
    if not isinstance(pipeline, Pipeline):
        raise TypeError("Preprocessing in several pipelines cannot be put into a circuit.")
    center: Any = np.float64(0.0)
    factor: Any = np.float64(1.0)
    for name, step in pipeline.steps:
        if step is None or step == "passthrough":
            continue
        own: Any = np.zeros(step.n_features_in_)
        if isinstance(step, StandardScaler):
            own = step.mean_ if step.with_mean else own
            times = 1 / step.scale_ if step.with_std else np.ones(step.n_features_in_)
        elif isinstance(step, MinMaxScaler) and not step.clip:
            own, times = -step.min_ / step.scale_, step.scale_
        elif isinstance(step, MaxAbsScaler):
            times = 1 / step.scale_
        else:
            raise TypeError(
                f"The step {name!r} ({type(step).__name__}) cannot be put into a circuit, only a "
                "StandardScaler, MinMaxScaler or MaxAbsScaler. Commit to the network itself and "
                "pass it preprocessed features."
            )
        center, factor = center + own / factor, factor * times
    return np.asarray(center, np.float64), np.asarray(factor, np.float64)


def _array(tensor: Any) -> FloatArray:
    return tensor.detach().double().numpy()
