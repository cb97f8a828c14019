# SPDX-License-Identifier: Apache-2.0
"""An image file to the array a model eats: decode, resize, color order, normalize. Not which images are read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.preprocess import Interpolation, Layout, Preprocess
from qdqtool.data.resample import resize_area, resize_linear
from qdqtool.errors import MissingPackageError, QdqError

if TYPE_CHECKING:
    from PIL.Image import Image

Float32 = npt.NDArray[np.float32]
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")

_HELD = 48 << 20  # bytes of pixels
_CROP = 0.875  # the center that a classifier sees: 224 of 256
MAX_PIXELS = 89_478_485  # of one image, as Pillow's own limit: a quarter of a gigabyte as RGB
MAX_SIDE = 65_535  # pixels, the most that a JPEG can have
_ORIENTATION = 0x0112  # of EXIF: 1 is upright
_GREY = ("1", "L", "LA")
_NUMBERS = ("1", "L", "P", "I;16")
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


@dataclass(frozen=True)
class ImageReader:
    """A preprocessing fitted to one model input: all that was left open is decided.

    Attributes:
        spec: the preprocessing, its `size` and `layout` filled in.
        channels: 1 (grey) or 3.
    """

    spec: Preprocess
    channels: int

    def array(self, image: Image, where: object = "image") -> Float32:
        """The array of a decoded image: float32, (1, C, H, W) or (1, H, W, C).

        Raises:
            QdqError: it is so long and narrow that filling the input's size would take more than `MAX_PIXELS`.
        """
        return self.normalized(self.pixels(image, where))

    def pixels(self, image: Image, where: object = "image") -> npt.NDArray[np.uint8]:
        """The pixels of a decoded image in the input's size: (H, W, C).

        Raises:
            QdqError: see `array`.
        """
        pixels = np.asarray(self._resized(image, where), np.uint8)
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def normalized(self, pixels: npt.NDArray[np.uint8]) -> Float32:
        """The array of pixels in the input's size."""
        if self.spec.color == "bgr":
            pixels = pixels[..., ::-1]
        values: npt.NDArray[Any] = pixels.astype(np.float32) * np.float32(self.spec.scale)
        values = (values - np.array(self.spec.mean, np.float32)) / np.array(self.spec.std, np.float32)
        if self.spec.layout == "nchw":
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values[None], np.float32)

    def _resized(self, image: Image, where: object) -> Image:
        width, height = self.spec.size or image.size
        how = self.spec.interpolation
        if self.spec.resize == "stretch":
            return _resample(image, width, height, how)
        if self.spec.resize == "crop":
            whole = covering_size(image.size, (width, height))
            if math.prod(whole) > MAX_PIXELS:
                grown = f"to fill {width}x{height} it would be scaled to {whole[0]}x{whole[1]}"
                raise QdqError(where, f"is {image.width}x{image.height}: {grown}", "crop it first")
            covering = _resample(image, *whole, how)
            left, top = (covering.width - width) // 2, (covering.height - height) // 2
            return covering.crop((left, top, left + width, top + height))
        return self._letterboxed(image, width, height)

    def _letterboxed(self, image: Image, width: int, height: int) -> Image:
        """Keep the aspect ratio: YOLOX cuts off fractions of a pixel and pads behind, YOLOv5 rounds and centers."""
        pillow = load_pillow()
        corner = self.spec.resize == "letterbox-topleft"
        _, wide, high = letterbox_size(self.spec, image.size, (width, height))
        inner = _resample(image, wide, high, self.spec.interpolation)
        grey = (self.spec.pad,) * 3 if self.channels == 3 else self.spec.pad
        canvas: Image = pillow.new(image.mode, (width, height), grey)
        canvas.paste(inner, (0, 0) if corner else ((width - inner.width) // 2, (height - inner.height) // 2))
        return canvas


class ImageFileReader:
    """Arrays of image files. Pixels stay in memory, up to `_HELD` bytes, as data are walked several times."""

    def __init__(self, reader: ImageReader) -> None:
        """Read by a preprocessing."""
        self._reader, self._held, self._left = reader, dict[Path, npt.NDArray[np.uint8]](), _HELD

    def read(self, path: Path) -> Float32:
        """The array of one image file: float32, (1, C, H, W) or (1, H, W, C).

        Raises:
            QdqError: see `decode_image` and `ImageReader.array`.
        """
        pixels = self._held.get(path)
        if pixels is None:
            pixels = self._reader.pixels(decode_image(path, self._reader.channels), path)
            if pixels.nbytes <= self._left:
                self._held[path], self._left = pixels, self._left - pixels.nbytes
        return self._reader.normalized(pixels)


def covering_size(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Width and height to which `crop` scales an image before it cuts the target out of its center."""
    (wide, high), (width, height) = size, target
    ratio = max(round(width / _CROP) / wide, round(height / _CROP) / high)
    return max(width, round(wide * ratio)), max(height, round(high * ratio))


def letterbox_size(spec: Preprocess, size: tuple[int, int], target: tuple[int, int]) -> tuple[float, int, int]:
    """The ratio by which a letterbox scales an image, and the whole pixels of width and height that result."""
    ratio = min(target[0] / size[0], target[1] / size[1])
    wide, high = ((int if spec.resize == "letterbox-topleft" else round)(side * ratio) for side in size)
    return ratio, max(1, wide), max(1, high)


def fit_reader(spec: Preprocess, name: str, shape: Sequence[int | str | None]) -> ImageReader:
    """Decide size, layout and channels of a preprocessing from the model input it is for.

    Raises:
        QdqError: the input takes no images, its size is free and none was given, the two disagree, or it is more than
            `MAX_PIXELS`.
    """
    if len(shape) != 4:
        raise QdqError(name, f"takes arrays of {len(shape)} dimensions, not images", "give the data as .npz")
    layout = spec.layout or _layout(name, shape)
    channels, rows, columns = (shape[1], shape[2], shape[3]) if layout == "nchw" else (shape[3], shape[1], shape[2])
    if not isinstance(channels, int):
        channels = 3
    if channels not in (1, 3):
        raise QdqError(
            name, f"has {channels} channels in the layout {layout}, an image has 1 or 3", "say layout=nchw or nhwc"
        )
    size = _size(spec, name, columns, rows)
    if math.prod(size) > MAX_PIXELS:
        reason = f"takes images of {size[0]}x{size[1]} pixels, above the {MAX_PIXELS} that are made"
        raise QdqError(name, reason, "check the shape of the input, or size= of --preprocess")
    for what, values in (("mean", spec.mean), ("std", spec.std)):
        if len(values) not in (1, channels):
            raise QdqError(
                name, f"has {channels} channel, {what} has {len(values)} values", f"give {what}=<one number>"
            )
    fitted = Preprocess(**{**vars(spec), "size": size, "layout": layout})
    return ImageReader(fitted, channels)


def _layout(name: str, shape: Sequence[int | str | None]) -> Layout:
    if shape[1] in (1, 3):
        return "nchw"
    if shape[3] in (1, 3):
        return "nhwc"
    raise QdqError(
        name, "does not show which axis is the channel axis", "say layout=nchw or layout=nhwc in --preprocess"
    )


def _size(spec: Preprocess, name: str, width: int | str | None, height: int | str | None) -> tuple[int, int]:
    if spec.size is None:
        if isinstance(width, int) and isinstance(height, int):
            return width, height
        raise QdqError(name, "takes images of any size", "say which: add size=WIDTHxHEIGHT to --preprocess")
    for given, fixed in zip(spec.size, (width, height), strict=True):
        if isinstance(fixed, int) and given != fixed:
            wanted = f"{width}x{height}"
            raise QdqError(
                name,
                f"is {wanted} (width x height), --preprocess says {'x'.join(map(str, spec.size))}",
                "leave size out",
            )
    return spec.size


def has_color(path: Path) -> bool:
    """Whether an image has color, by its header; False for a file that cannot be read, of which its reader says why."""
    pillow = load_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(path) as file:
                return file.mode not in _GREY
    except Exception:  # as in decode_image
        return False


def decode_image(path: Path, channels: int) -> Image:
    """The image as the camera meant it (EXIF orientation applied), 8 bits, grey or RGB; transparency is dropped.

    Raises:
        QdqError: the file is no image, is broken, or holds more than 8 bits a channel or more than `MAX_PIXELS`.
    """
    mode = "RGB" if channels == 3 else "L"
    return _decoded(path, _MODES, ("not of 8 bits a channel", "convert it, or give .npz"), partial(_upright, mode=mode))


def class_map(path: Path) -> npt.NDArray[Any]:
    """The class number of each pixel of a grey or palette image: integers [height, width].

    Raises:
        QdqError: as `decode_image`, and an image of colors.
    """
    wrong = "whose pixels are no class numbers", "give grey or palette .png"
    return np.asarray(_decoded(path, _NUMBERS, wrong, _loaded))


def _decoded(path: Path, modes: Sequence[str], wrong: tuple[str, str], decode: Callable[[Any], Image]) -> Image:
    """What `decode` makes of an image file in one of the modes; `wrong` says what other modes are, and what to do."""
    pillow = load_pillow()
    try:
        with warnings.catch_warnings():  # of a large size or of odd tags: what matters of it is refused below
            warnings.simplefilter("ignore")
            opened = pillow.open(path)
        with opened as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_size(path, file.width, file.height)
            if file.mode not in modes:
                raise QdqError(path, f"is an image of mode {file.mode}, {wrong[0]}", wrong[1])
            return decode(file)
    except QdqError:
        raise
    except pillow.DecompressionBombError as error:
        raise QdqError(path, f"is too large to decode ({error})", "scale it down first") from error
    except Exception as error:  # Pillow's decoders raise what they like: OSError, SyntaxError, struct.error, IndexError
        raise QdqError(path, f"cannot be read as an image ({_short(error)})", "remove or replace it") from error


def _check_size(path: Path, width: int, height: int) -> None:
    """Refuse, before anything is decoded, what a small file can unpack to."""
    if width * height > MAX_PIXELS:
        reason = f"has {width}x{height} pixels, above the {MAX_PIXELS} that are decoded"
        raise QdqError(path, reason, "scale it down first")
    if max(width, height) > MAX_SIDE:
        reason = f"has {width}x{height} pixels, above the {MAX_SIDE} that a side may have"
        raise QdqError(path, reason, "crop it first")


def _upright(file: Any, mode: str) -> Image:
    """The image decoded and turned, without a second copy of its pixels where nothing is to be done."""
    from PIL import ImageOps

    turned = file.getexif().get(_ORIENTATION, 1) != 1
    file.load()
    upright: Image = ImageOps.exif_transpose(file) if turned else file
    return upright if upright.mode == mode else upright.convert(mode)


def _loaded(file: Any) -> Image:
    file.load()
    loaded: Image = file
    return loaded


def _short(error: Exception) -> str:
    text = str(error).splitlines()
    return "not an image" if "cannot identify" in str(error) else (text[0] if text else type(error).__name__)


def load_pillow() -> Any:
    """The module PIL.Image.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    try:
        import PIL.Image
    except ImportError:
        raise MissingPackageError("images", "reading them needs Pillow", 'pip install "qdqtool[images]"') from None
    return PIL.Image


def _resample(image: Image, width: int, height: int, how: Interpolation) -> Image:
    pillow = load_pillow()
    if image.size == (width, height):
        return image
    if how in ("linear", "area"):
        resize = resize_linear if how == "linear" else resize_area
        pixels = np.asarray(image, np.uint8)
        pixels = resize(pixels.reshape(*pixels.shape[:2], -1), width, height)
        resized: Image = pillow.fromarray(pixels if image.mode == "RGB" else pixels[..., 0])
        return resized
    filters = {"antialias": "BILINEAR", "cubic": "BICUBIC", "nearest": "NEAREST"}
    return image.resize((width, height), pillow.Resampling[filters[how]])
