# SPDX-License-Identifier: Apache-2.0
"""The blood cells of the BCCD data set: images, VOC labels, splits, and what each cell of the detector should say.

python models/bccd.py BCCD --links somewhere    (a folder of links to the images of each split, for `qdqtool --data`)
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

NAMES = ("RBC", "WBC", "Platelets")
SPLITS = ("train", "val", "test")
WIDTH, HEIGHT = 224, 160
STRIDES = (8, 16, 32)
LONGEST = (48.0, 72.0, float("inf"))  # the longer side, in pixels of the input, that a stride answers for at most
REACH = 1.5  # a cell whose center lies this near (strides, each axis) to a box's center answers for it
SPREAD = 0.8  # how fast, in strides, what it should score falls off from there
GREY = 114  # what YOLOX pads with
_SHRINK = 3.0  # pixels of a photograph (640x480) to one of the input
_HALF = 2  # photographs are kept at half their size: enough to draw windows from, and a quarter of the memory
_LEAST_SEEN = 0.3  # of a box, or it is left out of a window


class Photo(NamedTuple):
    """An image at half its size (RGB), boxes [m, 4] float32 (x1, y1, x2, y2 in its own pixels), labels [m] int64."""

    image: Image.Image
    boxes: np.ndarray
    labels: np.ndarray


class BccdTargets(NamedTuple):
    """What the 735 cells should say: quality [735, 1], classes [735, 3], corners [735, 4] in pixels, all float32."""

    quality: np.ndarray
    classes: np.ndarray
    corners: np.ndarray


def files_of(root: Path, split: str) -> list[Path]:
    """The images of a split, in its order."""
    names = (root / "ImageSets" / "Main" / f"{split}.txt").read_text(encoding="utf-8").split()
    return [root / "JPEGImages" / f"{name}.jpg" for name in names]


def refuse_other_folders(parser: argparse.ArgumentParser, root: Path) -> None:
    """End with a line where a folder is not BCCD's."""
    lacking = [name for name in ("ImageSets/Main", "JPEGImages", "Annotations") if not (root / name).is_dir()]
    if lacking:
        parser.error(f"{root} is not the folder of BCCD: it has no {', '.join(lacking)}")


