"""Arithmetic circuits of the proven statements, as ONNX graphs over integers.

The verifying key of a graph depends only on the public `Architecture`: a verifier who rebuilds the
graph with other weights obtains the same key. Only weights, salt and one-time pads are private; a
graph contains them as constants to which the provider commits, and all circuits have the same
constants. All parts of the statement (inputs, labels, bin edges, thresholds) are public inputs.

Three choices ensure that the constraints determine every value, and keep the circuits small. ReLU
is ``(h + |h|) / 2``, with the division by 2 moved to the next layer. Values are not rescaled
between layers. Comparisons are signs of odd numbers, because the sign of 0 would need an additional
constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.base import IntArray
from skuq.imports import import_optional
from skuq.zk import _fixed_point as fixed
from skuq.zk._fixed_point import Architecture


def build(circuit: str, shape: Architecture, constants: Sequence[NDArray[Any]]) -> bytes:
    """Build a circuit as an ONNX model; `constants` must have the shapes ``shape.shapes``."""
    return _graph(circuit, shape, constants).serialise()


def _graph(circuit: str, shape: Architecture, constants: Sequence[NDArray[Any]]) -> Graph:
    graph = Graph(shape, shape.rows_of(circuit))
    parts = _committed(graph, circuit, constants)
    if circuit == "verdict":
        output, count = _verdict(graph, parts[0]), fixed.N_ALPHAS
    else:
        order = graph.public("order", 1, shape.widths[-1])
        ordered, largest = _ordered_logits(graph, parts, order)
        confidence = _confidence(graph, ordered, largest)
        if circuit in ("attestation", "predictions"):
            output = _labels(graph, ordered, largest, confidence, order)
            count = 2 * graph.n
        else:
            output = _sums(graph, ordered, largest, confidence)
            count = 3 * shape.n_bins
            n_largest = graph.columns(graph.columns(output, 0, 1, axis=0), 0, 1)
            output = graph.reshape(output, 1, count)
            if circuit == "padded_bins":
                pad = _pad(graph, parts[-1], "chunk")
                output = graph.op("Add", output, graph.rescale_unit(pad, fixed.CONFIDENCE_BITS))
            output, count = graph.op("Concat", output, n_largest, axis=1), count + 1
    context = graph.public("context", 1, 1)
    bound = graph.op("Concat", output, graph.rescale_unit(context, fixed.CONFIDENCE_BITS), axis=1)
    graph.finish(bound, 1, count + 1)
    return graph


def input_names(circuit: str, shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each public input of a circuit, in the order of its graph."""
    rows = shape.rows_of(circuit)
    return dict(_inputs(circuit, shape.widths, shape.n_pads, shape.n_bins, rows))


@cache
def _inputs(
    circuit: str, widths: tuple[int, ...], n_pads: int, n_bins: int, rows: int
) -> dict[str, tuple[int, ...]]:
    """Compute input names and shapes, which depend only on these arguments, and cache them."""
    shape = Architecture(widths, fixed.LOGIT_BITS, 1, 1, n_pads, n_bins, 0, {circuit: rows})
    return _graph(circuit, shape, [np.broadcast_to(0, size) for size in shape.shapes]).inputs


def zeros(circuit: str, shape: Architecture) -> list[list[int]]:
    """Return the fixed inputs, and 0 for all others, to run a circuit whose outputs are ignored."""
    known = fixed_inputs(shape)
    return [
        [int(v) for v in known.get(name, np.zeros(size, np.int64)).ravel()]
        for name, size in input_names(circuit, shape).items()
    ]


def fixed_inputs(shape: Architecture) -> dict[str, IntArray]:
    return {
        "one": np.array([1]),
        "factor": np.array([fixed.tie_factor(shape.widths[-1])]),
        "order": np.arange(shape.widths[-1]),
        "reach": np.array([fixed.REACH]),
        "others": np.array([shape.widths[-1] - 1]),
        "units": 1 << fixed.PAD_BITS * np.arange(fixed.PAD_LIMBS),
        "scale": np.array([1 << fixed.CONFIDENCE_BITS]),
        "thousand": np.array([1000]),
        "last": np.array([shape.n_bins]),
    }


