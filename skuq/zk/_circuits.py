"""The statements that are proven, as ONNX graphs over integers.

Every graph is a function of the public `Architecture` alone: the auditor builds it again with
other weights and arrives at the same verifying key. Weights, salt and pads are the only
constants; they are private, committed to, and the same in all graphs. Whatever belongs to the
statement (inputs, labels, edges of the bins, thresholds) enters as a public input.

Graphs avoid what the proof system leaves loose or makes dear: ReLU is ``(h + |h|) / 2`` with
the half moved to the next layer, nothing is rescaled before the logits, and comparisons are
signs of odd numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import IntArray
from skuq.extras import import_optional
from skuq.zk._fixed_point import (
    CONFIDENCE_BITS,
    EXP_BASE,
    LOGIT_BITS,
    REACH,
    tie_factor,
)

CONTEXT_BITS = 248  # of the SHA-256 that ties a proof to its statement
PAD_LIMBS, PAD_BITS = 3, 20  # a pad is a number of PAD_LIMBS digits of PAD_BITS bits
KINDS = ("predict", "bins", "padded", "verdict")
N_ALPHAS = 3  # thresholds of a verdict: alpha less, exactly, and plus the tolerance


class Architecture(NamedTuple):
    """All that a verifying key depends on; public.

    Attributes
    ----------
    widths : tuple of int
        Integers per input row, neurons of each hidden layer, number of classes.
    logit_bits : int
        Binary digits after the point of the logits.
    digits : int
        Digits of BASE_BITS bits that hold every number in the circuit.
    n_salts : int
        Random numbers that are committed to beside the weights.
    n_pads : int
        Chunks whose sums can be hidden, for verdicts that reveal nothing else.
    n_bins : int
        Largest number of confidence bins.
    rows : int
        Logarithm (base 2) of the rows of the circuit.
    points : dict of str to int
        Rows of data that one proof of each kind covers.
    """

    widths: tuple[int, ...]
    logit_bits: int
    digits: int
    n_salts: int
    n_pads: int
    n_bins: int
    rows: int
    points: dict[str, int]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Circuits of this architecture; two of them only where there are pads."""
        return KINDS if self.n_pads else KINDS[:2]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the committed constants."""
        layers = zip(self.widths[:-1], self.widths[1:], strict=True)
        shapes: list[tuple[int, ...]] = [s for a, b in layers for s in ((a, b), (1, b))]
        shapes.append((1, self.n_salts))
        if self.n_pads:
            shapes.append((self.n_pads, PAD_LIMBS * 3 * self.n_bins))
        return shapes

    @property
    def n_committed(self) -> int:
        """Numbers under the commitment."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def rows_of(self, kind: str) -> int:
        """Rows of data that one proof covers."""
        return self.points.get(kind, 0)


