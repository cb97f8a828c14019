# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Rows of rules/formats.toml: codes, zero points, scales and clipping values, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, PeelOptions, formats, insert, peel
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat, number_format, number_formats
from qdqtool.graph.model import Model
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.quant_params import coding_of, pair_scale, scale_of
from qdqtool.rule_files import format_rows
from qdqtool.scales import Scale
from tests.graphs import SMALL_NET, model_of


def test_int8_is_symmetric_with_one_more_negative_code() -> None:
    assert INT8.codes == (-128, 127)
    assert INT8.weight_codes == (-127, 127)
    assert INT8.dtype == np.int8


def test_every_row_has_a_zero_point_of_its_own_type() -> None:
    for one in number_formats().values():
        zero = one.zero_point(3)
        assert zero.shape == (3,)
        assert one.has_zero_point(zero)
        assert not one.has_zero_point(None)
        assert not one.has_zero_point(np.zeros((), np.float32))
    assert not INT8.has_zero_point(np.ones((), np.int8))


def test_a_scale_is_divided_once_in_float32_and_its_clipping_value_is_exact() -> None:
    amax = np.float32(3.7)
    scale = INT8.scale_of(amax)
    assert scale.tobytes() == (amax / np.float32(127)).tobytes()
    assert INT8.amax_of(scale[()]) == float(scale) * 127
    assert Scale.of(np.array([scale, scale * 2])).amax == float(np.float32(float(scale * 2) * 127))


def test_a_scale_without_a_word_on_its_format_is_int8_and_none_is_written() -> None:
    entry = Scale.of(1.0).to_json()
    assert "format" not in entry
    assert Scale.from_json("x", entry).format == INT8


def test_an_unknown_format_is_named_with_those_there_are() -> None:
    with pytest.raises(QdqError, match=r"int3.*choose int8"):
        number_format("int3")
    with pytest.raises(QdqError, match="int3"):
        Scale.from_json("x", {**Scale.of(1.0).to_json(), "format": "int3"})


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NumberFormat]:
    """A second row: INT8 codes from -15 to 15, which no cache holds."""
    row = """
[[format]]
name = "narrow"
title = "INT8 to 15"
element = "INT8"
lowest = -15
largest = 15
bits = 8
written = true
sm = 0
since = [5, 0]
opset = 13
per_channel = ["weight"]
cache = false
method = "auto"
stored = "float"
"""
    (tmp_path / "narrow.toml").write_text(row)
    rows = [*format_rows(), *read_toml(tmp_path / "narrow.toml", RULES)["format"]]
    monkeypatch.setattr(formats, "format_rows", lambda: rows)
    number_formats.cache_clear()
    yield number_format("narrow")
    number_formats.cache_clear()


def test_a_scale_keeps_its_clipping_value_in_another_format(narrow: NumberFormat) -> None:
    scale = Scale.of(INT8.scale_of(6.0), method="mse")
    other = scale.in_format(narrow)
    assert (other.bits, other.amax, other.method) == (np.float32(0.4), 6.0, "mse")
    assert scale.in_format(INT8) is scale
    assert Scale.from_json("x", other.to_json()).format == narrow


def test_pairs_of_another_format_have_its_scales_and_no_cache_holds_them(narrow: NumberFormat) -> None:
    options = PlanOptions(format="narrow")
    int8, made = insert(model_of(SMALL_NET)), insert(model_of(SMALL_NET), options=InsertOptions(options))
    assert {point.format for point in made.plan.points} == {narrow}
    for name, scale in made.inserted.scales.items():
        assert scale.format == narrow and scale.amax == pytest.approx(int8.inserted.scales[name].amax, rel=1e-6)
    weights = {name: pairs[0] for name, pairs in Model(made.model).view.pairs.items() if name in ("w1", "w2", "fc")}
    for name, pair in weights.items():
        view = Model(made.model).view
        scale, value = view.array(pair.dequantize.inputs[1]), view.array(name)
        assert scale is not None and value is not None
        assert np.abs(value).max() / scale.max() == pytest.approx(15, rel=1e-6)


def test_pairs_of_one_format_are_not_kept_for_another(narrow: NumberFormat) -> None:
    made = insert(model_of(SMALL_NET)).model
    with pytest.raises(QdqError, match=r"int8, and narrow .*--requantize"):
        insert(made, options=InsertOptions(PlanOptions(format="narrow")))
    again = insert(made, options=InsertOptions(PlanOptions(format="narrow"), requantize=True))
    assert {point.format for point in again.plan.points} == {narrow}


def test_a_dla_has_int8_alone(narrow: NumberFormat) -> None:
    with pytest.raises(QdqError, match=r"DLA .*narrow"):
        insert(model_of(SMALL_NET), options=InsertOptions(PlanOptions("dla", format="narrow")))


