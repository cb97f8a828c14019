# SPDX-License-Identifier: Apache-2.0
"""A user's own decoder: called once a batch, its boxes carried into the image, its faults told in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.geometry import Geometry
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import Selection
from qdqtool.evaluation.postprocess import script_decoder

GEOMETRY = Geometry(200, 100, (0.5, 0.5), (0.0, 10.0), (100, 70))
GOOD = """
import numpy as np

def postprocess(outputs, geometries):
    assert len(outputs["y"]) == len(geometries) and geometries[0].input_size == (100, 70)
    return [(row[:, :4], row[:, 4], row[:, 5].astype(int)) for row in outputs["y"]]

def other(outputs, geometries):
    return [([[0, 10, 50, 60]], [0.5], [7.0])] * len(geometries)
"""


@pytest.fixture(autouse=True)
def forget_scripts() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("qdqtool_data_")]:
        del sys.modules[name]


def script(folder: Path, text: str = GOOD) -> Path:
    path = folder / "decode.py"
    path.write_text(text)
    return path


def test_boxes_go_back_into_the_image_sorted_and_thresholded(tmp_path: Path) -> None:
    rows = np.array([[10, 20, 30, 40, 0.4, 1], [-9, 0, 90, 69, 0.9, 0], [0, 0, 1, 1, 0.2, 0]], np.float32)
    decode = script_decoder(str(script(tmp_path)), Selection(score=0.3))
    found = decode({"y": rows[None]}, [GEOMETRY])[0]
    np.testing.assert_allclose(found.boxes, [[0, 0, 180, 100], [20, 20, 60, 60]])
    assert (found.labels.tolist(), found.scores.tolist()) == ([0, 1], pytest.approx([0.9, 0.4]))
    assert (
        len(script_decoder(str(script(tmp_path)), Selection(score=0.1, most=2))({"y": rows[None]}, [GEOMETRY])[0]) == 2
    )
    assert decode.description == "postprocess of decode.py; score above 0.3"


def test_nothing_is_suppressed_unless_an_overlap_is_given(tmp_path: Path) -> None:
    rows = np.array([[0, 20, 30, 40, 0.4, 1], [0, 20, 30, 41, 0.9, 1], [0, 20, 30, 40, 0.8, 2]], np.float32)
    path = str(script(tmp_path))
    assert len(script_decoder(path)({"y": rows[None]}, [GEOMETRY])[0]) == 3
    decode = script_decoder(path, Selection(iou=0.5))
    assert decode({"y": rows[None]}, [GEOMETRY])[0].labels.tolist() == [1, 2]
    assert decode.description == "postprocess of decode.py; score above 0.01, NMS at IoU 0.5"


def test_a_function_can_be_named_and_whole_floats_are_labels(tmp_path: Path) -> None:
    found = script_decoder(f"{script(tmp_path)}:other")({"y": np.zeros(1)}, [GEOMETRY] * 2)
    assert [one.labels.tolist() for one in found] == [[7], [7]]
    np.testing.assert_allclose(found[1].boxes, [[0, 0, 100, 100]])


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("1 / 0", r"fails when it decodes \(ZeroDivisionError: division by zero\); fix it"),
        ("return None", "gives 0 results for 1 images; return one"),
        ("return [1, 2]", "gives 2 results for 1 images"),
        ("return [5]", "gives a int for an image"),
        ("return [([[1, 2, 3]], [1], [1])]", "does not return boxes, scores and labels"),
        ("return [([[1, 2, 3, 4]], [1, 2], [1])]", "gives 1 boxes, 2 scores and 1 labels"),
        ("return [([[1, 2, 3, 4]], [1], [1.5])]", "labels as whole numbers"),
        ("return [([[1, 2, 3, 4]], [1], ['cat'])]", "labels as whole numbers"),
    ],
)
def test_what_a_function_may_not_give(tmp_path: Path, body: str, reported: str) -> None:
    decode = script_decoder(str(script(tmp_path, f"def postprocess(outputs, geometries):\n    {body}\n")))
    with pytest.raises(QdqError, match=reported):
        decode({"y": np.zeros(1)}, [GEOMETRY])


def test_scripts_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="'decode' is not a script"):
        script_decoder("decode")
    with pytest.raises(QdqError, match=r"absent\.py: .*postprocess\(\)"):
        script_decoder(str(tmp_path / "absent.py"))
    with pytest.raises(QdqError, match="defines no boxes"):
        script_decoder(f"{script(tmp_path)}:boxes")
    with pytest.raises(QdqError, match=r"loaded \(NameError"):
        script_decoder(str(script(tmp_path, "nothing\n")))


def test_boxes_that_are_not_finite_are_dropped(tmp_path: Path) -> None:
    rows = np.array([[10, 20, np.inf, 40, 0.9, 1], [10, 20, 30, 40, 0.4, 1]], np.float32)
    assert len(script_decoder(str(script(tmp_path)))({"y": rows[None]}, [GEOMETRY])[0]) == 1
