# SPDX-License-Identifier: Apache-2.0
"""A model at a lower opset, for an old parser: operators that have an older form of the same meaning, exactly.

The counterpart of normalize.py, which lifts. Nothing is approximated: where an operator has no older form, or its older
form means something else, the model is refused and stays as it is. Opsets 12 to 17, to 11 or later.
`opset_warnings` says what the parser of a version does not read.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import ir_of
from qdqtool.graph.tensors import array_of
from qdqtool.graph.types import lean_tensor, opset_of
from qdqtool.graph.validate import label, subgraphs_of
from qdqtool.trtversion import TrtVersion

LOWEST, HIGHEST = 11, 17
# Attributes that an operator got later, with the value that means what it did before.
_NEUTRAL: Mapping[tuple[str, str], int] = {
    ("ArgMax", "select_last_index"): 0,
    ("ArgMin", "select_last_index"): 0,
    ("BatchNormalization", "training_mode"): 0,
    ("GatherND", "batch_dims"): 0,
    ("ReduceSum", "noop_with_empty_axes"): 0,
    ("Reshape", "allowzero"): 0,
    ("Shape", "start"): 0,
}
# Inputs of opset 13 that were attributes of lists: operator -> (input, attribute).
_WAS_ATTRIBUTE: Mapping[str, tuple[int, str]] = {
    "Squeeze": (1, "axes"),
    "Unsqueeze": (1, "axes"),
    "ReduceSum": (1, "axes"),
    "Split": (1, "split"),
}
_SOFTMAX = frozenset(("Softmax", "LogSoftmax", "Hardmax"))


@dataclass(frozen=True)
class Lowered:
    """What lowering did."""

    before: int
    after: int
    rewritten: int

    @property
    def note(self) -> str:
        """One sentence for the user."""
        return (
            f"lowered from opset {self.before} to {self.after}, exactly: {self.rewritten} operators rewritten;"
            " the model is no longer the source byte for byte"
        )


@dataclass
class _Place:
    """A graph and what is constant in it, and what its operators become."""

    graph: GraphProto
    constants: ChainMap[str, TensorProto]
    nodes: dict[int, NodeProto] = field(default_factory=dict)


def opset_beyond(proto: onnx.ModelProto, version: TrtVersion | None) -> int | None:
    """The highest opset that the parser of a version reads, where a model's is higher; else None."""
    highest = None if version is None else version.max_opset
    return highest if highest is not None and (opset_of(proto) or 0) > highest else None


def opset_warnings(proto: onnx.ModelProto, version: TrtVersion | None) -> tuple[str, ...]:
    """A sentence where the parser of a version does not read a model's opset, with the way out."""
    highest = opset_beyond(proto, version)
    if version is None or highest is None:
        return ()
    text = f"the model has opset {opset_of(proto)}, TensorRT {version.text} reads up to {highest}"
    return (f"{text}: {lowering_todo(highest, version)}",)


def lowering_todo(highest: int, version: TrtVersion) -> str:
    """What can be done about an opset that is too high."""
    fix = f"qdqtool lint MODEL --trt-version {version.header_number} --fix Q014 -o OUT"
    exactly = "lowers it exactly, where that can be; so does qdqtool peel --lower-opset"
    return f"export it with opset {highest}, or {fix} {exactly}"


def lower(model: Model, opset: int, where: object) -> Lowered | None:
    """Bring a model to a lower opset, in place; its outputs stay the same bit for bit.

    Enters subgraphs. Names of tensors and nodes, weights, metadata and other domains stay as they are. The IR version
    becomes the one that the opset came with, where it is higher.

    Raises:
        QdqError: an operator without an older form of the same meaning; opsets that are not 11 to 17; local functions.
            The model is unchanged then.
    """
    before = opset_of(model.proto)
    if before is None or before <= opset:
        return None
    if before > HIGHEST or opset < LOWEST:
        reason = (
            f"has opset {before}, which is not lowered to {opset}: {HIGHEST} at most is lowered, to {LOWEST} at least"
        )
        raise QdqError(where, reason, f"export it with opset {opset}")
    if model.proto.functions:
        raise QdqError(where, "has local functions, which no lower opset has", f"export it with opset {opset}")
    lowering = _Lowering(model.proto, model.folder, (before, opset), where)
    lowering.carry_out()
    model.changed()
    return Lowered(before, opset, lowering.rewritten)


