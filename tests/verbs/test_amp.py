# SPDX-License-Identifier: Apache-2.0
"""The verb `amp`: what overflows stays in FP32, nothing else does; data, tables and assumptions; what comes back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import qdqtool
from qdqtool import AmpOptions, QdqError, ScaleTable, amp, calibrate, insert, plan_types
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import stored_precision
from qdqtool.precision.casts import count_casts
from qdqtool.precision.element_types import infer_types
from qdqtool.runtime.activations import OrtActivations
from tests.graphs import SMALL_NET, model_of
from tests.precision.choices import OVERFLOWING, Overflowing, floats
from tests.precision.typed_graphs import with_roundings, with_types
from tests.verbs.small_net import write_net

PRODUCTS = {"Conv", "Gemm", "MatMul"}
QUIET = qdqtool.CalibrationOptions(progress=False)
OPTIONS = AmpOptions(calibration=QUIET)


def batches(count: int = 3, factor: float = 1.0) -> list[dict[str, Any]]:
    values = np.random.default_rng(5)
    return [{"x": (factor * values.normal(size=(1, 4, 8, 8))).astype(np.float32)} for _ in range(count)]


def with_options(**fields: Any) -> AmpOptions:
    return AmpOptions(calibration=QUIET, **fields)


def everything(model: onnx.ModelProto, batch: dict[str, Any]) -> dict[str, Any]:
    """Every float tensor of a model, rounded as its types say."""
    return dict(OrtActivations(Model(with_roundings(model))).run(batch))


def test_an_opset_whose_casts_cannot_be_written_is_refused(tmp_path: Path) -> None:
    onnx.save(model_of(SMALL_NET, 5), tmp_path / "m.onnx")
    with pytest.raises(QdqError, match="opset 5"):
        amp(tmp_path / "m.onnx", None, None, with_options(assume_range=8.0), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_overflows_stays_in_fp32_and_nothing_else_does(name: str) -> None:
    case: Overflowing = OVERFLOWING[name]
    done = amp(case.model, [dict(case.batch)], options=OPTIONS)
    found = floats(done.choice)
    assert {key for key, rule in found.items() if rule != "casts"} == case.float32
    extra = {key for key, rule in found.items() if rule == "casts"}
    assert PRODUCTS.isdisjoint(done.choice.operators[key][1] for key in extra)
    values = everything(done.model, dict(case.batch))
    assert all(np.isfinite(one).all() for one in values.values())
    assert done.output_loss is not None and done.output_loss < 1e-3
    assert not infer_types(done.model).conflicts


@pytest.mark.parametrize("name", OVERFLOWING)
def test_in_half_throughout_the_same_nets_overflow_or_hold_sums_beyond_fp16(name: str) -> None:
    from qdqtool.precision.assignment import TypeAssignment

    case = OVERFLOWING[name]
    values = everything(with_types(case.model, TypeAssignment(TensorProto.FLOAT16)), dict(case.batch))
    overflows = any(not np.isfinite(one).all() for one in values.values())
    # the executor adds in FP32, as tensor cores do: sums show in what is bounded, not in what is run
    assert overflows == (name in ("residual stream", "before BatchNormalization"))


@pytest.mark.parametrize("name", OVERFLOWING)
def test_bf16_holds_what_fp16_cannot(name: str) -> None:
    case = OVERFLOWING[name]
    done = amp(case.model, [dict(case.batch)], options=with_options(to="bf16"))
    assert not floats(done.choice) and stored_precision(done.model).assignment.rest == TensorProto.BFLOAT16  # type: ignore[union-attr]


def test_the_casts_that_are_told_are_the_casts_that_are_there(tmp_path: Path) -> None:
    case = OVERFLOWING["residual stream"]
    done = amp(case.model, [dict(case.batch)], options=OPTIONS)
    assert done.choice.casts == count_casts(done.model) == 6


@pytest.mark.parametrize("io", ["keep", "fp16"])
def test_amp_twice_is_amp_once(io: str) -> None:
    options = with_options(io=io)
    once = amp(model_of(SMALL_NET), batches(), options=options).model
    twice = amp(once, batches(2), options=options)
    assert twice.model.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    assert twice.unchanged and twice.notes[0].startswith("it already has ")


def test_amp_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    model, data = write_net(tmp_path), tmp_path / "d.npz"
    first = amp(model, data, options=OPTIONS).model
    second = amp(first, data, options=OPTIONS, output=tmp_path / "again.onnx").model
    assert first == tmp_path / "m.fp16.onnx" and first.read_bytes() == second.read_bytes()


def test_another_type_is_chosen_anew_and_said() -> None:
    half = amp(model_of(SMALL_NET), batches(), options=OPTIONS).model
    done = amp(half, batches(), options=with_options(to="bf16"))
    assert not done.unchanged and "chosen again" in done.notes[0]
    assert stored_precision(done.model).assignment.rest == TensorProto.BFLOAT16  # type: ignore[union-attr]


def test_a_typed_model_of_somebody_else_gets_fp32_where_it_overflows() -> None:
    case = OVERFLOWING["before BatchNormalization"]
    from qdqtool.precision.assignment import TypeAssignment

    foreign = with_types(case.model, TypeAssignment(TensorProto.FLOAT16))
    del foreign.metadata_props[:]
    done = amp(foreign, [dict(case.batch)], options=OPTIONS)
    assert set(floats(done.choice)) == case.float32


def test_inputs_and_outputs_keep_their_types_unless_told() -> None:
    kept = amp(model_of(SMALL_NET), batches(), options=OPTIONS).model
    half = amp(model_of(SMALL_NET), batches(), options=with_options(io="fp16")).model
    types = [[v.type.tensor_type.elem_type for v in (*m.graph.input, *m.graph.output)] for m in (kept, half)]
    assert types == [[TensorProto.FLOAT] * 2, [TensorProto.FLOAT16] * 2]
    assert count_casts(kept) == 2 and count_casts(half) == 0


def test_operators_that_are_named_stay_in_fp32() -> None:
    done = amp(model_of(SMALL_NET), batches(), options=with_options(keep_fp32=("^c2$",)))
    assert floats(done.choice) == {"c2": "kept"}


def test_a_model_with_pairs_keeps_its_scales_and_gets_a_half_rest() -> None:
    quantized = insert(model_of(SMALL_NET), data=batches(), options=qdqtool.InsertOptions(keep_float=0)).model
    done = amp(quantized, batches(), options=OPTIONS)
    scales = [
        {t.name: t.raw_data for t in model.graph.initializer if "scale" in t.name} for model in (quantized, done.model)
    ]
    assert scales[0] and scales[0] == scales[1] and set(floats(done.choice).values()) == {"int8"}
    assert not infer_types(done.model).conflicts


# ------------------------------------------------------------------ where ranges come from


def test_a_table_stands_in_for_data_and_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    case = OVERFLOWING["before BatchNormalization"]
    table = calibrate(case.model, [dict(case.batch)], qdqtool.CalibrationOptions("mse", progress=False))
    monkeypatch.setattr("qdqtool.runtime.session.run_session", lambda *_: pytest.fail("it was run"))
    done = amp(case.model, scales=table)
    assert set(floats(done.choice)) == case.float32 and done.output_loss is None
    assert done.ranges.source == "table"


def test_a_table_file_stands_in_for_data(tmp_path: Path) -> None:
    model = write_net(tmp_path)
    table = calibrate(model, tmp_path / "d.npz", QUIET)
    path = tmp_path / "s.json"
    path.write_text(table.to_json())
    assert amp(model, scales=path).model == tmp_path / "m.fp16.onnx"


def test_a_table_that_lacks_tensors_is_refused_with_their_names() -> None:
    with pytest.raises(QdqError, match=r"the table: .* x, c1, r1, c2, r2, g and 2 more; calibrate"):
        amp(model_of(SMALL_NET), scales=ScaleTable())


def test_assumed_ranges_decide_where_nothing_is_known() -> None:
    small = plan_types(model_of(SMALL_NET), options=AmpOptions(assume_range=10))
    large = plan_types(model_of(SMALL_NET), options=AmpOptions(assume_range=60_000))
    assert not floats(small.choice) and set(floats(large.choice)) == set(large.choice.operators)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "the values of the tensors are not known; give --data, or --scales with a table"),
        ({"data": [], "scales": ScaleTable()}, "both data and scales are given"),
        ({"data": [], "options": AmpOptions(assume_range=1)}, "--assume-range: replaces data and a table"),
        ({"scales": ScaleTable(), "options": AmpOptions(max_output_loss=0.1)}, "--max-output-loss: needs data"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(QdqError, match=match):
        amp(model_of(SMALL_NET), **given)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"to": "fp8"}, "'fp8' is not a type of 16 bits"),
        ({"io": "half"}, "'half' is not known"),
        ({"io": "fp16", "to": "bf16"}, "needs --to fp16, not bf16"),
        ({"max_output_loss": 1.5}, "is not between 0 and 1"),
        ({"max_output_loss": -0.1}, "is not between 0 and 1"),
        ({"assume_range": 0}, "is not a positive number"),
        ({"assume_range": float("inf")}, "is not a positive number"),
        ({"assume_range": float("nan")}, "is not a positive number"),
    ],
)
def test_options_that_mean_nothing_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(QdqError, match=match):
        AmpOptions(**fields)


def test_nan_in_the_data_is_refused_by_name() -> None:
    data = batches()
    data[0]["x"][0, 0, 0, 0] = np.nan
    with pytest.raises(QdqError, match="'x' holds NaN"):
        amp(model_of(SMALL_NET), data, options=OPTIONS)


# ------------------------------------------------------------------ types that inference does not find


def test_what_stands_behind_a_group_normalization_is_half() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w, float[4] s, float[4,4,3,3] v> {
 c = Conv<pads=[1,1,1,1]>(x, w) n = GroupNormalization<num_groups=2>(c, s, s) g = Sigmoid(n) m = Mul(n, g)
 y = Conv<pads=[1,1,1,1]>(m, v) }"""
    done = amp(model_of(text, 21, ir=10), batches(1), options=OPTIONS)
    assert done.choice.headline() == "5 operators in FP16, 0 in FP32, 2 Casts"


