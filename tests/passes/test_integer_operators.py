# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Integers that are moved, taken or given out become floats between whole pairs; the values stay to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.data.preprocess import parse_preprocess
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.passes.integer_operators import FloatEnds, complete_pairs, has_loose_integers
from qdqtool.passes.peel import peel_pairs
from tests.graphs import model_of

MORE = "float s = {0.25}, int8 o = {0}, int64[2] shape = {1,8}"
MOVED = f"g (float[1,2,2,2] x) => (float[1,8] z) <{MORE}> {{ q = QuantizeLinear(x, s, o) t = Transpose<perm=[0,2,3,1]>(q) r = Reshape(t, shape) d = DequantizeLinear(r, s, o) z = Relu(d) }}"


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, feeds))


def test_pairs_stand_around_what_moves_integers() -> None:
    model = model_of(MOVED, 19)
    assert has_loose_integers(GraphView(model.graph))
    before = run(model, {"x": (x := np.random.default_rng(1).normal(size=(1, 2, 2, 2)).astype(np.float32) * 9)})[0]
    assert complete_pairs(GraphView(model.graph)) == FloatEnds()
    whole = Model(model)
    assert not has_loose_integers(whole.view) and list(whole.view.pairs) == ["x", "t", "r"]
    assert before.tobytes() == run(model, {"x": x})[0].tobytes()
    peeled = peel_pairs(whole)
    assert [node.op_type for node in model.graph.node] == ["Transpose", "Reshape", "Relu"]
    assert {scale.bits.item() for scale in peeled.scales.values()} == {0.25}


def test_integer_inputs_and_outputs_become_floats_under_their_names() -> None:
    text = f"g (int8[1,2,2,2] x) => (int8[1,2,2,2] z) <{MORE}> {{ t = Transpose<perm=[0,1,3,2]>(x) d = DequantizeLinear(t, s, o) a = Sigmoid(d) z = QuantizeLinear(a, s, o) }}"
    model = model_of(text, 19)
    peeled = peel_pairs(Model(model), ends=True)
    first, last = peeled.notes
    assert first == "the input x took int8 and takes floats now: 0.25 * code, from -32 to 31.75" and last.startswith(
        "the output z gave int8"
    )
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 1]
    assert set(peeled.scales) == {"x", "t", "a"}
    onnx.checker.check_model(model, full_check=True)
    x = np.arange(-4, 4, dtype=np.int8).reshape(1, 2, 2, 2)
    one = run(model_of(text, 19), {"x": x})[0]
    other = run(model, {"x": x.astype(np.float32) * np.float32(0.25)})[0]
    assert np.array_equal(np.rint(other / 0.25), one)


@pytest.mark.parametrize(
    ("kind", "zero", "said", "how"),
    [
        ("int8", -128, ": 0.003921569 * (code + 128), from 0 to 1", "scale=0.003921569"),
        ("int8", -1, ": 0.003921569 * (code + 1), from -0.498039 to 0.501961", "scale=0.003921569,mean=0.49803925"),
        ("uint8", 0, ": 0.003921569 * code, from 0 to 1", "scale=0.003921569"),
        ("uint8", 127, ": 0.003921569 * (code - 127), from -0.498039 to 0.501961", "scale=0.003921569,mean=0.49803925"),
    ],
)
def test_the_floats_that_an_input_of_integers_takes_are_said(kind: str, zero: int, said: str, how: str) -> None:
    text = f"g ({kind}[4] x) => (float[4] z) <float s = {{0.003921569}}, {kind} o = {{{zero}}}> {{ d = DequantizeLinear(x, s, o) z = Relu(d) }}"
    peeled = peel_pairs(Model(model_of(text)), on_asymmetric="widen", ends=True)
    assert peeled.notes[0] == f"the input x took {kind} and takes floats now{said}"
    (one,) = peeled.ends.inputs
    spec = parse_preprocess(one.preprocess)
    pixels = np.arange(256, dtype=np.float32)
    codes = pixels - (128 if kind == "int8" else 0)
    assert one.preprocess == how and one.scale is not None
    assert np.allclose(pixels * spec.scale - spec.mean[0], one.scale * (codes - zero), atol=1e-6)


def test_without_leave_the_ends_are_refused_and_nothing_is_changed() -> None:
    model = model_of(f"g (int8[4] x) => (float[4] z) <{MORE}> {{ d = DequantizeLinear(x, s, o) z = Relu(d) }}")
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=r"^x: DequantizeLinear d has no Q .*; qdqtool insert --requantize"):
        peel_pairs(Model(model))
    assert model.SerializeToString() == before


def test_integers_that_something_else_reads_are_refused() -> None:
    model = model_of(
        f"g (float[4] x) => (float[4] z, int8[4] y) <{MORE}> {{ q = QuantizeLinear(x, s, o) y = Neg(q) d = DequantizeLinear(q, s, o) z = Relu(d) }}"
    )
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=r"^x: Neg y reads"):
        peel_pairs(Model(model), ends=True)
    assert model.SerializeToString() == before


def test_pairs_that_are_whole_are_not_loose() -> None:
    model = model_of(
        f"g (float[4] x) => (float[4] z) <{MORE}> {{ q = QuantizeLinear(x, s, o) i = Identity(q) d = DequantizeLinear(i, s, o) z = Relu(d) }}"
    )
    assert not has_loose_integers(GraphView(model.graph))