def test_the_search_rounds_to_the_format_of_a_point(narrow: NumberFormat) -> None:
    data = {"x": np.random.default_rng(0).standard_normal((4, 4, 8, 8)).astype(np.float32)}
    options = InsertOptions(PlanOptions(format="narrow"), max_output_loss=1e-9)
    made = insert(model_of(SMALL_NET), data=data, options=options)
    assert (
        made.search is not None
        and made.search.before
        > 10 * insert(model_of(SMALL_NET), data=data, options=InsertOptions(max_output_loss=1e-9)).search.before
    )  # type: ignore[union-attr]


def test_codes_between_the_bounds_of_a_row_are_of_its_format(narrow: NumberFormat, tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}, int8 l = {-15}, int8 h = {15}> { q = QuantizeLinear(x, s, z) c = Clip(q, l, h) d = DequantizeLinear(c, s, z) y = Relu(d) }"
    view = Model(model_of(text)).view
    coding = coding_of(view, view.pairs["x"][0])
    assert coding.format == narrow and scale_of(view, view.pairs["x"][0], coding).amax == 7.5
    assert pair_scale(view, view.pairs["x"][0]).format == narrow
    with pytest.raises(QdqError, match="quantized to narrow"):
        peel(model_of(text), PeelOptions("8502", "gpu"), cache=tmp_path / "narrow.cache")
    back = peel(model_of(text), PeelOptions("8502", "gpu"))
    assert back.cache is None and not any("weights" in note for note in back.notes), "no weight was stored as codes"
    with pytest.raises(QdqError, match="quantized to narrow"):
        ptq = PeelOptions("8502", "gpu", force_ptq=True, data={"x": np.ones((4, 4), np.float32)})
        peel(model_of(text), ptq, cache=tmp_path / "narrow.cache")


# ---------------------------------------------------------------------- FP8

FP8_NET = """
net (float[N,32,8,8] x) => (float[N,32] y) <float[32,32,3,3] w, float[8,32,3,3] thin, float[32,32,7,7] wide, float[32,32] fc>
{
  c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c)
  t = Conv<pads=[1,1,1,1]>(r, thin)
  k = Conv<pads=[3,3,3,3]>(r, wide)
  a = GlobalAveragePool(k) f = Flatten(a) y = MatMul(f, fc)
  u = Relu(t)
}
"""


def in_fp8(model: onnx.ModelProto, **placing: str) -> Any:
    data = {"x": np.random.default_rng(1).standard_normal((4, 32, 8, 8)).astype(np.float32)}
    return insert(model, data=data, options=InsertOptions(PlanOptions(format="fp8", **placing), keep_float=0))  # type: ignore[arg-type]


def test_fp8_weights_are_stored_codes_and_activations_have_one_scale_by_the_largest_value() -> None:
    plain = model_of(FP8_NET)
    made = in_fp8(plain).model
    view = Model(made).view
    assert (made.opset_import[0].version, made.ir_version) == (19, 9)
    weight, scale = view.pairs["w_DQ"][0], view.array("w_scale")
    assert weight.quantize is None and scale is not None and scale.shape == (32,)
    before = onnx.numpy_helper.to_array(next(one for one in plain.graph.initializer if one.name == "w"))
    assert scale.tobytes() == (np.abs(before).max(axis=(1, 2, 3)) / np.float32(448)).tobytes()
    codes = (before / scale.reshape(-1, 1, 1, 1)).astype(ml_dtypes.float8_e4m3fn)
    stored = view.array("w_Q")
    assert stored is not None and stored.dtype == codes.dtype and stored.tobytes() == codes.tobytes()
    scale, largest = view.array("x_scale"), np.abs(np.random.default_rng(1).standard_normal((4, 32, 8, 8))).max()
    assert scale is not None and scale.shape == () and scale == np.float32(np.float32(largest) / np.float32(448))