UNREADABLE = "g (float[1,4] x) => (float[1,4] y) <float[4,4] w> {{ a = {op}(x) b = MatMul(a, w) y = Relu(b) }}"


@pytest.mark.parametrize(
    ("op", "said"),
    [("ImageScaler", "a .ImageScaler. makes it"), ("trt.Quant", "TensorRT needs a plugin of your own for trt::Quant")],
)
def test_a_model_in_which_nothing_can_be_half_is_refused_with_the_cause(op: str, said: str, tmp_path: Path) -> None:
    model, options = model_of(UNREADABLE.format(op=op)), AmpOptions(assume_range=10.0)
    with pytest.raises(QdqError, match=f"no operator .*: .*{said}"):
        amp(model, options=options, output=tmp_path / "h.onnx")
    assert not list(tmp_path.iterdir())
    told = plan_types(model, options=options)
    assert [row[2] for row in told.rows()[1:]] == ["operator", "untyped", "untyped"]
    assert re.match(rf"  FP32 .*unknown type: 2 operators \(b, y\): a \({op.replace('.', '::')}\)", told.summary()[2])


def test_where_something_is_half_a_foreign_operator_is_a_note() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[4,4] w> { b = MatMul(x, w) y = trt.Quant(b) }"
    done = amp(model_of(text), options=AmpOptions(assume_range=10.0))
    assert done.choice.half == 1 and re.match(r"TensorRT needs a plugin .*trt::Quant \(1 node\)", done.notes[0])