class _Lowering:
    """All operators of a model: first every older form is found, then they take their places."""

    def __init__(self, proto: onnx.ModelProto, folder: Path | None, opsets: tuple[int, int], where: object) -> None:
        self._proto, self._folder, self._where = proto, folder, where
        self._before, self._after = opsets
        self._places = _places(proto.graph)
        self._fresh = FreshNames(name for place in self._places for name in _names(place.graph))
        self._added: dict[str, TensorProto] = {}
        for place in self._places:
            for index, node in enumerate(place.graph.node):
                older = self._older(node, place)
                if older is not None:
                    place.nodes[index] = older
        self.rewritten = sum(len(place.nodes) for place in self._places)

    def carry_out(self) -> None:
        """Edit the model; where its types do not fit the older operators it is as it was."""
        trial = onnx.ModelProto()
        trial.CopyFrom(self._proto)
        for place, twin in zip(self._places, _places(trial.graph), strict=True):
            for index, node in place.nodes.items():
                _replace(twin.graph.node[index], node)
        trial.graph.initializer.extend(self._added.values())
        _drop_unread(trial.graph, {name for place in self._places for name in _freed(place)})
        next(one for one in trial.opset_import if one.domain in ("", "ai.onnx")).version = self._after
        trial.ir_version = min(trial.ir_version, ir_of(self._after))
        try:
            onnx.shape_inference.infer_shapes(_without_weights(trial), check_type=True)
        except Exception as error:  # what onnx's C++ raises has no common type
            said = " ".join(str(error).split())[:200]
            raise self._refusal(f"its types are not those of opset {self._after}: {said}") from None
        self._proto.CopyFrom(trial)

    def _refusal(self, why: str) -> QdqError:
        reason = f"cannot be lowered from opset {self._before} to {self._after}: {why}"
        return QdqError(self._where, reason, f"export it with opset {self._after}")

    def _older(self, node: NodeProto, place: _Place) -> NodeProto | None:
        """The older form of an operator; None where it is the same."""
        if node.domain not in ("", "ai.onnx"):
            return None
        try:
            now = onnx.defs.get_schema(node.op_type, self._before, "")
        except onnx.defs.SchemaError:
            return None  # a plugin in the default domain
        if now.since_version <= self._after:
            return None
        try:
            then = onnx.defs.get_schema(node.op_type, self._after, "")
        except onnx.defs.SchemaError:
            raise self._refusal(f"{label(node)} came with opset {now.since_version}") from None
        older = NodeProto()
        older.CopyFrom(node)
        special = self._special(older, place)
        self._drop_neutral(older, then)
        self._refuse_beyond(older, now, then)
        return older if special or older != node else None

    def _special(self, node: NodeProto, place: _Place) -> bool:
        """Operators whose older form is written otherwise; whether this is one."""
        maker: Callable[[NodeProto, _Place], None] | None = None
        if self._after < 13 <= self._before:
            if node.op_type in _WAS_ATTRIBUTE:
                maker = self._as_attribute
            elif node.op_type in _SOFTMAX:
                maker = self._last_axis
            elif node.op_type == "Resize":
                maker = self._with_roi
        if node.op_type == "Constant" and self._after < 12:
            maker = self._as_tensor
        if maker is not None:
            maker(node, place)
        return maker is not None

    def _as_attribute(self, node: NodeProto, place: _Place) -> None:
        index, name = _WAS_ATTRIBUTE[node.op_type]
        if len(node.input) <= index or not node.input[index]:
            return
        if node.input[index] not in place.constants:
            raise self._refusal(f"{name} of {label(node)} are computed, and opset {self._after} wants constants")
        values = array_of(place.constants[node.input[index]], self._folder).reshape(-1)
        del node.input[index:]
        if len(values) or node.op_type != "ReduceSum":
            node.attribute.append(helper.make_attribute(name, [int(value) for value in values]))

    def _last_axis(self, node: NodeProto, place: _Place) -> None:
        """Along the last axis both mean the same; opset 11 takes all axes from the named one on together."""
        axis = next((int(one.i) for one in node.attribute if one.name == "axis"), -1)
        rank = _rank(self._proto.graph, node.input[0]) if axis >= 0 else None
        if axis != -1 and (rank is None or axis != rank - 1):
            raise self._refusal(f"{label(node)} is along axis {axis}, which opset {self._after} cannot say")
        _keep_attributes(node, lambda one: one.name != "axis")
        node.attribute.append(helper.make_attribute("axis", axis))

    def _with_roi(self, node: NodeProto, place: _Place) -> None:
        """Region and scales had to be there: an empty tensor is what was written for none."""
        while len(node.input) < 3:
            node.input.append("")
        for index in (1, 2):
            node.input[index] = node.input[index] or self._empty()

    def _empty(self) -> str:
        if not self._added:
            name = self._fresh.unique("no_values")
            self._added[name] = numpy_helper.from_array(np.zeros(0, np.float32), name)
        return next(iter(self._added))

    def _as_tensor(self, node: NodeProto, place: _Place) -> None:
        held = node.attribute[0]
        if held.name in ("value", "sparse_value"):
            return
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        if held.name not in kinds:
            raise self._refusal(f"{label(node)} holds text")
        value = numpy_helper.from_array(np.asarray(helper.get_attribute_value(held), kinds[held.name]))
        node.ClearField("attribute")
        node.attribute.append(helper.make_attribute("value", value))

    def _drop_neutral(self, node: NodeProto, then: onnx.defs.OpSchema) -> None:
        def stays(one: AttributeProto) -> bool:
            neutral = _NEUTRAL.get((node.op_type, one.name))
            return one.name in then.attributes or neutral is None or int(one.i) != neutral

        _keep_attributes(node, stays)

    def _refuse_beyond(self, node: NodeProto, now: onnx.defs.OpSchema, then: onnx.defs.OpSchema) -> None:
        """Refuse what the older operator does not take, or takes for something else where it is left out."""
        unknown = [one.name for one in node.attribute if one.name not in then.attributes]
        if unknown:
            raise self._refusal(f"{label(node)} has {unknown[0]}, which opset {self._after} does not know")
        given = {one.name for one in node.attribute}
        for name, one in then.attributes.items():
            late = now.attributes.get(name)
            if name not in given and late is not None and one.default_value != late.default_value:
                raise self._refusal(f"{label(node)} leaves {name} out, which opset {self._after} reads otherwise")
        if len(node.input) > then.max_input or len(node.output) > then.max_output:
            raise self._refusal(f"{label(node)} has more inputs or outputs than at opset {self._after}")
        if len(node.input) < then.min_input:
            raise self._refusal(f"{label(node)} has fewer inputs than at opset {self._after}")


