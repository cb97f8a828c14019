# SPDX-License-Identifier: Apache-2.0
"""What the layers of a built engine come to: how many of which kind, products by type, bytes moved, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.engine.profile import LayerTime

UNKNOWN = "?"


@dataclass(frozen=True)
class EngineTotals:
    """The sums over the layers of one engine.

    Attributes:
        layers: how many, those left out that only wait, signal or do nothing.
        kinds: kind -> how many, the most frequent first.
        conversions: layers that only turn one type or format into another.
        products: INT8, FP8, FP16, ... -> how many layers multiply in it; "?" where the file does not say.
        bytes_moved: read and written in one inference, weights included, by the layers that tell their sizes.
        unsized: layers that do not tell them.
        milliseconds: the time of all layers where a profile was given; None without one.
    """

    layers: int
    kinds: Mapping[str, int]
    conversions: int
    products: Mapping[str, int]
    bytes_moved: int
    unsized: int
    milliseconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "layers": self.layers,
            "kinds": dict(self.kinds),
            "conversions": self.conversions,
            "products": dict(self.products),
            "bytes_moved": self.bytes_moved,
            "unsized": self.unsized,
            "milliseconds": self.milliseconds,
        }


def totals_of(info: EngineInfo) -> EngineTotals:
    """The sums over an engine's layers."""
    working = [layer for layer in info.layers if not layer.is_scheduling]
    sizes = [layer.bytes_moved for layer in working]
    return EngineTotals(
        len(working),
        _counted(layer.kind or UNKNOWN for layer in working),
        sum(layer.is_conversion for layer in working),
        _counted(layer.product_type or UNKNOWN for layer in working if layer.is_product),
        sum(size for size in sizes if size is not None),
        sizes.count(None),
        None if info.times is None else _milliseconds(info.layers, info.times),
    )


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items(), key=lambda item: (-item[1], item[0])))


def _milliseconds(layers: Sequence[EngineLayer], times: Mapping[str, LayerTime]) -> float:
    """The time of the layers that the profile knows; layers of one name have one time."""
    names = dict.fromkeys(layer.name for layer in layers)
    return sum(times[name].milliseconds for name in names if name in times)


def totals_lines(totals: EngineTotals) -> list[str]:
    """The sums, a line each."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in totals.kinds.items())
    lines = [f"layers: {totals.layers} ({kinds}); {totals.conversions} of them only convert or copy"]
    lines.append(f"products: {_list(totals.products) or 'none'}")
    if totals.unsized < totals.layers:
        unsized = f", without {totals.unsized} layers of unknown size" if totals.unsized else ""
        lines.append(f"bytes moved: {totals.bytes_moved:,} in one inference, weights included{unsized}")
    else:
        lines.append("bytes moved: not known, as no layer lists its shapes")
    if totals.milliseconds is not None:
        lines.append(f"time: {totals.milliseconds:.3f} ms, the sum over the layers of the profile")
    return lines


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {'of unknown type' if kind == UNKNOWN else kind}" for kind, count in counts.items())
