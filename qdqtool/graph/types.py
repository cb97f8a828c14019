# SPDX-License-Identifier: Apache-2.0
"""The element types and shapes that shape inference finds, without reading a weight. Not what any tensor holds.

Where onnx's inference has nothing for an operator, `stand_in` takes the type of its input.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
from onnx import GraphProto, NodeProto, TensorProto, defs, helper

from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.graph.opset_convert import type_attributes
from qdqtool.graph.order import topological_protos
from qdqtool.graph.tensors import bytes_needed, is_external

_MIN_IR = 7
_INFERRED_FROM = 7  # the first opset whose operators tell their types
_LEAN_BYTES = 1024
_MAX_RANK = 64
_FP4_OPSET = 23
# What stands in for it in inference: codes have the shape of its input; that of the scales stays open.
_DYNAMIC_FP4_TYPES = """<domain: "trt", opset_import: ["" : OPSET]> TRT_FP4DynamicQuantize (x, s) => (q, e) {
    q = Cast <to = 23> (x)
    scales = Cast <to = 17> (s)
    any = NonZero (x)
    shape = Squeeze (any)
    e = Reshape (scales, shape)
}"""
# Operators that make a tensor of the shape that an input holds -> which input.
_SHAPING = {"ConstantOfShape": 0, "Reshape": 1, "Expand": 1}
# Operators whose output has the shape of their first input: in old opsets, or where onnx has no inference for them.
_KEEPS_SHAPE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip"),
        *("Abs", "Ceil", "Elu", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Log", "Mish", "Neg"),
        *("Reciprocal", "Selu", "Sqrt", "Swish", "BatchNormalization", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    )
)


def float_tensors(model: Model) -> list[str]:
    """The tensors of the main graph that are known to be float32, inputs first; initializers are not among them."""
    types = known_types(model)
    return [name for name in _activations(model.proto) if types.get(name) == TensorProto.FLOAT]


def untyped_tensors(model: Model) -> list[str]:
    """What the nodes of the main graph make without shape inference knowing its type, in the order of the file."""
    types = known_types(model)
    return [name for name in _activations(model.proto) if name and name not in types]


def _activations(proto: onnx.ModelProto) -> list[str]:
    """Inputs and what nodes make, in the order of the file, each once; initializers are not among them."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    order = [value.name for value in proto.graph.input] + [name for node in proto.graph.node for name in node.output]
    return [name for name in dict.fromkeys(order) if name not in weights]


def known_types(model: Model) -> Mapping[str, int]:
    """Element type, as in onnx.TensorProto, of each tensor of the main graph whose type shape inference finds.

    What is not a tensor (a sequence, an optional, a map) has 0. Tensors without a known type are left out: those of
    operators that onnx has no schema for, and what follows from them.
    """
    return model.derived(_known_types)


def _known_types(model: Model) -> Mapping[str, int]:
    graph = infer_types(model.proto, opset_of(model.proto) or 1, in_order=True)
    found: dict[str, int] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.WhichOneof("value")
        if kind is not None and (kind != "tensor_type" or value.type.tensor_type.elem_type):
            found[value.name] = value.type.tensor_type.elem_type if kind == "tensor_type" else 0
    return found


