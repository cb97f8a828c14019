# SPDX-License-Identifier: Apache-2.0
"""One model in several number formats on one device: the time of each, its interval, and whether it pays over FP16.

An interval holds for four of five rows of the back-test (docs/forecast.md). That of a ratio is narrow where few layers
change: what both engines compute alike cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qdqtool.engine.layer_work import ATTENTION, LayerWork, Unit
from qdqtool.forecasting.layer_time import LayerTimes

Format = Literal["fp16", "int8", "fp8", "int4"]
FORMATS: tuple[Format, ...] = ("fp16", "int8", "fp8", "int4")
Verdict = Literal["pays", "equal", "does not pay"]

PAYS = 1.05
"""A format pays whose ratio is surely above this, and does not pay if it is surely below."""

SAME_COST = 0.02
"""Costs that lie closer are taken for equal: forecasts are not better than that."""

_NARROWS = 0.25  # the power of the share of time that changes by which an interval narrows (forecast_backtest.py)
_BUILDS = 1.03  # a guess: the builder's choices differ from build to build, also where both engines compute the same
_INT4_BITS, _INT4_SCALES = 4, 16 / 128  # a value, and its part of an FP16 scale for each block of 128
_CAUSES = ("launch", "conversion", "attention", "unfused_attention", "float", "depthwise")


@dataclass(frozen=True)
class FormatTime:
    """The forecast of one engine.

    Attributes:
        format: fp16, int8, fp8 or int4, or "as given" of a file with types of its own.
        batch: samples in one inference.
        milliseconds: GPU time of one inference, without copies to and from the device; a forecast, no measurement.
        low: four of five such forecasts are not above what is measured by more than this allows.
        high: likewise.
        megabytes: read and written in one inference.
        layers: of the engine, as `engine show --predicted` lists them.
        kernels: in which they run: a fused attention is one, and so is what hangs together between two products.
        conversions: those that only convert or copy.
        shares: cause -> its share of the time: "launch", "conversion", "attention" (in float, one kernel),
            "unfused_attention" (in float, several kernels), "float" (other layers that are not quantized), "depthwise".
        ratio: how much faster than FP16; 1 of FP16 itself.
        ratio_low: low end of the ratio's interval.
        ratio_high: high end.
        verdict: whether it pays over FP16; "" of FP16 itself.
    """

    format: str
    batch: int
    milliseconds: float
    low: float
    high: float
    megabytes: float
    layers: int
    kernels: int
    conversions: int
    shares: Mapping[str, float]
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    verdict: Verdict | Literal[""] = ""

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        compared = {"speedup": self.ratio, "speedup_low": self.ratio_low, "speedup_high": self.ratio_high}
        return {
            "format": self.format,
            "batch": self.batch,
            "latency_ms": self.milliseconds,
            "low_ms": self.low,
            "high_ms": self.high,
            **({**compared, "verdict": self.verdict} if self.verdict else {}),
            "megabytes": self.megabytes,
            "layers": self.layers,
            "kernels": self.kernels,
            "conversions": self.conversions,
            "shares": dict(self.shares),
        }


@dataclass(frozen=True)
class DecidingLayer:
    """Layers of the same nodes in two engines.

    Attributes:
        name: of the first ONNX node in them, or of the layer that has none.
        kind: of the layer in the quantized engine.
        fp16: milliseconds in FP16; 0 of what FP16 does not have, such as a conversion.
        quantized: milliseconds in the other format.
    """

    name: str
    kind: str
    fp16: float
    quantized: float

    @property
    def saved(self) -> float:
        """Milliseconds that the format saves; negative where it costs."""
        return self.fp16 - self.quantized


def in_format(name: str, fp16: Sequence[LayerWork], int8: Sequence[LayerWork], own: str = "") -> list[LayerWork]:
    """The layers of an engine in a format, from those in FP16 and in INT8, or in the format that a file has of its own.

    FP8 has the placement of INT8. INT4 has the layers of FP16, and the weights of matrix products in 4 bits.
    """
    if name == own:
        return list(int8)
    if name == "fp16":
        return list(fp16)
    if name == "int4":
        return [_with_int4_weights(layer) for layer in fp16]
    unit: Unit = "int8" if name == "int8" else "fp8"
    return [replace(layer, unit=unit) if layer.unit == "int8" else layer for layer in int8]


def _with_int4_weights(layer: LayerWork) -> LayerWork:
    weighted = bool(layer.products) and all(
        one.weighted and one.kernel == 1 and one.count == 1 for one in layer.products
    )
    if not weighted or layer.kind != "product":
        return layer
    return replace(layer, weights=int(layer.weights * (_INT4_BITS + _INT4_SCALES) / 16))


def time_of(name: str, layers: Sequence[LayerWork], times: LayerTimes, batch: int = 1) -> FormatTime:
    """The forecast of one engine on a device, not compared with another."""
    layers = [layer.in_batch(batch) for layer in layers] if batch != 1 else list(layers)
    each = times.of_each(layers)
    total, spread = math.fsum(each), times.constants.spread
    causes: dict[str, float] = dict.fromkeys(_CAUSES, 0.0)
    for layer, time in zip(layers, each, strict=True):
        causes["launch"] += times.launch
        causes[_cause(layer)] = causes.get(_cause(layer), 0.0) + time
    causes.pop("", None)
    return FormatTime(
        format=name,
        batch=batch,
        milliseconds=total / 1e3,
        low=total / 1e3 / spread,
        high=total / 1e3 * spread,
        megabytes=sum(layer.moved for layer in layers) / 1e6,
        layers=sum(layer.layers for layer in layers),
        kernels=len(layers),
        conversions=sum(layer.converts for layer in layers),
        shares={cause: time / total if total else 0.0 for cause, time in causes.items()},
    )


def _cause(layer: LayerWork) -> str:
    """What the time of a layer is counted as; "" of a product in a quantized format."""
    if layer.converts:
        return "conversion"
    if any(product.is_depthwise for product in layer.products):
        return "depthwise"
    if layer.unit not in ("half", "single"):
        return ""
    if layer.kind == ATTENTION:
        return "attention"
    return "unfused_attention" if layer.attends else "float"


def compared(
    row: FormatTime, half: FormatTime, layers: Sequence[LayerWork], fp16: Sequence[LayerWork], times: LayerTimes
) -> FormatTime:
    """A forecast beside that of FP16 for the same batch: the ratio, its interval, and the verdict."""
    ratio = half.milliseconds / row.milliseconds
    changed = math.fsum(abs(one.saved) for one in deciding_layers(layers, fp16, times, row.batch))
    share = min(1.0, changed / max(half.milliseconds, row.milliseconds))
    spread = max(_BUILDS, times.constants.ratio_spread ** (share**_NARROWS))
    low, high = ratio / spread, ratio * spread
    verdict: Verdict = "pays" if low > PAYS else "does not pay" if high < PAYS else "equal"
    return replace(row, ratio=ratio, ratio_low=low, ratio_high=high, verdict=verdict)


def is_below(cost: float, other: float) -> bool:
    """Whether a cost, a time or bytes, is below another beyond what a forecast can tell."""
    return cost * (1 + SAME_COST) < other


def fastest_format(rows: Sequence[FormatTime]) -> FormatTime:
    """The format to take: the first of those that take as long as the fastest, FP16 first."""
    fastest = min(row.milliseconds for row in rows)
    return next(row for row in rows if not is_below(fastest, row.milliseconds))


def deciding_layers(
    layers: Sequence[LayerWork], fp16: Sequence[LayerWork], times: LayerTimes, batch: int = 1
) -> list[DecidingLayer]:
    """Layers of two engines side by side by the nodes in them, what differs most first."""
    layers, fp16 = ([one.in_batch(batch) for one in work] if batch != 1 else list(work) for work in (layers, fp16))
    owner = {node: place for place, layer in enumerate(fp16) for node in (*layer.nodes, layer.name)}
    groups: dict[int, list[int]] = {}  # layer of FP16 -> those of the other engine that begin in it
    alone: list[int] = []
    for place, layer in enumerate(layers):
        first = next((owner[node] for node in (*layer.nodes, layer.name) if node in owner), None)
        alone.append(place) if first is None else groups.setdefault(first, []).append(place)
    own, other = times.of_each(layers), times.of_each(fp16)
    found = [DecidingLayer(_named(layers[place]), layers[place].kind, 0.0, own[place] / 1e3) for place in alone]
    for place, layer in enumerate(fp16):
        inside = groups.get(place, [])
        kind = layers[inside[0]].kind if inside else layer.kind
        found.append(
            DecidingLayer(_named(layer), kind, other[place] / 1e3, math.fsum(own[one] for one in inside) / 1e3)
        )
    return sorted(found, key=lambda one: -abs(one.saved))


def _named(layer: LayerWork) -> str:
    return layer.nodes[0] if layer.nodes else layer.name
