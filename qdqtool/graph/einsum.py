# SPDX-License-Identifier: Apache-2.0
"""What an Einsum of two operands is as a product with a weight: by its equation, whatever the sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.graph.nodes import Node, attribute

_ELLIPSIS = "."  # stands for "..." in a term


@dataclass(frozen=True)
class EinsumProduct:
    """The letters of two operands and the output, "." for an ellipsis; each letter at most once in each."""

    operands: tuple[str, str]
    output: str

    @classmethod
    def of(cls, node: Node) -> EinsumProduct | None:
        """That of a node; None where it has another number of operands, or takes a diagonal."""
        equation = attribute(node, "equation", "")
        if not isinstance(equation, str) or len(node.inputs) != 2:
            return None
        left, arrow, output = equation.replace(" ", "").replace("...", _ELLIPSIS).partition("->")
        terms = left.split(",")
        if len(terms) != 2 or any(len(set(term)) < len(term) for term in (*terms, output)):
            return None
        if not arrow:
            letters = sorted(set(left) - {",", _ELLIPSIS})
            lead = _ELLIPSIS if _ELLIPSIS in left else ""
            output = lead + "".join(letter for letter in letters if left.count(letter) == 1)
        return cls((terms[0], terms[1]), output)

    def is_by_weight(self, index: int) -> bool:
        """Whether an operand can be the weight of a linear layer: none of its axes goes along with one of the other.

        Each of its letters is summed over with the other's, or is of the output alone; both kinds are there, and the
        other operand is summed over by nothing else.
        """
        weight, data = self.operands[index], self.operands[1 - index]
        if _ELLIPSIS in weight:
            return False
        summed, free = self.summed(index), self.free(index)
        whole = len(summed) + len(free) == len(weight) and bool(summed) and bool(free)
        return whole and all(letter in self.output or letter in summed for letter in data)

    def summed(self, index: int) -> str:
        """The letters of a weight that are summed over."""
        weight, data = self.operands[index], self.operands[1 - index]
        return "".join(letter for letter in weight if letter in data and letter not in self.output)

    def free(self, index: int) -> str:
        """The letters of a weight that the output has of it alone: its channels."""
        weight, data = self.operands[index], self.operands[1 - index]
        return "".join(letter for letter in weight if letter in self.output and letter not in data)

    def channel_axis(self, index: int) -> int | None:
        """The axis of a weight along which each channel of the output has its own part; None where several are."""
        free = self.free(index)
        return self.operands[index].index(free) if len(free) == 1 else None

    def sizes(self, first: Sequence[int], second: Sequence[int]) -> dict[str, int]:
        """Letter -> size, by the shapes of the operands; of those whose shape goes with the letters."""
        found: dict[str, int] = {}
        for term, shape in zip(self.operands, (first, second), strict=True):
            lead, dots, tail = term.partition(_ELLIPSIS)
            if len(shape) >= len(lead + tail) if dots else len(shape) == len(term):
                found.update(zip(lead, shape, strict=False))
                found.update(zip(tail, shape[len(shape) - len(tail) :], strict=True))
        return found

    def multiply_adds(self, first: Sequence[int], second: Sequence[int], output: Sequence[int]) -> int:
        """One for each element of the output and each place that is summed over."""
        summed = (size for letter, size in self.sizes(first, second).items() if letter not in self.output)
        return math.prod(output) * math.prod(summed)
