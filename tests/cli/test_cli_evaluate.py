# SPDX-License-Identifier: Apache-2.0
"""`qdqtool evaluate`: what it prints and refuses, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.decisions import Provenance
from qdqtool.metadata import store_table
from qdqtool.scales import ScaleTable
from tests.cli.command import contents, refused, run

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

# Two classes by the mean of the red or the green channel; boxes by a script that reads the same outputs.
CLASSIFIER = """<ir_version: 8, opset_import: ["" : 13]>
g (float[N, 3, 8, 8] x) => (float[N, 3, 1, 1] y) { y = GlobalAveragePool(x) }"""
BLUNTED = """<ir_version: 8, opset_import: ["" : 13]>
g (float[N, 3, 8, 8] x) => (float[N, 3, 1, 1] y) { m = GlobalAveragePool(x)  y = Round(m) }"""
SCRIPT = """import numpy as np


def whole(outputs, geometries):
    found = []
    for row, geometry in zip(outputs["y"].reshape(-1, 3), geometries):
        best = int(row.argmax())
        found.append(([[0, 0, *geometry.input_size]], [0.5 + row[best] / 2], [best]))
    return found
"""
POST = ("--postprocess", "{}/post.py:whole")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pil = pytest.importorskip("PIL.Image")
    for name, text in (("m", CLASSIFIER), ("q", BLUNTED)):
        (tmp_path / f"{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    (tmp_path / "post.py").write_text(SCRIPT)
    for part in ("images", "voc", "yolo"):
        (tmp_path / part).mkdir()
    for k in range(6):
        pixels = np.full((16, 16, 3), 20, np.uint8)
        pixels[..., k % 3] = 90
        pil.fromarray(pixels).save(tmp_path / "images" / f"{k % 3}_{k}.png")
        box = "<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>16</xmax><ymax>16</ymax></bndbox>"
        name = f"<object><name>{'rgb'[k % 3]}</name>{box}</object>"
        (tmp_path / "voc" / f"{k % 3}_{k}.xml").write_text(f"<annotation>{name}</annotation>")
        (tmp_path / "yolo" / f"{k % 3}_{k}.txt").write_text(f"{k % 3} .5 .5 1 1\n")
    return tmp_path


def words(folder: Path, *more: str, model: str = "m.onnx") -> list[str]:
    data = ["--data", "{}/images", "--preprocess", "scale=1/255"]
    return ["evaluate", str(folder / model), *(word.format(folder) for word in (*data, *more))]


def test_a_classifier_and_its_loss(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    said = run(capsys, *words(folder, "--labels", "filename", "--baseline", "{}/m.onnx", model="q.onnx"))
    lines = said.out.splitlines()
    assert (said.code, said.err) == (0, "")
    assert lines[0] == f"{folder}/q.onnx: 6 samples, labels filename"
    assert lines[1] == f"baseline: {folder}/m.onnx"
    assert lines[3].split()[:4] == ["metric", "baseline", "model", "loss"]
    assert lines[4].startswith("top1      1.0000   0.3333   0.6667  ")
    assert lines[5] == "top5      1.0000   1.0000   0.0000  0.0000 to 0.0000"
    assert "paired" in lines[-1]
    assert "TensorRT" in lines[-1]
    assert contents(folder) == before, "it writes nothing"


def test_a_classifier_that_guesses_is_told_and_its_loss_means_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A top-1 of 0.0000 in FP32 printed a loss of 0.0000 (0.0000 to 0.0000), and no word of it."""
    for image in sorted((folder / "images").iterdir()):  # as many samples as tell a guess from bad luck
        for k in range(3):
            (folder / "images" / f"{image.stem}_{k}.png").write_bytes(image.read_bytes())
    rows = [f"{one.name},{(int(one.name[0]) + 1) % 3}" for one in sorted((folder / "images").iterdir())]
    (folder / "wrong.csv").write_text("\n".join(rows) + "\n")
    more = ["--labels", "{}/wrong.csv", "--names", "0,1,2", "--baseline", "{}/m.onnx"]
    said = run(capsys, *words(folder, *more, model="q.onnx"))
    assert said.code == 0 and "top1      0.0000   " in said.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"qdqtool: warning: {folder}/images: {folder}/m.onnx has a top-1 of 0.0000 on 24 ")
    assert "3 classes gives 0.3333" in line and "--preprocess" in line
    found = json.loads(run(capsys, *words(folder, *more, "--json", model="q.onnx")).out)
    assert found["reference_warning"] in found["notes"]
    right = run(capsys, *words(folder, "--labels", "filename", "--baseline", "{}/m.onnx", "--json", model="q.onnx"))
    assert json.loads(right.out)["reference_warning"] is None


