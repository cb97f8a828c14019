# SPDX-License-Identifier: Apache-2.0
"""Polygraphy's generated inputs: which files they are, and writing them. `polygraphy_loader.py` reads them.

A file holds a list of `{input name: array}`; a folder one such mapping per file, in order of the files' names. An array
is `{"array": base64 of a .npy, "polygraphy_class": "ndarray"}`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.model_inputs import Item
from qdqtool.data.polygraphy_loader import items_of
from qdqtool.errors import QdqError
from qdqtool.files import FileSet, replacing

_INDENT = " " * 4
_DIGITS = 10  # of the names in a folder, so that their order is that of the samples


@dataclass(frozen=True)
class JsonInputs:
    """Data that `--load-inputs` names: files of inputs and folders of them, one after the other.

    Attributes:
        paths: files, whatever their ending, and folders, of which every `*.json` counts.
    """

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))

    def files(self) -> list[Path]:
        """The files to read, in order.

        Raises:
            QdqError: a path that does not exist, a folder without any.
        """
        return [file for path in self.paths for file in _files_of(path)]


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise QdqError(path, "does not exist", "give what polygraphy run --save-inputs wrote")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.json") if not file.name.startswith("."))
    if not files:
        raise QdqError(path, "holds no .json", "give what polygraphy run --save-inputs wrote")
    return files


def write_json_inputs(path: str | os.PathLike[str], batches: Iterable[Mapping[str, Any]]) -> int:
    """Write inputs as Polygraphy's `--save-inputs` does, byte for byte, to be read by its `--load-inputs` or by ours.

    Raises:
        QdqError: an item is no mapping of names to arrays of numbers, the folder is not empty, or the place cannot be
            written to.
    """
    target = Path(path)
    items = items_of("data", lambda: batches)
    return _write_file(target, items) if target.suffix else _write_folder(target, items)


def _write_file(path: Path, items: Iterable[Item]) -> int:
    count = 0
    with replacing(path) as file:
        for item in items:
            file.write(b",\n" if count else b"[\n")
            file.write(textwrap.indent(_text(item), _INDENT).encode())
            count += 1
        file.write(b"\n]" if count else b"[]")
    return count


def _write_folder(folder: Path, items: Iterable[Item]) -> int:
    count = 0
    with FileSet() as files:
        with _named(folder):
            if folder.exists() and not folder.is_dir():
                raise QdqError(folder, "is a file, and a name without ending is a folder", "let it end in .json")
            if folder.exists() and any(folder.iterdir()):
                todo = "name a new one, or a file that ends in .json"
                raise QdqError(folder, "is a folder with something in it", todo)
            beside = files.scratch(folder.absolute().parent)
            files.make_folder(folder)
        for item in items:
            name = f"{count:0{_DIGITS}d}.json"
            with _named(folder):
                (beside / name).write_bytes(_text(item).encode())
            files.add(beside / name, folder / name)
            count += 1
    return count


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Faults of the system as faults of the folder."""
    try:
        yield
    except OSError as error:
        raise QdqError(folder, f"cannot be made ({error.strerror})", "name another place") from error


def _text(item: Item) -> str:
    return json.dumps({name: _encoded(array) for name, array in item.items()}, indent=_INDENT)


def _encoded(array: npt.NDArray[Any]) -> dict[str, str]:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return {"array": base64.b64encode(buffer.getvalue()).decode(), "polygraphy_class": "ndarray"}
