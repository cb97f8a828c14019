# SPDX-License-Identifier: Apache-2.0
"""Detections drawn on their image: boxes, class names, scores; two models side by side. Nothing is compared here.

Legible on anything: each line has a dark one below it, each text a plate of its own; small images are enlarged.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.data.images import load_pillow
from qdqtool.evaluation.detections import Detections, Float32

if TYPE_CHECKING:
    from PIL.Image import Image

    from qdqtool.evaluation.detection_differences import DetectionDifference

Color = tuple[int, int, int]
BOTH, LOST, SPURIOUS = (60, 200, 90), (240, 40, 40), (255, 150, 0)
_PLATE, _WHITE, _BLACK = (24, 24, 24), (255, 255, 255), (0, 0, 0)
_SMALLEST = 320  # the shorter side of what is drawn, at least, in pixels; of a strip that would get too long, less
_LONGEST = 4096  # the longer side of what is enlarged, at most, in pixels
_DASHES = 256  # in one line, at most
_GOLDEN = 0.618034  # steps of this fraction around the color circle keep neighboring classes apart
_DASH = 5  # line widths in a dash, and in the gap after it


@dataclass(frozen=True)
class _Pen:
    """A picture being drawn on."""

    draw: Any
    font: Any
    width: int
    size: tuple[int, int]
    zoom: int


@dataclass(frozen=True)
class _Item:
    """A box to draw: its corners in whole pixels of the picture, how, and what stands on its plate."""

    corners: tuple[int, int, int, int]
    color: Color
    text: str
    thick: int = 1


def color_of(label: int) -> Color:
    """The color of a class, always the same."""
    red, green, blue = colorsys.hsv_to_rgb((label * _GOLDEN) % 1, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)


def name_of(label: int, names: Sequence[str]) -> str:
    """What a class is called; its number where there is no name."""
    return names[label] if 0 <= label < len(names) and names[label] else f"class {label}"


def draw_boxes(image: Image, found: Detections, names: Sequence[str] = ()) -> Image:
    """A copy of an image with each box, its class and its score, the surest on top."""
    picture, pen = _enlarged(image)
    items = []
    for row in range(len(found)):
        label = int(found.labels[row])
        text = f"{name_of(label, names)} {found.scores[row]:.2f}"
        items.append(_Item(_corners(pen, found.boxes[row]), color_of(label), text))
    _draw_items(pen, items)
    return picture


def draw_classes(image: Image, lines: Sequence[str]) -> Image:
    """A copy of an image with lines of text below it, one for each of the best classes."""
    picture, pen = _enlarged(image)
    return _with_strip(picture, pen, lines, _WHITE, below=True)


def draw_pair(
    image: Image,
    difference: DetectionDifference,
    names: Sequence[str] = (),
    titles: tuple[str, str] = ("reference", "candidate"),
) -> Image:
    """The reference's boxes and the candidate's side by side, with what was lost and what came up marked.

    Green: both have it. Red and thick on the left: lost; the same box dashed on the right, where it is missing. Orange
    and thick on the right: spurious.
    """
    reference, candidate = difference.reference, difference.candidate
    left, pen = _enlarged(image)
    _marked(pen, reference, difference.lost, (LOST, "lost: "), names)
    title = f"{titles[0]}: {_boxes(len(reference))}, {int(difference.lost.sum())} of them lost"
    left = _with_strip(left, pen, [title], LOST if difference.lost.any() else _WHITE)
    right, pen = _enlarged(image)
    for row in np.flatnonzero(difference.lost):
        _dashed(pen, _corners(pen, reference.boxes[row]), LOST)
    _marked(pen, candidate, difference.spurious, (SPURIOUS, "spurious: "), names)
    title = f"{titles[1]}: {_boxes(len(candidate))}, {int(difference.spurious.sum())} spurious"
    right = _with_strip(right, pen, [title], SPURIOUS if difference.spurious.any() else _WHITE)
    gap = 4
    both: Image = load_pillow().new("RGB", (left.width + gap + right.width, max(left.height, right.height)), _WHITE)
    both.paste(left, (0, 0))
    both.paste(right, (left.width + gap, 0))
    return both


def _boxes(count: int) -> str:
    return f"{count} box{'' if count == 1 else 'es'}"


def _marked(pen: _Pen, found: Detections, alone: Any, mark: tuple[Color, str], names: Sequence[str]) -> None:
    """Boxes with a partner thin and green, below those without, thick and in the mark's color."""
    color, word = mark
    items = []
    for row in sorted(range(len(found)), key=lambda row: (not alone[row], row)):
        text = f"{name_of(int(found.labels[row]), names)} {found.scores[row]:.2f}"
        corners = _corners(pen, found.boxes[row])
        items.append(_Item(corners, color, word + text, 2) if alone[row] else _Item(corners, BOTH, text))
    _draw_items(pen, items)


