# SPDX-License-Identifier: Apache-2.0
"""The worst images of a report, drawn: a detector's with boxes lost and spurious, a classifier's with another class."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.images import load_pillow
from qdqtool.data.loader import DataOptions, inputs_of
from qdqtool.evaluation.classifier_output import Ranked
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.evaluation.draw import draw_classes, name_of
from qdqtool.evaluation.inference import see
from qdqtool.evaluation.pictures import blue_first, file_of, pictures_of
from qdqtool.evaluation.samples import open_samples
from qdqtool.graph.io import ModelSource
from qdqtool.precision.rounded import open_to_run
from qdqtool.reporting.sections import DrawnImage
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.compare_pictures import DrawOptions, draw_differences
from qdqtool.verbs.infer import class_names
from qdqtool.verbs.infer_options import InferOptions
from qdqtool.workflows.report_options import ReportOptions

if TYPE_CHECKING:
    from PIL.Image import Image

    from qdqtool.evaluation.samples import LabeledSamples

_WIDEST = 1100  # pixels of a drawn image
_TITLES = ("FP32", "this model")

_Drawn = tuple[list[DrawnImage], str]


def worst_boxes(model: ModelSource, source: ModelSource, options: ReportOptions) -> _Drawn:
    """The images of a detector that lose most, and a sentence on all of them."""
    assert options.data is not None
    reading = DecodeOptions(options.decoder, options.postprocess)
    infer = InferOptions(reading, options.names, provider=options.provider, progress=options.progress)
    how = DrawOptions(infer, options.pictures, _TITLES)
    with tempfile.TemporaryDirectory(prefix="qdqtool-") as folder:
        result = draw_differences((source, model), options.data, Path(folder) / "worst", how, options.data_options)
        document = json.loads(result.files[-1].read_text(encoding="utf-8"))
        images = [
            _stored(file, _caption(one)) for file, one in zip(result.files[:-1], document["images"], strict=False)
        ]
    return images, f"{result.headline()}; {result.decoder}"


def _caption(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['file']}: of {facts['reference']} boxes of the FP32 model {facts['lost']} lost (red), "
        f"{facts['spurious']} spurious (orange)"
    )


def _stored(file: Path, caption: str) -> DrawnImage:

    with load_pillow().open(file) as picture:
        return _image(picture.convert("RGB"), caption)


def _image(image: Image, caption: str) -> DrawnImage:
    """A picture as a JPEG, not wider than the page."""
    if image.width > _WIDEST:
        image = image.resize((_WIDEST, max(1, round(image.height * _WIDEST / image.width))))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return DrawnImage(buffer.getvalue(), "jpeg", caption)


@dataclass(frozen=True)
class _Flip:
    """A sample whose best class is another one: what both models say of it."""

    index: int
    reference: Ranked
    candidate: Ranked


def worst_classes(model: ModelSource, source: ModelSource, options: ReportOptions) -> _Drawn:
    """The images of which a classifier says something else than the float model, those first where that was surest.

    Nothing where the samples are no images; see `worst_boxes`.
    """
    assert options.data is not None
    opened, how = [open_to_run(one) for one in (source, model)], options.data_options or DataOptions()
    inputs = inputs_of(opened[0].proto.graph)
    samples = open_samples(options.data, inputs, how)
    shape = inputs[0].shape or ()
    if samples.images is None and (len(shape) != 4 or not {1, 3} & set(shape[1:])):
        return [], ""
    flips, count, names = _flips(opened, samples, options)
    text = f"{len(flips)} of {count} images have another top class than in the FP32 model"
    return _draw_flips(samples, flips[: options.pictures], names, how), text


def _flips(opened: Any, samples: LabeledSamples, options: ReportOptions) -> tuple[list[_Flip], int, tuple[str, ...]]:

    runs = [Executor(one, None, one.name, options.provider) for one in opened]
    flips, count, names = list[_Flip](), 0, tuple[str, ...]()
    for prediction in see(runs, samples, DecodeOptions(), "report", options.progress):
        first, second = prediction.found
        count += 1
        if isinstance(first, Ranked) and isinstance(second, Ranked) and first.labels[0] != second.labels[0]:
            names = names or class_names(options.names, prediction)
            flips.append(_Flip(prediction.index, first, second))
    return sorted(flips, key=lambda one: (-float(one.reference.probabilities[0]), one.index)), count, names


def _draw_flips(
    samples: LabeledSamples, flips: list[_Flip], names: tuple[str, ...], options: DataOptions
) -> list[DrawnImage]:

    def said(title: str, found: Ranked) -> str:
        return f"{title}: {name_of(int(found.labels[0]), names)} {float(found.probabilities[0]):.2f}"

    pictures = dict(pictures_of(samples, {one.index for one in flips}, bgr=blue_first(options.preprocess)))
    images = []
    for one in flips:
        lines = [said(title, found) for title, found in zip(_TITLES, (one.reference, one.candidate), strict=True)]
        caption = f"{file_of(samples, one.index).name}: {'; '.join(lines)}"
        images.append(_image(draw_classes(pictures[one.index], lines), caption))
    return images
