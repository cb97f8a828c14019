# SPDX-License-Identifier: Apache-2.0
"""One node that lies between a parameter and the loss, and the three ways to treat it. Not which operator gets which.

Left alone (None): the gradient builder is right about it. A `Replacement`: other nodes that compute the same and that
it is right about. A `Wrap`: the node inside a function of our own, with the gradient as a second function beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.errors import QdqError
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.builder import tensor_of

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoweringContext:
    """A node and what is known about its tensors.

    Attributes:
        node: the node; it is not changed.
        shapes: tensor -> shape.
        types: tensor -> ONNX element type.
        constants: tensor -> value, for small integers and the like that a rule needs to see.
        active: for each input, whether the loss depends on a parameter through it.
        wanted: for each output, whether the loss depends on it.
        names: those that are in use; new ones are added.
        opset: of the graph.
    """

    node: onnx.NodeProto
    shapes: Mapping[str, Shape]
    types: Mapping[str, int]
    constants: Callable[[str], Array | None]
    active: tuple[bool, ...]
    wanted: tuple[bool, ...]
    names: FreshNames
    opset: int

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs, "" where one is left out."""
        return list(self.node.input)

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def shape(self, index: int) -> Shape:
        """The shape of an input."""
        return tuple(self.shapes[self.node.input[index]])

    @property
    def out(self) -> Shape:
        """The shape of the first output."""
        return tuple(self.shapes[self.node.output[0]])

    def constant(self, index: int) -> Array | None:
        """The value of an input; None where it is not given or not fixed."""
        return self.constants(self.node.input[index]) if self.has(index) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; texts as str."""
        for one in self.node.attribute:
            if one.name == name:
                value = helper.get_attribute_value(one)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def axis(self, default: int) -> int:
        """The attribute `axis`, not negative."""
        axis = int(self.attribute("axis", default))
        return axis + len(self.shape(0)) if axis < 0 else axis

    def only_first(self, *others: int) -> None:
        """Refuse the node if a gradient is wanted by one of the other inputs."""
        for index in others:
            if index < len(self.active) and self.active[index]:
                raise self.refusal(f"has no gradient by its input {index} ({self.inputs[index]})")

    def refusal(self, reason: str) -> QdqError:
        """The error that names the operator and the node."""
        return refuse(self.node, reason)


@dataclass(frozen=True, eq=False)
class Wrap:
    """A node inside a function, and its gradient.

    Attributes:
        names: what the texts call the node's inputs, then those of `extra`.
        gradient: statements in ONNX's text form, that read `g`, the gradient by the output, `y`, the output, and the
            inputs by `names`, and make `d<name>` for each of `results`.
        results: inputs that have a gradient; they are the first of `names`.
        extra: further inputs, constants.
        body: nodes in place of the node itself, that read `names` and make `y`.
    """

    names: tuple[str, ...]
    gradient: str
    results: tuple[str, ...]
    extra: Mapping[str, Array] = field(default_factory=dict)
    body: tuple[onnx.NodeProto, ...] = ()


class Replacement:
    """Nodes that stand in for one node, in order; the last one makes its outputs.

    Attributes:
        nodes: the nodes.
        initializers: constants that they read.
    """

    def __init__(self, site: LoweringContext) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._site = site

    def fresh(self) -> str:
        """A name that nothing else has."""
        return self._site.names.unique(f"{self._site.node.output[0]}/lowered")

    def constant(self, value: npt.ArrayLike) -> str:
        """A new constant of the value's own type."""
        name = self.fresh()
        self.initializers.append(tensor_of(value, name))
        return name

    def integers(self, numbers: Iterable[int]) -> str:
        """A new one-dimensional int64 constant."""
        return self.constant(np.asarray([*numbers], np.int64))

    def emit(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A new node with one new output."""
        name = self.fresh()
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def end(self, op: str, inputs: Sequence[str], **attributes: Any) -> Replacement:
        """The last node, which makes the node's own output."""
        node = self._site.node
        self.nodes.append(helper.make_node(op, inputs, [node.output[0]], name=node.name, **attributes))
        return self

    def again(self, inputs: Sequence[str] | None = None, **attributes: Any) -> onnx.NodeProto:
        """The node itself with other inputs or attributes (None takes one away)."""
        node = onnx.NodeProto()
        node.CopyFrom(self._site.node)
        if inputs is not None:
            del node.input[:]
            node.input.extend(inputs)
        for at in reversed(range(len(node.attribute))):
            if node.attribute[at].name in attributes:
                del node.attribute[at]
        node.attribute.extend(helper.make_attribute(k, v) for k, v in sorted(attributes.items()) if v is not None)
        self.nodes.append(node)
        return node


Treatment = Replacement | Wrap | None
Rule = Callable[[LoweringContext], Treatment]


def refuse(node: onnx.NodeProto, reason: str) -> QdqError:
    """An error that names the operator and the node."""
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    where = node.name or (node.output[0] if node.output else operator)
    return QdqError(where, f"{operator} {reason}", "--freeze what lies before it, or try --backend builtin")


def number(name: str, value: float) -> str:
    """The statement that makes a scalar float32."""
    return f"{name} = Constant <value_float: float = {float(value)!r}> ()\n"


def integers(name: str, values: Iterable[int]) -> str:
    """The statement that makes a one-dimensional int64."""
    return f"{name} = Constant <value_ints: ints = [{', '.join(str(int(v)) for v in values)}]> ()\n"


def reshaped(result: str, source: str, shape: Shape) -> str:
    """The statements that give `source` another shape."""
    return integers(f"{result}_shape", shape) + f"{result} = Reshape ({source}, {result}_shape)\n"


def summed_to(result: str, source: str, have: Shape, want: Shape) -> str:
    """The statements that sum `source`, of shape `have`, over the axes along which `want` was broadcast to it."""
    lead = len(have) - len(want)
    axes = [*range(lead), *(lead + at for at, size in enumerate(want) if size == 1 and have[lead + at] != 1)]
    if not axes:
        return reshaped(result, source, want)
    total = integers(f"{result}_axes", axes) + f"{result}_sum = ReduceSum ({source}, {result}_axes)\n"
    return total + reshaped(result, f"{result}_sum", want)


FLOAT = int(TensorProto.FLOAT)
