# SPDX-License-Identifier: Apache-2.0
"""The back end that needs no other runtime: gradients by standard operators alone."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.autodiff.backend import Forward, GradientGraph
from qdqtool.autodiff.reverse_mode import differentiate
from qdqtool.autodiff.rules.table import RULES, operators


class Builtin:
    """Gradients by standard operators, on any onnxruntime and any device."""

    name = "builtin"

    def build(self, forward: Forward) -> GradientGraph:
        """The gradient of the loss by every parameter; see `reverse_mode.differentiate`."""
        return differentiate(forward, RULES)

    def operators(self) -> Sequence[str]:
        """Every operator that it differentiates, sorted. What has the gradient zero by definition is not among them."""
        return operators(RULES)
