# SPDX-License-Identifier: Apache-2.0
"""Models run over samples, their outputs read as boxes or classes, one by one. What becomes of them is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qdqtool.errors import QdqError
from qdqtool.evaluation.classifier_output import Classifier, Ranked, classifier_of
from qdqtool.evaluation.decode.auto_detect import find_decoder
from qdqtool.evaluation.decode.head import HeadDecoder, Size
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.evaluation.detections import Array, Detections
from qdqtool.evaluation.postprocess import ScriptDecoder, script_decoder
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from qdqtool.graph.output_rows import OutputRows
from qdqtool.progress import bar
from qdqtool.runtime.executor import Executor, rows_of_run

Reader = HeadDecoder | ScriptDecoder | Classifier


@dataclass(frozen=True)
class Prediction:
    """One sample with what each model found in it."""

    index: int
    chunk: Chunk
    row: int
    found: tuple[Detections | Ranked, ...]
    reader: Reader


def reader_for(
    reading: DecodeOptions, outputs: Mapping[str, Array], size: Size, rows: Mapping[str, OutputRows] | None = None
) -> Reader:
    """What reads these outputs, a classifier or what `decoder_for` gives.

    Raises:
        QdqError: see `decoder_for`.
    """
    automatic = reading.decoder == "auto" and reading.postprocess is None
    classifier = classifier_of(outputs) if automatic else None
    return decoder_for(reading, outputs, size, rows) if classifier is None else classifier


def decoder_for(
    reading: DecodeOptions, outputs: Mapping[str, Array], size: Size, rows: Mapping[str, OutputRows] | None = None
) -> HeadDecoder | ScriptDecoder:
    """What makes boxes of these outputs; `rows` as `find_decoder` takes them.

    Raises:
        QdqError: no decoder fits, or the script cannot be had.
    """
    if reading.postprocess is not None:
        return script_decoder(reading.postprocess, reading.selection)
    if not all(size):
        raise QdqError("model", "takes no images, so no decoder fits", "give --postprocess script.py:function")
    return find_decoder(reading.decoder, outputs, size, reading.selection, rows)


def see(
    models: Sequence[Executor],
    samples: LabeledSamples,
    reading: DecodeOptions,
    title: str,
    progress: bool | None = None,
) -> Iterator[Prediction]:
    """Run models over the same samples and read their outputs alike; the first one's outputs decide how.

    Raises:
        QdqError: the data does not fit, onnxruntime cannot run a model, no decoder fits.
    """
    reader: Reader | None = None
    index = 0
    for chunk in _with_bar(samples, title, progress):
        outputs = [model.run(chunk.batch) for model in models]
        reader = reader or reader_for(reading, outputs[0], chunk.geometries[0].input_size, rows_of_run(models[0]))
        read = [_read(reader, one, chunk) for one in outputs]
        for row, found in enumerate(zip(*read, strict=True)):
            yield Prediction(index, chunk, row, found, reader)
            index += 1


def _read(reader: Reader, outputs: Mapping[str, Array], chunk: Chunk) -> Sequence[Detections | Ranked]:
    return reader(outputs) if isinstance(reader, Classifier) else reader(outputs, chunk.geometries)


def _with_bar(samples: LabeledSamples, title: str, progress: bool | None) -> Iterator[Chunk]:
    with bar(title, "image", samples.count, progress) as drawn:
        for chunk in samples.chunks():
            yield chunk
            drawn.advance(len(chunk.geometries))