def _enlarged(image: Image) -> tuple[Image, _Pen]:
    from PIL import ImageDraw

    zoom = max(1, min(math.ceil(_SMALLEST / min(image.size)), _LONGEST // max(image.size)))
    picture = image.convert("RGB")
    if zoom > 1:
        nearest = load_pillow().Resampling.NEAREST
        picture = picture.resize((image.width * zoom, image.height * zoom), nearest)
    shorter = min(picture.size)
    font = _font(max(12, shorter // 34))
    return picture, _Pen(ImageDraw.Draw(picture), font, max(2, shorter // 240), picture.size, zoom)


def _font(size: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:  # before Pillow 10.1 there was one size
        return ImageFont.load_default()


def _corners(pen: _Pen, box: Float32) -> tuple[int, int, int, int]:
    """A box in whole pixels of the picture, its lines inside it."""
    left, top, right, bottom = (round(float(value) * pen.zoom) for value in box)
    right, bottom = min(right, pen.size[0] - 1), min(bottom, pen.size[1] - 1)
    return min(left, right), min(top, bottom), right, bottom


def _draw_items(pen: _Pen, items: Sequence[_Item]) -> None:
    """Boxes and then their plates, so that no line crosses a text; what comes first lies on top and is placed first."""
    for item in reversed(items):
        width = pen.width * item.thick
        left, top, right, bottom = item.corners
        pen.draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_BLACK, width=width + 2)
        pen.draw.rectangle(item.corners, outline=item.color, width=width)
    taken: list[tuple[int, int, int, int]] = []
    for item in items:
        taken.append(_plate(pen, item, taken))
    for item, plate in reversed(list(zip(items, taken, strict=True))):
        left, top, right, bottom = plate
        text = _drawable(pen.font, item.text)
        x1, y1, *_ = pen.draw.textbbox((0, 0), text, font=pen.font)
        pen.draw.rectangle((left - 1, top - 1, right, bottom), fill=_BLACK)
        pen.draw.rectangle((left, top, right - 1, bottom - 1), fill=item.color)
        pen.draw.text((left + 3 - x1, top + 3 - y1), text, fill=_ink(item.color), font=pen.font)


def _plate(pen: _Pen, item: _Item, taken: Sequence[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    """Where a text stands: above its box, in its top, below it or in its bottom, wherever no other text stands yet."""
    x1, y1, x2, y2 = pen.draw.textbbox((0, 0), _drawable(pen.font, item.text), font=pen.font)
    wide, high = math.ceil(x2 - x1) + 6, math.ceil(y2 - y1) + 6
    left, top, right, bottom = item.corners
    places = []
    for at in (top - high, top, bottom, bottom - high):
        for start in (left, right - wide):
            start = max(0, min(start, pen.size[0] - wide))
            places.append((start, at, start + wide, at + high))
    inside = [place for place in places if place[1] >= 0 and place[3] <= pen.size[1]]
    free = [place for place in inside if not any(_meet(place, other) for other in taken)]
    return next(iter(free or inside), (places[0][0], 0, places[0][2], high))


def _meet(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _ink(color: Color) -> Color:
    """Black or white, whichever is read better on a color (its luminance after ITU-R BT.601)."""
    return _BLACK if 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 110 else _WHITE


def _drawable(font: Any, text: str) -> str:
    """The text, letters replaced that Pillow's own font without FreeType has not."""
    return text if hasattr(font, "path") else text.encode("ascii", "replace").decode()


def _dashed(pen: _Pen, corners: tuple[int, int, int, int], color: Color) -> None:
    left, top, right, bottom = corners
    dash = _DASH * pen.width
    sides = (
        (left, top, right, top),
        (right, top, right, bottom),
        (right, bottom, left, bottom),
        (left, bottom, left, top),
    )
    for x1, y1, x2, y2 in sides:
        length = max(abs(x2 - x1), abs(y2 - y1))
        step = max(dash, length // (2 * _DASHES))
        for start in range(0, length, 2 * step):
            end = min(start + step, length)
            points = [(x1 + (x2 - x1) * at / length, y1 + (y2 - y1) * at / length) for at in (start, end)]
            pen.draw.line(points, fill=_BLACK, width=pen.width + 2)
            pen.draw.line(points, fill=color, width=pen.width)


def _with_strip(picture: Image, pen: _Pen, lines: Sequence[str], color: Color, *, below: bool = False) -> Image:
    """The picture with a dark strip of text above or below it, wide enough for the text."""
    from PIL import ImageDraw

    shown = [_drawable(pen.font, line) for line in lines]
    extents = [pen.draw.textbbox((0, 0), line, font=pen.font) for line in shown]
    step = pen.draw.textbbox((0, 0), "Ag,", font=pen.font)[3] + 4  # of every strip, so that halves are of one height
    wide = max([picture.width, *(math.ceil(box[2]) + 8 for box in extents)])
    high = math.ceil(step * len(shown)) + 4
    whole: Image = load_pillow().new("RGB", (wide, picture.height + high), _PLATE)
    whole.paste(picture, (0, 0 if below else high))
    draw = ImageDraw.Draw(whole)
    for row, line in enumerate(shown):
        draw.text((4, 2 + row * step + (picture.height if below else 0)), line, fill=color, font=pen.font)
    return whole
