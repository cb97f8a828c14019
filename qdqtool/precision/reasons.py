# SPDX-License-Identifier: Apache-2.0
"""Why an operator is in FP32, and what is read to find that out. The constraints themselves: required.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qdqtool.precision.amp_rules import AmpRules
from qdqtool.precision.fixed_types import UNKNOWN, makers_of_unknown
from qdqtool.precision.float_graph import FloatGraph
from qdqtool.precision.stored_weights import LARGEST, SMALLEST
from qdqtool.precision.value_ranges import ValueRange, ValueRanges, range_of_constant

INT8 = "int8"  # the rule of what is FP32 in the file and INT8 in the engine
TOGETHER = "together"  # of what is FP32 for another part of the same operator
CASTS = "casts"  # of what is FP32 for fewer Casts

_UNKNOWN = ("nothing is known of the values", "has a clipping value of", "no data was run")


def wants_data(text: str) -> bool:
    """Whether a reason may go where data are given: the values were unknown, or their largest was."""
    return any(words in text for words in _UNKNOWN)


@dataclass(frozen=True)
class FloatReason:
    """Why an operator is in FP32.

    Attributes:
        rule: of those in `required.CONSTRAINTS`, `TOGETHER` or `CASTS`, which depend on the whole choice, loss or
            overflow, which simulation finds, or recorded.
        text: the same as a sentence, with the tensor and the figure.
    """

    rule: str
    text: str


class Requirements:
    """What every constraint reads, and the constants that are read once.

    Attributes:
        graph: the operators and tensors.
        ranges: of the values.
        rules: rules/amp.toml.
        rest: the half type.
        fixed: operators that are FP32 by what they are -> why (`fixed_float32`).
        layers: keys of the operators of INT8 layers, and of those between pairs that are FP32 for the same codes.
        keep: regular expressions of the user.
    """

    def __init__(
        self,
        graph: FloatGraph,
        ranges: ValueRanges,
        rules: AmpRules,
        rest: int,
        fixed: Mapping[str, str],
        *,
        layers: Collection[str] = (),
        keep: tuple[str, ...] = (),
    ) -> None:
        """Read nothing yet."""
        self.graph, self.ranges, self.rules, self.rest, self.fixed = graph, ranges, rules, rest, fixed
        self.layers, self.keep = layers, keep
        self.most = LARGEST[rest]
        self.least = SMALLEST[rest]
        self._constants: dict[str, ValueRange | None] = {}
        untyped = (node for key, node in graph.nodes.items() if fixed.get(key) == UNKNOWN)
        self.untyped_by = makers_of_unknown(graph.view, untyped, graph.types)

    def constant(self, name: str) -> ValueRange | None:
        """The magnitudes of a constant."""
        if name not in self._constants:
            self._constants[name] = range_of_constant(self.graph.view, name)
        return self._constants[name]

    def range_of(self, name: str) -> ValueRange | None:
        """The values of an activation or of a constant."""
        view = self.graph.view
        return self.constant(name) if view.is_constant(name) else self.ranges.of(view, name)
