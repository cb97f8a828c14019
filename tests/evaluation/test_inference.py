# SPDX-License-Identifier: Apache-2.0
"""What reads a model's outputs, and two models walked side by side over the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qdqtool.data.geometry import Geometry
from qdqtool.errors import QdqError
from qdqtool.evaluation.classifier_output import Classifier
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.evaluation.detections import Detections
from qdqtool.evaluation.inference import reader_for, see
from qdqtool.evaluation.samples import Chunk, LabeledSamples
from tests.detector_model import BOXES, head_of

SIZE = (64, 64)
GEOMETRY = Geometry(64, 64, (1.0, 1.0), (0.0, 0.0), SIZE)


class FixedOutputs:
    """A model that gives the same outputs for every sample, and counts its runs."""

    def __init__(self, outputs: dict[str, np.ndarray]) -> None:
        self.outputs, self.runs = outputs, 0

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.runs += 1
        return {name: np.repeat(value, len(feed["x"]), 0) for name, value in self.outputs.items()}


def samples(*counts: int) -> LabeledSamples:
    def chunks() -> Iterator[Chunk]:
        for count in counts:
            yield Chunk({"x": np.zeros((count, 3, 64, 64), np.float32)}, (GEOMETRY,) * count)

    return LabeledSamples("d", chunks, count=sum(counts))


def test_a_classifier_a_detector_and_neither() -> None:
    assert isinstance(reader_for(DecodeOptions(), {"y": np.zeros((1, 10), np.float32)}, SIZE), Classifier)
    assert isinstance(reader_for(DecodeOptions(), {"y": head_of(BOXES)}, SIZE), HeadDecoder)
    with pytest.raises(QdqError, match="--decoder yolox: does not fit"):
        reader_for(DecodeOptions("yolox"), {"y": np.zeros((1, 10), np.float32)}, SIZE)
    with pytest.raises(QdqError, match="takes no images"):
        reader_for(DecodeOptions(), {"y": head_of(BOXES)}, (0, 0))


def test_two_models_are_read_alike_and_samples_are_counted_through() -> None:
    first, second = FixedOutputs({"y": head_of(BOXES)}), FixedOutputs({"y": head_of(BOXES[:1])})
    models: Any = [first, second]
    sights = list(see(models, samples(2, 1), DecodeOptions(), "see", False))
    assert [(one.index, one.row) for one in sights] == [(0, 0), (1, 1), (2, 0)]
    for prediction in sights:
        assert all(isinstance(found, Detections) for found in prediction.found)
        assert [len(found.labels) for found in prediction.found] == [2, 1]
    assert (first.runs, second.runs) == (2, 2)


def test_the_reference_decides_how_the_other_is_read() -> None:
    """Decoded or not shows in values: what INT8 made of the other model must not change the decoder."""
    far = head_of(BOXES)
    far[..., :4] = 50.0
    models: Any = [FixedOutputs({"y": head_of(BOXES)}), FixedOutputs({"y": far})]
    prediction = next(see(models, samples(1), DecodeOptions(), "see", False))
    assert isinstance(prediction.reader, HeadDecoder)
    assert "strides" in prediction.reader.description


def test_a_bar_only_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    models: Any = [FixedOutputs({"y": head_of(BOXES)})]
    assert len(list(see(models, samples(1, 1), DecodeOptions(), "seeing", None))) == 2
    assert capsys.readouterr().err == ""
    assert len(list(see(models, samples(1, 1), DecodeOptions(), "seeing", True))) == 2
    assert "seeing" in capsys.readouterr().err
