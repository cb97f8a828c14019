# SPDX-License-Identifier: Apache-2.0
"""What goes in and out of predicted layers, with the element types of a strongly typed file. It predicts no layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qdqtool.engine.layer_types import layer_types
from qdqtool.engine.predict import FLOAT, PredictedLayer
from qdqtool.formats import number_format
from qdqtool.graph.view import GraphView
from qdqtool.precision.element_types import FLOATS, type_name

Ends = tuple[str, str]  # what a layer reads and what it gives: "INT8", "FP8", "FP16", "FP32", "BF16", or "float"


def end_types(file: GraphView, layers: Sequence[PredictedLayer], types: Mapping[str, int] | None) -> tuple[Ends, ...]:
    """What each layer reads, the number format where it takes codes, and gives."""
    if types is None:
        return tuple((_word(layer.input), _word(layer.output)) for layer in layers)
    found = zip(layers, layer_types(file, layers, types), strict=True)
    return tuple((_word(layer.input, _floats_first(of.inputs)), _word(layer.output, of.outputs)) for layer, of in found)


def _floats_first(codes: Sequence[int]) -> list[int]:
    return sorted(codes, key=lambda code: code not in FLOATS)


def _word(precision: str, codes: Iterable[int] = ()) -> str:
    return next((type_name(code) for code in codes), FLOAT) if precision == FLOAT else number_format(precision).title
