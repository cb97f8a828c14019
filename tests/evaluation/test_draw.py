# SPDX-License-Identifier: Apache-2.0
"""Pictures: what is drawn where, that every text can be read, and that the same input gives the same bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from qdqtool.evaluation import draw
from qdqtool.evaluation.detection_differences import differ
from qdqtool.evaluation.draw import BOTH, LOST, SPURIOUS, color_of, draw_boxes, draw_classes, draw_pair, name_of
from tests.evaluation.scenes_of_boxes import found


def plain(width: int = 640, height: int = 400, level: int = 128) -> Image.Image:
    return Image.new("RGB", (width, height), (level,) * 3)


def where(picture: Image.Image, color: tuple[int, int, int]) -> np.ndarray:
    """Which pixels, (H, W), are of exactly that color."""
    return (np.asarray(picture) == color).all(-1)


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_box_is_outlined_in_its_classs_color_with_a_dark_line_beside_it(level: int) -> None:
    picture = draw_boxes(plain(level=level), found(((100, 120, 300, 350), 0.5, 3)))
    pixels = np.asarray(picture).astype(int)
    for x, y in ((100, 200), (300, 200), (200, 120), (200, 350)):
        assert tuple(pixels[y, x]) == color_of(3)
    assert tuple(pixels[200, 99]) == (0, 0, 0)
    assert tuple(pixels[200, 200]) == (level,) * 3  # the inside stays visible


def test_the_surest_box_lies_on_top() -> None:
    strong, weak = ((100, 200, 300, 350), 0.9, 0), ((200, 120, 400, 300), 0.4, 1)
    picture = draw_boxes(plain(), found(strong, weak))
    for x, y in ((200, 200), (300, 300)):  # where the two outlines cross
        assert picture.getpixel((x, y)) == color_of(0)


def test_the_image_itself_is_not_changed_and_bytes_are_the_same_each_time() -> None:
    image, boxes = plain(), found(((10, 10, 90, 90), 0.5, 0), ((50, 50, 200, 200), 0.4, 1))
    before = image.tobytes()
    assert png(draw_boxes(image, boxes, ["a", "b"])) == png(draw_boxes(image, boxes, ["a", "b"]))
    assert image.tobytes() == before
    assert draw_boxes(plain(), found()).tobytes() == before


def test_small_images_are_enlarged_by_whole_factors_and_boxes_with_them() -> None:
    picture = draw_boxes(plain(96, 96), found(((24, 48, 72, 90), 0.9, 0)))
    assert picture.size == (384, 384)
    assert where(picture, color_of(0))[48 * 4 + 60, 24 * 4]
    assert draw_boxes(plain(640, 400), found()).size == (640, 400)


def test_grey_images_are_drawn_on_in_color() -> None:
    picture = draw_boxes(Image.new("L", (400, 400), 90), found(((40, 40, 200, 200), 0.9, 0)))
    assert where(picture, color_of(0)).any()


@pytest.mark.parametrize(
    "box", [(0, 0, 30, 30), (600, 380, 640, 400), (-50, -50, 900, 900), (630, 0, 640, 400), (5, 5, 5, 5)]
)
def test_a_text_is_never_cut_off(box: tuple[float, ...]) -> None:
    """The plate of a box in the middle, and of one at a border, have the same number of pixels."""
    picture, pen = draw._enlarged(plain())
    item = draw._Item(draw._corners(pen, np.array(box, np.float32)), (255, 0, 0), "traffic light 0.50")
    left, top, right, bottom = draw._plate(pen, item, [])
    assert left >= 0
    assert top >= 0
    assert right <= picture.width
    assert bottom <= picture.height
    assert (right - left, bottom - top) == pytest.approx((draw._plate(pen, item, [])[2] - left, bottom - top))


def test_texts_avoid_one_another_while_there_is_room() -> None:
    _, pen = draw._enlarged(plain())
    taken: list[tuple[int, int, int, int]] = []
    for row in range(4):
        item = draw._Item((100 + row, 150, 300 - row, 250), (255, 0, 0), f"person {row}")
        taken.append(draw._plate(pen, item, taken))
    assert not any(draw._meet(one, other) for i, one in enumerate(taken) for other in taken[:i])
    crowd = draw._Item((100, 150, 300, 250), (255, 0, 0), "x" * 400)  # wider than the image: still somewhere
    assert draw._plate(pen, crowd, taken)[0] == 0


def test_lines_cross_no_text() -> None:
    """A weak box through the plate of a strong one leaves the plate as it is alone."""
    strong, weak = ((100, 150, 300, 250), 0.9, 0), ((110, 100, 140, 390), 0.4, 1)
    alone = np.asarray(draw_boxes(plain(), found(strong)))
    both = np.asarray(draw_boxes(plain(), found(strong, weak)))
    _, pen = draw._enlarged(plain())
    plate = draw._plate(pen, draw._Item((100, 150, 300, 250), color_of(0), "class 0 0.90"), [])
    region = np.s_[plate[1] : plate[3], plate[0] : plate[2]]
    np.testing.assert_array_equal(alone[region], both[region])


def test_text_is_dark_on_light_and_light_on_dark() -> None:
    assert draw._ink((255, 230, 0)) == (0, 0, 0)
    assert draw._ink((60, 0, 200)) == (255, 255, 255)


def test_neighboring_classes_have_other_colors_and_names_fall_back_to_numbers() -> None:
    assert len({color_of(label) for label in range(80)}) == 80
    assert [name_of(label, ["cat", ""]) for label in (0, 1, 2, -1)] == ["cat", "class 1", "class 2", "class -1"]


def test_classes_stand_below_the_image() -> None:
    picture = draw_classes(plain(400, 400, 0), ["0.900 cat", "0.100 a dog " * 10])
    assert picture.height > 400
    assert picture.width > 400  # as wide as the text
    assert not np.asarray(picture)[:400, :400].any()
    assert where(picture, (255, 255, 255))[400:].any()


def test_a_pair_marks_lost_left_and_spurious_right() -> None:
    reference = found(((40, 60, 140, 160), 0.9, 0), ((300, 60, 420, 160), 0.8, 1))
    candidate = found(((42, 60, 140, 160), 0.7, 0), ((300, 250, 420, 350), 0.6, 1))
    picture = draw_pair(plain(), differ(reference, candidate), ["a", "b"], ("FP32", "INT8"))
    strip = picture.height - 400
    assert picture.width == 2 * 640 + 4
    left, right = picture.crop((0, strip, 640, strip + 400)), picture.crop((644, strip, 1284, strip + 400))
    thick = where(left, LOST)[100, 290:330]
    assert thick.sum() >= 4
    assert where(left, BOTH)[120, 40]
    assert not where(left, SPURIOUS).any()
    assert where(right, SPURIOUS)[300, 300]
    assert where(right, BOTH)[120, 42]
    dashes = where(right, LOST)[62:158, 298:303].any(1)
    assert dashes.any()
    assert not dashes.all()  # dashed: the missing box, not a found one


def test_a_pair_without_differences_shows_neither_color() -> None:
    boxes = found(((40, 60, 140, 160), 0.9, 0))
    picture = draw_pair(plain(), differ(boxes, boxes))
    assert not where(picture, LOST).any()
    assert not where(picture, SPURIOUS).any()
    assert where(picture, BOTH).any()


def test_without_freetype_letters_that_pillows_font_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFont

    old = ImageFont.load_default_imagefont() if hasattr(ImageFont, "load_default_imagefont") else None
    if old is None:
        pytest.skip("this Pillow has no bitmap font to ask for")
    monkeypatch.setattr(draw, "_font", lambda size: old)
    picture = draw_boxes(plain(), found(((100, 120, 300, 350), 0.5, 0)), ["自転車"])
    assert where(picture, color_of(0)).any()


@pytest.mark.parametrize("size", [(1, 12000), (12000, 1), (3, 5000), (1, 1)])
def test_a_long_and_narrow_picture_is_not_enlarged_beyond_bounds(size: tuple[int, int]) -> None:
    """By its short side alone, 1 x 12000 would become 320 x 3840000: 8.6 GB."""
    rows = (((0, 0, size[0], size[1]), 0.9, 0), ((0, 0, size[0] / 2, size[1] / 2), 0.4, 1))
    picture = draw_boxes(plain(*size), found(*rows))
    assert max(picture.size) <= max(4096, *size)
    assert picture.width * picture.height <= 320 * 4096
    assert picture.width * size[1] == picture.height * size[0]
    pair = draw_pair(plain(*size), differ(found(*rows), found(rows[1])))
    assert max(pair.size) <= 2 * max(4096, *size) + 4


def test_a_long_line_has_no_more_dashes_than_can_be_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []

    class Draw:
        def line(self, points: object, **_: object) -> None:
            drawn.append(points)

    pen = draw._Pen(Draw(), None, 2, (60000, 20), 1)
    draw._dashed(pen, (0, 0, 59999, 19), LOST)
    assert len(drawn) < 4 * 2 * 300
