# SPDX-License-Identifier: Apache-2.0
"""Files that are no models under attack: text, JSON, arrays, archives, images. By their ending."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import odd_values
from mutate_proto import mutate_model

Mutator = Callable[[random.Random, bytes], bytes]
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_DEEP = 100_000


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


def octets(random_: random.Random, content: bytes) -> bytes:
    """Bytes alone."""
    return odd_values.octets(random_, content)


def text(random_: random.Random, content: bytes) -> bytes:
    """Numbers, lines, line ends, nesting, length."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    at = random_.randrange(len(lines))
    match random_.randrange(9):
        case 0 | 1:
            found = list(_NUMBER.finditer(content))
            number = random_.choice(found)
            value = random_.choice((odd_values.integer(random_), odd_values.real(random_), "", "0x1", "1_0", "9" * 5000))
            return content[: number.start()] + str(value).encode() + content[number.end() :]
        case 2:
            lines[at] *= random_.choice((0, 0, 2, 2, 1000))
        case 3:
            other = random_.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 4:
            lines[at] = lines[at].rstrip(b"\n") * random_.choice((2, 500)) + b"\n"
        case 5:
            lines.insert(at, odd_values.name(random_).encode() + random_.choice((b"\n", b": ", b" = ")))
        case 6:
            opening = random_.choice((b"[", b"{", b'{"a":', b"(", b"<a>", b"a = [", b"a." * 2, b"[a."))
            lines.insert(at, opening * random_.choice((3, 2000, _DEEP)))
        case 7:
            words = re.split(rb"(\W+)", lines[at])
            words[random_.randrange(len(words))] = odd_values.name(random_).encode()
            lines[at] = b"".join(words)
        case _:
            return random_.choice((b"\xef\xbb\xbf" + content, content.decode("latin-1").encode("utf-16"), b"", b"\0" * 50))
    return b"".join(lines)


def tree(random_: random.Random, content: bytes) -> bytes:
    """JSON with a value of another kind somewhere, a key less, a key twice."""
    root: Any = {"root": json.loads(content)}
    places = _places(root)
    holder, key = random_.choice(places)
    match random_.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[odd_values.name(random_)] = holder[key]
        case 2 if isinstance(holder, list):
            holder.extend([holder[key]] * random_.choice((1, 100)))
        case 3:
            holder[key] = [holder[key]] if random_.random() < 0.5 else {"a": holder[key]}
        case _:
            odd = (None, True, "", [], {}, "text", odd_values.integer(random_), odd_values.real(random_), odd_values.name(random_))
            holder[key] = random_.choice(odd)
    return json.dumps(root.get("root", root), indent=random_.choice((None, 1)), ensure_ascii=False).encode("utf-8", "replace")


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) of a tree, the outermost first; a large tree's first ones stand for all."""
    found: list[tuple[Any, Any]] = []
    holders = [root]
    while holders and len(found) < 5000:
        holder = holders.pop(0)
        for key in list(holder if isinstance(holder, dict) else range(len(holder))):
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                holders.append(holder[key])
    return found


def header(random_: random.Random, content: bytes) -> bytes:
    """The text before the numbers of an .npy, changed and given its right length."""
    if content[:6] != b"\x93NUMPY":
        return archive(random_, content)
    length = struct.unpack("<H", content[8:10])[0]
    old, data = content[10 : 10 + length], content[10 + length :]
    dtypes = (b"'|O'", b"'<f2'", b"'>f4'", b"'<c8'", b"'|S4'", b"'<U1'", b"[('a', '<f4')]", b"'|b1'", b"'<M8[s]'", b"'x'", b"('<f4', (2,))")
    shapes = (b"()", b"(0,)", b"(-1, 4)", b"(2147483648,)", b"(4611686018427387904, 4)", b"(1,)", b"(2, 4, 8, 8, 1)", b"2", b"('a',)", b"(2.5,)")
    match random_.randrange(4):
        case 0:
            new = re.sub(rb"'descr': [^,]+(, \(.*?\))?,", b"'descr': " + random_.choice(dtypes) + b",", old)
        case 1:
            new = re.sub(rb"'shape': \([^)]*\)", b"'shape': " + random_.choice(shapes), old)
        case 2:
            new = old.replace(b"False", random_.choice((b"True", b"1", b"None")))
        case _:
            new = random_.choice((octets(random_, old), b"{" * 900, b"(" * 900, b"'''", b"{'descr': '<f4'}", b"\\\n", b"1e99999", b""))
    return content[:8] + struct.pack("<H", len(new)) + new + data


def numbers(random_: random.Random, content: bytes) -> bytes:
    """An .npy of other values, type or shape that is whole in itself."""
    if content[:6] != b"\x93NUMPY":
        return archive(random_, content)
    array = np.load(io.BytesIO(content), allow_pickle=False)
    with np.errstate(all="ignore"):
        match random_.randrange(6):
            case 0 if array.dtype.kind == "f" and array.size:
                array.reshape(-1)[random_.randrange(array.size) :: random_.choice((1, 1000))] = odd_values.real(random_)
            case 1:
                array = array.astype(random_.choice(("f2", "f8", ">f4", "i1", "u1", "i8", "?", "c8", "S3", "U2")))
            case 2:
                array = array[: random_.choice((0, 1, len(array) - 1))] if array.ndim else array
            case 3:
                array = random_.choice((array.reshape(-1), array[None], array.T, np.asfortranarray(array), array[..., :0]))
            case 4:
                array = np.repeat(array, random_.choice((2, 7)), axis=-1) if array.ndim and array.size < 10**6 else array
            case _:
                array = np.zeros_like(array)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def archive(random_: random.Random, content: bytes) -> bytes:
    """A zip whose members are changed, renamed, gone, there twice, packed otherwise, or far larger than packed."""
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        members = [(info.filename, old.read(info)) for info in old.infolist()]
    at = random_.randrange(len(members))
    name, data = members[at]
    match random_.randrange(8):
        case 0 | 1:
            members[at] = (name, header(random_, data) if data[:6] == b"\x93NUMPY" else mutate_file(random_, ".json", data)[0])
        case 2 | 3:
            members[at] = (name, numbers(random_, data) if data[:6] == b"\x93NUMPY" else mutate_file(random_, ".json", data)[0])
        case 4:
            names = (name[:-4], "../up.npy", "a/b.npy", ".npy", "y.npy", "boxes.npy", "labels.npy", odd_values.name(random_) + ".npy")
            members[at] = (random_.choice(names), data)
        case 5:
            del members[at]
        case 6:
            members.append((name, data))
        case _:
            members[at] = (name, data + b"\0" * random_.choice((1, 10**6, 5 * 10**7)))
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random_.choice((methods[0], *methods)), compresslevel=1) as new:
        for name, data in members:
            new.writestr(name or "x", data)
    return octets(random_, buffer.getvalue()) if random_.random() < 0.1 else buffer.getvalue()


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
    Image.new("RGB", random_.choice(sizes), (9, 90, 200)).convert("L" if mode in ("I;16", "F") else "RGB").convert(mode).save(buffer, kind)
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