class Graph:
    """A graph in the making: thin names for the few operators that circuits use."""

    def __init__(self) -> None:
        self._helper = import_optional("onnx", extra="zk").helper
        self._numpy = import_optional("onnx.numpy_helper", extra="zk")
        self._types = import_optional("onnx", extra="zk").TensorProto
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []

    def public(self, name: str, *shape: int) -> str:
        """A public input of integers."""
        self._inputs.append(self._helper.make_tensor_value_info(name, self._types.INT64, shape))
        return self.op("Cast", name, to=self._types.FLOAT)

    def committed(self, values: NDArray[Any]) -> str:
        """A private constant under the commitment."""
        return self._constant(np.asarray(values, np.float32))

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Apply an operator."""
        name = name or f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def add(self, *terms: str) -> str:
        """Sum of terms."""
        total = terms[0]
        for term in terms[1:]:
            total = self.op("Add", total, term)
        return total

    def relabel(self, value: str, bits: int) -> str:
        """The same integers in units that are 2 ** bits smaller; costs nothing."""
        return self.op("Mul", value, self._constant(np.array([2.0**-bits], np.float32)))

    def columns(self, value: str, first: int, last: int, axis: int = 1) -> str:
        """Part of a tensor."""
        return self.op("Slice", value, *(self._integers(i) for i in (first, last, axis)))

    def total(self, value: str, axis: int) -> str:
        """Sum over an axis, which stays."""
        return self.op("ReduceSum", value, self._integers(axis), keepdims=1)

    def spread(self, value: str, *shape: int) -> str:
        """One number in every place of a shape."""
        return self.op("Expand", value, self._integers(*shape))

    def reshape(self, value: str, *shape: int) -> str:
        """The same numbers in another shape."""
        return self.op("Reshape", value, self._integers(*shape))

    def sign_of_odd(self, value: str, one: str) -> str:
        """1 where an integer is >= 0, -1 where it is negative: the sign of 2 x + 1."""
        return self.op("Sign", self.add(value, value, one))

    def finish(self, value: str, shape: Sequence[int]) -> bytes:
        """Name the output and serialise."""
        self.op("Identity", value, name="output")
        output = self._helper.make_tensor_value_info("output", self._types.FLOAT, list(shape))
        graph = self._helper.make_graph(
            self._nodes, "skuq", self._inputs, [output], self._constants
        )
        model = self._helper.make_model(graph, opset_imports=[self._helper.make_opsetid("", 13)])
        model.ir_version = 8
        import_optional("onnx.checker", extra="zk").check_model(model)
        return bytes(model.SerializeToString())

    def _integers(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, values: NDArray[Any]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._numpy.from_array(values, name))
        return name


def build(kind: str, shape: Architecture, constants: Sequence[NDArray[Any]]) -> bytes:
    """Build one of the circuits.

    Parameters
    ----------
    kind : {"predict", "bins", "padded", "verdict"}
        What is proven: labels and confidences of rows; sums per confidence bin; the same under
        a pad; whether sums under pads keep to thresholds.
    shape : Architecture
        The public part.
    constants : sequence of ndarray
        Weights and biases of each layer, salt, and pads if there are any, in the shapes of
        ``shape.shapes``. Any values give the same verifying key.

    Returns
    -------
    bytes
        ONNX model.
    """
    graph = Graph()
    zero, one = graph.public("zero", 1, 1), graph.public("one", 1, 1)
    held = [graph.committed(values) for values in constants]
    if kind == "verdict":
        # Weights take no part in this statement and are still under its commitment. Each zero
        # is made from the one before: constants are committed to in the order of their use.
        alive = _keep(graph, shape, held, _touch(graph, shape, held, zero), pads=False)
        output, count = _verdict(graph, shape, held, alive, one), N_ALPHAS
    else:
        alive = _keep(graph, shape, held, zero, pads=kind != "padded")
        order = graph.public("order", 1, shape.widths[-1])
        ordered, top = _ordered_logits(graph, shape, held, alive, order, shape.rows_of(kind))
        confidence = _confidence(graph, shape, ordered, top)
        if kind == "predict":
            output, count = _labels(graph, shape, ordered, top, confidence, order, one)
        else:
            output = _sums(graph, shape, ordered, top, confidence, one, shape.rows_of(kind))
            count = 3 * shape.n_bins
            single = graph.columns(graph.columns(output, 0, 1, axis=0), 0, 1)
            output = graph.reshape(output, 1, count)
            if kind == "padded":
                pads = _pads(graph, shape, held, "chunk", alive)
                output = graph.add(output, graph.relabel(pads, CONFIDENCE_BITS))
            output, count = graph.op("Concat", output, single, axis=1), count + 1
    context = graph.public("context", 1, 1)
    tied = graph.op("Concat", output, graph.relabel(context, CONFIDENCE_BITS), axis=1)
    return graph.finish(tied, [1, count + 1])


def input_names(kind: str, shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Public inputs of a circuit with their shapes, in the order in which `build` names them."""
    n, n_classes = shape.rows_of(kind), shape.widths[-1]
    names: dict[str, tuple[int, ...]] = {"zero": (1, 1), "one": (1, 1)}
    if kind == "verdict":
        names["sums"] = (1, 3 * shape.n_bins)
        names["chunks"] = (1, shape.n_pads)
        names["units"] = (1, PAD_LIMBS)
        names["scale"] = (1, 1)
        names["alphas"] = (N_ALPHAS, 1)
        names["thousand"] = (1, 1)
        names["chance"] = (1, 1)
        names["last"] = (1, 1)
    else:
        names["order"] = (1, n_classes)
        names["rows"] = (n, shape.widths[0])
        names["factor"] = (1, 1)
        names["reach"] = (1, 1)
        if kind != "predict":
            names["labels"] = (n, n_classes)
            names["counted"] = (n, 1)
            names["edges"] = (1, shape.n_bins)
            names["others"] = (1, 1)
        if kind == "padded":
            names["chunk"] = (1, shape.n_pads)
            names["units"] = (1, PAD_LIMBS)
    names["context"] = (1, 1)
    return names