def _rank(graph: GraphProto, name: str) -> int | None:
    """How many axes a tensor has, by what the file declares; None where it does not say."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return None


def _places(graph: GraphProto) -> list[_Place]:
    """The graph and all bodies in it, outer ones first, with the constants that each sees."""
    found: list[_Place] = []
    waiting: list[tuple[GraphProto, list[MutableMapping[str, TensorProto]]]] = [(graph, [])]
    for one, outer in waiting:  # grows while it is walked
        own: dict[str, TensorProto] = {tensor.name: tensor for tensor in one.initializer}
        for node in one.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                own[node.output[0]] = node.attribute[0].t
        seen = [own, *outer]
        found.append(_Place(one, ChainMap(*seen)))
        waiting += [(body, seen) for node in one.node for body in subgraphs_of(node)]
    return found


def _names(graph: GraphProto) -> list[str]:
    values = [value.name for value in (*graph.input, *graph.output)]
    return [
        *values,
        *(one.name for one in graph.initializer),
        *(name for node in graph.node for name in (*node.input, *node.output)),
    ]


def _freed(place: _Place) -> list[str]:
    """The tensors that operators of a graph read no more."""
    pairs = ((place.graph.node[index], node) for index, node in place.nodes.items())
    return [name for before, after in pairs for name in before.input if name and name not in after.input]


def _drop_unread(graph: GraphProto, names: set[str]) -> None:
    """Remove the initializers and Constants of these names that nothing reads now, in any graph."""
    places = _places(graph)
    read = {name for place in places for node in place.graph.node for name in node.input}
    read |= {value.name for place in places for value in place.graph.output}
    for place in places:
        unread = (names - read) - {value.name for value in place.graph.input}
        for table in (place.graph.initializer, place.graph.value_info):
            for index in range(len(table) - 1, -1, -1):
                if table[index].name in unread:
                    del table[index]
        for index in range(len(place.graph.node) - 1, -1, -1):
            node = place.graph.node[index]
            if node.op_type == "Constant" and node.output[0] in unread:
                del place.graph.node[index]


def _replace(node: NodeProto, other: NodeProto) -> None:
    """Give a node another's inputs and attributes; bodies in its attributes stay those of the node."""
    if subgraphs_of(node):
        return  # only types of If, Loop and Scan were widened; their bodies are places of their own
    node.CopyFrom(other)


def _keep_attributes(node: NodeProto, stays: Callable[[AttributeProto], bool]) -> None:
    kept = [AttributeProto.FromString(one.SerializeToString()) for one in node.attribute if stays(one)]
    if len(kept) < len(node.attribute):
        node.ClearField("attribute")
        node.attribute.extend(kept)


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that shape inference takes at any size."""
    lean = onnx.ModelProto(ir_version=proto.ir_version)
    lean.opset_import.extend(proto.opset_import)
    lean.graph.CopyFrom(proto.graph)
    kept = [lean_tensor(tensor) for tensor in proto.graph.initializer]
    lean.graph.ClearField("initializer")
    lean.graph.initializer.extend(kept)
    return lean
