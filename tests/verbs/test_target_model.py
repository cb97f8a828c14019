# SPDX-License-Identifier: Apache-2.0
"""What judges run beside models as they are written: caches, simulated, and engines; and models that find nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.data.loader import DataOptions
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.detections import FINDS_NOTHING
from qdqtool.verbs.build import build
from qdqtool.verbs.build_options import BuildOptions, parse_shape_ranges
from qdqtool.verbs.evaluate import evaluate
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.infer import infer
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from qdqtool.verbs.target_model import AS_WRITTEN
from tests.detector_model import write_detector, write_images
from tests.fake_tensorrt import installed
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = """g (float[N, 3, 4, 4] x) => (float[N, 3, 1, 1] y) <float[3, 3, 1, 1] w, float[3, 3, 1, 1] v>
{ c = Conv(x, w)  r = Relu(c)  d = Conv(r, v)  s = Relu(d)  y = GlobalAveragePool(s) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A classifier, its Q/DQ model with two caches, and data with classes."""
    (tmp_path / "m.onnx").write_bytes(model_of(NET, 13).SerializeToString())
    values = np.random.default_rng(0).normal(size=(8, 3, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=values, y=np.arange(8) % 3)
    np.savez(tmp_path / "c.npz", x=values)
    insert(
        tmp_path / "m.onnx", data=tmp_path / "c.npz", options=InsertOptions(keep_float=0), output=tmp_path / "q.onnx"
    )
    for target in ("gpu", "dla"):
        peel(
            tmp_path / "q.onnx",
            PeelOptions("8502", target),
            output=tmp_path / f"{target}.onnx",
            cache=tmp_path / f"{target}.cache",
        )
    return tmp_path


def judged(folder: Path, model: str, **options: Any) -> Any:
    return evaluate(folder / model, folder / "d.npz", None, EvaluateOptions(**options))


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_a_cache_is_judged_by_simulation(target: str, folder: Path) -> None:
    cache = folder / f"{target}.cache"
    found = judged(folder, "m.onnx", cache=cache, target=target, baseline=folder / "m.onnx")
    assert found.how.startswith(f"INT8 of TensorRT on a {target.upper()} with {target}.cache, simulated by onnxruntime")
    assert found.losses["top1"] and re.search("nothing .*TensorRT", found.summary()[-1])
    assert found.to_json()["executor"].endswith("not TensorRT")
    named = judged(folder, "m.onnx", cache=cache, target=target, trt_version="8502")
    assert "TensorRT 8.5.2" in named.how and named.figures == found.figures


def test_q_dq_models_are_judged_as_a_target_rounds(folder: Path) -> None:
    assert judged(folder, "q.onnx").how == AS_WRITTEN
    assert "on a DLA, simulated" in judged(folder, "q.onnx", target="dla").how


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        ("q.onnx", {"cache": "gpu.cache"}, "has Q/DQ, beside which TensorRT takes no scales"),
        ("m.onnx", {"target": "dla"}, "has no Q/DQ, and no cache is given"),
        ("m.onnx", {"cache": "gpu.cache", "trt_version": "7103"}, "is for TensorRT 8.5.2; 7.1.3 would ignore it"),
    ],
)
def test_refusals(model: str, options: dict[str, str], part: str, folder: Path) -> None:
    if "cache" in options:
        options = {**options, "cache": str(folder / options["cache"])}
    with pytest.raises(QdqError, match=part):
        judged(folder, model, **options)


def test_rtx_has_no_cache_to_judge() -> None:
    with pytest.raises(QdqError, match=r"--target.*rtx"):
        EvaluateOptions(target="rtx")


def test_an_engine_is_judged_where_tensorrt_is(folder: Path) -> None:
    with installed("10.13.3.9"):
        shapes = parse_shape_ranges("x:1x3x4x4:4x3x4x4:8x3x4x4")
        build(folder / "m.onnx", folder / "m.plan", BuildOptions(shapes=shapes))
        found = judged(folder, "m.plan", baseline=folder / "m.onnx")
        assert found.how == "run by TensorRT 10.13.3.9: m.plan" and found.to_json()["executor"] == "TensorRT"
        assert found.loss("top1").value == 0
        with pytest.raises(QdqError, match=r"m\.plan: is an engine"):
            judged(folder, "m.plan", cache=folder / "gpu.cache")


def test_an_engine_without_tensorrt(folder: Path) -> None:
    (folder / "m.plan").write_bytes(b"x")
    with pytest.raises(MissingPackageError):
        judged(folder, "m.plan")


def test_a_detector_that_finds_nothing_is_told(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model, images = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "images", 0, 0)
    options = DataOptions(preprocess="yolox")
    found = infer(model, images, tmp_path / "out", data_options=options)
    assert found.notes == (f"{model} {FINDS_NOTHING}",)
    bright_images = write_images(tmp_path / "bright", 250)
    blind = write_detector(tmp_path / "blind.onnx", ())
    agreed = evaluate(blind, bright_images, None, EvaluateOptions(baseline=model), options)
    assert agreed.notes == (f"{blind} {FINDS_NOTHING}",)
    bright = infer(model, bright_images, tmp_path / "more", data_options=options)
    assert bright.boxes and bright.notes == ()


def test_preprocessing_comes_from_the_model(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model, images = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "images", 250)
    proto = onnx.load(model)
    for key, value in {"stride": "32", "names": "{0: 'a'}"}.items():
        proto.metadata_props.add(key=key, value=value)
    onnx.save(proto, model)
    found = infer(model, images, tmp_path / "out")
    assert "exporter's metadata (ultralytics)" in found.notes[0]
    with pytest.raises(QdqError, match="values from 0 to 1, --preprocess has values from 0 to 255"):
        infer(model, images, tmp_path / "out2", data_options=DataOptions(preprocess="scale=1"))
    assert not (tmp_path / "out2").exists()
