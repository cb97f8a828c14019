# SPDX-License-Identifier: Apache-2.0
"""The back end `ort-training`: the gradient builder of onnxruntime-training 1.19.2, driven through its C++ binding.

Its Python package, generate_artifacts, get_optimized_model and FakeQuant are not used: they need PyTorch, turn every
BatchNormalization into batch statistics, and know one scale per tensor only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.inliner
from onnx import TensorProto, helper

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward, GradientGraph
from qdqtool.autodiff.installed import gradient_builder
from qdqtool.autodiff.lowering import RULES, WRAP_DOMAIN, Lowered, lower
from qdqtool.autodiff.non_differentiable import STEPS
from qdqtool.errors import QdqError
from qdqtool.graph.order import remove_dead, sort_nodes
from qdqtool.runtime.installed import one_line

_GRADIENT_NAME = re.compile(r"(.*)_grad(?:_\d+)?")  # with a number: one of several that are added up


class OrtTraining:
    """Gradients by onnxruntime-training; the graph that it gives runs on that wheel alone."""

    name = "ort-training"

    def build(self, forward: Forward) -> GradientGraph:
        """The gradient of the loss by every parameter.

        Raises:
            QdqError: an operator between a parameter and the loss has no gradient here; it is named.
            MissingPackageError: the wheel is not installed, or two flavors of onnxruntime are.
        """
        binding = gradient_builder()
        lowered = lower(forward)
        _register(binding, lowered.gradients)
        built = _differentiate(binding, forward, lowered)
        return _tidied(forward, built)

    def operators(self) -> Sequence[str]:
        """Every operator that it differentiates, `domain::Type` outside the default domain, sorted."""
        return sorted([*(RULES.keys() - STEPS), f"{PAIR_DOMAIN}::Pair"])


def _register(binding: Any, gradients: Mapping[str, tuple[int, int]]) -> None:
    """Tell the builder, for the whole process, that the gradient of `op` is one call of `op_gradient`.

    A key that is registered keeps its first definition. That is harmless: the name is made from what the operator and
    its gradient are, and those lie in the model.
    """
    for name, (inputs, results) in gradients.items():
        call = binding.GradientNodeDefinition()
        call.op_type, call.domain, call.attributes = f"{name}_gradient", WRAP_DOMAIN, []
        call.inputs = ["GO(0)", *(f"I({at})" for at in range(inputs)), "O(0)"]
        call.outputs = [f"GI({at})" for at in range(results)]
        binding.register_gradient_definition(f"{WRAP_DOMAIN}::{name}", [call])


def _differentiate(binding: Any, forward: Forward, lowered: Lowered) -> onnx.ModelProto:
    """What the builder makes of it.

    Raises:
        QdqError: the builder gives up.
    """
    options = binding.SessionOptions()
    options.log_severity_level = 4  # the default logger's severity is none of the builder's business
    data, wanted = lowered.proto.SerializeToString(), set(forward.parameters)
    try:
        builder = binding.GradientGraphBuilder(data, {forward.loss}, wanted, forward.loss, options)
        builder.build()
        data = builder.get_model()
    except (RuntimeError, ValueError, IndexError) as error:
        reason = f"onnxruntime-training cannot differentiate the graph ({one_line(error)})"
        raise QdqError(forward.loss, reason, "try --backend builtin") from error
    built = onnx.ModelProto()
    built.ParseFromString(data)
    return built


def _tidied(forward: Forward, built: onnx.ModelProto) -> GradientGraph:
    """Functions written out, nodes that nothing needs left out, inputs and outputs in the contract's order."""
    gradients = {name: f"{name}_grad" for name in forward.parameters}
    flat = onnx.inliner.inline_local_functions(built)
    graph = flat.graph
    made = {name for node in graph.node for name in node.output}
    missing = [name for name, gradient in gradients.items() if gradient not in made]
    if missing:
        raise QdqError(missing[0], "got no gradient from onnxruntime-training", "try --backend builtin")
    outputs = (forward.loss, *forward.auxiliary, *gradients.values())
    sort_nodes(graph)
    remove_dead(graph, outputs)
    kinds = {**forward.types, **dict.fromkeys(gradients.values(), int(TensorProto.FLOAT))}
    shapes = {**forward.shapes, **{gradients[name]: forward.shapes[name] for name in gradients}}
    fixed = {one.name for one in forward.proto.graph.initializer}
    inputs = [one.name for one in forward.proto.graph.input if one.name not in fixed]
    for values, names in ((graph.input, (*inputs, *gradients)), (graph.output, outputs)):
        del values[:]
        values.extend(helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in names)
    _state_shapes(graph, forward)
    return GradientGraph(flat, gradients)


def _state_shapes(graph: onnx.GraphProto, forward: Forward) -> None:
    """Give every tensor of the forward, and every gradient by one, its shape.

    The kernels of the pools' gradients take the shape from here when the session is made, and crash where none is.
    """
    del graph.value_info[:]
    outside = {one.name for one in graph.output}
    for name in (name for node in graph.node for name in node.output if name and name not in outside):
        found = _GRADIENT_NAME.fullmatch(name)
        if name in forward.shapes:
            graph.value_info.append(helper.make_tensor_value_info(name, forward.types[name], forward.shapes[name]))
        elif found and found[1] in forward.shapes:
            graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, forward.shapes[found[1]]))
