# SPDX-License-Identifier: Apache-2.0
"""What a Q/DQ model keeps in its metadata beside the plan: the table of every tensor, the IR version it had.

With the table in the file, `peel` for a GPU and for a DLA run from one file.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from qdqtool.graph.edit import clear_metadata, get_metadata, set_metadata
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
