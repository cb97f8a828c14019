# SPDX-License-Identifier: Apache-2.0
"""The whole vocabulary of edits on a graph. Each keeps the view true; nothing that was there is renamed or re-typed.

New nodes stand next to the node they belong to. The node list is sorted once, by `commit`, and no message is copied.
`count_uses` counts the readers of a tensor, `release` removes what loses its last one, `write_constant` gives some
readers another value.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import names_in
from qdqtool.graph.tensors import BITS
from qdqtool.graph.view import GraphView, Node, Use, captured_names

TRACE = "qdqtool."
Trace = tuple[tuple[str, str], ...]
# Fields of a TensorProto that hold its shape, type and values.
_STORED = (
    "dims",
    "data_type",
    "raw_data",
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)


class Editor:
    """Edits of one graph, collected and brought into order by `commit`."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._place: dict[int, tuple[float, int]] = {}
        self._removed: set[int] = set()
        self._added: list[onnx.NodeProto] = []
        self._dropped_initializers: set[str] = set()
        self._templates: dict[tuple[str, int | None, int | None, Trace], onnx.NodeProto] = {}
        self._names = FreshNames(names_in(view.graph, view.every))
        self._labels = {node.proto.name for node in view.every}

    def unique_name(self, base: str) -> str:
        """`base`, or `base` with the first free number after it; taken from now on."""
        return self._names.unique(base)

    def add_initializer(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """A new initializer under a name that `unique_name` gave."""
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = self.view.graph.initializer.add(name=name, dims=value.shape, data_type=kind)
        if BITS[kind] < 8:  # two values in a byte
            packed = onnx.numpy_helper.from_array(np.ascontiguousarray(value)).raw_data
            stored: npt.NDArray[np.generic] = np.frombuffer(packed, np.uint8)
        else:
            stored = np.asarray(value, value.dtype.newbyteorder("<"), order="C")
        store = self.view.store
        if store is None or not store.put(tensor, stored):
            tensor.raw_data = stored.tobytes()
        return name

    def drop_initializers(self, names: Iterable[str]) -> None:
        """Take initializers away; the order of the others stays."""
        self._dropped_initializers.update(names)

    def add_node(
        self,
        op: str,
        inputs: list[str],
        output: str,
        *,
        beside: Node | None,
        after: bool,
        axis: int | None = None,
        to: int | None = None,
        trace: Trace = (),
        more: Mapping[str, int] | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        """A new node before or after another, or at the front of the graph (`beside` None).

        Args:
            op: operator, its domain and `::` before it where that is not the default one.
            inputs: tensor names.
            output: the first tensor it makes; the node is named after it.
            beside: the node it stands next to.
            after: after that node, else in front of it.
            axis: value of the attribute `axis`, where it has one.
            to: value of the attribute `to`, the element type that a Cast makes.
            trace: (key, value) of its metadata_props, each key after "qdqtool.".
            more: attributes beside these.
            outputs: what it makes beside `output`.
        """
        proto = self.view.graph.node.add()
        proto.CopyFrom(self._template(op, axis, to, trace))
        proto.name = output if output not in self._labels else self.unique_name(output)
        self._labels.add(proto.name)
        proto.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in (more or {}).items())
        proto.input.extend(inputs)
        proto.output.extend([output, *outputs])
        where = -1.0 if beside is None else beside.index + (0.5 if after else -0.5)
        self._place[id(proto)] = (where, len(self._added))
        self._added.append(proto)

    def _template(self, op: str, axis: int | None, to: int | None, trace: Trace) -> onnx.NodeProto:
        """What new nodes of one kind have in common: all but their names."""
        kind = op, axis, to, trace
        if kind not in self._templates:
            given = {"axis": axis, "to": to}.items()
            attributes = [onnx.helper.make_attribute(name, value) for name, value in given if value is not None]
            entries = [onnx.StringStringEntryProto(key=TRACE + key, value=value) for key, value in trace]
            domain, _, name = op.rpartition("::")
            made = onnx.NodeProto(op_type=name, attribute=attributes, metadata_props=entries)
            if domain:  # an empty one would stand in the file
                made.domain = domain
            self._templates[kind] = made
        return self._templates[kind]

    def reroute(self, use: Use, name: str) -> None:
        """Let one input of a node read another tensor."""
        use.node.proto.input[use.index] = name
        use.node.inputs[use.index] = name

    def reroute_bodies(self, node: Node, names: Mapping[str, str]) -> None:
        """Let the bodies of a control-flow node read other tensors of this graph."""
        if names.keys() & captured_names(node):
            for attribute in node.proto.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    _rename_captured(graph, names)

    def remove_node(self, node: Node) -> None:
        """Take a node away; who reads its outputs must have been rerouted."""
        self._removed.add(id(node.proto))
        for name in node.outputs:
            self.view.producers.pop(name, None)

    def name_node(self, node: Node, name: str) -> None:
        """Name a node that has no name so far; `name` is one that `unique_name` gave."""
        if not node.proto.name:
            node.proto.name = name

    def rename_output(self, node: Node, index: int, name: str) -> None:
        """Let a node make a tensor that another node, removed before, made; who reads it is not changed."""
        self.view.producers.pop(node.outputs[index], None)
        node.proto.output[index] = node.outputs[index] = name
        self.view.producers[name] = node

    def set_initializer(self, name: str, value: npt.NDArray[np.generic]) -> None:
        """Another value for an initializer, held in the model or its store; its name, place and texts stay."""
        tensor = self.view.initializers[name]
        for field in [*_STORED, "external_data", "data_location"]:
            tensor.ClearField(field)
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        stored = np.asarray(value, value.dtype.newbyteorder("<"), order="C")
        store = self.view.store
        if store is None or not store.put(tensor, stored):
            tensor.MergeFrom(onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
            return
        tensor.data_type = kind
        tensor.dims.extend(value.shape)

    def set_constant(self, name: str, value: npt.NDArray[np.generic]) -> None:
        """Another value for an initializer or for the tensor of a Constant node; names and texts stay."""
        if name in self.view.initializers:
            self.set_initializer(name, value)
            return
        node = self.view.producers[name]
        held = next(item for item in node.proto.attribute if item.name.startswith("value"))
        made = onnx.numpy_helper.from_array(np.asarray(value, order="C"), held.t.name if held.name == "value" else "")
        held.CopyFrom(onnx.helper.make_attribute("value", made))

    def set_input(self, node: Node, index: int, name: str) -> None:
        """Let a node read a tensor as input number `index`, which it may have left out so far."""
        missing = index + 1 - len(node.inputs)
        node.proto.input.extend([""] * missing)
        node.inputs.extend([""] * missing)
        self.reroute(Use(node, index), name)

    def cut_inputs(self, node: Node, count: int) -> list[str]:
        """Let a node read its first `count` inputs alone; the names of the others that it read."""
        cut = [name for name in node.inputs[count:] if name]
        del node.proto.input[count:], node.inputs[count:]
        return cut

    def set_operator(
        self, node: Node, op: str, attributes: Mapping[str, float | Sequence[int]], trace: Trace = ()
    ) -> None:
        """Make a node another operator; its name, place, inputs and outputs stay, its attributes become these."""
        del node.proto.attribute[:]
        node.proto.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        node.proto.op_type = node.op = op
        node.proto.metadata_props.extend(
            onnx.StringStringEntryProto(key=TRACE + key, value=text) for key, text in trace
        )

    def set_attribute(self, node: Node, name: str, value: int) -> None:
        """Let a node have an attribute of a name and a value."""
        self.drop_attribute(node, name)
        node.proto.attribute.append(onnx.helper.make_attribute(name, value))

    def drop_attribute(self, node: Node, name: str) -> None:
        """Let a node have no attribute of a name; nothing where it has none."""
        kept = [one for one in node.proto.attribute if one.name != name]
        del node.proto.attribute[:]
        node.proto.attribute.extend(kept)

    def drop_inputs(self, names: Iterable[str]) -> None:
        """No longer list initializers as inputs of the graph, as files before IR 4 must; the order stays."""
        _drop_named(self.view.graph.input, names)

    def drop_value_info(self, names: Iterable[str]) -> None:
        """Forget the types of tensors that are no more; the order of the others stays."""
        _drop_named(self.view.graph.value_info, names)

    def commit(self) -> None:
        """Bring the node list into order and drop what was removed. The view is of the graph before; make a new one."""
        graph = self.view.graph
        if self._added or self._removed:
            last = (float("inf"), 0)
            place = {id(node.proto): (float(node.index), 0) for node in self.view.every}
            place.update(self._place)
            place.update(dict.fromkeys(self._removed, last))
            graph.node.sort(key=lambda proto: place[id(proto)])
            del graph.node[len(place) - len(self._removed) :]
        if self._dropped_initializers:
            keep = [tensor for tensor in graph.initializer if tensor.name not in self._dropped_initializers]
            order = {id(tensor): place for place, tensor in enumerate(keep)}
            graph.initializer.sort(key=lambda tensor: order.get(id(tensor), len(order)))
            del graph.initializer[len(keep) :]
        self.view.changed()


def traced_rule(node: Node) -> str:
    """The rule that the trace of a node names; "" where it has none."""
    return traced(node, "rule")


def traced(node: Node, key: str) -> str:
    """What the trace of a node says under a key; "" where it has none."""
    return next((entry.value for entry in node.proto.metadata_props if entry.key == f"{TRACE}{key}"), "")


def count_uses(view: GraphView) -> Counter[str]:
    """How often each tensor is read; outputs of the graph and names that bodies read count once more."""
    uses = Counter(name for node in view.every for name in node.inputs if name)
    uses.update(view.outputs)
    uses.update(sorted(view.captured))
    return uses


def release(editor: Editor, uses: Counter[str], name: str) -> None:
    """One consumer of a constant is gone: count it, and remove an initializer or a Constant that nobody reads now."""
    uses[name] -= 1
    if uses[name]:
        return
    producer = editor.view.producers.get(name)
    if producer is None:
        editor.drop_initializers([name])
        editor.drop_inputs([name])
    elif producer.op == "Constant":
        editor.remove_node(producer)


def write_constant(
    editor: Editor,
    uses: Counter[str],
    places: Sequence[Use],
    value: npt.NDArray[np.generic],
    name: str,
    *,
    in_place: bool = True,
) -> str:
    """Let some inputs read another value; the name of the initializer that has it.

    The initializer that they read so far is overwritten where nothing else reads it. Otherwise, and without `in_place`,
    they get one of their own, called `name` or `name` with a number, and what loses its last reader is removed.
    """
    before = [use.node.inputs[use.index] if use.index < len(use.node.inputs) else "" for use in places]
    old = before[0]
    if in_place and old in editor.view.initializers and set(before) == {old} and uses[old] == len(places):
        editor.set_initializer(old, value)
        return old
    made = editor.add_initializer(editor.unique_name(name), value)
    uses[made] = len(places)
    for use, old in zip(places, before, strict=True):
        editor.set_input(use.node, use.index, made)
        if old:
            release(editor, uses, old)
    return made


def _drop_named(table: MutableSequence[onnx.ValueInfoProto], names: Iterable[str]) -> None:
    gone = frozenset(names)
    for place in range(len(table) - 1, -1, -1):
        if table[place].name in gone:
            del table[place]


def _rename_captured(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    stack = [(graph, frozenset[str]())]
    while stack:
        body, hidden = stack.pop()
        hidden = hidden.union(
            (v.name for v in body.input), (t.name for t in body.initializer), (n for p in body.node for n in p.output)
        )
        for value in body.output:
            if value.name in names and value.name not in hidden:
                value.name = names[value.name]
        for proto in body.node:
            for index, name in enumerate(proto.input):
                if name in names and name not in hidden:
                    proto.input[index] = names[name]
            for attribute in proto.attribute:
                stack.extend((inner, hidden) for inner in (attribute.g, *attribute.graphs))


CONDITIONED = "condition"  # the entry in which `condition` tells its edits
FINETUNED = "finetune"  # the entry in which `finetune` tells what it did
PRUNED = "prune"  # the entry in which `prune` tells which channels stay


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    """Set one entry of the model's metadata under "qdqtool."; an entry that is there is replaced in place."""
    for entry in model.metadata_props:
        if entry.key == TRACE + key:
            entry.value = value
            return
    entry = model.metadata_props.add()
    entry.key, entry.value = TRACE + key, value


def get_metadata(model: onnx.ModelProto, key: str) -> str | None:
    """One entry of the model's metadata under "qdqtool.", or None."""
    return next((entry.value for entry in model.metadata_props if entry.key == TRACE + key), None)


def drop_metadata(model: onnx.ModelProto, key: str) -> None:
    """Take one entry of the model's metadata under "qdqtool." away, if it is there."""
    for index in range(len(model.metadata_props) - 1, -1, -1):
        if model.metadata_props[index].key == TRACE + key:
            del model.metadata_props[index]


def edits_of(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """What `condition` tells of its edits in the metadata: objects with `step` and `site`, in order."""
    return recorded_edits(get_metadata(model, CONDITIONED))


def recorded_edits(text: str | None) -> list[dict[str, Any]]:
    """The edits in an entry of the metadata that `condition` wrote; none in one of another hand."""
    try:
        edits = json.loads(text or "{}")["edits"]
        return [edit for edit in edits if all(isinstance(edit[key], str) for key in ("step", "site"))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def trained_in_int8(model: onnx.ModelProto) -> bool:
    """Whether `finetune` trained the weights with their Q/DQ, as the metadata tell: in float they compute less then."""
    facts: object = None
    with contextlib.suppress(ValueError, RecursionError):  # of another hand
        facts = json.loads(get_metadata(model, FINETUNED) or "{}")
    return isinstance(facts, dict) and bool(facts.get("steps")) and not facts.get("in_float")


def equalized_tensors(model: onnx.ModelProto) -> list[str]:
    """Tensors whose channels `condition` or `finetune` divided or shifted in constants, as the metadata tell."""
    tuned: object = None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # of another hand
        tuned = json.loads(get_metadata(model, FINETUNED) or "{}")["equalized"]
    free = {("equalize", False), ("smooth", False), ("shift", False)}
    names = [edit["site"] for edit in edits_of(model) if (edit["step"], bool(edit.get("added"))) in free]
    names = [*dict.fromkeys(names)]
    return [*names, *map(str, tuned)] if isinstance(tuned, list) else names


def clear_metadata(model: onnx.ModelProto) -> None:
    """Take away every entry of the metadata that this program made for Q/DQ; what it did to weights stays noted."""
    for index in range(len(model.metadata_props) - 1, -1, -1):
        key = model.metadata_props[index].key
        if key.startswith(TRACE) and key not in (TRACE + CONDITIONED, TRACE + FINETUNED, TRACE + PRUNED):
            del model.metadata_props[index]
