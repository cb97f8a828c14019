# SPDX-License-Identifier: Apache-2.0
"""A part of labeled data has the labels of its own samples, in whatever form these are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels import box_labels, class_labels
from qdqtool.evaluation.samples import LabeledSamples, open_samples

INPUTS = (Input("x", (None, 3, 4, 4), np.dtype("float32")),)
PARTS = (":8", "8:")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Sixteen images whose red value is their class, which their names tell."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(16):
        image.new("RGB", (4, 4), (number, 0, 0)).save(folder / f"{number:02}_x.png")
    return folder


def samples_of(folder: Path, part: str | None, **more: object) -> LabeledSamples:
    options = DataOptions(preprocess="scale=1", part=part, **more)  # type: ignore[arg-type]
    return open_samples(folder, INPUTS, options)


def red_of(samples: LabeledSamples) -> list[int]:
    return [int(row[0, 0, 0]) for chunk in samples.chunks() for row in chunk.batch["x"]]


@pytest.mark.parametrize("form", ["filename", "list", "array", "by name"])
def test_each_sample_keeps_its_class(images: Path, tmp_path: Path, form: str) -> None:
    labels: dict[str, str | Path] = {"filename": "filename", "list": tmp_path / "l.txt", "array": tmp_path / "l.npy"}
    labels["by name"] = tmp_path / "l.csv"
    (tmp_path / "l.txt").write_text("".join(f"{number}\n" for number in range(16)))
    (tmp_path / "l.csv").write_text("".join(f"{number:02}_x.png,{number}\n" for number in range(16)))
    np.save(tmp_path / "l.npy", np.arange(16))
    seen: list[int] = []
    for part in PARTS:
        samples = samples_of(images, part)
        assert class_labels(labels[form], samples, None).numbers.tolist() == red_of(samples)
        seen += red_of(samples)
    assert sorted(seen) == list(range(16)) and 0 < len(red_of(samples_of(images, ":8"))) < 16


def test_folders_of_classes_are_numbered_over_all_of_them(images: Path, tmp_path: Path) -> None:
    for file in sorted(images.iterdir()):
        place = tmp_path / "classes" / f"c{file.name[:2]}"
        place.mkdir(parents=True)
        file.rename(place / file.name)
    samples = samples_of(tmp_path / "classes", ":8")
    assert class_labels(None, samples, None).numbers.tolist() == red_of(samples)


def test_boxes_are_those_of_the_image(images: Path, tmp_path: Path) -> None:
    boxes = [[0, 0, 1 + number, 1] for number in range(16)]
    np.savez(tmp_path / "b.npz", boxes=np.array(boxes, np.float32), labels=np.zeros(16, int), image=np.arange(16))
    for part in PARTS:
        samples = samples_of(images, part)
        form = box_labels(tmp_path / "b.npz", samples, None)
        widths = [float(form.truth(index, 4, 4).boxes[0, 2]) for index in range(samples.count or 0)]
        assert widths == [1.0 + red for red in red_of(samples)]


@pytest.mark.parametrize("script", [False, True])
def test_arrays_keep_the_classes_that_lie_beside_them_in_order(tmp_path: Path, script: bool) -> None:
    values = np.arange(16, dtype=np.float32).reshape(16, 1, 1, 1) * np.ones((1, 3, 4, 4), np.float32)
    np.save(tmp_path / "d.npy", values)
    np.save(tmp_path / "l.npy", np.arange(16))
    rows = f"[{{'x': row[None]}} for row in np.load({str(tmp_path / 'd.npy')!r})]"
    (tmp_path / "d.py").write_text(f"import numpy as np\ndef load_data():\n    return {rows}\n")
    seen: list[int] = []
    for part in PARTS:
        samples = open_samples(tmp_path / ("d.py" if script else "d.npy"), INPUTS, DataOptions(part=part))
        assert class_labels(tmp_path / "l.npy", samples, None).numbers.tolist() == red_of(samples)
        seen += red_of(samples)
    assert sorted(seen) == list(range(16))


def test_limit_counts_the_part(images: Path) -> None:
    samples = samples_of(images, ":8", limit=2)
    assert samples.count == 2 and len(samples.positions) == 2
    assert samples.whole is not None and samples.whole.count == 16


def test_what_has_no_part_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"no image .*part"):
        samples_of(images, "0:000001")


@pytest.mark.parametrize("pixels", [False, True])
def test_classes_in_the_same_archive_stay_with_their_samples(tmp_path: Path, pixels: bool) -> None:
    values = np.arange(16).reshape(16, 1, 1, 1) * np.ones((1, 3, 4, 4), int)
    np.savez(tmp_path / "d.npz", x=values.astype(np.uint8 if pixels else np.float32), y=np.arange(16))
    seen: list[int] = []
    for part in PARTS:
        options = DataOptions(part=part, preprocess="scale=1" if pixels else None)
        samples = open_samples(tmp_path / "d.npz", INPUTS, options)
        assert class_labels(None, samples, None).numbers.tolist() == red_of(samples)
        seen += red_of(samples)
    assert sorted(seen) == list(range(16))
