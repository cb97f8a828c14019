# SPDX-License-Identifier: Apache-2.0
"""Values of tensors that do not depend on data: constants, shapes, small sums on shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.graph.tensors import array_of, constant_value

_MOST = 1 << 16  # numbers of a tensor that is worth folding: axes, pads, indices; not weights


class KnownValues:
    """Looks values up, computes what it must, and remembers. Weights are given as they are, never computed."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        fixed: Mapping[str, onnx.TensorProto],
        opset: int,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Nothing is computed yet."""
        self._initializers = fixed
        self._producer = {name: node for node in nodes for name in node.output if name}
        self._opsets = [helper.make_opsetid("", opset)]
        self._shapes = shapes
        self._values: dict[str, npt.NDArray[Any] | None] = {}

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """The tensor's value, or None where it depends on data or is too large to be worth it."""
        if name not in self._values:
            self._values[name] = self._find(name)
        return self._values[name]

    def _find(self, name: str) -> npt.NDArray[Any] | None:
        if name in self._initializers:
            return array_of(self._initializers[name], None)
        node = self._producer.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Constant":
            return constant_value(node, None)
        if node.op_type == "Shape":
            return self._shape(node)
        if int(np.prod(self._shapes.get(name, (_MOST + 1,)))) > _MOST or any(a.HasField("g") for a in node.attribute):
            return None
        inputs = [self.value(given) if given else None for given in node.input]
        if any(value is None and given for value, given in zip(inputs, node.input, strict=True)):
            return None
        return self._compute(node, name, inputs)

    def _shape(self, node: onnx.NodeProto) -> npt.NDArray[Any] | None:
        shape = self._shapes.get(node.input[0])
        how = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return None if shape is None else np.asarray(shape[how.get("start", 0) : how.get("end")], np.int64)

    def _compute(
        self, node: onnx.NodeProto, name: str, inputs: list[npt.NDArray[Any] | None]
    ) -> npt.NDArray[Any] | None:
        from onnx.reference import ReferenceEvaluator

        if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial", "Dropout"):
            return None
        feeds = {given: value for given, value in zip(node.input, inputs, strict=True) if given}
        ins = [
            helper.make_tensor_value_info(given, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for given, value in feeds.items()
            if value is not None
        ]
        graph = helper.make_graph([node], "known", ins, [helper.make_empty_tensor_value_info(name)])
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=self._opsets))
        answers = cast(list[npt.NDArray[Any]], evaluator.run(None, feeds))
        return np.asarray(answers[0])
