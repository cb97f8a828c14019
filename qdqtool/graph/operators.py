# SPDX-License-Identifier: Apache-2.0
"""Whether a node has the form that ONNX's schema gives its operator: inputs, outputs, attributes, shapes of weights.

What passes here, later code trusts. Operators without a schema pass as they are; nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from qdqtool.graph.tensors import BITS

_PAIR = ("QuantizeLinear", "DequantizeLinear")
_PAIR_FROM = 10  # the opset that has them first
_TYPED_FROM_IR = 3  # attributes of older files may lack their type
_KINDS = frozenset((*BITS, TensorProto.STRING))
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
_WEIGHT_RANKS = {"Conv": (3, 32), "ConvTranspose": (3, 32), "Gemm": (2, 2), "MatMul": (1, 32)}
_WINDOWS = (("strides", 1), ("dilations", 1), ("pads", 2))
_MANY = (1 << 31) - 1
# Attributes that hold no tensor and no graph.
PLAIN = frozenset((AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING)) | frozenset(
    (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)
)


class _Known:
    """The shapes of constants, and the channels of what is computed, as far as the file shows them.

    Attributes:
        shapes: of what is made of constants.
        channels: the length of axis 1, of inputs of the graph and behind convolutions.
    """

    def __init__(self, tensors: Mapping[str, TensorProto], channels: Mapping[str, int]) -> None:
        self._tensors = tensors
        self.shapes: dict[str, Sequence[int]] = {}
        self.channels = dict(channels)

    def dims(self, name: str) -> Sequence[int] | None:
        """The shape of a constant; None for what is none."""
        tensor = self._tensors.get(name)
        return self.shapes.get(name) if tensor is None else tensor.dims[:]


_Given = Mapping[str, AttributeProto]  # the attributes of a node
_Check = Callable[[NodeProto, Sequence[str], _Given, _Known], str]  # a node, its inputs, ...
_NO_ATTRIBUTES: _Given = MappingProxyType({})


@dataclass(frozen=True)
class _Form:
    """What a schema says. The output has the channels of the first `carried` inputs, where these agree."""

    counts: tuple[int, int, int, int]
    needed: tuple[int, ...] = ()
    attributes: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    check: _Check | None = None
    carried: int = 0
    wrong: str = ""


class OperatorForms:
    """The forms of the operators that one model uses, each asked of ONNX once."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._untyped = proto.ir_version < _TYPED_FROM_IR
        own = [(f.domain, f.name) for f in proto.functions]
        self._functions = dict(zip(own, ((len(f.input), len(f.output)) for f in proto.functions), strict=True))

    def first_fault(
        self,
        nodes: Iterable[NodeProto],
        versions: Mapping[str, int],
        tensors: Mapping[str, TensorProto],
        channels: Mapping[str, int] = MappingProxyType({}),
        *,
        inside: bool = False,
        holding: list[tuple[int, AttributeProto]] | None = None,
    ) -> tuple[NodeProto, str] | None:
        """The first node that is not what ONNX says, and why, as the rest of a sentence that begins with its name.

        `tensors` are the constants by name, `channels` the lengths of axis 1 of what the graph is fed.
        """
        found = [] if holding is None else holding
        forms: dict[str | tuple[str, str], _Form] = {}
        constants = _Known(tensors, channels)
        for position, node in enumerate(nodes):
            key = (node.domain, node.op_type) if node.domain else node.op_type
            form = forms.get(key)
            if form is None:
                form = forms[key] = self._form_of(node, versions)
            fault = self._fault(node, form, constants, inside, position, found)
            if fault:
                return node, fault
        return None

    def _fault(
        self,
        node: NodeProto,
        form: _Form,
        constants: _Known,
        inside: bool,
        position: int,
        holding: list[tuple[int, AttributeProto]],
    ) -> str:
        given, low, high, fewest, most = _NO_ATTRIBUTES, *form.counts
        if attributes := node.attribute:
            given, fault = self._attributes_of(attributes, form.attributes, inside, position, holding)
            if fault:
                return fault
        if form.required and not form.required <= given.keys():
            return f"lacks the attribute {min(form.required - given.keys())}"
        inputs = node.input[:]  # a list costs less than asking protobuf twice
        if not (low <= len(inputs) <= high and fewest <= len(node.output) <= most) or (low and "" in inputs):
            fault = _arity(node, form)
            if fault:
                return fault
        fault = "" if form.check is None else form.check(node, inputs, given, constants)
        if form.carried and constants.channels and not fault:
            counts = {constants.channels.get(name) for name in inputs[: form.carried]}
            if len(counts) == 1 and (count := counts.pop()) is not None:
                constants.channels[node.output[0]] = count
        return fault

    def _attributes_of(
        self,
        attributes: Iterable[AttributeProto],
        types: Mapping[str, int],
        inside: bool,
        position: int,
        holding: list[tuple[int, AttributeProto]],
    ) -> tuple[_Given, str]:
        given: dict[str, AttributeProto] = {}
        for item in attributes:
            name, kind = item.name, item.type
            if kind not in PLAIN:
                holding.append((position, item))
            if types.get(name, kind) != kind or name in given or item.ref_attr_name:
                fault = self._attribute_fault(item, types.get(name), name in given, inside)
                if fault:
                    return given, fault
            given[name] = item
        return given, ""

    def _attribute_fault(self, item: AttributeProto, wanted: int | None, twice: bool, inside: bool) -> str:
        if twice:
            return f"has the attribute {item.name} twice"
        if item.ref_attr_name:
            return "" if inside else f"has the attribute {item.name} from the caller of a function, and stands in none"
        if wanted is None or (self._untyped and item.type == AttributeProto.UNDEFINED):
            return ""
        return f"has the attribute {item.name} of type {_type(item.type)}, ONNX has {_type(wanted)}"

    def _form_of(self, node: NodeProto, versions: Mapping[str, int]) -> _Form:
        domain, op = "" if node.domain == "ai.onnx" else node.domain, node.op_type
        for text in (domain, op):
            if not isinstance(text, str):
                return _Form((1, 0, 0, 0), wrong=f"has the operator or domain {text!r}, which is not UTF-8")
        called, version = self._functions.get((domain, op)), versions.get(domain, 0)
        if called is not None:
            return _Form((0, called[0], 0, called[1]))
        if op in _PAIR and domain == "com.microsoft":  # the same operators, of which ONNX has no schema
            domain, version = "", onnx.defs.onnx_opset_version()
        elif op in _PAIR and domain == "":
            version = max(version, _PAIR_FROM)  # in older files too: onnxruntime runs them
        try:
            schema = onnx.defs.get_schema(op, version, domain)
        except onnx.defs.SchemaError:
            return _Form((0, _MANY, 0, _MANY))
        single = onnx.defs.OpSchema.FormalParameterOption.Single
        newest = _newest(schema)
        few = min(schema.min_input, newest.min_input)  # old files leave out what became optional later: C of Gemm
        return _Form(
            (few, schema.max_input, schema.min_output, schema.max_output),
            tuple(i for i, parameter in enumerate(schema.inputs) if parameter.option == single and i < few),
            _attribute_types(schema, newest),
            frozenset(name for name, entry in schema.attributes.items() if entry.required),
            _CHECKS.get(op) if domain == "" else None,
            _CARRIED.get(op, 0) if domain == "" else 0,
        )


