# SPDX-License-Identifier: Apache-2.0
"""What an engine costs by its compiler's plan: layers, conversions, bytes moved, products by type.

Built on a CPU; nothing was run, and nothing here is a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqtool.engine.built_info import built_line
from qdqtool.tensorrt_rtx.build import BuiltEngine
from qdqtool.tensorrt_rtx.installed import NAME


@dataclass(frozen=True)
class EngineCost:
    """What one engine costs.

    Attributes:
        layers: how many, without those that only wait.
        conversions: those that only turn one type or format into another.
        bytes_moved: read and written in one inference, weights included.
        products: type -> layers that multiply in it, such as {"INT8": 106, "FP32": 7}.
        source: what was built where, and that it was not run.
    """

    layers: int
    conversions: int
    bytes_moved: int
    products: Mapping[str, int]
    source: str

    def text(self) -> str:
        """`224 layers (3 only convert), 126.1 MB moved, 106 of 113 products in INT8`."""
        total = sum(self.products.values())
        return (
            f"{self.layers} layers ({self.conversions} only convert), {self.bytes_moved / 1e6:.1f} MB moved,"
            f" {self.products.get('INT8', 0)} of {total} products in INT8"
        )

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "layers": self.layers,
            "conversions": self.conversions,
            "bytes_moved": self.bytes_moved,
            "products": dict(self.products),
        }


def cost_of(built: BuiltEngine) -> EngineCost:
    """The sums over the layers that the compiler's log names."""
    totals = built.totals
    source = built_line(NAME, built.version, built.sm)
    return EngineCost(totals.layers, totals.conversions, totals.bytes_moved, totals.products, source)
