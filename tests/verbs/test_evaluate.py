# SPDX-License-Identifier: Apache-2.0
"""evaluate: the bundled models on their held-out data, losses against a baseline, and which metric is taken."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool import PeelOptions, peel
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.verbs.evaluate import Evaluation, evaluate
from qdqtool.verbs.evaluate_options import EvaluateOptions
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

FEW = 24
SCALED = DataOptions(preprocess="scale=1/255", limit=FEW)


def rounded(source: Path, target: Path, weight: str, steps: int) -> Path:
    """A model with one weight rounded: a loss that is not noise."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if weight in tensor.name:
            values = np.round(onnx.numpy_helper.to_array(tensor) * steps) / np.float32(steps)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), tensor.name))
    target.write_bytes(model.SerializeToString())
    return target


@pytest.fixture
def digits(models: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the bundled detector's outputs become boxes: by the script that ships with it."""
    monkeypatch.syspath_prepend(str(models))
    scoring = importlib.import_module("detection_map")

    def decode(outputs: Mapping[str, np.ndarray], geometries: list[object]) -> list[tuple[np.ndarray, ...]]:
        found = scoring.detect(outputs["scores"], outputs["boxes"])
        rows = [found.scene == k for k in range(len(geometries))]
        return [(found.box[row], found.score[row], found.label[row]) for row in rows]

    return decode


def judged(models: Path, decode: Any, **options: Any) -> Evaluation:
    return evaluate(
        options.pop("model", models / "digits_detector.onnx"),
        models / "digits_test.npz",
        options.pop("labels", None),
        EvaluateOptions(postprocess=decode, **options),
        SCALED,
    )


def test_it_is_public() -> None:
    assert qdqtool.evaluate is evaluate
    assert qdqtool.EvaluateOptions is EvaluateOptions


def test_the_classifier_has_its_top_1(models: Path) -> None:
    result = evaluate(models / "tiny_classifier.onnx", models / "digits8_test.npz", None, None, DataOptions(batch=50))
    assert result.metric == "top1"
    assert result.value("top1") == pytest.approx(0.991, abs=0.0005)
    assert result.samples == 450
    found = result.figures["top1"][0].interval
    assert found.low < result.value("top1") < found.high
    assert (result.losses, result.labels, result.means) == ({}, "arrays", "")


def test_arrays_in_memory_are_judged_as_those_of_a_file(models: Path) -> None:
    model, how = models / "tiny_classifier.onnx", DataOptions(batch=50)
    samples = dict(np.load(models / "digits8_test.npz"))
    wanted = evaluate(model, models / "digits8_test.npz", None, None, how)
    assert evaluate(model, samples, None, None, how) == wanted
    assert evaluate(model, samples["x"], samples["y"], None, how) == wanted
    assert evaluate(model, samples["x"], samples["y"].tolist(), None, how) == wanted
    with pytest.raises(QdqError, match="hold 4 classes, the data has more samples"):
        evaluate(model, samples["x"], samples["y"][:4], None, how)
    with pytest.raises(QdqError, match="labels: has classes of float32"):
        evaluate(model, samples["x"], samples["y"].astype(np.float32), None, how)


def test_integers_and_floats_are_not_fed_the_same(tmp_path: Path) -> None:
    text = "g (int8[n,2] x) => (float[n,2] z) <float s = {0.5}, int8 o = {0}>"
    text += " { d = DequantizeLinear(x, s, o) z = Relu(d) }"
    (tmp_path / "m.onnx").write_bytes(model_of(text).SerializeToString())
    (tmp_path / "f.onnx").write_bytes(
        model_of("g (float[n,2] x) => (float[n,2] z) { z = Relu(x) }").SerializeToString()
    )
    mine, original = tmp_path / "m.onnx", tmp_path / "f.onnx"
    for model, baseline, kinds in ((mine, original, ("float32", "int8")), (original, mine, ("int8", "float32"))):
        with pytest.raises(QdqError) as caught:
            evaluate(model, np.zeros((3, 2), np.int8), None, EvaluateOptions(baseline=baseline))
        said = caught.value
        assert said.reason == f"takes {kinds[0]} for x, the model takes {kinds[1]}: no data fit both"
        words = shlex.split(said.todo[said.todo.index("qdqtool peel") :])
        assert words[2:6] == [str(mine), "--target", "gpu", "--trt-version"] and "by itself" in said.todo
        peel(
            words[2], PeelOptions(words[6], "gpu", on_conflict="max", on_asymmetric="widen"), output=tmp_path / "p.onnx"
        )


def test_figures_do_not_depend_on_the_batch_or_on_the_kind_of_model(models: Path) -> None:
    path = models / "tiny_classifier.onnx"
    one, two = (
        evaluate(model, models / "digits8_test.npz", None, None, DataOptions(batch=batch, limit=64))
        for model, batch in ((path, 1), (onnx.load(path), 16))
    )
    assert (one.figures, one.samples) == (two.figures, two.samples) == (one.figures, 64)


def test_a_spoilt_classifier_loses(models: Path, tmp_path: Path) -> None:
    source = models / "tiny_classifier.onnx"
    spoilt = rounded(source, tmp_path / "s.onnx", "", 3)
    data = models / "digits8_test.npz"
    result = evaluate(spoilt, data, data, EvaluateOptions(baseline=source), DataOptions(batch=50))
    loss = result.loss("top1")
    assert loss.value == pytest.approx(result.baseline_figures["top1"][0].value - result.value("top1"))
    assert 0 < loss.interval.low < loss.value < loss.interval.high
    assert (result.model, result.baseline) == (str(spoilt), str(source))


@pytest.mark.parametrize(("offset", "low", "high"), [(1, 0.8, 1), (0, 0, 0.3)])
def test_a_label_offset_shifts_every_class(models: Path, tmp_path: Path, offset: int, low: float, high: float) -> None:
    with np.load(models / "digits8_test.npz") as file:
        np.save(tmp_path / "y.npy", np.clip(file["y"][:60] - 1, 0, None))
        feed = [{"images": file["x"][:60]}]
    result = evaluate(models / "tiny_classifier.onnx", feed, tmp_path / "y.npy", EvaluateOptions(label_offset=offset))
    assert low <= result.value("top1") <= high
    assert result.labels == ("arrays, +1" if offset else "arrays")


@pytest.mark.slow
def test_the_detector_has_the_figures_of_its_own_script(models: Path, digits: Any) -> None:
    pytest.importorskip("pycocotools")
    scoring = importlib.import_module("detection_map")
    with np.load(models / "digits_test.npz") as file:
        rows = file["scene"] < FEW
        few = {"images": file["images"][:FEW], **{k: file[k][rows] for k in ("boxes", "labels", "scene")}}
    expected = scoring.evaluate(models / "digits_detector.onnx", few)
    result = judged(models, digits)
    assert result.metric == "coco"
    assert result.value("ap50") == pytest.approx(expected["ap50"], abs=1e-3)
    assert result.value("map") == pytest.approx(expected["ap50_95"], abs=1e-3)
    assert result.facts["boxes"] == rows.sum()
    assert (result.classes, result.labels) == (tuple(range(10)), "arrays")
    assert result.means == "decode of postprocess; score above 0.01"


def test_voc_is_asked_for(models: Path, digits: Any) -> None:
    result = judged(models, digits, metric="voc", names="zero,one,two,three,four,five,six,seven,eight,nine")
    assert list(result.figures) == ["voc_ap", "voc_ap11"]
    assert result.value("voc_ap") > 0.95
    assert result.class_name(9) == "nine"


@pytest.mark.slow
def test_a_spoilt_detector_loses_and_agrees_less(models: Path, digits: Any, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    source = models / "digits_detector.onnx"
    spoilt = rounded(source, tmp_path / "s.onnx", "box_head.conv.weight", 8)
    result = judged(models, digits, model=spoilt, baseline=source)
    assert result.loss("map").value > 0.02
    assert result.loss("map").interval.low > 0
    agreed = judged(models, digits, model=spoilt, baseline=source, metric="agreement")
    assert list(agreed.figures) == ["agreement", "agreement50"]
    assert 0.3 < agreed.value("agreement") < 0.97
    assert (agreed.labels, agreed.baseline) == ("", str(source))
    assert agreed.loss("agreement").value == pytest.approx(1 - agreed.value("agreement"))
    itself = judged(models, digits, model=source, baseline=source, metric="agreement")
    assert itself.value("agreement") == pytest.approx(1)


def test_the_baseline_s_outputs_choose_the_decoder(
    models: Path, digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models / "digits_detector.onnx"
    spoilt = rounded(source, tmp_path / "s.onnx", "box_head.conv.weight", 8)
    seen: list[Any] = []

    def find(name: str, outputs: Any, size: Any, *others: Any) -> Any:
        seen.append((name, outputs["boxes"].copy(), size))
        raise QdqError("--decoder", "stop here")

    monkeypatch.setattr(importlib.import_module("qdqtool.evaluation.inference"), "find_decoder", find)
    for model, baseline in ((spoilt, source), (source, source)):
        with pytest.raises(QdqError, match="stop here"):
            judged(models, None, model=model, baseline=baseline, decoder="ssd")
    (name, boxes, size), (_, expected, _) = seen
    assert (name, size) == ("ssd", (96, 96))
    np.testing.assert_array_equal(boxes, expected)


def test_without_labels_a_baseline_makes_it_agreement(models: Path, digits: Any) -> None:
    pytest.importorskip("pycocotools")
    source = models / "digits_detector.onnx"
    options = EvaluateOptions(baseline=source, postprocess=digits)
    result = evaluate(source, models / "digits_calib.npz", None, options, DataOptions(limit=5))
    assert (result.metric, result.samples) == ("agreement", 5)


def test_json_holds_it_all(models: Path, digits: Any) -> None:
    result = judged(models, digits, metric="voc", baseline=models / "digits_detector.onnx")
    document = result.to_json()
    assert document["schema"] == 1
    assert document["losses"]["voc_ap"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert document["classes"][3]["class"] == 3
    assert document["classes"][3]["figures"]["voc_ap"]["value"] == result.figures["voc_ap"][4].value
    assert "not TensorRT" in document["executor"]


def refuse(part: str, *args: Any, **options: Any) -> None:
    with pytest.raises(QdqError, match=part):
        evaluate(*args, options=EvaluateOptions(**options), data_options=SCALED)


def test_what_has_no_task_metric_is_told_so(models: Path) -> None:
    detector, data = models / "digits_detector.onnx", models / "digits_test.npz"
    refuse("no --baseline.*qdqtool compare", models / "tiny_classifier.onnx", [{"images": np.zeros((1, 1, 16, 16))}])
    refuse("on a task: no decoder fits.*--postprocess.*decoders.md.*compare", detector, data, metric="coco")
    refuse("does not fit the outputs", detector, data, metric="coco", decoder="yolox")
    refuse("needs --baseline to compare with", detector, data, metric="agreement")
    refuse("has 2 outputs.*a classifier has one", detector, data, models / "digits8_test.npz", metric="top1")


def test_a_model_without_images_has_no_decoder(text_model: Any) -> None:
    model = text_model("g (float[N,4,3] x) => (float[N,4,3] y) { y = Relu(x) }")
    feed = [{"x": np.ones((2, 4, 3), np.float32)}]
    refuse("takes no images", model, feed, baseline=model)


@pytest.mark.parametrize(("option", "number"), [("seed", -1), ("label_offset", 10**30)])
def test_numbers_that_nothing_has_are_refused(option: str, number: int) -> None:
    with pytest.raises(QdqError, match=f"--{option.replace('_', '-')}: "):
        EvaluateOptions(**{option: number})


def test_a_baseline_of_another_input_is_refused(models: Path, text_model: Any) -> None:
    other = text_model("g (float[N,1,16,16] z) => (float[N,1,16,16] y) { y = Relu(z) }")
    refuse("takes z, the model takes images", models / "tiny_classifier.onnx", [], baseline=other)


def test_fewer_labels_than_samples(models: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.zeros(3, int))
    feed = [{"images": np.zeros((2, 1, 16, 16), np.float32)}] * 2
    refuse("hold 3 classes, the data has more", models / "tiny_classifier.onnx", feed, tmp_path / "y.npy")


def test_detections_of_classes_that_the_labels_do_not_name_are_noted(models: Path, digits: Any, tmp_path: Path) -> None:
    with np.load(models / "digits_test.npz") as file:
        small = file["labels"] < 3
        np.savez(tmp_path / "few.npz", **{key: file[key][small] for key in ("boxes", "labels", "scene")})
    result = judged(models, digits, labels=tmp_path / "few.npz", metric="voc", names="zero,one,two")
    assert result.classes == (0, 1, 2)
    assert re.search("classes beyond .* 3 classes", result.notes[-1])