def load(root: Path, split: str) -> list[Photo]:
    """Every image of a split with its labels; boxes without an area, which there are two of, are left out."""
    photos = []
    for file in files_of(root, split):
        with Image.open(file) as image:
            half = image.convert("RGB").resize((image.width // _HALF, image.height // _HALF), Image.Resampling.BOX)
        boxes, labels = _labels(root / "Annotations" / f"{file.stem}.xml")
        photos.append(Photo(half, boxes / np.float32(_HALF), labels))
    return photos


def _labels(file: Path) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = [], []
    for one in ET.parse(file).getroot().iter("object"):
        x1, y1, x2, y2 = (float(one.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax"))
        if x2 > x1 and y2 > y1:
            rows.append((x1, y1, x2, y2))
            labels.append(NAMES.index(one.findtext("name", "")))
    return np.array(rows, np.float32).reshape(-1, 4), np.array(labels, np.int64)


def whole(photo: Photo) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The photograph as `--preprocess yolox,interpolation=area` lays it into the input, to a grey level or so.

    Returns:
        [3, 160, 224] float32 (BGR, 0 to 255), boxes in pixels of the input, labels.
    """
    return _window(photo, 0.0, 0.0, _SHRINK / _HALF)


def augmented(photo: Photo, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A window of the photograph as `whole` gives it: another size and place, mirrored, other colors."""
    shrink = _SHRINK / _HALF / rng.uniform(0.85, 1.2)
    spare = photo.image.width - WIDTH * shrink, photo.image.height - HEIGHT * shrink
    left, top = (rng.uniform(min(0.0, one), max(0.0, one)) for one in spare)
    pixels, boxes, labels = _window(photo, left, top, shrink)
    if rng.random() < 0.5:
        pixels, boxes = pixels[:, :, ::-1], (boxes * (-1, 1, -1, 1) + (WIDTH, 0, WIDTH, 0))[:, [2, 1, 0, 3]]
    if rng.random() < 0.5:
        pixels, boxes = pixels[:, ::-1], (boxes * (1, -1, 1, -1) + (0, HEIGHT, 0, HEIGHT))[:, [0, 3, 2, 1]]
    gain = rng.uniform(0.8, 1.2) * rng.uniform(0.92, 1.08, (3, 1, 1))
    mean = pixels.mean()
    colored = (pixels - mean) * gain + mean * rng.uniform(0.85, 1.15)
    return np.clip(colored, 0, 255).astype(np.float32), boxes.astype(np.float32), labels


def _window(photo: Photo, left: float, top: float, shrink: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some of the photograph from (left, top) on, each pixel the mean of `shrink` squared; grey where there is none."""
    across, down = WIDTH * shrink, HEIGHT * shrink
    column, row = int(np.floor(left)), int(np.floor(top))
    canvas = Image.new("RGB", (int(np.ceil(across)) + 1, int(np.ceil(down)) + 1), (GREY,) * 3)
    canvas.paste(photo.image, (-column, -row))
    start = left - column, top - row
    cut = canvas.resize((WIDTH, HEIGHT), Image.Resampling.BOX, (*start, start[0] + across, start[1] + down))
    pixels = np.asarray(cut, np.float32)[..., ::-1].transpose(2, 0, 1)
    boxes = (photo.boxes - np.array([left, top, left, top], np.float32)) / np.float32(shrink)
    seen = np.clip(boxes, 0, (WIDTH, HEIGHT, WIDTH, HEIGHT)).astype(np.float32)
    kept = _area(seen) > _LEAST_SEEN * _area(boxes)
    return np.ascontiguousarray(pixels), seen[kept], photo.labels[kept]


def _area(boxes: np.ndarray) -> np.ndarray:
    return np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)


def grid() -> tuple[np.ndarray, np.ndarray]:
    """Column and row of every cell [735, 2] and its stride [735, 1], stride by stride, row by row."""
    cells = [np.stack(np.mgrid[: HEIGHT // s, : WIDTH // s][::-1], -1).reshape(-1, 2) for s in STRIDES]
    strides = [np.full((len(cell), 1), stride) for cell, stride in zip(cells, STRIDES, strict=True)]
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def targets(boxes: np.ndarray, labels: np.ndarray) -> BccdTargets:
    """What each cell should say, from the labels alone: nothing depends on what a network says so far.

    A box is answered for by the stride that its longer side falls to, in the cells around its center; a cell between
    two boxes answers for the nearer one. The quality is exp(-d^2 / (2 SPREAD^2)), d the distance of the centers in
    strides: the cell in the middle should score best, so that suppression keeps its box.

    Args:
        boxes: float32 [m, 4], corners in pixels of the input.
        labels: int64 [m].
    """
    cells, stride = grid()
    quality, classes = np.zeros((len(cells), 1), np.float32), np.zeros((len(cells), len(NAMES)), np.float32)
    corners = np.zeros((len(cells), 4), np.float32)
    if not len(boxes):
        return BccdTargets(quality, classes, corners)
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = ((cells[None] + 0.5) * stride - middle[:, None]) / stride  # [m, cells, 2] in strides
    level = np.searchsorted(LONGEST, (boxes[:, 2:] - boxes[:, :2]).max(1))
    answers = np.array(STRIDES, np.float32)[level][:, None] == stride[:, 0]
    distance = np.where(answers, np.square(away).sum(-1), np.inf)
    inside = np.abs(away * stride).max(-1) < (boxes[:, 2:] - boxes[:, :2]).min(1)[:, None] / 2
    near = answers & (inside & (np.abs(away).max(-1) < REACH) | (distance == distance.min(1, keepdims=True)))
    distance = np.where(near, distance, np.inf)
    owner = distance.argmin(0)
    mine = near.any(0)
    quality[mine, 0] = np.exp(-distance.min(0)[mine] / (2 * SPREAD**2))
    classes[mine, labels[owner[mine]]] = 1
    corners[mine] = boxes[owner[mine]]
    return BccdTargets(quality, classes, corners)


def link(root: Path, where: Path) -> None:
    """A folder of links to the images of each split."""
    for split in SPLITS:
        (where / split).mkdir(parents=True, exist_ok=True)
        for file in files_of(root, split):
            place = where / split / file.name
            if not place.exists():
                place.symlink_to(file.resolve())


def main() -> None:
    """Part the images, without copying one."""
    parser = argparse.ArgumentParser(description="part the images of BCCD by its splits")
    parser.add_argument("root", type=Path, help="the folder that holds ImageSets, JPEGImages and Annotations")
    parser.add_argument("--links", type=Path, required=True)
    chosen = parser.parse_args()
    refuse_other_folders(parser, chosen.root)
    link(chosen.root, chosen.links)
    counts = ", ".join(f"{split} {len(files_of(chosen.root, split))}" for split in SPLITS)
    print(f"{chosen.links}: links to the images of each split: {counts}")


if __name__ == "__main__":
    main()
