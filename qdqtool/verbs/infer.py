# SPDX-License-Identifier: Apache-2.0
"""The verb `infer`: a model and data to pictures with its boxes or classes drawn, and one file of them all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import DataOptions, inputs_of
from qdqtool.display import Displayed, counted
from qdqtool.evaluation.class_names import refuse_too_many
from qdqtool.evaluation.classifier_output import Classifier
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.evaluation.detections import FINDS_NOTHING, Detections
from qdqtool.evaluation.draw import draw_boxes, draw_classes, name_of
from qdqtool.evaluation.inference import see
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.evaluation.output_dir import check_folder, filling, picture_names
from qdqtool.evaluation.pictures import blue_first, file_of, picture_of
from qdqtool.evaluation.samples import open_samples
from qdqtool.graph.io import ModelSource
from qdqtool.output_paths import files_of
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.infer_options import InferOptions

if TYPE_CHECKING:
    from PIL.Image import Image

    from qdqtool.data.loader import Data
    from qdqtool.evaluation.classifier_output import Ranked
    from qdqtool.evaluation.inference import Prediction
    from qdqtool.evaluation.samples import LabeledSamples

FILE = "detections.json"


@dataclass(frozen=True)
class ImageResult:
    """What was found in one image."""

    file: str
    picture: str
    size: tuple[int, int]
    found: Detections | Ranked


@dataclass(frozen=True, repr=False)
class InferResult(Displayed):
    """What was found in all images, and where the pictures are.

    Attributes:
        folder: where they were written.
        decoder: how outputs were read.
        images: one per sample, in order.
        names: class names by number.
        notes: what was left out, one sentence each.
    """

    folder: Path
    decoder: str
    images: tuple[ImageResult, ...]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def boxes(self) -> int | None:
        """How many boxes there are in all; None for a classifier."""
        counts = [len(one.found) for one in self.images if isinstance(one.found, Detections)]
        return sum(counts) if len(counts) == len(self.images) else None

    def headline(self) -> str:
        """The folder, how many pictures it has and how many boxes were found."""
        return f"{self.folder}: {counted(len(self.images), 'picture')}{self._found()}"

    def _found(self) -> str:
        return "" if self.boxes is None else f", {self.boxes} box{'' if self.boxes == 1 else 'es'}"

    def summary(self) -> list[str]:
        """What `qdqtool infer` prints."""
        pictures = counted(len(self.images), "picture")
        return [f"wrote {self.folder}: {pictures} and {FILE}{self._found()}", self.decoder]

    def to_json(self) -> dict[str, Any]:
        """What stands in detections.json: boxes in pixels of the image, to a hundredth."""
        images = []
        for one in self.images:
            facts: dict[str, Any] = {"file": one.file, "picture": one.picture}
            facts["width"], facts["height"] = one.size
            if isinstance(one.found, Detections):
                facts["detections"] = _boxes(one.found, self.names)
            else:
                facts["classes"] = _classes(one.found, self.names)
            images.append(facts)
        return {"schema": 1, "decoder": self.decoder, "images": images, "notes": list(self.notes)}


def infer(
    model: ModelSource,
    data: Data,
    output: str | Path,
    options: InferOptions | None = None,
    data_options: DataOptions | None = None,
) -> InferResult:
    """Run a model over images, draw what it finds, and write the pictures and `detections.json` to a folder.

    Plain and Q/DQ models run in the reference executor: Q/DQ is computed as written, in float, by onnxruntime.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: a folder of images, or of class folders; arrays are shown as images where they are of 1 or 3 channels.
        output: the folder; made where it is not there, refused where it holds something and `force` is off.
        options: see `InferOptions`.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: data that does not fit, a folder that cannot be used, no decoder for the outputs; nothing is written.
        MissingPackageError: onnxruntime or Pillow is not installed.
    """
    options, data_options = options or InferOptions(), data_options or DataOptions()
    folder, opened = Path(output), open_to_run(model)
    inputs = [*([opened.path] if opened.path else []), *files_of(data)]
    check_folder(folder, inputs, force=options.force)
    data_options, said = apply_known(opened.name, data, data_options, [known_preprocess(opened.proto)])
    samples = open_samples(data, inputs_of(opened.proto.graph), data_options)
    samples = replace(samples, notes=(*said, *samples.notes))
    run = Executor(opened, None, opened.name, options.provider)
    with filling(folder, [*inputs, *(samples.images or ())]) as place:
        result = _pictures(place, run, samples, options, bgr=blue_first(data_options.preprocess))
        if result.boxes == 0:
            result = replace(result, notes=(*result.notes, f"{opened.name} {FINDS_NOTHING}"))
        document = json.dumps(result.to_json(), indent=1, ensure_ascii=False)
        (place / FILE).write_text(document + "\n", encoding="utf-8", errors="backslashreplace")
    return replace(result, folder=folder)


def _pictures(place: Path, run: Executor, samples: LabeledSamples, options: InferOptions, *, bgr: bool) -> InferResult:
    """Draw every sample into a folder."""
    pictures = picture_names(samples.images) if samples.images is not None else None
    names: tuple[str, ...] | None = None
    seen: list[ImageResult] = []
    decoder = ""
    for prediction in see([run], samples, options.reading or DecodeOptions(), "infer", options.progress):
        names, decoder = (
            class_names(options.names, prediction) if names is None else names,
            prediction.reader.description,
        )
        file, found = file_of(samples, prediction.index), prediction.found[0]
        picture = pictures[prediction.index] if pictures else f"{file}.png"
        image = picture_of(samples, prediction.index, prediction.chunk, prediction.row, bgr=bgr)
        _drawn(image, found, names).save(place / picture, "PNG")
        geometry = prediction.chunk.geometries[prediction.row]
        seen.append(ImageResult(file.name, picture, (geometry.width, geometry.height), found))
    return InferResult(place, decoder, tuple(seen), names or (), samples.notes)


def class_names(text: str | None, prediction: Prediction) -> tuple[str, ...]:
    """Class names by number for what reads a model's outputs.

    Raises:
        QdqError: no such names, or more than there are classes.
    """
    reader = prediction.reader
    head = reader.head.classes if isinstance(reader, HeadDecoder) else None
    names = shown_names(text, head)
    refuse_too_many(len(names), reader.classes if isinstance(reader, Classifier) else head)
    return names


def _drawn(picture: Image, found: Detections | Ranked, names: tuple[str, ...]) -> Image:

    if isinstance(found, Detections):
        return draw_boxes(picture, found, names)
    ranked = zip(found.labels, found.probabilities, strict=True)
    return draw_classes(picture, [f"{share:.3f} {name_of(int(label), names)}" for label, share in ranked])


def _boxes(found: Detections, names: tuple[str, ...]) -> list[dict[str, Any]]:

    return [
        {
            "box": [round(float(value), 2) for value in found.boxes[row]],
            "score": round(float(found.scores[row]), 4),
            "class": int(found.labels[row]),
            "name": name_of(int(found.labels[row]), names),
        }
        for row in range(len(found))
    ]


def _classes(found: Ranked, names: tuple[str, ...]) -> list[dict[str, Any]]:

    return [
        {"class": int(label), "name": name_of(int(label), names), "probability": round(float(share), 4)}
        for label, share in zip(found.labels, found.probabilities, strict=True)
    ]