def test_a_detector_with_its_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    more = ["--labels", "{}/voc", "--names", "r,g,b", "--postprocess", "{}/post.py:whole"]
    said = run(capsys, *words(folder, *more))
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].endswith("6 samples, labels voc, 6 boxes, 6 detections")
    assert "post.py; " in lines[1] and lines[1].endswith(" 0.01")
    assert lines[3:6] == [
        "metric    value  95 % interval",
        "map      1.0000  1.0000 to 1.0000",
        "ap50     1.0000  1.0000 to 1.0000",
    ]
    assert lines[7] == "map of class    value  95 % interval"
    assert sorted(line.split()[0] for line in lines[8:11]) == ["b", "g", "r"]


def test_per_class_prints_all_classes_in_their_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    more = ["--labels", "{}/voc", "--names", "r,g,b", "--postprocess", "{}/post.py:whole", "--per-class"]
    lines = run(capsys, *words(folder, *more)).out.splitlines()
    assert [line.split()[0] for line in lines[8:11]] == ["r", "g", "b"]
    said = run(capsys, *words(folder, "--labels", "filename", "--per-class"))
    refused(said, "--per-class: top1 ")


def test_more_names_than_classes_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, *words(folder, "--labels", "filename", "--names", "0,1,2,3"))
    refused(said, "--names: ", " 4 classes, ", " 3 classes")


def test_json_is_all_there_is_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--labels", "{}/yolo", "--metric", "voc", "--postprocess", "{}/post.py:whole", "--limit", "5", "--json"]
    document = json.loads(run(capsys, *words(folder, *more)).out)
    assert (document["metric"], document["samples"], document["labels"]) == ("voc", 5, "yolo")
    assert document["figures"]["voc_ap"]["value"] == 1
    assert [one["class"] for one in document["classes"]] == [0, 1, 2]
    lows = [one["figures"]["voc_ap"]["low"] for one in document["classes"]]
    assert lows == [1, 1, None], "one image shows the last: it has no interval"


def test_a_class_that_one_image_shows_has_a_dash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--labels", "{}/yolo", "--metric", "voc", "--postprocess", "{}/post.py:whole", "--limit", "5"]
    said = run(capsys, *words(folder, *more))
    assert [line.split()[0] for line in said.out.splitlines() if line.endswith("1.0000  -")] == ["2"]


def test_classes_that_lost_most_stand_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--labels", "{}/yolo", "--metric", "voc", *POST, "--names", "r,g,b", "--baseline", "{}/m.onnx"]
    lines = run(capsys, *words(folder, *more, model="q.onnx")).out.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("voc_ap of class"))
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["g", "b", "r"]


def test_the_seed_is_that_of_the_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [
        run(capsys, *words(folder, "--labels", "filename", "--json", "--seed", seed, model="q.onnx")).out
        for seed in ("0", "0", "5")
    ]
    assert outs[0] == outs[1] != outs[2]


def test_agreement_needs_no_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    more = ["--baseline", "{}/m.onnx", "--postprocess", "{}/post.py:whole"]
    said = run(capsys, *words(folder, *more, model="q.onnx"))
    lines = said.out.splitlines()
    assert said.code == 0, said.err
    assert lines[4] == "metric       baseline    model     loss  95 % interval of the loss"
    assert lines[5].startswith("agreement      1.0000   0.")


