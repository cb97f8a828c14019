# SPDX-License-Identifier: Apache-2.0
"""Changes of pictures: each does what it says, within what pixels can be, on pictures alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.loader import DataLoader, DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.data.preprocess import Preprocess
from qdqtool.errors import QdqError
from qdqtool.training.augment import ImageAugment, open_augment
from qdqtool.training.losses.box_losses import LABELED_BOXES

F = np.float32
PIXELS = np.random.default_rng(1).uniform(0, 255, (1, 3, 6, 8)).astype(F)


def changed(step: str, image: np.ndarray = PIXELS, seed: int = 0, spec: Preprocess | None = None) -> np.ndarray:
    spec = spec or Preprocess(layout="nchw")
    augment = ImageAugment("x", (step,), spec.layout == "nhwc", spec)
    return augment({"x": image}, np.random.default_rng(seed))["x"]


def test_a_flip_is_a_mirror_every_other_time() -> None:
    found = [changed("flip", seed=seed) for seed in range(40)]
    mirrored = sum(np.array_equal(one, PIXELS[..., ::-1]) for one in found)
    same = sum(np.array_equal(one, PIXELS) for one in found)
    assert mirrored + same == 40
    assert 10 < mirrored < 30


def test_a_crop_is_a_part_at_full_size() -> None:
    ramp = np.broadcast_to(np.arange(8, dtype=F), (1, 3, 6, 8)).copy()
    for seed in range(20):
        rows = changed("crop", ramp, seed)[0, 0]
        assert rows.shape == (6, 8)
        assert 0 <= rows.min() <= rows.max() <= 7
        steps = np.diff(rows[0])[1:-1]
        assert 0.69 < steps.mean() <= 1.01
        assert np.allclose(rows, rows[0])


@pytest.mark.parametrize("seed", range(5))
def test_colors_stay_pixels(seed: int) -> None:
    found = changed("color", seed=seed)
    assert found.dtype == F
    assert not np.array_equal(found, PIXELS)
    assert 0 <= found.min() <= found.max() <= 255


def test_colors_are_changed_before_normalization() -> None:
    """The same draw on pixels and on what was made of them gives the same picture."""
    spec = Preprocess(layout="nchw", scale=1 / 255, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    mean, std = (np.array(v, F).reshape(1, 3, 1, 1) for v in (spec.mean, spec.std))
    normalized = (PIXELS * F(spec.scale) - mean) / std
    wanted = (changed("color") * F(spec.scale) - mean) / std
    assert np.allclose(changed("color", normalized, spec=spec), wanted, atol=1e-4)


def test_channels_last_and_the_sample_given_stays() -> None:
    image = PIXELS.transpose(0, 2, 3, 1).copy()
    before = image.copy()
    found = changed("crop", image, spec=Preprocess(layout="nhwc"))
    assert np.allclose(found.transpose(0, 3, 1, 2), changed("crop"), atol=1e-3)
    assert np.array_equal(image, before)
    assert found.flags.c_contiguous


def test_images_of_one_sample_are_drawn_for_one_by_one() -> None:
    both = np.concatenate([PIXELS, PIXELS])
    found = changed("color", both)
    assert not np.array_equal(found[0], found[1])


def images(folder: Path) -> DataLoader:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / "a.png")
    one = Input("x", (None, 3, 4, 4), np.dtype(F))
    return open_loader(folder, [one], DataOptions(preprocess="imagenet"))


def test_it_is_fitted_to_the_folder(tmp_path: Path) -> None:
    found = open_augment(["crop", "flip"], images(tmp_path))
    assert found is not None
    assert found.steps == ("flip", "crop")
    assert found.spec is not None
    assert (found.channels_last, found.spec.std) == (False, (0.229, 0.224, 0.225))
    assert open_augment([], images(tmp_path)) is None


def arrays(*shape: int | None) -> DataLoader:
    sample = np.zeros([size or 1 for size in shape], F)
    return open_loader(lambda: [{"x": sample}], [Input("x", shape, np.dtype(F))])


@pytest.mark.parametrize(("shape", "last"), [((None, 3, 16, 32), False), ((1, 16, 32, 3), True)])
def test_arrays_that_are_pictures_are_changed_unless_told_otherwise(shape: tuple[int | None, ...], last: bool) -> None:
    found = open_augment(None, arrays(*shape))
    assert found is not None
    assert (found.steps, found.channels_last, found.spec) == (("flip", "crop", "color"), last, None)
    assert open_augment((), arrays(*shape)) is None


@pytest.mark.parametrize("shape", [(None, 3, 8, 32), (None, 1, 28, 28), (None, 3, 32), (None, 12)])
def test_other_arrays_stay(shape: tuple[int | None, ...]) -> None:
    assert open_augment(None, arrays(*shape)) is None


def test_colors_of_arrays_stay_within_their_own_range() -> None:
    normalized = (PIXELS - 127) / 128
    found = ImageAugment("x", ("color",))({"x": normalized}, np.random.default_rng(0))["x"]
    assert normalized.min() - 1e-6 <= found.min() <= found.max() <= normalized.max() + 1e-6
    assert np.abs(found - normalized).mean() > 0.01


def test_a_step_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"--augment: 'rotate' .*flip,crop,color"):
        open_augment(["rotate"], images(tmp_path))


def test_data_that_are_no_images_are_refused() -> None:
    feed = open_loader(lambda: [{"x": PIXELS}], [Input("x", (None, 3, 6, 8), np.dtype(F))])
    with pytest.raises(QdqError, match=r"--augment: .*not images"):
        open_augment(["flip"], feed)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("cells", [1, 2])
def test_class_maps_follow_the_picture(last: bool, cells: int) -> None:
    """What is bright is class 1, in a map as fine as the picture, or half as fine."""
    planes = np.zeros((2, 3, 60, 80), F)
    planes[0, :, 20:40, 10:30], planes[1, :, 30:50, 40:70] = 200, 200
    numbers = (planes[:, 0, ::cells, ::cells] > 100).astype(np.int64)
    channel = numbers[..., None] if last else numbers[:, None]
    sample = {"x": planes.transpose(0, 2, 3, 1) if last else planes, "y": numbers, "p": channel.astype(F)}
    augment = ImageAugment("x", ("flip", "crop", "color"), last, labels=("y", "p"))
    for seed in range(12):
        found = augment(sample, np.random.default_rng(seed))
        images = found["x"].transpose(0, 3, 1, 2) if last else found["x"]
        bright = images.mean(1) > images.mean((1, 2, 3), keepdims=True)[:, 0]
        assert (found["y"] == bright[:, cells // 2 :: cells, cells // 2 :: cells]).mean() > 0.97
        assert np.array_equal(found["p"].reshape(found["y"].shape), found["y"])
        assert found["y"].min() >= 0  # a crop lies within the picture
    assert np.array_equal(sample["y"], (planes[:, 0, ::cells, ::cells] > 100))


@pytest.mark.parametrize("last", [False, True])
def test_boxes_follow_the_picture(last: bool) -> None:
    picture = np.zeros((2, 3, 60, 80), F)
    picture[0, :, 20:40, 10:30], picture[1, :, 30:50, 40:70] = 200, 200
    rows = np.array([[[4, 10, 20, 30, 40], [-1, 0, 0, 0, 0]], [[2, 40, 30, 70, 50], [1, 0, 0, 2, 2]]], F)
    sample = {"x": picture.transpose(0, 2, 3, 1) if last else picture, LABELED_BOXES: rows}
    augment = ImageAugment("x", ("flip", "crop", "color"), last, labels=(LABELED_BOXES,))
    seen = set()
    for seed in range(12):
        found = augment(sample, np.random.default_rng(seed))
        images = found["x"].transpose(0, 3, 1, 2) if last else found["x"]
        assert np.array_equal(found[LABELED_BOXES], augment(sample, np.random.default_rng(seed))[LABELED_BOXES])
        assert found[LABELED_BOXES][:, 0, 0].tolist() == [4, 2] and found[LABELED_BOXES][0, 1, 0] == -1
        seen.add(float(found[LABELED_BOXES][1, 1, 0]))
        for image, row in zip(images, found[LABELED_BOXES][:, 0], strict=True):
            down, across = np.nonzero(image.mean(0) > (image.mean(0).max() + image.mean(0).min()) / 2)
            edges = [across.min(), down.min(), across.max() + 1, down.max() + 1]
            assert np.abs(row[1:] - edges).max() <= 1.01
    assert seen == {1, -1}  # the corner is cut off now and then
    assert np.array_equal(sample[LABELED_BOXES], rows)
