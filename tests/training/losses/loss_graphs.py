# SPDX-License-Identifier: Apache-2.0
"""Loss graphs whose only tensor is a parameter, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.autodiff.backend import Forward
from qdqtool.autodiff.backends import Builtin
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import LossGraph, append_losses
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.options import LossOptions, parse_label
from tests.ort_session import session_of

DETECTOR = """net (float[1,3,8,8] x) => (float[1,64,7] out)
<float[4,3,3,3] w, float[4,4,1,1] box, float[1,4,1,1] obj, float[2,4,1,1] cls, int64[3] flat = {1,7,64}>
{ f = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(f)  b = Conv(r, box)  o = Conv(r, obj)  c = Conv(r, cls)
  so = Sigmoid(o)  sc = Sigmoid(c)  k = Concat<axis=1>(b, so, sc)  v = Reshape(k, flat)
  out = Transpose<perm=[0,2,1]>(v) }"""
SIZES = {"b": (1, 4, 8, 8), "o": (1, 1, 8, 8), "c": (1, 2, 8, 8), "r": (1, 4, 8, 8), "out": (1, 64, 7)}

Array = npt.NDArray[Any]


def outputs_of(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every output of a model, by name."""
    session = session_of(proto)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def bare(opset: int = 17, **tensors: Array) -> onnx.ModelProto:
    """A graph whose outputs are its float initializers `<name>_w`, under `<name>`."""
    nodes = [helper.make_node("Identity", [f"{name}_w"], [name]) for name in tensors]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in tensors.items()]
    weights = [numpy_helper.from_array(a.astype(np.float32), f"{n}_w") for n, a in tensors.items()]
    graph = helper.make_graph(nodes, "bare", [], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of everything in a `bare` graph."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    return weights | {node.output[0]: weights[node.input[0]] for node in proto.graph.node}


def term_graph(formula: Callable[..., LossValue], opset: int, *arrays: Array) -> tuple[LossGraph, dict[str, Array]]:
    """A formula of `terms.py` on arrays: the first is trained, the others are inputs; and what those are fed."""
    proto = bare(opset, s=arrays[0])
    nodes = Nodes(proto, shapes_of(proto))
    values, feeds = [nodes.tensor("s", "test")], {}
    for number, array in enumerate(arrays[1:]):
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        values.append(nodes.input(f"t{number}", array.shape, helper.np_dtype_to_tensor_dtype(np.dtype(kind))))
        feeds[f"t{number}"] = array.astype(kind)
    found = formula(*values)
    assert found.trained
    assert found.shape == ()
    graph = LossGraph(proto, nodes.named(found, "loss"), {}, {}, {}, {}, ())
    onnx.checker.check_model(proto)
    return graph, feeds


def term_value(formula: Callable[..., LossValue], opset: int = 17, **arrays: Array) -> float:
    """What a formula gives."""
    graph, feeds = term_graph(formula, opset, *arrays.values())
    return float(outputs_of(graph.proto, feeds)[graph.loss])


def value_and_gradient(formula: Callable[..., LossValue], *arrays: Array) -> tuple[float, Array]:
    """What a formula gives, and its gradient by the first array."""
    graph, feeds = term_graph(formula, 17, *arrays)
    return float(outputs_of(graph.proto, feeds)[graph.loss]), gradients_of(graph, ("s_w",), feeds)["s_w"]


def labeled(text: str, opset: int = 17, **tensors: Array) -> LossGraph:
    """The loss graph of one `--label` on a bare graph."""
    proto = bare(opset, **tensors)
    return append_losses(proto, (), LossOptions(labels=(parse_label(text),)), None, shapes_of(proto))


def label_loss(text: str, arrays: Mapping[str, Array], **tensors: Array) -> float:
    """The value of one `--label` on a bare graph, its arrays checked first."""
    graph = labeled(text, **tensors)
    return float(outputs_of(graph.proto, label_feeds(graph.label_specs, arrays, "data"))[graph.loss])


def gradients_of(graph: LossGraph, parameters: tuple[str, ...], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Gradients by the built-in back end."""
    inferred = onnx.shape_inference.infer_shapes(graph.proto, data_prop=True).graph
    values = {value.name: value.type.tensor_type for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    shapes = {name: tuple(d.dim_value for d in one.shape.dim) for name, one in values.items()}
    types = {name: one.elem_type for name, one in values.items()}
    constants = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
    shapes |= {name: tuple(tensor.dims) for name, tensor in constants.items()}
    types |= {name: tensor.data_type for name, tensor in constants.items()}
    made = Builtin().build(Forward(graph.proto, parameters, graph.loss, tuple(graph.parts.values()), shapes, types))
    given = {name: onnx.numpy_helper.to_array(constants[name]) for name in parameters}
    found = outputs_of(made.proto, {**feeds, **given})
    return {name: found[output] for name, output in made.gradients.items()}
