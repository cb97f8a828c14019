# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine as the compiler of TensorRT for RTX names them in its detailed log: types, sizes, ONNX nodes.

Each is one record `Name: N, LayerType: K, Inputs: [...], Constants: [...], Outputs: [...], TacticName: T, StreamId: S,
Metadata: M`. Names in it come from the model and may hold anything, so records are cut at fixed words, in linear time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BITS = {
    "Float": 32,
    "Half": 16,
    "BFloat16": 16,
    "Int8": 8,
    "UInt8": 8,
    "Int32": 32,
    "Int64": 64,
    "Int4": 4,
    "FP8": 8,
    "FP8UE8M0": 8,
    "FP4E2M1": 4,
    "Bool": 8,
}
PRODUCT_KINDS = ("correlation", "deconv", "gemm", "runtime_fusion")
_NO_WORK = ("signal", "wait")
_SEPARATOR = "\x1f"  # of the ONNX nodes of one layer
_NODE = "[ONNX Layer: "


@dataclass(frozen=True)
class BuiltTensor:
    """A tensor that a built layer reads or writes.

    Attributes:
        name: the compiler's own; that of an ONNX tensor stands in it for inputs and outputs of the engine only.
        type: "Float", "Half", "BFloat16", "Int8", "Int32", "Int64", "Int4", "FP8", "FP8UE8M0", "FP4E2M1" or "Bool".
        dims: its sides, as padded by the compiler.
        format: the memory format in the compiler's words.
    """

    name: str
    type: str
    dims: tuple[int, ...]
    format: str = ""

    @property
    def bytes(self) -> int:
        """What it takes in memory; a type that is not known counts as one byte a value."""
        return (math.prod(self.dims) * _BITS.get(self.type, 8) + 7) // 8


@dataclass(frozen=True)
class BuiltLayer:
    """A layer of a built engine.

    Attributes:
        name: the compiler's own.
        kind: "correlation" (a convolution), "deconv", "gemm", "runtime_fusion" (a product with what follows it),
            "kgen" (a generated kernel), "maxpool", "avgpool", "memset", "Move" and others.
        inputs: tensors that it reads and other layers write.
        constants: tensors that it reads and the engine holds.
        outputs: tensors that it writes.
        tactic: name of the kernel; that of a "kgen" spells its operations, four letters each.
        nodes: names of the ONNX nodes in it; `node_of_<first output>` for a node without a name, and for one that
            shares its name where qdqtool had the engine built. `onnx_nodes.py` finds the nodes.
    """

    name: str
    kind: str
    inputs: tuple[BuiltTensor, ...] = ()
    constants: tuple[BuiltTensor, ...] = ()
    outputs: tuple[BuiltTensor, ...] = ()
    tactic: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def is_attention(self) -> bool:
        """Whether it is a whole attention in one kernel."""
        return "_mha" in self.tactic

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices: a convolution, a matrix product, a fused attention.

        A product of few values may be an ordinary "kgen", which is not told apart.
        """
        return self.kind in PRODUCT_KINDS or self.is_attention

    @property
    def product_type(self) -> str:
        """The type that a product multiplies, which is that of what it reads first; "" for what is no product."""
        read = self.inputs or self.constants
        return read[0].type if self.is_product and read else ""

    @property
    def bytes_moved(self) -> int:
        """Bytes that it reads and writes, weights included."""
        return sum(tensor.bytes for tensor in (*self.inputs, *self.constants, *self.outputs))


def parse_layers(text: str) -> tuple[BuiltLayer, ...]:
    """The layers that a log's text names, in its order, without those that only signal and wait.

    Args:
        text: one or several messages of the log; lines that are no layer are passed over.
    """
    layers = (_layer(record) for record in _records(text))
    return tuple(layer for layer in layers if layer is not None and layer.kind not in _NO_WORK)


def count_products(layers: Iterable[BuiltLayer]) -> dict[str, int]:
    """How many products multiply each type, most first."""
    return dict(Counter(layer.product_type for layer in layers if layer.is_product).most_common())


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


def _layer(record: str) -> BuiltLayer | None:
    name, _, rest = record.removeprefix("Name: ").partition(", LayerType: ")
    kind, found, rest = rest.partition(", Inputs: [")
    if not found:
        return None
    inputs, _, rest = rest.partition("], Constants: [")
    constants, _, rest = rest.partition("], Outputs: [")
    outputs, _, rest = rest.partition("], TacticName: ")
    tactic, _, rest = rest.partition(", StreamId: ")
    return BuiltLayer(
        name,
        kind,
        _tensors(inputs),
        _tensors(constants),
        _tensors(outputs),
        tactic,
        _nodes(rest.partition("Metadata: ")[2]),
    )


def _tensors(text: str) -> tuple[BuiltTensor, ...]:
    tensors = []
    for part in text.split("{ Name: ")[1:]:
        name, _, rest = part.partition(", Dimensions: [")
        dims, _, rest = rest.partition("]")
        kind, _, rest = rest.partition("Datatype: ")[2].partition(", Format: ")
        tensors.append(BuiltTensor(name, kind, _sides(dims), rest.partition(" }")[0]))
    return tuple(tensors)


def _sides(text: str) -> tuple[int, ...]:
    return tuple(int(side) for side in text.split(",") if side.strip().lstrip("-").isdigit())


def _nodes(metadata: str) -> tuple[str, ...]:
    """The names in `[ONNX Layer: a]`, cut at U+001F and never at brackets, which names may hold."""
    parts = (part.strip() for part in metadata.split(_SEPARATOR))
    names = (part[len(_NODE) : -1] for part in parts if part.startswith(_NODE) and part.endswith("]"))
    return tuple(dict.fromkeys(names))
