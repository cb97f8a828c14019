# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Integers that are moved, taken or given out become floats between whole pairs; the values stay to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import model_of

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.passes.integers import complete_pairs, has_loose_integers
from qdqtool.passes.peel import peel_pairs

MORE = "float s = {0.25}, int8 o = {0}, int64[2] shape = {1,8}"
MOVED = f"g (float[1,2,2,2] x) => (float[1,8] z) <{MORE}> {{ q = QuantizeLinear(x, s, o) t = Transpose<perm=[0,2,3,1]>(q) r = Reshape(t, shape) d = DequantizeLinear(r, s, o) z = Relu(d) }}"


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, feeds))


def test_pairs_stand_around_what_moves_integers() -> None:
    model = model_of(MOVED, 19)
    assert has_loose_integers(GraphView(model.graph))
    before = run(model, {"x": (x := np.random.default_rng(1).normal(size=(1, 2, 2, 2)).astype(np.float32) * 9)})[0]
    assert complete_pairs(GraphView(model.graph)) == ()
    view = GraphView(model.graph)
    assert not has_loose_integers(view) and list(view.pairs) == ["x", "t", "r"]
    assert before.tobytes() == run(model, {"x": x})[0].tobytes()
    peeled = peel_pairs(view)
    assert [node.op_type for node in model.graph.node] == ["Transpose", "Reshape", "Relu"]
    assert {scale.bits.item() for scale in peeled.scales.values()} == {0.25}


def test_integer_inputs_and_outputs_become_floats_under_their_names() -> None:
    text = f"g (int8[1,2,2,2] x) => (int8[1,2,2,2] z) <{MORE}> {{ t = Transpose<perm=[0,1,3,2]>(x) d = DequantizeLinear(t, s, o) a = Sigmoid(d) z = QuantizeLinear(a, s, o) }}"
    model = model_of(text, 19)
    peeled = peel_pairs(GraphView(model.graph), ends=True)
    assert peeled.told == ("the input x took int8 and takes floats now", "the output z gave int8 and gives floats now")
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 1]
    assert set(peeled.scales) == {"x", "t", "a"}
    onnx.checker.check_model(model, full_check=True)
    x = np.arange(-4, 4, dtype=np.int8).reshape(1, 2, 2, 2)
    one = run(model_of(text, 19), {"x": x})[0]
    other = run(model, {"x": x.astype(np.float32) * np.float32(0.25)})[0]
    assert np.array_equal(np.rint(other / 0.25), one)


def test_without_leave_the_ends_are_refused_and_nothing_is_changed() -> None:
    model = model_of(f"g (int8[4] x) => (float[4] z) <{MORE}> {{ d = DequantizeLinear(x, s, o) z = Relu(d) }}")
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=r"^x: DequantizeLinear d has no Q next to it.*takes these integers as an input"):
        peel_pairs(GraphView(model.graph))
    assert model.SerializeToString() == before


def test_integers_that_something_else_reads_are_refused() -> None:
    model = model_of(
        f"g (float[4] x) => (float[4] z, int8[4] y) <{MORE}> {{ q = QuantizeLinear(x, s, o) y = Neg(q) d = DequantizeLinear(q, s, o) z = Relu(d) }}"
    )
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=r"^x: Neg y reads the integers of its Q"):
        peel_pairs(GraphView(model.graph), ends=True)
    assert model.SerializeToString() == before


def test_pairs_that_are_whole_are_not_loose() -> None:
    model = model_of(
        f"g (float[4] x) => (float[4] z) <{MORE}> {{ q = QuantizeLinear(x, s, o) i = Identity(q) d = DequantizeLinear(i, s, o) z = Relu(d) }}"
    )
    assert not has_loose_integers(GraphView(model.graph))
