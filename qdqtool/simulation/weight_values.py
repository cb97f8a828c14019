# SPDX-License-Identifier: Apache-2.0
"""Weights of a Q/DQ model rounded in numpy, in place of onnxruntime when a session starts: the same bits.

With a scale per column, onnxruntime rounds one element at a time, which takes as long as the model takes for several
samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.formats import NumberFormat, format_of_element
from qdqtool.graph.model import Model
from qdqtool.graph.order import reads_of
from qdqtool.graph.view import GraphView, Pair, attribute
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.array_file import ArrayFile, drop_pages
from qdqtool.runtime.session import copy_without, stand_in
from qdqtool.simulation.rounding import fake_quantize

Float32 = npt.NDArray[np.float32]

_LEAST_BYTES = 32 << 10  # of a weight: onnxruntime rounds smaller ones as fast


def with_weight_values(model: Model, provider: str, where: object, sizes: GraphView | None = None) -> ObservableModel:
    """A model made ready for onnxruntime, its weights rounded already; `model` is left as it is, `sizes` is passed on.

    Raises:
        QdqError: what `ObservableModel` refuses.
    """
    view, file, lent, gone = model.view, ArrayFile(), dict[str, Float32](), set[str]()
    for pair, row in _weight_pairs(view):
        values = _rounded(view, pair, row)
        if values is not None:
            lent[pair.dequantize.outputs[0]] = file.add(values)
            gone.update(name for node in pair.nodes for name in node.outputs)
            gone.add(pair.tensor)  # and what divides it
    if not lent:
        return ObservableModel(model, provider, where, sizes=sizes)
    kept = [node for node in model.proto.graph.node if gone.isdisjoint(node.output)]
    read = {name for node in kept for name in reads_of(node)}
    proto = copy_without(model.proto, dict.fromkeys(view.initializers.keys() - read, np.empty(0, np.float32)))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    proto.graph.initializer.extend(
        stand_in(name, onnx.TensorProto.FLOAT, array.shape, array) for name, array in lent.items()
    )
    return ObservableModel(Model(proto, model.folder), provider, where, lent, sizes=sizes)


def _weight_pairs(view: GraphView) -> Iterator[tuple[Pair, NumberFormat]]:
    """The pairs of large float32 constants that nothing reads as they are, with one scale or one per channel."""
    for tensor, held in view.pairs.items():
        pair, shape = held[0], view.shape(tensor) if view.is_constant(tensor) else None
        if shape is None or 4 * math.prod(shape) < _LEAST_BYTES or held[1:] or pair.between or pair.quantize is None:
            continue
        made = pair.dequantize.outputs[0]
        inner = {tensor, made, pair.quantize.outputs[0]}
        if inner & view.captured or any(map(view.is_output, inner)):
            continue
        if any(use.node.inputs[use.index] != made for use in view.consumers(tensor)):
            continue
        zero = view.constant_tensor(pair.dequantize.inputs[2]) if len(pair.dequantize.inputs) > 2 else None
        row = None if zero is None else format_of_element(zero.data_type)
        if row is None or any(attribute(node, "block_size", 0) or len(node.inputs) < 3 for node in pair.nodes):
            continue
        scale, other = (view.array(node.inputs[1]) for node in pair.nodes)
        if scale is None or other is None or scale.dtype != np.float32 or not np.array_equal(scale, other):
            continue
        if np.greater(scale, 0).all() and all(row.has_zero_point(view.array(node.inputs[2])) for node in pair.nodes):
            yield pair, row


def _rounded(view: GraphView, pair: Pair, row: NumberFormat) -> Float32 | None:
    """What a DequantizeLinear makes of a weight; None where that is not of float32."""
    weight, scale = view.array(pair.tensor), view.array(pair.dequantize.inputs[1])
    if weight is None or scale is None or weight.dtype != np.float32:
        return None
    axis = int(str(attribute(pair.dequantize, "axis", 1))) % max(weight.ndim, 1)
    shape = [-1 if at == axis else 1 for at in range(weight.ndim)] if scale.ndim else []
    values, steps = weight.astype(np.float32, copy=False), scale.astype(np.float32, copy=False).reshape(shape)
    made = fake_quantize(values, steps, "even", row.codes, row)
    drop_pages(weight)
    return made
