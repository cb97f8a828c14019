# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What lint says of element types: refused ones, FP32 beside FP16, Casts that undo one another, scales."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.edit import set_metadata
from qdqtool.graph.model import Model
from qdqtool.linting.lint_context import LintContext
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of
from tests.linting.quantized import findings_of, graph, pair, places_of

V8_6, V10, V11 = TrtVersion(8, 6, 1), TrtVersion(10, 3, 0), TrtVersion(11, 0, 0)


def halved(text: str, *names: str) -> onnx.ModelProto:
    """A graph in text in which these initializers are FP16."""
    model = model_of(text, 21, 10)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return model


def half(body: str, constants: str, *names: str, output: str = "float16[1,8,8,8] y") -> onnx.ModelProto:
    """A graph over x [1, 8, 8, 8] in FP16; `names` are the constants in FP16."""
    return halved(f"net (float16[1,8,8,8] x) => ({output}) <{constants}> {{ {body} }}", *names)


REFUSED = {
    "a weight in FP32": (
        half("y = Conv<pads=[1,1,1,1]>(x, w)", "float[8,8,3,3] w"),
        "y", "Conv reads x in FP16 and w in FP32, which must be one type", "cast w to FP16, or store it so",
    ),
    "a pair with an FP32 scale": (
        half(f"{pair('x')} y = Mul(x_dq, k)", "float s = {0.1}, int8 z = {0}, float[1] k", "k"),
        "y", "Mul reads x_dq in FP32 and k in FP16, which must be one type", "add a Cast to FP16 after x_dq, or output_dtype there (opset 23)",
    ),
    "an index in FP32": (
        half("y = Gather(x, i)", "float i = {0}"),
        "y", "Gather reads i in FP32 and takes INT32, INT64 there", "cast it to INT64, or export the model again",
    ),
    "integers and floats": (
        model_of("net (int64[4] x) => (int64[4] y) <float k> { y = Add(x, k) }"),
        "y", "Add reads x in INT64 and k in FP32, which must be one type", "cast one of the two, or export the model again",
    ),
    "an operator without BF16": (
        model_of("net (bfloat16[4] x) => (bfloat16[4] y) { y = Mish(x) }", 22, 10),
        "y", "Mish reads x in BF16 and takes FP32, FP16 there", "cast it to a type that it takes, or export the model again",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "where", "message", "todo"), REFUSED.values(), ids=REFUSED)
def test_q052_types_that_tensorrt_refuses(model: onnx.ModelProto, where: str, message: str, todo: str) -> None:
    (finding,) = findings_of(model, "Q052", version=V11)
    assert (finding.severity, finding.where, finding.message, finding.fix) == ("error", where, message, todo)


FINE = {
    "FP32 parameters of a normalization": half("y = BatchNormalization(x, g, g, g, v)", "float[8] g, float[8] v = {1,1,1,1,1,1,1,1}"),
    "FP32 bounds": half("y = Clip(x, low, high)", "float low = {0}, float high = {6}"),
    "scales of a Resize": half("y = Resize(x, , r)", "float[4] r = {1,1,1,1}"),
    "an FP32 scale on an FP16 tensor, and a Cast": half(f"{pair('x')} y = Cast<to=10>(x_dq)", "float s = {0.1}, int8 z = {0}"),
    "output_dtype": half("q = QuantizeLinear(x, s, z) y = DequantizeLinear<output_dtype=10>(q, s, z)", "float s = {0.1}, int8 z = {0}"),
    "a plain model": graph("y = Conv<pads=[1,1,1,1]>(x, w, b)"),
}  # fmt: skip


@pytest.mark.parametrize("model", FINE.values(), ids=FINE)
def test_q052_is_silent_where_the_parser_converts(model: onnx.ModelProto) -> None:
    assert places_of(model, "Q052", version=V11) == []


OWNED = {
    "integers that a product reads (Q003)": graph("q = QuantizeLinear(x, s, z) y = Conv<pads=[1,1,1,1]>(q, w)"),
    "a pair in INT16 (Q005)": graph("q = QuantizeLinear(x, s, h) y = DequantizeLinear(q, s, h)", more="int16 h = {0}"),
    "a pair on integers (Q007)": model_of("net (int32[4] x) => (float[4] y) <float s = {0.1}> { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"),
}  # fmt: skip


@pytest.mark.parametrize("model", OWNED.values(), ids=OWNED)
def test_q052_leaves_the_types_of_pairs_to_their_own_checks(model: onnx.ModelProto) -> None:
    assert places_of(model, "Q052", version=V11) == []


@pytest.mark.parametrize(
    ("version", "target", "severity"),
    [(None, "gpu", "warning"), (V8_6, "gpu", "warning"), (V10, "gpu", "warning"), (V11, "gpu", "error"), (None, "rtx", "error")],
)  # fmt: skip
def test_q052_a_model_in_fp32_is_refused_where_networks_are_always_typed(
    version: TrtVersion | None, target: str, severity: str
) -> None:
    model = REFUSED["integers and floats"][0]
    assert [one.severity for one in findings_of(model, "Q052", version=version, target=target)] == [severity]


