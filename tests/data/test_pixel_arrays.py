# SPDX-License-Identifier: Apache-2.0
"""Archives of images of eight bits: what any verb reads of them, and what is said of the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.loader import Data, DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.data.pixel_arrays import holds_images
from qdqtool.errors import QdqError
from qdqtool.evaluation.samples import open_samples

pillow = pytest.importorskip("PIL.Image")

F32 = np.dtype(np.float32)
ONE = Input("input", ("N", 3, 6, 4), F32)
LAST = Input("input", ("N", 6, 4, 3), F32)
PAIRS = Input("input", (2, 3, 6, 4), F32)
HOW = "yolov8,color=bgr"
PIXELS = np.random.default_rng(7).integers(0, 256, (5, 8, 10, 3), np.uint8)


def fed(data: Data, one: Input, **options: object) -> bytes:
    loader = open_loader(data, [one], DataOptions(preprocess=HOW, **options))  # type: ignore[arg-type]
    return b"".join(batch[one.name].tobytes() for batch in loader)


@pytest.mark.parametrize("one", [ONE, LAST, PAIRS], ids=["nchw", "nhwc", "a fixed batch"])
def test_every_reader_makes_of_an_archive_what_it_makes_of_image_files(tmp_path: Path, one: Input) -> None:
    (tmp_path / "files").mkdir()
    for index, pixels in enumerate(PIXELS):
        pillow.fromarray(pixels).save(tmp_path / "files" / f"{index}.png")
    np.savez_compressed(tmp_path / "last.npz", x=PIXELS, y=np.arange(5))
    np.savez(tmp_path / "first.npz", whatever=PIXELS.transpose(0, 3, 1, 2), y=np.arange(5))
    np.save(tmp_path / "alone.npy", PIXELS)
    wanted = fed(tmp_path / "files", one)
    in_files = (tmp_path / name for name in ("last.npz", "first.npz", "alone.npy"))
    for data in (*in_files, PIXELS, {"x": PIXELS, "y": np.arange(5)}, np.load(tmp_path / "last.npz")):
        assert fed(data, one) == wanted, data
        samples = open_samples(data, [one], DataOptions(preprocess=HOW))
        judged = list(samples.chunks())
        assert b"".join(chunk.batch[one.name].tobytes() for chunk in judged) == wanted
        files = open_samples(tmp_path / "files", [one], DataOptions(preprocess=HOW))
        assert judged[0].geometries == next(files.chunks()).geometries


def test_samples_are_read_as_they_are_walked_and_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=PIXELS, y=np.arange(5))
    loader = open_loader(tmp_path / "d.npz", [ONE], DataOptions(preprocess=HOW, batch=2, limit=3))
    assert (loader.samples, loader.batches) == (3, 2)
    assert [len(batch["input"]) for batch in loader] == [2, 1]
    assert loader.description["preprocess"].startswith("size=4x6,layout=nchw,color=bgr")
    (note,) = open_loader(tmp_path / "d.npz", [PAIRS], DataOptions(preprocess=HOW)).notes
    assert re.match("the last 1 samples .* 2, .*input fixes", note)


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=PIXELS, y=np.arange(5), calib=PIXELS[:2])
    (note,) = open_loader(tmp_path / "d.npz", [ONE], DataOptions(preprocess=HOW)).notes
    assert re.search("'x' is read, 'calib' is not", note)
    floats = PIXELS.transpose(0, 3, 1, 2)[:, :, :6, :4].astype(np.float32)
    np.savez(tmp_path / "f.npz", images=floats, y=np.arange(5))
    assert open_loader(tmp_path / "f.npz", [ONE]).notes == ()


def test_labels_beside_the_images_are_fed_with_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=PIXELS, y=np.arange(5))
    labels = Input("y", ("N",), np.dtype(np.int64))
    loader = open_loader(tmp_path / "d.npz", [ONE, labels], DataOptions(preprocess=HOW))
    batches = list(loader)
    assert [int(batch["y"][0]) for batch in batches] == list(range(5))
    assert b"".join(batch["input"].tobytes() for batch in batches) == fed(tmp_path / "d.npz", ONE)


@pytest.mark.parametrize(
    ("arrays", "preprocess", "reason", "todo"),
    [
        ({"x": PIXELS, "y": PIXELS[:, 0, 0, 0]}, None, "holds images as uint8 (array 'x')", "give --preprocess"),
        ({"x": PIXELS.astype(np.float32)}, HOW, "array 'x' is float32 [5, 8, 10, 3], not images", "leave --preprocess"),
        (
            {"a": PIXELS, "b": PIXELS},
            HOW,
            "which of its arrays the input 'input' takes: a (uint8 [5, 8, 10, 3]), b",
            "call it input or x or images",
        ),
    ],
    ids=["no preprocessing", "floats", "two arrays"],
)
def test_a_refusal_says_which_arrays_there_are(
    tmp_path: Path, arrays: dict[str, np.ndarray], preprocess: str | None, reason: str, todo: str
) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    for read in (open_loader, open_samples):
        for data in (tmp_path / "d.npz", arrays):
            with pytest.raises(QdqError) as caught:
                read(data, [ONE], DataOptions(preprocess=preprocess))
            assert reason in caught.value.reason and todo in caught.value.todo


def test_an_input_of_integers_takes_pixels_as_they_are(tmp_path: Path) -> None:
    one = Input("input", ("N", 8, 10, 3), np.dtype(np.uint8))
    np.savez(tmp_path / "d.npz", x=PIXELS, y=np.arange(5))
    assert b"".join(batch["input"].tobytes() for batch in open_loader(tmp_path / "d.npz", [one])) == PIXELS.tobytes()
    assert fed_raw(tmp_path / "d.npz", one) == PIXELS.tobytes()


def fed_raw(path: Path, one: Input) -> bytes:
    return b"".join(batch[one.name].tobytes() for batch in open_loader(path, [one], DataOptions(preprocess="scale=1")))


def test_what_holds_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=PIXELS, y=np.arange(5))
    np.savez(tmp_path / "b.npz", x=np.zeros((5, 3, 6, 4), np.float32), calib=PIXELS)
    np.savez(tmp_path / "c.npz", other=PIXELS)
    (tmp_path / "d.npz").write_bytes(b"no archive")
    names = [name for name in "abcde" if holds_images(tmp_path / f"{name}.npz")]
    assert names == ["a", "c"]
    assert holds_images(PIXELS) and holds_images({"x": PIXELS}) and not holds_images({"x": PIXELS.astype(np.float32)})
    assert not holds_images([{"x": PIXELS}]) and not holds_images({"x": PIXELS.tolist()})
