# SPDX-License-Identifier: Apache-2.0
"""The text of --preprocess: what is read, what is refused, and that it reads back."""

from __future__ import annotations

import pytest

from qdqtool.data.preprocess import PRESETS, Preprocess, parse_preprocess
from qdqtool.errors import QdqError


def test_explicit_text_says_everything() -> None:
    text = "size=320x240,layout=nhwc,color=bgr,scale=1/4,mean=1:2:3,std=4/5/6,resize=letterbox,pad=0,interpolation=area"
    assert parse_preprocess(text) == Preprocess(
        (320, 240), "nhwc", "bgr", 0.25, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), "letterbox", 0, "area"
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_reads_back_from_its_explicit_text(name: str) -> None:
    spec = parse_preprocess(name)
    assert parse_preprocess(str(spec)) == spec


def test_caffe_is_bgr_in_levels_less_the_mean_of_each_color() -> None:
    """Without it nobody who had not read Caffe found what SqueezeNet's own export wants."""
    assert str(parse_preprocess("caffe,size=2")).startswith(
        "size=2x2,color=bgr,scale=1.0,mean=104.0:117.0:123.0,std=1.0,"
    )
    assert parse_preprocess("caffe").resize == "crop"


def test_preset_is_refined_by_what_follows() -> None:
    plain, refined = parse_preprocess("imagenet"), parse_preprocess("imagenet, size=128x96, resize=stretch")
    assert refined.size == (128, 96)
    assert refined.resize == "stretch"
    assert (refined.mean, refined.std, refined.scale) == (plain.mean, plain.std, plain.scale)


def test_one_number_is_a_square() -> None:
    assert parse_preprocess("size=64").size == (64, 64)


def test_fraction_is_divided() -> None:
    assert parse_preprocess("scale=1/255").scale == 1 / 255


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("yolov9", "did you mean yolov8"),
        ("nonsense", "there are imagenet"),
        ("size=0x3", "between 1 and"),
        ("size=axb", "WIDTHxHEIGHT"),
        ("siez=3x3", "did you mean size"),
        ("size=3x3,size=4x4", "given twice"),
        ("imagenet,yolov5", "a preset comes first"),
        ("scale=0", "every image into zeros"),
        ("scale=1/0", "not a number"),
        ("mean=1:2", "neither one number nor three"),
        ("std=1:0:1", "above zero"),
        ("mean=nan", "not finite"),
        ("pad=256", "from 0 to 255"),
        ("color=gbr", "did you mean"),
        ("resize=letterboxed", "did you mean letterbox"),
    ],
)
def test_refusals_name_the_word(text: str, part: str) -> None:
    with pytest.raises(QdqError, match=part) as caught:
        parse_preprocess(text)
    assert caught.value.where == "--preprocess"
    assert "\n" not in caught.value.line()