def _attribute_types(*schemas: onnx.defs.OpSchema) -> dict[str, int]:
    """Attribute -> type in the first schema that has it: what reads a QuantizeLinear's axis asks for no opset."""
    return {
        name: int(entry.type.value)  # type: ignore[attr-defined]
        for schema in reversed(schemas)
        for name, entry in schema.attributes.items()
    }


def _newest(schema: onnx.defs.OpSchema) -> onnx.defs.OpSchema:
    try:
        return onnx.defs.get_schema(schema.name, schema.domain)
    except onnx.defs.SchemaError:  # an operator that is gone
        return schema


def _type(number: int) -> str:
    return str(AttributeProto.AttributeType.Name(number)) if number in AttributeProto.AttributeType.values() else "?"


def _arity(node: NodeProto, form: _Form) -> str:
    if form.wrong:
        return form.wrong
    low, high, fewest, most = form.counts
    inputs, outputs = node.input, len(node.output)
    if not low <= len(inputs) <= high:
        return f"has {len(inputs)} inputs, ONNX has {_between(low, high)}"
    for index in form.needed:
        if index < len(inputs) and not inputs[index]:
            return f"lacks its input {index}"
    return "" if fewest <= outputs <= most else f"has {outputs} outputs, ONNX has {_between(fewest, most)}"


def _between(low: int, high: int) -> str:
    return f"{low}" if low == high else f"at least {low}" if high > 1 << 20 else f"{low} to {high}"


def weight_fault(op: str, dims: Sequence[int], groups: int = 1) -> str:
    """Why a constant cannot be the weight of Conv, ConvTranspose, Gemm or MatMul; "" where it can."""
    low, high = _WEIGHT_RANKS[op]
    if not low <= len(dims) <= high:
        return f"has a weight of shape {list(dims)[:8]}, which has not {low if low == high else f'at least {low}'} axes"
    if 0 in dims:
        return f"has a weight of shape {list(dims)[:8]}, which is empty"
    if op in ("Conv", "ConvTranspose") and (groups < 1 or dims[0] % groups):
        return f"divides the {dims[0]} channels of its weight into {groups} groups"
    return ""


