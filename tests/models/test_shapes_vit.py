# SPDX-License-Identifier: Apache-2.0
"""The small vision transformer: its pictures repeat, its attention is INT8, and it names as many as in float."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, insert
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from tests.ort_session import session_of

NAME, COUNT = "shapes_vit.onnx", 200
ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.fixture(scope="module")
def shapes(models: Path) -> Iterator[ModuleType]:
    """models/shapes.py, imported as the training script imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(models))
        yield importlib.import_module("shapes")
        sys.modules.pop("shapes", None)


def named(model: onnx.ModelProto, images: Any) -> Any:
    session = session_of(model)
    return session.run(None, {"images": images})[0].argmax(1)


def test_it_writes_the_arrays_that_verbs_read(
    shapes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["shapes.py", "--out", str(tmp_path / "new")])
    images, labels = shapes.draw(1, 2)
    shapes.write_arrays("s", images, {"images": images, "y": labels})
    assert [dict(np.load(tmp_path / "new" / f"s_{part}.npz")).keys() for part in ("calib", "test")] == [
        {"images"},
        {"images", "y"},
    ]


def test_the_file_passes_the_checker_and_is_small(models: Path) -> None:
    model = onnx.load(models / NAME)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)] and model.ir_version == 7
    assert (models / NAME).stat().st_size < 700_000
    assert sum(node.op_type == "LayerNormalization" for node in model.graph.node) == 9


def test_pictures_repeat_are_steps_of_a_byte_and_hold_every_shape(shapes: ModuleType) -> None:
    images, labels = shapes.draw(3, 120)
    again, _ = shapes.draw(3, 120)
    other, _ = shapes.draw(4, 120)
    assert images.dtype == np.float32 and images.shape == (120, 3, 32, 32) and np.array_equal(images, again)
    assert not np.array_equal(images, other) and set(labels.tolist()) == set(range(len(shapes.SHAPES)))
    assert (
        np.array_equal(images, (np.rint(images * 255) / 255).astype(np.float32))
        and 0 <= images.min() < images.max() <= 1
    )
    assert len({shapes.CALIB[0], shapes.TEST[0], shapes.VALIDATION[0]}) == 3


@pytest.mark.parametrize("number", range(12))
def test_a_shape_fills_a_part_of_its_circle_and_is_no_other(shapes: ModuleType, number: int) -> None:
    grid = np.linspace(-1, 1, 41)
    u, v = grid[None, :], grid[:, None]
    masks = [shape(u, v) & (np.hypot(u, v) < 2) for shape in shapes.SHAPES.values()]
    assert 0.1 < masks[number].mean() < 0.75
    assert all((masks[number] != mask).mean() > 0.03 for at, mask in enumerate(masks) if at != number)


@pytest.mark.slow
def test_attention_in_int8_names_what_float_names(models: Path, shapes: ModuleType) -> None:
    images, labels = shapes.draw(shapes.TEST[0], COUNT)
    plain = onnx.load(models / NAME)
    calib = [{"images": one[None]} for one in shapes.draw(shapes.CALIB[0], 16)[0]]
    options = InsertOptions(
        plan=PlanOptions("rtx", attention="int8"), calibration=CalibrationOptions("mse", progress=False), keep_float=0
    )
    done = insert(plain, data=calib, options=options)
    assert [one.int8 for one in done.plan.attentions] == [True] * 4
    float_names, int8_names = named(plain, images), named(done.model, images)
    assert (float_names == labels).mean() > 0.7
    assert (float_names == int8_names).mean() > 0.95 and (int8_names == labels).mean() > 0.7
