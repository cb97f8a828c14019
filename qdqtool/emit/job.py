# SPDX-License-Identifier: Apache-2.0
"""What every emitted file is made from: the peeled model, its cache, its float layers. Not how any file is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # every verb that opens a model imports this
    from qdqtool.data.preprocess import Preprocess
    from qdqtool.emit.deepstream_network import DeepStreamNetwork
    from qdqtool.emit.layers import FloatLayer
    from qdqtool.trtversion import TrtVersion


@dataclass(frozen=True)
class Tensor:
    """An input or output of the model.

    Attributes:
        name: its name.
        elem_type: an element type of onnx.TensorProto.
        shape: its dimensions, None where free; None as a whole where the number of dimensions is not known.
    """

    name: str
    elem_type: int
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class EmitJob:
    """One peeled model and everything that goes to what builds an engine from it.

    Attributes:
        model: the ONNX file, as the emitted files name it.
        cache: the calibration cache, likewise; "" for a model that is built without one, from a script of its own.
        stem: what engines and the like are named after.
        target: "gpu" or "dla".
        version: whose TensorRT builds.
        layers: what must not run in INT8.
        scales: tensor -> float32 scale, as in the cache.
        inputs: what the model takes, initializers left out.
        outputs: what it gives.
        batch: samples in one run, where the model leaves that open.
        max_batch: the most samples in one run, where the engine shall take several; `batch` is the same then.
        preprocess: what is done to images before they are fed, where that is known.
        int8: whether anything runs in INT8.
        half: whether the builder may choose FP16.
        data: what is known of the calibration data, see `input_shapes.as_fed`.
        kinds: the kinds of files that are written beside one another; empty where that is not known.
        remarks: what must be known before an engine is built, a sentence each; for the head of build scripts.
        network: what Gst-nvinfer makes of the outputs; None where that is not known.
        platform: the software of the board that it is for; "" for a card, None where only the version is known.
    """

    model: str
    cache: str
    stem: str
    target: str
    version: TrtVersion
    layers: tuple[FloatLayer, ...]
    scales: Mapping[str, np.float32]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    batch: int = 1
    max_batch: int | None = None
    preprocess: Preprocess | None = None
    int8: bool = True
    half: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    network: DeepStreamNetwork | None = None
    platform: str | None = None
    kinds: frozenset[str] = frozenset()

    @property
    def engine(self) -> str:
        """The engine's file: beside a configuration of Gst-nvinfer that has a cache, the name that it saves its own by.

        That is `<onnx file>_b<batch>_<gpu0 or dla0>_int8.engine` (suggestedPathName in nvdsinfer_model_builder.cpp):
        what it or a script has built is found at the next start.
        """
        if not self.cache or "deepstream" not in self.kinds:
            return f"{self.stem}.engine"
        device = "dla0" if self.target == "dla" else "gpu0"
        return f"{self.model}_b{self.nvinfer_batch}_{device}_int8.engine"

    @property
    def nvinfer_batch(self) -> int:
        """Frames in one run of Gst-nvinfer: what the image input fixes, else `batch`."""
        image = next((one.shape for one in self.inputs if one.shape is not None and len(one.shape) == 4), None)
        return (image[0] if image else None) or self.batch

    @property
    def named(self) -> tuple[FloatLayer, ...]:
        """The layers whose name can be written."""
        return tuple(layer for layer in self.layers if layer.name)

    @property
    def unnamed(self) -> tuple[FloatLayer, ...]:
        """The layers that no flag can name."""
        return tuple(layer for layer in self.layers if not layer.name)

    @property
    def network_script(self) -> str:
        """What tells a builder of every layer in float: the file of that kind, or the option that writes it."""
        return f"{self.stem}.polygraphy.py" if "polygraphy-script" in self.kinds else "--emit polygraphy-script"

    @property
    def made_for(self) -> str:
        """`TensorRT 8.5.2 (JetPack 5.1, ...), DLA`, for the head of a file."""
        boards = self.version.platforms if self.platform is None else tuple(filter(None, [self.platform]))
        board = f" ({boards[0]}{' and others' if boards[1:] else ''})" if boards else ""
        return f"TensorRT {self.version.text}{board}, {self.target.upper()}"


@dataclass(frozen=True)
class Emitted:
    """One file's text, and what the user must know of it, a sentence each."""

    text: str
    warnings: tuple[str, ...] = ()


def comments(lines: Iterable[str]) -> str:
    """Lines as comments; what would end a line inside one becomes a space."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)
