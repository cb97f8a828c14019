# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: where a result goes, and the tables that travel in files and in a model's metadata."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from qdqtool.errors import QdqError
from qdqtool.files import refuse_overwrite
from qdqtool.graph.edit import clear_metadata, get_metadata, set_metadata
from qdqtool.graph.io import Opened
from qdqtool.scales import ScaleTable

_TABLE, _IR = "scales", "ir_version"


def store_table(proto: onnx.ModelProto, table: ScaleTable) -> None:
    """Keep the table of every tensor in a model's metadata."""
    set_metadata(proto, _TABLE, table.to_json(indent=None))


def stored_table(proto: onnx.ModelProto) -> ScaleTable | None:
    """The table of every tensor that `insert` with data left in a model's metadata; None where there is none."""
    text = get_metadata(proto, _TABLE)
    return None if text is None else ScaleTable.from_json(text, "metadata qdqtool.scales")


def load_table(path: str | Path) -> ScaleTable:
    """The scale table of a file that `calibrate` wrote.

    Raises:
        QdqError: missing, unreadable, or not such a table.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QdqError(path, f"cannot be read ({error})", "give the file that calibrate -o wrote") from None
    return ScaleTable.from_json(text, path)


def output_path(opened: Opened, output: str | Path | None, ending: str) -> Path | None:
    """The file to write; for a path that names none, the input's name with another ending."""
    if output is not None:
        return Path(output)
    return None if opened.path is None else opened.path.with_name(opened.path.stem + ending)


def check_target(path: Path | None, inputs: Iterable[Path | None]) -> None:
    """Refuse a place that would do harm, before any work is done.

    Raises:
        QdqError: the file is an input, or its folder does not exist.
    """
    if path is None:
        return
    refuse_overwrite(path, [source for source in inputs if source is not None])
    if not path.absolute().parent.is_dir():
        raise QdqError(path, "its folder does not exist", "make it, or name another file")


def refuse_same_place(places: Mapping[str, Path | None]) -> None:
    """Refuse two results that would go to one file, by whatever name or link, before the first is written.

    Args:
        places: what is written -> where, None for nowhere; such as "the model" and "the cache".

    Raises:
        QdqError: names the file and both results.
    """
    taken: dict[str, str] = {}
    for what, path in places.items():
        other = what if path is None else taken.setdefault(os.path.realpath(path), what)
        if other != what:
            raise QdqError(path, f"is named for {other} and for {what}", "name two files")


def files_of(data: object) -> list[Path]:
    """The files that data comes from, where it comes from any."""
    files = getattr(data, "files", None)  # Polygraphy's inputs may be several
    if callable(files):
        return [Path(name) for name in files()]
    return [Path(data)] if isinstance(data, (str, Path)) else []


def path_of(source: object) -> Path | None:
    """The file that a model, data or a table comes from, where it comes from one."""
    return Path(source) if isinstance(source, (str, Path)) else None


def raise_ir(proto: onnx.ModelProto) -> None:
    """Raise an IR version below 4, where an initialiser had to be a graph input, and remember what it was."""
    if proto.ir_version < 4:
        set_metadata(proto, _IR, str(proto.ir_version))
        proto.ir_version = 7


def restore_header(proto: onnx.ModelProto) -> None:
    """Take our metadata out again, and give back the IR version there was."""
    version = get_metadata(proto, _IR)
    if version is not None and version.isdigit():
        proto.ir_version = int(version)
    clear_metadata(proto)
