# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine that TensorRT really built, from `trtexec --exportLayerInfo` or a verbose build log.

Reads every form seen from 8.0 to 10.16. What was predicted is `predict.py`, what differs `compare.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qdqtool.engine.data_types import FLOATS, bits_of, data_type, short_format
from qdqtool.engine.profile import LayerTime
from qdqtool.formats import number_formats
from qdqtool.rtxversion import RTX_NAME

LAYERS_ENDING = ".layers.json"  # of the file that `build` writes beside an engine
OURS = "qdqtool"  # the key of what `build` says of an engine, beside NVIDIA's "Layers"
MAX_RANK, MAX_SIZE = 16, 1 << 33  # of a tensor in a file that is believed

_PWN = re.compile(r"(?:PWN\()*")
# What INT8 kernels of the Tensor Cores are called: mma shapes (i8816, tensor16x8x32), imma, tensorop_i of cutlass.
_TENSOR_CORE = re.compile(r"imma|i8816|i16832|tensorop_i\d|_tensor\d+x\d+x\d+")
# Those of the plain cores: four products per dp4a instruction, and the scalar ones.
_PLAIN_CORE = re.compile(r"int8x4_icudnn|dp4a|_simt_|_ffma_")


# What multiplies matrices: kernels of TensorRT's own, those of Myelin, and fused attention.
_PRODUCT = re.compile(r"convolution|conv_?act_?pool|^correlation$|^deconv$|gemm|^runtime_fusion$|matrixmultiply")
# A generated kernel spells what it does in its name, four letters each: these change no value.
_CONVERTING = re.compile(r"__myl_(?:Cast|Move|Copy)+_")
_SCHEDULING = frozenset({"NoOp", "signal", "wait"})
# Products of Myelin's compiler, which names constants with their shapes: a convolution, a matrix product, one with what
# follows it, a generated kernel (a fused attention).
_MYELIN = frozenset({"correlation", "deconv", "gemm", "runtime_fusion", "kgen"})


@dataclass(frozen=True)
class LayerTensor:
    """What a layer reads, holds or writes.

    Attributes:
        text: its type, and its format where the file tells both in one, as written.
        name: as the engine calls it, "" where the file does not say.
        shape: its dimensions as the engine has them (with the padding that a kernel wants), None where unknown.
        layout: its format as written, where the file tells it apart from the type.
    """

    text: str
    name: str = ""
    shape: tuple[int, ...] | None = None
    layout: str = ""

    @property
    def type(self) -> str:
        """INT8, FP16, ...; "" where the file names no type."""
        return data_type(self.text)

    @property
    def bytes(self) -> int | None:
        """What it takes in memory; None where shape or type is unknown."""
        bits = bits_of(self.type)
        return None if self.shape is None or bits is None else -(-math.prod(self.shape) * bits // 8)

    @property
    def is_matrix(self) -> bool:
        """Whether it has more than one side that is longer than 1, unlike a bias or scales."""
        return sum(side > 1 for side in self.shape or ()) > 1

    def format_type(self) -> str:
        """`INT8:CHW32`, `FP16`; the text of the file where it names no type."""
        layout = short_format(self.layout or self.text)
        return f"{self.type or self.text or '?'}{f':{layout}' if layout else ''}"


@dataclass(frozen=True)
class EngineLayer:
    """One layer of a built engine.

    Attributes:
        name: as TensorRT lists it.
        kind: its LayerType; "" where the file has names only.
        metadata: ONNX nodes from the export's Metadata (10.x); empty where it has none.
        inputs: what it reads.
        outputs: what it writes.
        tactic: name of the kernel, "" where it is unknown.
        parts: ONNX nodes from a log's fusions; empty elsewhere.
        origin: "REFORMAT" or "QDQ" of a Reformat layer, "" elsewhere.
        constants: the weights that it holds, where the file tells them.
    """

    name: str
    kind: str = ""
    metadata: tuple[str, ...] = ()
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    tactic: str = ""
    parts: tuple[str, ...] = ()
    origin: str = ""
    constants: tuple[LayerTensor, ...] = ()

    @property
    def output(self) -> str | None:
        """What it gives out, a format's name, "float" or "other"; None where the file does not say."""
        return _kind_of(self.outputs[0]) if self.outputs else None

    @property
    def kinds(self) -> frozenset[str]:
        """What it gives out at any output; Myelin writes one tensor in two types where consumers differ."""
        return frozenset(kind for one in self.outputs if (kind := _kind_of(one)) is not None)

    @property
    def reads_int8(self) -> bool:
        """Whether it reads INT8 at some input."""
        return any(one.type == "INT8" for one in self.inputs)

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
        if self.kind in _SCHEDULING:
            return True
        return self.origin == "REFORMAT" or self.name.startswith("Reformatting CopyNode") or self.name.endswith(" copy")

    @property
    def is_scheduling(self) -> bool:
        """Whether it moves no data: it waits, signals, or does nothing."""
        return self.kind in _SCHEDULING

    @property
    def is_conversion(self) -> bool:
        """Whether it only turns one type or format into another."""
        if self.is_scheduling:
            return False
        return self.is_reformat or self.kind == "Reformat" or _CONVERTING.match(self.name) is not None

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices: convolutions, their like, fused attention."""
        attention = self.kind == "kgen" and ("_mha" in self.name or "_mha" in self.tactic)
        return attention or _PRODUCT.search(self.kind.lower()) is not None

    @property
    def product_type(self) -> str:
        """The type that a product multiplies in; "" for what is not a product, or where the file does not say.

        That of what it reads first, unless that is quantized and nothing that it is multiplied with has its type: a
        product of INT8 values with a float weight dequantizes the values and multiplies in float. Only Myelin's layers
        tell what is multiplied. A fused attention may read the masks of its windows first; two tensors of codes are its
        queries and keys.
        """
        read = (*self.inputs, *self.constants)
        if not self.is_product or not read:
            return ""
        titles = {row.title for row in number_formats().values()}
        codes = [one.type for one in self.inputs if one.type in titles]
        if "_mha" in self.name and codes[1:]:
            return codes[0]
        first, factors = read[0].type, [tensor for tensor in read[1:] if tensor.is_matrix]
        alone = factors and first not in FLOATS and all(tensor.type != first for tensor in factors)
        if self.kind in _MYELIN and alone:
            return max(factors, key=lambda tensor: tensor.bytes or 0).type
        return first

    @property
    def bytes_moved(self) -> int | None:
        """Bytes read and written in one inference, weights included; None where a size is unknown."""
        if self.is_scheduling:
            return 0
        sizes = [one.bytes for one in (*self.inputs, *self.constants, *self.outputs)]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None

    def nodes(self, known: Mapping[str, object]) -> frozenset[str]:
        """The ONNX nodes in it: of its metadata, of the log's fusions, or those of `known` that its name tells."""
        if self.metadata or self.parts:
            return frozenset(self.metadata or self.parts)
        return frozenset(word for word in node_words(self.name) if word in known)


@dataclass(frozen=True)
class EngineInfo:
    """What a file tells about an engine.

    Attributes:
        path: the file.
        layers: in the order of the file.
        source: "json", "listing" (a log with the engine's layers), "fusions" (a log that ends before them: formats and
            kernels are unknown), "profile" (names and times alone), or "built" (by TensorRT for RTX, on a CPU).
        version: of TensorRT as the file writes it, "" where it does not.
        built: what built it and where, one line; "" where the file does not say.
        times: layer -> its time, of a profile; None without one.
    """

    path: Path
    layers: tuple[EngineLayer, ...]
    source: Literal["json", "listing", "fusions", "profile", "built"]
    version: str = ""
    built: str = ""
    times: Mapping[str, LayerTime] | None = None

    @property
    def by_rtx(self) -> bool:
        """Whether TensorRT for RTX built it, which cuts layers in its own way."""
        return self.built.startswith(RTX_NAME)

    @property
    def has_metadata(self) -> bool:
        """Whether layers tell their ONNX nodes beside their names."""
        return any(layer.metadata for layer in self.layers)


def _kind_of(tensor: LayerTensor) -> str | None:
    if not tensor.text or tensor.text == "N/A":
        return None
    if tensor.type in FLOATS:
        return "float"
    return next((name for name, row in number_formats().items() if row.title == tensor.type), "other")


def node_words(name: str) -> list[str]:
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
