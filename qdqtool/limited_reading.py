# SPDX-License-Identifier: Apache-2.0
"""Text, JSON and TOML that others wrote: bounded in size, and one line for every fault. Not what they mean.

The bounds keep a file that was named by mistake (a model, a device, an endless pipe) out of memory. They are far above
the largest files of each kind that are known.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from qdqtool.errors import QdqError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHOWN = 120  # characters of what a parser says
_KEY_PARTS = 64
_PIECE = 1 << 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BETWEEN_KEYS = re.compile(r"[={,]")


@dataclass(frozen=True)
class FileKind:
    """A kind of file.

    Attributes:
        name: "a scale table".
        max_bytes: the most that is read.
        todo: what a message tells to do about a file that is none.
    """

    name: str
    max_bytes: int
    todo: str


SCALES = FileKind("a scale table", 256 << 20, "give the file that calibrate -o wrote")
RULES = FileKind("a rules file", 1 << 20, "see rules/gpu.toml for the form")
LAYERS = FileKind(
    "layer information",
    512 << 20,
    "give the JSON of trtexec --exportLayerInfo --profilingVerbosity=detailed, or a log of trtexec --verbose",
)
LOG = FileKind("a training log", 1 << 30, "give --log another file")
SCHEDULER = FileKind("a scheduler file", 1 << 20, "give what dask scheduler --scheduler-file wrote")


def read_bytes(path: str | PathLike[str], kind: FileKind) -> bytes:
    """The content of a file, of a pipe too.

    Raises:
        QdqError: it is missing, a folder, a device, unreadable, or larger than its kind can be.
    """
    try:
        with Path(path).open("rb") as file:
            mode = Path(path).stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise QdqError(path, "is not a regular file", kind.todo)
            data = read_at_most(file, kind.max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise QdqError(path, f"cannot be read ({reason})", kind.todo) from None
    if len(data) > kind.max_bytes:
        raise QdqError(path, f"is larger than {kind.max_bytes >> 20} MiB, which {kind.name} is not", kind.todo)
    return data


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """Up to `most` bytes of a file, in pieces: one read would ask for all of `most` at once, however short the file."""
    content = bytearray()
    while len(content) < most and (piece := file.read(min(_PIECE, most - len(content)))):
        content += piece
    return bytes(content)


def read_text(path: str | PathLike[str], kind: FileKind) -> str:
    """The content of a UTF-8 file without its byte order mark, line ends as they are.

    Raises:
        QdqError: as `read_bytes`, or (with the number of the line) it is not UTF-8.
    """
    data = read_bytes(path, kind)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise QdqError(path, f"cannot be read (line {line} is not UTF-8 text)", kind.todo) from None


def parse_json(
    text: str,
    where: object,
    kind: FileKind,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """What a JSON text holds.

    Args:
        text: the content.
        where: what a message names.
        kind: what it should be.
        pairs: makes an object of its members, as in `json.loads`.
        constant: makes something of NaN, Infinity and -Infinity, which are numbers here though not in JSON.

    Raises:
        QdqError: it is not JSON, nested too deeply, or has half of a character; or `constant` raises a ValueError.
    """
    try:
        if _SURROGATE.search(text):
            json.dumps(json.loads(text), ensure_ascii=False).encode()  # text that could not be written again
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise QdqError(where, f"is not {kind.name} (JSON nested too deeply)", kind.todo) from None
    except ValueError as error:
        raise QdqError(where, f"is not {kind.name} (not JSON: {str(error)[:_SHOWN]})", kind.todo) from None


def read_json(path: str | PathLike[str], kind: FileKind) -> Any:
    """What a JSON file holds.

    Raises:
        QdqError: as `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, kind), path, kind)


def read_toml(path: str | PathLike[str], kind: FileKind) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        QdqError: as `read_text`; it is not TOML, nested too deeply, or has a key of many parts, for which parsers take
            quadratic time.
    """
    text = read_text(path, kind)
    for number, line in enumerate(text.split("\n"), 1):
        if any(part.count(".") >= _KEY_PARTS for part in _BETWEEN_KEYS.split(line)):
            raise QdqError(path, f"line {number} has a key of more than {_KEY_PARTS} parts", kind.todo)
    try:
        found = tomllib.loads(text.replace("\r\n", "\n"))
        repr(found)  # fails for a hexadecimal integer of thousands of digits, which no message could show
    except RecursionError:
        raise QdqError(path, f"is not {kind.name} (TOML nested too deeply)", kind.todo) from None
    except ValueError as error:  # of numbers and dates, too, which are no TOMLDecodeError
        raise QdqError(path, f"is not {kind.name} (not TOML: {str(error)[:_SHOWN]})", kind.todo) from None
    return found