def test_q052_a_model_with_halves_is_refused_at_any_version() -> None:
    assert [one.severity for one in findings_of(REFUSED["a weight in FP32"][0], "Q052", version=V10)] == ["error"]


# ---------------------------------------------------------------------- FP32 beside FP16


CONV = "Conv<pads=[1,1,1,1]>"
WEIGHTS = "float[8,8,3,3] w, float[8,8,3,3] h"
ISLANDS = {
    "a product": (f"a = {CONV}(x, h) b = Cast<to=1>(a) c = {CONV}(b, w) d = Cast<to=10>(c) y = Relu(d)",
                  ["c: 1 operator, 1 of them a product, runs in FP32 between FP16 or BF16 operators: c"]),
    "a product and its activation": (f"b = Cast<to=1>(x) c = {CONV}(b, w) r = Relu(c) y = Cast<to=10>(r)",
                                     ["c: 2 operators, 1 of them a product, run in FP32 between FP16 or BF16 operators: c"]),
    "a chain without a product": ("b = Cast<to=1>(x) c = Sigmoid(b) r = Sqrt(c) y = Cast<to=10>(r)",
                                  ["c: 2 operators run in FP32 between FP16 or BF16 operators: c, r"]),
    "two stretches": (f"b = Cast<to=1>(x) c = {CONV}(b, w) d = Cast<to=10>(c) e = Relu(d) f = Cast<to=1>(e) g = {CONV}(f, w) y = Cast<to=10>(g)",
                      ["c: 1 operator, 1 of them a product, runs in FP32 between FP16 or BF16 operators: c",
                       "g: 1 operator, 1 of them a product, runs in FP32 between FP16 or BF16 operators: g"]),
    "a single operator": ("b = Cast<to=1>(x) c = Softmax(b) y = Cast<to=10>(c)", []),
    "operators that TensorRT has in FP32 alone": ("b = Cast<to=1>(x) c = MeanVarianceNormalization(b) d = Celu(c) y = Cast<to=10>(d)", []),
    "all in FP16": (f"a = {CONV}(x, h) y = Relu(a)", []),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), ISLANDS.values(), ids=ISLANDS)
def test_q053_names_each_stretch_of_fp32_in_a_typed_model(body: str, expected: list[str]) -> None:
    found = findings_of(half(body, WEIGHTS, "h"), "Q053", version=V11)
    assert [f"{one.where}: {one.message}" for one in found] == expected
    assert all(one.severity == "warning" for one in found)


def test_q053_what_amp_left_in_fp32_is_a_note() -> None:
    model = half(ISLANDS["a product"][0], WEIGHTS, "h")
    set_metadata(model, "precision", "{}")
    assert [one.severity for one in findings_of(model, "Q053", version=V11)] == ["note"]


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        ("c holds values up to 1e+06; 65504 / 2 is the limit", False),
        ("Casts to half would cost more than they save, next to FP32 operators: the output y", False),
        ("nothing is known of the values of c", True),
        ("c has a clipping value of 7e+04; 65504 / 2 is the limit", True),
        ("", True),
    ],
)
def test_q053_says_why_and_asks_for_data_only_where_there_were_none(why: str, asked: bool) -> None:
    """`make it again with --data` was said of a model that was made with data."""
    model = half(ISLANDS["a product"][0], WEIGHTS, "h")
    record = {"rest": "fp16", "float32": ["c"], **({"why": {why: ["c"]}} if why else {})}
    set_metadata(model, "precision", json.dumps(record))
    (finding,) = findings_of(model, "Q053", version=V11)
    assert finding.message.endswith(f" c{f'; {why}' if why else ''}")
    assert ("--data" in finding.fix) is asked
    (share,) = findings_of(model, "Q054", version=V11)
    assert ("--data" in share.fix) is asked


def test_q053_what_amp_left_in_fp32_is_a_note_where_it_left_all() -> None:
    model = graph(f"a = {CONV}(x, w) y = Relu(a)")
    set_metadata(model, "precision", '{"rest":"fp16","float32":["a","y"]}')
    (finding,) = findings_of(model, "Q053", version=V11)
    assert finding.severity == "note" and re.match("2 operators, 1 .* FP32 .*: a$", finding.message)


def test_q053_tells_an_fp32_model_in_one_line() -> None:
    (finding,) = findings_of(graph(f"a = {CONV}(x, w) y = Relu(a)"), "Q053", version=V11)
    assert (finding.where, finding.severity) == ("net", "warning")
    assert re.match("2 operators, 1 .* FP32, .* file$", finding.message)
    assert finding.fix.startswith("qdqtool amp ")


def test_q053_products_of_integers_are_left_out() -> None:
    model = graph(f"{pair('x')} {pair('w')} c = {CONV}(x_dq, w_dq) y = Relu(c)")
    (finding,) = findings_of(model, "Q053", version=V11)
    assert re.match("1 operator .* FP32 .* file$", finding.message)


