# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Q063: each row of rules/wrong_builds.toml finds a graph with its pattern, for its versions, and no graph without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.linting.check_builds import NOT_KNOWN, PATTERNS, load_wrong_builds
from qdqtool.trtversion import parse
from tests.graphs import model_of
from tests.linting.quantized import findings_of

SAMPLE = 'g (float[1,4,8,8] x, float[1,6,6,2] at) => (float[1,4,6,6] y) { y = GridSample<mode = "linear">(x, at) }'
DEFORMABLE = """g (float[1,4,8,8] x, float[1,4,4,4] x2, float[1,6,6,2] at) => (float[1,4,6,12] y) {
 a = GridSample<mode = "bilinear">(x, at) b = GridSample<mode = "bilinear">(x2, at) y = Concat<axis = -1>(a, b) }"""
_ATTENTION = "a = MatMul(q, kt) p = Softmax<axis = -1>(a) o = MatMul(p, v)"
VIT = f"""g (float[1,3,28,28] x) => (float[1,8,4,4] y) <float[8,3,14,14] w, int64[3] flat = {{1, 8, 4}}, int64[4] image = {{1, 8, 2, 2}}, float[4] twice = {{1, 1, 2, 2}}> {{
 c = Conv<kernel_shape = [14,14], strides = [14,14]>(x, w) r = Reshape(c, flat) q = Transpose<perm = [0,2,1]>(r) v = Identity(q) k = Relu(q) kt = Transpose<perm = [0,2,1]>(k)
 {_ATTENTION} t = Transpose<perm = [0,2,1]>(o) i = Reshape(t, image) y = Resize<mode = "nearest">(i, , twice) }}"""
YOLO = f"""g (float[1,3,2,2] x) => (float[1,4,1] y, int64[1,4,1] n) <float[8,3,1,1] w, int64[3] flat = {{1, 8, 4}}, int64[1] one = {{1}}> {{
 c = Conv(x, w) r = Reshape(c, flat) q = Transpose<perm = [0,2,1]>(r) v = Identity(q) k = Relu(q) kt = Transpose<perm = [0,2,1]>(k)
 {_ATTENTION} y, n = TopK(o, one) }}"""
TANH = """g (float[1,4,8,8] x) => (float[1,6,8,8] y) <float[2,2,1,1] w, float half = {0.5}> {
 a, b = Split<axis = 1>(x) c = Conv(b, w) h = Mul(c, half) t = Tanh(h) m = Mul(h, t) s = Add(m, h) r = Add(b, s) y = Concat<axis = 1>(a, b, r) }"""
SEGFORMER = f"""g (float[N,8,4,4] x) => (float[N,16,8] o) <float[8,8,2,2] w, int64[3] flat = {{0, 8, 16}}, int64[4] image = {{0, 8, 4, 4}}, int64[3] few = {{0, 8, 4}}> {{
 f = Reshape(x, flat) q = Transpose<perm = [0,2,1]>(f) u = Transpose<perm = [0,2,1]>(q) i = Reshape(u, image) c = Conv<strides = [2,2]>(i, w)
 kt = Reshape(c, few) v = Transpose<perm = [0,2,1]>(kt) {_ATTENTION} }}"""
SLICED = """g (float[1,8,8] x) => (float[1,8,4] y) <float s = {0.1}, int8 z = {0}, int64[1] a = {0}, int64[1] b = {4}, int64[1] axis = {2}> {
 q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) t = Transpose<perm = [0,2,1]>(d) c = Slice(t, a, b, axis) y = Relu(c) }"""

