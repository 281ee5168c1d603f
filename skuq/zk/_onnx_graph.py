"""ONNX graphs over integers, with the few operators that circuits use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.extras import import_optional


class Graph:
    """Builder of one ONNX graph; each method appends to it and returns the name of a value."""

    def __init__(self) -> None:
        self._helper = import_optional("onnx", extra="zk").helper
        self._numpy = import_optional("onnx.numpy_helper", extra="zk")
        self._types = import_optional("onnx", extra="zk").TensorProto
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self.inputs: dict[str, tuple[int, ...]] = {}  # public ones with their shapes, in order

    def public(self, name: str, *shape: int) -> str:
        """Add a public input of integers."""
        self.inputs[name] = shape
        self._inputs.append(self._helper.make_tensor_value_info(name, self._types.INT64, shape))
        return self.op("Cast", name, to=self._types.FLOAT)

    def committed(self, values: NDArray[Any]) -> str:
        """Add a private constant, which is under the commitment."""
        return self._constant(np.asarray(values, np.float32))

    def operator_parameter(self, value: float) -> str:
        """Add a public number that the proof system takes as a parameter of its operator.

        It becomes part of the verifying key and is not under the commitment.
        """
        return self._constant(np.array([value], np.float32))

    def op(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Apply an ONNX operator."""
        name = name or f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def add(self, *terms: str) -> str:
        """Add several terms."""
        total = terms[0]
        for term in terms[1:]:
            total = self.op("Add", total, term)
        return total

    def rescale_unit(self, value: str, bits: int) -> str:
        """Read the same integers in units that are 2 ** bits smaller; costs no constraint."""
        return self.op("Mul", value, self._constant(np.array([2.0**-bits], np.float32)))

    def columns(self, value: str, first: int, last: int, axis: int = 1) -> str:
        """Take part of a tensor."""
        return self.op("Slice", value, *(self._integers(i) for i in (first, last, axis)))

    def total(self, value: str, axis: int) -> str:
        """Sum over an axis, which stays with length 1."""
        return self.op("ReduceSum", value, self._integers(axis), keepdims=1)

    def broadcast(self, value: str, *shape: int) -> str:
        """Repeat one number in every place of a shape."""
        return self.op("Expand", value, self._integers(*shape))

    def reshape(self, value: str, *shape: int) -> str:
        """Give the same numbers another shape."""
        return self.op("Reshape", value, self._integers(*shape))

    def sign_of_odd(self, value: str, one: str) -> str:
        """Return 1 where an integer is >= 0 and -1 where it is negative: the sign of 2 x + 1."""
        return self.op("Sign", self.add(value, value, one))

    def serialise(self, value: str, shape: Sequence[int]) -> bytes:
        """Make a value the output, and return the ONNX model."""
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
