# SPDX-License-Identifier: Apache-2.0
"""What models say of their preprocessing: where it is found, what contradicts it, what only differs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from qdqtool.cache.sidecar import write_sidecar
from qdqtool.data.loader import DataOptions
from qdqtool.data.preprocess import PRESETS, parse_preprocess
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import KnownPreprocess, apply_known, known_preprocess, resize_note
from qdqtool.metadata import store_table
from qdqtool.scales import ScaleTable
from tests.graphs import model_of

NET = "g (float[N, 3, 4, 4] x) => (float[N, 3, 4, 4] y) { y = Relu(x) }"
YOLO = KnownPreprocess(PRESETS["yolov8"], "somebody")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(b"")
    return tmp_path


def model(**metadata: str) -> onnx.ModelProto:
    proto = model_of(NET)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


def test_the_data_that_calibrated_say_it() -> None:
    proto = model()
    store_table(
        proto,
        ScaleTable(
            provenance=Provenance(data={"kind": "images", "name": "pictures", "preprocess": "color=bgr,scale=1/255"})
        ),
    )
    known = known_preprocess(proto)
    assert known == KnownPreprocess(parse_preprocess("color=bgr,scale=1/255"), "its calibration data", "pictures")


@pytest.mark.parametrize(
    ("metadata", "known"),
    [
        ({"stride": "32", "names": "{0: 'a'}"}, True),
        ({"stride": "32", "names": "{0: 'a'}", "task": "detect"}, True),
        ({"stride": "32", "names": "{0: 'a'}", "task": "classify"}, False),
        ({"names": "a,b"}, False),
        ({}, False),
    ],
)
def test_exporters_say_it(metadata: dict[str, str], known: bool) -> None:
    found = known_preprocess(model(**metadata))
    assert (found is not None) is known
    assert found is None or found.spec == PRESETS["yolov8"]


def test_what_stands_beside_a_cache_says_it(tmp_path: Path) -> None:
    cache = tmp_path / "m.cache"
    cache.write_text("TRT-8502-EntropyCalibration2\nx: 3c010a14\n")
    write_sidecar(cache, {"verb": "ptq", "data": {"preprocess": "scale=1/255"}})
    known = known_preprocess(model(), cache)
    assert known is not None and known.spec.scale == 1 / 255 and known.source.endswith(" m.cache")
    cache.write_text("TRT-8502-EntropyCalibration2\nx: 3c010a15\n")
    assert known_preprocess(model(), cache) is None, "it tells of another cache"


def test_it_is_taken_where_none_is_asked_for(images: Path, tmp_path: Path) -> None:
    options, said = apply_known("m", images, DataOptions(limit=3), [None, YOLO])
    assert options == DataOptions(limit=3, preprocess=YOLO.spec)
    assert re.match(f"images .*by somebody: {re.escape(str(YOLO.spec))}$", "".join(said))


@pytest.mark.parametrize("data", [{}, "d.npz", "load.py:f"])
def test_data_without_images_are_fed_as_they_are(data: object) -> None:
    assert apply_known("m", data, DataOptions(), [YOLO]) == (DataOptions(), ())  # type: ignore[arg-type]


def test_nobody_knows(images: Path) -> None:
    assert apply_known("m", images, DataOptions(), [None]) == (DataOptions(), ())


@pytest.mark.parametrize(
    ("given", "mine", "theirs"),
    [
        ("yolox", "color=bgr", "color=rgb"),
        ("scale=1", "values from 0 to 255", "values from 0 to 1"),
        ("imagenet", "values from -2.12 to 2.25", "values from 0 to 1"),
        ("ssd", "values from -0.992 to 1", "values from 0 to 1"),
    ],
)
def test_other_values_are_refused(given: str, mine: str, theirs: str, images: Path) -> None:
    with pytest.raises(QdqError, match=rf"^m: somebody had {theirs}, --preprocess has {mine}; leave --preprocess out"):
        apply_known("m", images, DataOptions(preprocess=given), [YOLO])


@pytest.mark.parametrize("same", [True, False])
def test_a_refusal_prints_how_to_calibrate_anew(same: bool, images: Path) -> None:
    known = replace(YOLO, calibrated=images.name if same else "others")
    data = images if same else "others"
    line = f"qdqtool insert m.onnx --requantize --data {data} --preprocess keras -o m.mended.onnx"
    with pytest.raises(QdqError) as refused:
        apply_known("m.onnx", images, DataOptions(preprocess="keras"), [known])
    assert refused.value.todo.endswith(line)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("yolov8", ()),
        ("yolov8,scale=0.0039", ()),
        ("yolov8,resize=stretch", ("--preprocess has resize=stretch, somebody had letterbox",)),
        ("yolov8,resize=stretch,pad=0", ("--preprocess has resize=stretch, somebody had letterbox",)),
        ("yolov8,pad=0", ("--preprocess has pad=0, somebody had 114",)),
        ("yolov8,interpolation=area", ("--preprocess has interpolation=area, somebody had linear",)),
        ("yolov8,size=8x8", ()),
    ],
)
def test_other_geometry_is_said(given: str, said: tuple[str, ...], images: Path) -> None:
    asked = DataOptions(preprocess=given)
    assert apply_known("m", images, asked, [YOLO]) == (asked, said)
    value = replace(asked, preprocess=parse_preprocess(given))
    assert apply_known("m", images, value, [YOLO]) == (value, said)


@pytest.mark.parametrize(
    ("text", "family", "said"),
    [
        ("size=320,color=bgr,mean=103,std=57", "nanodet", True),
        ("scale=1/255", "yolov8", True),
        ("scale=1/255,resize=stretch", "yolov8", False),
        ("nanodet,size=320", "nanodet", False),
        ("color=bgr,scale=1/255", "fastestdet", False),
    ],
)
def test_images_that_nobody_asked_to_stretch_are_told_of(images: Path, text: str, family: str, said: bool) -> None:
    found = resize_note(text, family, images)
    assert bool(found) is said
    if said:
        assert "resize=letterbox" in found[0] and f"the preset is {family}" in found[0]


def test_only_images_and_texts_are_resized_by_default(images: Path, tmp_path: Path) -> None:
    assert resize_note(parse_preprocess("scale=1/255"), "yolov8", images) == ()
    assert resize_note(None, "yolov8", images) == () and resize_note("scale=1", "yolov8", tmp_path / "a.npz") == ()
