# SPDX-License-Identifier: Apache-2.0
"""What is done to an image before a model sees it: a value, read from one line of text. images.py does it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from qdqtool.errors import QdqError

Layout = Literal["nchw", "nhwc"]
Color = Literal["rgb", "bgr"]
Resize = Literal["stretch", "letterbox", "letterbox-topleft", "crop"]
Interpolation = Literal["linear", "area", "antialias", "cubic", "nearest"]

LARGEST_SIDE = 16384


@dataclass(frozen=True)
class Preprocess:
    """How an 8-bit image becomes a tensor: resized, then ``(value * scale - mean) / std`` per channel, in float32.

    Attributes:
        size: width and height; None takes them from the model's input.
        layout: where the channels stand; None takes it from the model's input.
        color: order of the channels that the model sees, and of `mean` and `std`.
        scale: factor on the 0..255 values.
        mean: subtracted after scaling, one value or one per channel.
        std: divided by after that, one value or one per channel.
        resize: `stretch` ignores the aspect ratio; `letterbox` keeps it and pads on both sides, `letterbox-topleft` at
            the right and bottom; `crop` covers size / 0.875, rounded (146 for 128), and cuts the center out.
        pad: grey level (0..255) of what a letterbox adds.
        interpolation: `linear` takes two neighbors a side, also when it shrinks (OpenCV's INTER_LINEAR, as most
            deployments do); `area` averages when it shrinks (INTER_AREA); `antialias` and `cubic` are Pillow's filters.
    """

    size: tuple[int, int] | None = None
    layout: Layout | None = None
    color: Color = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: Resize = "stretch"
    pad: int = 114
    interpolation: Interpolation = "linear"

    def __str__(self) -> str:
        """The explicit text of this value: what `parse_preprocess` reads back."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if isinstance(value, tuple):
                value = ("x" if field.name == "size" else ":").join(map(repr, value))
            words.append(f"{field.name}={value}")
        return ",".join(words)


_UNIT = 1 / 255
_LETTERBOX = Preprocess(resize="letterbox", scale=_UNIT)
_MINUS_127 = Preprocess(mean=(127.0,), std=(128.0,))

# What the reference implementations do to an image: torchvision's classification presets; yolov5 and ultralytics'
# LetterBox; YOLOX's preproc (BGR, not scaled); pytorch-ssd, which jetson-inference trains and UltraFace descends from;
# NanoDet's config of nanodet-m (keep_ratio, warpAffine's black border); FastestDet's test script; OpenCV's
# FaceDetectorYN (padded to a multiple of 32); keras.applications' mode "tf", -1 to 1; Caffe's model zoo (BGR in 0..255,
# the mean of each color of ImageNet subtracted in whole numbers, as SqueezeNet's own files have it).
# What resizes with OpenCV for a classifier mostly averages areas: imagenet,interpolation=area.
PRESETS: dict[str, Preprocess] = {
    "imagenet": Preprocess(
        scale=_UNIT, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize="crop", interpolation="antialias"
    ),
    "caffe": Preprocess(color="bgr", mean=(104.0, 117.0, 123.0), resize="crop", interpolation="antialias"),
    "keras": Preprocess(scale=1 / 127.5, mean=(1.0,)),
    "yolov5": _LETTERBOX,
    "yolov8": _LETTERBOX,
    "yolox": Preprocess(color="bgr", resize="letterbox-topleft"),
    "ssd": _MINUS_127,
    "ultraface": _MINUS_127,
    "nanodet": Preprocess(
        color="bgr", mean=(103.53, 116.28, 123.675), std=(57.375, 57.12, 58.395), resize="letterbox", pad=0
    ),
    "fastestdet": Preprocess(color="bgr", scale=_UNIT),
    "yunet": Preprocess(color="bgr", resize="letterbox-topleft", pad=0),
}


def parse_preprocess(text: str) -> Preprocess:
    """Read a preset, ``key=value,...``, or a preset refined by such keys: ``imagenet,size=128x128``.

    Raises:
        QdqError: an unknown preset or key, a key given twice, a value that cannot be.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise _fault(text, "is empty")
    spec = Preprocess()
    if "=" not in words[0]:
        name = words.pop(0)
        if name not in PRESETS:
            raise _fault(name, "is not a preset" + _near(name, list(PRESETS)))
        spec = PRESETS[name]
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise _fault(word, "is not key=value" + (" (a preset comes first)" if word in PRESETS else ""))
        if key not in _READERS:
            raise _fault(key, "is not a key of it" + _near(key, list(_READERS)))
        if key in given:
            raise _fault(key, "is given twice")
        given[key] = _READERS[key](key, value)
    return replace(spec, **given)


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f", did you mean {near[0]}" if near else f" (there are {', '.join(known)})"


def _fault(word: str, reason: str) -> QdqError:
    return QdqError(
        "--preprocess", f"{word!r} {reason}", "such as imagenet, or size=320x240,color=rgb,mean=127,std=128"
    )


def _size(key: str, value: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:[xX](\d{1,5}))?", value)
    if not match:
        raise _fault(f"{key}={value}", "is not WIDTHxHEIGHT")
    width, height = int(match[1]), int(match[2] or match[1])
    if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        raise _fault(f"{key}={value}", f"must lie between 1 and {LARGEST_SIDE}")
    return width, height


def _number(key: str, value: str) -> float:
    match = re.fullmatch(r"([^/]+)(?:/([^/]+))?", value)
    try:
        if not match:
            raise ValueError
        number = float(match[1]) / float(match[2] or 1)
    except (ValueError, ZeroDivisionError):
        raise _fault(f"{key}={value}", "is not a number") from None
    if not abs(number) < float("inf"):
        raise _fault(f"{key}={value}", "is not finite")
    return number


def _scale(key: str, value: str) -> float:
    number = _number(key, value)
    if number == 0:
        raise _fault(f"{key}={value}", "turns every image into zeros")
    return number


def _channels(key: str, value: str) -> tuple[float, ...]:
    numbers = tuple(_number(key, part) for part in re.split("[/:]", value))
    if len(numbers) not in (1, 3):
        raise _fault(f"{key}={value}", "is neither one number nor three numbers")
    if key == "std" and not all(number > 0 for number in numbers):
        raise _fault(f"{key}={value}", "must be above zero")
    return numbers


def _pad(key: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,3}", value) or int(value) > 255:
        raise _fault(f"{key}={value}", "is not a grey level from 0 to 255")
    return int(value)


def _one_of(kind: Any) -> Callable[[str, str], str]:
    names = list(get_args(kind))

    def read(key: str, value: str) -> str:
        if value not in names:
            raise _fault(f"{key}={value}", "is unknown" + _near(value, names))
        return value

    return read


_READERS: dict[str, Callable[[str, str], Any]] = {
    "size": _size,
    "layout": _one_of(Layout),
    "color": _one_of(Color),
    "scale": _scale,
    "mean": _channels,
    "std": _channels,
    "resize": _one_of(Resize),
    "pad": _pad,
    "interpolation": _one_of(Interpolation),
}
