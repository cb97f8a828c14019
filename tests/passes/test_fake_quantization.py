# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Fake quantization written as arithmetic becomes Q/DQ with the file's own scales; what only looks like it does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.fake_quantization import find_fake_quantization, write_pairs
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

SCALE = np.float32(0.0123)
CONSTANTS = {
    "s": SCALE,
    "r": np.float32(1) / SCALE,
    "odd": np.float32(2.5) / SCALE,
    "lo": np.float32(-128),
    "hi": np.float32(127),
    "least": np.float32(-127),
    "nil": np.float32(0),
    "top": np.float32(255),
    "four": np.float32(7),
    "minus": np.float32(-8),
    "z": np.float32(2),
    "half": np.float32(0.5),
    "zu": np.float32(128),
    "zi": np.array(2, np.int32),
    "sq": SCALE.reshape(1, 1, 1),
    "vs": np.linspace(0.01, 0.02, 4, dtype=np.float32).reshape(4, 1, 1),
    "vr": 1 / np.linspace(0.01, 0.02, 4, dtype=np.float32).reshape(4, 1, 1),
    "nan": np.float32(np.nan),
    "plane": np.linspace(0.01, 0.02, 32, dtype=np.float32).reshape(4, 8, 1),
    "zs": np.arange(4, dtype=np.float32).reshape(4, 1, 1),
    "zw": np.arange(8, dtype=np.float32),
}
SHAPES = {"sq": "float[1,1,1] sq", "vs": "float[4,1,1] vs", "vr": "float[4,1,1] vr", "zi": "int32 zi"}
SHAPES |= {"plane": "float[4,8,1] plane", "zs": "float[4,1,1] zs", "zw": "float[8] zw"}
ROUND = "v = Div(x, s) i = Round(v)"
# Spelling -> text from x to y, and what the pair is: type, zero point, whether values are the same bit for bit.
SPELLINGS: dict[str, tuple[str, str, int, bool]] = {
    "div": (f"{ROUND} c = Clip(i, lo, hi) y = Mul(c, s)", "int8", 0, True),
    "scale of another rank": (f"{ROUND} c = Clip(i, lo, hi) y = Mul(c, sq)", "int8", 0, True),
    "constant on the left": (f"{ROUND} c = Clip(i, lo, hi) y = Mul(s, c)", "int8", 0, True),
    "reciprocal in": ("v = Mul(x, r) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, s)", "int8", 0, False),
    "reciprocal out": (f"{ROUND} c = Clip(i, lo, hi) y = Div(c, r)", "int8", 0, False),
    "max and min": (f"{ROUND} a = Max(i, lo) c = Min(hi, a) y = Mul(c, s)", "int8", 0, True),
    "min and max": (f"{ROUND} a = Min(i, hi) c = Max(lo, a) y = Mul(c, s)", "int8", 0, True),
    "clip before round": ("v = Div(x, s) c = Clip(v, lo, hi) i = Round(c) y = Mul(i, s)", "int8", 0, True),
    "straight-through round": (
        "v = Div(x, s) c = Clip(v, lo, hi) i = Round(c) d = Sub(i, c) e = Add(c, d) y = Mul(e, s)",
        "int8",
        0,
        True,
    ),
    "straight-through": (f"{ROUND} c = Clip(i, lo, hi) q = Mul(c, s) d = Sub(q, x) y = Add(x, d)", "int8", 0, False),
    "casts": (f"{ROUND} c = Clip(i, lo, hi) k = Cast<to=3>(c) f = Cast<to=1>(k) y = Mul(f, s)", "int8", 0, True),
    "zero point": (f"{ROUND} a = Add(i, z) c = Clip(a, lo, hi) b = Sub(c, z) y = Mul(b, s)", "int8", 2, True),
    "zero point before round": (
        "v = Div(x, s) a = Add(v, z) i = Round(a) c = Clip(i, nil, top) b = Sub(c, z) y = Mul(b, s)",
        "uint8",
        2,
        True,
    ),
    "zero point of integers": (
        f"{ROUND} a = Add(i, z) c = Clip(a, lo, hi) k = Cast<to=6>(c) b = Sub(k, zi) f = Cast<to=1>(b) y = Mul(f, s)",
        "int8",
        2,
        True,
    ),
    "uint8": (f"{ROUND} a = Add(zu, i) c = Clip(a, nil, top) b = Sub(c, zu) y = Mul(b, s)", "uint8", 128, True),
    "per channel": ("v = Div(x, vs) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, vs)", "int8", 0, True),
    "per channel, reciprocal": ("v = Mul(x, vr) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, vs)", "int8", 0, False),
    "seven bits": (f"{ROUND} c = Clip(i, minus, four) y = Mul(c, s)", "int8", 0, True),
    "non-negative": ("p = Relu(x) v = Div(p, s) i = Round(v) c = Clip(i, nil, hi) y = Mul(c, s)", "int8", 0, True),
}
NONE = {
    "no clip": f"{ROUND} y = Mul(i, s)",
    "another scale out": f"{ROUND} c = Clip(i, lo, hi) y = Mul(c, z)",
    "zero point not taken off": f"{ROUND} a = Add(i, z) c = Clip(a, lo, hi) y = Mul(c, s)",
    "zero point not whole": f"{ROUND} a = Add(i, half) c = Clip(a, lo, hi) b = Sub(c, half) y = Mul(b, s)",
    "bounds not whole": f"{ROUND} c = Clip(i, lo, half) y = Mul(c, s)",
    "integers are read": f"{ROUND} c = Clip(i, lo, hi) m = Mul(c, s) y = Add(m, c)",
    "truncated": "v = Div(x, s) k = Cast<to=6>(v) f = Cast<to=1>(k) i = Round(f) c = Clip(i, lo, hi) y = Mul(c, s)",
    "computed scale": "m = Abs(x) v = Div(x, m) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, m)",
    "negative scale": "v = Div(x, lo) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, lo)",
    "rounded input": "i = Round(x) c = Clip(i, lo, hi) y = Mul(c, s)",
    "multiplied before it is rounded": "v = Div(x, s) m = Clip(v, lo, hi) t = Mul(m, s) i = Round(t) y = Relu(i)",
    "no end": f"{ROUND} a0 = Add(i, z) {' '.join(f'a{n + 1} = {op}(a{n}, z)' for n, op in enumerate(['Sub', 'Add'] * 8))} c = Sub(a16, z) k = Clip(c, lo, hi) y = Mul(k, s)",
    "divisor is the tensor": "v = Div(s, x) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, s)",
    "cast to a type that is no integer": f"{ROUND} c = Clip(i, lo, hi) k = Cast<to=10>(c) f = Cast<to=1>(k) y = Mul(f, s)",
    "scale that is no number": "v = Div(x, nan) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, nan)",
    "lower bound for each channel": f"{ROUND} a = Max(i, vs) c = Min(a, hi) y = Mul(c, s)",
    "another operator": f"{ROUND} a = Neg(i) c = Clip(a, lo, hi) y = Mul(c, s)",
    "zero point between two clips": f"{ROUND} a = Clip(i, lo, hi) b = Add(a, z) c = Clip(b, lo, hi) d = Sub(c, z) y = Mul(d, s)",
    "scales along two axes": "v = Div(x, plane) i = Round(v) c = Clip(i, lo, hi) y = Mul(c, plane)",
    "zero points and one scale": f"{ROUND} a = Add(i, zs) c = Clip(a, lo, hi) b = Sub(c, zs) y = Mul(b, s)",
    "zero points for another axis": "v = Div(x, vs) i = Round(v) a = Add(i, zw) c = Clip(a, lo, hi) b = Sub(c, zw) y = Mul(b, vs)",
    "divided and read before it is rounded": "v = Div(x, s) i = Round(v) c = Clip(i, lo, hi) m = Mul(c, s) k = Relu(v) y = Add(m, k)",
}


