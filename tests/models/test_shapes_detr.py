# SPDX-License-Identifier: Apache-2.0
"""The small DETR: its scenes repeat, its boxes stay in float, and INT8 finds what FP32 finds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool import InsertOptions, insert
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.observers.options import CalibrationOptions
from qdqtool.passes.insert import Inserted

NAME, COUNT = "shapes_detr.onnx", 100
BOXES = {f"/{name}/MatMul" for name in ("token_box/token_box.2", *(f"boxes.{at}/boxes.{at}.2" for at in range(3)))}
pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.fixture(scope="module")
def scripts(models: Path) -> Iterator[ModuleType]:
    """models/shape_detections.py, imported as the training script imports it."""
    names = ("shape_detections", "shape_scenes", "shapes", "detection_map")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(models))
        yield importlib.import_module(names[0])
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def scenes(scripts: ModuleType) -> ModuleType:
    return sys.modules["shape_scenes"]


def inserted(models: Path, scenes: ModuleType, **plan: str) -> Inserted:
    calib = [{"images": one[None]} for one in scenes.draw(scenes.CALIB[0], 16)["images"]]
    options = InsertOptions(
        plan=PlanOptions("rtx", **plan),  # type: ignore[arg-type]
        calibration=CalibrationOptions("mse", progress=False),
        keep_float=0,
    )
    return insert(onnx.load(models / NAME), data=calib, options=options)


def test_the_file_passes_the_checker_and_is_small(models: Path) -> None:
    model = onnx.load(models / NAME)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)] and model.ir_version == 7
    assert (models / NAME).stat().st_size < 800_000
    sides = [[axis.dim_value for axis in one.type.tensor_type.shape.dim][1:] for one in model.graph.output]
    assert sides == [[12, 6], [12, 4]]


@pytest.mark.slow
def test_the_heads_that_are_named_are_those_that_are_counted(models: Path) -> None:
    left, named = (line for line in insert(onnx.load(models / NAME)).summary() if "detection heads" in line)
    assert left.endswith(f"; {len(BOXES)} detection heads")
    assert {part.split()[0] for part in named.removeprefix("detection heads in float: ").split(", ")} == BOXES


def test_scenes_repeat_and_their_boxes_lie_around_shapes_that_do_not_touch(scenes: ModuleType) -> None:
    one, again, other = scenes.draw(3, 60), scenes.draw(3, 60), scenes.draw(4, 60)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["images"], other["images"])
    assert one["images"].dtype == np.float32 and one["images"].shape == (60, 3, 64, 64)
    assert np.array_equal(one["images"], (np.rint(one["images"] * 255) / 255).astype(np.float32))
    assert set(one["labels"].tolist()) == set(range(len(scenes.NAMES))) and set(one["scene"].tolist()) == set(range(60))
    sizes = one["boxes"][:, 2:] - one["boxes"][:, :2]
    assert (one["boxes"] >= 0).all() and (one["boxes"] <= 64).all() and sizes.min() >= 3 and sizes.max() <= 28
    assert len({scenes.CALIB[0], scenes.TEST[0], scenes.VALIDATION[0]}) == 3


@pytest.mark.parametrize("decoder", ["float", "int8"])
def test_all_box_heads_stay_in_float_and_no_pair_stands_on_a_reference(models: Path, decoder: str) -> None:
    view = GraphView(onnx.load(models / NAME).graph)
    plan = make_plan(view, PlanOptions("rtx", decoder=decoder, attention="int8"))  # type: ignore[arg-type]
    assert {head.name for head in plan.heads if head.label == "regression"} == BOXES
    weights = {view.producers[read.node].name for point in plan.weights for read in point.reads}
    assert not weights & BOXES and not any("/at.0" in name for name in weights), "at.0 reads boxes"
    makers = {maker.op for point in plan.activations if (maker := view.producer(point.tensor)) is not None}
    assert not makers & {"Sigmoid", "Log", "Sub", "Div", "Clip", "Sin", "Cos"}
    inside = {name for name in weights if name.startswith(("/layers.", "/at", "/boxes.", "/classes."))}
    of_image = {f"/layers.{layer}/cross/{what}/MatMul" for layer in range(3) for what in ("key", "value")}
    assert inside == of_image if decoder == "float" else inside > of_image
    int8 = {one.name for one in plan.attentions if one.int8}
    assert len(int8) == (1 if decoder == "float" else 7) and len(plan.attentions) == 7


@pytest.mark.slow
def test_compare_finds_each_row_inside_the_decoder_again(models: Path, scenes: ModuleType) -> None:
    done = inserted(models, scenes)
    data = [{"images": one[None]} for one in scenes.draw(scenes.TEST[0], 8)["images"]]
    found = qdqtool.compare(onnx.load(models / NAME), done.model, data)
    assert any("rows are matched by the token" in note and "of 96" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["float", "int8"])
def test_int8_finds_what_fp32_finds_while_boxes_and_references_stay_in_float(
    models: Path, scripts: ModuleType, scenes: ModuleType, decoder: str
) -> None:
    judged = scenes.draw(scenes.TEST[0], COUNT)

    def precision(model: onnx.ModelProto) -> float:
        found = scripts.run(model.SerializeToString(), judged["images"])
        return float(scripts.figures(scripts.detections(*found), judged)["ap50_95"])

    exact = precision(onnx.load(models / NAME))
    assert exact > 0.5 and precision(inserted(models, scenes, decoder=decoder).model) > exact - 0.02
