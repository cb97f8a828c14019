# SPDX-License-Identifier: Apache-2.0
"""A node of the DLA and the shapes around it, and the table of what rules may check of it. The checks lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_index

Shape = tuple[int | None, ...]
Numbers = Sequence[float]
Check = Callable[["NodeContext"], "bool | Numbers | None"]
AnyCheck = TypeVar("AnyCheck", bound=Check)
_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class NodeContext:
    """A node, and what is known of the tensors around it.

    Attributes:
        view: the graph.
        node: the operator in question.
        shapes: tensor -> its shape, None for a free dimension; tensors of unknown rank are not in it.
        int8: whether it computes in INT8, else in FP16.
        float32: whether the file has it in FP32, and the builder takes types from there.
    """

    view: GraphView
    node: Node
    shapes: Mapping[str, Shape]
    int8: bool = True
    float32: bool = False

    def shape(self, index: int = 0) -> Shape | None:
        """The shape of an input."""
        if index >= len(self.node.inputs):
            return None
        return self.shapes.get(self.view.root(self.node.inputs[index]))

    def shapes_around(self) -> list[Shape | None]:
        """The shapes of its computed inputs and its outputs."""
        names = [self.view.root(n) for n in self.node.inputs if n and not self.view.is_constant(n)]
        return [self.shapes.get(name) for name in (*names, *filter(None, self.node.outputs))]

    def numbers(self, name: str, usual: int = 1) -> list[int]:
        """An attribute of numbers; two of the usual one where it is not given."""
        value = attribute(self.node, name)
        return [int(number) for number in value] if isinstance(value, list) and value else [usual, usual]

    def weight(self) -> Shape | None:
        """The shape of its constant weight."""
        index = weight_index(self.view, self.node)
        return None if index is None else self.constant(index)

    def constant(self, index: int) -> Shape | None:
        """The shape of a constant input."""
        name = self.node.inputs[index]
        tensor = self.view.constant_tensor(name)
        if tensor is not None:
            return tuple(tensor.dims)
        value = self.view.array(name)
        return None if value is None else value.shape

    def computed(self) -> list[str]:
        """Its inputs that are not constant."""
        return [name for name in self.node.inputs if name and not self.view.is_constant(name)]


def check(function: AnyCheck) -> AnyCheck:
    """Make a check known to rules under its name."""
    _CHECKS[function.__name__] = function
    return function


def check_named(name: str) -> Check:
    """The check of that name; QdqError where a rule names none that exists."""
    if name not in _CHECKS:
        raise QdqError(name, "no such check of the DLA", f"known: {', '.join(sorted(_CHECKS))}")
    return _CHECKS[name]


def sentence_of(name: str) -> str:
    """What a check that stopped says."""
    return (check_named(name).__doc__ or name).strip().splitlines()[0].rstrip(".")


def outside(found: bool | Numbers | None, least: int, most: int) -> list[float] | None:
    """Numbers that are not whole ones from `least` to `most`; [] where a check without numbers stopped, else None."""
    if isinstance(found, bool):
        return None if found else []
    wrong = [number for number in found or () if not least <= number <= most or number % 1]
    return wrong or None
