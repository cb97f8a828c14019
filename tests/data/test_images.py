# SPDX-License-Identifier: Apache-2.0
"""From an image file to an array: what each preset makes of known pixels, and what is refused."""

from __future__ import annotations

import re
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.data import images
from qdqtool.data.images import ImageFileReader, decode_image, fit_reader
from qdqtool.data.loader import DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.errors import MissingPackageError, QdqError

pil = pytest.importorskip("PIL.Image")
Shape = tuple[int | str | None, ...]


def save(path: Path, pixels: npt.NDArray[np.uint8], **options: object) -> Path:
    pil.fromarray(pixels).save(path, **options)
    return path


def noise(height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    pixels = np.random.default_rng(7).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels if channels > 1 else pixels[..., 0]


def read(path: Path, text: str, shape: Shape) -> npt.NDArray[np.float32]:
    return ImageFileReader(fit_reader(parse_preprocess(text), "x", shape)).read(path)


def test_pixels_come_scaled_and_channel_first(tmp_path: Path) -> None:
    pixels = noise(4, 5)
    got = read(save(tmp_path / "a.png", pixels), "scale=1/255,mean=0.5,std=0.25", (1, 3, 4, 5))
    want = (pixels.transpose(2, 0, 1)[None] / 255 - 0.5) / 0.25
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert got.shape == (1, 3, 4, 5)
    assert np.abs(got - want).max() < 1e-5  # float32 against float64


def test_bgr_turns_the_channels_and_mean_stays_in_model_order(tmp_path: Path) -> None:
    pixels = noise(4, 5)
    got = read(save(tmp_path / "a.png", pixels), "color=bgr,mean=1:2:3", (1, 3, 4, 5))
    assert np.array_equal(got[0, 0], pixels[..., 2].astype(np.float32) - 1)
    assert np.array_equal(got[0, 2], pixels[..., 0].astype(np.float32) - 3)


def test_layout_is_read_from_the_shape(tmp_path: Path) -> None:
    pixels = noise(4, 5)
    got = read(save(tmp_path / "a.png", pixels), "scale=1", ("N", 4, 5, 3))
    assert np.array_equal(got[0], pixels.astype(np.float32))


def test_grey_model_gets_grey(tmp_path: Path) -> None:
    pixels = noise(6, 6, 1)
    got = read(save(tmp_path / "a.png", pixels), "scale=1", (1, 1, 6, 6))
    assert np.array_equal(got[0, 0], pixels.astype(np.float32))


def test_color_that_a_grey_model_leaves_out_is_told(tmp_path: Path) -> None:
    for name, channels in (("grey", 1), ("color", 3)):
        (tmp_path / name).mkdir()
        save(tmp_path / name / "a.png", noise(6, 6, channels))
    notes = {
        (name, channels): open_loader(
            tmp_path / name, [Input("x", (1, channels, 6, 6), np.dtype(np.float32))], DataOptions(preprocess="scale=1")
        ).notes
        for name in ("grey", "color")
        for channels in (1, 3)
    }
    assert re.match("color .*: x .*one channel", "".join(notes.pop(("color", 1))))
    assert not any(notes.values())


def test_grey_image_in_a_color_model_and_transparency_dropped(tmp_path: Path) -> None:
    grey, rgba = noise(6, 6, 1), noise(6, 6, 4)
    one = read(save(tmp_path / "g.png", grey), "scale=1", (1, 3, 6, 6))
    two = read(save(tmp_path / "t.png", rgba), "scale=1", (1, 3, 6, 6))
    assert np.array_equal(one[0, 1], grey.astype(np.float32))
    assert np.array_equal(two[0, 2], rgba[..., 2].astype(np.float32))


def test_ultraface_is_minus_127_over_128(tmp_path: Path) -> None:
    pixels = noise(240, 320)
    got = read(save(tmp_path / "a.png", pixels), "ultraface", (1, 3, 240, 320))
    assert np.array_equal(got[0], ((pixels.astype(np.float32) - 127) / 128).transpose(2, 0, 1))


def test_yolox_starts_at_the_corner_and_pads_with_114(tmp_path: Path) -> None:
    pixels = np.full((10, 20, 3), 200, np.uint8)
    got = read(save(tmp_path / "a.png", pixels), "yolox", (1, 3, 32, 32))
    assert (got[0, :, :16, :] == 200).all()  # 20x10 grows to 32x16
    assert (got[0, :, 16:, :] == 114).all()


def test_yolov5_centers(tmp_path: Path) -> None:
    pixels = np.full((10, 20, 3), 255, np.uint8)
    got = read(save(tmp_path / "a.png", pixels), "yolov5", (1, 3, 32, 32))
    pad = np.float32(114) * np.float32(1 / 255)
    assert (got[0, :, 8:24] == 1).all()
    assert (got[0, :, :8] == pad).all()
    assert (got[0, :, 24:] == pad).all()


def test_imagenet_cuts_the_center_of_the_short_side(tmp_path: Path) -> None:
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, 32:96] = 255  # a white square in the middle; 56 of its 64 columns are seen
    got = read(save(tmp_path / "a.png", pixels), "imagenet,mean=0,std=1", (1, 3, 56, 56))
    assert (got == np.float32(255) * np.float32(1 / 255)).all()


