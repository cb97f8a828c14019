# SPDX-License-Identifier: Apache-2.0
"""The layers of a built engine as lines for people and as values for JSON. For predicted ones: `predicted_text.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qdqtool.display import Cells
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor

_MARK: dict[bool | None, str] = {True: "TC", False: "--", None: "  "}
_SOURCES = {
    "json": "layer information that TensorRT exported",
    "listing": "the layers that a build log lists",
    "fusions": "a build log that ends before the engine: fusions alone, without types and kernels",
    "profile": "a profile: names and times alone",
    "built": "built, not run",
}


def source_line(info: EngineInfo) -> str:
    """Where the layers come from: never more than the file says."""
    version = f", TensorRT {info.version}" if info.version and info.source != "built" else ""
    return f"{info.path.name}: {info.built or _SOURCES[info.source]}{version}"


def layer_rows(info: EngineInfo) -> Cells:
    """One row for each layer, below a head."""
    timed = info.times is not None
    head = ("layer", "kind", "reads", "writes", "bytes", *(("ms",) if timed else ()), "ONNX nodes")
    return [head, *(_row(info, layer) for layer in info.layers)]


def _row(info: EngineInfo, layer: EngineLayer) -> tuple[str, ...]:
    size = layer.bytes_moved
    cells = [layer.name, layer.kind, format_types(layer.inputs), format_types(layer.outputs)]
    cells.append("" if size is None else f"{size:,}")
    if info.times is not None:
        time = info.times.get(layer.name)
        cells.append("" if time is None else f"{time.milliseconds:.4f}")
    return (*cells, ", ".join(layer.metadata or layer.parts))


def layer_text(info: EngineInfo) -> list[str]:
    """A line for each layer: types and formats, bytes moved, time, kind, name, ONNX nodes.

    Where kernels of INT8 layers are named, each is marked: TC on Tensor Cores, -- on the plain cores.
    """
    rows = layer_rows(info)[1:]
    marked = any(layer.tensor_cores is not None for layer in info.layers)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for layer, (name, kind, reads, writes, *figures, nodes) in zip(info.layers, rows, strict=True):
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(figures, widths[4:], strict=False))
        inside = f"  [{nodes}]" if nodes else ""
        mark = f"{_MARK[layer.tensor_cores]}  " if marked else ""
        types = f"{mark}{reads:>{widths[2]}} -> {writes:<{widths[3]}}"
        lines.append(f"{types}  {numbers}  {kind:<{widths[1]}}  {name}{inside}".rstrip())
    if marked:
        lines.append("TC: its INT8 kernel runs on Tensor Cores; --: it does not (by the kernel's name)")
    return lines


def format_types(tensors: Iterable[LayerTensor]) -> str:
    """`INT8:CHW32,FP16`: each type and format once."""
    return ",".join(dict.fromkeys(one.format_type() for one in tensors))


def engine_json(info: EngineInfo) -> dict[str, Any]:
    """An engine's layers, as `engine show --json` prints them."""
    return {
        "file": info.path.name,
        "source": info.source,
        "built": info.built,
        "trt": info.version,
        "layers": [_layer_json(info, layer) for layer in info.layers],
    }


def _layer_json(info: EngineInfo, layer: EngineLayer) -> dict[str, Any]:
    time = None if info.times is None else info.times.get(layer.name)
    return {
        "name": layer.name,
        "kind": layer.kind,
        "nodes": list(layer.metadata or layer.parts),
        "inputs": _tensors_json(layer.inputs),
        "constants": _tensors_json(layer.constants),
        "outputs": _tensors_json(layer.outputs),
        "product": layer.product_type if layer.is_product else None,
        "conversion": layer.is_conversion,
        "bytes_moved": layer.bytes_moved,
        "tactic": layer.tactic,
        "tensor_cores": layer.tensor_cores,
        "milliseconds": None if time is None else time.milliseconds,
    }


def _tensors_json(tensors: Sequence[LayerTensor]) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "type": one.type or one.text,
            "format": one.layout or one.text,
            "shape": None if one.shape is None else list(one.shape),
        }
        for one in tensors
    ]
