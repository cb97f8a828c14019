# SPDX-License-Identifier: Apache-2.0
"""The INT8 codes that two Q/DQ models make of the same codes, group by group: every DQ is given, every Q is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

from qdqtool.graph.model import Model
from qdqtool.graph.order import remove_dead
from qdqtool.graph.view import GraphView
from qdqtool.precision.rounded import as_run
from qdqtool.runtime.session import session_options

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class CodeCount:
    """How many codes were compared, how many differ, by how many steps at most."""

    codes: int
    different: int
    largest: int

    def __add__(self, other: CodeCount) -> CodeCount:
        most = max(self.largest, other.largest)
        return CodeCount(self.codes + other.codes, self.different + other.different, most)


def compare_codes(one: onnx.ModelProto, other: onnx.ModelProto, feed: Arrays) -> CodeCount:
    """Run `one`, give `other` the values of its pairs, and compare the codes of both.

    Args:
        one: a model with pairs; FP16 and BF16 tensors are rounded as such.
        other: the same pairs under the same names.
        feed: the inputs.
    """
    made, given = (onnx.ModelProto.FromString(as_run(Model(model)).proto.SerializeToString()) for model in (one, other))
    view = GraphView(made.graph)
    pairs = [
        (pair.quantize.outputs[0], pair.dequantize.outputs[0])
        for name, pairs in view.pairs.items()
        for pair in pairs
        if pair.quantize is not None and not view.is_constant(name)
    ]
    if not pairs:
        return CodeCount(0, 0, 0)
    codes, values = ([pair[at] for pair in pairs] for at in (0, 1))
    _give_out(made.graph, {**dict.fromkeys(codes, TensorProto.INT8), **dict.fromkeys(values, TensorProto.FLOAT)})
    first = _run(made, feed, [*codes, *values])
    _take_in(given.graph, values)
    _give_out(given.graph, dict.fromkeys(codes, TensorProto.INT8))
    remove_dead(given.graph)
    second = _run(given, {**feed, **first}, codes)
    total = CodeCount(0, 0, 0)
    for name in codes:
        apart = np.abs(first[name].astype(np.int16) - second[name].astype(np.int16))
        total += CodeCount(apart.size, int(np.count_nonzero(apart)), int(apart.max(initial=0)))
    return total


def _give_out(graph: onnx.GraphProto, kinds: Mapping[str, int]) -> None:
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items())


def _take_in(graph: onnx.GraphProto, names: list[str]) -> None:
    taken = set(names)
    for place in range(len(graph.node) - 1, -1, -1):
        if taken.intersection(graph.node[place].output):
            del graph.node[place]
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)


def _run(model: onnx.ModelProto, feed: Arrays, names: list[str]) -> dict[str, npt.NDArray[np.generic]]:
    for node in model.graph.node:
        node.ClearField("name")  # onnxruntime wants each name once
    options = session_options(onnxruntime, "ORT_DISABLE_ALL")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    found = session.run(names, {name: value for name, value in feed.items() if name in wanted})
    return dict(zip(names, found, strict=True))
