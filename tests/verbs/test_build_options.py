# SPDX-License-Identifier: Apache-2.0
"""What `--shapes` and `--sm` of `build` say, and how a result is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.verbs.build import BuildResult
from qdqtool.verbs.build_options import joined_shapes, parse_capabilities, parse_shape_ranges


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1x3x8x8", {"x": ((1, 3, 8, 8),) * 3}),
        ("x:1x3:2x3:4x3", {"x": ((1, 3), (2, 3), (4, 3))}),
        ("x:1x3:2x3:4x3, y:5", {"x": ((1, 3), (2, 3), (4, 3)), "y": ((5,),) * 3}),
        ("net/x:0:1x3", {"net/x:0": ((1, 3),) * 3}),
        ("net/x:0:1x3:2x3:4x3", {"net/x:0": ((1, 3), (2, 3), (4, 3))}),
        ("x:1:2:4", {"x": ((1,), (2,), (4,))}),
    ],
)
def test_shapes(text: str, shapes: object) -> None:
    assert parse_shape_ranges(text) == shapes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an input and its shape"),
        ("x", "is not an input and its shape"),
        ("x:", "is not an input and its shape"),
        ("x:1x", "is not an input and its shape"),
        ("x:axb", "is not an input and its shape"),
        ("x:0x3", "do not satisfy min <= opt <= max"),
        ("x:4x3:2x3:1x3", "do not satisfy min <= opt <= max"),
        ("x:1x3,x:1x3", "'x' is named twice"),
        ("x:9999999999", "is not an input and its shape"),
    ],
)
def test_shapes_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(QdqError, match=f"--shapes {text}: .*{reason}"):
        parse_shape_ranges(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("89", ("89",)), ("89,120", ("89", "120")), ("SM89, sm120", ("89", "120")), ("89,89", ("89",))],
)
def test_capabilities(text: str, numbers: tuple[str, ...]) -> None:
    assert parse_capabilities(text) == numbers


@pytest.mark.parametrize("text", ["", "89,", "8.9", "Ada", "1", "12345"])
def test_capabilities_that_are_refused(text: str) -> None:
    with pytest.raises(QdqError, match=r"not a list .*--sm 89 or --sm 89,120"):
        parse_capabilities(text)


def test_a_result_without_layers() -> None:
    result = BuildResult(Path("e.engine"), None, None, "TensorRT 8.6.1, built here", 1234567)
    assert repr(result) == "<BuildResult: e.engine: TensorRT 8.6.1, built here, 1,234,567 bytes>"
    assert str(result) == "wrote e.engine (1,234,567 bytes): TensorRT 8.6.1, built here"
    assert result.totals is None and result.rows() == ()


def test_shapes_for_json_are_sorted() -> None:
    assert joined_shapes({"b": ((1,),) * 3, "a": ((2,), (3,), (4,))}) == {"a": [[2], [3], [4]], "b": [[1], [1], [1]]}
