# SPDX-License-Identifier: Apache-2.0
"""Q->DQ pairs as functions whose body is that pair, so that what is trained is what is exported.

A straight-through estimator passes a gradient g on where x was not cut off (mask = |y - x| <= scale / 2, true for any
zero point and width): dx = g * mask, and by LSQ (Esser 2020) dscale = sum(g * (y - mask * x)) / scale over what shares
a scale. The back ends carry that out; here are the names and the forward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from qdqtool.autodiff.backend import PAIR_DOMAIN

_NAME = re.compile(r"Pair(?:Axis(\d+))?(Learned)?")


@dataclass(frozen=True)
class PairFunction:
    """A kind of pair: one function, since a registered gradient sees no attributes.

    Attributes:
        axis: of the scales, not negative; None for one scale.
        learned: whether the scale has a gradient, too.
    """

    axis: int | None = None
    learned: bool = False

    @property
    def op_type(self) -> str:
        """`PairFunction`, `PairAxis0`, `PairLearned`, `PairAxis0Learned`, ... with inputs x, scale, zero point."""
        return f"Pair{'' if self.axis is None else f'Axis{self.axis}'}{'Learned' if self.learned else ''}"

    @classmethod
    def parse(cls, op_type: str) -> PairFunction | None:
        """The kind that an operator type of `PAIR_DOMAIN` names; None for another type."""
        found = _NAME.fullmatch(op_type)
        return None if found is None else cls(None if found[1] is None else int(found[1]), bool(found[2]))

    def nodes(self, inputs: Sequence[str], between: str, output: str) -> list[onnx.NodeProto]:
        """The two nodes of a pair on x, scale and zero point, with the integers between them under that name."""
        how: dict[str, Any] = {} if self.axis is None else {"axis": self.axis}
        x, scale, zero = inputs
        return [
            helper.make_node("QuantizeLinear", [x, scale, zero], [between], **how),
            helper.make_node("DequantizeLinear", [between, scale, zero], [output], **how),
        ]

    def function(self, opset: int) -> onnx.FunctionProto:
        """The function: QuantizeLinear, then DequantizeLinear, on inputs x, scale, zero_point; output y."""
        body = self.nodes(["x", "scale", "zero_point"], "q", "y")
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_function(PAIR_DOMAIN, self.op_type, ["x", "scale", "zero_point"], ["y"], body, opsets)