def _remember(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    """The shape of a Constant, and of what is made of a constant without changing its shape."""
    for entry in node.metadata_props:  # where insert leaves its trace
        if not (isinstance(entry.key, str) and isinstance(entry.value, str)):
            return "has metadata that are not UTF-8"
    if node.op_type == "Constant":
        if "value" in given:
            constants.shapes[node.output[0]] = given["value"].t.dims[:]
        return ""
    dims = constants.dims(inputs[0])
    if dims is not None:
        constants.shapes[node.output[0]] = dims
    return ""


def _pair(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    """Q and DQ: a scale and a zero point that hold something, as many of one as of the other or one for all."""
    scale = constants.dims(inputs[1])
    zero = constants.dims(inputs[2]) if len(inputs) > 2 else None
    for what, dims in (("scale", scale), ("zero point", zero)):
        if dims and 0 in dims:
            return f"has an empty {what} (shape {list(dims)[:8]})"
    if scale is not None and zero is not None and scale != zero:
        scales, zeros = math.prod(scale), math.prod(zero)
        if zeros not in (1, scales):
            return f"has {scales} scales and {zeros} zero points"
    return (given and _type_fault(given)) or _remember(node, inputs, given, constants)


def _product(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    """Gemm and MatMul."""
    for name in inputs[:2] if node.op_type == "MatMul" else inputs[1:2]:
        dims = constants.dims(name)
        fault = "" if dims is None else weight_fault(node.op_type, dims)
        if fault:
            return fault
    return ""


def _convolution(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    dims = constants.dims(inputs[1])
    if dims is None:
        return _windows(given, None)
    op, groups = node.op_type, given["group"].i if "group" in given else 1
    fault = weight_fault(op, dims, groups)
    if not fault:
        reads, makes = (dims[1] * groups, dims[0]) if op == "Conv" else (dims[0], dims[1] * groups)
        if constants.channels.get(inputs[0], reads) != reads:
            return f"has a weight for {reads} channels and an input of {constants.channels[inputs[0]]}"
        constants.channels[node.output[0]] = makes
    bias = constants.dims(inputs[2]) if len(inputs) > 2 and inputs[2] and not fault else None
    if bias is not None and (len(bias) != 1 or bias[0] != makes):
        return f"has a bias of shape {list(bias)[:8]} for {makes} channels"
    return fault or _windows(given, dims)


def _pooling(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    return _windows(given, None)


def _windows(given: _Given, weight: Sequence[int] | None) -> str:
    """Kernel, strides, dilations and pads go with one another and with the weight."""
    if not given:
        return ""
    kernel = given["kernel_shape"].ints[:] if "kernel_shape" in given else None
    if weight is not None and kernel is not None and weight[2:] != kernel:
        return f"has kernel_shape {kernel[:8]} and a weight of shape {weight[:8]}"
    axes = len(weight) - 2 if weight is not None else None if kernel is None else len(kernel)
    for name, each in _WINDOWS:
        if name in given:
            sizes = given[name].ints[:]
            if axes is not None and len(sizes) not in (0, each * axes):
                return f"has {len(sizes)} {name} for {axes} axes"
            if name != "pads" and sizes and min(sizes) < 1:
                return f"has the {name} {sizes[:8]}"
    return f"has kernel_shape {kernel[:8]}" if kernel and min(kernel) < 1 else ""


def _normalization(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    shapes = [list(dims) for dims in map(constants.dims, inputs[1:5]) if dims is not None]
    if any(len(dims) != 1 or dims != shapes[0] for dims in shapes):
        shown = ", ".join(str(dims[:8]) for dims in shapes)
        return f"has parameters of shapes {shown}, where all are [channels]"
    return ""


def _typed(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    """Cast and kin name an element type; a Cast does not change the shape of its input."""
    return _type_fault(given) or (_remember(node, inputs, given, constants) if node.op_type == "Cast" else "")


def _type_fault(given: _Given) -> str:
    for name in _TYPE_ATTRIBUTES:
        code = given[name].i if name in given else 0
        if code and code not in _KINDS:
            return f"names the unknown element type {code}"
    return ""


def _transpose(node: NodeProto, inputs: Sequence[str], given: _Given, constants: _Known) -> str:
    perm = list(given["perm"].ints) if "perm" in given else []
    return "" if sorted(perm) == list(range(len(perm))) else f"has perm {perm[:8]}, which is not a permutation"


_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(("EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"), _typed),
    **dict.fromkeys(("Bernoulli", "Multinomial", "SequenceEmpty", "Cast"), _typed),
    **dict.fromkeys(_PAIR, _pair),
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _product,
    "MatMul": _product,
    "MaxPool": _pooling,
    "AveragePool": _pooling,
    "LpPool": _pooling,
    "BatchNormalization": _normalization,
    "Transpose": _transpose,
    **dict.fromkeys(("Constant", "Identity"), _remember),
}
# Operator -> how many of its first inputs give the output its channels.
_CARRIED = {
    **dict.fromkeys(
        ("Relu", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus"), 1
    ),
    **dict.fromkeys(("Clip", "Mish", "Gelu", "Identity", "Dropout", "Cast", *_PAIR), 1),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), 1),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"), 1),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), 2),
}
