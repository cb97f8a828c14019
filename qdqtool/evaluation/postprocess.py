# SPDX-License-Identifier: Apache-2.0
"""`--postprocess script.py:function`: a detector's outputs decoded by the user's own code. No family is known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.geometry import Geometry
from qdqtool.data.polygraphy_loader import load_script, split_script
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode.head import in_image
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.detections import Array, Detections
from qdqtool.evaluation.nms import suppress

_FUNCTION = "postprocess"
_WANTED = "return one (boxes [n, 4], scores [n], labels [n]) per image"


@dataclass(frozen=True)
class ScriptDecoder:
    """A function of the user's as a decoder: ``function(outputs, geometries)``, called once a batch.

    It returns one ``(boxes, scores, labels)`` per image: corners in pixels of the model's input. They are thresholded,
    suppressed where an `iou` is given, sorted by score, carried back into the image and cut off at its borders here.

    Attributes:
        script: the file, for messages.
        function: what was defined there.
        selection: `score` and `most` hold; without `iou` nothing is suppressed, the function may have done so.
    """

    script: Path
    function: Callable[..., Any]
    selection: Selection

    @property
    def description(self) -> str:
        """What decodes, one line."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        iou = "" if self.selection.iou is None else f", NMS at IoU {self.selection.iou:g}"
        return f"{name} of {self.script.name}; score above {self.selection.score:g}{iou}"

    def __call__(self, outputs: Mapping[str, Array], geometries: Sequence[Geometry]) -> list[Detections]:
        """Decode one batch."""
        try:
            found = self.function(dict(outputs), list(geometries))
        except QdqError:
            raise
        except Exception as error:  # the user's code raises what it likes
            reason = f"fails when it decodes ({type(error).__name__}: {error})"
            raise QdqError(self.script, reason, "fix it; -v shows where") from error
        images = list(found) if isinstance(found, Iterable) else []
        if len(images) != len(geometries):
            raise QdqError(self.script, f"gives {len(images)} results for {len(geometries)} images", _WANTED)
        return [self._checked(one, geometry) for one, geometry in zip(images, geometries, strict=True)]

    def _checked(self, found: Any, geometry: Geometry) -> Detections:
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise QdqError(self.script, f"gives a {type(found).__name__} for an image", _WANTED)
        try:
            boxes = np.asarray(found[0], np.float64).reshape(-1, 4)
            scores = np.asarray(found[1], np.float32).reshape(-1)
            labels = np.asarray(found[2]).reshape(-1)
        except (TypeError, ValueError) as error:
            raise QdqError(self.script, f"does not return boxes, scores and labels ({error})", _WANTED) from None
        whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and bool((labels == np.floor(labels)).all()))
        if not len(boxes) == len(scores) == len(labels) or not whole:
            counts = f"{len(boxes)} boxes, {len(scores)} scores and {len(labels)} labels of {labels.dtype}"
            raise QdqError(self.script, f"gives {counts}", _WANTED + ", labels as whole numbers")
        kept = (scores > self.selection.score) & np.isfinite(boxes).all(axis=1)
        boxes, scores, numbers = boxes[kept], scores[kept], labels[kept].astype(np.int64)
        iou = 1.0 if self.selection.iou is None else self.selection.iou  # no overlap is more than 1: nothing goes
        order = suppress(boxes, scores, numbers, iou, self.selection.most)
        return in_image(boxes[order], scores[order], numbers[order], geometry)


def script_decoder(text: str | Callable[..., Any], selection: Selection | None = None) -> ScriptDecoder:
    """The decoder that a script defines, or a function.

    Raises:
        QdqError: no such script or function, or the script fails when it is loaded.
    """
    if callable(text):
        return ScriptDecoder(Path(_FUNCTION), text, selection or Selection())
    found = split_script(text)
    if found is None:
        raise QdqError("--postprocess", f"{text!r} is not a script", "give script.py:function")
    path = found[0]
    function = _FUNCTION if text == str(path) or text.endswith(".py") else found[1]
    if not path.is_file():
        raise QdqError(path, "does not exist", f"give the script that defines {function}()")
    return ScriptDecoder(path, load_script(path, function), selection or Selection())
