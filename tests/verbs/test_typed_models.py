# SPDX-License-Identifier: Apache-2.0
"""FP16 and BF16 models as input: what each verb does with one beside the same model in FP32, or why it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool import QdqError
from qdqtool.graph.io import open_model, serialize
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.rounded import open_to_run
from qdqtool.precision.widen import is_typed, retyped
from qdqtool.runtime.executor import Executor
from qdqtool.scales import Scale
from qdqtool.verbs.export_evidence import tensor_names
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed_graphs import widened, with_types

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

F16, BF16 = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
KINDS = pytest.mark.parametrize("kind", [F16, BF16], ids=["fp16", "bf16"])
V8_5 = "8.5.2"


def typed(kind: int = F16, *, half_io: bool = False, opset: int = 17) -> onnx.ModelProto:
    """The small net as somebody else's converter makes it: no word of ours in it."""
    made = with_types(model_of(SMALL_NET, opset), TypeAssignment(kind, frozenset(), half_io))
    del made.metadata_props[:]
    return made


def data(count: int = 4) -> list[dict[str, np.ndarray]]:
    values = np.random.default_rng(6).normal(size=(count, 4, 8, 8)).astype(np.float32)
    return [{"x": one[None]} for one in values]


def quantized(model: onnx.ModelProto, **more: Any) -> onnx.ModelProto:
    return qdqtool.insert(model, data=data(), options=qdqtool.InsertOptions(keep_float=0, **more)).model


def bits(scales: Mapping[str, Scale]) -> dict[str, str]:
    return {name: scale.hex() for name, scale in scales.items()}


def cache_of(model: onnx.ModelProto) -> qdqtool.Cache:
    return qdqtool.ptq(model, data(), qdqtool.PtqOptions(V8_5, "gpu")).cache


# ---------------------------------------------------------------------- what reads and writes none


@KINDS
def test_calibrate_and_ptq_give_what_the_model_in_fp32_gives(kind: int) -> None:
    model = typed(kind)
    ours, theirs = (qdqtool.calibrate(one, data()) for one in (model, widened(model)))
    assert bits(ours.scales) == bits(theirs.scales) and set(ours.scales) == {"x", "c1", "r1", "c2", "r2", "g", "f", "y"}
    assert cache_of(model).entries == cache_of(widened(model)).entries


def test_calibrated_scales_of_a_typed_model_lie_near_those_of_its_fp32_original() -> None:
    ours, theirs = (
        qdqtool.calibrate(one, data(), qdqtool.CalibrationOptions("mse")) for one in (typed(), model_of(SMALL_NET))
    )
    for name, scale in theirs.scales.items():
        np.testing.assert_allclose(ours.scales[name].bits, scale.bits, rtol=2e-3)  # weights of 11 bits


@KINDS
def test_plan_lint_sensitivity_and_predicted_layers_are_those_of_the_model_in_fp32(kind: int) -> None:
    model, wide = typed(kind), widened(typed(kind))
    assert qdqtool.plan(model).points == qdqtool.plan(wide).points
    mine, theirs = (qdqtool.sensitivity(one, data()).ranking.loss for one in (model, wide))
    assert mine == theirs
    quant, other = quantized(model), quantized(wide)
    codes = [{one.code for one in qdqtool.lint(each).findings} for each in (quant, other)]
    assert codes[0] - codes[1] <= {code for code in codes[0] if code >= "Q052"}  # what is said of types alone


def test_predicted_layers_are_those_of_the_model_in_fp32() -> None:
    ours, theirs = (qdqtool.predicted_layers(one, "8502") for one in (typed(), widened(typed())))
    assert ours.headline() == theirs.headline() and [one.name for one in ours.layers] == [o.name for o in theirs.layers]


def test_a_cache_is_checked_against_the_tensors_of_the_model_in_fp32(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(typed()))
    floats, others = tensor_names(open_model(str(path)))
    assert set(floats) == set(cache_of(typed()).entries) and {"x_fp16", "w1"} <= set(others)