Q = "q = QuantizeLinear(x, s, o)"
TWO = "p = QuantizeLinear(w, {}, {}) c = Concat<axis=1>(q, p) d = DequantizeLinear(c, s, o) y = Relu(d)"
ONLY_MOVED = {
    "transpose to an output": (
        f"(float[1,2,2,2] x) => (int8[1,2,2,2] z) <{MORE}> {{ {Q} z = Transpose<perm=[0,2,3,1]>(q) }}",
        {"x", "z"},
    ),
    "beside a DQ": (
        f"(float[1,2,2,2] x) => (int8[1,8] z, float[1,2,2,2] y) <{MORE}> {{ {Q} t = Transpose(q) z = Reshape(t, shape) d = DequantizeLinear(q, s, o) y = Relu(d) }}",
        {"x", "t", "z"},
    ),
    "slice": (
        f"(float[1,8] x) => (int8[1,4] z) <{MORE}, int64[1] b = {{0}}, int64[1] e = {{4}}, int64[1] a = {{1}}> {{ {Q} z = Slice(q, b, e, a) }}",
        {"x", "z"},
    ),
    "concat": (
        f"(float[1,2,2,2] x, float[1,2,2,2] w) => (float[1,4,2,2] y) <{MORE}, float r = {{0.25}}> {{ {Q} {TWO.format('r', 'o')} }}",
        {"x", "w", "c"},
    ),
    "concat with a constant": (
        f"(float[1,2,2,2] x) => (float[1,3,2,2] y) <{MORE}, int8[1,1,2,2] k = {{1, 2, 3, 4}}> {{ {Q} c = Concat<axis=1>(q, k) d = DequantizeLinear(c, s, o) y = Relu(d) }}",
        {"x", "c"},
    ),
    "split": (
        f"(float[1,2,2,2] x) => (float[1,1,2,2] y, int8[1,1,2,2] z) <{MORE}> {{ {Q} a, z = Split<axis=1, num_outputs=2>(q) d = DequantizeLinear(a, s, o) y = Relu(d) }}",
        {"x", "a", "z"},
    ),
    "resize and shape": (
        f'(float[1,2,2,2] x) => (float[1,2,4,4] y, int64[4] n) <{MORE}, float[4] twice = {{1, 1, 2, 2}}> {{ {Q} n = Shape(q) b = Resize<mode="nearest">(q, , twice) d = DequantizeLinear(b, s, o) y = Relu(d) }}',
        {"x", "b"},
    ),
}


@pytest.mark.parametrize("name", ONLY_MOVED)
def test_integers_that_only_move_are_peeled_to_the_same_floats(name: str) -> None:
    text, scaled = ONLY_MOVED[name]
    model = model_of(f"g {text}", 19)
    generator = np.random.default_rng(2)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    steps = {key: generator.integers(-9, 9, size=shape).astype(np.float32) * 0.25 for key, shape in shapes.items()}
    before = run(model, steps)
    assert has_loose_integers(GraphView(model.graph))
    peeled = peel_pairs(Model(model), ends=True)
    assert not [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert set(peeled.scales) == scaled and {scale.bits.item() for scale in peeled.scales.values()} == {0.25}
    onnx.checker.check_model(model, full_check=True)
    for one, other in zip(before, run(model, steps), strict=True):
        assert np.array_equal(one * np.float32(0.25) if one.dtype == np.int8 else one, other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"(float[4] x) => (int8[4] y) <{MORE}> {{ {Q} t = Transpose(q) y = Neg(t) }}",
            "^t: Neg y reads these integers",
        ),
        (
            f"(float[1,2,2,2] x, float[1,2,2,2] w) => (float[1,4,2,2] y) <{MORE}, float r = {{0.5}}> {{ {Q} {TWO.format('r', 'o')} }}",
            "^x: QuantizeLinear q has no DQ next to it: Concat c reads these integers",
        ),
        (
            f'(float[1,2,2,2] x) => (float[1,3,2,2] y) <{MORE}, int8 v = {{1}}> {{ {Q} t = Transpose(q) c = Pad<mode="constant">(t, p, v) p = Constant<value_ints=[0,0,0,0,0,1,0,0]>() d = DequantizeLinear(c, s, o) y = Relu(d) }}',
            "^t: Pad c reads these integers",
        ),
    ],
)
def test_other_readers_of_integers_are_refused_by_names_that_exist(text: str, said: str) -> None:
    model = model_of(f"g {text}", 19)
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=said):
        peel_pairs(Model(model), ends=True)
    assert model.SerializeToString() == before


def test_without_leave_integers_that_move_to_an_output_stay() -> None:
    model = model_of(f"g (float[4] x) => (int8[4] z) <{MORE}> {{ {Q} t = Transpose(q) z = Transpose(t) }}", 19)
    before = model.SerializeToString()
    with pytest.raises(QdqError, match=r"^t: Transpose z reads these integers"):
        peel_pairs(Model(model))
    assert model.SerializeToString() == before


def test_integers_from_input_to_output_stay_where_no_pair_codes_them() -> None:
    text = f"g (float[4] x, int8[4] i) => (float[4] y, int8[4] z) <{MORE}> {{ {Q} t = Transpose(q) d = DequantizeLinear(t, s, o) y = Relu(d) z = Transpose(i) }}"
    model = model_of(text, 19)
    peel_pairs(Model(model), ends=True)
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 3, 1, 3]
