# SPDX-License-Identifier: Apache-2.0
"""Two detectors and data to pictures of what one loses against the other, the worst first: `compare --draw`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import DataOptions, inputs_of
from qdqtool.display import Displayed, counted
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.evaluation.detection_differences import differ, worst_first
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.draw import draw_pair
from qdqtool.evaluation.inference import see
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.evaluation.output_dir import check_folder, filling
from qdqtool.evaluation.pictures import blue_first, file_of, pictures_of
from qdqtool.evaluation.samples import open_samples
from qdqtool.graph.io import ModelSource
from qdqtool.output_paths import files_of
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.infer import class_names
from qdqtool.verbs.infer_options import InferOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data
    from qdqtool.evaluation.detection_differences import DetectionDifference
    from qdqtool.evaluation.samples import LabeledSamples

FILE = "differences.json"
PICTURES = 32


@dataclass(frozen=True)
class DrawOptions:
    """How differences are drawn.

    Attributes:
        infer: how outputs are read, class names, provider; whether the folder may hold files.
        pictures: how many are drawn at most, the worst ones; every image is counted.
        titles: what the halves are called; None takes the models' names.
    """

    infer: InferOptions = field(default_factory=InferOptions)
    pictures: int = PICTURES
    titles: tuple[str, str] | None = None


@dataclass(frozen=True, repr=False)
class DrawnDifferences(Displayed):
    """What was drawn.

    Attributes:
        files: pictures, the worst first, named by rank and image; `differences.json` last.
        decoder: how outputs were read.
        images: how many were looked at.
        boxes: how many the reference has in all.
        lost: how many of them the candidate lacks.
        spurious: how many boxes of the candidate's the reference lacks.
        notes: what was left out, one sentence each.
    """

    files: tuple[Path, ...]
    decoder: str
    images: int
    boxes: int
    lost: int
    spurious: int
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """How many boxes of the reference are lost, and how many of the candidate's are spurious."""
        return f"of {self.boxes} boxes in {self.images} images {self.lost} are lost and {self.spurious} spurious"

    def summary(self) -> list[str]:
        """What `qdqtool compare --draw` prints of the pictures."""
        last, pictures = self.files[-1], counted(len(self.files) - 1, "picture")
        return [f"wrote {last.parent}: {pictures} and {last.name}; {self.headline()}", self.decoder]

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool compare --draw --json` says of the pictures."""
        counts = {"images": self.images, "boxes": self.boxes, "lost": self.lost, "spurious": self.spurious}
        return {"files": [str(file) for file in self.files], "decoder": self.decoder, **counts}


def draw_differences(
    models: tuple[ModelSource, ModelSource],
    data: Data,
    output: str | Path,
    options: DrawOptions | None = None,
    data_options: DataOptions | None = None,
) -> DrawnDifferences:
    """Draw the boxes of two detectors side by side, lost and spurious ones marked, the worst images first.

    A box of the reference is lost where the candidate has none of its class that overlaps it by half or more, and the
    other way round it is spurious; images are sorted by the scores of all such boxes together.

    Args:
        models: the reference, as a rule the FP32 model, which also decides the decoder; and what is judged.
        data: see `infer`.
        output: the folder, made or empty.
        options: see `DrawOptions`.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: classifiers, data that does not fit, a folder that cannot be used; nothing is written.
        MissingPackageError: onnxruntime or Pillow is not installed.
    """
    options, data_options = options or DrawOptions(), data_options or DataOptions()
    opened = [open_to_run(model) for model in models]
    folder = Path(output)
    inputs = [*(one.path for one in opened if one.path), *files_of(data)]
    check_folder(folder, inputs, force=options.infer.force)
    known = [known_preprocess(one.proto) for one in reversed(opened)]
    data_options, said = apply_known(opened[1].name, data, data_options, known)
    samples = open_samples(data, inputs_of(opened[0].proto.graph), data_options)
    runs = [Executor(one, None, one.name, options.infer.provider) for one in opened]
    titles = options.titles or (Path(opened[0].name).stem, Path(opened[1].name).stem)
    with filling(folder, [*inputs, *(samples.images or ())]) as place:
        found = _compared(runs, samples, options.infer)
        files = _draw(place, (samples, data_options), found, options.pictures, titles)
        (place / FILE).write_text(_document(samples, found, titles), encoding="utf-8", errors="backslashreplace")
    lost, spurious = (sum(int(getattr(one, name).sum()) for one in found.each) for name in ("lost", "spurious"))
    boxes = sum(len(one.reference) for one in found.each)
    written = tuple(folder / name for name in (*files, FILE))
    return DrawnDifferences(written, found.decoder, len(found.each), boxes, lost, spurious, (*said, *samples.notes))


@dataclass(frozen=True)
class _RankedDifferences:
    """The difference in each image, in order, and the images' numbers, the worst first."""

    each: Sequence[DetectionDifference]
    order: Sequence[int]
    decoder: str
    names: tuple[str, ...]


def _compared(runs: Sequence[Executor], samples: LabeledSamples, infer: InferOptions) -> _RankedDifferences:

    found: list[DetectionDifference] = []
    names: tuple[str, ...] = ()
    decoder = ""
    for prediction in see(runs, samples, infer.reading or DecodeOptions(), "draw", infer.progress):
        first, second = prediction.found
        if not isinstance(first, Detections) or not isinstance(second, Detections):
            raise QdqError(
                "--draw", f"draws boxes, this is a {prediction.reader.description}", "qdqtool infer draws its classes"
            )
        if not found:
            names, decoder = class_names(infer.names, prediction), prediction.reader.description
        found.append(differ(first, second))
    return _RankedDifferences(found, worst_first(found), decoder, names)


def _draw(
    place: Path, data: tuple[LabeledSamples, DataOptions], found: _RankedDifferences, most: int, titles: tuple[str, str]
) -> list[str]:
    """Draw the worst images in a second walk over the samples; their file names, the worst first."""
    samples, data_options = data
    ranks = {index: rank for rank, index in enumerate(found.order[:most], 1) if found.each[index].weight}
    names = {index: f"{rank:03}_{file_of(samples, index).stem}.png" for index, rank in ranks.items()}
    for index, image in pictures_of(samples, names, bgr=blue_first(data_options.preprocess)):
        draw_pair(image, found.each[index], found.names, titles).save(place / names[index], "PNG")
    return list(names.values())


def _document(samples: LabeledSamples, found: _RankedDifferences, titles: tuple[str, str]) -> str:

    def decoder(index: int) -> dict[str, Any]:
        one = found.each[index]
        return {
            "file": file_of(samples, index).name,
            "reference": len(one.reference),
            "candidate": len(one.candidate),
            "lost": int(one.lost.sum()),
            "spurious": int(one.spurious.sum()),
            "weight": round(one.weight, 4),
        }

    listed = [decoder(index) for index in found.order]
    document = {"schema": 1, "reference": titles[0], "candidate": titles[1], "decoder": found.decoder, "images": listed}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
