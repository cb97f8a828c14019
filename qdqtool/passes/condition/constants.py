# SPDX-License-Identifier: Apache-2.0
"""Reading and replacing the float32 constants that a node reads; one that others read too is copied first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor, count_uses, write_constant
from qdqtool.graph.tensors import array_of
from qdqtool.graph.view import GraphView, Node, Use

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def is_plain_constant(view: GraphView, node: Node, index: int) -> bool:
    """Whether input number `index` is a float32 constant that stands in the model as it is computed with."""
    if index >= len(node.inputs) or not node.inputs[index]:
        return False
    name = node.inputs[index]
    if not view.is_constant(name) or view.root(name) in view.pairs:
        return False
    tensor = view.constant_tensor(name)
    return tensor is not None and tensor.data_type == tensor.FLOAT


def read_constant(view: GraphView, node: Node, index: int) -> Float32:
    """The value of a float32 constant.

    Raises:
        QdqError: it is computed, quantized, or not float32.
    """
    value = view.array(node.inputs[index]) if is_plain_constant(view, node, index) else None
    if value is None:
        name = node.inputs[index] if index < len(node.inputs) else ""
        raise QdqError(node.name, f"its input {name or index} is not a plain float32 constant", "fold constants first")
    return value.astype(np.float32, copy=False)


class Constants:
    """Writes constants into one graph: in place where one node reads the old one, else as a copy under a new name."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._uses = count_uses(editor.view)
        self._written: dict[tuple[str, int], onnx.TensorProto] = {}

    def holds(self, node: Node, index: int) -> bool:
        """Whether input number `index` is a plain constant, or was written here."""
        return (node.key, index) in self._written or is_plain_constant(self.editor.view, node, index)

    def read(self, node: Node, index: int) -> Float32:
        """The constant at input number `index` as it is now; see `read_constant`."""
        known = self._written.get((node.key, index))
        if known is None:
            return read_constant(self.editor.view, node, index)
        return array_of(known, None).astype(np.float32, copy=False)

    def write(self, node: Node, index: int, value: Float32) -> None:
        """Let a node compute with another value at input number `index`, one that it may have left out so far."""
        old = node.inputs[index] if index < len(node.inputs) else ""
        value = np.ascontiguousarray(value, np.float32)
        held = self.editor.view.initializers.get(old)
        # One that is given an axis of channels is a constant of its own: `peel --source` adds it to the source.
        fits = held is not None and tuple(held.dims) == value.shape
        name = f"{old}_conditioned" if old else f"{node.key}_bias"
        made = write_constant(self.editor, self._uses, [Use(node, index)], value, name, in_place=fits)
        written = held if held is not None and made == old else self.editor.view.graph.initializer[-1]
        self._written[node.key, index] = written


def narrowed(values: Float64, where: str) -> Float32:
    """Rounded to float32 once.

    Raises:
        QdqError: a value passes what float32 holds.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(np.float32)
    if not np.isfinite(made).all():
        raise QdqError(where, "the edited weight exceeds the range of float32", "leave that step out with --steps")
    return made


def list_as_inputs(proto: onnx.ModelProto) -> None:
    """List initializers among the graph's inputs where the IR version asks for it (below 4); the others stay."""
    if proto.ir_version >= 4:
        return
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            proto.graph.input.append(value)