def test_fp8_leaves_out_what_gains_nothing() -> None:
    rules = {one.site: one.rule for one in in_fp8(model_of(FP8_NET)).plan.refusals}
    assert {rule for rule in rules.values() if rule.endswith("-float")} == {"few-channels-float", "large-kernel-float"}
    alone = PlanOptions(format="fp8").rule_book().names, PlanOptions().rule_book().names
    assert "large-kernel-float" in alone[0] and "large-kernel-float" not in alone[1]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("jp6.1", r"JetPack 6\.1 runs on .*Orin.*FP8 needs compute capability 8\.9.*8\.7.*choose int8"),
        ("8.6.1", r"TensorRT 8\.6\.1 does not read FP8, which 9\.1 does"),
    ],
)
def test_a_board_without_the_format_is_refused(version: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        insert(model_of(FP8_NET), options=InsertOptions(PlanOptions(format="fp8", trt_version=version)))


def test_what_is_no_format_is_refused_and_a_version_of_no_board_is_taken() -> None:
    with pytest.raises(QdqError, match=r"'fp4' is not a number format; choose int8, fp8, int4, nvfp4"):
        insert(model_of(FP8_NET), options=InsertOptions(PlanOptions(format="fp4")))
    assert in_fp8(model_of(FP8_NET), trt_version="10.3.0").plan.points  # of no board: it may be an H100


def test_peel_takes_fp8_out_and_refuses_a_cache_of_it(tmp_path: Path) -> None:
    plain, file = model_of(FP8_NET), tmp_path / "fp8.onnx"
    onnx.save(in_fp8(plain).model, file)
    onnx.save(plain, tmp_path / "plain.onnx")
    with pytest.raises(QdqError, match=r"quantized to fp8, .*FP8 needs TensorRT 9\.1"):
        peel(file, PeelOptions("8502", "gpu"), cache=tmp_path / "fp8.cache")
    made = peel(file, PeelOptions("8502", "gpu", source=tmp_path / "plain.onnx"))
    assert made.model.read_bytes() == (tmp_path / "plain.onnx").read_bytes()
    assert made.cache is None and not list(tmp_path.glob("*.cache"))
    bare = peel(file, PeelOptions("8502", "gpu"), output=tmp_path / "bare.onnx")
    assert any("values of their FP8 codes" in note for note in bare.notes)
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(bare.model).graph.initializer}
    before = next(onnx.numpy_helper.to_array(one) for one in plain.graph.initializer if one.name == "w")
    scale = (np.abs(before).max(axis=(1, 2, 3)) / np.float32(448)).reshape(-1, 1, 1, 1)
    steps = (before / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert weights["w_DQ"].tobytes() == (steps * scale).tobytes()


ATTENTION = """
net (float[1,4,64,32] q, float[1,4,32,64] k, float[1,4,64,32] v) => (float[1,4,64,32] y)
<float d = {5.6}> { s = MatMul(q, k) m = Div(s, d) p = Softmax(m) y = MatMul(p, v) }
"""


def attention_in(target: str, **placing: Any) -> Any:
    options = PlanOptions(target, format="fp8", attention="int8", **placing)
    data = {name: np.random.default_rng(2).standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return insert(model_of(ATTENTION), data=data, options=InsertOptions(options, keep_float=0, allow_empty=True))


SHAPES = {"q": (1, 4, 64, 32), "k": (1, 4, 32, 64), "v": (1, 4, 64, 32)}


def test_fp8_attention_has_a_fixed_scale_after_its_softmax_and_on_rtx_no_pair_on_its_output() -> None:
    made = attention_in("rtx")
    assert [one.int8 for one in made.plan.attentions] == [True]
    view = Model(made.model).view
    assert set(view.pairs) == {"q", "k", "p", "v"}
    scale = view.array(view.pairs["p"][0].dequantize.inputs[1])
    assert scale is not None and scale.tobytes() == (np.float32(1) / np.float32(448)).tobytes()


def test_tensorrt_wants_the_pair_on_the_output_of_fp8_attention_and_has_it_from_10_6_on() -> None:
    (one,) = attention_in("gpu").plan.attentions
    assert "no operator after its output" in one.reason
    (one,) = attention_in("gpu", trt_version="10.3.0").plan.attentions
    assert one.reason == "Attention in FP8 is one kernel from TensorRT 10.6 on."


def test_fp8_operators_are_ranked_at_the_outputs_as_each_loses_the_same_by_itself() -> None:
    data = {"x": np.random.default_rng(1).standard_normal((4, 32, 8, 8)).astype(np.float32)}
    options = InsertOptions(PlanOptions(format="fp8"), max_output_loss=1e-9)
    search = insert(model_of(FP8_PAIR), data=data, options=options).search
    assert search is not None and search.singles == search.operators == 2
    local = [one.local for step in search.steps for one in step.findings]
    assert local and not any(local)


FP8_PAIR = """
net (float[N,32,8,8] x) => (float[N,32,8,8] y) <float[32,32,3,3] w, float[32,32,3,3] v>
{ c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, v) }
"""


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
def test_the_nearest_code_of_floats_is_that_of_a_cast(name: str) -> None:
    """Every value of float16, its neighbors in float32 and halves between codes, with the sign of zero."""
    row = number_format(name)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = every[np.isfinite(every)]
    values = np.concatenate([every, np.nextafter(every, np.float32(0)), np.nextafter(every, np.float32(np.inf))])
    lowest, largest = map(np.float32, row.codes)
    cast = np.clip(values, lowest, largest).astype(row.dtype).astype(np.float32)
    assert row.nearest(values).tobytes() == cast.tobytes()
    assert row.nearest(np.float32(3.3)) == np.float32(3.25 if name == "fp8" else 3)