def test_what_evaluate_and_infer_open_rounds() -> None:
    """A logit of 70,000 is infinity in FP16, which onnxruntime alone would not say before the last Cast."""
    text = "g (float[1,2] x) => (float[1,2] y) <float[1,2] w, float[1,2] s> { a = Mul(x, w) y = Mul(a, s) }"
    model = model_of(text)
    for tensor, value in zip(model.graph.initializer, ([70.0, 1.0], [0.01, 1.0]), strict=True):
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([value], np.float32), tensor.name))
    array = {"x": np.array([[1000, 1]], np.float32)}
    made = Executor(open_to_run(with_types(model, TypeAssignment(F16, frozenset())))).run(array)
    assert np.isposinf(made["y"][0, 0]) and made["y"][0, 1] == 1


@KINDS
def test_infer_shows_of_a_typed_classifier_what_it_shows_in_fp32(kind: int, tmp_path: Path, models: Path) -> None:
    plain = onnx.load(models / "tiny_classifier.onnx")
    best = []
    for name, model in {"plain": plain, "typed": with_types(plain, TypeAssignment(kind, frozenset()))}.items():
        found = qdqtool.infer(model, models / "digits8_test.npz", tmp_path / name, None, qdqtool.DataOptions(limit=4))
        best.append([int(one.found.labels[0]) for one in found.images])
    assert best[0] == best[1]


def test_a_half_scale_in_the_file_is_told_though_the_checks_see_fp32() -> None:
    text = """g (float16[1,4,8,8] x) => (float16[1,4,8,8] y) <float[4,4,1,1] w>
      { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) h = Cast<to = 10>(w) y = Conv(d, h) }"""
    model = model_of(text, 19, 9)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.1), "s"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0), "z"))
    (found,) = qdqtool.lint(model, qdqtool.LintOptions(select=("Q021",))).findings
    assert found.where == "x" and "float16" in found.message


# ---------------------------------------------------------------------- insert, peel, graft


@KINDS
@pytest.mark.parametrize("half_io", [False, True])
def test_insert_places_in_the_typed_graph_what_it_places_in_fp32_and_peel_gives_the_model_back(
    kind: int, half_io: bool
) -> None:
    model = typed(kind, half_io=half_io)
    made, wide = quantized(model), quantized(widened(model))
    assert is_typed(Model(made)) and serialize(retyped(made)) != serialize(wide)
    assert [one.output[0] for one in widened(made).graph.node] == [one.output[0] for one in wide.graph.node]
    options = qdqtool.PeelOptions(V8_5, "gpu")
    given, plain = qdqtool.peel(made, options), qdqtool.peel(wide, options)
    assert serialize(given.model) == serialize(model)
    assert given.cache.entries == plain.cache.entries
    sourced = qdqtool.peel(made, qdqtool.PeelOptions(V8_5, "gpu", source=model))
    assert serialize(sourced.model) == serialize(model)


def test_insert_changes_a_typed_model_again_only_where_asked() -> None:
    made = quantized(typed())
    assert serialize(qdqtool.insert(made, scales=qdqtool.calibrate(typed(), data())).model) == serialize(made)
    again = qdqtool.insert(made, data=data(), options=qdqtool.InsertOptions(keep_float=0, requantize=True)).model
    assert serialize(again) == serialize(made)


def test_insert_without_data_estimates_for_a_typed_model_what_it_estimates_in_fp32() -> None:
    ours, theirs = qdqtool.insert(typed()), qdqtool.insert(widened(typed()))
    assert bits(ours.inserted.scales) == bits(theirs.inserted.scales) != {}


def test_insert_measures_the_loss_with_the_roundings_of_what_it_writes() -> None:
    ours = qdqtool.insert(typed(BF16), data=data(), options=qdqtool.InsertOptions(keep_float=0)).output_loss
    theirs = qdqtool.insert(widened(typed(BF16)), data=data(), options=qdqtool.InsertOptions(keep_float=0)).output_loss
    assert ours is not None and theirs is not None and ours.value != theirs.value


