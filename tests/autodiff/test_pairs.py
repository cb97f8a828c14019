# SPDX-License-Identifier: Apache-2.0
"""A pair as a function computes what its Q/DQ compute, and its name tells its kind."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction
from tests.graphs import model_of
from tests.ort_session import session_of


@pytest.mark.parametrize(
    "pair", [PairFunction(), PairFunction(0), PairFunction(1, True), PairFunction(None, True), PairFunction(12)]
)
def test_the_name_tells_the_kind(pair: PairFunction) -> None:
    assert PairFunction.parse(pair.op_type) == pair


@pytest.mark.parametrize("axis", [None, 0, 2])
def test_its_two_nodes_are_on_the_tensors_that_are_named(axis: int | None) -> None:
    quantize, dequantize = PairFunction(axis).nodes(["x", "s", "z"], "between", "y")
    assert (quantize.op_type, list(quantize.input), list(quantize.output)) == (
        "QuantizeLinear",
        ["x", "s", "z"],
        ["between"],
    )
    assert (dequantize.op_type, list(dequantize.input), list(dequantize.output)) == (
        "DequantizeLinear",
        ["between", "s", "z"],
        ["y"],
    )
    for node in (quantize, dequantize):
        assert [(one.name, one.i) for one in node.attribute] == ([] if axis is None else [("axis", axis)])


@pytest.mark.parametrize("name", ["", "pair", "PairAxis", "PairAxis-1", "PairLearnedAxis0", "PairX"])
def test_other_names_are_no_pairs(name: str) -> None:
    assert PairFunction.parse(name) is None


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_it_computes_what_the_pair_computes(axis: int | None) -> None:
    pair = PairFunction(axis)
    size = 1 if axis is None else (2, 3)[axis]
    scales = f"float[{size}] s" if size > 1 else "float s"
    how = "" if axis is None else f"<axis={axis}>"
    zeros = f"int8[{size}] z" if size > 1 else "int8 z"
    plain = model_of(
        f"net (float[2,3] x, {scales}, {zeros}) => (float[2,3] y)"
        f" {{ q = QuantizeLinear{how}(x, s, z) y = DequantizeLinear{how}(q, s, z) }}"
    )
    made = onnx.ModelProto()
    made.CopyFrom(plain)
    del made.graph.node[:]
    made.graph.node.append(onnx.helper.make_node(pair.op_type, ["x", "s", "z"], ["y"], domain=PAIR_DOMAIN))
    made.functions.append(pair.function(17))
    made.opset_import.append(onnx.helper.make_opsetid(PAIR_DOMAIN, 1))
    x = np.array([[-300.0, -0.25, 0.49], [0.5, 1.5, 12.7]], np.float32)
    scale = np.full(() if axis is None else size, 0.5, np.float32)
    feeds = {"x": x, "s": scale, "z": np.zeros_like(scale, np.int8)}
    answers = [session_of(m).run(None, feeds)[0] for m in (plain, made)]
    assert answers[0].tobytes() == answers[1].tobytes()
    assert answers[1][0, 0] == -64