def test_what_was_left_out_is_told_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "m.onnx").write_bytes(onnx.parser.parse_model(CLASSIFIER.replace("N", "4")).SerializeToString())
    said = run(capsys, *words(folder, "--labels", "filename"))
    assert "warning" in said.err
    assert re.search("last 2 samples .*batch of 4", said.err)
    assert run(capsys, *words(folder, "--labels", "filename", "-q")).err == ""


def test_a_preprocessing_that_the_model_knows_is_a_note_and_no_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(folder / "m.onnx")
    said = run(capsys, *words(folder, "--labels", "filename"))
    assert "preprocessed as" not in said.err
    table = ScaleTable(provenance=Provenance(data={"kind": "images", "preprocess": "scale=1/255"}))
    store_table(model, table)
    onnx.save(model, folder / "m.onnx")
    told = [word for word in words(folder, "--labels", "filename") if word not in ("--preprocess", "scale=1/255")]
    said = run(capsys, *told)
    assert said.code == 0 and "note: " in said.err and "preprocessed as" in said.err
    assert "warning" not in said.err


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ([], ["cannot be measured on a task", "qdqtool compare"]),
        (["--baseline", "{}/m.onnx", "--decoder", "ssd"], ["--decoder ssd", "does not fit the outputs"]),
        (["--labels", "{}/voc", "--names", "r,g", *POST], ["voc: ", "'b'", "none of the 2 names"]),
        (["--labels", "{}/voc", *POST], ["names 3 classes (b, g, r)", "--names"]),
        (["--labels", "{}/yolo", "--names", "r,g", *POST], ["class 2, there are 2 names"]),
        (["--labels", "{}/images", *POST], ["holds neither .xml nor .txt"]),
        (["--labels", "{}/no.csv"], ["does not exist"]),
        (["--labels", "{}/voc", "--names", "r,g,b"], ["cannot be measured on a task", "no decoder fits"]),
        (["--labels", "{}/voc", "--names", "r,g,b", "--decoder", "yolo9"], ["--decoder", "'yolo9'"]),
        (["--labels", "{}/yolo", "--postprocess", "{}/no.py"], ["no.py", "does not exist"]),
        (["--labels", "{}/voc", "--names", "r,g,b", "--postprocess", "{}/post.py:hole"], ["defines no hole"]),
        (["--labels", "filename", "--metric", "agreement", *POST], ["needs --baseline to compare with"]),
        (["--labels", "filename", "--label-offset", "7"], ["gives 3 scores, but a label says class 7"]),
        (["--labels", "filename", "--score", "2"], ["score", "not a threshold"]),
        (["--metric", "top1"], ["does not have the classes"]),
        (["--metric", "map"], ["--metric"]),
        (["--decoder", "ssd", *POST], ["--postprocess"]),
        (["--data", "{}/absent", "--labels", "filename"], ["absent"]),
    ],
)
def test_refusals_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], parts: list[str]
) -> None:
    before = contents(folder)
    refused(run(capsys, *words(folder, *more)), *parts)
    assert {name: kind for name, kind in contents(folder).items() if "__pycache__" not in name} == before


def test_a_classifier_without_labels_is_compared_with_the_baseline_s_best_class(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, *words(folder, "--baseline", "{}/m.onnx", "--json", model="q.onnx"))
    found = json.loads(said.out)
    assert (said.code, found["metric"]) == (0, "agreement")
    assert list(found["figures"]) == list(found["losses"]) == ["agreement1", "agreement5", "nearness"]
    assert found["losses"]["agreement1"]["value"] == 1 - found["figures"]["agreement1"]["value"]
    right = run(capsys, *words(folder, "--labels", "filename", "--json", model="q.onnx"))
    assert found["figures"]["agreement1"]["value"] == json.loads(right.out)["figures"]["top1"]["value"]


def test_images_without_labels_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "voc" / "1_4.xml").unlink()
    said = run(capsys, *words(folder, "--labels", "{}/voc", "--names", "r,g,b", *POST))
    refused(said, "has no .xml for 1 of 6 images, such as 1_4.png")