@pytest.mark.parametrize("code", ["Q053", "Q054"])
@pytest.mark.parametrize(("version", "asked"), [(None, False), (V8_6, False), (V10, False), (V11, True)])
def test_fp32_is_told_where_an_engine_has_the_types_of_the_file(
    code: str, version: TrtVersion | None, asked: bool
) -> None:
    model = graph(f"y = {CONV}(x, w)")
    assert bool(places_of(model, code, version=version)) is asked
    assert places_of(model, code, target="rtx") == ["net"]
    assert places_of(model, code, target="dla") == []


def test_q054_shares_of_multiply_adds_and_bytes() -> None:
    body = f"a = {CONV}(x, h) b = Cast<to=1>(a) y = {CONV}(b, w)"
    model = half(body, WEIGHTS, "h", output="float[1,8,8,8] y")
    context = LintContext(Model(model), version=V11)
    values, weights, macs = 8 * 8 * 8, 8 * 8 * 9, 8 * 8 * 8 * 8 * 9
    assert context.forecast is not None
    assert dict(context.forecast.macs_by_type) == {"FP16": macs, "FP32": macs}
    # the kernel downstream reads FP16 where it stands, and converts
    assert dict(context.forecast.bytes_by_type) == {
        "FP32": 4 * (values + weights),
        "FP16": 2 * (3 * values + weights),
    }
    (finding,) = findings_of(model, "Q054", version=V11)
    assert finding.severity == "note"
    assert re.search(
        "0 in INT8, 1 in FP16, 1 in FP32; multiply-adds: 50 % FP16, 50 % FP32; bytes moved: 51 % FP32, 49 % FP16",
        finding.message,
    )


def test_q054_without_shapes_there_is_nothing_to_tell() -> None:
    assert findings_of(model_of("net (float[] x) => (float[] y) { y = Relu(x) }"), "Q054", version=V11) == []


# ---------------------------------------------------------------------- Casts


CASTS = {
    "there and back": ("a = Relu(x) b = Cast<to=1>(a) c = Cast<to=10>(b) y = Relu(c)", [("c", "warning", "casts back to FP16 what b made FP32: the values are the same")]),
    "down and up": ("a = Cast<to=1>(x) r = Relu(a) b = Cast<to=10>(r) c = Cast<to=1>(b) s = Relu(c) y = Cast<to=10>(s)", [("c", "note", "casts back to FP32 what b rounded to FP16")]),
    "by way of BF16": ("a = Relu(x) b = Cast<to=16>(a) c = Cast<to=10>(b) y = Relu(c)", [("c", "note", "casts back to FP16 what b rounded to BF16")]),
    "to its own type": ("a = Cast<to=10>(x) y = Relu(a)", [("a", "warning", "casts FP16 to its own type")]),
    "twice the same": ("a = Cast<to=1>(x) b = Cast<to=1>(x) c = Add(a, b) y = Cast<to=10>(c)", [("b", "note", "casts x to FP32 as a does")]),
    "an operator between": ("a = Cast<to=1>(x) b = Sqrt(a) y = Cast<to=10>(b)", []),
    "three types": ("a = Cast<to=1>(x) b = Cast<to=16>(a) c = Relu(b) y = Cast<to=10>(c)", []),
    "integers": ("a = Cast<to=7>(x) b = Cast<to=10>(a) y = Relu(b)", []),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), CASTS.values(), ids=CASTS)
def test_q055_casts_that_undo_one_another(body: str, expected: list[tuple[str, str, str]]) -> None:
    found = findings_of(half(body, "float unused"), "Q055")
    assert [(one.where, one.severity, one.message) for one in found] == expected


# ---------------------------------------------------------------------- scales


SCALES = {
    "an FP16 scale (Q021)": (f"{pair('x')} y = Relu(x_dq)", "float s = {0.1}, int8 z = {0}", ("s",), []),
    "an FP32 scale without a Cast": (f"{pair('x')} y = Cast<to=10>(r) r = Relu(x_dq)", "float s = {0.1}, int8 z = {0}", (), [("x", "warning", "is FP16 and its pair outputs FP32, the type of the scale")]),
    "an FP32 scale and a Cast": (f"{pair('x')} c = Cast<to=10>(x_dq) y = Relu(c)", "float s = {0.1}, int8 z = {0}", (), []),
    "output_dtype": ("q = QuantizeLinear(x, s, z) d = DequantizeLinear<output_dtype=10>(q, s, z) y = Relu(d)", "float s = {0.1}, int8 z = {0}", (), []),
}  # fmt: skip


@pytest.mark.parametrize(("body", "constants", "names", "expected"), SCALES.values(), ids=SCALES)
def test_q056_scales_of_another_type(
    body: str, constants: str, names: tuple[str, ...], expected: list[tuple[str, str, str]]
) -> None:
    found = findings_of(half(body, constants, *names), "Q056")
    assert [(one.where, one.severity, one.message) for one in found] == expected


def test_q056_is_not_asked_of_an_fp32_model() -> None:
    assert findings_of(graph(f"{pair('x')} y = Relu(x_dq)"), "Q056") == []
