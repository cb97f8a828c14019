# SPDX-License-Identifier: Apache-2.0
"""`init`: what is found in folders, what is left as an example, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.project import _KEYS, read_project
from qdqtool.errors import QdqError
from qdqtool.verbs.init import _EXAMPLES, init_project
from tests.cli.command import refused, run, write_net

pytest.importorskip("PIL")


def write_images(folder: Path, *names: str) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 8)).save(folder / name)


def write_coco(path: Path, *names: str) -> None:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    path.write_text(
        json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "car"}]}), "utf-8"
    )


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_net(tmp_path)
    Path("d.npz").unlink()
    return Path("m.onnx")


def test_images_labels_and_names_beside_each_other(model: Path) -> None:
    write_images(Path("set/images"), "a.png", "b.png")
    write_coco(Path("set/labels.json"), "a.png", "b.png")
    Path("set/classes.txt").write_text("car\n", encoding="utf-8")
    found = init_project(model, Path("set"))
    assert found.values == {
        "model": "m.onnx",
        "data": str(Path("set/images")),
        "labels": str(Path("set/labels.json")),
        "names": str(Path("set/classes.txt")),
    }
    assert found.missing == ("preprocess", "boards") and not found.notes
    assert read_project(found.path) == {key: [value] for key, value in found.values.items()}


def test_examples_are_comments_that_can_be_taken_as_they_are(model: Path) -> None:
    write_images(Path("set"), "a.png")
    found = init_project(model, "set")
    assert found.missing == tuple(_EXAMPLES)
    text = found.path.read_text("utf-8").replace("# Options of", "## Options of").replace("\n# ", "\n")
    found.path.write_text(text, "utf-8")
    assert tuple(read_project(found.path)) == _KEYS


def test_labels_of_other_images_are_said_and_left_out(model: Path) -> None:
    write_images(Path("set"), "a.png", "b.png")
    write_coco(Path("set/old.json"), "a.png")
    found = init_project(model, "set")
    assert "labels" not in found.values
    assert [note for note in found.notes if "no entry for 1 of 2 images" in note]


def test_two_labels_that_fit_are_not_chosen_from(model: Path) -> None:
    write_images(Path("set"), "a.png")
    for name in ("set/one.json", "set/two.json"):
        write_coco(Path(name), "a.png")
    found = init_project(model, "set")
    assert "labels" not in found.values and "several labels fit" in found.notes[0]


def test_labels_without_an_order_of_classes_say_the_mapping(model: Path) -> None:
    write_images(Path("set/images"), "a.png")
    Path("set/xml").mkdir()
    box = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax></bndbox></object>"
    Path("set/xml/a.xml").write_text(f"<annotation>{box.format('with_mask')}{box.format('bare')}</annotation>", "utf-8")
    found = init_project(model, "set")
    assert found.values["labels"] == str(Path("set/xml"))
    assert (
        "--names bare,with_mask; a model with one class for them all takes --names 'object=bare|with_mask'"
        in found.notes[0]
    )


def test_numbers_before_file_names_are_classes_of_a_classifier(model: Path) -> None:
    write_images(Path("set"), "0003_a.png", "0001_b.png")
    assert init_project(model, "set").values["labels"] == "filename"


def test_arrays_and_class_folders(model: Path) -> None:
    write_images(Path("set/cat"), "a.png")
    write_images(Path("set/dog"), "b.png")
    assert init_project(model, "set", "one.toml").values["data"] == "set"
    Path("arrays").mkdir()
    np.savez("arrays/d.npz", x=np.zeros((2, 4, 8, 8), np.float32))
    for name, given in (("two.toml", "arrays"), ("three.toml", "arrays/d.npz")):
        assert init_project(model, given, name).values["data"] == str(Path("arrays/d.npz"))
    np.savez("arrays/e.npz", x=np.zeros((2, 4, 8, 8), np.float32))
    with pytest.raises(QdqError, match=r"give one of d\.npz, e\.npz"):
        init_project(model, "arrays", "four.toml")


def test_what_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(run(capsys, "init", model, "nowhere"), "nowhere: is neither a folder nor a .npz")
    Path("set").mkdir()
    refused(run(capsys, "init", model, "set"), "set: holds no images and no .npz")
    write_images(Path("set/train/cat"), "a.png")
    write_images(Path("set/val"), "a.png")
    refused(run(capsys, "init", model, "set"), "holds images in several folders: train, val; give one of them")
    said = run(capsys, "init", model, Path("set/val"))
    assert said.code == 0 and said.out.startswith("wrote qdqtool.toml: model m.onnx, data ")
    refused(run(capsys, "init", model, Path("set/val")), "qdqtool.toml: is there; edit it, or remove it first")


def test_a_preset_of_the_decoder(tmp_path: Path, shared: Path) -> None:
    write_images(tmp_path / "set", "a.png")
    found = init_project(shared / "corpus/models/yolox_nano_coco.onnx", tmp_path / "set", tmp_path / "p.toml")
    assert found.values["preprocess"] == "yolox"


def test_a_json_answer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(Path("set"), "a.png")
    said = json.loads(run(capsys, "init", model, "set", "--json").out)
    assert said["schema"] == 1 and said["data"] == "set" and said["missing"] == list(_EXAMPLES)
    with pytest.raises(QdqError):
        init_project(model, "set")
