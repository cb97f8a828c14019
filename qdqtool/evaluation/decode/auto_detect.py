# SPDX-License-Identifier: Apache-2.0
"""Which decoder a detector's outputs want: by name, or recognized from shapes, counts and values. Decodes nothing."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qdqtool.display import named
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.head import HeadDecoder, HeadOutputs, HeadSettings, RecognizedHead, Size
from qdqtool.evaluation.decode_options import Selection
from qdqtool.graph.output_rows import OutputRows

# family -> the file here that knows it
FAMILIES = {
    "yolox": "yolox",
    "nanodet": "nanodet",
    "fastestdet": "fastestdet",
    "ssd": "ssd",
    "yunet": "yunet",
    "retinaface": "retinaface",
    "yolov5": "yolov5",
    "yolov8": "yolov8",
    "detectnet_v2": "detectnet",
    "efficientdet": "efficientdet",
    "nms": "end_to_end_nms",
    "rows": "dense_rows",
    "detr": "detr",
    "rtdetr": "rtdetr",
}
_WORDS = {"yes": True, "no": False}
_TODO = "give --postprocess script.py:function, or --decoder NAME, which says what NAME expects; see docs/decoders.md"
_LISTED = 4  # outputs that a message lists


def find_decoder(
    name: str,
    outputs: Mapping[str, Any],
    input_size: Size,
    selection: Selection | None = None,
    rows: Mapping[str, OutputRows] | None = None,
) -> HeadDecoder:
    """The decoder of a name, fitted to a model's outputs; "auto" tries every family and takes the one that fits.

    Args:
        name: "auto" or a family, and settings behind it: ``yolov5,anchors=10:13:16:30:33:23:...``, ``ssd,decoded=no``,
            ``yolov8,classes=3``.
        outputs: the model's outputs by name, in graph order: arrays of one batch, which tell most, or shapes. For an
            INT8 model give those of its FP32 original, so that both are read alike.
        input_size: (width, height) of the input.
        selection: what is kept.
        rows: what the rows of outputs are, see `output_rows`; None where no graph is known: values
            tell them then, shapes alone do not.

    Raises:
        QdqError: no such family or setting; the outputs are not the family's, or, with "auto", no family's or those of
            several.
    """
    family, settings = _parsed(name)
    seen = replace(_seen(outputs, input_size, settings), rows=rows or {})
    selection = selection or Selection()
    if family != "auto":
        head = _recognize(family, seen)
        if isinstance(head, str):
            raise QdqError(
                f"--decoder {family}", f"does not fit the outputs: {head}", f"they are {_list_outputs(seen)}"
            )
        return HeadDecoder(family, head, selection)
    tried = ((known, _recognize(known, seen)) for known in FAMILIES)
    found = {known: head for known, head in tried if isinstance(head, RecognizedHead)}
    if len(found) == 1:
        return HeadDecoder(*found.popitem(), selection)
    if found:
        fits = "; or ".join(f"{known} ({head.description})" for known, head in found.items())
        raise QdqError("--decoder auto", f"the outputs fit {fits}", f"name one: --decoder {next(iter(found))}")
    raise QdqError("--decoder auto", f"no decoder fits the outputs {_list_outputs(seen)}", _TODO)


def _recognize(family: str, seen: HeadOutputs) -> RecognizedHead | str:
    module = importlib.import_module(f"qdqtool.evaluation.decode.{FAMILIES[family]}")
    with np.errstate(all="ignore"):  # the outputs of a model that is no detector, or of a damaged one
        head: RecognizedHead | str = module.recognize(seen)
    return head


def _seen(outputs: Mapping[str, Any], size: Size, settings: HeadSettings) -> HeadOutputs:
    arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
    shapes = {name: _shape(name, arrays[name].shape if name in arrays else outputs[name]) for name in outputs}
    return HeadOutputs(shapes, arrays, size, settings)


def _shape(name: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape whose first axis may be free, since no family looks at it."""
    first, rest = shape[:1], tuple(shape[1:])
    if not all(isinstance(one, int) for one in rest):
        raise QdqError(name, "is an output of a free shape", "give the outputs of one batch to recognize them")
    return (*(one if isinstance(one, int) else 1 for one in first), *rest)


def _list_outputs(seen: HeadOutputs) -> str:
    return named([f"{name} {list(shape)}" for name, shape in seen.shapes.items()], _LISTED)


def _parsed(text: str) -> tuple[str, HeadSettings]:
    family, *words = (word.strip() for word in text.split(","))
    if family not in (*FAMILIES, "auto"):
        near = difflib.get_close_matches(family, FAMILIES, 1)
        guess = f", did you mean {near[0]}" if near else ""
        raise QdqError("--decoder", f"{family!r} is not a decoder{guess}", f"choose auto, {', '.join(FAMILIES)}")
    given: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in given:
            raise QdqError("--decoder", f"{key} is given twice")
        given[key] = _setting(key, value)
    return family, HeadSettings(**given)


def _setting(key: str, value: str) -> Any:
    try:
        if key == "anchors":
            numbers = tuple(float(one) for one in value.replace("/", ":").split(":"))
            if len(numbers) % 6 == 0 and all(0 < number < float("inf") for number in numbers):
                return numbers
        elif key == "classes" and int(value) > 0:
            return int(value)
        elif key == "decoded":
            return _WORDS[value]
        elif key not in ("classes", "anchors"):
            raise QdqError("--decoder", f"{key!r} is not a setting", "there are anchors, classes and decoded")
    except (ValueError, KeyError):
        pass
    takes = {"anchors": "width:height of three a map", "classes": "a number", "decoded": "yes or no"}[key]
    raise QdqError("--decoder", f"{key}={value} cannot be", f"{key} takes {takes}")
