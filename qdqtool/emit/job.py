# SPDX-License-Identifier: Apache-2.0
"""What every emitted file is made from: the peeled model, its cache, its float layers. Not how any file is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from qdqtool.data.preprocess import Preprocess
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
        preprocess: what is done to images before they are fed, where that is known.
        int8: whether anything runs in INT8.
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
    preprocess: Preprocess | None = None
    int8: bool = True

    @property
    def named(self) -> tuple[FloatLayer, ...]:
        """The layers whose name can be written."""
        return tuple(layer for layer in self.layers if layer.name)

    @property
    def unnamed(self) -> tuple[FloatLayer, ...]:
        """The layers that no flag can name."""
        return tuple(layer for layer in self.layers if not layer.name)

    @property
    def made_for(self) -> str:
        """`TensorRT 8.5.2 (JetPack 5.1, ...), DLA`, for the head of a file."""
        boards = self.version.platforms
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
