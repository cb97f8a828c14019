# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of weighted operators, what they read and the sizes of what they make."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from qdqtool.data.loader import Batch
from qdqtool.engine.layer_work import product_of
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_dims, weight_index
from qdqtool.runtime.activations import ObservableModel, OrtActivations


@dataclass(frozen=True)
class OperatorWork:
    """What one weighted operator does for one batch.

    Attributes:
        macs: multiply-adds.
        read: elements of its input.
        grid: sizes of its output without the batch and the channels: height and width of a convolution's.
    """

    macs: int
    read: int
    grid: tuple[int, ...] = ()


def work_of(model: ObservableModel, sample: Batch, operators: Collection[str]) -> dict[str, OperatorWork]:
    """What weighted operators do for one batch: from the shapes that inference finds, or else from those of a run."""
    view = model.view
    nodes = [view.producers[key] for key in operators]
    wanted = {name for node in nodes for name in (node.outputs[0], _input(view, node)) if name}
    inferred = known_shapes(view)
    shapes = {name: tuple(dim for dim in inferred.get(name, (None,)) if dim) for name in wanted}
    unknown = sorted(name for name, shape in shapes.items() if len(shape) != len(inferred.get(name, (None,))))
    if unknown:
        run = OrtActivations.of(model, model.chosen(unknown), few_runs=True).run(sample)
        shapes |= {name: array.shape for name, array in run}
    return {node.key: _work(view, node, shapes) for node in nodes}


def _input(view: GraphView, node: Node) -> str:
    index = weight_index(view, node)
    return "" if index is None else view.root(node.inputs[1 - index])


def _work(view: GraphView, node: Node, shapes: dict[str, tuple[int, ...]]) -> OperatorWork:
    index = weight_index(view, node)
    dims = weight_dims(view, node.inputs[index if index is not None else 1])
    data, output = shapes.get(_input(view, node), (0,)), shapes.get(node.outputs[0], ())
    first, second = (dims, data) if index == 0 else (data, dims)
    grid = output[2:] if node.op in ("Conv", "ConvTranspose") else output[1:-1]
    return OperatorWork(product_of(view, node, first, second, output).macs, math.prod(data), grid)
