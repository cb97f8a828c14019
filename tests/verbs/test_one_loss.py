# SPDX-License-Identifier: Apache-2.0
"""One file has one loss: `evaluate`, `deploy` and `improve` print the same figure and interval for the same samples."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool import DataOptions, DeployOptions, EvaluateOptions, ImproveOptions, deploy, evaluate, improve
from qdqtool.graph.io import open_model
from qdqtool.passes.peel import has_qdq

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def losses(model: Path, data: Path, held_out: Path, how: DataOptions, work: Path, **asked: Any) -> dict[str, Any]:
    """The loss of the Q/DQ model that `deploy` writes, on held-out samples, as JSON of each verb has it."""
    parts = {"eval_data": held_out, "data_options": how, "progress": False, "max_loss": 1.0}
    deploy(model, data, work / "folder", DeployOptions("10.3", effort="fast", **parts, **asked))
    facts = json.loads((work / "folder" / "deploy.json").read_text())
    (written,) = [one for one in (work / "folder").glob("*.onnx") if has_qdq(open_model(one).graph)]
    named = {key: value for key, value in asked.items() if key != "labels"}
    options = EvaluateOptions(baseline=model, progress=False, **named)
    evaluated = evaluate(written, held_out, asked.get("labels"), options, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("qdqtool.workflows.improve"), "stages_of", lambda *_: ())
        improved = improve(written, data, work / "i.onnx", ImproveOptions(source=model, **parts, **asked))
    assert improved.best.candidate.name == "as given"
    metric = next(iter(evaluated.figures))
    found = {"deploy": facts["loss"], "improve": improved.to_json()["loss"]}
    if evaluated.losses:
        assert facts["fp32"] == evaluated.baseline_figures[metric][0].value
        return {**found, "evaluate": evaluated.to_json()["losses"][metric]}
    agreed = evaluated.to_json()["figures"][metric]
    return {
        **found,
        "evaluate": {one: 1 - agreed[other] for one, other in (("value", "value"), ("low", "high"), ("high", "low"))},
    }


def check_same(found: dict[str, Any]) -> None:
    assert found["deploy"]["value"] > 0, "it shows nothing otherwise"
    assert found["deploy"] == found["improve"]
    assert found["deploy"] == pytest.approx(found["evaluate"], abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("labeled", [True, False])
def test_of_a_classifier(models: Path, tmp_path: Path, labeled: bool) -> None:
    """Noise takes the digits to where INT8 decides otherwise."""
    noise = np.random.default_rng(0)
    with np.load(models / "digits8_test.npz") as file:
        x = (file["x"] + noise.normal(size=file["x"].shape) * file["x"].std()).astype(np.float32)
        for name, part in (("d", slice(0, 60)), ("e", slice(60, 260))):
            np.savez(tmp_path / f"{name}.npz", x=x[part], **({"y": file["y"][part]} if labeled else {}))
    files = tmp_path / "d.npz", tmp_path / "e.npz"
    check_same(losses(models / "tiny_classifier.onnx", *files, DataOptions(), tmp_path))


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("labeled", [True, False])
def test_of_a_detector(shared: Path, tmp_path: Path, labeled: bool) -> None:
    pytest.importorskip("pycocotools")
    faces = shared / "corpus" / "datasets" / "facemask_100"
    images = sorted((faces / "images").iterdir())[:24]
    for name, part in (("d", images[:12]), ("e", images[12:])):
        (tmp_path / name).mkdir()
        for one in part:
            (tmp_path / name / one.name).symlink_to(one)
    asked = {"names": "face=with_mask|without_mask|mask_weared_incorrect"}
    asked |= {"labels": faces / "xml"} if labeled else {}
    model = shared / "corpus" / "models" / "ultraface_slim320.onnx"
    how = DataOptions(preprocess="ultraface")
    check_same(losses(model, tmp_path / "d", tmp_path / "e", how, tmp_path, **asked))
