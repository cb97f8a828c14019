# SPDX-License-Identifier: Apache-2.0
"""Finding a decoder: names, settings, shapes; and what is said where none or several fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.auto_detect import FAMILIES, find_decoder
from qdqtool.evaluation.decode.head import HeadDecoder, are_probabilities, are_shares, sigmoid, softmax
from qdqtool.evaluation.decode_options import Selection
from tests.evaluation.decode.head_makers import boxes_in, check, identity, yolox

SIZE = (384, 256)


def test_shapes_are_enough_where_they_tell_and_the_batch_may_be_free() -> None:
    found = find_decoder("auto", {"output": ("batch", 2016, 8)}, SIZE)
    assert (found.family, found.head.classes, found.selection) == ("yolox", 3, Selection())
    with pytest.raises(QdqError, match=r"cls: .*free shape; .*one batch"):
        find_decoder("auto", {"cls": (1, "cells", 8)}, SIZE)


def test_where_none_fits_the_line_is_short_and_each_family_says_why_when_it_is_named() -> None:
    outputs = {f"maps_{number}": (1, 7, 11, 13) for number in range(12)}
    with pytest.raises(QdqError) as stop:
        find_decoder("auto", outputs, SIZE)
    line = stop.value.line()
    assert re.match(r"--decoder auto: .* maps_0 \[1, 7, 11, 13\], maps_1", line)
    assert "and 8 more; give --postprocess script.py:function" in line
    assert line.endswith("see docs/decoders.md") and len(line) < 320
    for family in FAMILIES:
        with pytest.raises(QdqError, match=rf"--decoder {family}: does not fit .*maps_0"):
            find_decoder(family, outputs, SIZE)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("yolo", "'yolo' is not a decoder, did you mean yolo"),
        ("frcnn", "'frcnn' is not a decoder; choose auto, yolox, nanodet"),
        ("ssd,decoded=maybe", "decoded=maybe cannot be; decoded takes yes or no"),
        ("yolov8,classes=0", "classes=0 cannot be; classes takes a number"),
        ("yolov8,classes=x", "classes=x cannot be"),
        ("yolov5,anchors=1:2:3", "anchors=1:2:3 cannot be; anchors takes width:height of three a map"),
        ("yolov5,anchors=1:2:3:4:5:-6", "cannot be"),
        ("yolov5,stride=8", "'stride' is not a setting; there are anchors, classes and decoded"),
        ("ssd,decoded=no,decoded=no", "decoded is given twice"),
    ],
)
def test_names_and_settings_that_cannot_be(name: str, reported: str) -> None:
    with pytest.raises(QdqError, match=reported):
        find_decoder(name, {"output": (1, 2016, 8)}, SIZE)


def decoder() -> HeadDecoder:
    return find_decoder("yolox", {"output": (1, 2016, 8)}, SIZE, Selection(score=0.3, most=2))


def test_a_decoder_keeps_what_the_selection_says() -> None:
    known = boxes_in(SIZE, 3, 0)
    check(decoder()(yolox(known, SIZE, 3), [identity(SIZE)])[0], known[:2])
    assert decoder()({}, []) == []


def test_outputs_that_lack_a_name_and_samples_that_are_not_as_many_as_images() -> None:
    with pytest.raises(QdqError, match="yolox: the outputs lack 'output'"):
        decoder()({"other": np.zeros((1, 2016, 8))}, [identity(SIZE)])
    with pytest.raises(QdqError, match=r"yolox: .* 1 samples, .* 2 images"):
        decoder()({"output": np.zeros((1, 2016, 8), np.float32)}, [identity(SIZE)] * 2)


def test_an_int8_model_that_overflows_gives_no_boxes_and_no_warning() -> None:
    output = np.zeros((1, 2016, 8), np.float32)
    output[..., 2:4], output[..., 4:] = 2000.0, 1.0
    with np.errstate(all="raise"):
        assert len(decoder()({"output": output}, [identity(SIZE)])[0]) == 0


def test_activations() -> None:
    values = np.array([[-200.0, 0.0, 200.0]], np.float32)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(sigmoid(values), [[0, 0.5, 1]])
        np.testing.assert_allclose(softmax(np.array([[1e4, 1e4]])), [[0.5, 0.5]])
    assert are_probabilities(sigmoid(values))
    assert not are_probabilities(values)
    assert are_shares(np.array([[0.2, 0.85], [1.0, 0.0]]))
    assert not are_shares(np.array([[2.0, -1.0], [0.5, 0.5]]))