# ------------------------------------------------------------------ loss, results


def test_a_loss_that_is_asked_for_is_met_by_operators_in_fp32() -> None:
    plain = amp(model_of(SMALL_NET), batches(), options=OPTIONS)
    assert plain.output_loss
    less = amp(model_of(SMALL_NET), batches(), options=with_options(max_output_loss=plain.output_loss / 10))
    assert less.output_loss is not None and less.output_loss <= plain.output_loss / 10 and not less.misses
    assert set(floats(less.choice).values()) <= {"loss", "casts"} and "loss" in floats(less.choice).values()


def test_no_loss_at_all_leaves_nothing_in_half() -> None:
    done = amp(model_of(SMALL_NET), batches(), options=with_options(max_output_loss=0.0))
    assert done.output_loss == 0 and done.choice.half == 0 and not done.misses


def test_a_loss_that_half_outputs_alone_make_is_told_as_missed() -> None:
    done = amp(model_of(SMALL_NET), batches(), options=with_options(max_output_loss=0.0, io="fp16"))
    assert done.misses and done.output_loss


def test_results_say_what_was_done(tmp_path: Path) -> None:
    case = OVERFLOWING["before BatchNormalization"]
    done = amp(case.model, [dict(case.batch)], options=OPTIONS)
    assert repr(done).startswith("<AmpResult: ModelProto net: 3 operators in FP16, 2 in FP32, 4 Casts; ")
    assert "2 operators (c, n)" in str(done)
    assert done.rows()[1][:3] == ("c", "Conv", "range") and "1e+05; 65504 / 2" in done.rows()[1][3]
    assert "<th>reason</th>" in done._repr_html_()
    facts = done.to_json()
    assert (facts["half"], facts["casts"], facts["to"], facts["samples"]) == (3, 4, "fp16", 1)
    assert facts["float32"][0]["rule"] == "range" and facts["output_loss"] == done.output_loss


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    model = write_net(tmp_path)
    planned = plan_types(model, tmp_path / "d.npz", options=OPTIONS)
    assert planned.model is None and planned.choice.half == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "m.onnx"]


