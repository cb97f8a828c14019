# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine as the compiler of TensorRT for RTX names them in its detailed log: types, sizes, ONNX nodes.

Each is one record `Name: N, LayerType: K, Inputs: [...], Constants: [...], Outputs: [...], TacticName: T, StreamId: S,
Metadata: M`; an ONNX node without a name is `node_of_<first output>` in it (`onnx_nodes.py`). Names come from the model
and may hold anything, so records are cut at fixed words, in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.engine.layer_info import EngineLayer, LayerTensor

_SEPARATOR = "\x1f"  # of the ONNX nodes of one layer
_NODE = "[ONNX Layer: "


def parse_layers(text: str) -> tuple[EngineLayer, ...]:
    """The layers that a log's text names, in its order, without those that only signal and wait."""
    layers = (_layer(record) for record in _records(text))
    return tuple(layer for layer in layers if layer is not None and not layer.is_scheduling)


def _records(text: str) -> Iterator[str]:
    """One text per layer; a line break in a name makes no new one."""
    record: list[str] = []
    for line in text.split("\n"):
        if line.startswith("Name: ") and ", LayerType: " in line:
            if record:
                yield "\n".join(record)
            record = [line]
        elif record:
            record.append(line)
    if record:
        yield "\n".join(record)


def _layer(record: str) -> EngineLayer | None:
    name, _, rest = record.removeprefix("Name: ").partition(", LayerType: ")
    kind, found, rest = rest.partition(", Inputs: [")
    if not found:
        return None
    inputs, _, rest = rest.partition("], Constants: [")
    constants, _, rest = rest.partition("], Outputs: [")
    outputs, _, rest = rest.partition("], TacticName: ")
    tactic, _, rest = rest.partition(", StreamId: ")
    # The names in `[ONNX Layer: a]`, cut at U+001F and never at brackets, which names may hold
    metadata = rest.partition("Metadata: ")[2]
    parts = (part.strip() for part in metadata.split(_SEPARATOR))
    names = (part[len(_NODE) : -1] for part in parts if part.startswith(_NODE) and part.endswith("]"))
    nodes = tuple(dict.fromkeys(names))
    return EngineLayer(name, kind, nodes, _tensors(inputs), _tensors(outputs), tactic, constants=_tensors(constants))


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    tensors = []
    for part in text.split("{ Name: ")[1:]:
        name, _, rest = part.partition(", Dimensions: [")
        dims, _, rest = rest.partition("]")
        kind, _, rest = rest.partition("Datatype: ")[2].partition(", Format: ")
        tensors.append(LayerTensor(kind, name, _sides(dims), rest.partition(" }")[0].strip()))
    return tuple(tensors)


def _sides(text: str) -> tuple[int, ...]:
    return tuple(int(side) for side in text.split(",") if side.strip().lstrip("-").isdigit())
