# SPDX-License-Identifier: Apache-2.0
"""What `insert` does with data where nothing is said: `auto`, and few operators in float where that takes away much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from qdqtool import ConditionOptions, InsertOptions, condition, insert
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring import policies
from qdqtool.measuring.keep_float import OutputLoss
from qdqtool.metadata import stored_table
from qdqtool.observers.options import CalibrationOptions
from qdqtool.trtversion import TrtVersion
from tests.conditioning.nets import SILU, samples, spread
from tests.conftest import shared_folder
from tests.graphs import model_of
from tests.laws import law_checks as laws

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAIN = InsertOptions(plan=PlanOptions(float_heads="none"), calibration=CalibrationOptions(progress=False))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any operator that takes a hundredth of the loss away is worth its float."""
    monkeypatch.setattr(policies, "AUTO_FLOOR", 0.0)
    monkeypatch.setattr(policies, "AUTO_GAIN", 0.01)
    monkeypatch.setattr(policies, "AUTO_MACS", 1.0)
    monkeypatch.setattr(policies, "AUTO_OPERATORS", 1)


def placed(options: InsertOptions = PLAIN, model: onnx.ModelProto | None = None, **data: object) -> tuple[str, int]:
    """The method of the table, and how many operators accuracy keeps in float."""
    done = insert(model or spread(SILU), options=options, **(data or {"data": [{"x": samples()}]}))  # type: ignore[arg-type]
    table = stored_table(done.model)
    kept = sum(refusal.rule == "keep-float" for refusal in done.plan.refusals)
    return "" if table is None else str(table.provenance.method), kept


@pytest.mark.usefixtures("eager")
def test_auto_and_what_it_keeps() -> None:
    method, kept = placed()
    assert method == "auto" and kept > 0
    assert placed(replace(PLAIN, keep_float=0)) == ("auto", 0)
    assert placed(replace(PLAIN, calibration=CalibrationOptions("max", progress=False), keep_float=1)) == ("max", 1)


@pytest.mark.usefixtures("eager")
def test_nothing_is_kept_of_so_few_operators_that_each_is_much_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "AUTO_OPERATORS", 4)
    assert placed() == ("auto", 0)
    assert placed(replace(PLAIN, keep_float=1)) == ("auto", 1)


def test_nothing_is_kept_of_a_sound_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "AUTO_FLOOR", 0.9)
    assert placed() == ("auto", 0)


@pytest.mark.usefixtures("eager")
def test_where_it_cannot_be() -> None:
    quantized = insert(spread(SILU), data=[{"x": samples()}], options=replace(PLAIN, keep_float=0)).model
    assert placed(data=iter([{"x": samples()}])) == ("mse", 0)
    assert placed(scales=stored_table(quantized))[1] == 0
    dla = replace(PLAIN, plan=PlanOptions(target="dla", trt_version=TrtVersion(8, 5, 2)))
    assert placed(dla) == ("auto", 0)
    assert placed(model=quantized)[1] == 0
    with pytest.raises(QdqError, match="add --requantize"):
        placed(replace(PLAIN, keep_float="auto"), model=quantized)


def test_integer_outputs_tell_no_loss() -> None:
    model = spread(SILU)
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["y"], ["top"], axis=1))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("top", onnx.TensorProto.INT64, None))
    assert placed(model=model) == ("auto", 0)
    with pytest.raises(QdqError, match="has no float32 output to compare"):
        placed(replace(PLAIN, keep_float=1), model=model)


@pytest.mark.usefixtures("eager")
def test_mse_for_weights_that_condition_edited() -> None:
    assert placed(replace(PLAIN, condition="auto"))[0] == "mse"
    done = condition(spread(SILU), [{"x": samples()}], ConditionOptions(plan=PLAIN.plan))
    assert done.done.edits
    assert placed(model=done.model)[0] == "mse"


@pytest.mark.usefixtures("eager")
def test_nothing_is_kept_by_default_once_biases_are_corrected() -> None:
    clipped = ConditionOptions(steps=("correct",), method="percentile=90", plan=PLAIN.plan)
    done = condition(spread(SILU), [{"x": samples()}], clipped)
    assert done.done.count("correct")
    assert placed(model=done.model) == ("mse", 0)
    assert placed(replace(PLAIN, keep_float="auto"), model=done.model)[1] > 0
    smoothed = condition(spread(SILU), [{"x": samples()}], replace(clipped, steps=("smooth",)))
    assert placed(model=smoothed.model)[1] > 0


CORPUS = (shared_folder() or Path()) / "corpus"
LIKE_OTHERS = {
    f"light_{name}" for name in ("vgg19", "zfnet512", "densenet121", "resnet50", "inception_v1")
}  # and large
EVERY = [
    file
    for folder in ("models", "structure", "qdq")
    for file in sorted((CORPUS / folder).glob("*.onnx"))
    if file.stem not in LIKE_OTHERS
]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("file", EVERY, ids=lambda file: file.stem)
def test_the_defaults_work_wherever_mse_does(file: Path, tmp_path: Path) -> None:
    if laws.runtime_complaint(file):
        pytest.skip("onnxruntime cannot run the file")
    data = [laws.inputs_for(laws.session_of(file), seed=seed) for seed in range(2)]
    quiet = CalibrationOptions("mse", progress=False)
    try:
        insert(file, output=tmp_path / "q.onnx", data=data, options=InsertOptions(calibration=quiet, keep_float=0))
    except QdqError as error:
        pytest.skip(error.reason)
    done = insert(
        file,
        output=tmp_path / "q.onnx",
        data=data,
        options=InsertOptions(calibration=CalibrationOptions(progress=False)),
    )
    assert done.inserted.added or not done.plan.points or done.inserted.kept


def test_a_graph_cut_into_too_many_dla_subgraphs_is_warned_of() -> None:
    ops = "".join(f" t{i + 1} = {'Exp' if i % 2 else 'Tanh'}(t{i})" for i in range(34))
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w> {{ t0 = Conv(x, w){ops} y = Conv(t34, w) }}"
    plan = PlanOptions(target="dla", trt_version=TrtVersion(11, 4, 1), float_heads="none")
    (warning,) = insert(model_of(text), options=InsertOptions(plan=plan)).build_warnings[:1]
    assert "DLA subgraphs, and a DLA core of Orin holds 16" in warning
    assert insert(spread(SILU), options=InsertOptions(plan=plan)).build_warnings == ()


def test_a_result_has_the_warnings_that_the_command_line_prints() -> None:
    result = insert(spread(SILU))
    assert result.warnings == (result.estimate_warning,) and "estimated without data" in result.estimate_warning
    lost = replace(result, output_loss=OutputLoss(0.4, 4), overwrites="scales")
    assert lost.warnings == (lost.overwrite_warning, lost.estimate_warning, lost.loss_warning)
    assert "may lose much in INT8" in lost.loss_warning and len(repr(lost)) < 300
    missed = replace(result, output_loss=OutputLoss(0.02, 8, searched=0.03), max_output_loss=0.025)
    assert missed.misses and "is not met" in missed.loss_warning
    assert not replace(missed, max_output_loss=0.03).misses
