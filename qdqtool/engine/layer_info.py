# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine that TensorRT really built, from `trtexec --exportLayerInfo` or a verbose build log.

Reads every form seen from 8.0 to 10.16. What was foretold is `predict.py`, what differs `compare.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PWN = re.compile(r"(?:PWN\()*")
# What INT8 kernels of the Tensor Cores are called: mma shapes (i8816, tensor16x8x32), imma, tensorop_i of cutlass.
_TENSOR_CORE = re.compile(r"imma|i8816|i16832|tensorop_i\d|_tensor\d+x\d+x\d+")
# Those of the plain cores: four products per dp4a instruction, and the scalar ones.
_PLAIN_CORE = re.compile(r"int8x4_icudnn|dp4a|_simt_|_ffma_")


@dataclass(frozen=True)
class EngineLayer:
    """One layer of a built engine.

    Attributes:
        name: as TensorRT lists it.
        kind: its LayerType; "" where the file has names only.
        metadata: ONNX nodes from the export's Metadata (10.x); empty where it has none.
        inputs: formats of what it reads, as written.
        outputs: formats of what it writes, as written.
        tactic: name of the kernel, "" where it is not told.
        parts: ONNX nodes where a log's fusions told them; empty elsewhere.
        origin: "REFORMAT" or "QDQ" of a Reformat layer, "" elsewhere.
    """

    name: str
    kind: str = ""
    metadata: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tactic: str = ""
    parts: tuple[str, ...] = ()
    origin: str = ""

    @property
    def output(self) -> Literal["int8", "float", "other"] | None:
        """What it gives out; None where the file does not say."""
        return _kind_of(self.outputs[0]) if self.outputs else None

    @property
    def kinds(self) -> frozenset[str]:
        """What it gives out at any output; Myelin writes one tensor in two types where readers differ."""
        return frozenset(kind for text in self.outputs if (kind := _kind_of(text)) is not None)

    @property
    def reads_int8(self) -> bool:
        """Whether it reads INT8 at some input."""
        return any(_kind_of(text) == "int8" for text in self.inputs)

    @property
    def tensor_cores(self) -> bool | None:
        """Whether its INT8 kernel runs on Tensor Cores, by the kernel's name.

        None where it does not read INT8, or where the name is missing or tells nothing: depthwise convolutions and
        pooling have no named kernel in 8.x.
        """
        if not self.reads_int8 or not self.tactic:
            return None
        if _TENSOR_CORE.search(self.tactic):
            return True
        return False if _PLAIN_CORE.search(self.tactic) else None

    @property
    def is_reformat(self) -> bool:
        """Whether it only copies between memory formats, waits, or does nothing; a left-over Q or DQ is none."""
        if self.kind in ("NoOp", "signal", "wait"):
            return True
        return self.origin == "REFORMAT" or self.name.startswith("Reformatting CopyNode") or self.name.endswith(" copy")

    def nodes(self, known: Mapping[str, object]) -> frozenset[str]:
        """The ONNX nodes in it: of its metadata, of the log's fusions, or those of `known` that its name tells."""
        if self.metadata or self.parts:
            return frozenset(self.metadata or self.parts)
        return frozenset(word for word in _words(self.name) if word in known)


@dataclass(frozen=True)
class EngineInfo:
    """What a file tells about an engine.

    Attributes:
        path: the file.
        layers: in the order of the file.
        source: "json", "listing" (a log with the engine's layers), or "fusions" (a log that ends before them: formats
            and kernels are unknown).
        version: of TensorRT as the file writes it, "" where it does not.
    """

    path: Path
    layers: tuple[EngineLayer, ...]
    source: Literal["json", "listing", "fusions"]
    version: str = ""

    @property
    def has_metadata(self) -> bool:
        """Whether layers tell their ONNX nodes beside their names."""
        return any(layer.metadata for layer in self.layers)


def _kind_of(text: str) -> Literal["int8", "float", "other"] | None:
    if not text or text == "N/A":
        return None
    words = text.lower()
    if "int8" in words and "uint8" not in words:
        return "int8"
    return "float" if re.search(r"fp32|fp16|float|half|bf16|bfloat", words) else "other"


def _words(name: str) -> list[str]:
    """What a layer's name is put together from: `A + B`, `A || B`, `PWN(A, B)` and Myelin's suffix taken apart."""
    if "__myl" in name:
        return []
    plain = re.sub(r"_myl\d+_\d+$", "", name)
    words = []
    for part in re.split(r" \+ | \|\| |, ", plain):
        opened = _PWN.match(part)
        word = part[opened.end() :] if opened else part
        words += [part, word, word.rstrip(")")]
    return words
