# SPDX-License-Identifier: Apache-2.0
"""Mixed precision of the training graph: the Casts of `amp`, FP32 master weights, a scaled loss. Not the optimizer.

Micikevicius 2018: operators compute in FP16 or BF16, forward and backward; weights, losses and what `amp` keeps in FP32
stay there. The loss is multiplied, so that small gradients are no zeros in FP16; their sum is divided in FP32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.graph.order import wrapped
from qdqtool.graph.types import known_types
from qdqtool.precision.casts import apply_types
from qdqtool.precision.choose import TypeChoice, TypeOptions, choose_types
from qdqtool.precision.reasons import FloatReason
from qdqtool.precision.value_ranges import ValueRange, ValueRanges
from qdqtool.training.loss_scale import LOSS_SCALE
from qdqtool.training.student import Session, SessionOptions, watch_maxima, with_inputs

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]

_OF_LOSS = FloatReason("kept", "it is part of the loss")


def with_loss_scale(proto: onnx.ModelProto, loss: str) -> tuple[onnx.ModelProto, str]:
    """The graph with its loss times the input `LOSS_SCALE`, and the name of the product."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    made.graph.input.append(helper.make_tensor_value_info(LOSS_SCALE, TensorProto.FLOAT, []))
    scaled = GraphBuilder(made).append("Mul", [loss, LOSS_SCALE], f"{loss}/scaled")
    made.graph.output.append(helper.make_tensor_value_info(scaled, TensorProto.FLOAT, []))
    return made, scaled


def choose_training_types(forward: Forward, inside: Collection[str], feeds: Sequence[Feed], rest: int) -> TypeChoice:
    """The types that `amp` chooses for a forward graph, by its values on some batches.

    Pairs pass values on here: what TensorRT computes in INT8 is computed in half in training. `inside` are the tensors
    of the model; what the loss adds stays FP32.
    """
    plain = onnx.ModelProto()
    plain.CopyFrom(forward.proto)
    for node in plain.graph.node:
        if node.domain == PAIR_DOMAIN:
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1], node.name))
    plain.ClearField("functions")
    _declare(plain, forward)
    made = [name for node in forward.proto.graph.node for name in node.output]
    names = [name for name in (*(value.name for value in forward.proto.graph.input), *made) if _is_float(forward, name)]
    watched, largest = watch_maxima(forward.proto, [[name] for name in names])
    session = Session(Model(watched), largest, SessionOptions())
    most = np.max([[float(one) for one in session.run(feed)] for feed in feeds], axis=0)
    found = {
        name: ValueRange(-float(value), float(value), elements=int(np.prod(forward.shapes[name], dtype=np.int64)))
        for name, value in zip(names, most, strict=True)
    }
    shapes = {value.name: forward.shapes[value.name] for value in forward.proto.graph.input}
    choice = choose_types(Model(plain), ValueRanges(found, "data", len(feeds), shapes), TypeOptions(rest))
    known = frozenset(inside)
    losses = [node.key for node in wrapped(forward.proto.graph.node) if known.isdisjoint(node.outputs)]
    return choice.with_float32({key: _OF_LOSS for key in losses if key in choice.operators})


def typed_forward(forward: Forward, choice: TypeChoice) -> Forward:
    """The forward with these types. Parameters stay FP32 initializers; pairs read and make FP32."""
    fed = with_inputs(forward.proto, forward.parameters)
    _declare(fed, forward)
    typed = apply_types(Model(fed), choice.assignment)
    types = {**forward.types, **{name: kind for name, kind in known_types(typed).items() if kind}}
    types.update((tensor.name, tensor.data_type) for tensor in typed.graph.initializer)
    shapes = dict(forward.shapes)
    for node in typed.graph.node:
        if node.op_type == "Cast":
            source, made = node.input[0], node.output[0]
            shapes.setdefault(source, shapes.get(made, ()))
            shapes.setdefault(made, shapes[source])
            types[made] = next(item.i for item in node.attribute if item.name == "to")
    masters = {tensor.name: tensor for tensor in forward.proto.graph.initializer}
    kept = [value for value in typed.graph.input if value.name not in frozenset(forward.parameters)]
    fresh = onnx.GraphProto(input=kept)
    del typed.graph.input[:]
    typed.graph.input.extend(fresh.input)
    typed.graph.initializer.extend(masters[name] for name in forward.parameters)
    typed.graph.ClearField("value_info")
    return replace(forward, proto=typed.proto, shapes=shapes, types=types)


def _is_float(forward: Forward, name: str) -> bool:
    return bool(name) and forward.types.get(name) == TensorProto.FLOAT


def _declare(proto: onnx.ModelProto, forward: Forward) -> None:
    """Write down types and shapes that a run has shown: inference knows no pair."""
    listed = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names = (name for node in proto.graph.node for name in node.output if name in forward.types and name not in listed)
    proto.graph.ClearField("value_info")
    proto.graph.value_info.extend(
        helper.make_tensor_value_info(name, forward.types[name], forward.shapes[name]) for name in names
    )
