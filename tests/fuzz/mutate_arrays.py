# SPDX-License-Identifier: Apache-2.0
"""Arrays and archives of arrays under attack: the head of an .npy, its values, the members of an .npz."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile

import numpy as np

from tests.fuzz import odd_values
from tests.fuzz.mutate_text import octets, text, tree


def header(random_: random.Random, content: bytes) -> bytes:
    """The text before the numbers of an .npy, changed and given its right length."""
    if content[:6] != b"\x93NUMPY":
        return archive(random_, content)
    length = struct.unpack("<H", content[8:10])[0]
    old, data = content[10 : 10 + length], content[10 + length :]
    dtypes = (
        b"'|O'",
        b"'<f2'",
        b"'>f4'",
        b"'<c8'",
        b"'|S4'",
        b"'<U1'",
        b"[('a', '<f4')]",
        b"'|b1'",
        b"'<M8[s]'",
        b"'x'",
        b"('<f4', (2,))",
    )
    shapes = (
        b"()",
        b"(0,)",
        b"(-1, 4)",
        b"(2147483648,)",
        b"(4611686018427387904, 4)",
        b"(1,)",
        b"(2, 4, 8, 8, 1)",
        b"2",
        b"('a',)",
        b"(2.5,)",
    )
    match random_.randrange(4):
        case 0:
            new = re.sub(rb"'descr': [^,]+(, \(.*?\))?,", b"'descr': " + random_.choice(dtypes) + b",", old)
        case 1:
            new = re.sub(rb"'shape': \([^)]*\)", b"'shape': " + random_.choice(shapes), old)
        case 2:
            new = old.replace(b"False", random_.choice((b"True", b"1", b"None")))
        case _:
            new = random_.choice(
                (octets(random_, old), b"{" * 900, b"(" * 900, b"'''", b"{'descr': '<f4'}", b"\\\n", b"1e99999", b"")
            )
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
                array = random_.choice(
                    (array.reshape(-1), array[None], array.T, np.asfortranarray(array), array[..., :0])
                )
            case 4:
                array = (
                    np.repeat(array, random_.choice((2, 7)), axis=-1) if array.ndim and array.size < 10**6 else array
                )
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
            members[at] = (
                name,
                header(random_, data) if data[:6] == b"\x93NUMPY" else _record(random_, data),
            )
        case 2 | 3:
            members[at] = (
                name,
                numbers(random_, data) if data[:6] == b"\x93NUMPY" else _record(random_, data),
            )
        case 4:
            names = (
                name[:-4],
                "../up.npy",
                "a/b.npy",
                ".npy",
                "y.npy",
                "boxes.npy",
                "labels.npy",
                odd_values.name(random_) + ".npy",
            )
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
            made = zipfile.ZipInfo(name or "x")  # a name alone would be written with the hour of the day
            made.compress_type = new.compression
            new.writestr(made, data, compresslevel=1)
    return octets(random_, buffer.getvalue()) if random_.random() < 0.1 else buffer.getvalue()


def _record(random_: random.Random, content: bytes) -> bytes:
    """The JSON that states and checkpoints hold beside their arrays."""
    return tree(random_, content) if random_.random() < 0.7 else text(random_, content)