@KINDS
def test_graft_puts_the_cache_of_a_typed_model_back(kind: int) -> None:
    model = typed(kind)
    cache = cache_of(model)
    made, wide = qdqtool.graft(model, cache).model, qdqtool.graft(widened(model), cache).model
    assert [one.output[0] for one in widened(made).graph.node] == [one.output[0] for one in wide.graph.node]
    assert serialize(qdqtool.peel(made, qdqtool.PeelOptions(V8_5, "gpu")).model) == serialize(model)


def test_an_old_opset_is_lifted_and_typed_pairs_stand_in_it() -> None:
    made = qdqtool.insert(typed(opset=11)).model
    onnx.checker.check_model(made, full_check=True)
    assert made.opset_import[0].version == 13 and sum(one.op_type == "QuantizeLinear" for one in made.graph.node) > 4


# ---------------------------------------------------------------------- what judges


@KINDS
def test_compare_and_simulate_judge_a_typed_model_with_its_roundings(kind: int) -> None:
    plain, model = model_of(SMALL_NET), typed(kind)
    found = qdqtool.compare(plain, model, data(), qdqtool.CompareOptions(progress=False))
    assert [one.tensor for one in found.tensors] == ["c1", "r1", "c2", "r2", "g", "f", "y"]
    low, high = (44, 58) if kind == BF16 else (62, 75)  # 8 bits of precision, and 11
    assert all(low < one.sqnr < high for one in found.tensors)
    made = quantized(model)
    result = qdqtool.simulate(made, data(), qdqtool.SimulateOptions(progress=False))
    assert any("after each operator" in note for note in result.notes)


def test_simulate_takes_a_typed_model_for_the_dla_and_with_a_cache_in_fp32() -> None:
    made = quantized(typed())
    for model, options in (
        (made, qdqtool.SimulateOptions("dla", progress=False)),
        (typed(), qdqtool.SimulateOptions(cache=cache_of(typed()), progress=False)),
    ):
        found = qdqtool.simulate(model, data(), options)
        assert found.outputs and all(np.isfinite(one.sqnr) for one in found.outputs)


def test_an_overflow_of_fp16_is_seen_by_compare_where_onnxruntime_alone_sees_none() -> None:
    text = """g (float[1,1,1,1] x) => (float[1,1,1,1] y) <float[1,1,1,1] w, float[1,1,1,1] s>
      { a = Conv(x, w) b = Conv(x, w) m = Mul(a, b) y = Mul(m, s) }"""
    plain = model_of(text)
    for tensor, value in zip(plain.graph.initializer, (300, 0.5), strict=True):
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.full((1, 1, 1, 1), value, np.float32), tensor.name))
    one = [{"x": np.ones((1, 1, 1, 1), np.float32)}]
    model = with_types(plain, TypeAssignment(F16, frozenset()))
    executor = qdqtool.compare(plain, model, one, qdqtool.CompareOptions(progress=False))
    assert set(executor.uncompared) | {
        each.tensor for each in executor.tensors if not np.isfinite(each.sqnr) or each.sqnr < 0
    } >= {"m", "y"}


# ---------------------------------------------------------------------- what refuses


@pytest.mark.parametrize(
    ("verb", "reason"),
    [
        (lambda model: qdqtool.condition(model, data()), "condition edits FP32 weights"),
        (lambda model: quantized(model, condition="auto"), "--condition edits FP32 weights"),
        (lambda model: qdqtool.insert(model, options=qdqtool.InsertOptions(fold_bn=True)), "--fold-bn edits FP32"),
        (lambda model: qdqtool.lint(model, qdqtool.LintOptions(fix=("Q020",))), "--fix Q020 edits FP32 models"),
        (
            lambda model: qdqtool.peel(quantized(model), qdqtool.PeelOptions(V8_5, "gpu", bake_weights=True)),
            "--bake-weights writes FP32 weights",
        ),
    ],
)
def test_what_edits_fp32_refuses_in_one_line(verb: Callable[[onnx.ModelProto], Any], reason: str) -> None:
    with pytest.raises(QdqError, match=f"has FP16 or BF16 tensors, and {reason}"):
        verb(typed())


def test_nothing_is_written_where_a_verb_refuses(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(typed()))
    with pytest.raises(QdqError):
        qdqtool.condition(path, data())
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]