def net(body: str, opset: int = 17) -> onnx.ModelProto:
    used = [
        name
        for name in CONSTANTS
        if any(name in part.split("(")[-1].replace(")", "").split(", ") for part in body.split(")"))
    ]
    listed = ", ".join(SHAPES.get(name, f"float {name}") for name in used)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> net (float[2,4,8,8] x) => (float[2,4,8,8] y) <{listed}> {{ {body} }}'
    )
    del model.graph.value_info[:]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(CONSTANTS[name]), name) for name in used)
    return model


def values() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 1, (2, 4, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_a_pair_with_the_scale_of_the_file(name: str) -> None:
    body, kind, zero, same = SPELLINGS[name]
    model = net(body)
    before = session_of(model, PLAIN).run(None, {"x": values()})[0]
    assert write_pairs(Model(model))
    onnx.checker.check_model(model, full_check=True)
    ops = [node.op_type for node in model.graph.node if node.op_type not in ("Relu", "Clip")]
    assert ops == ["QuantizeLinear", "DequantizeLinear"]
    view = GraphView(model.graph)
    (pair,) = (pair for pairs in view.pairs.values() for pair in pairs)
    stored, found = view.array(pair.dequantize.inputs[1]), view.array(pair.dequantize.inputs[2])
    wanted = CONSTANTS["vs"] if "vs" in body else SCALE
    assert stored is not None and stored.tobytes() == np.asarray(wanted).tobytes()
    assert found is not None and found.dtype == kind and (found == zero).all()
    after = session_of(model, PLAIN).run(None, {"x": values()})[0]
    if same:
        assert np.array_equal(after, before)  # -0 becomes 0
    else:  # another rounding of x / s, or of the sum: a step in a tie, the last place elsewhere
        assert np.abs(after - before).max() <= np.max(wanted) * 1.001
        assert (np.abs(after - before) > 1e-6).mean() < 0.01


@pytest.mark.parametrize("name", NONE)
def test_arithmetic_that_is_no_fake_quantization_stays(name: str) -> None:
    model = net(NONE[name])
    before = model.SerializeToString(deterministic=True)
    assert not write_pairs(Model(model)) and model.SerializeToString(deterministic=True) == before


def test_a_reciprocal_alone_gives_the_scale_that_it_is_the_reciprocal_of_and_a_note() -> None:
    model = net("v = Mul(x, r) i = Round(v) c = Clip(i, lo, hi) y = Div(c, r)")
    notes = write_pairs(Model(model))
    scale = next(t for t in model.graph.initializer if t.name == model.graph.node[1].input[1])
    assert numpy_helper.to_array(scale) == np.float32(1 / np.float64(CONSTANTS["r"]))
    assert [" ".join(note.split()[:5]) for note in notes] == [
        "fake quantization of x written",
        "fake quantization of x stores",
    ]


def test_several_chains_are_counted_beside_the_first() -> None:
    assert write_pairs(Model(trained()))[0].startswith("fake quantization of x and of 2 more written as arithmetic")


def test_the_lowest_integer_that_a_clip_leaves_out_comes_with_a_note() -> None:
    model = net(f"{ROUND} c = Clip(i, least, hi) y = Mul(c, s)")
    assert [" ".join(note.split()[4:6]) for note in write_pairs(Model(model))] == ["written as", "leaves out"]
    assert [node.op_type for node in model.graph.node] == ["QuantizeLinear", "DequantizeLinear"]


def test_integers_that_8_bits_do_not_hold_stay_and_are_named() -> None:
    model = net(f"{ROUND} c = Clip(i, lo, odd) y = Mul(c, s)")
    model.graph.initializer[[t.name for t in model.graph.initializer].index("odd")].CopyFrom(
        numpy_helper.from_array(np.float32(1023), "odd")
    )
    (note,) = write_pairs(Model(model))
    assert "stays in float" in note and "-128 to 1023" in note and len(model.graph.node) == 4


def test_a_chain_whose_integers_the_graph_gives_out_stays() -> None:
    model = net(f"{ROUND} c = Clip(i, lo, hi) y = Mul(c, s)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [2, 4, 8, 8]))
    assert not write_pairs(Model(model))


def test_a_clip_on_both_sides_of_the_integers_stays_whole() -> None:
    (chain,) = find_fake_quantization(GraphView(net(f"{ROUND} c = Clip(i, least, four) y = Mul(c, s)").graph))
    assert (chain.low, chain.high, chain.needs_clip, chain.drops_clip) == (-127, 7, True, False)


@pytest.mark.parametrize(("least", "clips"), [(-9, False), (-11, True)])
def test_a_constant_keeps_the_clip_that_its_integers_need(least: int, clips: bool) -> None:
    """Integers of 4 bits with zero point 2: -8 to 7."""
    model = net(
        "v = Div(w, s) i = Round(v) a = Add(i, z) c = Clip(a, minus, four) b = Sub(c, z) q = Mul(b, s) y = Add(x, q)"
    )
    codes = np.linspace(least, 5, 4, dtype=np.float32).reshape(4, 1, 1)
    model.graph.initializer.append(numpy_helper.from_array(codes * SCALE, "w"))
    (chain,) = find_fake_quantization(GraphView(model.graph))
    assert (chain.low, chain.high, chain.needs_clip) == (-8, 7, clips)


def fake(name: str, scale: str, to: str) -> str:
    return f"{to}_v = Div({name}, {scale}) {to}_i = Round({to}_v) {to}_c = Clip({to}_i, lo, hi) {to} = Mul({to}_c, {scale})"


def trained(opset: int = 17) -> onnx.ModelProto:
    """A convolution whose input and weight, per channel and without a Clip, were trained in INT8; one that was not."""
    weight = "w_v = Div(w, ws) w_i = Round(w_v) wq = Mul(w_i, ws)"
    body = f"{fake('x', 's', 'xq')} {weight} c = Conv<pads=[1,1,1,1]>(xq, wq) r = Relu(c) {fake('r', 't', 'rq')} d = Conv<pads=[1,1,1,1]>(rq, u) y = Relu(d)"
    constants = "float s = {0.03}, float t = {0.05}, float lo = {-128}, float hi = {127}, float[8,8,3,3] w, float[8,1,1,1] ws, float[8,8,3,3] u"
    model = model_of(f"net (float[1,8,8,8] x) => (float[1,8,8,8] y) <{constants}> {{ {body} }}", opset)
    for tensor in model.graph.initializer:
        if tensor.name == "ws":
            tensor.CopyFrom(
                numpy_helper.from_array(np.linspace(0.009, 0.011, 8, dtype=np.float32).reshape(8, 1, 1, 1), "ws")
            )
    return model


@pytest.mark.parametrize("opset", [11, 17])
def test_insert_keeps_trained_scales_and_adds_what_is_missing(opset: int) -> None:
    made = qdqtool.insert(trained(opset), options=InsertOptions(plan=PlanOptions(float_heads="none"), rest="fp32"))
    view = GraphView(made.model.graph)
    assert (
        not any(node.op_type == "Round" for node in made.model.graph.node) and {"x", "w", "r", "u"} <= view.pairs.keys()
    )
    scales = {name: view.array(pairs[0].dequantize.inputs[1]) for name, pairs in view.pairs.items()}
    wanted = {"x": np.float32(0.03), "r": np.float32(0.05), "w": np.linspace(0.009, 0.011, 8, dtype=np.float32)}
    assert all(scales[name].tobytes() == value.tobytes() for name, value in wanted.items())
    assert any("own scales" in note for note in made.notes)
    onnx.checker.check_model(made.model, full_check=True)


def test_peel_takes_trained_scales_and_the_arithmetic_out() -> None:
    model = trained(11)
    del model.graph.node[-2:]
    model.graph.node[-1].output[0] = "y"
    from qdqtool.trtversion import parse
    from qdqtool.verbs.peel_options import PeelOptions

    made = qdqtool.peel(model, PeelOptions(trt_version=parse("8601")))
    assert {node.op_type for node in made.model.graph.node} <= {"Conv", "Relu", "Identity"}
    assert made.cache.entries["x"] == np.float32(0.03) and made.cache.entries["r"] == np.float32(0.05)
    assert made.model.opset_import[0].version == 11


def test_graft_asks_before_it_replaces_trained_scales() -> None:
    from qdqtool.cache.text import Cache
    from qdqtool.trtversion import parse

    cache = Cache.of(parse("8601"), {"x": np.float32(0.04)})
    with pytest.raises(QdqError, match="has Q/DQ already"):
        qdqtool.graft(trained(), cache)


def test_a_chain_is_found_once() -> None:
    assert [chain.tensor for chain in find_fake_quantization(GraphView(trained().graph))] == ["x", "w", "r"]