def opset_of(proto: onnx.ModelProto | onnx.FunctionProto) -> int | None:
    """The opset of the default domain; None where it is not imported."""
    return next((int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)


def infer_types(proto: onnx.ModelProto, opset: int, *, in_order: bool = False) -> GraphProto:
    """The graph with the types that shape inference finds, without its weights; node for node like the original.

    A type that the file declares for what an operator of ONNX makes counts where inference finds none: it may be wrong.
    """
    lean = onnx.ModelProto(ir_version=max(proto.ir_version, _MIN_IR))
    lean.opset_import.extend(proto.opset_import)
    if opset_of(proto) is None:
        lean.opset_import.add(domain="", version=opset)
    for name in ("input", "output", "value_info", "sparse_initializer"):
        getattr(lean.graph, name).extend(getattr(proto.graph, name))
    named = {"", "ai.onnx", *(entry.domain for entry in proto.opset_import)}
    for domain in sorted({node.domain for node in proto.graph.node} - named):  # inference refuses the whole graph
        lean.opset_import.add(domain=domain, version=1)
    lean.graph.initializer.extend(map(lean_tensor, proto.graph.initializer))
    lean.functions.extend(proto.functions)
    for function in lean.functions:
        for node in function.node:
            stand_in(node, opset_of(function) or opset)
    nodes = topological_protos(proto.graph.node) if in_order else proto.graph.node
    lean.graph.node.extend(_lean_node(node, opset) for node in nodes)
    declared = {} if opset < _INFERRED_FROM else _take_types(lean.graph)
    graph = inferred(lean)
    missing = _give_types(graph, declared)
    if missing and any(name in missing for node in graph.node for name in node.input):
        _give_types(lean.graph, {name: declared[name] for name in missing})  # what stands behind follows from it
        graph = inferred(lean)
        _give_types(graph, declared)
    return graph


def wrong_type(proto: onnx.ModelProto, types: Mapping[str, int]) -> tuple[str, str, str] | None:
    """The first tensor that the file declares with another element type than its operator makes."""
    for value in (*proto.graph.output, *proto.graph.value_info):
        said, found = value.type.tensor_type.elem_type, types.get(value.name, 0)
        if said and found and said != found:
            return value.name, _onnx_spelling(said), _onnx_spelling(found)
    return None


def _onnx_spelling(code: int) -> str:
    return TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else str(code)


def _take_types(graph: GraphProto) -> dict[str, int]:
    """Take the declared element types away from what operators of ONNX make; inference would keep wrong ones."""
    made = {name for node in graph.node if node.domain in ("", "ai.onnx") for name in node.output}
    taken = {}
    for value in (*graph.output, *graph.value_info):
        if value.name in made and value.type.tensor_type.elem_type:
            taken[value.name] = value.type.tensor_type.elem_type
            value.type.tensor_type.ClearField("elem_type")
    return taken


def _give_types(graph: GraphProto, declared: Mapping[str, int]) -> set[str]:
    """Give declared element types back where there is none by now; the names of those tensors."""
    given = set()
    for value in (*graph.output, *graph.value_info) if declared else ():
        if value.name in declared and value.type.HasField("tensor_type") and not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = declared[value.name]
            given.add(value.name)
    return given


def inferred(lean: onnx.ModelProto, *, values: bool = False) -> GraphProto:
    """The graph with what onnx's shape inference finds, or as it is where inference fails: types only help.

    An operator that cannot do without them is refused by name. The model must have passed `guard.check_structure`,
    which counts what local functions come to when they are written out: nothing interrupts inference.
    """
    if _names_too_long_a_shape(lean.graph):
        return lean.graph
    opset, known = opset_of(lean) or 1, (f"{one.domain}::{one.name}" for one in lean.functions)
    reads = any(f"{node.domain}::{node.op_type}" == DYNAMIC_FP4 for node in lean.graph.node)
    if reads and opset >= _FP4_OPSET and DYNAMIC_FP4 not in known:
        lean.functions.append(onnx.parser.parse_function(_DYNAMIC_FP4_TYPES.replace("OPSET", str(opset))))
    try:
        return onnx.shape_inference.infer_shapes(lean, data_prop=values).graph
    except Exception:  # what onnx's C++ raises has no common type: ValueError, IndexError, MemoryError
        return lean.graph


def _names_too_long_a_shape(graph: GraphProto) -> bool:
    """Whether a vector is declared that would, read as a shape, make inference hold a rank of millions."""
    shaping = set(filter(None, map(shape_input, graph.node)))
    for value in (*graph.input, *graph.value_info, *graph.output) if shaping else ():
        axes = value.type.tensor_type.shape.dim
        if value.name in shaping and len(axes) == 1 and axes[0].dim_value > _MAX_RANK:
            return True
    return False


def shape_input(node: NodeProto) -> str:
    """The input of a node that holds the shape of what it makes; "" where none does."""
    at = _SHAPING.get(node.op_type, len(node.input))
    return node.input[at] if at < len(node.input) else ""


def lean_tensor(tensor: TensorProto) -> TensorProto:
    """The tensor without its values where they are many: inference reads only short ones (shapes, axes)."""
    if not is_external(tensor) and bytes_needed(tensor) <= _LEAN_BYTES:
        return tensor
    lean = TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
    )
    lean.external_data.add(key="location", value="not read")
    return lean


def lean_constant(node: NodeProto) -> NodeProto:
    """A Constant node with a lean tensor; any other node as it is."""
    if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
        return helper.make_node("Constant", [], list(node.output), value=lean_tensor(node.attribute[0].t))
    return node


def stand_in(node: NodeProto, opset: int) -> None:
    """Make a node for which onnx has no inference one that gives the type, and where it can the shape, of its input."""
    for item in node.attribute:
        for inner in item.g.node if item.type == onnx.AttributeProto.GRAPH else ():
            stand_in(inner, opset)
    if node.domain not in ("", "ai.onnx"):
        return
    keeps, source = node.op_type in _KEEPS_SHAPE, _silent_source(node.op_type, opset)
    if keeps and opset < _INFERRED_FROM:
        source = 0
    if source is None or source >= len(node.input):
        return
    read = [node.input[source]] if keeps else [node.input[source], "not known"]  # a target shape that nothing makes
    node.CopyFrom(helper.make_node("Identity" if keeps else "Reshape", read, node.output[:1], node.name))


@functools.cache
def _silent_source(op: str, opset: int) -> int | None:
    """The input whose element type an operator's first output has by its schema, where onnx has no inference for it.

    None where onnx has inference. An operator that is newer than the file's opset goes by its newest schema: neither
    TensorRT's parser nor onnxruntime (LayerNormalization) asks for the opset.
    """
    try:
        schema, known = defs.get_schema(op, opset, ""), True
    except defs.SchemaError:
        if not defs.has(op):
            return None
        schema, known = defs.get_schema(op, ""), False
    if (known and schema.has_type_and_shape_inference_function) or not schema.outputs:
        return None
    kinds = [place.type_str for place in schema.inputs]
    return kinds.index(schema.outputs[0].type_str) if schema.outputs[0].type_str in kinds else None


def _lean_node(node: NodeProto, opset: int) -> NodeProto:
    constant = lean_constant(node)
    if constant is not node:
        return constant
    lean = NodeProto()
    lean.CopyFrom(node)
    type_attributes(lean)
    stand_in(lean, opset)
    return lean