def fixed_inputs(shape: Architecture) -> dict[str, IntArray]:
    """Public inputs that are the same in every proof."""
    return {
        "zero": np.array([0]),
        "one": np.array([1]),
        "factor": np.array([tie_factor(shape.widths[-1])]),
        "order": np.arange(shape.widths[-1]),
        "reach": np.array([REACH]),
        "others": np.array([shape.widths[-1] - 1]),
        "units": 1 << PAD_BITS * np.arange(PAD_LIMBS),
        "scale": np.array([1 << CONFIDENCE_BITS]),
        "thousand": np.array([1000]),
        "last": np.array([shape.n_bins]),
    }


def edges(n_bins: int, most: int) -> IntArray:
    """Odd thresholds of equal-width bins: ``2 c - edge > 0`` where the confidence ``c`` is in
    bin b or a higher one; bins beyond `n_bins` begin where no confidence is."""
    one = 1 << CONFIDENCE_BITS
    first = -(-np.arange(n_bins) * one // n_bins)
    return np.concatenate([2 * first - 1, np.full(most - n_bins, 2 * one + 1)])


def _keep(graph: Graph, shape: Architecture, held: list[str], zero: str, *, pads: bool) -> str:
    """Zero, computed from salt and pads: what no statement uses would not be committed to.

    Pads that the statement does use are left out: constants with two uses cost more.
    """
    salt = held[2 * len(shape.widths) - 2]
    nothing = graph.op("MatMul", salt, graph.spread(zero, shape.n_salts, 1))
    if shape.n_pads and pads:
        rows = graph.op("MatMul", graph.spread(nothing, 1, shape.n_pads), held[-1])
        nothing = graph.total(rows, 1)
    return nothing


def _touch(graph: Graph, shape: Architecture, held: list[str], zero: str) -> str:
    """Zero, computed from the weights."""
    nothing = zero
    for k, width in enumerate(shape.widths[:-1]):
        product = graph.op("MatMul", graph.spread(nothing, 1, width), held[2 * k])
        shifted = graph.op("Mul", held[2 * k + 1], graph.total(product, 1))
        nothing = graph.total(shifted, 1)
    return nothing


def _ordered_logits(
    graph: Graph, shape: Architecture, held: list[str], alive: str, order: str, n: int
) -> tuple[str, str]:
    """``factor * logit - class`` of every class, and the largest: no two are equal."""
    n_classes, n_layers = shape.widths[-1], len(shape.widths) - 1
    value = graph.public("rows", n, shape.widths[0])
    for k in range(n_layers):
        value = graph.add(graph.op("MatMul", value, held[2 * k]), held[2 * k + 1])
        if k < n_layers - 1:
            value = graph.add(value, graph.op("Abs", value))
    factor = graph.public("factor", 1, 1)
    value = graph.op("Sub", graph.op("Mul", graph.add(value, alive), factor), order)
    return value, _largest(graph, [graph.columns(value, j, j + 1) for j in range(n_classes)])


def _largest(graph: Graph, values: list[str]) -> str:
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        rest = values[len(values) - len(values) % 2 :]
        values = [graph.add(b, graph.op("Relu", graph.op("Sub", a, b))) for a, b in pairs] + rest
    return values[0]


def _confidence(graph: Graph, shape: Architecture, ordered: str, top: str) -> str:
    """``1 / sum exp(z - max z)`` in units of 2 ** -CONFIDENCE_BITS, shape (n, 1)."""
    factor_bits = tie_factor(shape.widths[-1]).bit_length() - 1
    shift = shape.logit_bits + factor_bits - LOGIT_BITS
    reach = graph.relabel(graph.public("reach", 1, 1), CONFIDENCE_BITS)
    # A unit finer than 2 ** -CONFIDENCE_BITS makes the proof system divide, once.
    below = graph.relabel(graph.op("Sub", ordered, top), shift + CONFIDENCE_BITS)
    clipped = graph.op("Relu", graph.add(below, reach))
    base = graph.committed(np.array([EXP_BASE]))  # a setting of exp, taken out of the constants
    weight = graph.op("Pow", base, graph.op("Sub", clipped, reach))
    return graph.op("Reciprocal", graph.total(weight, 1))


def _labels(
    graph: Graph,
    shape: Architecture,
    ordered: str,
    top: str,
    confidence: str,
    order: str,
    one: str,
) -> tuple[str, int]:
    """Confidences, and twice the class less a constant, in one row."""
    n, n_classes = shape.points["predict"], shape.widths[-1]
    is_top = graph.sign_of_odd(graph.op("Sub", ordered, top), one)  # (n, n_classes)
    weights = graph.reshape(order, n_classes, 1)
    label = graph.relabel(graph.op("MatMul", is_top, weights), CONFIDENCE_BITS)
    both = graph.op("Concat", confidence, label, axis=1)
    return graph.reshape(both, 1, 2 * n), 2 * n


def _sums(
    graph: Graph,
    shape: Architecture,
    ordered: str,
    top: str,
    confidence: str,
    one: str,
    n: int,
) -> str:
    """Signed sums over rows of 1, confidence and correctness, cumulative over bins: (3, B)."""
    n_classes = shape.widths[-1]
    labels, counted = graph.public("labels", n, n_classes), graph.public("counted", n, 1)
    limits = graph.relabel(graph.public("edges", 1, shape.n_bins), CONFIDENCE_BITS)
    is_top = graph.sign_of_odd(graph.op("Sub", ordered, top), one)  # (n, n_classes)
    correct = graph.total(graph.op("Mul", is_top, labels), 1)
    # 1 where a single class is on top, more where several are: weights that are no integers
    # could make logits of the field equal, and a row right whatever its label.
    tops = graph.add(graph.total(is_top, 1), graph.public("others", 1, 1))
    reaches = graph.op("Sign", graph.op("Sub", graph.add(confidence, confidence), limits))
    tops, correct = (graph.relabel(value, CONFIDENCE_BITS) for value in (tops, correct))
    parts = graph.op("Concat", tops, confidence, correct, axis=1)
    weighted = graph.op("Transpose", graph.op("Mul", parts, counted), perm=[1, 0])
    return graph.op("MatMul", weighted, reaches)


def _pads(graph: Graph, shape: Architecture, held: list[str], chunks: str, alive: str) -> str:
    """Sum of the pads of some chunks, shape (1, 3 B)."""
    used = graph.add(graph.public(chunks, 1, shape.n_pads), alive)
    limbs = graph.reshape(graph.op("MatMul", used, held[-1]), PAD_LIMBS, 3 * shape.n_bins)
    return graph.op("MatMul", graph.public("units", 1, PAD_LIMBS), limbs)


def _verdict(graph: Graph, shape: Architecture, held: list[str], alive: str, one: str) -> str:
    """Step 3 of Algorithm 1 with an allowance for chance, for each threshold: 1 or -1.

    With n, c, r the number of predictions, sum of confidences and correct predictions of a
    bin: ``max(0, |r - c| - alpha n) ** 2 <= chance n``. All sums are taken four times, so that
    they are integers; alpha counts thousandths, and chance quarters of millionths.
    """
    n_bins = shape.n_bins
    under_pads = graph.public("sums", 1, 3 * n_bins)
    sums = graph.op("Sub", under_pads, _pads(graph, shape, held, "chunks", alive))
    count, confidence, signs = (
        _per_bin(graph, graph.columns(sums, k * n_bins, (k + 1) * n_bins), n_bins) for k in range(3)
    )
    scale, alphas = graph.public("scale", 1, 1), graph.public("alphas", N_ALPHAS, 1)
    thousand, chance = graph.public("thousand", 1, 1), graph.public("chance", 1, 1)
    last = graph.public("last", 1, 1)
    correct = graph.op("Mul", graph.add(count, signs), scale)
    gap = graph.op("Abs", graph.op("Sub", correct, graph.add(confidence, confidence)))
    size = graph.op("Mul", graph.add(count, count), scale)  # four times the number, scaled
    tolerated = graph.op("MatMul", alphas, size)  # (N_ALPHAS, n_bins)
    excess = graph.op("Relu", graph.op("Sub", graph.op("Mul", gap, thousand), tolerated))
    allowed = graph.op("Mul", graph.op("Mul", size, scale), chance)
    square = graph.op("Mul", excess, excess)
    kept = graph.sign_of_odd(graph.op("Sub", allowed, square), one)
    passed = graph.sign_of_odd(graph.op("Sub", graph.total(kept, 1), last), one)
    return graph.relabel(graph.reshape(passed, 1, N_ALPHAS), CONFIDENCE_BITS)


def _per_bin(graph: Graph, cumulative: str, n_bins: int) -> str:
    """Half of what falls into each bin, from signed sums: next column, and last minus first."""
    first = graph.columns(cumulative, 0, 1)
    none = graph.op("Neg", first)
    if n_bins == 1:
        return graph.op("Sub", cumulative, none)
    following = graph.op("Concat", graph.columns(cumulative, 1, n_bins), none, axis=1)
    return graph.op("Sub", cumulative, following)