CASES = {  # row -> graph, opset, versions that are in it, versions that are not, the same graph without the pattern
    "grid-sample-mode-of-opset-20": (SAMPLE, 20, ("8.6.1", "10.13.3", "11.1.0"), ("11.5.0",), SAMPLE.replace("linear", "nearest")),
    "deformable-attention": (DEFORMABLE, 16, ("10.13.3", "11.1.0"), ("10.3.0", "11.4.1"), DEFORMABLE.replace("Concat<axis = -1>(a, b)", "Concat<axis = -1>(a, x)")),
    "depth-anything-on-10.3": (VIT, 17, ("10.3.0",), ("10.5.0", "11.4.1"), VIT.replace("strides = [14,14]", "strides = [7,7]").replace("28,28", "21,21")),
    "unidepth-on-10.7": (VIT, 17, ("10.7.0",), ("10.13.2",), VIT.replace("p = Softmax<axis = -1>(a)", "p = Relu(a)")),
    "yolov10-fp16-on-10.13": (YOLO, 17, ("10.13.3",), ("10.3.0",), YOLO.replace("k = Relu(q)", "k = LayerNormalization(q, n8)").replace("int64[1] one", "float[8] n8, int64[1] one")),
    "residual-add-of-a-concat-view": (TANH, 17, (), ("11.1.0", "11.5.0"), TANH.replace("t = Tanh(h)", "t = Sigmoid(h)")),
    "segformer-with-a-batch": (SEGFORMER, 17, ("10.11.0", "11.1.0"), ("10.3.0", "11.5.0"), SEGFORMER.replace("float[N", "float[1")),
    "sliced-integers-on-orin": (SLICED, 17, ("10.16.2",), ("10.16.1",), SLICED.replace("Slice(t, a, b, axis)", "Relu(t)").replace("float[1,8,4] y", "float[1,8,8] y")),
}  # fmt: skip


def rows_of(text: str, opset: int, version: str) -> list[str]:
    """The links that the check prints of a graph."""
    return [one.message for one in findings_of(model_of(text, opset), "Q063", version=parse(version))]


@pytest.mark.parametrize("name", CASES)
def test_a_row_finds_its_pattern_for_its_versions(name: str) -> None:
    row = next(one for one in load_wrong_builds() if one.name == name)
    text, opset, inside, outside, other = CASES[name]
    for version in inside:
        (message,) = (one for one in rows_of(text, opset, version) if row.why in one)
        assert message == f"known of TensorRT {version}: {row.why}; not known: {row.unknown} ({row.see})"
        assert not any(row.why in one for one in rows_of(other, opset, version))
    for version in outside:
        assert not any(row.why in one for one in rows_of(text, opset, version))


def test_every_row_is_tried_here_and_says_where_it_was_told() -> None:
    rows = load_wrong_builds()
    assert {row.pattern for row in rows} == set(PATTERNS)
    assert {row.name for row in rows if row.pattern != NOT_KNOWN} == set(CASES)
    for row in rows:
        assert row.see.startswith("https://github.com/") and row.unknown and row.todo, row.name


def test_what_concerns_fp16_is_told_where_something_is_fp16() -> None:
    model = model_of(TANH, 17)
    assert not findings_of(model, "Q063", version=parse("11.2.0")), "all of it is FP32, and stays so from 11 on"
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for one in model.graph.initializer:
        one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one).astype(np.float16), one.name))
    (found,) = findings_of(model, "Q063", version=parse("11.2.0"))
    assert found.severity == "warning" and "TensorRT/issues/4854" in found.message


def test_without_a_version_nothing_is_said() -> None:
    for text, opset, *_ in CASES.values():
        assert not findings_of(model_of(text, opset), "Q063")


def test_deploy_says_it_in_a_line(tmp_path: Path) -> None:
    net = SAMPLE.replace(
        'y = GridSample<mode = "linear">(x, at)', 's = GridSample<mode = "linear">(c, at) c = Conv(x, w) y = Conv(s, w)'
    )
    net = net.replace(
        '{ s = GridSample<mode = "linear">(c, at) c = Conv(x, w)',
        '<float[4,4,1,1] w> { c = Conv(x, w) s = GridSample<mode = "linear">(c, at)',
    )
    onnx.save(model_of(net, 20), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(8, 4, 8, 8)).astype(np.float32),
        "at": rng.uniform(-1, 1, (8, 6, 6, 2)).astype(np.float32),
    }
    np.savez(tmp_path / "d.npz", **data)
    options = DeployOptions("10.13.3", effort="fast", progress=False)
    done = deploy(tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "out", options)
    (line,) = (
        one for one in done.known_wrong if one.startswith("warning: known of TensorRT 10.13.3: the parser reads ")
    )
    assert "TensorRT/issues/4646" in line and "TensorRT/issues/4646" in (tmp_path / "out" / "deploy.json").read_text()