def edges(n_bins: int, max_bins: int) -> IntArray:
    """Compute one odd threshold for each bin, of `n_bins` bins of equal width; shape (max_bins,).

    For the threshold ``edge`` of a bin, ``2 c - edge > 0`` if the confidence ``c`` is in this bin
    or in a higher one. Bins beyond `n_bins` have thresholds above any confidence.
    """
    one = 1 << fixed.CONFIDENCE_BITS
    first = -(-np.arange(n_bins) * one // n_bins)
    return np.concatenate([2 * first - 1, np.full(max_bins - n_bins, 2 * one + 1)])


def _committed(graph: Graph, circuit: str, constants: Sequence[NDArray[Any]]) -> list[str]:
    """Add all committed numbers to a graph; return an array for each part that its circuit uses.

    The proof system forces a prover to use a committed number only if the circuit uses this number
    at least twice. Therefore, the numbers form a single constant array, which is concatenated with
    itself. The parts are slices of the result; slicing adds no constraints. A public number is
    appended, and the row is reshaped to a column, because the proof system could otherwise simplify
    the concatenation.
    """
    row = np.concatenate([np.ravel(part) for part in constants])[None]
    numbers = graph.constant(row.astype(np.float32))
    doubled = graph.op("Concat", numbers, numbers, graph.one, axis=1)
    column = graph.reshape(doubled, 2 * graph.shape.n_committed + 1, 1)
    return [
        graph.reshape(graph.columns(column, positions.start, positions.stop, axis=0), *size)
        for positions, size in graph.shape.parts_of(circuit)
    ]


def _ordered_logits(graph: Graph, parts: list[str], order: str) -> tuple[str, str]:
    """Compute ``factor * logit - class number``, which differs for all classes, and its maximum."""
    n, widths = graph.n, graph.shape.widths
    value, ones = graph.public("rows", n, widths[0]), graph.broadcast(graph.one, 1, n)
    for k, (layer, width) in enumerate(zip(parts, widths[:-1], strict=False)):
        if k:
            value = graph.op("Add", value, graph.op("Abs", value))
        # Append a column of ones for the bias. Flat lists are concatenated; if matrices were
        # concatenated, the proof system would split off the column again.
        flat = graph.reshape(graph.op("Transpose", value, perm=[1, 0]), 1, width * n)
        beside = graph.reshape(graph.op("Concat", flat, ones, axis=1), width + 1, n)
        value = graph.op("MatMul", graph.op("Transpose", beside, perm=[1, 0]), layer)
    factor = graph.public("factor", 1, 1)
    value = graph.op("Sub", graph.op("Mul", value, factor), order)
    values = [graph.columns(value, j, j + 1) for j in range(widths[-1])]
    while len(values) > 1:  # replace each pair by its maximum: ``b + relu(a - b)``
        pairs = zip(values[::2], values[1::2], strict=False)
        rest = values[len(values) - len(values) % 2 :]
        values = [graph.op("Add", b, graph.op("Relu", graph.op("Sub", a, b))) for a, b in pairs]
        values += rest
    return value, values[0]


def _confidence(graph: Graph, ordered: str, largest: str) -> str:
    """Compute ``1 / sum exp(z - max z)`` in units of 2 ** -CONFIDENCE_BITS, shape (n, 1)."""
    shift = fixed.logit_shift(graph.shape.logit_bits, graph.shape.widths[-1])
    reach = graph.rescale_unit(graph.public("reach", 1, 1), fixed.CONFIDENCE_BITS)
    # The proof system then divides once, by 2 ** shift, to reduce this scale to CONFIDENCE_BITS.
    below = graph.rescale_unit(graph.op("Sub", ordered, largest), shift + fixed.CONFIDENCE_BITS)
    clipped = graph.op("Relu", graph.op("Add", below, reach))
    # This constant is public: it is part of the verifying key instead of the commitment.
    base = graph.constant(np.array([fixed.EXP_BASE], np.float32))
    weight = graph.op("Pow", base, graph.op("Sub", clipped, reach))
    return graph.op("Reciprocal", graph.total(weight, 1))


def _labels(graph: Graph, ordered: str, largest: str, confidence: str, order: str) -> str:
    """Return each row's confidence, and ``2 * label`` minus the sum of all class numbers."""
    is_largest = graph.sign_of_odd(graph.op("Sub", ordered, largest))  # (n, n_classes)
    weights = graph.reshape(order, graph.shape.widths[-1], 1)
    label = graph.rescale_unit(graph.op("MatMul", is_largest, weights), fixed.CONFIDENCE_BITS)
    both = graph.op("Concat", confidence, label, axis=1)
    return graph.reshape(both, 1, 2 * graph.n)


def _sums(graph: Graph, ordered: str, largest: str, confidence: str) -> str:
    """Sum 1, confidence and correctness over rows, for each edge; negate rows below the edge."""
    n = graph.n
    labels = graph.public("labels", n, graph.shape.widths[-1])
    counted = graph.public("counted", n, 1)
    limits = graph.rescale_unit(graph.public("edges", 1, graph.shape.n_bins), fixed.CONFIDENCE_BITS)
    is_largest = graph.sign_of_odd(graph.op("Sub", ordered, largest))  # (n, n_classes)
    correct = graph.total(graph.op("Mul", is_largest, labels), 1)
    # `n_largest` is 1 if one class has the largest logit, and greater if several classes have this
    # logit. It detects a prover who cheats by weights that do not represent integers: these could
    # make the logits of all classes equal in the field, so that a row is correct for any label.
    n_largest = graph.op("Add", graph.total(is_largest, 1), graph.public("others", 1, 1))
    twice = graph.op("Add", confidence, confidence)
    reaches = graph.op("Sign", graph.op("Sub", twice, limits))
    n_largest = graph.rescale_unit(n_largest, fixed.CONFIDENCE_BITS)
    correct = graph.rescale_unit(correct, fixed.CONFIDENCE_BITS)
    parts = graph.op("Concat", n_largest, confidence, correct, axis=1)  # (n, 3)
    weighted = graph.op("Transpose", graph.op("Mul", parts, counted), perm=[1, 0])
    return graph.op("MatMul", weighted, reaches)


def _pad(graph: Graph, pads: str, chunks: str) -> str:
    """Sum the one-time pads that the public input `chunks` selects, shape (1, 3 * n_bins)."""
    used = graph.public(chunks, 1, graph.shape.n_pads)
    limbs = graph.reshape(graph.op("MatMul", used, pads), fixed.PAD_LIMBS, 3 * graph.shape.n_bins)
    return graph.op("MatMul", graph.public("units", 1, fixed.PAD_LIMBS), limbs)


def _verdict(graph: Graph, pads: str) -> str:
    """Output 1 if the audit passes, else -1, for each alpha (Algorithm 1, step 3, with a margin).

    Let n be the number of predictions in a bin, c the sum of their confidences, and r the number of
    correct predictions. The test is ``max(0, |r - c| - alpha n) ** 2 <= chance n``, where
    ``chance`` is the margin (`chance_allowance`). All sums are multiplied by four to be integers;
    alpha is in thousandths, chance in quarters of millionths.
    """
    n_bins = graph.shape.n_bins
    under_pads = graph.public("sums", 1, 3 * n_bins)
    sums = graph.op("Sub", under_pads, _pad(graph, pads, "chunks"))
    count, confidence, signs = (
        _per_bin(graph, graph.columns(sums, k * n_bins, (k + 1) * n_bins), n_bins) for k in range(3)
    )
    scale, alphas = graph.public("scale", 1, 1), graph.public("alphas", fixed.N_ALPHAS, 1)
    thousand, chance = graph.public("thousand", 1, 1), graph.public("chance", 1, 1)
    last = graph.public("last", 1, 1)
    correct = graph.op("Mul", graph.op("Add", count, signs), scale)
    gap = graph.op("Abs", graph.op("Sub", correct, graph.op("Add", confidence, confidence)))
    size = graph.op("Mul", graph.op("Add", count, count), scale)  # 4 n, multiplied by the scale
    tolerated = graph.op("MatMul", alphas, size)  # (N_ALPHAS, n_bins)
    excess = graph.op("Relu", graph.op("Sub", graph.op("Mul", gap, thousand), tolerated))
    allowed = graph.op("Mul", graph.op("Mul", size, scale), chance)
    square = graph.op("Mul", excess, excess)
    kept = graph.sign_of_odd(graph.op("Sub", allowed, square))
    passed = graph.sign_of_odd(graph.op("Sub", graph.total(kept, 1), last))
    return graph.rescale_unit(graph.reshape(passed, 1, fixed.N_ALPHAS), fixed.CONFIDENCE_BITS)


def _per_bin(graph: Graph, cumulative: str, n_bins: int) -> str:
    """Compute twice the sum over each bin: its signed sum at the lower edge minus at the upper.

    At the upper edge of the last bin, all rows count negatively: that sum is minus the first sum.
    """
    first = graph.columns(cumulative, 0, 1)
    none = graph.op("Neg", first)
    if n_bins == 1:
        return graph.op("Sub", cumulative, none)
    following = graph.op("Concat", graph.columns(cumulative, 1, n_bins), none, axis=1)
    return graph.op("Sub", cumulative, following)


class Graph:
    """Builder of the ONNX graph of a circuit; methods that add a value return its name."""

    def __init__(self, shape: Architecture, n: int) -> None:
        onnx = import_optional("onnx", extra="zk")
        self._helper, self._types = onnx.helper, onnx.TensorProto
        self._numpy = import_optional("onnx.numpy_helper", extra="zk")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._output: Any = None
        self.shape, self.n = shape, n  # n: number of data rows
        self.inputs: dict[str, tuple[int, ...]] = {}  # shapes of the public inputs, in their order
        self.one = self.public("one", 1, 1)

    def public(self, name: str, *shape: int) -> str:
        self.inputs[name] = shape
        self._inputs.append(self._helper.make_tensor_value_info(name, self._types.INT64, shape))
        return self.op("Cast", name, to=self._types.FLOAT)

    def op(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        name = name or f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def rescale_unit(self, value: str, bits: int) -> str:
        """Reinterpret integers as multiples of 2 ** -bits; this adds no constraint."""
        return self.op("Mul", value, self.constant(np.array([2.0**-bits], np.float32)))

    def columns(self, value: str, first: int, last: int, axis: int = 1) -> str:
        return self.op("Slice", value, *(self._integers(i) for i in (first, last, axis)))

    def total(self, value: str, axis: int) -> str:
        """Sum over an axis, which is kept with length 1."""
        return self.op("ReduceSum", value, self._integers(axis), keepdims=1)

    def broadcast(self, value: str, *shape: int) -> str:
        return self.op("Expand", value, self._integers(*shape))

    def reshape(self, value: str, *shape: int) -> str:
        return self.op("Reshape", value, self._integers(*shape))

    def sign_of_odd(self, value: str) -> str:
        """Return 1 for integers >= 0 and -1 for negative integers: the sign of 2 x + 1."""
        return self.op("Sign", self.op("Add", self.op("Add", value, value), self.one))

    def finish(self, value: str, *shape: int) -> None:
        self.op("Identity", value, name="output")
        self._output = self._helper.make_tensor_value_info("output", self._types.FLOAT, shape)

    def serialise(self) -> bytes:
        graph = self._helper.make_graph(
            self._nodes, "skuq", self._inputs, [self._output], self._constants
        )
        model = self._helper.make_model(graph, opset_imports=[self._helper.make_opsetid("", 13)])
        model.ir_version = 8
        import_optional("onnx.checker", extra="zk").check_model(model)
        return bytes(model.SerializeToString())

    def constant(self, values: NDArray[Any]) -> str:
        """Add a constant; the circuit commits to it unless it is a parameter of an operator."""
        name = f"c{len(self._constants)}"
        self._constants.append(self._numpy.from_array(values, name))
        return name

    def _integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))
