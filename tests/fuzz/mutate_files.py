# SPDX-License-Identifier: Apache-2.0
"""Any file under attack, by its ending. Models, text and arrays have files of their own; images are here."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from collections.abc import Callable

from tests.fuzz import odd_values
from tests.fuzz.mutate_arrays import archive, header, numbers
from tests.fuzz.mutate_proto import mutate_model
from tests.fuzz.mutate_text import octets, text, tree

Mutator = Callable[[random.Random, bytes], bytes]


def mutate_file(random_: random.Random, ending: str, content: bytes) -> tuple[bytes, str]:
    """Change a file of some ending; the new bytes, and what was done in words."""
    if ending == ".onnx":
        return mutate_model(random_, content)
    done = []
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        mutator = random_.choice(_BY_ENDING.get(ending, (text, text, octets)))
        try:
            with warnings.catch_warnings(action="ignore"):
                content = mutator(random_, content)
            done.append(mutator.__name__)
        except Exception:  # a change before has made it unreadable, each library has exceptions of its own
            content = octets(random_, content)
            done.append("octets")
    return content, ", ".join(done)


def picture(random_: random.Random, content: bytes) -> bytes:
    """An image of odd size, mode or format, or a PNG whose head says another size."""
    from PIL import Image

    if random_.random() < 0.25:
        size = struct.pack(">II", *(abs(odd_values.integer(random_, 32)) for _ in range(2)))
        body = b"IHDR" + size + content[24:29]
        return content[:12] + body + struct.pack(">I", zlib.crc32(body)) + content[33:]
    sizes = ((1, 1), (1, 12000), (12000, 1), (3, 2), (640, 480), (17, 64))
    mode = random_.choice(("RGB", "L", "RGBA", "LA", "P", "1", "I", "I;16", "F", "CMYK"))
    kind = random_.choice(("PNG", "PNG", "JPEG", "BMP", "TIFF", "GIF", "PPM", "WEBP"))
    buffer = io.BytesIO()
    Image.new("RGB", random_.choice(sizes), (9, 90, 200)).convert("L" if mode in ("I;16", "F") else "RGB").convert(
        mode
    ).save(buffer, kind)
    return buffer.getvalue()


_TEXTS: tuple[Mutator, ...] = (text, text, text, octets)
_ARCHIVES: tuple[Mutator, ...] = (archive, archive, archive, octets)
_BY_ENDING: dict[str, tuple[Mutator, ...]] = {
    ".json": (tree, tree, tree, text, octets),
    ".npy": (header, numbers, octets),
    ".npz": _ARCHIVES,
    ".state": _ARCHIVES,
    ".ckpt": _ARCHIVES,
    ".png": (picture, picture, octets),
    **dict.fromkeys((".cache", ".toml", ".csv", ".txt", ".xml", ".log"), _TEXTS),
}