def test_stretch_ignores_the_aspect_ratio(tmp_path: Path) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, 8:] = 255
    got = read(save(tmp_path / "a.png", pixels), "interpolation=area", (1, 3, 4, 4))
    assert got[0, 0].tolist() == [[0, 0, 255, 255]] * 4


def test_camera_orientation_is_applied(tmp_path: Path) -> None:
    pixels = noise(4, 6)
    exif = pil.Exif()
    exif[0x0112] = 3  # upside down
    got = read(save(tmp_path / "a.png", pixels, exif=exif), "scale=1", (1, 3, 4, 6))
    assert np.array_equal(got[0], pixels[::-1, ::-1].astype(np.float32).transpose(2, 0, 1))


def test_free_size_must_be_said_and_is_taken(tmp_path: Path) -> None:
    path, shape = save(tmp_path / "a.png", noise(9, 9)), ("N", 3, "h", None)
    assert read(path, "size=12x8", shape).shape == (1, 3, 8, 12)
    with pytest.raises(QdqError, match="add size=WIDTHxHEIGHT"):
        read(path, "yolov8", shape)


@pytest.mark.parametrize(
    ("shape", "text", "part"),
    [
        ((1, 3), "imagenet", "2 dimensions"),
        ((1, 257, 1, 2), "imagenet", "which axis is the channel axis"),
        ((1, 8, 8, 3), "layout=nchw", "8 channels in the layout nchw"),
        ((1, 3, 8, 8), "size=9x8", "leave size out"),
        ((1, 1, 8, 8), "imagenet", "mean has 3 values"),
    ],
)
def test_inputs_that_take_no_such_images(shape: Shape, text: str, part: str) -> None:
    with pytest.raises(QdqError, match=part) as caught:
        fit_reader(parse_preprocess(text), "the_input", shape)
    assert caught.value.where == "the_input"


def test_broken_files_are_named(tmp_path: Path) -> None:
    good = save(tmp_path / "a.png", noise(64, 64)).read_bytes()
    for name, data in {"text": b"hello", "empty": b"", "cut": good[: len(good) // 2]}.items():
        path = tmp_path / f"{name}.png"
        path.write_bytes(data)
        with pytest.raises(QdqError, match="an image") as caught:
            read(path, "scale=1", (1, 3, 64, 64))
        assert caught.value.where == str(path)


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    pil.fromarray(np.full((8, 8), 40000, np.uint16)).save(path)
    with pytest.raises(QdqError, match="8 bits a channel"):
        read(path, "scale=1", (1, 1, 8, 8))


def test_without_pillow_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", noise(4, 4))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"qdqtool\[images\]"):
        read(path, "scale=1", (1, 3, 4, 4))


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((9500, 9500), "has 9500x9500 pixels, above the 89478485"),
        ((14000, 14000), "too large to decode"),
        ((70000, 1), "has 70000x1 pixels, above the 65535"),
    ],
)
def test_a_small_file_of_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    size: tuple[int, int],
    reason: str,
) -> None:
    """The head alone says so: the pixels of this file are not even there."""
    pil.new("L", (1, 1)).save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[16:24] = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(QdqError, match=reason):
        read(tmp_path / "a.png", "size=4x4", (1, 3, 4, 4))
    assert not recwarn.list


def test_an_image_too_narrow_to_fill_the_input_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(12000, 1))
    with pytest.raises(QdqError, match=r"a.png: is 1x12000: .* 224x224 .* 256x3072000"):
        read(path, "imagenet", (1, 3, 224, 224))


def test_a_decoded_image_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", noise(4, 5))
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", lambda image: pytest.fail("copied"))
    assert decode_image(path, 3).size == (5, 4)


def test_odd_tags_of_a_picture_are_no_warning_of_python_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pil.new("L", (8, 8)).save(tmp_path / "a.png")
    plain = pil.open

    def warning(path: Path) -> Any:
        warnings.warn("Tag data larger than file", UserWarning, stacklevel=1)
        return plain(path)

    monkeypatch.setattr(pil, "open", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_image(tmp_path / "a.png", 1).size == (8, 8)


@pytest.mark.parametrize(
    ("text", "shape"), [("scale=255", (1, 3, 1 << 40, 8)), ("size=10000x10000", (1, 3, None, None))]
)
def test_a_size_that_no_memory_holds_is_refused(text: str, shape: Shape) -> None:
    with pytest.raises(QdqError, match=r"^x: .* pixels, above"):
        fit_reader(parse_preprocess(text), "x", shape)


@pytest.mark.parametrize(("most", "decoded"), [(1 << 20, 3), (2 * 8 * 8 * 3, 2 + 2)])
def test_few_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, decoded: int) -> None:
    for name in "abc":
        save(tmp_path / f"{name}.png", np.random.default_rng(ord(name)).integers(0, 256, (9, 9, 3), np.uint8))
    monkeypatch.setattr(images, "_HELD", most)
    read, decode = list[Path](), images.decode_image
    monkeypatch.setattr(images, "decode_image", lambda path, channels: read.append(path) or decode(path, channels))
    loader = open_loader(
        tmp_path, [Input("x", (None, 3, 8, 8), np.dtype("float32"))], DataOptions(preprocess="scale=1")
    )
    walks = [np.concatenate([batch["x"] for batch in loader]) for _ in range(2)]
    assert len(read) == decoded and walks[0].tobytes() == walks[1].tobytes()
