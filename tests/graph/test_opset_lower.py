# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Opsets that are lowered: the same bits come out, and what has no older form of the same meaning is refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.opset_lower import Lowered, lower, opset_warnings
from qdqtool.trtversion import parse
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

V7 = parse("7.1.3")
X = "g (float[2,4,6,8] x) => (float[N,C,H,W] y)"


def lowered(text: str, opset: int = 13, to: int = 11) -> tuple[onnx.ModelProto, onnx.ModelProto, Lowered | None]:
    before = model_of(text, opset)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    return before, after, lower(Model(after), to, "m.onnx")


def run(model: onnx.ModelProto) -> bytes:
    session = session_of(model, PLAIN)
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 8)).astype(np.float32)
    return b"".join(one.tobytes() for one in session.run(None, {"x": x}))


SAME = {
    "types alone": f"{X} {{ a = Relu(x) b = Add(a, x) y = MaxPool<kernel_shape=[2,2]>(b) }}",
    "squeeze": f"{X} <int64[1] k = {{0}}> {{ a = Unsqueeze(x, k) b = Squeeze(a, k) y = Neg(b) }}",
    "squeeze all": f"{X} <int64[1] k = {{0}}> {{ a = Unsqueeze(x, k) b = Squeeze(a) y = Neg(b) }}",
    "split": f"{X} <int64[2] k = {{1, 3}}> {{ a, y = Split<axis=1>(x, k) }}",
    "split in halves": f"{X} {{ a, y = Split<axis=1>(x) }}",
    "sum": f"{X} <int64[2] k = {{2, -1}}> {{ a = ReduceSum(x, k) b = ReduceSum(x) c = Add(a, b) y = Identity(c) }}",
    "softmax": f"{X} {{ a = Softmax(x) b = LogSoftmax<axis=-1>(a) y = Softmax<axis=3>(x) }}",
    "resize": f"{X} <float[4] s = {{1, 1, 2, 2}}> {{ y = Resize<mode=\"linear\">(x, , s) }}",
    "resize by sizes": f"{X} <int64[4] s = {{2, 4, 9, 9}}> {{ y = Resize<mode=\"nearest\">(x, , , s) }}",
    "constant": f"{X} {{ k = Constant<value_float = 2.5>() a = Mul(x, k) f = Constant<value_floats = [1.5]>() y = Add(a, f) }}",
    "clip": f"{X} <float l = {{-0.5}}, float h = {{0.5}}> {{ y = Clip(x, l, h) }}",
}  # fmt: skip


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_bits_come_out(text: str) -> None:
    before, after, done = lowered(text)
    assert done is not None and (done.before, done.after) == (13, 11) and "the source" in done.note
    assert after.opset_import[0].version == 11 and after.ir_version == 6
    onnx.checker.check_model(after, full_check=True)
    assert run(after) == run(before)
    assert [one.name for one in after.graph.node] == [one.name for one in before.graph.node]


def test_what_nothing_reads_any_more_is_gone() -> None:
    _, after, _ = lowered(SAME["squeeze"])
    assert not after.graph.initializer
    text = f"{X} <int64[1] k = {{0}}> {{ a = Unsqueeze(x, k) b = Squeeze(a, k) c = Cast<to=1>(k) y = Add(b, c) }}"
    assert [one.name for one in lowered(text)[1].graph.initializer] == ["k"], "the Cast reads it still"


def test_bodies_are_lowered_with_the_constants_that_they_see() -> None:
    body = "b (int64 i, bool c, float[2,4,6,8] s) => (bool d, float[2,4,6,8] t) { d = Identity(c) u = Unsqueeze(s, k) v = Squeeze(u, k) t = Softmax(v) }"
    before = model_of(f"{X} <int64[1] k = {{0}}, int64 n = {{2}}, bool go = {{1}}> {{ y = Identity(x) }}", 13)
    graph = onnx.parser.parse_graph(body)
    del before.graph.node[:]
    before.graph.node.append(onnx.helper.make_node("Loop", ["n", "go", "x"], ["y"], "loop", body=graph))
    after = onnx.ModelProto()
    after.CopyFrom(before)
    done = lower(Model(after), 11, "m")
    assert done is not None and done.rewritten == 3 and run(after) == run(before)


REFUSED = {
    "computed": (f"{X} {{ s = Shape(x) i = Constant<value_ints=[0]>() k = Gather(s, i) y = Unsqueeze(x, k) }}", 13, "are computed"),
    "axis": (f"{X} {{ y = Softmax<axis=1>(x) }}", 13, "along axis 1"),
    "younger": (f"{X} <float s = {{1}}> {{ y = LayerNormalization(x, s) }}", 17, "came with opset 17"),
    "attribute": (f"{X} <int64[4] s = {{0, 4, 6, 8}}> {{ y = Reshape<allowzero=1>(x, s) }}", 14, "allowzero"),
    "types": ("g (float[4] x) => (int8[4] y) { c = Cast<to=3>(x) y = Relu(c) }", 14, "types are not those"),
    "far": ("g (float[4] x) => (float[4] y) { y = Relu(x) }", 19, "17 at most"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "opset", "why"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_older_form_of_the_same_meaning_is_refused_and_stays(text: str, opset: int, why: str) -> None:
    model = model_of(text, opset)
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(QdqError, match=why):
        lower(Model(model), 11, "m.onnx")
    assert model.SerializeToString(deterministic=True) == before


def test_an_attribute_that_means_what_there_was_before_is_left_out() -> None:
    before, after, done = lowered(f"{X} <int64[4] s = {{2, 4, 6, 8}}> {{ y = Reshape<allowzero=0>(x, s) }}", 14)
    assert done is not None and not after.graph.node[0].attribute and run(after) == run(before)


def test_a_lower_opset_stays_and_only_a_higher_one_is_warned_of() -> None:
    assert lowered(SAME["clip"], to=13)[2] is None
    (text,) = opset_warnings(model_of(SAME["clip"], 13), V7)
    assert re.match(".*opset 13, TensorRT 7.1.3 .* 11: .*opset 11, .*qdqtool ", text)
    assert opset_warnings(model_of(SAME["clip"], 11), V7) == opset_warnings(model_of(SAME["clip"], 13), None) == ()
