# SPDX-License-Identifier: Apache-2.0
"""Sizes of inputs that a model leaves open, as calibration fed them, and trtexec's flag for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from qdqtool.emit.job import Tensor
from qdqtool.graph.types import infer_types, opset_of

_SIZE = re.compile(r"(?:^|,)size=(\d+)x(\d+)(?:,|$)")
_IMAGE = 4  # axes


def tensors_of(proto: onnx.ModelProto) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs of a model, initializers left out, and its outputs."""
    graph = infer_types(proto, opset_of(proto) or 1)
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_tensor(value) for value in graph.input if value.name not in stored)
    return inputs, tuple(_tensor(value) for value in graph.output)


def inputs_as_declared(proto: onnx.ModelProto) -> tuple[Tensor, ...]:
    """The inputs of a model, initializers left out, with what the graph says of them."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_tensor(value) for value in proto.graph.input if value.name not in stored)


def as_fed(inputs: Sequence[Tensor], data: Mapping[str, Any] | None) -> tuple[Tensor, ...]:
    """Inputs with the sizes that calibration fed them at; the first axis stays open where the model leaves it so.

    Args:
        inputs: as the model has them.
        data: what is known of the calibration data: `shapes` (input -> shape), or the `preprocess` of images.
    """
    data = data or {}
    return tuple(_filled(one, _fed(one, data)) for one in inputs)


def shape_words(
    inputs: Sequence[Tensor], data: Mapping[str, Any] | None, batch: int = 1, max_batch: int | None = None
) -> list[str]:
    """The flag `--shapes` of trtexec for inputs whose sizes are open; nothing where none are, or not all are known.

    Args:
        inputs: as the model has them.
        data: as in `as_fed`.
        batch: of the first axis.
        max_batch: where it is given, the engine takes 1 to so many, and is best for so many: three flags then.
    """
    words = []
    for one, fed in zip(inputs, as_fed(inputs, data), strict=True):
        if one.shape is None or (fed.shape is not None and None in fed.shape[1:]):
            return []
        if None in one.shape and fed.shape is not None:
            if ":" in one.name or "," in one.name:
                return []
            words.append(f"{one.name}:{'x'.join('{}' if size is None else str(size) for size in fed.shape)}")
    text = ",".join(words)
    if not words or max_batch is None or "{}" not in text:
        return [f"--shapes={text.replace('{}', str(batch))}"] if words else []
    flags = {"--minShapes": 1, "--optShapes": max_batch, "--maxShapes": max_batch}
    return [f"{flag}={text.replace('{}', str(size))}" for flag, size in flags.items()]


def blank_shape_words(inputs: Sequence[Tensor], data: Mapping[str, Any] | None, batch: int = 1) -> list[str]:
    """The flag `--shapes` with SIZE for every size but the batch that nobody knows; nothing where all are known.

    Args:
        inputs: as the model has them.
        data: as in `as_fed`.
        batch: of the first axis.
    """
    words = []
    fed = as_fed(inputs, data)
    if not any(one.shape is not None and None in one.shape[1:] for one in fed):
        return []
    for one in fed:
        if one.shape is not None and None in one.shape:
            first, *rest = one.shape
            sides = [batch if first is None else first, *("SIZE" if side is None else side for side in rest)]
            words.append(f"{one.name}:{'x'.join(map(str, sides))}")
    return [f"--shapes={','.join(words)}"]


def _fed(one: Tensor, data: Mapping[str, Any]) -> Sequence[Any]:
    """The shape that an input was fed at, None or nothing where that is not known."""
    shapes = data.get("shapes")
    known = shapes.get(one.name) if isinstance(shapes, Mapping) else None
    rank = len(one.shape or ())
    if isinstance(known, Sequence) and len(known) == rank and all(isinstance(side, int) for side in known):
        return known
    size = _SIZE.search(str(data.get("preprocess", "")))
    if size is None or rank != _IMAGE:
        return ()
    width, height = int(size[1]), int(size[2])
    last = (one.shape or ())[3] in (1, 3) and (one.shape or ())[1] not in (1, 3)
    return (None, height, width, None) if last else (None, None, height, width)


def _filled(one: Tensor, fed: Sequence[Any]) -> Tensor:
    if one.shape is None or not fed:
        return one
    sides = zip(one.shape[1:], fed[1:], strict=True)
    return replace(one, shape=(one.shape[0], *(known if side is None else side for side, known in sides)))


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
    return Tensor(value.name, kind.elem_type, shape if kind.HasField("shape") else None)
