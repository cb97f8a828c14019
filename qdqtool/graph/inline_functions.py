# SPDX-License-Identifier: Apache-2.0
"""Puts the bodies of local functions in place of their calls, as TensorRT does, where Q/DQ are in them or are to be.

Other functions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx.inliner

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import Node
from qdqtool.graph.validate import nodes_within
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.graph.weighted import is_product

_DEFAULT = ("", "ai.onnx")
_Key = tuple[str, str]


def inline_quantized(model: Model) -> tuple[str, ...]:
    """Inline every local function that holds Q/DQ, itself or in what it calls; the model is edited.

    Tensors outside of these functions keep their names; those inside get new ones.

    Raises:
        QdqError: the functions cannot be inlined. The model is unchanged then.
    """
    wanted = _holding(model.proto, _is_pair)
    reason = _inline(model.proto, wanted) if wanted else ""
    if reason:
        reason = f"its Q/DQ are in local functions that cannot be inlined ({reason})"
        raise QdqError(wanted[0][1], reason, "export the model without functions")
    model.changed()
    return tuple(name for _, name in wanted)


def inline_products(model: Model, *, pairs: bool = True) -> tuple[str, ...]:
    """Inline every local function that holds a product (Conv, Gemm, MatMul), itself or in what it calls.

    The model is edited. Functions that cannot be inlined stay: see `products_in_functions`. Names as `inline_quantized`
    has them.
    """
    proto = model.proto
    held = set() if pairs else set(_holding(proto, _is_pair))
    fitting = {key for key in _holding(proto, is_product) if key not in held}
    wanted = [key for key in _keys(proto) if key in fitting and _fits(proto, key)]
    if not wanted or _inline(proto, wanted):
        return ()
    model.changed()
    return tuple(name for _, name in wanted)


def products_in_functions(proto: onnx.ModelProto) -> list[str]:
    """The products inside local functions, each as `function/node`."""
    return [
        f"{function.name}/{node.name or node.output[0]}"
        for function in proto.functions
        for node in nodes_within(function.node)
        if is_product(Node(node, 0))
    ]


def _is_pair(node: Node) -> bool:
    return node.op in (QUANTIZE, DEQUANTIZE)


def _keys(proto: onnx.ModelProto) -> list[_Key]:
    return [(function.domain, function.name) for function in proto.functions]


def _holding(proto: onnx.ModelProto, holds: Callable[[Node], bool]) -> list[_Key]:
    """The functions that hold such a node, themselves or in what they call, in the order of the file."""
    inside = {(f.domain, f.name): list(nodes_within(f.node)) for f in proto.functions}
    wanted = {key for key, nodes in inside.items() if any(holds(Node(node, 0)) for node in nodes)}
    size = -1
    while size != len(wanted):  # callers of these, and theirs
        size = len(wanted)
        wanted.update(key for key, nodes in inside.items() if any((n.domain, n.op_type) in wanted for n in nodes))
    return [key for key in inside if key in wanted]


def _fits(proto: onnx.ModelProto, key: _Key) -> bool:
    """Whether the operators of a function mean the same in the opset of the model."""
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    function = next(one for one in proto.functions if (one.domain, one.name) == key)
    own = {_domain(entry.domain): entry.version for entry in function.opset_import}
    differing = {domain for domain, version in own.items() if opsets.get(domain, version) != version}
    return all(
        _domain(node.domain) not in differing or _same_schema(node, own[""], opsets[""])
        for node in nodes_within(function.node)
    )


def _domain(name: str) -> str:
    return "" if name in _DEFAULT else name


def _same_schema(node: onnx.NodeProto, first: int, second: int) -> bool:
    """Whether an operator of the default domain has one schema at two opsets."""
    if _domain(node.domain):
        return False
    try:
        schemas = [onnx.defs.get_schema(node.op_type, opset, "") for opset in (first, second)]
    except onnx.defs.SchemaError:
        return False
    return bool(schemas[0].since_version == schemas[1].since_version)


def _inline(proto: onnx.ModelProto, names: Iterable[_Key]) -> str:
    """Put functions in place of their calls; why that cannot be, where the model stays as it is; "" where it was done.

    Weights are not copied.
    """
    wanted = set(names)
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    lean = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(lean.graph, field).extend(getattr(proto.graph, field))
    for tensor in proto.graph.initializer:
        lean.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    for function in lean.functions:
        if (function.domain, function.name) in wanted and _fits(lean, (function.domain, function.name)):
            for entry in function.opset_import:
                entry.version = opsets.get(_domain(entry.domain), entry.version)
    try:
        inlined = onnx.inliner.inline_selected_functions(lean, sorted(wanted))
    except Exception as error:  # what onnx's C++ raises has no common type
        return str(error).splitlines()[0]
    lost = [
        item.name
        for field in ("input", "output")
        for item in getattr(proto.graph, field)
        if item.name not in {there.name for there in getattr(inlined.graph, field)}
    ]
    if lost or wanted & set(_keys(inlined)):
        return f"{lost[0]} is lost" if lost else "some stay"
    for owner, made, field in (
        (proto.graph, inlined.graph, "node"),
        (proto.graph, inlined.graph, "value_info"),
        (proto, inlined, "functions"),
        (proto, inlined, "opset_import"),
    ):
        owner.ClearField(field)
        getattr(owner, field).extend(getattr(made, field))
    return ""
