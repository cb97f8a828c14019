# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: where a result goes, and the tables that travel in files and in a model's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from qdqtool.bounded import SCALES, read_text
from qdqtool.files import check_outputs
from qdqtool.graph.edit import clear_metadata, get_metadata, set_metadata
from qdqtool.graph.io import Opened, open_model
from qdqtool.scales import ScaleTable

_TABLE, _IR = "scales", "ir_version"
_IR_VERSIONS = ("0", "1", "2", "3")  # that are raised, see `raise_ir`


def store_table(proto: onnx.ModelProto, table: ScaleTable) -> None:
    """Keep the table of every tensor in a model's metadata, without the largest values, which no engine asks for."""
    set_metadata(proto, _TABLE, replace(table, largest={}).to_json(indent=None))


def stored_table(proto: onnx.ModelProto) -> ScaleTable | None:
    """The table of every tensor that `insert` with data left in a model's metadata; None where there is none."""
    text = get_metadata(proto, _TABLE)
    return None if text is None else ScaleTable.from_json(text, "metadata qdqtool.scales")


def load_table(path: str | Path) -> ScaleTable:
    """The scale table of a file that `calibrate` wrote.

    Raises:
        QdqError: missing, unreadable, or not such a table.
    """
    return ScaleTable.from_json(read_text(path, SCALES), path)


def output_path(opened: Opened, output: str | Path | None, ending: str) -> Path | None:
    """The file to write; for a path that names none, the input's name with another ending."""
    if output is not None:
        return Path(output)
    return None if opened.path is None else opened.path.with_name(opened.path.stem + ending)


def check_target(path: Path | None, inputs: Iterable[Path | str | None]) -> None:
    """Refuse a place for the only file of a run; see `check_targets`."""
    check_targets({"the output": path}, inputs)


def check_targets(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Refuse places that would do harm, before any work is done.

    Args:
        outputs: what a file is -> where it goes; None for what is not written.
        inputs: files that are read; None for what is not read from a file.

    Raises:
        QdqError: see `check_outputs`.
    """
    check_outputs(outputs, [source for source in inputs if source is not None])


def check_weights(output: Path | None, model: object) -> None:
    """Refuse to write over a data file of a model that is not open yet; a new file is over none.

    Raises:
        QdqError: `output` is one, or the model cannot be opened.
    """
    if output is not None and isinstance(model, (str, Path)) and output.exists():
        check_target(output, open_model(model).files)


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
    """Raise an IR version below 4, where an initializer had to be a graph input, and remember what it was."""
    if proto.ir_version < 4:
        set_metadata(proto, _IR, str(proto.ir_version))
        proto.ir_version = 7


def restore_header(proto: onnx.ModelProto) -> None:
    """Take our metadata out again, and give back the IR version there was."""
    version = get_metadata(proto, _IR)
    if version is not None and version in _IR_VERSIONS:
        proto.ir_version = int(version)
    clear_metadata(proto)
