# SPDX-License-Identifier: Apache-2.0
"""Trained values back into the Q/DQ model that they came from: by name, and nothing else of it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Use
from qdqtool.match.plan import Read
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.rule_files import operator_set
from qdqtool.training.integer_weights import Code

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a trained value stands in the file.

    Attributes:
        places: initializers, or tensors of Constant nodes, that hold it; for the scale of tied tensors several.
        read: the one consumer that is given an initializer of its own where others read the place, too.
        code: how it is coded, where the file holds integers.
        scale: the form's name of the scale that these are coded with.
    """

    places: tuple[str, ...]
    read: Read | None = None
    code: Code | None = None
    scale: str = ""


def write_values(
    file: Model, origins: Mapping[str, Origin], initial: Mapping[str, Float32], values: Mapping[str, Float32]
) -> Model:
    """A copy of a model with other values; where a value is to the bit what it was, the bytes stay."""
    copy = file.copy()
    fresh = {name for name in origins if _differs(values, initial, name)}
    if not fresh:
        return copy
    view = copy.view
    editor = Editor(view)
    for name, origin in origins.items():
        if name not in fresh and origin.scale not in fresh:
            continue
        value = values.get(name, initial[name])
        if origin.code is not None:
            scale = values.get(origin.scale, initial[origin.scale]) if origin.scale else _own_scale(view, origin.code)
            editor.set_constant(origin.places[0], origin.code.encode(value, scale))
        elif origin.read is not None:
            _apart(editor, origin.places[0], origin.read, value)
        else:
            for place in origin.places:
                _set(editor, place, value)
    editor.commit()
    list_as_inputs(copy.proto)
    copy.changed()
    return copy


def _differs(values: Mapping[str, Float32], initial: Mapping[str, Float32], name: str) -> bool:
    value = values.get(name)
    return value is not None and np.asarray(value, np.float32).tobytes() != initial[name].tobytes()


def _own_scale(view: GraphView, code: Code) -> Float32:
    scale = view.array(code.scale)
    if scale is None:
        raise AssertionError(code.scale)  # decode_constants has read it
    return scale.astype(np.float32, copy=False)


def _set(editor: Editor, place: str, value: Float32) -> None:
    """Another value under the shape that the file has for it: [1] where the form says ()."""
    held = editor.view.array(place)
    editor.set_constant(place, np.asarray(value, np.float32).reshape(value.shape if held is None else held.shape))


def _apart(editor: Editor, place: str, read: Read, value: Float32) -> None:
    """An initializer of its own for one consumer of a constant that others read, too."""
    name = editor.unique_name(f"{place}_of_{read.node}")
    editor.add_initializer(name, np.asarray(value, np.float32))
    editor.reroute(Use(editor.view.producers[read.node], read.index), name)


def in_file(file: GraphView, name: str) -> bool:
    """Whether a model has an initializer or a Constant node of this name in its main graph."""
    producer = file.producers.get(name)
    return name in file.initializers or (producer is not None and producer.op == "Constant")


def stands_in(file: GraphView, read: Read, name: str) -> bool:
    """Whether a node of the file reads an initializer there, what does nothing seen through."""
    node = file.producers.get(read.node)
    if node is None or read.index >= len(node.inputs):
        return False
    source = node.inputs[read.index]
    while source != name:
        producer = file.producers.get(source)
        if producer is None or producer.op not in operator_set("passing"):
            return False
        source = producer.inputs[0]
    return True