def test_the_input_stays_as_it_is_and_is_never_the_output(tmp_path: Path) -> None:
    model = write_net(tmp_path)
    before = model.read_bytes()
    with pytest.raises(QdqError, match=f"{model.name}: .*never overwritten"):
        amp(model, tmp_path / "d.npz", options=OPTIONS, output=model)
    amp(model, tmp_path / "d.npz", options=OPTIONS)
    assert model.read_bytes() == before


def test_weights_are_stored_in_the_type_in_which_they_are_read() -> None:
    done = amp(model_of(SMALL_NET), batches(), options=with_options(keep_fp32=("^c2$",)))
    kinds = {tensor.name: tensor.data_type for tensor in done.model.graph.initializer}
    assert kinds == {"w1": 10, "b1": 10, "w2": 1, "fc": 10}
    original = {t.name: numpy_helper.to_array(t) for t in model_of(SMALL_NET).graph.initializer}
    found = {t.name: numpy_helper.to_array(t) for t in done.model.graph.initializer}
    np.testing.assert_array_equal(found["w1"], original["w1"].astype(np.float16))
    np.testing.assert_array_equal(found["w2"], original["w2"])


# ------------------------------------------------------------------ weights beside the model


def external(folder: Path, side: int = 512) -> Path:
    """A MatMul whose weight lies in a file of its own."""
    path = folder / "m.onnx"
    model = model_of(
        f"g (float[1,{side}] x) => (float[1,{side}] y) <float[{side},{side}] w> {{ a = MatMul(x, w) y = Relu(a) }}"
    )
    onnx.save_model(model, path, save_as_external_data=True, location="m.data", size_threshold=1024)
    return path


def test_weights_beside_the_model_are_rounded_into_a_file_beside_the_output(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    done = amp(path, options=AmpOptions(assume_range=2.0))
    made = onnx.load(done.model)
    weight = numpy_helper.to_array(made.graph.initializer[0])
    original = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    np.testing.assert_array_equal(weight, original.astype(np.float16))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(list(tmp_path.iterdir())) == 4


def test_a_sum_over_a_weight_beside_the_model_is_bounded(tmp_path: Path) -> None:
    path = external(tmp_path)
    assert floats(plan_types(path, options=AmpOptions(assume_range=1e3)).choice)["a"] == "product"


def test_the_same_file_as_insert_with_a_half_rest(tmp_path: Path) -> None:
    model, data = write_net(tmp_path), tmp_path / "d.npz"
    given = qdqtool.InsertOptions(calibration=QUIET, keep_float=0)
    quantized = insert(model, data=data, options=given).model
    typed = amp(quantized, data, options=OPTIONS).model
    options = qdqtool.InsertOptions(calibration=QUIET, keep_float=0, rest="fp16")
    at_once = insert(model, data=data, options=options, output=tmp_path / "once.onnx").model
    assert Path(typed).read_bytes() == Path(at_once).read_bytes()
