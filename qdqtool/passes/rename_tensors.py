# SPDX-License-Identifier: Apache-2.0
"""Gives tensors other names, wherever a model says them. Not which names: `cache.sanitize` finds those.

The one pass that renames what was there, and only on demand (`--sanitize-names`); nodes keep their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.validate import subgraphs_of


def tensor_names(proto: onnx.ModelProto) -> list[str]:
    """Every name that a tensor of the graph or of the bodies of control flow has, once each; see `rename_tensors`."""
    names: dict[str, None] = {}
    for graph in _graphs_of(proto.graph):
        for values in (graph.input, graph.output, graph.value_info):
            names.update(dict.fromkeys(value.name for value in values))
        names.update(dict.fromkeys(tensor.name for tensor in _stored(graph)))
        for node in graph.node:
            names.update(dict.fromkeys(node.input))
            names.update(dict.fromkeys(node.output))
        for note in graph.quantization_annotation:
            names[note.tensor_name] = None
            names.update(dict.fromkeys(entry.value for entry in note.quant_parameter_tensor_names))
    names.pop("", None)  # an input or output that is left out
    return list(names)


def rename_tensors(proto: onnx.ModelProto, mapping: Mapping[str, str]) -> dict[str, str]:
    """Rename tensors everywhere in a model, in place; nothing else changes.

    Renamed are inputs and outputs of the graph and of nodes, value_info, initializers (sparse ones too), annotations of
    quantization, and the tensors that a sharding names. Bodies of control flow are entered and take the same names, so
    what they capture stays captured; a tensor of theirs that hides an outer one of its name hides it under the new
    name. Local functions are not entered: their names are theirs alone and never in a cache. All names change at once,
    so two may swap.

    Raises:
        QdqError: two tensors would have one name, a new name is empty, or the model holds training information, whose
            bindings name tensors too. The model is unchanged then.
    """
    given = tensor_names(proto)
    names = {name: mapping[name] for name in given if mapping.get(name, name) != name}
    _refuse_collisions(given, names)
    if names and proto.training_info:
        raise QdqError(
            proto.graph.name or "the model",
            "holds training information, whose tensors cannot be renamed",
            "export the model for inference",
        )
    for graph in _graphs_of(proto.graph) if names else ():
        _rename_in(graph, names)
    return names


def _refuse_collisions(given: Iterable[str], names: Mapping[str, str]) -> None:
    taken = {name: name for name in given if name not in names}
    for old, new in names.items():
        if not new:
            raise QdqError(old, "would have an empty name, which means no tensor", "give a name")
        if new in taken:
            reason = f"cannot be renamed to {new}, the name that {taken[new]} has then"
            raise QdqError(old, reason, "give new names that no other tensor has")
        taken[new] = old


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it, at any depth."""
    stack = [graph]
    while stack:
        found = stack.pop()
        yield found
        for node in found.node:
            stack.extend(subgraphs_of(node))


def _stored(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors that carry the names of initializers; the name of a sparse one is that of its values."""
    yield from graph.initializer
    yield from (sparse.values for sparse in graph.sparse_initializer)


def _rename_in(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for values in (graph.input, graph.output, graph.value_info, _stored(graph)):
        for value in values:
            if value.name in names:
                value.name = names[value.name]
    for node in graph.node:
        _rename_each(node.input, names)
        _rename_each(node.output, names)
        for device in getattr(node, "device_configurations", ()):  # onnx 1.18 and later
            for spec in device.sharding_spec:
                if spec.tensor_name in names:
                    spec.tensor_name = names[spec.tensor_name]
    for note in graph.quantization_annotation:
        if note.tensor_name in names:
            note.tensor_name = names[note.tensor_name]
        for entry in note.quant_parameter_tensor_names:
            if entry.value in names:
                entry.value = names[entry.value]


def _rename_each(table: MutableSequence[str], names: Mapping[str, str]) -> None:
    for index, name in enumerate(table):
        if name in names:
            table[index] = names[name]
