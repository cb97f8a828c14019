# SPDX-License-Identifier: Apache-2.0
"""The element type of every tensor in a strongly typed network of TensorRT, and where an operator's inputs disagree.

By rules/types.toml; no weight is read and nothing is edited. ONNX's own shape inference is `graph/types.py`: it needs a
valid model, and goes by opsets, at which TensorRT's parser does not look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, TensorProto

from qdqtool.graph.nodes import Node, captured_names, may_have_bodies
from qdqtool.graph.order import topological, wrapped
from qdqtool.precision.type_rules import OperatorTypes, StoredAt, TypeRules, TypeSource, load_type_rules
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import TrtVersion

_SHORT = {
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "DOUBLE": "FP64",
    "FLOAT8E4M3FN": "FP8",
    "FLOAT4E2M1": "FP4",
}
_Attributes = Mapping[str, AttributeProto]


@dataclass(frozen=True)
class TypeConflict:
    """A place where TensorRT refuses the types of a strongly typed network.

    Attributes:
        key: first output of the node; the tensor where it is none of a node.
        node: what to call the node in a message.
        op: its operator; "" for an initializer, an input or an output.
        tensors: what it reads of types that do not go together, or the one that it does not take.
        types: their element types.
        message: the sentence, without the node.
        rule: name in rules/types.toml, or "agree".
        index: which input it is; -1 where it is none.
    """

    key: str
    node: str
    op: str
    tensors: tuple[str, ...]
    types: tuple[int, ...]
    message: str
    rule: str
    index: int = -1


@dataclass(frozen=True)
class TypeReport:
    """What the network is.

    Attributes:
        types: tensor of the main graph -> element type; tensors of unknown type are left out.
        conflicts: in the order of the graph, bodies and local functions included. TensorRT's parser names the first.
    """

    types: Mapping[str, int]
    conflicts: tuple[TypeConflict, ...]


FIRST_STRONGLY_TYPED = 11  # the major version of TensorRT that has no other networks
FLOATS = frozenset((int(TensorProto.FLOAT), int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)))
HALVES = FLOATS - {int(TensorProto.FLOAT)}


def type_name(code: int) -> str:
    """FP32, FP16, BF16, INT8 ...: an element type as people write it."""
    if code not in TensorProto.DataType.values():
        return str(code)
    name = str(TensorProto.DataType.Name(code))
    return _SHORT.get(name, name.replace("FLOAT8", "FP8"))


def is_strongly_typed(report: TypeReport, version: TrtVersion | None = None, target: str = "gpu") -> bool:
    """Whether an engine has the types of the file: TensorRT from 11 on and for RTX always, else where it has halves."""
    if target == RTX_TARGET or (version is not None and version.major >= FIRST_STRONGLY_TYPED):
        return True
    return any(code in HALVES for code in report.types.values())


def infer_types(model: onnx.ModelProto, rules: TypeRules | None = None) -> TypeReport:
    """The types of all tensors of a model, node by node in the order of the data.

    Where inputs disagree, the conflict is reported and the node gives out what its first input says. Local functions
    are gone through once for every set of types that they are called with.

    Raises:
        QdqError: the graph has a cycle.
    """
    return infer_graph_types(model.graph, model.functions, rules)


def infer_graph_types(
    graph: onnx.GraphProto, functions: Iterable[onnx.FunctionProto] = (), rules: TypeRules | None = None
) -> TypeReport:
    """As `infer_types`, for a main graph and the local functions that it calls."""
    inference = _Inference(functions, rules or load_type_rules())
    types = inference.graph(graph, {})
    return TypeReport({name: code for name, code in types.items() if code}, tuple(inference.conflicts))


class _Inference:
    """The walk through one model, and what it has found."""

    def __init__(self, functions: Iterable[onnx.FunctionProto], rules: TypeRules) -> None:
        self.rules = rules
        self.conflicts: list[TypeConflict] = []
        self._functions = {(one.domain, one.name): one for one in functions}
        self._called: dict[tuple[object, ...], list[int]] = {}

    def graph(
        self,
        graph: onnx.GraphProto,
        outer: Mapping[str, int],
        given: Sequence[int] | None = None,
        attributes: _Attributes | None = None,
    ) -> dict[str, int]:
        """The types of a graph's tensors, and of those outside that it reads."""
        types = dict(outer)
        for index, value in enumerate(graph.input):
            known = given[index] if given and index < len(given) else 0
            types[value.name] = known or self._stored(value.name, value.type.tensor_type.elem_type, "input")
        for tensor in graph.initializer:
            types[tensor.name] = self._stored(tensor.name, tensor.data_type, "initializer")
        for sparse in graph.sparse_initializer:
            types[sparse.values.name] = self._stored(sparse.values.name, sparse.values.data_type, "initializer")
        declared = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
        self._nodes(wrapped(graph.node), types, declared, attributes or {})
        if given is None:
            self._check_outputs(graph, types)
        return types

    def _stored(self, name: str, element_type: int, where: StoredAt) -> int:
        found, rule = self.rules.stored_as(element_type, where)
        if rule and not found:
            message = f"{where} is {type_name(element_type)}, which TensorRT does not support"
            self.conflicts.append(TypeConflict(name, name, "", (name,), (element_type,), message, rule))
        return found

    def _check_outputs(self, graph: onnx.GraphProto, types: Mapping[str, int]) -> None:
        """The declared type of an output is ignored, save for an INT32 that is declared as something else."""
        for value in graph.output:
            said, found = value.type.tensor_type.elem_type, types.get(value.name, 0)
            if found == TensorProto.INT32 and said and said != found:
                message = f"output is INT32 in the network and declared as {type_name(said)}"
                self.conflicts.append(
                    TypeConflict(value.name, value.name, "", (value.name,), (found, said), message, "output")
                )

    def _nodes(
        self, nodes: Sequence[Node], types: dict[str, int], declared: Mapping[str, int], attributes: _Attributes
    ) -> None:
        functions, of = self._functions, self.rules.of
        for node in topological(nodes):
            proto = node.proto
            op = proto.op_type
            if functions and (function := functions.get((proto.domain, op))) is not None:
                made = self._call(node, function, types, attributes)
            elif may_have_bodies(node) and (control := _CONTROL.get(op)) is not None:
                made = control(self, node, types, attributes)
            elif (form := of(op)) is not None:
                kind = self._read(node, form, types)
                made = [self._made(node, form, kind, index, types, attributes) for index in range(len(node.outputs))]
                if form.only is not None and made and made[0] and made[0] not in form.only:
                    self._refuse_output(node, made[0], form.only)
            else:
                made = [0] * len(node.outputs)
            for name, code in zip(node.outputs, made, strict=False):
                if name:
                    types[name] = code or declared.get(name, 0)

    def _read(self, node: Node, form: OperatorTypes, types: Mapping[str, int]) -> int:
        """The type of a node's data; conflicts of its inputs are noted."""
        inputs = node.inputs
        kind, first = 0, ""
        for index in form.data_inputs(len(inputs)):
            name = inputs[index]
            code = types.get(name, 0) if name else 0
            if not kind:
                kind, first = code, name
                for types_taken, rule in form.limits(inputs) if kind else ():
                    if kind not in types_taken:
                        self._refuse(node, index, kind, types_taken, rule)
                        break
            elif code and code != kind and not _may_differ(form, index, code, kind):
                message = f"reads {first} in {type_name(kind)} and {name} in {type_name(code)}, which must be one type"
                found = (first, name), (kind, code)
                self.conflicts.append(TypeConflict(node.key, node.name, form.op, *found, message, "agree", index))
        for index, place in form.places.items():
            code = types.get(inputs[index], 0) if index < len(inputs) and inputs[index] else 0
            if code and code not in place.types:
                self._refuse(node, index, code, place.types, place.rule)
        return kind

    def _refuse(self, node: Node, index: int, code: int, allowed: Iterable[int], rule: str) -> None:
        name = node.inputs[index]
        message = f"reads {name} in {type_name(code)} and takes {_listed(allowed)} there"
        op = node.proto.op_type
        self.conflicts.append(TypeConflict(node.key, node.name, op, (name,), (code,), message, rule, index))

    def _refuse_output(self, node: Node, code: int, allowed: Iterable[int]) -> None:
        message = f"makes {type_name(code)}, and can make {_listed(allowed)}"
        op = node.proto.op_type
        self.conflicts.append(TypeConflict(node.key, node.name, op, (node.key,), (code,), message, "makes"))

    def _made(
        self,
        node: Node,
        form: OperatorTypes,
        kind: int,
        place: int,
        types: Mapping[str, int],
        attributes: _Attributes,
    ) -> int:
        """The type of one output; 0 where it is unknown."""
        if not form.outputs:
            return 0
        for source in form.outputs[min(place, len(form.outputs) - 1)]:
            if source.kind == "type":
                return source.element_type
            if source.kind == "input":
                at = source.index
                found = kind if at in form.data else types.get(node.inputs[at], 0) if at < len(node.inputs) else 0
            else:
                found = self._attribute_type(node, source, attributes)
            if found and (form.among is None or found in form.among):
                return found
        return 0

    def _attribute_type(self, node: Node, source: TypeSource, attributes: _Attributes) -> int:
        """The type that an attribute names, or that of the values in it."""
        for item in node.proto.attribute:
            if item.name != source.attribute:
                continue
            item = attributes.get(item.ref_attr_name, item) if item.ref_attr_name else item
            if source.element_type:
                return source.element_type
            code = item.t.data_type if item.HasField("t") else item.i
            found, rule = self.rules.stored_as(code, "initializer" if item.HasField("t") else "attribute")
            if rule and not found:
                message = f"makes {type_name(code)}, which TensorRT does not support"
                op = node.proto.op_type
                self.conflicts.append(
                    TypeConflict(node.key, node.name, op, tuple(node.outputs), (code,), message, rule)
                )
            return found
        return 0

    # ------------------------------------------------------------------ functions and control flow

    def _call(
        self, node: Node, function: onnx.FunctionProto, types: Mapping[str, int], attributes: _Attributes
    ) -> list[int]:
        """The types that a local function gives out for those that it is called with."""
        read = [types.get(name, 0) for name in node.inputs]
        passed = {item.name: attributes.get(item.ref_attr_name, item) for item in node.proto.attribute}
        key = (
            function.domain,
            function.name,
            tuple(read),
            tuple(sorted((name, item.SerializeToString(deterministic=True)) for name, item in passed.items())),
        )
        if key not in self._called:
            self._called[key] = [0] * len(node.outputs)
            before = len(self.conflicts)
            inside = dict(zip(function.input, read, strict=False))
            given = {item.name: item for item in function.attribute_proto} | passed
            self._nodes(wrapped(function.node), inside, {}, given)
            self._called[key] = [inside.get(name, 0) for name in function.output]
            self.conflicts[before:] = [_inside(node, one) for one in self.conflicts[before:]]
        return self._called[key]

    def _bodies(
        self, node: Node, types: Mapping[str, int], attributes: _Attributes, given: Sequence[int]
    ) -> list[list[int]]:
        """The types of the outputs of each body of a node."""
        outer = {name: types.get(name, 0) for name in captured_names(node)}
        found = []
        for item in node.proto.attribute:
            if item.type == AttributeProto.GRAPH:
                inside = self.graph(item.g, outer, given, attributes)
                found.append([inside.get(value.name, 0) for value in item.g.output])
        return found

    def branches(self, node: Node, types: Mapping[str, int], attributes: _Attributes) -> list[int]:
        """`If`: the outputs of both branches must be of one type."""
        bodies = self._bodies(node, types, attributes, [])
        for index, codes in enumerate(zip(*bodies, strict=False)):
            known = [code for code in codes if code]
            if len(set(known)) > 1:
                listed = " and ".join(map(type_name, known))
                name = node.outputs[index] if index < len(node.outputs) else node.key
                message = f"outputs {name} in {listed} from its branches, which must be one type"
                self.conflicts.append(
                    TypeConflict(node.key, node.name, "If", (name,), tuple(known), message, "agree", -1)
                )
        return [next((code for code in codes if code), 0) for codes in zip(*bodies, strict=False)]

    def loop(self, node: Node, types: Mapping[str, int], attributes: _Attributes) -> list[int]:
        """`Loop`: the body reads the count, the condition and what is carried; the condition is not given out."""
        carried = [types.get(name, 0) for name in node.inputs[2:]]
        given = [TensorProto.INT64, TensorProto.BOOL, *carried]
        return next((made[1:] for made in self._bodies(node, types, attributes, given)), [])

    def scan(self, node: Node, types: Mapping[str, int], attributes: _Attributes) -> list[int]:
        """`Scan`: the body reads the states and a slice of each scanned input."""
        read = [types.get(name, 0) for name in node.inputs]
        return next(iter(self._bodies(node, types, attributes, read)), [])


_CONTROL = {"If": _Inference.branches, "Loop": _Inference.loop, "Scan": _Inference.scan}
_ORDER = ("FLOAT", "FLOAT16", "BFLOAT16", "INT8", "INT32", "INT64", "BOOL", "UINT8")
_COMMON = {int(TensorProto.DataType.Value(name)): place for place, name in enumerate(_ORDER)}


def _listed(types: Iterable[int]) -> str:
    """Types in the order in which people think of them, FP8 and what is rarer left out."""
    known = sorted((one for one in types if one in _COMMON), key=_COMMON.__getitem__)
    return ", ".join(map(type_name, known)) or "other types"


def _may_differ(form: OperatorTypes, index: int, code: int, kind: int) -> bool:
    exemption = form.differs.get(index)
    return exemption is not None and kind in exemption.beside and code in exemption.types


def _inside(call: Node, conflict: TypeConflict) -> TypeConflict:
    """A conflict in a local function, at the node that calls it."""
    inner = f"{conflict.op} {conflict.node}".strip()
    return TypeConflict(
        call.key,
        call.name,
        call.proto.op_type,
        conflict.tensors,
        conflict.types,
        f"calls a function in which {inner} {conflict.message}",
        conflict.rule,
    )
