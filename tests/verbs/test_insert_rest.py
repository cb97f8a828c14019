# SPDX-License-Identifier: Apache-2.0
"""insert --rest, and the way back: types in one step, the same as amp's, out again to the byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import is_external
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring import typed_search
from qdqtool.metadata import stored_table
from qdqtool.precision.assignment import stored_precision
from qdqtool.precision.widen import is_typed
from qdqtool.verbs import typed_rest
from qdqtool.verbs.amp import amp
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions, InsertResult
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.cli.command import run
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed import BF16, FP16
from tests.verbs.small_net import write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

DATA = np.random.default_rng(3).normal(size=(6, 4, 8, 8)).astype(np.float32)
TYPED = InsertOptions(rest="fp16")
BIASED = SMALL_NET.replace("float[4,3] fc", "float[4,3] fc, float[3] b2").replace("Gemm(f, fc)", "Gemm(f, fc, b2)")


def inserted(folder: Path, name: str = "q.onnx", **options: Any) -> InsertResult[Path]:
    model = folder / "m.onnx" if (folder / "m.onnx").exists() else write_net(folder)
    model.write_bytes(model_of(BIASED).SerializeToString())
    return insert(
        model, data=folder / "d.npz", options=InsertOptions(**{"keep_float": 1, **options}), output=folder / name
    )


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


# ---------------------------------------------------------------------- in


@pytest.mark.parametrize(("rest", "kind"), [("fp16", FP16), ("bf16", BF16)])
def test_what_is_not_int8_gets_the_type(tmp_path: Path, rest: Any, kind: int) -> None:
    result = inserted(tmp_path, rest=rest)
    made = onnx.load(result.model)
    types = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert (types["b1"], types["b2"]) == (onnx.TensorProto.FLOAT, kind)  # b1 is read in an INT8 layer
    assert result.rest is not None
    assert result.rest.name == rest
    assert f"3 operators in {rest.upper()}, 0 in FP32, 4 in quantized layers, 2 Casts" in result.rest.summary()
    assert {t.data_type for t in made.graph.initializer if t.name.endswith("_scale")} == {1}


@pytest.mark.parametrize(
    ("version", "typed"), [(None, False), ("8502", False), ("10.3.0", False), ("11.1.0", True), ("11.4.1", True)]
)
def test_the_version_decides_where_nothing_is_asked_for(tmp_path: Path, version: str | None, typed: bool) -> None:
    result = inserted(tmp_path, plan=PlanOptions(trt_version=version))
    assert is_typed(Model(onnx.load(result.model))) is typed
    assert (result.rest is not None) is typed
    assert ("--rest fp16" in result.rest_note) is (version is None)


def test_without_data_the_rest_stays_fp32_and_that_is_said() -> None:
    result = insert(model_of(SMALL_NET), options=InsertOptions(plan=PlanOptions(trt_version="11.1.0")))
    assert not is_typed(Model(result.model))
    assert "give --data or --scales" in result.rest_note
    with pytest.raises(QdqError, match=r"--rest fp16: .*values"):
        insert(model_of(SMALL_NET), options=TYPED)


def test_a_table_in_the_metadata_says_the_values(tmp_path: Path) -> None:
    first = inserted(tmp_path)
    again = insert(first.model, options=TYPED, output=tmp_path / "again.onnx")
    assert again.rest is not None
    assert is_typed(Model(onnx.load(again.model)))
    with pytest.raises(QdqError, match="--rest fp16: which operators"):
        insert(first.model, options=InsertOptions(rest="fp16", requantize=True), output=tmp_path / "new.onnx")


def test_amp_of_the_fp32_model_gives_the_same_file(tmp_path: Path) -> None:
    inserted(tmp_path, "q32.onnx", rest="fp32")
    inserted(tmp_path, "q16.onnx", rest="fp16")
    amp(tmp_path / "q32.onnx", data=tmp_path / "d.npz", output=tmp_path / "a.onnx")
    assert same(tmp_path / "a.onnx", tmp_path / "q16.onnx")


def test_amp_by_the_table_that_insert_was_given_gives_the_same_file(tmp_path: Path) -> None:
    table = qdqtool.calibrate(write_net(tmp_path), tmp_path / "d.npz")
    for name, options in (("q32.onnx", InsertOptions()), ("q16.onnx", TYPED)):
        insert(tmp_path / "m.onnx", scales=table, options=options, output=tmp_path / name)
    amp(tmp_path / "q32.onnx", scales=table, output=tmp_path / "a.onnx")
    assert same(tmp_path / "a.onnx", tmp_path / "q16.onnx")


def test_scales_and_table_are_those_of_the_fp32_model(tmp_path: Path) -> None:
    full, half = inserted(tmp_path, "q32.onnx", rest="fp32"), inserted(tmp_path, "q16.onnx", rest="fp16")
    assert {n: s.hex() for n, s in full.table.scales.items()} == {n: s.hex() for n, s in half.table.scales.items()}
    one, other = (stored_table(onnx.load(result.model)) for result in (full, half))
    assert one is not None
    assert other is not None
    assert one.to_json() == other.to_json()


def test_what_fp16_does_not_hold_stays_fp32(tmp_path: Path) -> None:
    model = model_of(SMALL_NET.replace("g = Global", "big = Constant<value = float {1e6}>() h = Mul(r2, big) g = Global").replace("Pool(r2)", "Pool(h)"))  # fmt: skip # noqa: E501
    result = insert(model, data=DATA, options=TYPED)
    assert result.rest is not None
    assert {"h", "g", "f"} <= result.rest.assignment.float32
    assert "in FP32: " in result.rest.summary()
    stays = result.rest.to_json()["fp32"]
    assert {one["node"] for one in stays} >= {"h"}


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["fp16", "bf16"])
def test_values_counted_for_scales_choose_the_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: Any) -> None:
    """All data were run a second time, through the model with its pairs: up to a third of the whole command."""
    one = inserted(tmp_path, "one.onnx", rest=rest)

    def never(*_: Any) -> Any:
        raise AssertionError("the data are walked again")

    monkeypatch.setattr(typed_search, "_suffice", lambda *_: False)
    other = inserted(tmp_path, "other.onnx", rest=rest)
    monkeypatch.undo()
    monkeypatch.setattr(typed_rest, "observe_ranges", never)
    again = inserted(tmp_path, "again.onnx", rest=rest)
    assert same(one.model, other.model) and same(one.model, again.model)
    assert one.output_loss == other.output_loss == again.output_loss
    with pytest.raises(AssertionError, match="walked again"):
        inserted(tmp_path, "points.onnx", rest=rest, whole_table=False)  # of the other tensors nothing is known


def test_the_loss_is_that_of_the_types(tmp_path: Path) -> None:
    losses = [inserted(tmp_path, f"{rest}.onnx", rest=rest).output_loss for rest in ("fp32", "bf16")]
    values = [loss.value for loss in losses if loss is not None and loss.value is not None]
    assert values[0] < values[1]  # BF16 has 8 bits


def test_a_typed_model_keeps_its_types(tmp_path: Path) -> None:
    half = amp(write_net(tmp_path), data=tmp_path / "d.npz", output=tmp_path / "h.onnx").model
    done = insert(half, data=tmp_path / "d.npz", output=tmp_path / "q.onnx")
    assert is_typed(Model(onnx.load(done.model)))
    assert done.rest is None
    assert not done.rest_note
    with pytest.raises(QdqError, match=r"h\.onnx: has FP16 or BF16 tensors.*--rest"):
        insert(half, data=tmp_path / "d.npz", options=TYPED, output=tmp_path / "r.onnx")


def test_external_weights_are_rounded_into_a_data_file(tmp_path: Path) -> None:
    write_net(tmp_path)
    (tmp_path / "out").mkdir()
    text = SMALL_NET.replace("float[4] b1", "float[4] b1, float[1,4,8,8] add").replace("Relu(c2)", "Add(c2, add)")
    large = model_of(text)
    onnx.save(model_of(text), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=600)
    table = qdqtool.calibrate(tmp_path / "m.onnx", tmp_path / "d.npz")
    result = insert(tmp_path / "m.onnx", scales=table, options=TYPED, output=tmp_path / "out/q.onnx")
    inside = insert(large, scales=table, options=TYPED).model
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"q.onnx", "q.onnx.data", "m.data"}
    lean = onnx.load(result.model, load_external_data=False)
    assert any(is_external(tensor) for tensor in lean.graph.initializer)
    whole = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(result.model).graph.initializer}
    for tensor in inside.graph.initializer:
        assert np.array_equal(whole[tensor.name], onnx.numpy_helper.to_array(tensor)), tensor.name


def test_without_a_weight_to_round_no_data_file_is_written(tmp_path: Path) -> None:
    write_net(tmp_path)
    onnx.save(
        model_of(SMALL_NET), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=500
    )
    table = qdqtool.calibrate(tmp_path / "m.onnx", tmp_path / "d.npz")
    (tmp_path / "out").mkdir()
    insert(tmp_path / "m.onnx", scales=table, options=TYPED, output=tmp_path / "out/q.onnx")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"q.onnx", "m.data"}  # all are quantized: FP32


# ---------------------------------------------------------------------- out


def peeled(folder: Path, model: Path, name: str, **options: Any) -> tuple[Path, Path, tuple[str, ...]]:
    given = PeelOptions(trt_version="8601", **options)
    done = peel(model, given, output=folder / f"{name}.onnx", cache=folder / f"{name}.cache")
    return done.model, folder / f"{name}.cache", done.notes


@pytest.mark.parametrize("rest", ["fp16", "bf16"])
def test_with_the_source_the_model_and_the_cache_come_back_to_the_byte(tmp_path: Path, rest: Any) -> None:
    half, full = inserted(tmp_path, "q16.onnx", rest=rest), inserted(tmp_path, "q32.onnx", rest="fp32")
    model, cache, notes = peeled(tmp_path, half.model, "half", source=tmp_path / "m.onnx")
    assert same(model, tmp_path / "m.onnx")
    assert same(cache, peeled(tmp_path, full.model, "full")[1])
    assert not any("rounded" in note for note in notes)


def test_without_the_source_the_types_come_out_and_weights_stay_rounded(tmp_path: Path) -> None:
    half, full = inserted(tmp_path, "q16.onnx", rest="fp16"), inserted(tmp_path, "q32.onnx", rest="fp32")
    model, cache, notes = peeled(tmp_path, half.model, "half")
    made, plain = onnx.load(model), onnx.load(peeled(tmp_path, full.model, "full")[0])
    assert not is_typed(Model(made))
    assert same(cache, tmp_path / "full.cache")
    assert list(made.graph.node) == list(plain.graph.node)
    assert not made.metadata_props
    assert [note for note in notes if "FP16: --source restores" in note]
    values = [{t.name: onnx.numpy_helper.to_array(t) for t in one.graph.initializer} for one in (made, plain)]
    assert np.array_equal(values[0]["b2"], values[1]["b2"].astype(np.float16))
    assert np.array_equal(values[0]["b1"], values[1]["b1"])  # read in an INT8 layer
    assert np.array_equal(values[0]["w1"], values[1]["w1"])  # quantized: it is read in FP32


def test_a_weight_that_changed_is_written_into_the_source(tmp_path: Path) -> None:
    half = inserted(tmp_path, "q16.onnx", rest="fp16").model
    made = onnx.load(half)
    for tensor in made.graph.initializer:
        if tensor.name == "b2":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float16([1, 2, 3]), "b2"))
    half.write_bytes(made.SerializeToString())
    model, _, notes = peeled(tmp_path, half, "half", source=tmp_path / "m.onnx")
    found = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    assert found["b2"].tolist() == [1, 2, 3]
    assert any("1 weights differ" in note for note in notes)


def test_a_model_that_was_typed_before_its_pairs_stays_typed(tmp_path: Path) -> None:
    half = amp(write_net(tmp_path), data=tmp_path / "d.npz", output=tmp_path / "h.onnx").model
    done = insert(half, data=tmp_path / "d.npz", output=tmp_path / "q.onnx")
    model, _, _ = peeled(tmp_path, done.model, "p", source=half)
    assert same(model, half)
    assert stored_precision(onnx.load(model)) is not None


# ---------------------------------------------------------------------- the command line


@pytest.mark.slow
def test_the_command_line_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["insert", write_net(tmp_path), "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx"]
    shapes, said = "--shapes=x:1x4x8x8", run(capsys, *words)
    assert re.search("TensorRT 11 .*--rest fp16", said.out)
    said = run(capsys, *words, "--rest", "fp16", "--trt-version", "10.3.0")
    assert "1 operator in FP16, 0 in FP32, 6 in quantized layers, 2 Casts" in said.out
    assert (
        f"next: trtexec --onnx={tmp_path}/q.onnx {shapes} --stronglyTyped --saveEngine={tmp_path}/q.engine\n"
        in said.out
    )
    said = run(capsys, *words, "--trt-version", "11.1.0")
    assert f"next: trtexec --onnx={tmp_path}/q.onnx {shapes} --saveEngine={tmp_path}/q.engine\n" in said.out
    said = run(capsys, *words, "--target", "rtx", "--rest", "bf16", "--json")
    assert json.loads(said.out)["rest"]["type"] == "bf16"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--rest", "fp16", "--trt-version", "8502"], "TensorRT 8.5.2 chooses the float types itself"),
        (["--rest", "fp16", "--target", "dla"], "a DLA takes types from the file from TensorRT 11.4.1 on"),
        (["--rest", "bf16"], "give --data or --scales"),
    ],
)
def test_refusals_end_with_2_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    model = write_net(tmp_path)
    data = [] if words == ["--rest", "bf16"] else ["--data", tmp_path / "d.npz"]
    said = run(capsys, "insert", model, *data, *words, "-o", tmp_path / "q.onnx")
    assert said.code == 2
    assert part in said.err
    assert not (tmp_path / "q.onnx").exists()
